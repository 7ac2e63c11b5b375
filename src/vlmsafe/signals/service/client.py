"""A scorer whose model is elsewhere: it hands frames to a scoring service and gets similarities back.

Frames are copied once, into slots that on one machine the service reads as they lie. They stay there until their
similarities have come. When the connection breaks, the client waits for a service to come back, checks that it sees
what the first one saw, and sends again whatever had not been answered: a run notices nothing but the time.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import (
    SAME_MODEL,
    InputKind,
    Inputs,
    Rule,
    Scorer,
    ScorerFailure,
    Similarities,
    check_frames,
)
from vlmsafe.signals.service.spec import (
    Address,
    GivenUp,
    ModelSpec,
    NotShared,
    ServiceStopped,
    parse_address,
)
from vlmsafe.signals.service.wire import (
    BLOCK_LIMIT,
    F_ADD_SEALS,
    F_SEAL_GROW,
    F_SEAL_SHRINK,
    Channel,
    Kind,
    Layout,
    Malformed,
    Message,
    attach_body,
    count_body,
    fields,
    open_body,
    read_error,
    read_scores,
    slot_body,
)

SLOTS = 3
_TRY_SECONDS = 0.2  # between two tries to connect
_SPEAK_SECONDS = 2.0  # of silence before the user is told what is waited for
_SILENCE_SECONDS = 20.0


def connect(
    address: str,
    spec: ModelSpec,
    prompts: PromptSet | None,
    wait: float,
    give_up: Callable[[], bool] = lambda: False,
) -> Scorer:
    """A scorer at an address. `wait` is for how many seconds a service may be away, at the start and later.

    Once `give_up` says so, nothing is waited for any longer, and GivenUp is raised.
    """
    where = parse_address(address)
    if where.kind == "ray":
        from vlmsafe.signals.service.ray_pool import PoolScorer  # it subclasses the scorer below

        return PoolScorer(where.place, spec, prompts, wait, give_up)
    return ServiceScorer(where, spec, prompts, wait, give_up=give_up)


class RemoteScorer(Scorer):
    """A scorer that is what another process says of its own."""

    looks_at: ClassVar[InputKind] = "frame"
    rules: tuple[Rule, ...]  # type: ignore[misc]
    bounds: tuple[float, float]  # type: ignore[misc]
    calibrated: bool  # type: ignore[misc]

    def take_over(self, said: dict[str, Any]) -> None:
        """Become what `describe_scorer` said."""
        self.rules, self.bounds = tuple(said["rules"]), (said["bounds"][0], said["bounds"][1])
        self.calibrated, self.frames = said["calibrated"], said["frames"]
        self.groups = (said["groups"][0], said["groups"][1])
        self._description: dict[str, Any] = said["description"]

    def describe(self) -> dict[str, Any]:
        return dict(self._description)


def describe_scorer(scorer: Scorer) -> dict[str, Any]:
    """What a client must know of a scorer to stand for it, as plain values."""
    return {
        "rules": list(scorer.rules),
        "bounds": list(scorer.bounds),
        "calibrated": scorer.calibrated,
        "frames": scorer.frames,
        "groups": list(scorer.groups),
        "description": scorer.describe(),
    }


_SAID = {"rules": list, "bounds": list, "calibrated": bool, "frames": int, "groups": list, "description": dict}


class ServiceScorer(RemoteScorer):
    """Asks a service over a Unix or a TCP socket."""

    def __init__(
        self,
        address: Address,
        spec: ModelSpec,
        prompts: PromptSet | None,
        wait: float = 120.0,
        *,
        slots: int = SLOTS,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._address, self._spec, self._prompts, self._wait = address, spec, prompts, wait
        self._slot_count, self._give_up = slots, give_up
        self._threads = _own_threads()
        self._heard = time.monotonic()  # when the service last gave a sign of life
        self._channel: Channel | None = None
        self._closed = threading.Event()
        self._numbers = 0
        self._slots: _Slots | None = None
        self._asked: deque[_Asked] = deque()  # unanswered, the oldest first
        self._sent: set[_Asked] = set()  # those of them that this connection has
        self._first: tuple[NDArray[np.uint8], Similarities] | None = None
        self._said: dict[str, Any] | None = None
        self._attempt(self._connect)

    def score(self, inputs: Inputs) -> Similarities:
        return self.begin([(self, inputs)])()[0]

    def begin(self, parts: Sequence[tuple[Scorer, Inputs]]) -> Callable[[], list[Similarities]]:
        """Send frames, in blocks of a batch; waits for answers where all slots are taken."""
        ((_, inputs),) = parts
        check_frames(inputs, self.frames)
        self._closed.clear()
        asked = []
        for start in range(0, len(inputs), self._spec.batch):
            asked.append(self._ask(inputs[start : start + self._spec.batch]))

        def finish() -> list[Similarities]:
            none = np.empty((0, sum(self.groups)), np.float32)
            return [np.concatenate([none, *(self._answer_to(block) for block in asked)])]

        return finish

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "service": str(self._address)}

    def notes(self, env: str | None = None) -> list[str]:
        def ask() -> list[str]:
            channel = self._connected()
            channel.send_json(Kind.NOTES, 0, {"env": env})
            found: list[str] = fields(self._receive(channel, Kind.NOTED).body, {"notes": list})["notes"]
            return found

        assert not self._asked
        found: list[str] = self._attempt(ask)
        return found

    def close(self) -> None:
        """Hang up, and end the wait of a thread that scores, if one does; scoring again connects again."""
        self._closed.set()
        channel = self._channel
        if channel is not None:
            with suppress(OSError):
                channel.socket.shutdown(socket.SHUT_RDWR)

    # Asking.

    def _ask(self, frames: NDArray[np.uint8]) -> _Asked:
        slots = self._slots_for(frames.shape[1:])
        while not slots.free:
            self._answer_to(self._asked[0])
        asked = _Asked(slots.free.pop(), len(frames))
        slots.blocks[asked.slot, : len(frames)] = frames
        self._asked.append(asked)

        def send() -> None:
            channel = self._connected()
            if asked not in self._sent:  # a new connection sends all there is
                self._send(channel, asked)

        self._attempt(send)
        return asked

    def _send(self, channel: Channel, asked: _Asked) -> None:
        slots = self._slots
        assert slots is not None
        self._numbers = (self._numbers + 1) % 2**32
        asked.number = self._numbers
        self._sent.add(asked)
        if slots.fd is not None and channel.local:
            channel.send(Kind.SCORE, asked.number, slot_body(asked.slot, asked.count))
        else:
            channel.send(Kind.SCORE, asked.number, count_body(asked.count), slots.blocks[asked.slot, : asked.count])

    def _answer_to(self, asked: _Asked) -> Similarities:
        """The similarities of a block; those of earlier ones are kept for whoever asks for them."""
        while asked.found is None and asked.error is None:
            self._attempt(self._take_answer)
        if asked.error is not None:
            raise asked.error
        assert asked.found is not None
        return asked.found

    def _take_answer(self) -> None:
        channel = self._connected()
        oldest = self._asked[0]
        assert self._slots is not None
        try:
            oldest.found = read_scores(self._receive(channel, Kind.SCORES, oldest.number).body)
        except (InputError, ScorerFailure) as error:
            oldest.error = error
        else:
            if oldest.found.shape != (oldest.count, sum(self.groups)):
                raise Malformed(f"the scoring service at {self._address} answered for other frames")
            if self._first is None:
                self._first = (self._slots.blocks[oldest.slot, :1].copy(), oldest.found[:1].copy())
        self._asked.popleft()
        self._sent.discard(oldest)
        self._slots.free.append(oldest.slot)

    def _slots_for(self, shape: tuple[int, ...]) -> _Slots:
        """Memory for frames of a shape; another shape is another connection."""
        if self._slots is None or self._slots.layout.shape != shape:
            while self._asked:
                self._answer_to(self._asked[0])
            most = BLOCK_LIMIT // int(np.prod(shape))
            if self._spec.batch > most:  # smaller blocks would be rounded otherwise than a private scorer's
                raise InputError(
                    f"a service takes at most {most} frames of {shape[0]} x {shape[1]} at a time, and the batch is "
                    f"{self._spec.batch}; lower it, or score without a service"
                )
            self._hang_up()
            layout = Layout((shape[0], shape[1], shape[2]), self._spec.batch, self._slot_count)
            self._slots = _Slots(layout, self._address)
            self._first = None
        return self._slots

    # The connection.

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Do something over the connection; where that breaks, wait for the service and do it again."""
        begun = time.monotonic()
        told = False
        while True:
            try:
                if self._given_up:
                    raise GivenUp("the scoring service is not waited for any longer")
                return action()
            except (OSError, UnicodeError, ServiceStopped) as error:
                self._hang_up()
                away = time.monotonic() - max(begun, self._heard)
                if away > self._wait:
                    raise RunError(self._farewell(away, error)) from None
                if not told and away > _SPEAK_SECONDS:
                    told = True
                    print(f"waiting for the scoring service at {self._address}", file=sys.stderr, flush=True)
                self._closed.wait(min(_TRY_SECONDS, max(0.0, self._wait)))

    @property
    def _given_up(self) -> bool:
        return self._closed.is_set() or self._give_up()

    def _farewell(self, away: float, error: BaseException) -> str:
        if self._said is None:
            return (
                f"there is no scoring service at {self._address} ({_reason(error)}); start one with `vlmsafe serve`, "
                'or score in the run itself with --signal.service ""'
            )
        return (
            f"the scoring service at {self._address} has been away for {away:.0f} seconds ({_reason(error)}); start "
            'one with `vlmsafe serve`, then resume the run, or resume it with --signal.service "" to score by itself'
        )

    def _connected(self) -> Channel:
        return self._channel if self._channel is not None else self._connect()

    def _connect(self) -> Channel:
        try:
            return self._reopen()
        except BaseException:
            self._hang_up()  # half of a conversation is no use to whoever asks next
            raise

    def _reopen(self) -> Channel:
        """Open the model again, and ask again what was not answered."""
        channel = Channel(_dial(self._address))
        self._channel = channel
        self._sent.clear()
        channel.send_json(Kind.OPEN, 0, open_body(self._spec, self._prompts, self._threads))
        said = fields(self._receive(channel, Kind.OPENED).body, _SAID)
        if self._said is not None and _identity(said) != _identity(self._said):
            raise RunError(
                f"the scoring service at {self._address} came back with another model: "
                f"{_identity(said)} after {_identity(self._said)}. Put the model back and resume the run"
            )
        self._said = said
        self.take_over(said)
        channel.body_limit = max(channel.body_limit, 64 + 4 * sum(self.groups) * self._spec.batch)
        if self._slots is not None:
            slots = self._slots
            memory = slots.fd is not None and channel.local
            channel.send_json(Kind.ATTACH, 0, attach_body(slots.layout, memory), slots.fd if memory else None)
            self._receive(channel, Kind.ATTACHED)
            self._recognise(channel, slots)
            for asked in self._asked:
                self._send(channel, asked)
        return channel

    def _recognise(self, channel: Channel, slots: _Slots) -> None:
        """Show the service the first frame again: it must see what was seen then, or the run would be of two models."""
        if self._first is None:
            return
        frame, then = self._first
        probe = _Asked(0, 1)
        # All slots may be taken by what waits to be sent again, so one is borrowed.
        borrowed = slots.blocks[probe.slot, :1].copy()
        slots.blocks[probe.slot, :1] = frame
        try:
            self._send(channel, probe)
            now = read_scores(self._receive(channel, Kind.SCORES, probe.number).body)
        finally:
            slots.blocks[probe.slot, :1] = borrowed
            self._sent.discard(probe)
        if now.shape != then.shape or not np.allclose(now, then, rtol=0.0, atol=SAME_MODEL):
            raise RunError(
                f"the scoring service at {self._address} came back with another model: similarities of the same "
                f"picture differ by up to {np.abs(now - then).max():.3g}. Put the model back and resume the run"
            )

    def _receive(self, channel: Channel, kind: Kind, number: int = 0) -> Message:
        """The next answer, which must be of a kind; errors of the service are raised."""
        while True:
            self._await(channel)
            message = channel.receive()
            if message.kind is Kind.ERROR:
                raise self._error(message)
            self._heard = time.monotonic()
            if message.kind is Kind.WAIT:
                continue
            if message.kind is not kind or message.number != number:
                raise Malformed(f"the scoring service at {self._address} answered {message.kind.name}, not {kind.name}")
            return message

    def _await(self, channel: Channel) -> None:
        """Wait for a message. Whoever waits hears from a service every five seconds; silence means that it hangs."""
        poll = select.poll()
        poll.register(channel.socket, select.POLLIN)
        until = time.monotonic() + _SILENCE_SECONDS
        while not poll.poll(1e3 * _TRY_SECONDS):
            if self._given_up:
                raise GivenUp("the scoring service is not waited for any longer")
            if time.monotonic() > until:
                raise TimeoutError("it does not answer")

    def _error(self, message: Message) -> VlmsafeError:
        kind, text, details = read_error(message.body)
        if kind in ("stopping", "busy", "late"):
            return ServiceStopped(text)
        if kind == "private":
            return NotShared(text)
        if kind == "failure":
            return ScorerFailure(text, details)
        if kind == "input":
            return InputError(text)
        return RunError(f"the scoring service at {self._address} refused a message: {text}")

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.socket.close()
            self._channel = None


