"""Scores frames for many clients at once. Each model is in memory once.

A client opens a model with its own prompts and submits blocks of frames. Clients of one model share it, even if their
prompts differ. A model that computes full batches only gets frames of several clients in one batch. Any other model
gets each client's blocks as they came, and computes with as many threads as the client would, because the number of
threads affects rounding. Several blocks are computed at a time if the scorer allows it and there are enough cores. In
both cases the similarities equal those of a private scorer (see `vlmsafe.signals.scorers.batches`).

Scheduling is fair: the client that was served least goes next, so a client with many frames does not delay the others.
A client can have only so many frames waiting; `submit` blocks until there is room.

A model that no client has used for a while is released.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Inputs, Scorer, Similarities, check_frames
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.registry import make_scorer, parse_scorer
from vlmsafe.signals.service.model_queue import Client, Make, Model, Reading
from vlmsafe.signals.service.spec import ModelSpec, NotShared, ServiceStopped

IDLE_SECONDS = 600.0
"""How long a model without a client stays in memory by default."""

__all__ = ["Engine", "ModelSpec", "NotShared", "Opened", "ServiceStopped"]


@dataclass(frozen=True)
class Opened:
    """The scorer that a client opened, and the client's key for `submit`."""

    key: int
    scorer: Scorer


def make_model(spec: ModelSpec, prompts: PromptSet | None) -> Scorer:
    return make_scorer(
        spec.scorer,
        prompts,
        device=spec.device,
        precision=spec.precision,
        compile=spec.compile,
        batch=spec.batch,
        frames=spec.frames,
    )


class Engine:
    """Models by their specification, and the clients of each. Every method may be called by any thread."""

    def __init__(
        self,
        *,
        ahead: int = 4,
        fill_seconds: float = 0.002,
        make: Make = make_model,
        cores: int = 0,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """A client may have `ahead` batches waiting. A batch waits `fill_seconds` to be filled. On the CPU a model
        computes with `cores`; 0 means the number that torch would use. A model stays in memory for `idle_seconds`
        after its last client has left."""
        self._ahead, self._fill_seconds, self._make, self._cores = ahead, fill_seconds, make, cores
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._models: dict[ModelSpec, Model] = {}  # the batch, which is the client's, is 0 in these
        self._users: Counter[Model] = Counter()  # clients, and those that are opening a model
        self._releases: dict[Model, threading.Timer] = {}  # of models that nobody uses
        self._clients: dict[int, Client] = {}
        self._keys = itertools.count(1)
        self._stopping = False

    def open(
        self, spec: ModelSpec, prompts: PromptSet | None, frame: tuple[int, ...] | None = None, threads: int = 0
    ) -> Opened:
        """Register a client. For the first client of a model this loads the model, which may take long.

        `frame` is the shape of its frames, if known; otherwise the first block sets it. `threads` is how many threads
        the client would compute with on the CPU; 0 means all cores of this machine.
        """
        if not parse_scorer(spec.scorer).kind.shared:
            raise NotShared(f"the scorer '{spec.scorer}' does not look at frames and cannot be shared")
        spec = dataclasses.replace(spec, device=str(find_device(spec.device)))
        with self._lock:
            self._cores = self._cores or _torch_threads()
        reading = Reading(prompts, min(threads or self._cores, self._cores), spec.batch)
        model, scorer = self._scorer_for(dataclasses.replace(spec, batch=0), reading)
        with self._lock:
            key = next(self._keys)
            self._clients[key] = Client(model, scorer, frame, reading)
        return Opened(key, scorer)

    def _scorer_for(self, spec: ModelSpec, reading: Reading) -> tuple[Model, Scorer]:
        """A model, in use from now on, and its scorer."""
        while True:
            with self._lock:
                if self._stopping:
                    raise ServiceStopped("the scoring service is stopping")
                if spec not in self._models or self._models[spec].broken:
                    self._models[spec] = Model(spec, reading, self._make, self._ahead, self._fill_seconds, self._cores)
                model = self._models[spec]
                self._users[model] += 1
                if (release := self._releases.pop(model, None)) is not None:
                    release.cancel()
            try:
                return model, model.scorer_for(reading)
            except BaseException:
                self._leave(model)
                if model.loaded:
                    raise
                with self._lock:
                    if self._models.get(spec) is model:
                        del self._models[spec]  # the next client may try again
                if model.first == reading:
                    raise
                # Perhaps another client's prompts were at fault; these have not been tried yet.

    def submit(self, key: int, frames: Inputs, *, timeout: float | None = None) -> Future[Similarities]:
        """Submit a block; wait for room if there is none. The block must not change until the future is done.

        Raises TimeoutError if there is no room in time.
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
        """Forget a client and its waiting frames."""
        with self._lock:
            client = self._clients.pop(key, None)
        if client is not None:
            client.model.forget(client)
            self._leave(client.model)

    def _leave(self, model: Model) -> None:
        """Count a user less. A model that nobody uses is released after a while."""
        with self._lock:
            self._users[model] -= 1
            if self._users[model]:
                return
            del self._users[model]
            if self._stopping or not model.loaded:
                return
            release = threading.Timer(self._idle_seconds, self._release, (model,))
            release.daemon = True
            self._releases[model] = release
        release.start()

    def _release(self, model: Model) -> None:
        with self._lock:
            if self._users[model] or self._stopping or self._releases.pop(model, None) is None:
                return  # a client has come in the meantime
            for spec in [spec for spec, own in self._models.items() if own is model]:
                del self._models[spec]
        model.stop()
        model.join()
        model.release()
        _return_memory()

    def stop(self) -> None:
        """Finish the waiting frames, accept no new ones, and release the models."""
        with self._lock:
            self._stopping = True
            models = list(self._models.values())
            releases = list(self._releases.values())
        for release in releases:
            release.cancel()
        for model in models:
            model.stop()
        for model in models:
            model.join()

    def describe(self) -> list[dict[str, Any]]:
        """The models in memory: name, and numbers of clients, prompt sets, batches and frames so far."""
        with self._lock:
            models, clients = dict(self._models), list(self._clients.values())
        return [
            {"scorer": spec.scorer, "clients": sum(client.model is model for client in clients), **model.counts()}
            for spec, model in models.items()
        ]


def _return_memory() -> None:
    """Give the memory of a released model back to the GPU's other users, if there is a GPU; torch would keep it."""
    gc.collect()  # a model's threads and queues refer to each other
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _torch_threads() -> int:
    import torch  # imported late: only models need it

    return torch.get_num_threads()
