"""What FormulaOne's scripted driver achieves: stages, path and cost per level and variant, over held-out scenarios.

    python benchmarks/scripted_driver.py [--seeds 20] [--variants "" long fast]

It shows that the route can be driven: a benchmark that nobody can solve measures nothing. Exit code 1 if the driver
leaves the route unfinished where it should be finished: every stage in the long variant of level 0, a stage from the
starts whose next goal is within reach at 1 m/s (from nine tenths of them on level 1, three quarters on level 2), three
stages on average in long episodes of level 2, and some episodes with a stage and without any cost on levels 1 and 2.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe.envs.registry import env_spec
from vlmsafe.learners.policy import ActionMap

FAR_STARTS = (3.0, 5.0)  # goals whose next one is 34 and 70 m away along the road; 1000 steps at 1 m/s are 39 m


@dataclass(frozen=True)
class Options:
    """Let the scripted driver drive."""

    seeds: int = 20
    """Scenarios per level, from the first held-out one on."""
    variants: tuple[str, ...] = ("", "long", "fast")
    """Variants of the environment; an empty one is the environment as published."""
    levels: tuple[int, ...] = (0, 1, 2)
    processes: int = 2


def drive(name: str, scenario: int) -> dict[str, float]:
    """One episode of the scripted driver."""
    spec = env_spec(name)
    env = spec.make(spec.held_out)
    _, begun = env.reset(seed=scenario)
    expert = env.expert()
    assert expert is not None
    to_env = ActionMap.to(env.action_space)  # type: ignore[arg-type]
    cost, truncated = 0.0, False
    while not truncated:
        *_, truncated, info = env.step(to_env(expert().astype(np.float32)))
        cost += info["cost"]
    return {**env.progress(), "cost": cost, "start": float(begun["start"])}


def main() -> int:
    options = tyro.cli(Options, description=__doc__)
    console = Console(width=120)
    table = Table(title=f"Scripted driver, {options.seeds} held-out scenarios each (mean, and least to most)")
    for column in ("environment", "stages", "path (m)", "net progress (m)", "cost", "episodes without cost"):
        table.add_column(column, justify="left" if column == "environment" else "right")
    missed = []
    for variant in options.variants:
        for level in options.levels:
            name = f"formula-one-l{level}" + (f":{variant}" if variant else "")
            first = env_spec(name).held_out.start
            scenarios = range(first, first + options.seeds)
            with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
                rows = list(pool.map(drive, [name] * options.seeds, scenarios))
            held = {key: np.array([row[key] for row in rows]) for key in rows[0]}
            free = (held["cost"] == 0.0).mean()
            clean = ((held["cost"] == 0.0) & (held["stages"] >= 1)).any()
            table.add_row(
                name,
                *(_spread(held[key]) for key in ("stages", "path", "net_progress", "cost")),
                f"{free:.0%}",
            )
            if variant == "long" and level == 0 and held["stages"].min() < 7:
                missed.append(f"{name}: a lap was not completed")
            near = held["stages"][~np.isin(held["start"], FAR_STARTS)] >= 1
            if not variant and near.mean() < (1.0, 0.9, 0.75)[level]:
                missed.append(f"{name}: a stage in only {near.sum()} of {len(near)} episodes from near starts")
            if variant == "long" and level == 2 and held["stages"].mean() < 3:
                missed.append(f"{name}: only {held['stages'].mean():.1f} stages on average")
            if level and not clean:
                missed.append(f"{name}: no episode completed a stage without cost")
    console.print(table)
    for line in missed:
        console.print(f"missed: {line}")
    return int(bool(missed))


def _spread(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    return f"{values.mean():.1f} ({values.min():.0f} to {values.max():.0f})"


if __name__ == "__main__":
    sys.exit(main())
