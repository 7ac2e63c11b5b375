"""What a model of a service does next: its states, and whose frames it computes.

All decisions of the service are here; nothing here loads, computes or starts a thread. `TRANSITIONS` lists every change
of a model's state. `Queue` holds the blocks that clients have waiting for one model. The model's threads take frames
from it: the client that was served least goes next. One lock, the engine's, guards the states and queues of all models.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Inputs, Scorer, Similarities
from vlmsafe.signals.service.spec import ServiceStopped


class State(Enum):
    """What a model is doing."""

    LOADING = "loading"
    IN_USE = "in use"
    IDLE = "idle"  # in memory without a client; it may be evicted
    STOPPING = "stopping"  # it finishes the frames that wait, and takes no others
    GONE = "gone"


class Change(Enum):
    """What happens to a model."""

    LOADED = "is loaded"
    JOINED = "gets its first client"
    LEFT = "loses its last client"
    STOPPED = "is evicted or told to stop"
    FAILED = "fails"
    ENDED = "has ended"


TRANSITIONS: dict[tuple[State, Change], State] = {
    (State.LOADING, Change.LOADED): State.IN_USE,  # the client that asked for it is waiting
    (State.LOADING, Change.STOPPED): State.STOPPING,
    (State.LOADING, Change.FAILED): State.GONE,
    (State.IN_USE, Change.LEFT): State.IDLE,
    (State.IN_USE, Change.STOPPED): State.STOPPING,
    (State.IN_USE, Change.FAILED): State.GONE,
    (State.IDLE, Change.JOINED): State.IN_USE,
    (State.IDLE, Change.STOPPED): State.STOPPING,
    (State.IDLE, Change.FAILED): State.GONE,
    (State.STOPPING, Change.LOADED): State.STOPPING,
    (State.STOPPING, Change.LEFT): State.STOPPING,
    (State.STOPPING, Change.STOPPED): State.STOPPING,
    (State.STOPPING, Change.FAILED): State.GONE,
    (State.STOPPING, Change.ENDED): State.GONE,
    (State.GONE, Change.LEFT): State.GONE,
    (State.GONE, Change.STOPPED): State.GONE,
    (State.GONE, Change.FAILED): State.GONE,  # several of its threads
    (State.GONE, Change.ENDED): State.GONE,
}
"""The state that follows each change. Any other change is a defect of this package."""


def after(state: State, change: Change) -> State:
    """The state after a change.

    >>> after(State.IDLE, Change.JOINED)
    <State.IN_USE: 'in use'>
    """
    if (state, change) not in TRANSITIONS:
        raise RuntimeError(f"a model that is {state.value} cannot be one that {change.value}")
    return TRANSITIONS[state, change]


@dataclass(frozen=True)
class Reading:
    """How a client uses a model: its prompts, the threads with which they are embedded, and its batches."""

    prompts: PromptSet | None
    threads: int
    batch: int


class Client:
    """A client of a model, and its waiting blocks."""

    def __init__(self, scorer: Scorer, frame: tuple[int, ...] | None, reading: Reading) -> None:
        self.scorer, self.frame = scorer, frame
        self.threads, self.batch = reading.threads, reading.batch
        self.blocks: deque[Block] = deque()
        self.waiting = 0  # frames of those blocks that are in no batch yet
        self.served = 0.0  # frames so far; a new or idle client starts level with the others


class Block:
    """A client's block of frames. Batches may take it piece by piece."""

    def __init__(self, client: Client, frames: Inputs) -> None:
        self.client, self.frames = client, frames
        self.found = np.empty((len(frames), sum(client.scorer.groups)), np.float32)
        self.taken = self.done = 0
        self.since = time.monotonic()
        self.future: Future[Similarities] = Future()

    def settle(self, outcome: Similarities | BaseException) -> None:
        """Set the result, unless there is one already or nobody waits for it any longer."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


@dataclass(frozen=True)
class Piece:
    """Frames of a block that are computed in one batch."""

    block: Block
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def part(self) -> tuple[Scorer, Inputs]:
        """The frames with the scorer for their client's prompts."""
        return self.block.client.scorer, self.block.frames[self.start : self.stop]


