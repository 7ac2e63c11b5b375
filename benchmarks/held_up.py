"""What holds the scripted driver of MetaDrive up: how often it is slow behind another car, and how fast that car is.

    python benchmarks/held_up.py [--roads 12]

It drives training roads of Easy, Medium and Hard. A step counts as slow below 0.6 of the speed that the road ahead
allows, and as behind a car if one is at most 15 m ahead of it in its own direction. `needed` is the mean speed with
which the route takes all of an episode's time. `in a jam` is the share of the roads on which time runs out while the
car has covered less than 10 m in the last 10 s and a car stands or crawls at most 15 m ahead.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe.envs.registry import env_spec
from vlmsafe.envs.vector.pool import WORKER_VARIABLES
from vlmsafe.errors import VlmsafeError
from vlmsafe.learners.policy import ActionMap

_SLOW, _NEAR, _ASIDE = 0.6, 15.0, 2.0
_LAST, _JAMMED = 10.0, 1.0  # seconds at the end of an episode, and the mean speed below which they are spent in a jam


@dataclass(frozen=True)
class Options:
    """Let MetaDrive's scripted driver drive."""

    envs: tuple[str, ...] = ("metadrive-easy:ends+mended", "metadrive-medium:ends+mended", "metadrive-hard:ends+mended")
    """Environments of MetaDrive."""
    roads: int = 12
    """Training roads of each."""
    processes: int = 2
    """Processes that drive at once."""


@dataclass(frozen=True)
class Drive:
    """One episode."""

    arrived: bool
    jammed: bool
    cost: float
    needed: float
    speeds: list[float]
    slow: list[bool]
    behind: list[float | None]
    """The speed of the car close ahead, if there is one."""


def drive(name: str, scenario: int) -> Drive:
    from vlmsafe.envs.metadrive.careful import CarefulDriver, speed_limit

    spec = env_spec(name)
    assert spec.horizon is not None
    assert spec.step_seconds is not None
    env: Any = spec.make(spec.training, randomise=False)
    try:
        env.reset(seed=scenario)
        ego, over = env._simulator.agent, False
        driver, to_env = CarefulDriver(env._simulator, lambda: env._traffic), ActionMap.to(env.action_space)
        needed = ego.navigation.total_length / (spec.horizon * spec.step_seconds)
        speeds, slow, behind, cost = [], [], [], 0.0
        while not over:
            limit = speed_limit(driver._place(ego, driver._lane()), driver._cruise)
            speeds.append(float(ego.speed))
            slow.append(speeds[-1] < _SLOW * limit)
            behind.append(speed_ahead(ego, env._traffic))
            *_, terminated, truncated, info = env.step(to_env(driver.act().astype(np.float32)))
            cost += info["cost"]
            over = terminated or truncated
        arrived = terminated and cost == 0.0  # these worlds end an episode on arrival or at a cost
        last = round(_LAST / spec.step_seconds)
        crawls = behind[-1] is not None and max(behind[-1], float(np.mean(speeds[-last:]))) < _JAMMED
    finally:
        env.close()
    return Drive(arrived, truncated and crawls, cost, needed, speeds, slow, behind)


def speed_ahead(ego: Any, others: Any) -> float | None:
    """The speed of the nearest car ahead of the car, in the direction in which it points."""
    cos, sin = math.cos(ego.heading_theta), math.sin(ego.heading_theta)
    nearest, speed = _NEAR, None
    for thing in others:
        dx, dy = thing.position[0] - ego.position[0], thing.position[1] - ego.position[1]
        ahead, aside = dx * cos + dy * sin, dy * cos - dx * sin
        if 0.0 < ahead < nearest and abs(aside) < _ASIDE:
            nearest, speed = ahead, float(np.hypot(*thing.velocity))
    return speed


def main(options: Options) -> int:
    for name in options.envs:
        env_spec(name).require()
    os.environ.update(WORKER_VARIABLES)  # MetaDrive's traffic depends on the order of sets
    table = Table(title="The scripted driver on training roads")
    columns = "environment|roads|arrived|in a jam|cost|speed|needed|slow|slow behind a car|speed of this car (median)"
    for column in columns.split("|"):
        table.add_column(column, justify="left" if column == "environment" else "right")
    # One environment per process: MetaDrive allows no more.
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        driven = {name: [pool.submit(drive, name, road) for road in range(options.roads)] for name in options.envs}
        for name, futures in driven.items():
            rows = [future.result() for future in futures]
            steps = sum(len(row.speeds) for row in rows)
            held = [
                speed
                for row in rows
                for slow, speed in zip(row.slow, row.behind, strict=True)
                if slow and speed is not None
            ]
            table.add_row(
                name,
                str(len(rows)),
                f"{np.mean([row.arrived for row in rows]):.2f}",
                f"{np.mean([row.jammed for row in rows]):.2f}",
                f"{np.mean([row.cost for row in rows]):.2f}",
                f"{np.mean([speed for row in rows for speed in row.speeds]):.1f}",
                f"{np.mean([row.needed for row in rows]):.1f}",
                f"{sum(sum(row.slow) for row in rows) / steps:.2f}",
                f"{len(held) / steps:.2f}",
                f"{np.median(held):.1f}" if held else "-",
            )
    Console(width=150, highlight=False).print(table)
    return 0


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose metadrive.py hides the package of that name
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except VlmsafeError as error:
        sys.exit(str(error))
