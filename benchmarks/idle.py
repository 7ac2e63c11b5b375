"""How long simulators wait while the main process scores, learns and records: the share of an epoch, per recipe.

    python benchmarks/idle.py [--recipes formula-one-l2/ppo-lag metadrive-easy/vlm-ppo-lag] [--workers 1] [--steps 4000]

A recipe is an environment and a method with the settings that the shipped studies use: a run has one worker, which
waits while its core learns, so the share is also that of the core's time. With several workers it is the time in which
their cores have nothing to do. Each recipe is trained for a few epochs; the figures are medians over them without the
first one, which also starts processes, of the seconds that the run recorded in timing.jsonl. Collecting and learning
both grow with the steps of an epoch, so a shorter epoch than a study's has about the same shares.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe import train
from vlmsafe.config.methods import METHODS

STAGES = ("collect", "score", "advantages", "update", "record")


@dataclass(frozen=True)
class Options:
    """Measure idle simulators."""

    recipes: tuple[str, ...] = (
        "formula-one-l0/ppo-lag",
        "formula-one-l2/ppo-lag",
        "formula-one-l2/cpo",
        "formula-one-l2/vlm-ppo-lag",
        "bullet-car-reach:four-steps/ppo-lag",
        "bullet-car-reach:four-steps/vlm-ppo-lag",
        "metadrive-easy/ppo-lag",
        "metadrive-easy/vlm-ppo-lag",
        "metadrive-medium/ppo-lag",
        "metadrive-hard/ppo-lag",
    )
    """Environment and method."""
    workers: int = 1
    """Simulators of a run."""
    steps: int = 4000
    """Steps of an epoch, over all workers."""
    epochs: int = 3
    """Epochs that count."""


def measure(recipe: str, options: Options) -> dict[str, float]:
    """Seconds of each stage of an epoch."""
    env, method = recipe.split("/")
    signal = {} if METHODS[method].signal.scorer == "none" else {"every": 1}  # the same work on every environment
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            env=env, method=method, total_steps=options.steps * (1 + options.epochs), steps_per_epoch=options.steps,
            num_envs=options.workers, signal=signal, run_dir=Path(folder) / "run", quiet=True,
        )  # fmt: skip
        rows = run.rows("timing")[1:]
    return {stage: statistics.median(row[stage] for row in rows) for stage in STAGES}


def main() -> None:
    options, console = tyro.cli(Options, description=__doc__), Console(highlight=False, width=120)
    title = f"an epoch of {options.steps} steps, workers: {options.workers}"
    table = Table("recipe", *(f"{stage}, s" for stage in STAGES), "simulators idle", title=title)
    for recipe in options.recipes:
        seconds = measure(recipe, options)
        idle = 1.0 - seconds["collect"] / sum(seconds.values())
        table.add_row(recipe, *(f"{seconds[stage]:.3f}" for stage in STAGES), f"{100 * idle:.0f} %")
        console.print(f"{recipe}: {100 * idle:.0f} %")
    console.print(table)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose metadrive.py hides the package of that name
    main()
