"""How many goals of Bullet's Car-Reach a car could reach at most that never has to turn and meets no obstacle.

    python benchmarks/bullet_bound.py [--episodes 100]

The script first measures how fast the car accelerates on a straight line from rest, with several constant throttles.
It then assumes a car that always has the best acceleration measured at its speed, or at a higher one, up to 5 m/s: a
faster car does not reach goals. This car drives straight from goal to goal on held-out scenarios and turns in no time.
The script prints the measured speeds, the distance covered in an episode, and the number of goals that this distance is
enough for. A real car has to turn, so the bound is far from tight.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import math
from dataclasses import dataclass

import numpy as np
import tyro
from numpy.typing import NDArray

from vlmsafe.envs.bullet.scene import GOAL_RADIUS
from vlmsafe.envs.bullet.world import TASKS, World
from vlmsafe.envs.registry import env_spec

Array = NDArray[np.float64]

THROTTLES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
FAR = np.array([60.0, 60.0])  # metres; where obstacles are while speeds are measured
STEPS = 150  # of a measurement; the room is 19.8 m long
WINDOW = 15  # steps over which an acceleration is measured
TOP_SPEED = 5.0  # m/s; a faster car does not reach goals


@dataclass(frozen=True)
class Options:
    """Compute the bound."""

    episodes: int = 100
    """Held-out scenarios, from the first one on."""


def speeds_of(world: World, throttle: float) -> Array:
    """The car's speed along a straight line from rest, after each step, m/s."""
    world.start(0)
    world.goal, world.orbit, world.puddles = FAR, FAR, np.tile(FAR, (len(world.puddles), 1))
    for body in (world._box.body_id, *(puddle.body_id for puddle in world._puddles)):
        world._put(body, FAR)
    world._put(world._car_id, np.array([-8.5, 0.0]), height=0.2)
    speeds = []
    for _ in range(STEPS):
        world.advance(np.array([throttle, 0.0]))
        speeds.append(math.hypot(*world.velocity[:2]))
    return np.array(speeds)


def distance(curves: dict[float, Array], seconds: float, step: float) -> float:
    """What a car covers that always has the best acceleration measured at its speed or a higher one."""
    before, gains = [], []
    for speeds in curves.values():
        speeds = np.concatenate([[0.0], speeds])
        before.append(speeds[:-WINDOW])
        gains.append((speeds[WINDOW:] - speeds[:-WINDOW]) / (WINDOW * step))
    at, gain = np.concatenate(before), np.concatenate(gains)
    speed = covered = 0.0
    for _ in range(round(seconds / step)):
        speed = min(speed + step * gain[at >= speed].max(initial=0.0), TOP_SPEED)
        covered += speed * step
    return covered


def goals(world: World, scenario: int, metres: float) -> int:
    """How many goals a straight way of so many metres is enough for."""
    world.start(scenario)
    reached = 0
    while True:
        away = world.goal - world.place
        far = math.hypot(*away)
        metres -= max(far - GOAL_RADIUS, 0.0)
        if metres < 0.0:
            return reached
        reached += 1
        world.place = world.goal - away / far * min(far, GOAL_RADIUS)
        world.position = (*world.place.tolist(), world.position[2])
        world._next_goal()


def main(options: Options) -> None:
    spec = env_spec("bullet-car-reach")
    assert spec.horizon is not None
    world = World(TASKS["original"], 1)
    curves = {throttle: speeds_of(world, throttle) for throttle in THROTTLES}
    print("m/s after 0.5, 1, 1.5, 2 and 2.5 s, by throttle:")
    for throttle, speeds in curves.items():
        print(f"  {throttle:4g}  " + "  ".join(f"{speeds[step]:.2f}" for step in range(29, STEPS, 30)))
    seconds = spec.horizon * spec.step_seconds
    metres = distance(curves, seconds, spec.step_seconds)
    first = spec.held_out.start
    counts = np.array([goals(world, first + number, metres) for number in range(options.episodes)])
    world.close()
    print(f"{metres:.1f} m in {seconds:.1f} s at the best acceleration measured, at most {TOP_SPEED:g} m/s")
    print(
        f"goals in {options.episodes} held-out scenarios: mean {counts.mean():.2f}, "
        f"least {counts.min()}, most {counts.max()}"
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
