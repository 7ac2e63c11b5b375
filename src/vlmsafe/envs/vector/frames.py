"""Transport of frames out of a worker: through shared memory, in blocks, with back-pressure.

A worker fills one block while the main process works on others. When all blocks are full the worker waits until one is
given back, so a slow reader never needs more memory than `slots` blocks per worker. Which frames share a block depends
only on the worker's own frames and not on timing, so that a model that scores a block as one batch gives the same
numbers each time.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import EnvironmentFailure

Frames = NDArray[np.uint8]


@dataclass(frozen=True)
class Stream:
    """How the frames of a worker travel."""

    frame: tuple[int, ...]
    """Shape of one frame."""
    block: int
    """Frames that travel together."""
    slots: int = 3
    """Blocks in memory per worker: one being filled, one being read, one in between."""
    wait: bool = False
    """Whether the worker waits after each block until it has been read and given back."""

    @property
    def size(self) -> int:
        """Bytes per worker."""
        return self.slots * self.block * int(np.prod(self.frame))

    def blocks(self, memory: Any) -> Frames:
        """The shared memory as [slots, block, *frame]."""
        return np.frombuffer(memory, np.uint8).reshape(self.slots, self.block, *self.frame)


class Sender:
    """A worker's end."""

    def __init__(self, stream: Stream, memory: Any, pipe: Connection) -> None:
        self._stream, self._pipe = stream, pipe
        self._blocks = stream.blocks(memory)
        self._free = deque(range(stream.slots))
        self._filling: int | None = None
        self._count = 0

    def put(self, frame: Frames) -> None:
        """Copy one frame into the block that is being filled."""
        if frame.shape != self._stream.frame or frame.dtype != np.uint8:
            raise EnvironmentFailure(
                f"the environment rendered a frame of {frame.dtype} {frame.shape}; its first one was uint8 "
                f"{self._stream.frame}, and all must be alike"
            )
        if self._filling is None:
            self._filling = self._free.popleft() if self._free else self._given_back()
        self._blocks[self._filling, self._count] = frame
        self._count += 1
        if self._count == self._stream.block:
            self.flush()

    def flush(self) -> None:
        """Send the block as far as it is filled; also called at the end of a task."""
        if self._filling is None:
            return
        self._pipe.send((self._filling, self._count))
        self._filling, self._count = None, 0
        while self._stream.wait and len(self._free) < self._stream.slots:
            self._free.append(self._given_back())

    def _given_back(self) -> int:
        try:
            slot: int = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            os._exit(1)  # the main process is gone, and nobody reads frames any more
        return slot


class Receiver:
    """The main process's end. Blocks may be given back by another thread than the one that receives them."""

    def __init__(self, stream: Stream, memory: Any, pipe: Connection) -> None:
        self.pipe = pipe
        self._blocks = stream.blocks(memory)
        self._lock = threading.Lock()

    def receive(self) -> tuple[Frames, Callable[[], None]] | None:
        """The next block and a function that gives it back, or None where the worker died."""
        try:
            slot, count = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return self._blocks[slot, :count], lambda: self._give_back(slot)

    def waiting(self) -> bool:
        """Whether a block has been sent and not received."""
        try:
            return self.pipe.poll()
        except OSError:
            return False

    def _give_back(self, slot: int) -> None:
        # A worker that has ended needs no blocks. The lock prevents a write to the reused number of a closed pipe.
        with self._lock, suppress(OSError):
            self.pipe.send(slot)

    def close(self) -> None:
        with self._lock:
            self.pipe.close()


class Reader(Protocol):
    """Reads the blocks of a pool's tasks."""

    def begin(self, task: int) -> None:
        """A task begins, perhaps again after a crash; blocks of an earlier attempt no longer count."""

    def take(self, task: int, frames: Frames, give_back: Callable[[], None]) -> None:
        """Take the next frames of a task. They stay valid until `give_back` is called, soon and from any thread."""