class Queue:
    """A model's state, and the frames that its clients have waiting."""

    def __init__(self, lock: threading.Lock, *, ahead: int = 4, fill_seconds: float = 0.002, cores: int = 1) -> None:
        """A client may have `ahead` batches waiting; a batch waits `fill_seconds` to be filled. Blocks that are
        computed at a time have no more than `cores` threads together."""
        self.state = State.LOADING
        self.users = 0  # clients, and those that are opening the model
        self.idle_since = 0.0
        self.lock, self.cores = lock, cores
        self._ahead, self._fill_seconds = ahead, fill_seconds
        self._changed = threading.Condition(lock)
        self._clients: dict[Client, None] = {}  # clients with waiting frames
        self._level = 0.0  # frames that the client served last had received before
        self._busy = 0  # cores that compute blocks now

    # The caller of these four holds the lock.

    def move(self, change: Change) -> None:
        self.state = after(self.state, change)
        self._changed.notify_all()

    def join(self) -> None:
        """Count another user."""
        self.users += 1
        if self.state is State.IDLE:
            self.move(Change.JOINED)

    def leave(self) -> None:
        """Count a user less."""
        self.users -= 1
        if not self.users:
            self.idle_since = time.monotonic()
            self.move(Change.LEFT)

    @property
    def waiting(self) -> int:
        return sum(client.waiting for client in self._clients)

    # What clients do.

    def submit(self, client: Client, frames: Inputs, timeout: float | None) -> Block:
        """Append a block. While the client has too much waiting, wait; TimeoutError if there is no room in time."""
        block, room = Block(client, frames), self._ahead * client.batch
        if not len(frames):
            block.settle(block.found)
            return block
        with self._changed:
            # A block that is larger than the whole queue is accepted if nothing else waits.
            if not self._changed.wait_for(
                lambda: self._ending or not client.waiting or client.waiting + len(frames) <= room, timeout
            ):
                raise TimeoutError(f"{client.waiting} frames are still waiting")
            if self._ending:
                raise ServiceStopped("the scoring service is stopping")
            if client not in self._clients:
                # A new or idle client starts level with the others; otherwise it would be served before all of them.
                client.served = max(client.served, self._level)
                self._clients[client] = None
            client.blocks.append(block)
            client.waiting += len(frames)
            self._changed.notify_all()
        return block

    def forget(self, client: Client) -> None:
        """Drop a client's waiting frames."""
        with self._changed:
            for block in self._drop(client):
                block.future.cancel()
            self._changed.notify_all()

    # What the model's threads do.

    def take_block(self) -> Piece | None:
        """A block, or a batch of it, of the client that was served least, once cores are free. None: end."""

        def ready() -> bool:
            if not self._clients:
                return self._ending
            return not self._busy or self._busy + _least_served(self._clients).threads <= self.cores

        with self._changed:
            self._changed.wait_for(ready)
            if not self._clients:
                return None
            client = _least_served(self._clients)
            self._busy += client.threads
            piece = self._take(client, client.batch)
            self._changed.notify_all()
        return piece

    def free_cores(self, client: Client) -> None:
        """Note that a client's block is computed."""
        with self._changed:
            self._busy -= client.threads
            self._changed.notify_all()

    def take_batch(self, pieces: list[Piece]) -> list[Piece]:
        """Add waiting frames to a batch, from the clients that were served least and have batches of the same size."""
        pieces = list(pieces)
        with self._changed:
            while not is_full(pieces):
                able = [client for client in self._clients if not pieces or _fits(client, pieces[0].block)]
                if not able:
                    break
                client = _least_served(able)
                pieces.append(self._take(client, client.batch - count(pieces)))
            self._changed.notify_all()
        return pieces

    def fill(self, pieces: list[Piece]) -> list[Piece]:
        """Add frames to a batch: wait for the first as long as needed, and for more a short time. Empty: end."""
        if not pieces:
            with self._changed:
                self._changed.wait_for(lambda: self._clients or self._ending)
        pieces = self.take_batch(pieces)
        until = time.monotonic() + self._fill_seconds
        while pieces and not is_full(pieces):
            with self._changed:
                if self._ending or not self._changed.wait_for(lambda: self._clients, until - time.monotonic()):
                    break
            before, pieces = pieces, self.take_batch(pieces)
            if len(pieces) == len(before):  # the waiting frames have another size, or belong in other batches
                break
        return pieces

    def fail(self, pieces: Iterable[Piece], failure: BaseException) -> None:
        """Settle the blocks of some pieces with an error; the rest of them is not computed."""
        blocks = list(dict.fromkeys(piece.block for piece in pieces))
        with self._changed:
            for block in blocks:
                client = block.client
                if block in client.blocks:
                    client.blocks.remove(block)
                    client.waiting -= len(block.frames) - block.taken
                    if not client.blocks:
                        self._clients.pop(client, None)
            self._changed.notify_all()
        for block in blocks:
            block.settle(failure)

    def break_off(self, failure: BaseException) -> None:
        """Settle everything that waits with an error; the model is gone."""
        with self._changed:
            self.move(Change.FAILED)
            blocks = [block for client in list(self._clients) for block in self._drop(client)]
        for block in blocks:
            block.settle(failure)

    @property
    def _ending(self) -> bool:
        return self.state in (State.STOPPING, State.GONE)

    def _drop(self, client: Client) -> list[Block]:
        self._clients.pop(client, None)
        blocks, client.waiting = list(client.blocks), 0
        client.blocks.clear()
        return blocks

    def _take(self, client: Client, room: int) -> Piece:
        """Take up to `room` of a client's waiting frames."""
        block = client.blocks[0]
        start = block.taken
        block.taken = min(len(block.frames), start + room)
        taken = block.taken - start
        self._level = max(self._level, client.served)
        client.served += taken
        client.waiting -= taken
        if block.taken == len(block.frames):
            client.blocks.popleft()
        if not client.blocks:
            del self._clients[client]
        return Piece(block, start, block.taken)


def count(pieces: list[Piece]) -> int:
    return sum(piece.count for piece in pieces)


def is_full(pieces: list[Piece]) -> bool:
    return bool(pieces) and count(pieces) == pieces[0].block.client.batch


def _fits(client: Client, block: Block) -> bool:
    """Whether a client's next frames can be in one batch with a block."""
    return client.batch == block.client.batch and client.blocks[0].frames.shape[1:] == block.frames.shape[1:]


def _least_served(clients: Iterable[Client]) -> Client:
    return min(clients, key=lambda client: client.served)
