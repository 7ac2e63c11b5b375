"""Scores frames for many clients at once. Each model is in memory once.

A client opens a model with its own prompts and submits blocks of frames. Clients of one model share it, even if their
prompts differ. A model that computes full batches only gets frames of several clients in one batch. Any other model
gets each client's blocks as they came, and computes with as many threads as the client would, because the number of
threads affects rounding. Several blocks are computed at a time if the scorer allows it and there are enough cores. In
both cases the similarities equal those of a private scorer (see `vlmsafe.signals.scorers.batches`).

Scheduling is fair: the client that was served least goes next, so a client with many frames does not delay the others.
A client can have only so many frames waiting; `submit` blocks until there is room.

A model that no client has used for a while is evicted. If memory is bounded, idle models are evicted earlier, the least
recently used one first.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Inputs, Scorer, Similarities, check_frames
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.signals.service.metrics import Labels, Metrics
from vlmsafe.signals.service.model import Make, Model, labels
from vlmsafe.signals.service.scheduler import Change, Client, Queue, Reading, State
from vlmsafe.signals.service.spec import ModelSpec, NotShared, ServiceStopped

IDLE_SECONDS = 600.0
"""How long a model without a client stays in memory by default."""
_LONG = 3600.0

__all__ = ["Engine", "ModelSpec", "NotShared", "ServiceStopped", "Ticket"]


@dataclass(frozen=True)
class Ticket:
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


def memory_in_use() -> int:
    """Bytes of this process in memory, and bytes that it has reserved on GPUs."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    torch: Any = sys.modules.get("torch")
    found = torch.cuda.device_count() if torch is not None and torch.cuda.is_initialized() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(torch.cuda.memory_reserved(device) for device in range(found))


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
        memory_limit: int | None = None,
        memory: Callable[[], int] = memory_in_use,
    ) -> None:
        """A client may have `ahead` batches waiting. A batch waits `fill_seconds` to be filled. On the CPU a model
        computes with `cores`; 0 means the number that torch would use. A model stays in memory for `idle_seconds`
        after its last client has left; a shorter time while `memory` gives more bytes than `memory_limit`."""
        self.metrics = Metrics()
        self._ahead, self._fill_seconds, self._make, self._cores = ahead, fill_seconds, make, cores
        self._idle_seconds, self._memory_limit, self._memory = idle_seconds, memory_limit, memory
        self._lock = threading.Lock()
        # Where memory is bounded, a model is loaded only when it is known how much the one before it takes.
        self._room: AbstractContextManager[Any] = nullcontext() if memory_limit is None else threading.Lock()
        self._idle = threading.Condition(self._lock)  # models may have to be evicted, or the service stops
        self._models: dict[ModelSpec, Model] = {}  # the batch, which is the client's, is 0 in these
        self._clients: dict[int, tuple[Client, Model]] = {}
        self._keys = itertools.count(1)
        self._keeper: threading.Thread | None = None
        self._stopping = False

    def open(
        self, spec: ModelSpec, prompts: PromptSet | None, frame: tuple[int, ...] | None = None, threads: int = 0
    ) -> Ticket:
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
            self._clients[key] = Client(scorer, frame, reading), model
            self._idle.notify_all()  # the model may have taken the memory of idle ones
        return Ticket(key, scorer)

    def _scorer_for(self, spec: ModelSpec, reading: Reading) -> tuple[Model, Scorer]:
        """A model, in use from now on, and its scorer."""
        while True:
            with self._lock:
                model = self._joined(spec)
            if model is not None:
                scorer = self._tried(model, reading)
            else:
                with self._room:
                    self._make_room()
                    with self._lock:
                        model = self._joined(spec) or self._new(spec, reading)
                    scorer = self._tried(model, reading)
            if scorer is not None:
                return model, scorer

    def _tried(self, model: Model, reading: Reading) -> Scorer | None:
        """A scorer of a model that was joined. None if another client's prompts may have been at fault: try again."""
        try:
            return model.scorer_for(reading)
        except BaseException:
            self._leave(model)
            if model.loaded or model.first == reading:
                raise
            return None

    def _joined(self, spec: ModelSpec) -> Model | None:
        """A model with one user more; None if it is not in memory. The caller holds the lock."""
        if self._stopping:
            raise ServiceStopped("the scoring service is stopping")
        model = self._models.get(spec)
        if model is None or model.queue.state in (State.STOPPING, State.GONE):
            return None
        model.queue.join()
        return model

    def _new(self, spec: ModelSpec, reading: Reading) -> Model:
        """A model that is not loaded yet, with one user. The caller holds the lock."""
        queue = Queue(self._lock, ahead=self._ahead, fill_seconds=self._fill_seconds, cores=self._cores)
        model = Model(spec, reading, self._make, queue, self.metrics)
        self._models[spec] = model
        queue.join()
        return model

    def submit(self, key: int, frames: Inputs, *, timeout: float | None = None) -> Future[Similarities]:
        """Submit a block; wait for room if there is none. The block must not change until the future is done.

        Raises TimeoutError if there is no room in time.
        """
        with self._lock:
            if key not in self._clients:
                raise InputError(f"no client has the key {key}; open a model first")
            client, model = self._clients[key]
        check_frames(frames, client.scorer.frames)
        if client.frame is None:
            client.frame = frames.shape[1:]
        if frames.shape[1:] != client.frame:
            raise InputError(
                f"expected frames of shape {list(client.frame)}, as before, got {list(frames.shape[1:])}; open the "
                "model again for others"
            )
        return model.queue.submit(client, frames, timeout).future

    def close(self, key: int) -> None:
        """Forget a client and its waiting frames."""
        with self._lock:
            client, model = self._clients.pop(key, (None, None))
        if client is not None and model is not None:
            model.queue.forget(client)
            self._leave(model)

    def _leave(self, model: Model) -> None:
        with self._lock:
            model.queue.leave()
            if model.queue.state is State.GONE and self._models.get(model.spec) is model:
                del self._models[model.spec]
            if self._keeper is None and not self._stopping:
                self._keeper = threading.Thread(target=self._keep, name="eviction", daemon=True)
                self._keeper.start()
            self._idle.notify_all()

    # Eviction.

    def _keep(self) -> None:
        """Evict models that are idle for too long or take too much memory, until the service stops."""
        while True:
            until = math.inf if self._is_full() else time.monotonic() - self._idle_seconds
            if self._evict("memory" if until == math.inf else "idle", until):
                continue
            with self._lock:
                if self._stopping:
                    return
                since = [model.queue.idle_since for model in self._models.values() if model.queue.state is State.IDLE]
                rest = min(since) + self._idle_seconds - time.monotonic() if since else _LONG
                if rest > 0.0:
                    self._idle.wait(min(rest, _LONG))

    def _make_room(self) -> None:
        """Evict idle models while memory is short. If those in use take too much, another one is refused for now."""
        while self._is_full() and self._evict("memory", math.inf):
            pass
        with self._lock:
            there = len(self._models)
        if there and self._is_full():
            raise ServiceStopped(
                f"the service has no memory for another model: it uses {self._memory() / 2**30:.1f} GiB, its limit is "
                f"{(self._memory_limit or 0) / 2**30:.1f}, and all its models are in use"
            )

    def _is_full(self) -> bool:
        return self._memory_limit is not None and self._memory() > self._memory_limit

    def _evict(self, reason: Literal["idle", "memory"], until: float) -> bool:
        """Release the model that has been idle longest, if that began before a moment; False if there is none."""
        with self._lock:
            idle = [model for model in self._models.values() if model.queue.state is State.IDLE]
            model = min(idle, key=lambda model: model.queue.idle_since, default=None)
            del idle
            if model is None or model.queue.idle_since > until:
                return False
            model.queue.move(Change.STOPPED)
            del self._models[model.spec]
        model.join()
        with self._lock:
            model.queue.move(Change.ENDED)
        model.release()
        self.metrics.count("evictions", 1, (("reason", reason),))
        _return_memory()
        return True

    def stop(self) -> None:
        """Finish the waiting frames, accept no new ones, and end the models."""
        with self._lock:
            self._stopping = True
            models = list(self._models.values())
            for model in models:
                model.queue.move(Change.STOPPED)
            self._idle.notify_all()
        for model in models:
            model.join()
            with self._lock:
                model.queue.move(Change.ENDED)

    # What it is doing.

    def describe(self) -> list[dict[str, Any]]:
        """The models: name, state, and numbers of clients, queued frames, prompt sets, batches and frames so far."""
        with self._lock:
            clients = Counter(id(model) for _, model in self._clients.values())
            return [
                {
                    "scorer": spec.scorer,
                    "state": model.queue.state.value,
                    "clients": clients[id(model)],
                    "queued": model.queue.waiting,
                    **model.counts(),
                }
                for spec, model in self._models.items()
            ]

    def expose(self) -> str:
        """The metrics of this moment, for Prometheus."""
        models: Counter[Labels] = Counter({(("state", state.value),): 0 for state in State if state is not State.GONE})
        queued: Counter[Labels] = Counter()
        with self._lock:
            clients = len(self._clients)
            for spec, model in self._models.items():
                models[("state", model.queue.state.value),] += 1
                queued[labels(spec)] += model.queue.waiting
        memory = self._memory()
        return self.metrics.expose(
            {"models": models, "queued_frames": queued, "clients": {(): clients}, "memory_bytes": {(): memory}}
        )


def _return_memory() -> None:
    """Give the memory of a released model back to the system and to the GPU's other users."""
    gc.collect()  # a model's threads and queues refer to each other
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc would keep what it has freed
        library.malloc_trim(0)
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _torch_threads() -> int:
    import torch  # imported late: only models need it

    return torch.get_num_threads()
