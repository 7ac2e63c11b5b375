"""Does a signal that knows the danger help? The oracle in the cost critic against the same run without it.

    python benchmarks/oracle.py [--seeds 10] [--total-steps 200000] [--weight 0.5]

On `braking`, whose cost comes some 25 steps after the decision that caused it, PPO-Lagrangian is trained twice per
seed: as it is, and with the oracle's hazard added to the cost that the critic sees (`--vlm-cost-weight`). There is no
bonus and no term in the multiplier; budget, multiplier and reported cost are the environment's on both sides. Counted
are the steps until the epoch's mean cost, averaged over five epochs, is within the budget for the first time; a run that
never gets there counts as its whole length. The interval is a bootstrap over seeds of the mean paired difference.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap

from vlmsafe import train

AVERAGE = 5  # epochs


@dataclass(frozen=True)
class Options:
    """Measure what the oracle is worth."""

    env: str = "braking"
    """Environment."""
    seeds: int = 10
    """Paired runs."""
    total_steps: int = 200_000
    """Steps of each run."""
    steps_per_epoch: int = 4000
    """Steps between two updates."""
    weight: float = 0.5
    """lambda_c of the side with the oracle."""
    every: int = 1
    """Steps between two looks."""
    processes: int = 2
    """Runs at a time."""


@dataclass(frozen=True)
class Outcome:
    """One run."""

    steps: int
    """Until the budget was met."""
    reached: bool
    env_return: float
    """Over the last five epochs' windows."""
    cost: float
    """Of the last five epochs."""


def run_one(options: Options, seed: int, weight: float) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            env=options.env,
            method="vlm-ppo-lag",
            seed=seed,
            total_steps=options.total_steps,
            steps_per_epoch=options.steps_per_epoch,
            run_dir=str(Path(folder) / "run"),
            signal={"scorer": "oracle", "reward_weight": 0.0, "cost_weight": weight, "every": options.every},
            multiplier={"signal_weight": 0.0},
            quiet=True,
        )
        rows = run.rows("epochs")
    costs, budget = np.array([row["epoch_cost"] for row in rows]), rows[0]["budget"]
    average = np.convolve(costs, np.full(AVERAGE, 1.0 / AVERAGE), mode="valid")
    within = np.flatnonzero(average <= budget)
    reached = len(within) > 0
    epochs = within[0] + AVERAGE if reached else len(rows)
    env_return = float(np.mean([row["env_return"] for row in rows[-AVERAGE:]]))
    return Outcome(int(epochs * options.steps_per_epoch), reached, env_return, float(costs[-AVERAGE:].mean()))


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    # Training starts processes of its own, which a daemonic worker of a pool may not; these are not daemonic.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        jobs = {
            (seed, weight): pool.submit(run_one, options, seed, weight)
            for seed in range(options.seeds)
            for weight in (0.0, options.weight)
        }
        outcomes = {key: job.result() for key, job in jobs.items()}
    table = Table(title=f"{options.env}: thousands of steps until the budget is met", title_justify="left")
    for heading in ("seed", "without", "oracle", "difference", "return at the end", "", "cost at the end", ""):
        table.add_column(heading, justify="right")
    differences = []
    for seed in range(options.seeds):
        plain, oracle = outcomes[seed, 0.0], outcomes[seed, options.weight]
        differences.append((oracle.steps - plain.steps) / 1e3)
        marks = [f"{side.steps / 1e3:.0f}{'' if side.reached else ' (never)'}" for side in (plain, oracle)]
        table.add_row(
            str(seed), *marks, f"{differences[-1]:+.0f}", f"{plain.env_return:.1f}", f"{oracle.env_return:.1f}",
            f"{plain.cost:.1f}", f"{oracle.cost:.1f}",
        )  # fmt: skip
    console = Console(width=110)
    console.print(table)
    interval = bootstrap((differences,), np.mean, n_resamples=10_000, rng=np.random.default_rng(0)).confidence_interval
    plain_mean = np.mean([outcomes[seed, 0.0].steps for seed in range(options.seeds)]) / 1e3
    oracle_mean = np.mean([outcomes[seed, options.weight].steps for seed in range(options.seeds)]) / 1e3
    console.print(f"mean: {plain_mean:.1f} thousand steps without, {oracle_mean:.1f} with the oracle")
    console.print(
        f"mean difference {np.mean(differences):+.1f} thousand steps, 95 % interval {interval.low:+.1f} to "
        f"{interval.high:+.1f}; fewer steps in {sum(d < 0 for d in differences)} of {options.seeds} seeds"
    )


if __name__ == "__main__":
    main()
