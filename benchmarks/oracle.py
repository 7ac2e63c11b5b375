"""Does a signal that knows the danger help? The oracle in the cost critic against noise there, and against nothing.

    python benchmarks/oracle.py [--seeds 10] [--total-steps 160000] [--weight 3] [--learning-rate 0.035]

On `braking`, whose cost is settled up to 38 steps before it is charged, PPO-Lagrangian is trained three times per seed:
as it is, with the oracle's hazard added to the cost that the critic sees (`--vlm-cost-weight`), and with noise in the
oracle's place at the same weight. There is no bonus and no term in the multiplier; budget, multiplier and reported cost
are the environment's on all sides. Counted are the steps until the epoch's mean cost, averaged over five epochs, is
within the budget for the first time; a run that never gets there counts as its whole length. Intervals are bootstraps
over seeds of the mean paired difference.
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
    total_steps: int = 160_000
    """Steps of each run."""
    steps_per_epoch: int = 4000
    """Steps between two updates."""
    weight: float = 3.0
    """lambda_c of the sides with a signal."""
    every: int = 1
    """Steps between two looks."""
    learning_rate: float = 0.035
    """Of the multiplier; a faster one is another way to reach the budget sooner."""
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


SIDES = {"without": None, "noise": "noise", "oracle": "oracle"}


def run_one(options: Options, seed: int, side: str) -> Outcome:
    scorer = SIDES[side]
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            env=options.env,
            method="vlm-ppo-lag",
            seed=seed,
            total_steps=options.total_steps,
            steps_per_epoch=options.steps_per_epoch,
            run_dir=str(Path(folder) / "run"),
            signal={
                "scorer": scorer or "constant:0.5",
                "reward_weight": 0.0,
                "cost_weight": options.weight if scorer else 0.0,
                "every": options.every,
            },
            multiplier={"signal_weight": 0.0, "learning_rate": options.learning_rate},
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
            (seed, side): pool.submit(run_one, options, seed, side) for seed in range(options.seeds) for side in SIDES
        }
        outcomes = {key: job.result() for key, job in jobs.items()}
    show(options, outcomes)


def show(options: Options, outcomes: dict[tuple[int, str], Outcome]) -> None:
    console, seeds = Console(width=110), range(options.seeds)
    table = Table(
        title=f"{options.env}, lambda_c {options.weight:g}, eta_1 {options.learning_rate:g}", title_justify="left"
    )
    table.add_column("seed", justify="right")
    for figure in ("steps / 1000", "final return", "final cost"):
        for side in SIDES:
            table.add_column(f"{figure}\n{side}", justify="right")
    for seed in seeds:
        results = [outcomes[seed, side] for side in SIDES]
        table.add_row(
            str(seed),
            *(f"{result.steps / 1e3:.0f}{'' if result.reached else ' never'}" for result in results),
            *(f"{result.env_return:.1f}" for result in results),
            *(f"{result.cost:.1f}" for result in results),
        )
    console.print(table)
    for side in SIDES:
        results = [outcomes[seed, side] for seed in seeds]
        steps, env_return, cost = (
            np.mean([getattr(r, name) for r in results]) for name in ("steps", "env_return", "cost")
        )
        console.print(
            f"{side:>8}: {steps / 1e3:.1f} thousand steps, final return {env_return:.1f}, final cost {cost:.1f}"
        )
    for other in ("without", "noise"):
        differences = [(outcomes[seed, "oracle"].steps - outcomes[seed, other].steps) / 1e3 for seed in seeds]
        resampled = bootstrap((differences,), np.mean, n_resamples=10_000, rng=np.random.default_rng(0))
        low, high = resampled.confidence_interval
        console.print(
            f"oracle less {other}: {np.mean(differences):+.1f} thousand steps, 95 % interval {low:+.1f} to "
            f"{high:+.1f}; fewer in {sum(difference < 0 for difference in differences)} of {options.seeds} seeds"
        )


if __name__ == "__main__":
    main()
