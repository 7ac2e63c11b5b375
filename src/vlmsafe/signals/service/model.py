"""One model of a service: its scorers, and the threads that load it and compute what its queue gives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Scorer, Similarities, check_scorer, check_similarities, failure_of
from vlmsafe.signals.scorers.threads import computing_with
from vlmsafe.signals.service.metrics import Labels, Metrics
from vlmsafe.signals.service.scheduler import Change, Piece, Queue, Reading, count, is_full
from vlmsafe.signals.service.spec import ModelSpec, NotShared

Make = Callable[[ModelSpec, PromptSet | None], Scorer]
_Begun = tuple[list[Piece], Callable[[], list[Similarities]]]
"""The pieces of a batch, and a function that waits for its results."""


def labels(spec: ModelSpec) -> Labels:
    """What a model's metrics are told apart by."""
    return (("scorer", spec.scorer), ("device", spec.device), ("precision", spec.precision))


class Model:
    """A model, its scorers by the way that clients use them, and its threads."""

    def __init__(self, spec: ModelSpec, first: Reading, make: Make, queue: Queue, metrics: Metrics) -> None:
        """`first` has the prompts, threads and batch that the model is loaded with."""
        self.spec, self.first, self.queue = spec, first, queue
        self._make, self._metrics = make, metrics
        self._labels = labels(spec)
        self._scorers: dict[Reading, Scorer] = {}
        self._reading = threading.Lock()  # one set of prompts is embedded at a time, while scoring goes on
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

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in list(self._threads):
            thread.join()

    def release(self) -> None:
        """Forget the scorers, once all threads have ended."""
        with self._reading:
            self._scorers.clear()
            self._loading = None  # its result is the first scorer

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
        self._metrics.count("loads", 1, self._labels)
        return scorer

    # What the threads do.

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guard, args=(work,), name=f"model {self.spec.scorer}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # a bug here: tell all waiting clients; the next one loads again
            self.queue.break_off(failure_of(self.spec.scorer, error))
            raise

    def _move(self, change: Change) -> None:
        with self.queue.lock:
            self.queue.move(change)

    def _load_and_work(self) -> None:
        assert self._loading is not None
        try:
            scorer = self._load(self.first)
        except BaseException as error:  # the model's libraries may raise anything; the client is told
            self._move(Change.FAILED)
            self._loading.set_exception(error)
            return
        if not scorer.whole and scorer.reentrant:
            for _ in range(self.queue.cores - 1):
                self._start(self._work_on_blocks)
        self._move(Change.LOADED)
        self._loading.set_result(scorer)
        if scorer.whole:
            self._work_on_batches()
        else:
            self._work_on_blocks()

    def _work_on_blocks(self) -> None:
        """Compute one block after another, each with the scorer for its own prompts."""
        while (piece := self.queue.take_block()) is not None:
            client = piece.block.client
            with computing_with(client.threads):
                begun = self._begin([piece])
                if begun is not None:
                    self._deliver(*begun)
            self.queue.free_cores(client)
            del piece, client, begun  # release the memory of clients that may be gone when the next block comes

    def _work_on_batches(self) -> None:
        """Compute full batches. The next one begins while the GPU computes."""
        under_way: _Begun | None = None
        while True:
            pieces = self.queue.take_batch([])
            if under_way is not None and not is_full(pieces):
                # Finish the batch under way first: this costs nothing, and more frames may come to fill this one.
                self._deliver(*under_way)
                under_way = None
            if under_way is None:
                pieces = self.queue.fill(pieces)
                if not pieces:
                    return
            begun = self._begin(pieces)
            if under_way is not None:
                self._deliver(*under_way)
            under_way = begun
            del pieces, begun

    def _begin(self, pieces: list[Piece]) -> _Begun | None:
        frames = count(pieces)
        with self.queue.lock:
            self._batches += 1
            self._frames += frames
        try:
            return pieces, pieces[0].block.client.scorer.begin([piece.part for piece in pieces])
        except BaseException as error:  # from the user's code; the thread must go on for other clients
            self._fail(pieces, error)
            return None

    def _deliver(self, pieces: list[Piece], finish: Callable[[], list[Similarities]]) -> None:
        try:
            parts = list(zip(pieces, finish(), strict=True))
        except BaseException as error:
            self._fail(pieces, error)
            return
        self._metrics.count("batches", 1, self._labels)
        self._metrics.count("frames", count(pieces), self._labels)
        for piece, part in parts:
            block = piece.block
            try:
                block.found[piece.start : piece.stop] = check_similarities(block.client.scorer, part, piece.count)
            except BaseException as error:  # a scorer may return what is no array of numbers
                self._fail([piece], error)
                continue
            block.done += piece.count
            if block.done == len(block.frames):
                self._metrics.observe(time.monotonic() - block.since, self._labels)
                block.settle(block.found)

    def _fail(self, pieces: list[Piece], error: BaseException) -> None:
        self._metrics.count("failures", 1, self._labels)
        self.queue.fail(pieces, failure_of(self.spec.scorer, error))
