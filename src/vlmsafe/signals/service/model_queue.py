"""One model of a scoring service: its threads, and the frames that its clients have waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Inputs, Scorer, Similarities, check_scorer, check_similarities, failure_of
from vlmsafe.signals.scorers.threads import computing_with
from vlmsafe.signals.service.spec import ModelSpec, NotShared, ServiceStopped

Make = Callable[[ModelSpec, PromptSet | None], Scorer]


@dataclass(frozen=True)
class Reading:
    """How a client uses a model: its prompts, the threads with which they are embedded, and its batches."""

    prompts: PromptSet | None
    threads: int
    batch: int


class Client:
    """A client of a model, and its waiting blocks."""

    def __init__(self, model: Model, scorer: Scorer, frame: tuple[int, ...] | None, reading: Reading) -> None:
        self.model, self.scorer, self.frame = model, scorer, frame
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
        self.future: Future[Similarities] = Future()


@dataclass(frozen=True)
class _Piece:
    block: Block
    start: int
    stop: int


_Begun = tuple[list[_Piece], Callable[[], list[Similarities]]]
"""The pieces of a batch, and a function that waits for its results."""


class Model:
    """A model, its threads, and its clients with waiting frames."""

    def __init__(
        self, spec: ModelSpec, first: Reading, make: Make, ahead: int, fill_seconds: float, cores: int
    ) -> None:
        """`first` has the prompts, threads and batch that the model is loaded with."""
        self.spec, self.first, self._make, self._cores = spec, first, make, cores
        self.broken = False
        self._ahead, self._fill_seconds = ahead, fill_seconds
        self._scorers: dict[Reading, Scorer] = {}
        self._reading = threading.Lock()  # one set of prompts is embedded at a time, while scoring goes on
        self._changed = threading.Condition()
        self._clients: dict[Client, None] = {}  # clients with waiting frames
        self._level = 0.0  # frames that the client served last had received before
        self._busy = 0  # cores that compute blocks now
        self._stopping = False
        self._loading: Future[Scorer] | None = None
        self._frames = self._batches = 0
        self._threads: list[threading.Thread] = []

    @property
    def loaded(self) -> bool:
        return bool(self._scorers)

    def counts(self) -> dict[str, int]:
        return {"prompt_sets": len(self._scorers), "batches": self._batches, "frames": self._frames}

    def scorer_for(self, reading: Reading) -> Scorer:
        """The scorer for a set of prompts. The first call loads the model, in the model's own thread."""
        with self._reading:
            if self._loading is None:
                self._loading = Future()
                self._start(self._load_and_work)
            if not self._scorers:
                self._scorers[self.first] = self._loading.result()  # raises if it could not be loaded
            if reading not in self._scorers:
                with computing_with(reading.threads):
                    shared = self._share(reading)
                if shared is not None:
                    shared.source = self._scorers[self.first].source
                self._scorers[reading] = shared if shared is not None else self._load(reading)
            return self._scorers[reading]

    def _share(self, reading: Reading) -> Scorer | None:
        """A scorer with the model that is in memory; None if there is nothing to share. Equal batches share buffers."""
        alike = next((one for own, one in self._scorers.items() if replace(own, batch=reading.batch) == reading), None)
        equal = next((one for own, one in self._scorers.items() if own.batch == reading.batch), None)
        if alike is not None and equal is None:
            return alike.with_batch(reading.batch)
        one = self._scorers[self.first].with_batch(reading.batch) if equal is None else equal
        if reading.prompts is not None and (found := one.with_prompts(reading.prompts)) is not None:
            return found
        return None if alike is None else alike.with_batch(reading.batch)

    def _load(self, reading: Reading) -> Scorer:
        with computing_with(reading.threads):
            scorer = self._make(replace(self.spec, batch=reading.batch), reading.prompts)
        check_scorer(scorer)
        if scorer.looks_at != "frame":
            raise NotShared(f"the scorer '{self.spec.scorer}' does not look at frames and cannot be shared")
        return scorer

    def submit(self, client: Client, frames: Inputs, timeout: float | None) -> Future[Similarities]:
        block = Block(client, frames)
        if not len(frames):
            block.future.set_result(block.found)
            return block.future
        room = self._ahead * client.batch
        with self._changed:
            # A block that is larger than the whole queue is accepted if nothing else waits.
            if not self._changed.wait_for(
                lambda: self._stopping or not client.waiting or client.waiting + len(frames) <= room, timeout
            ):
                raise TimeoutError(f"{client.waiting} frames are still waiting")
            if self._stopping:
                raise ServiceStopped("the scoring service is stopping")
            if client not in self._clients:
                # A new or idle client starts level with the others; otherwise it would be served before all of them.
                client.served = max(client.served, self._level)
                self._clients[client] = None
            client.blocks.append(block)
            client.waiting += len(frames)
            self._changed.notify_all()
        return block.future

    def forget(self, client: Client) -> None:
        with self._changed:
            self._clients.pop(client, None)
            for block in client.blocks:
                block.future.cancel()
            client.blocks.clear()
            client.waiting = 0
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def release(self) -> None:
        """Forget the scorers, once all threads have ended."""
        with self._reading:
            self._scorers.clear()

    def join(self) -> None:
        for thread in list(self._threads):
            thread.join()

    # What the model's threads do.

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guard, args=(work,), name=f"model {self.spec.scorer}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # a bug here: tell all waiting clients; the next one loads again
            failure = failure_of(self.spec.scorer, error)
            with self._changed:
                self.broken = self._stopping = True
                waiting = [block for client in self._clients for block in client.blocks]
                self._clients.clear()
                self._changed.notify_all()
            for block in waiting:
                _settle(block.future, failure)
            raise

    def _load_and_work(self) -> None:
        assert self._loading is not None
        try:
            scorer = self._load(self.first)
        except BaseException as error:  # the model's libraries may raise anything; the client is told
            self._loading.set_exception(error)
            return
        if not scorer.whole and scorer.reentrant:
            for _ in range(self._cores - 1):
                self._start(self._work_on_blocks)
        self._loading.set_result(scorer)
        if scorer.whole:
            self._work_on_batches()
        else:
            self._work_on_blocks()

    def _work_on_blocks(self) -> None:
        """Compute one block after another, each with the scorer for its own prompts."""
        while (piece := self._take_block()) is not None:
            client = piece.block.client
            with computing_with(client.threads):
                begun = self._begin(client.scorer, [piece])
                if begun is not None:
                    self._deliver(*begun)
            with self._changed:
                self._busy -= client.threads
                self._changed.notify_all()
            del piece, client, begun  # release the memory of clients that may be gone when the next block comes

    def _work_on_batches(self) -> None:
        """Compute full batches. The next one begins while the GPU computes."""
        under_way: _Begun | None = None
        while True:
            pieces = self._take_batch([])
            if under_way is not None and not _is_full(pieces):
                # Finish the batch under way first: this costs nothing, and more frames may come to fill this one.
                self._deliver(*under_way)
                under_way = None
            if under_way is None:
                pieces = self._fill(pieces)
                if not pieces:
                    return
            begun = self._begin(pieces[0].block.client.scorer, pieces)
            if under_way is not None:
                self._deliver(*under_way)
            under_way = begun
            del pieces, begun

    def _fill(self, pieces: list[_Piece]) -> list[_Piece]:
        """Add frames to a batch: wait for the first as long as needed, and for more a short time. Empty: stop."""
        if not pieces:
            with self._changed:
                self._changed.wait_for(lambda: self._clients or self._stopping)
        pieces = self._take_batch(pieces)
        until = time.monotonic() + self._fill_seconds
        while pieces and not _is_full(pieces):
            with self._changed:
                if self._stopping or not self._changed.wait_for(lambda: self._clients, until - time.monotonic()):
                    break
            before, pieces = pieces, self._take_batch(pieces)
            if len(pieces) == len(before):  # the waiting frames have another size, or belong in other batches
                break
        return pieces

    def _take_batch(self, pieces: list[_Piece]) -> list[_Piece]:
        """Add waiting frames to a batch, from the clients that were served least and have batches of the same size."""
        pieces = list(pieces)
        with self._changed:
            while not _is_full(pieces):
                able = [client for client in self._clients if not pieces or _fits(client, pieces[0].block)]
                if not able:
                    break
                client = _least_served(able)
                pieces.append(self._take(client, client.batch - _count(pieces)))
            self._changed.notify_all()
        return pieces

    def _take_block(self) -> _Piece | None:
        """A block, or a batch of it, of the client that was served least, once cores are free. None: stop."""

        def ready() -> bool:
            if not self._clients:
                return self._stopping
            return not self._busy or self._busy + _least_served(self._clients).threads <= self._cores

        with self._changed:
            self._changed.wait_for(ready)
            if not self._clients:
                return None
            client = _least_served(self._clients)
            self._busy += client.threads
            piece = self._take(client, client.batch)
            self._changed.notify_all()
        return piece

    def _take(self, client: Client, room: int) -> _Piece:
        """Take up to `room` of a client's waiting frames."""
        block = client.blocks[0]
        start = block.taken
        block.taken = min(len(block.frames), start + room)
        count = block.taken - start
        self._level = max(self._level, client.served)
        client.served += count
        client.waiting -= count
        if block.taken == len(block.frames):
            client.blocks.popleft()
        if not client.blocks:
            del self._clients[client]
        return _Piece(block, start, block.taken)

    def _begin(self, scorer: Scorer, pieces: list[_Piece]) -> _Begun | None:
        with self._changed:
            self._batches += 1
            self._frames += _count(pieces)
        parts = [(piece.block.client.scorer, piece.block.frames[piece.start : piece.stop]) for piece in pieces]
        try:
            return pieces, scorer.begin(parts)
        except BaseException as error:  # from the user's code; the thread must go on for other clients
            self._fail(pieces, error)
            return None

    def _deliver(self, pieces: list[_Piece], finish: Callable[[], list[Similarities]]) -> None:
        try:
            parts = list(zip(pieces, finish(), strict=True))
        except BaseException as error:
            self._fail(pieces, error)
            return
        for piece, part in parts:
            block, count = piece.block, piece.stop - piece.start
            try:
                block.found[piece.start : piece.stop] = check_similarities(block.client.scorer, part, count)
            except BaseException as error:  # a scorer may return what is no array of numbers
                self._fail([piece], error)
                continue
            block.done += count
            if block.done == len(block.frames):
                _settle(block.future, block.found)

    def _fail(self, pieces: list[_Piece], error: BaseException) -> None:
        failure = failure_of(self.spec.scorer, error)
        with self._changed:
            for block in {piece.block: None for piece in pieces}:
                if block in block.client.blocks:  # do not score the rest of it
                    block.client.blocks.remove(block)
                    block.client.waiting -= len(block.frames) - block.taken
                    if not block.client.blocks:
                        self._clients.pop(block.client, None)
            self._changed.notify_all()
        for block in {piece.block: None for piece in pieces}:
            _settle(block.future, failure)


def _count(pieces: list[_Piece]) -> int:
    return sum(piece.stop - piece.start for piece in pieces)


def _is_full(pieces: list[_Piece]) -> bool:
    return bool(pieces) and _count(pieces) == pieces[0].block.client.batch


def _fits(client: Client, block: Block) -> bool:
    """Whether a client's next frames can be in one batch with a block."""
    return client.batch == block.client.batch and client.blocks[0].frames.shape[1:] == block.frames.shape[1:]


def _least_served(clients: Iterable[Client]) -> Client:
    return min(clients, key=lambda client: client.served)


def _settle(future: Future[Similarities], outcome: Similarities | BaseException) -> None:
    """Set a result, unless there is one already or the future was cancelled."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
