"""The lead-time table for 360,000 steps: every signal, raw and standardised, per arm and per run, with intervals.

    python benchmarks/lead_time.py [--arms 2] [--runs 3] [--episodes 60] [--length 1000] [--resamples 2000]

The defaults are the paper's shape; `--arms 1 --runs 30 --length 200` has as many steps in five times as many episodes.
The other side ranks the steps of each resample anew. It is timed on a few resamples of one run, right after the same
cell was timed from concordance counts, and the ratio is that of the two. Exit code 1 if the table takes more than two
minutes.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from dataclasses import dataclass

import numpy as np
import polars as pl
import tyro
from scipy.stats import rankdata

from vlmsafe.analysis.anticipation import steps_to_contact
from vlmsafe.analysis.auc import auc_interval, draw_resamples
from vlmsafe.analysis.lead_time import lead_time
from vlmsafe.analysis.tables import stacked

LIMIT = 120.0


@dataclass(frozen=True)
class Options:
    """Time the lead-time table."""

    arms: int = 2
    """Arms."""
    runs: int = 3
    """Runs of each."""
    episodes: int = 60
    """Episodes of each run."""
    length: int = 1000
    """Steps of each episode."""
    contacts: float = 0.011
    """Share of steps in contact; that of the paper's L2."""
    resamples: int = 2000
    """Resamples of episodes behind each interval."""
    direct: int = 20
    """Resamples that the other side is timed on."""
    profile: bool = False
    """Also say which functions the time goes to."""


def made_up(rng: np.random.Generator, options: Options) -> pl.DataFrame:
    """The trace of one run: scores that differ between episodes and vary within."""
    steps = options.episodes * options.length
    levels = np.repeat(rng.normal(size=options.episodes), options.length)
    positive, negative = 0.62 + 0.005 * (levels + rng.normal(size=(2, steps)))
    return pl.DataFrame(
        {
            "episode": np.repeat(np.arange(options.episodes), options.length),
            "step": np.tile(np.arange(1, options.length + 1), options.episodes),
            "cost": (rng.random(steps) < options.contacts).astype(np.float64),
            "scored": np.ones(steps, np.bool_),
            "positive": positive,
            "negative": negative,
            "margin": 2.0 * (positive - negative),
        }
    )


def one_cell(trace: pl.DataFrame, options: Options) -> tuple[float, float]:
    """Seconds per resample of one AUC of one run: from concordance counts, and by ranking its steps anew."""
    numbers, touched = trace["episode"].to_numpy(), trace["cost"].to_numpy() > 0.0
    positive = (steps_to_contact(touched, numbers) <= 20)[~touched]
    values, own = trace["negative"].to_numpy()[~touched], numbers[~touched]
    start = time.perf_counter()
    auc_interval(values, positive, own, resamples=options.resamples)
    counted = (time.perf_counter() - start) / options.resamples
    start = time.perf_counter()
    for times in draw_resamples(options.episodes, options.direct, 0).astype(np.int64):
        taken = np.repeat(np.arange(len(values)), times[own])
        rankdata(values[taken])[positive[taken]].sum()
    return counted, (time.perf_counter() - start) / options.direct


def main(options: Options) -> None:
    rng = np.random.default_rng(0)
    arms = {
        f"arm-{arm}": {f"seed-{run}": made_up(rng, options) for run in range(options.runs)}
        for arm in range(options.arms)
    }
    steps = stacked(arms)
    profiler = cProfile.Profile()
    start = time.perf_counter()
    if options.profile:
        profiler.enable()
    table = lead_time(steps, resamples=options.resamples)
    profiler.disable()
    seconds = time.perf_counter() - start
    counted, ranked = one_cell(next(iter(arms["arm-0"].values())), options)
    print(
        f"{len(steps):,} steps, {options.arms * options.runs} runs in {options.arms} arms, {len(table)} AUCs with "
        f"{options.resamples:,} resamples each"
    )
    print(f"the whole table                 {seconds:10.1f} s, of {LIMIT:.0f} allowed")
    print(f"one resample of one run's AUC   {1e3 * counted:10.3f} ms from concordance counts")
    print(f"                                {1e3 * ranked:10.3f} ms by ranking its steps")
    print(f"ratio                           {ranked / counted:10.0f}")
    if options.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(8)
    if seconds > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main(tyro.cli(Options))
