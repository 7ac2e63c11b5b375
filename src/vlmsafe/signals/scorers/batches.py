"""Computes the parts of a batch, each compared with its own prompts: on the CPU, or through a pipeline on a GPU.

The similarities of a frame must not depend on the other frames in its batch; otherwise runs that share a model could
not be repeated. Kernels round differently for batches of different sizes. For batches of one size they round alike, no
matter where in the batch a frame is. So a model either computes every part alone, as it came, or always computes full
batches, padded with zeros. In the second case parts of several runs can share a batch.
"""

from __future__ import annotations

import functools
import mmap
import threading
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import COSINE_RULES, Inputs, Scorer, Similarities, check_frames, check_options
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.threads import in_portions

T = TypeVar("T")
_recording = threading.Lock()  # torch's compiler does not support two threads
_READ_ONLY = 8  # flag of cudaHostRegister, for memory that is mapped read-only
Frames = NDArray[np.uint8]
Part = tuple[Frames, Tensor]
"""Frames, and the embeddings [D, P] of their prompts."""
Embed = Callable[[Tensor], Tensor]
"""uint8 [N, height, width, channels] to unit vectors [N, D] in float32."""


class DualEncoder(Scorer):
    """A scorer of frames by cosines: a model embeds frames, the prompts were embedded before."""

    looks_at = "frame"
    rules = COSINE_RULES
    _texts: Tensor
    """The embeddings of the prompts, [D, P + Q]."""

    def __init__(
        self, model: nn.Module, groups: tuple[int, int], device: str, precision: str, batch: int, /, **about: Any
    ) -> None:
        """`about` names the model and its revision, for `describe`."""
        check_options(batch, precision)
        self.groups = groups
        self.batch = batch
        self._device = find_device(device)
        self._precision = precision
        parameters = sum(parameter.numel() for parameter in model.parameters())
        self._description = {**about, "device": str(self._device), "precision": precision, "parameters": parameters}

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def score(self, inputs: Inputs) -> Similarities:
        """Stacks uint8 [N, height, width, 3 frames] to similarities [N, P + Q]."""
        check_frames(inputs, self.frames)
        parts = (inputs[start : start + self.batch] for start in range(0, len(inputs), self.batch))
        found = [part for (part,) in overlapped(self.begin([(self, frames)]) for frames in parts)]
        return np.concatenate([np.empty((0, sum(self.groups)), np.float32), *found])

    def begin(self, parts: Sequence[tuple[Scorer, Inputs]]) -> Callable[[], list[Similarities]]:
        given: list[Part] = []
        for scorer, inputs in parts:
            assert isinstance(scorer, DualEncoder)
            given.append((inputs, scorer._texts))
        try:
            return self._begin(given)
        except torch.cuda.OutOfMemoryError as error:
            raise InputError(
                f"the memory of {self._device} does not hold {self.batch} frames at a time; lower the batch, or use a "
                "smaller model"
            ) from error

    @abstractmethod
    def _begin(self, parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
        """Start to compare frames of one size with prompts; the function that it returns gives the results."""


def overlapped(begun: Iterable[Callable[[], T]]) -> list[T]:
    """The results of several pieces of work; each is waited for only after the next one has begun."""
    found: list[T] = []
    waiting: Callable[[], T] | None = None
    for finish in begun:
        if waiting is not None:
            found.append(waiting())
        waiting = finish
    return [*found, waiting()] if waiting is not None else found


def alone(embed: Embed, parts: Sequence[Part]) -> list[Similarities]:
    """Compute every part as a batch of its own, on the CPU."""

    def similarities(texts: Tensor, frames: Tensor) -> Tensor:
        return _compare(embed(frames), texts)

    return [in_portions(functools.partial(similarities, texts), _tensor(frames)).numpy() for frames, texts in parts]


def one_by_one(embed: Embed, parts: Sequence[Part]) -> list[Similarities]:
    """Compute every part as a batch of its own, on the device of its prompts."""
    return [_compare(embed(_tensor(frames)), texts).cpu().numpy() for frames, texts in parts]


def together(embed: Embed, parts: Sequence[Part], batch: int) -> list[Similarities]:
    """Compute all parts in one batch, padded to its full size, on the CPU."""
    frames = np.zeros((batch, *parts[0][0].shape[1:]), np.uint8)
    start = 0
    for part, _ in parts:
        frames[start : start + len(part)] = part
        start += len(part)
    return [rows.numpy() for rows in _rows(embed(torch.from_numpy(frames)), parts)]


class Pipeline:
    """Passes frames from host memory through a model on the GPU in full batches; copies and computation overlap."""

    def __init__(self, device: torch.device, batch: int, frame: tuple[int, ...], *, record: bool = False) -> None:
        """With `record`, the model is recorded at its first batches; it must then always do the same work."""
        self._device, self._record = device, record
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stages = [_Stage(device, (batch, *frame)) for _ in range(2)]
        self._number = 0

    def begin(self, embed: Embed, parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
        """Begin a batch. Its frames must not change until its results have been asked for.

        At most one more batch may begin before that.
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
            # Frames after the last one are left over from an earlier batch and do no more harm than zeros.
            for frames, _ in parts:
                place = slice(start, start + len(frames))
                source = _tensor(frames)
                if not source.is_pinned():  # the GPU cannot read it directly
                    source = stage.pinned[place].copy_(source)
                stage.frames[place].copy_(source, non_blocking=True)
                start += len(frames)
            stage.copied.record(self._copying)
        computing.wait_event(stage.copied)
        # The next batch of this stage overwrites the recording's output; the products have been computed by then.
        found = _rows(embed(stage.frames) if stage.recorded is None else stage.recorded(), parts)
        stage.computed.record(computing)
        rows = [torch.empty(part.shape, pin_memory=True).copy_(part, non_blocking=True) for part in found]
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # without it, waiting would use a core
        done.record(computing)

        def finish() -> list[Similarities]:
            done.synchronize()
            return [part.numpy().copy() for part in rows]  # pinned memory is scarce

        return finish


class _Stage:
    """A pinned buffer, its copy on the device, and the events after which each may be written again."""

    def __init__(self, device: torch.device, shape: tuple[int, ...]) -> None:
        self.pinned = torch.zeros(shape, dtype=torch.uint8, pin_memory=True)
        self.frames = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.recorded: Recorded | None = None


class Recorded:
    """A model's work on one buffer, recorded once and then started as a whole.

    Starting the kernels one by one takes longer than a GPU needs for a batch of 64. Torch can record compiled code too,
    but only in the thread that made the first recording of the process, and a service has a thread for each model.
    """

    def __init__(self, embed: Embed, frames: Tensor) -> None:
        computing, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph = torch.cuda.CUDAGraph()
        with _recording:
            aside.wait_stream(computing)
            with torch.cuda.stream(aside):
                for _ in range(3):  # what happens only at first, such as compiling, must not be recorded
                    embed(frames)
            computing.wait_stream(aside)
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._found = embed(frames)

    def __call__(self) -> Tensor:
        """The unit vectors of the frames in the buffer; the next call overwrites them."""
        self._graph.replay()
        return self._found


def pin(frames: Frames, memory: mmap.mmap) -> bool:
    """Let the GPU read `frames`, which lie in `memory`, directly while there are views of them; False if it cannot.

    Otherwise the one thread that feeds the model copies all clients' frames to a pinned buffer, and most of the time
    the GPU waits for it.
    """
    if not torch.cuda.is_available():
        return False
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = frames.ctypes.data
    if int(runtime.cudaHostRegister(address, len(memory), _READ_ONLY)) != 0:
        return False
    # The finalizer refers to the memory, so that it is unmapped only after it was unregistered.
    weakref.finalize(frames, _unpin, runtime, address, memory)
    return True


def _unpin(runtime: Any, address: int, memory: mmap.mmap) -> None:
    runtime.cudaHostUnregister(address)


def _rows(embeddings: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """The similarities of each part, with one product of the whole batch for each set of prompts."""
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
    """Frames as a tensor, without a copy where possible; torch does not support negative strides."""
    contiguous = np.ascontiguousarray(frames)
    if not contiguous.flags.writeable:
        _ignore_read_only_warning()
    return torch.from_numpy(contiguous)


@functools.cache
def _ignore_read_only_warning() -> None:
    """Torch warns once per process that it could write to a read-only array. Nothing here writes to one, and copying
    the frames to avoid the warning would cost as much as sending them to a GPU."""
    array = np.zeros(1, np.uint8)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)
