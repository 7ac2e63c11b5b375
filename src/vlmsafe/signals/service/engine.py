"""Scoring for many clients at once: each model in memory once, and one thread that feeds it.

A client opens a model with its own prompts and hands over blocks of frames. Clients with the same model share it,
whatever their prompts, and a model that computes full batches only gets the frames of several clients in one batch.
Every other model gets each client's blocks as they came. Either way a frame's similarities are what a private scorer
would have given (see `vlmsafe.signals.scorers.batches`).

Who was served least comes next, so a client with much to score does not keep the others waiting. What a client has
waiting is bounded: `submit` blocks until there is room.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers import make_scorer, parse_scorer
from vlmsafe.signals.scorers.api import (
    Inputs,
    Scorer,
    Similarities,
    check_frames,
    check_scorer,
    check_similarities,
    failure_of,
)
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.service.spec import SHARED, ModelSpec, NotShared, ServiceStopped

__all__ = ["Engine", "ModelSpec", "NotShared", "Opened", "ServiceStopped"]

Make = Callable[["ModelSpec", PromptSet | None], Scorer]


@dataclass(frozen=True)
class Opened:
    """What a client learns of the scorer it opened, and the key it submits frames with."""

    key: int
    scorer: Scorer


def make_model(spec: ModelSpec, prompts: PromptSet | None) -> Scorer:
    return make_scorer(
        spec.scorer, prompts, device=spec.device, precision=spec.precision, compile=spec.compile, batch=spec.batch
    )


class Engine:
    """Models by their specification, and the clients of each. Every method may be called by any thread."""

    def __init__(self, *, ahead: int = 4, fill_seconds: float = 0.002, make: Make = make_model) -> None:
        """`ahead` is how many batches a client may have waiting, `fill_seconds` how long a batch waits to be filled."""
        self._ahead, self._fill_seconds, self._make = ahead, fill_seconds, make
        self._lock = threading.Lock()
        self._models: dict[ModelSpec, _Model] = {}
        self._clients: dict[int, _Client] = {}
        self._keys = itertools.count(1)
        self._stopping = False

    def open(self, spec: ModelSpec, prompts: PromptSet | None, frame: tuple[int, ...] | None = None) -> Opened:
        """Register a client; loads the model where it is the first to ask for it, which may take long.

        `frame` is the shape of its frames, if known; otherwise the first block decides.
        """
        if parse_scorer(spec.scorer).kind not in SHARED:
            raise NotShared(f"the scorer '{spec.scorer}' does not look at frames and cannot be shared")
        spec = dataclasses.replace(spec, device=str(find_device(spec.device)))
        with self._lock:
            if self._stopping:
                raise ServiceStopped("the scoring service is stopping")
            if spec not in self._models:
                self._models[spec] = _Model(spec, self._make, self._ahead, self._fill_seconds)
            model = self._models[spec]
        try:
            scorer = model.scorer_for(prompts)
        finally:
            with self._lock:
                if not model.loaded and self._models.get(spec) is model:
                    del self._models[spec]  # the next one may try again
        with self._lock:
            key = next(self._keys)
            self._clients[key] = _Client(model, scorer, frame)
        return Opened(key, scorer)

    def submit(self, key: int, frames: Inputs, *, timeout: float | None = None) -> Future[Similarities]:
        """Hand over a block, which must stay as it is until the future is done; waits while there is no room.

        Raises TimeoutError where there is none in time.
        """
        with self._lock:
            client = self._clients.get(key)
        if client is None:
            raise InputError(f"no client has the key {key}; open a model first")
        check_frames(frames, client.scorer.frames)
        if client.frame is None:
            client.frame = frames.shape[1:]
        if frames.shape[1:] != client.frame:
            raise InputError(
                f"expected frames of shape {list(client.frame)}, as before, got {list(frames.shape[1:])}; open the "
                "model again for others"
            )
        return client.model.submit(client, frames, timeout)

    def close(self, key: int) -> None:
        """Forget a client and what it has waiting."""
        with self._lock:
            client = self._clients.pop(key, None)
        if client is not None:
            client.model.forget(client)

    def stop(self) -> None:
        """Finish what is waiting, take nothing new, and let the models go."""
        with self._lock:
            self._stopping = True
            models = list(self._models.values())
        for model in models:
            model.stop()
        for model in models:
            model.join()

    def describe(self) -> list[dict[str, Any]]:
        """The models in memory: name, clients, prompt sets, batches and frames so far."""
        with self._lock:
            models, clients = dict(self._models), list(self._clients.values())
        return [
            {"scorer": spec.scorer, "clients": sum(client.model is model for client in clients), **model.counts()}
            for spec, model in models.items()
        ]


class _Client:
    def __init__(self, model: _Model, scorer: Scorer, frame: tuple[int, ...] | None) -> None:
        self.model, self.scorer, self.frame = model, scorer, frame
        self.blocks: deque[_Block] = deque()
        self.waiting = 0  # frames of those blocks that no batch has taken yet
        self.served = 0.0  # frames so far, or as many as the one served least when it came back


class _Block:
    """A client's block on its way: batches may take it piece by piece."""

    def __init__(self, client: _Client, frames: Inputs) -> None:
        self.client, self.frames = client, frames
        self.found = np.empty((len(frames), sum(client.scorer.groups)), np.float32)
        self.taken = self.done = 0
        self.future: Future[Similarities] = Future()


