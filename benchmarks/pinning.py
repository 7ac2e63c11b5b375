"""What pinned kernels cost: the same work with native and with baseline kernels, in CPU time.

    python benchmarks/pinning.py [--rounds 5] [--only embedded]

Measured are an update of PPO-Lagrangian and of CPO, the choice of actions, the embedded scorer on the CPU, and products
of matrices as large as CLIP's. Native and baseline alternate in every round, each in a process of its own, which does
the work once before it is timed. The cost depends on the CPU: without AVX-512, native is closer to the baseline.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe.io.child import call_in_child
from vlmsafe.runs.surroundings import surroundings


@dataclass(frozen=True)
class Options:
    """Measure what pinned kernels cost."""

    rounds: int = 5
    """How often each pair is measured; the medians are shown."""
    only: tuple[str, ...] = ()
    """Beginnings of the names of what to measure; everything by default."""


def updates(name: str) -> Callable[[], object]:
    """One pass over 20,000 samples of 259 dimensions."""
    from update import Options as Epoch
    from update import Work, make_data, new_learner

    epoch = Epoch()
    learner, batch = new_learner(Work(name, epoch.samples, epoch.dimensions, passes=1)), make_data(epoch)
    return lambda: learner.update(batch, 0.5, 1.0, np.random.default_rng(0))


def acting() -> Callable[[], object]:
    """5,000 actions of a policy with two layers of 64, one observation of 259 dimensions at a time."""
    from vlmsafe.learners.networks import Shape, Stack

    stack, rng = Stack(Shape(259, (64, 64), 2, 2)), np.random.default_rng(0)
    stack.initialise(rng)
    policy, observation = stack.policy(), rng.standard_normal(259, dtype=np.float32)
    return lambda: [policy.mean(observation) for _ in range(5000)]


def scoring() -> Callable[[], object]:
    """64 frames."""
    from vlmsafe.signals.prompts import load_prompts
    from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

    scorer = EmbeddedScorer.load("", load_prompts("metadrive"), device="cpu")
    frames = np.random.default_rng(0).integers(0, 256, (64, 256, 256, 6), np.uint8)
    return lambda: scorer.score(frames)


def product() -> Callable[[], object]:
    """Products of torch, 800 x 1024 by 1024 x 1024, on one thread."""
    import torch

    torch.set_num_threads(1)
    a, b = torch.rand(800, 1024), torch.rand(1024, 1024)
    return lambda: [a @ b for _ in range(10)]


WORK: dict[str, Callable[[], Callable[[], object]]] = {
    "update, ppo-lag": lambda: updates("ppo-lag"),
    "update, cpo": lambda: updates("cpo"),
    "actions": acting,
    "embedded scorer": scoring,
    "product as in CLIP": product,
}


def measure(name: str) -> float:
    """CPU seconds of a piece of work in this process."""
    work = WORK[name]()
    work()
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> int:
    options = tyro.cli(Options)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(surroundings()["processor"])
    table = Table("work", "native, CPU s", "baseline, CPU s", "ratio", "ratios of the rounds")
    importable = importlib.import_module("pinning").measure  # a child cannot import from __main__
    for name in (name for name in WORK if not options.only or name.startswith(options.only)):
        rounds = [
            (call_in_child("native", importable, name), call_in_child("baseline", importable, name))
            for _ in range(options.rounds)
        ]
        ratios = sorted(baseline / native for native, baseline in rounds)
        native, baseline = (statistics.median(times) for times in zip(*rounds, strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        table.add_row(name, f"{native:.3f}", f"{baseline:.3f}", f"{statistics.median(ratios):.2f}", spread)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
