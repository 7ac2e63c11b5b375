"""Scoring for many clients at once: each model in memory once, and threads that feed it.

A client opens a model with its own prompts and hands over blocks of frames. Clients with the same model share it,
whatever their prompts, and a model that computes full batches only gets the frames of several clients in one batch.
Every other model gets each client's blocks as they came, computed with as many threads as the client has, since sums
are rounded otherwise with more; as many blocks at a time as there are cores for, where the scorer bears that. Either
way a frame's similarities are what a private scorer would have given (see `vlmsafe.signals.scorers.batches`).

Who was served least comes next, so a client with much to score does not keep the others waiting. What a client has
waiting is bounded: `submit` blocks until there is room.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import (
    Inputs,
    Scorer,
    Similarities,
    check_frames,
)
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.registry import make_scorer, parse_scorer
from vlmsafe.signals.service.model_queue import (
    Client,
    Make,
    Model,
    Reading,
)
from vlmsafe.signals.service.spec import (
    ModelSpec,
    NotShared,
    ServiceStopped,
)

__all__ = ["Engine", "ModelSpec", "NotShared", "Opened", "ServiceStopped"]


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

    def __init__(self, *, ahead: int = 4, fill_seconds: float = 0.002, make: Make = make_model, cores: int = 0) -> None:
        """`ahead` is how many batches a client may have waiting, `fill_seconds` how long a batch waits to be filled,
        `cores` how many a model computes with on the CPU; 0 is what torch would use."""
        self._ahead, self._fill_seconds, self._make, self._cores = ahead, fill_seconds, make, cores
        self._lock = threading.Lock()
        self._models: dict[ModelSpec, Model] = {}
        self._clients: dict[int, Client] = {}
        self._keys = itertools.count(1)
        self._stopping = False

    def open(
        self, spec: ModelSpec, prompts: PromptSet | None, frame: tuple[int, ...] | None = None, threads: int = 0
    ) -> Opened:
        """Register a client; loads the model where it is the first to ask for it, which may take long.

        `frame` is the shape of its frames, if known; otherwise the first block decides. `threads` is how many a scorer
        of its own would compute with on the CPU; 0 is all cores there are here.
        """
        if not parse_scorer(spec.scorer).kind.shared:
            raise NotShared(f"the scorer '{spec.scorer}' does not look at frames and cannot be shared")
        spec = dataclasses.replace(spec, device=str(find_device(spec.device)))
        with self._lock:
            self._cores = self._cores or _torch_threads()
        reading = Reading(prompts, min(threads or self._cores, self._cores))
        model, scorer = self._scorer_for(spec, reading)
        with self._lock:
            key = next(self._keys)
            self._clients[key] = Client(model, scorer, frame, reading.threads)
        return Opened(key, scorer)

    def _scorer_for(self, spec: ModelSpec, reading: Reading) -> tuple[Model, Scorer]:
        while True:
            with self._lock:
                if self._stopping:
                    raise ServiceStopped("the scoring service is stopping")
                if spec not in self._models or self._models[spec].broken:
                    self._models[spec] = Model(spec, reading, self._make, self._ahead, self._fill_seconds, self._cores)
                model = self._models[spec]
            try:
                return model, model.scorer_for(reading)
            except BaseException:
                if model.loaded:
                    raise
                with self._lock:
                    if self._models.get(spec) is model:
                        del self._models[spec]  # the next one may try again
                if model.first == reading:
                    raise
                # Another client's prompts were at fault, perhaps; these have not been tried yet.

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


def _torch_threads() -> int:
    import torch  # here: it is loaded with the first model

    return torch.get_num_threads()
