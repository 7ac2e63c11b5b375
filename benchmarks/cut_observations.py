"""How much of what a policy observes is cut: standardised values end at a number of deviations from their mean.

    python benchmarks/cut_observations.py [--envs metadrive-easy:ends+mended ...] [--steps 4000] [--floors 0.01 0.2]

The scripted driver of each world drives on training scenarios. Observations are standardised by their own mean and
deviation, as a policy sees them, and cut at `--clip` deviations. A deviation below the floor counts as the floor. The
table has, for each floor, the share of values that are cut, the share of observations in which any value is cut, and
how many of the values that differ from the most frequent one of their place (rays that meet something) are cut.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import sys
from dataclasses import dataclass

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vlmsafe.cloning.demonstrate import DemonstrationTask, demonstrate
from vlmsafe.envs.registry import env_spec


@dataclass(frozen=True)
class Options:
    """Count the observed values that are cut."""

    envs: tuple[str, ...] = ("metadrive-easy:ends+mended", "bullet-car-reach", "formula-one-l2:sighted")
    """Worlds that have a scripted driver."""
    steps: int = 4_000
    """Steps in each world."""
    clip: float = 5.0
    """Deviations at which values are cut."""
    floors: tuple[float, ...] = (0.01, 0.2)
    """Least deviations; the first is the default of a run."""


def observations_of(name: str, steps: int) -> NDArray[np.float64]:
    """What the scripted driver of a world sees."""
    spec = env_spec(name)
    env = spec.make(spec.training)
    try:
        task = DemonstrationTask(name, spec.training, spec.traffic, steps, (0,))
        return demonstrate(env, task).observations.astype(np.float64)
    finally:
        env.close()


def unusual(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which values differ from the most frequent one of their column."""
    found = np.zeros(values.shape, np.bool_)
    for place, column in enumerate(values.T):
        seen, counts = np.unique(column, return_counts=True)
        found[:, place] = column != seen[counts.argmax()] if counts.max() > len(column) / 2 else False
    return found


def main() -> None:
    options = tyro.cli(Options)
    table = Table("world", "floor", "values cut", "observations with a cut value", "unusual values cut")
    for name in options.envs:
        values = observations_of(name, options.steps)
        rare = unusual(values)
        for floor in options.floors:
            deviation = np.maximum(values.std(axis=0), floor)
            cut = np.abs((values - values.mean(axis=0)) / deviation) > options.clip
            of_rare = f"{cut[rare].mean():.1%}" if rare.any() else "-"
            table.add_row(name, f"{floor:g}", f"{cut.mean():.2%}", f"{cut.any(axis=1).mean():.1%}", of_rare)
    Console().print(table)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose metadrive.py hides the package of that name
    main()
