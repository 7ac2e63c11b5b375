"""Collecting with a scorer: time and memory of scoring inside the step and of deferred scoring.

    python benchmarks/scoring_epoch.py [--steps 2000] [--every 4] [--workers 1] [--rounds 3]
    python benchmarks/scoring_epoch.py --steps 20000 --rounds 1 --only deferred     # the memory of a whole epoch

The same share of experience (random policy, same seeds, so the same episodes) is collected without a scorer, with each
frame scored before the next step, and with frames scored in batches meanwhile; they take turns in every round. CLIP
ViT-B/32 has random weights, which takes as long as trained ones. Memory is the main process's peak above its level with
the model loaded, plus what the workers' peak exceeds theirs without frames by; blocks in shared memory count in both.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scoring import PROMPTS, make_model, make_scorer

from vlmsafe.config.settings import SignalConfig
from vlmsafe.envs.registry import env_spec
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.training.collect import CollectTask, DescribeTask, Dimensions, RandomPolicy, Share
from vlmsafe.training.score import Scoring

PROMISE_MEMORY = 500.0  # MB added by scoring an epoch of 20,000 steps at k = 4
Side = Literal["none", "in-step", "deferred"]


@dataclass(frozen=True)
class Options:
    """Measure collection with scoring."""

    env: str = "metadrive-easy"
    """Environment."""
    steps: int = 2000
    """Steps, over all workers together."""
    every: int = 4
    """Steps between two scored frames, k_clip."""
    workers: int = 1
    """Worker processes."""
    rounds: int = 3
    """How often each side is measured."""
    device: str = "cpu"
    """Where the model runs."""
    only: Literal["all", "deferred"] = "all"
    """'deferred' leaves scoring inside the step out."""


@dataclass(frozen=True)
class Measured:
    """One side of one round."""

    seconds: float
    main_mb: float
    worker_mb: float
    similarities: Any


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    spec = env_spec(options.env)
    with WorkerPool[Dimensions](EnvRecipe(spec, spec.training), size=1) as pool:
        answers = pool.run([DescribeTask("frame", spec.training.start)])
    assert answers is not None
    model, texts = make_model()
    scorer = make_scorer(model, texts, options.device, "float32", 64)
    del model
    assert answers[0].frame is not None
    scorer.score(np.zeros((64, *answers[0].frame), np.uint8))  # what the first batch sets up is no part of an epoch
    sides: list[Side] = ["none", "in-step", "deferred"] if options.only == "all" else ["none", "deferred"]
    results: dict[Side, list[Measured]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side in sides:
            results[side].append(collect(side, options, scorer, answers[0]))
    show(options, results)


def collect(side: Side, options: Options, scorer: Any, dimensions: Dimensions) -> Measured:
    spec = env_spec(options.env)
    config = SignalConfig(scorer="clip", rule="decoupled", every=options.every, batch=64,
                          scoring="in-step" if side == "in-step" else "deferred")  # fmt: skip
    scoring = Scoring(scorer, config, dimensions)
    reader = None if side == "none" else scoring
    peaks: dict[int, float] = {}
    pool: WorkerPool[Share] = WorkerPool(
        EnvRecipe(spec, spec.training), size=options.workers, fresh=True, stream=scoring.stream if reader else None
    )
    tasks = [
        CollectTask(RandomPolicy(dimensions.action), None, spec.training, spec.traffic,
                    options.steps // options.workers, (0, 2, 0, worker), watch=scoring.watch if reader else None)
        for worker in range(options.workers)
    ]  # fmt: skip

    def watch_workers(steps: int) -> None:
        for worker in pool._busy:
            if (peak := _memory(str(worker.process.pid), "VmHWM")) is not None:
                peaks[worker.process.pid or 0] = peak

    with pool, scoring:
        pool.prepare()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        level = _memory("self", "VmRSS")
        begun = time.perf_counter()
        shares = pool.run(tasks, on_progress=watch_workers, reader=reader)
        assert shares is not None
        similarities = np.concatenate(scoring.similarities(shares)) if reader else None
        seconds = time.perf_counter() - begun
        peak = _memory("self", "VmHWM")
    assert level is not None
    assert peak is not None
    return Measured(seconds, peak - level, sum(peaks.values()), similarities)


def _memory(process: str, field: str) -> float | None:
    """A figure of a process's status in MB, None once it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith(field)), None)


def show(options: Options, results: dict[Side, list[Measured]]) -> None:
    seconds = {side: statistics.median(m.seconds for m in rounds) for side, rounds in results.items()}
    frames = len(results["deferred"][0].similarities)
    title = f"{options.env}, {options.steps} steps, {options.workers} workers, {frames} frames, {PROMPTS} prompts"
    table = Table(title=title, title_justify="left")
    for heading in ("scoring", "seconds", "steps/s", "ms per frame added", "memory added, MB"):
        table.add_column(heading, justify="right" if heading != "scoring" else "left")
    without = max(m.worker_mb for m in results["none"])
    added: dict[Side, float] = {}
    for side, rounds in results.items():
        added[side] = max(m.main_mb + m.worker_mb - without for m in rounds)
        cost = 1e3 * (seconds[side] - seconds["none"]) / frames
        table.add_row(
            side, f"{seconds[side]:.2f}", f"{options.steps / seconds[side]:.1f}",
            "" if side == "none" else f"{cost:.2f}", "" if side == "none" else f"{added[side]:.0f}",
        )  # fmt: skip
    console = Console(width=110)
    console.print(table)
    if "in-step" in results:
        ratio = (seconds["in-step"] - seconds["none"]) / (seconds["deferred"] - seconds["none"])
        largest = np.abs(results["in-step"][0].similarities - results["deferred"][0].similarities).max()
        console.print(
            f"in-step / deferred: {seconds['in-step'] / seconds['deferred']:.2f} of the whole, {ratio:.2f} of"
        )
        console.print(f"what scoring adds; largest difference of a similarity {largest:.1e}")
    console.print(f"memory added by deferred scoring: {added['deferred']:.0f} MB (promise: {PROMISE_MEMORY:.0f})")
    sys.exit(added["deferred"] > PROMISE_MEMORY)


if __name__ == "__main__":
    main()
