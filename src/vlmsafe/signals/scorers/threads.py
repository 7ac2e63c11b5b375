"""How many threads a model computes with on the CPU.

MKL adds up a product in an order that depends on the number of threads. With pinned kernels every product therefore
has one thread. A batch is cut into portions of a fixed size, which are computed side by side, so the cores are still
used. With native kernels a batch is computed at once, as it was before kernels could be pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from vlmsafe import kernels

if TYPE_CHECKING:
    from torch import Tensor

_PORTION = 16  # frames; what they need fits into a core's cache


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Let the calling thread compute with so many threads on the CPU; other threads are not affected."""
    import torch  # late: a process that scores without a model does not need it

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_if_pinned() -> AbstractContextManager[None]:
    """One thread with pinned kernels, as many as before with native ones."""
    return computing_with(1) if kernels.pinned() else nullcontext()


def in_portions(compute: Callable[[Tensor], Tensor], frames: Tensor) -> Tensor:
    """The rows that a model gives for frames on the CPU. They do not depend on the number of threads if pinned."""
    import torch

    if not kernels.pinned():
        return compute(frames)
    portions = torch.split(frames, _PORTION)
    threads = min(torch.get_num_threads(), len(portions))

    def inferred(portion: Tensor) -> Tensor:
        with torch.inference_mode():  # a thread does not have its caller's mode
            return compute(portion)

    with computing_with(1):
        if threads == 1:
            return torch.cat([inferred(portion) for portion in portions])
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return torch.cat(list(pool.map(inferred, portions)))
