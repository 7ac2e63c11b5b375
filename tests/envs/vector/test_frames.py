"""Frames leave a worker whole, in order, in blocks that do not depend on timing, and never more than fit.

The tasks are at the module's top level because worker processes import them from here.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlmsafe.envs.registry import env_spec
from vlmsafe.envs.vector.frames import Stream
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerError, WorkerPool

SPEC = env_spec("speeding")
RECIPE = EnvRecipe(SPEC, SPEC.training)


@dataclass(frozen=True)
class Count:
    """Send frames that show 0, 1, 2, ...; say how many had been sent when each call returned, and when."""

    frames: int
    die_once: str = ""
    shape: tuple[int, ...] = (2, 3, 3)

    def run(self, env: Any, tick: Any, sender: Any) -> list[float]:
        times = []
        for index in range(self.frames):
            if self.die_once and index == self.frames // 2 and not Path(self.die_once).exists():
                Path(self.die_once).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            sender.put(np.full(self.shape, index, np.uint8))
            times.append(time.monotonic())
        sender.flush()
        return times


class Keep:
    """Keeps a copy of every frame, and gives blocks back after a while, from another thread."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.blocks: dict[int, list[list[int]]] = {}
        self.begun: dict[int, int] = defaultdict(int)
        self.held = self.most_held = 0

    def begin(self, task: int) -> None:
        self.begun[task] += 1
        self.blocks[task] = []

    def take(self, task: int, frames: Any, give_back: Any) -> None:
        assert (frames == frames[:, :1, :1, :1]).all()
        self.blocks[task].append(frames[:, 0, 0, 0].tolist())
        self.held += 1
        self.most_held = max(self.most_held, self.held)

        def later() -> None:
            time.sleep(self.seconds)
            self.held -= 1
            give_back()

        threading.Thread(target=later).start()


def pool(block: int, *, size: int = 2, slots: int = 3, wait: bool = False, fresh: bool = False) -> WorkerPool[Any]:
    return WorkerPool(RECIPE, size=size, fresh=fresh, stream=Stream((2, 3, 3), block, slots, wait))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_every_frame_arrives_in_order_and_in_the_same_blocks(fresh, seconds):
    keep = Keep(seconds)
    with pool(4, fresh=fresh) as workers:
        for _ in range(2):
            assert workers.run([Count(10), Count(7), Count(0)], reader=keep) is not None
            assert keep.blocks == {0: [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 1: [[0, 1, 2, 3], [4, 5, 6]], 2: []}


def test_a_slow_reader_holds_the_worker_up_instead_of_filling_memory():
    keep = Keep(seconds=0.05)
    with pool(2, size=1, slots=3) as workers:
        results = workers.run([Count(40)], reader=keep)
    assert results is not None
    assert keep.most_held <= 3
    assert list(chain(*keep.blocks[0])) == list(range(40))
    assert results[0][-1] - results[0][0] > 0.2, "the worker waited"


def test_a_worker_that_waits_goes_on_only_when_its_frame_was_given_back():
    keep = Keep(seconds=0.03)
    with pool(1, size=1, wait=True) as workers:
        results = workers.run([Count(5)], reader=keep)
    assert results is not None
    assert keep.most_held == 1
    assert np.diff(results[0]).min() > 0.025


def test_frames_of_a_crashed_try_do_not_count(tmp_path):
    keep = Keep()
    with pool(2, size=1) as workers:
        workers.run([Count(9, die_once=str(tmp_path / "died"))], reader=keep)
    assert keep.begun[0] == 2
    assert list(chain(*keep.blocks[0])) == list(range(9))


def test_a_frame_of_another_size_is_an_error_that_says_so():
    with (
        pool(2) as workers,
        pytest.raises(WorkerError, match=r"frame of uint8 \(2, 2, 3\); its first one was uint8 \(2, 3"),
    ):
        workers.run([Count(3, shape=(2, 2, 3))], reader=Keep())


def test_stopping_while_workers_wait_for_a_block_leaves_nothing_behind():
    keep, taken = Keep(), threading.Event()
    keep.take = lambda task, frames, give_back: taken.set()  # type: ignore[method-assign]
    with pool(1, slots=1) as workers:
        assert workers.run([Count(50), Count(50)], should_stop=taken.is_set, reader=keep) is None


def test_workers_that_wait_for_a_block_end_with_a_killed_main_process(tmp_path):
    """And the memory they shared has no name that could be left behind."""
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_frames
        class Never:
            def begin(self, task): pass
            def take(self, task, frames, give_back):
                print(*[worker.process.pid for worker in workers._busy], flush=True)
        workers = test_frames.pool(1, size=1, slots=1)
        workers.run([test_frames.Count(50)], reader=Never())
        """)
    )
    shared_before = set(os.listdir("/dev/shm"))
    main = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    pids = [int(pid) for pid in main.stdout.readline().split()]
    assert pids
    main.kill()
    main.wait()
    deadline = time.monotonic() + 600.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert {name for name in set(os.listdir("/dev/shm")) - shared_before if name.startswith(("psm", "pym"))} == set()
