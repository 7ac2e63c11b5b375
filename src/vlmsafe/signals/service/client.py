"""A scorer that sends frames to a scoring service and gets similarities back.

Frames are copied once, into slots; on the same machine the service reads them there. They stay in their slots until
their similarities have come. When the connection breaks, the client waits for a service, checks that its model is the
same, and sends all unanswered frames again. The run only takes longer. If service after service goes away before it has
answered, the run stops: the frames themselves may be what ends them.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.io.source import SourceHash
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import (
    SAME_MODEL,
    GateKind,
    InputKind,
    Inputs,
    Rule,
    Scorer,
    ScorerFailure,
    Similarities,
    check_frames,
)
from vlmsafe.signals.service import ray_pool
from vlmsafe.signals.service.connection import Connection
from vlmsafe.signals.service.spec import TOKEN, Address, ModelSpec, parse_address
from vlmsafe.signals.service.wire import (
    BLOCK_LIMIT,
    BODY_LIMIT,
    F_ADD_SEALS,
    F_SEAL_GROW,
    F_SEAL_SHRINK,
    AskNotes,
    Attach,
    Attached,
    Channel,
    Layout,
    Malformed,
    Noted,
    Open,
    Opened,
    Score,
    Scored,
    ScoreFrames,
)

SLOTS = 3  # blocks that may be under way


def connect(
    address: str,
    spec: ModelSpec,
    prompts: PromptSet | None,
    wait: float,
    give_up: Callable[[], bool] = lambda: False,
) -> Scorer:
    """A scorer that asks the service at an address. The service may be away for `wait` seconds.

    Once `give_up` returns True, waiting ends with GivenUp.
    """
    where = parse_address(address)
    locate = None if where.kind != "ray" else functools.partial(ray_pool.ask, where.place)
    return ServiceScorer(where, spec, prompts, wait, give_up=give_up, locate=locate)


def describe_scorer(scorer: Scorer, number: int = 0) -> Opened:
    """The attributes of a scorer that its client needs."""
    return Opened(
        number=number,
        rules=scorer.rules,
        bounds=scorer.bounds,
        gate=scorer.gate,
        frames=scorer.frames,
        frame_distance=scorer.frame_distance,
        groups=scorer.groups,
        description=scorer.describe(),
        source=None if scorer.source is None else scorer.source.to_dict(),
    )


class ServiceScorer(Scorer):
    """Asks a service over a Unix or a TCP socket. It has the attributes of the service's scorer."""

    looks_at: ClassVar[InputKind] = "frame"
    rules: tuple[Rule, ...]  # type: ignore[misc]
    bounds: tuple[float, float]  # type: ignore[misc]
    gate: GateKind  # type: ignore[misc]

    def __init__(
        self,
        address: Address,
        spec: ModelSpec,
        prompts: PromptSet | None,
        wait: float = 120.0,
        *,
        slots: int = SLOTS,
        give_up: Callable[[], bool] = lambda: False,
        locate: Callable[[], Address] | None = None,
    ) -> None:
        """See `Connection` for `wait`, `give_up` and `locate`; `slots` is how many blocks may be under way."""
        self._spec, self._prompts, self._slot_count = spec, prompts, slots
        self._threads = _own_threads()
        self._numbers = 0
        self._slots: _Slots | None = None
        self._asked: deque[_Asked] = deque()  # unanswered, the oldest first
        self._sent: set[_Asked] = set()  # those of them that this connection has
        self._first: Similarities | None = None  # of the first block, whose frames stay in a slot of their own
        self._about: Opened | None = None  # what `describe_scorer` gave in the service
        self._connection = Connection(address, locate, wait, give_up, self._greet)
        self._connection.attempt(lambda channel: None)

    def score(self, inputs: Inputs) -> Similarities:
        return self.begin([(self, inputs)])()[0]

    def begin(self, parts: Sequence[tuple[Scorer, Inputs]]) -> Callable[[], list[Similarities]]:
        """Send frames in blocks of a batch; wait for answers while no slot is free."""
        ((_, inputs),) = parts
        check_frames(inputs, self.frames)
        self._connection.open_again()
        asked = []
        for start in range(0, len(inputs), self._spec.batch):
            asked.append(self._ask(inputs[start : start + self._spec.batch]))

        def finish() -> list[Similarities]:
            none = np.empty((0, sum(self.groups)), np.float32)
            return [np.concatenate([none, *(self._answer_to(block) for block in asked)])]

        return finish

    def describe(self) -> dict[str, Any]:
        assert self._about is not None
        return {**self._about.description, "service": str(self._connection.address)}

    def notes(self, env: str | None = None) -> list[str]:
        def ask(channel: Channel) -> list[str]:
            channel.send(AskNotes(env=env))
            return self._connection.receive(channel, Noted).notes

        assert not self._asked
        return self._connection.attempt(ask)

    def close(self) -> None:
        """Hang up, and end the wait of a thread that scores. Scoring again connects again."""
        self._connection.close()

    # Asking.

    def _ask(self, frames: NDArray[np.uint8]) -> _Asked:
        slots = self._slots_for(frames.shape[1:])
        while not slots.free:
            self._answer_to(self._asked[0])
        asked = _Asked(slots.free.pop(), len(frames))
        slots.blocks[asked.slot, : len(frames)] = frames
        self._asked.append(asked)

        def send(channel: Channel) -> None:
            if asked not in self._sent:  # a new connection sends everything that is unanswered
                self._send(channel, asked)

        self._connection.attempt(send)
        return asked

    def _send(self, channel: Channel, asked: _Asked) -> None:
        slots = self._slots
        assert slots is not None
        self._numbers = (self._numbers + 1) % 2**32
        asked.number = self._numbers
        self._sent.add(asked)
        if slots.fd is not None and channel.local:
            channel.send(Score(number=asked.number, slot=asked.slot, count=asked.count))
        else:
            frames = slots.blocks[asked.slot, : asked.count].data.cast("B")
            channel.send(ScoreFrames(number=asked.number, count=asked.count, frames=frames))

    def _answer_to(self, asked: _Asked) -> Similarities:
        """The similarities of a block. Those of earlier blocks are kept until they are asked for."""
        while asked.found is None and asked.error is None:
            self._connection.attempt(self._take_answer)
        if asked.error is not None:
            raise asked.error
        assert asked.found is not None
        return asked.found

    def _take_answer(self, channel: Channel) -> None:
        oldest = self._asked[0]
        assert self._slots is not None
        try:
            oldest.found = self._connection.receive(channel, Scored, oldest.number).array()
        except (InputError, ScorerFailure) as error:
            oldest.error = error
        else:
            if oldest.found.shape != (oldest.count, sum(self.groups)):
                raise Malformed(f"the scoring service at {self._connection.address} answered for other frames")
            if self._first is None:
                self._slots.blocks[self._slots.kept, : oldest.count] = self._slots.blocks[oldest.slot, : oldest.count]
                self._first = oldest.found.copy()
        self._connection.progressed()
        self._asked.popleft()
        self._sent.discard(oldest)
        self._slots.free.append(oldest.slot)

    def _slots_for(self, shape: tuple[int, ...]) -> _Slots:
        """Memory for frames of a shape; for another shape the client connects again."""
        if self._slots is None or self._slots.layout.shape != shape:
            while self._asked:
                self._answer_to(self._asked[0])
            most = BLOCK_LIMIT // int(np.prod(shape))
            if self._spec.batch > most:  # smaller blocks would be rounded differently from a private scorer's
                raise InputError(
                    f"a service takes at most {most} frames of {shape[0]} x {shape[1]} at a time, and the batch is "
                    f"{self._spec.batch}; lower it, or score without a service"
                )
            self._connection.hang_up()
            layout = Layout((shape[0], shape[1], shape[2]), self._spec.batch, self._slot_count + 1)
            self._slots = _Slots(layout, self._connection.address)
            self._first = None
        return self._slots

    # A new connection.

    def _greet(self, channel: Channel) -> None:
        """Open the model, and ask again what was not answered on the connection before."""
        self._sent.clear()
        address = self._connection.address
        token = "" if channel.local else address.token or os.environ.get(TOKEN, "")
        channel.send(Open.of(self._spec, self._prompts, self._threads, token))
        about = self._connection.receive(channel, Opened)
        if self._about is not None and _identity(about) != _identity(self._about):
            raise RunError(
                f"the scoring service at {self._connection.address} came back with another model: "
                f"{_identity(about)} after {_identity(self._about)}. Put the model back and resume the run"
            )
        if self._about is None:  # later the client may have chosen another one; it is the client that stacks frames
            self.frame_distance = about.frame_distance
        self._about = about
        # What a service says of its scorer was checked there (`check_scorer`).
        self.rules, self.gate = cast(tuple[Rule, ...], about.rules), cast(GateKind, about.gate)
        self.bounds, self.frames, self.groups = about.bounds, about.frames, about.groups
        self.source = None if about.source is None else SourceHash.from_dict(about.source)
        channel.body_limit = BODY_LIMIT + 4 * sum(self.groups) * self._spec.batch
        if self._slots is not None:
            slots = self._slots
            memory = slots.fd is not None and channel.local
            channel.send(Attach(layout=slots.layout, memory=memory), slots.fd if memory else None)
            self._connection.receive(channel, Attached)
            self._recognise(channel, slots)
            for asked in self._asked:
                self._send(channel, asked)

    def _recognise(self, channel: Channel, slots: _Slots) -> None:
        """Score the first block again. If the result differs, the model has changed, and the run must not go on.

        It is the whole block, because batches of another size are rounded differently.
        """
        if self._first is None:
            return
        then = self._first
        probe = _Asked(slots.kept, len(then))
        self._send(channel, probe)
        self._sent.discard(probe)
        now = self._connection.receive(channel, Scored, probe.number).array()
        if now.shape != then.shape or not np.allclose(now, then, rtol=0.0, atol=SAME_MODEL[self._spec.precision]):
            by = f"differ by up to {np.abs(now - then).max():.3g}" if now.shape == then.shape else "have another shape"
            raise RunError(
                f"the scoring service at {self._connection.address} came back with another model: similarities of the "
                f"same pictures {by}. Put the model back and resume the run"
            )