@dataclass(frozen=True)
class _Piece:
    block: _Block
    start: int
    stop: int


class _Model:
    """A model, its thread, and what its clients have waiting."""

    def __init__(self, spec: ModelSpec, make: Make, ahead: int, fill_seconds: float) -> None:
        self.spec, self._make = spec, make
        self._room, self._fill_seconds = ahead * spec.batch, fill_seconds
        self._scorers: dict[PromptSet | None, Scorer] = {}
        self._reading = threading.Lock()  # prompts are read one after another, beside the scoring
        self._changed = threading.Condition()
        self._clients: dict[_Client, None] = {}  # those with frames waiting
        self._stopping = False
        self._first: Future[Scorer] | None = None
        self._first_prompts: PromptSet | None = None
        self._frames = self._batches = 0
        self._thread = threading.Thread(target=self._work, name=f"model {spec.scorer}", daemon=True)

    @property
    def loaded(self) -> bool:
        return bool(self._scorers)

    def counts(self) -> dict[str, int]:
        return {"prompt_sets": len(self._scorers), "batches": self._batches, "frames": self._frames}

    def scorer_for(self, prompts: PromptSet | None) -> Scorer:
        """The scorer of a set of prompts; the first one loads the model, in the model's own thread.

        What a GPU compiles and records belongs to the thread that did it.
        """
        with self._reading:
            if prompts in self._scorers:
                return self._scorers[prompts]
            if self._first is None:
                self._first, self._first_prompts = Future(), prompts
                self._thread.start()
            if not self._scorers:
                scorer = self._first.result()  # or why it could not be loaded
            else:
                one = next(iter(self._scorers.values()))
                shared = one.with_prompts(prompts) if prompts is not None else None
                scorer = shared if shared is not None else self._load(prompts)
            self._scorers[prompts] = scorer
            return scorer

    def _load(self, prompts: PromptSet | None) -> Scorer:
        scorer = self._make(self.spec, prompts)
        check_scorer(scorer)
        if scorer.looks_at != "frame":
            raise NotShared(f"the scorer '{self.spec.scorer}' does not look at frames and cannot be shared")
        return scorer

    def submit(self, client: _Client, frames: Inputs, timeout: float | None) -> Future[Similarities]:
        block = _Block(client, frames)
        if not len(frames):
            block.future.set_result(block.found)
            return block.future
        with self._changed:
            # A block larger than the room there is may come alone.
            if not self._changed.wait_for(
                lambda: self._stopping or not client.waiting or client.waiting + len(frames) <= self._room, timeout
            ):
                raise TimeoutError(f"{client.waiting} frames are still waiting")
            if self._stopping:
                raise ServiceStopped("the scoring service is stopping")
            if client not in self._clients:
                # Time spent idle gives no claim to be served before all others later.
                client.served = max([client.served, *([min(c.served for c in self._clients)] if self._clients else [])])
                self._clients[client] = None
            client.blocks.append(block)
            client.waiting += len(frames)
            self._changed.notify_all()
        return block.future

    def forget(self, client: _Client) -> None:
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

    def join(self) -> None:
        if self._first is not None:
            self._thread.join()

    # The model's thread.

    def _work(self) -> None:
        assert self._first is not None
        try:
            scorer = self._load(self._first_prompts)
        except BaseException as error:  # whatever the model's libraries raise, the client hears of it
            self._first.set_exception(error)
            return
        self._first.set_result(scorer)
        under_way: tuple[list[_Piece], Callable[[], list[Similarities]]] | None = None
        while True:
            pieces = self._take([], self.spec.batch, scorer.whole)
            if under_way is not None and sum(p.stop - p.start for p in pieces) < self.spec.batch:
                # Nothing is lost by waiting for the batch under way, and more may come to fill this one.
                self._deliver(*under_way)
                under_way = None
            if under_way is None:
                pieces = self._fill(pieces, scorer.whole)
                if not pieces:
                    return
            begun = self._begin(scorer, pieces)
            if under_way is not None:
                self._deliver(*under_way)
            under_way = begun
            if under_way is not None and not scorer.whole:  # it has been computed already
                self._deliver(*under_way)
                under_way = None

    def _fill(self, pieces: list[_Piece], whole: bool) -> list[_Piece]:
        """More for a batch: waits for its first frames without end, for others a moment. None: it is time to stop."""
        with self._changed:
            if not pieces:
                self._changed.wait_for(lambda: self._clients or self._stopping)
        pieces = self._take(pieces, self.spec.batch, whole)
        until = time.monotonic() + self._fill_seconds
        while whole and pieces and sum(p.stop - p.start for p in pieces) < self.spec.batch:
            with self._changed:
                if self._stopping or not self._changed.wait_for(lambda: self._clients, until - time.monotonic()):
                    break
            before, pieces = pieces, self._take(pieces, self.spec.batch, whole)
            if len(pieces) == len(before):  # what waits has another size
                break
        return pieces

    def _take(self, pieces: list[_Piece], batch: int, whole: bool) -> list[_Piece]:
        """Add to a batch what waits, from the clients served least; without `whole` it is one piece alone."""
        pieces = list(pieces)
        with self._changed:
            room = batch - sum(piece.stop - piece.start for piece in pieces)
            while room and (whole or not pieces):
                shape = pieces[0].block.frames.shape[1:] if pieces else None
                able = [c for c in self._clients if shape is None or c.blocks[0].frames.shape[1:] == shape]
                if not able:
                    break
                client = min(able, key=lambda client: client.served)
                block = client.blocks[0]
                start = block.taken
                block.taken = min(len(block.frames), start + room)
                count = block.taken - start
                pieces.append(_Piece(block, start, block.taken))
                room -= count
                client.served += count
                client.waiting -= count
                if block.taken == len(block.frames):
                    client.blocks.popleft()
                if not client.blocks:
                    del self._clients[client]
            self._changed.notify_all()
        return pieces

    def _begin(
        self, scorer: Scorer, pieces: list[_Piece]
    ) -> tuple[list[_Piece], Callable[[], list[Similarities]]] | None:
        self._batches += 1
        self._frames += sum(piece.stop - piece.start for piece in pieces)
        parts = [(piece.block.client.scorer, piece.block.frames[piece.start : piece.stop]) for piece in pieces]
        try:
            # Without full batches every prompt set may have a scorer of its own, which then does the work.
            return pieces, (scorer if scorer.whole else parts[0][0]).begin(parts)
        except (Exception, SystemExit) as error:
            self._fail(pieces, error)
            return None

    def _deliver(self, pieces: list[_Piece], finish: Callable[[], list[Similarities]]) -> None:
        try:
            parts = finish()
        except (Exception, SystemExit) as error:
            self._fail(pieces, error)
            return
        for piece, part in zip(pieces, parts, strict=True):
            block, count = piece.block, piece.stop - piece.start
            try:
                block.found[piece.start : piece.stop] = check_similarities(block.client.scorer, part, count)
            except InputError as error:
                self._fail([piece], error)
                continue
            block.done += count
            if block.done == len(block.frames):
                _settle(block.future, block.found)

    def _fail(self, pieces: list[_Piece], error: BaseException) -> None:
        failure = failure_of(self.spec.scorer, error)
        with self._changed:
            for block in {piece.block: None for piece in pieces}:
                if block in block.client.blocks:  # the rest of it would be scored in vain
                    block.client.blocks.remove(block)
                    block.client.waiting -= len(block.frames) - block.taken
                    if not block.client.blocks:
                        self._clients.pop(block.client, None)
            self._changed.notify_all()
        for block in {piece.block: None for piece in pieces}:
            _settle(block.future, failure)


def _settle(future: Future[Similarities], outcome: Similarities | BaseException) -> None:
    """Set a result, unless it has one or nobody waits for it any more."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