class _Asked:
    """A block that was asked about."""

    def __init__(self, slot: int, count: int) -> None:
        self.slot, self.count, self.number = slot, count, 0
        self.found: Similarities | None = None
        self.error: VlmsafeError | None = None


class _Slots:
    """The client's memory for frames, shared where the service is on this machine."""

    def __init__(self, layout: Layout, address: Address) -> None:
        self.layout, self.fd = layout, None
        self.free = list(range(layout.slots))
        memory: Any
        if address.kind == "unix" and hasattr(os, "memfd_create"):
            # Without a name: nothing is left behind, however the process ends.
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
    """How many threads a scorer of this process's own would compute with; 0 where it has not loaded torch."""
    torch: Any = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 0


def _dial(address: Address) -> socket.socket:
    """A connection. A message that has begun must go on."""
    if address.kind == "tcp":
        connection = socket.create_connection((address.place, address.port), timeout=10.0)
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(os.path.expanduser(address.place))
        except BaseException:
            connection.close()
            raise
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(_SILENCE_SECONDS), 0))
    return connection


def _identity(said: dict[str, Any]) -> dict[str, Any]:
    """What must not change when a service comes back: another device may do the work, but not another model."""
    model = {name: value for name, value in said["description"].items() if name != "device"}
    return {**{name: value for name, value in said.items() if name != "description"}, **model}


def _reason(error: BaseException) -> str:
    if isinstance(error, BlockingIOError):
        return "it does not answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