class _Asked:
    """A block that was sent, and its answer."""

    def __init__(self, slot: int, count: int) -> None:
        self.slot, self.count, self.number = slot, count, 0
        self.found: Similarities | None = None
        self.error: VlmsafeError | None = None


class _Slots:
    """The client's memory for frames, shared where the service is on this machine."""

    def __init__(self, layout: Layout, address: Address) -> None:
        self.layout, self.fd = layout, None
        self.kept = layout.slots - 1  # for the first block, by which a service that comes back is recognised
        self.free = list(range(self.kept))
        memory: Any
        if address.kind == "unix" and hasattr(os, "memfd_create"):
            # It has no name, so nothing is left behind when the process ends.
            self.fd = os.memfd_create("vlmsafe-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, layout.size)
            fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
            memory = mmap.mmap(self.fd, layout.size)
        else:
            memory = bytearray(layout.size)
        self.blocks = np.frombuffer(memory, np.uint8).reshape(layout.slots, layout.block, *layout.shape)

    def __del__(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


def _own_threads() -> int:
    """How many threads a scorer in this process would compute with; 0 if torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 0


def _identity(about: Opened) -> dict[str, Any]:
    """What must not change when a service comes back: the model and its source, but not its device or revision."""
    found = msgspec.structs.asdict(about) | {"source": (about.source or {}).get("digest")}
    description = {name: value for name, value in found.pop("description").items() if name != "device"}
    return {**found, **description}
