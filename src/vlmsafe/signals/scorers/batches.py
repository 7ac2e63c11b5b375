"""Parts of one batch, each compared with its own prompts: on the CPU, and through a pipeline on a GPU.

What a frame gets may not depend on which other frames are computed with it, or runs that share a model could not be
repeated. Kernels round differently for batches of different sizes, and alike for batches of one size wherever in it a
frame lies. So a model either computes every part alone, as it came, or always full batches, padded with zeros, and then
parts of several runs may share one.
"""

from __future__ import annotations

import functools
import mmap
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlmsafe.signals.scorers.api import Similarities

T = TypeVar("T")
_recording = threading.Lock()  # torch's compiler does not bear two threads
_READ_ONLY = 8  # of cudaHostRegister: memory that is mapped for reading alone
Frames = NDArray[np.uint8]
Part = tuple[Frames, Tensor]
"""Frames, and the embeddings [D, P] of the prompts they are to be compared with."""
Embed = Callable[[Tensor], Tensor]
"""uint8 [N, height, width, channels] to unit vectors [N, D] in float32."""


def overlapped(begun: Iterable[Callable[[], T]]) -> list[T]:
    """What each of several pieces of work gives, asked for only after the next one has begun."""
    found: list[T] = []
    waiting: Callable[[], T] | None = None
    for finish in begun:
        if waiting is not None:
            found.append(waiting())
        waiting = finish
    return [*found, waiting()] if waiting is not None else found


def alone(embed: Embed, parts: Sequence[Part]) -> list[Similarities]:
    """Every part as a batch of its own, on the CPU."""
    return [_compare(embed(_tensor(frames)), texts).numpy() for frames, texts in parts]


def together(embed: Embed, parts: Sequence[Part], batch: int) -> list[Similarities]:
    """All parts in one batch that is padded to its full size, on the CPU."""
    frames = np.zeros((batch, *parts[0][0].shape[1:]), np.uint8)
    start = 0
    for part, _ in parts:
        frames[start : start + len(part)] = part
        start += len(part)
    return [rows.numpy() for rows in _rows(embed(torch.from_numpy(frames)), parts)]


class Pipeline:
    """Frames in host memory through a model on the GPU, in full batches, with the copies beside the computation."""

    def __init__(self, device: torch.device, batch: int, frame: tuple[int, ...], *, record: bool = False) -> None:
        """`record` is whether the model is recorded at its first batches, for which it must always compute alike."""
        self._device, self._record = device, record
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stages = [_Stage(device, (batch, *frame)) for _ in range(2)]
        self._number = 0

    def begin(self, embed: Embed, parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
        """Start on one batch, whose frames must stay as they are until its results have been asked for.

        At most one more may begin before that.
        """
        with torch.cuda.device(self._device):
            return self._begin(embed, parts)

    def _begin(self, embed: Embed, parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
        stage = self._stages[self._number % 2]
        self._number += 1
        computing = torch.cuda.current_stream(self._device)
        if self._record and stage.recorded is None:
            stage.recorded = Recorded(embed, stage.frames)
        stage.copied.synchronize()  # its pinned buffer is free again
        start = 0
        with torch.cuda.stream(self._copying):
            self._copying.wait_event(stage.computed)
            # Whatever lies behind the last frame is of an earlier batch, and as good as zeros.
            for frames, _ in parts:
                place = slice(start, start + len(frames))
                source = _tensor(frames)
                if not source.is_pinned():  # the GPU cannot read it by itself
                    source = stage.pinned[place].copy_(source)
                stage.frames[place].copy_(source, non_blocking=True)
                start += len(frames)
            stage.copied.record(self._copying)
        computing.wait_event(stage.copied)
        # The stage's next batch overwrites what was recorded; by then the products have been computed.
        found = _rows(embed(stage.frames) if stage.recorded is None else stage.recorded(), parts)
        stage.computed.record(computing)
        rows = [torch.empty(part.shape, pin_memory=True).copy_(part, non_blocking=True) for part in found]
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # spinning would take a core
        done.record(computing)

        def finish() -> list[Similarities]:
            done.synchronize()
            return [part.numpy().copy() for part in rows]  # pinned memory is scarce

        return finish


class _Stage:
    """A pinned buffer, the one on the device it is copied to, and when each may be written again."""

    def __init__(self, device: torch.device, shape: tuple[int, ...]) -> None:
        self.pinned = torch.zeros(shape, dtype=torch.uint8, pin_memory=True)
        self.frames = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.recorded: Recorded | None = None


class Recorded:
    """A model's work on one buffer, recorded once and then started as a whole.

    To start its kernels one by one takes longer than a GPU needs for a batch of 64. Torch can record what it compiles,
    too, but such a recording belongs to the thread that made the first one in the process, and a service has a
    thread for each model.
    """

    def __init__(self, embed: Embed, frames: Tensor) -> None:
        computing, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph = torch.cuda.CUDAGraph()
        with _recording:
            aside.wait_stream(computing)
            with torch.cuda.stream(aside):
                for _ in range(3):  # whatever is compiled, chosen or allocated at first must not be recorded
                    embed(frames)
            computing.wait_stream(aside)
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._found = embed(frames)

    def __call__(self) -> Tensor:
        """The unit vectors of the frames that are in the buffer now; the next call overwrites them."""
        self._graph.replay()
        return self._found


def pin(memory: mmap.mmap) -> bool:
    """Let the GPU read memory by itself, for as long as anybody refers to it; False where that cannot be.

    Otherwise the one thread that feeds the model first copies everybody's frames to a pinned buffer, and the GPU waits
    for it most of the time.
    """
    if not torch.cuda.is_available():
        return False
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = np.frombuffer(memory, np.uint8).ctypes.data
    if int(runtime.cudaHostRegister(address, len(memory), _READ_ONLY)) != 0:
        return False
    weakref.finalize(memory, runtime.cudaHostUnregister, address)
    return True


def _rows(embeddings: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Each part's similarities; one product, of the whole batch, for each set of prompts."""
    products: dict[int, Tensor] = {}
    found, start = [], 0
    for frames, texts in parts:
        if id(texts) not in products:
            products[id(texts)] = _compare(embeddings, texts)
        found.append(products[id(texts)][start : start + len(frames)])
        start += len(frames)
    return found


def _compare(embeddings: Tensor, texts: Tensor) -> Tensor:
    return (embeddings @ texts).clamp(-1.0, 1.0)


def _tensor(frames: Frames) -> Tensor:
    """Frames as they lie in memory; torch takes no negative strides."""
    contiguous = np.ascontiguousarray(frames)
    if not contiguous.flags.writeable:
        _hear_of_read_only_arrays()
    return torch.from_numpy(contiguous)


@functools.cache
def _hear_of_read_only_arrays() -> None:
    """Torch warns once in a process that it could write to such an array. Nothing here does, and copying them all to
    calm it would cost as much as sending them to a GPU."""
    array = np.zeros(1, np.uint8)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)
