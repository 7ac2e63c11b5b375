"""What the simulated worlds cost: steps, frames and resets, beside the plain way to have the same world.

    python benchmarks/worlds.py [--envs bullet-car-reach formula-one-l2] [--steps 1000] [--rounds 5]

Steps are those of `env.step`, with physics, observation, lidar and cost, per second of CPU time; the scripted driver
of the environment, whose own time is left out, or else random actions drive. Frames are in milliseconds of wall time,
which wants an idle machine, and of CPU time, which counts all threads of a renderer; resets in milliseconds of CPU
time. Beside Bullet stands the bare package with the obstacles of the original registration, beside FormulaOne the same
world with barriers that never sleep; both repeat the actions, and are measured in every round after ours. Figures are
medians over rounds. Exit code 1 if a promise is missed: steps per second and milliseconds of CPU time per frame as
listed below, and Bullet no slower than the bare package.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import copy
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import gymnasium
import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vlmsafe.envs.api import Env
from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.learners.policy import ActionMap

OBSTACLES = {
    "Box": {"number": 1, "fixed_base": False, "movement": "circular"},
    "Puddle": {"number": 8, "fixed_base": True, "movement": "static"},
}

# Steps per CPU-second at least, and CPU-milliseconds of a frame at most.
PROMISES = {
    "formula-one-l0": (2000.0, 10.0),
    "formula-one-l1": (800.0, 10.0),
    "formula-one-l2": (800.0, 10.0),
    "bullet-car-reach": (0.0, 40.0),
}
PROMISED_GAIN = {"bullet-car-reach": 1.0, "formula-one-l1": 1.0, "formula-one-l2": 1.0}


@dataclass(frozen=True)
class Options:
    """Measure simulated worlds."""

    envs: tuple[str, ...] = tuple(name for name, spec in ENVS.items() if spec.package is not None)
    """Environments, variants too; by default all that have a simulator."""
    steps: int = 1000
    """Steps of a round."""
    plain_steps: int = 200
    """Of which the plain way repeats so many; without sleep it is slow."""
    frames: int = 40
    """Frames of a round, spread over its steps."""
    resets: int = 5
    """Resets of a round."""
    rounds: int = 5
    """How often everything is measured."""


class Figures(NamedTuple):
    """Of one round."""

    steps_per_second: float
    frame_p50: float
    frame_p95: float
    frame_cpu: float
    reset: float


Action = NDArray[np.floating[Any]]


class Driven(NamedTuple):
    """What was measured, and what was done."""

    figures: Figures
    actions: list[Action]


def drive(
    options: Options,
    steps: int,
    reset: Callable[[int], object],
    step: Callable[[Action], bool],
    frame: Callable[[], object],
    act: Callable[[int], Action],
    first: int,
) -> Driven:
    """Episodes from a scenario on until so many steps are done; `step` says whether the episode is over."""
    resets, frames, frames_cpu, seconds, actions = [], [], [], 0.0, []
    scenario, over = first, True
    reset(scenario)
    frame()  # the first one of a process also starts the renderer
    for number in range(steps):
        if over:
            reset(scenario)
            scenario += 1
        action = act(number)
        actions.append(action)
        begun = time.process_time()
        over = step(action)
        seconds += time.process_time() - begun
        if number % max(steps // options.frames, 1) == 0:
            begun, begun_cpu = time.perf_counter(), time.process_time()
            frame()
            frames.append(1e3 * (time.perf_counter() - begun))
            frames_cpu.append(1e3 * (time.process_time() - begun_cpu))
    for number in range(options.resets):
        begun = time.process_time()
        reset(first + number)
        resets.append(1e3 * (time.process_time() - begun))
    p50, p95 = np.percentile(frames, [50, 95])
    cpu, reset_cpu = statistics.median(frames_cpu), statistics.median(resets)
    return Driven(Figures(steps / seconds, float(p50), float(p95), cpu, reset_cpu), actions)


def measure(env: Env, options: Options, first: int, replayed: list[Action] | None = None) -> Driven:
    """One round in one of our environments, driven by its driver, or by actions that are given."""
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    to_env, rng = ActionMap.to(env.action_space, clips=env.clips), np.random.default_rng(first)
    drivers: list[Callable[[], NDArray[np.float64]] | None] = []

    def reset(scenario: int) -> None:
        env.reset(seed=scenario)
        drivers[:] = [env.expert()]

    def act(number: int) -> Action:
        if replayed is not None:
            return replayed[number]
        driver = drivers[0]
        chosen = rng.uniform(-1.0, 1.0, len(to_env.low)) if driver is None else driver()
        return to_env(np.asarray(chosen, np.float32))

    def step(action: Action) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        return terminated or truncated

    steps = options.steps if replayed is None else min(options.plain_steps, len(replayed))
    return drive(options, steps, reset, step, env.frame, act, first)


def plain_bullet(name: str, options: Options, first: int, replayed: list[Action]) -> Driven:
    """The bare package: its own environment, its own picture of everything, and as many physics steps per action."""
    from bullet_safety_gym.envs import builder

    step_time, _, iterations = builder.get_physics_parameters("ReachGoalTask", "RaceCar")
    parameters = (step_time, env_spec(name).settings.get("physics_steps", 1), iterations)
    with mock.patch.object(builder, "get_physics_parameters", return_value=parameters):
        bare = gymnasium.make("SafetyCarReach-v0", obstacles=OBSTACLES, disable_env_checker=True)

    def step(action: Action) -> bool:
        _, _, terminated, truncated, _ = bare.step(action)
        return bool(terminated or truncated)

    inner: Any = bare.unwrapped
    try:
        return drive(
            options, min(options.plain_steps, len(replayed)), lambda scenario: bare.reset(), step,
            lambda: inner.render("rgb_array"), lambda number: replayed[number], first,
        )  # fmt: skip
    finally:
        bare.close()


def plain_formula_one(name: str, options: Options, first: int, replayed: list[Action]) -> Driven:
    """The same environment on a world whose barriers never sleep, so that all of them are simulated at every step."""
    import mujoco

    from vlmsafe.envs.formula_one import env as module
    from vlmsafe.envs.formula_one.model import build

    def build_plainly(barriers: int, top_speed: float) -> Any:
        model = copy.copy(build(barriers, top_speed))
        model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
        return model

    with mock.patch.object(module, "build", build_plainly):
        env = env_spec(name).make()
    try:
        return measure(env, options, first, replayed)
    finally:
        env.close()


def plain(name: str, options: Options, first: int, replayed: list[Action]) -> Figures | None:
    """The plain way to have an environment's world, where there is one."""
    if name.startswith("bullet-"):
        return plain_bullet(name, options, first, replayed).figures
    if name.startswith(("formula-one-l1", "formula-one-l2")):
        return plain_formula_one(name, options, first, replayed).figures
    return None


def medians(rounds: list[Figures]) -> Figures:
    return Figures(*(statistics.median(column) for column in zip(*rounds, strict=True)))


def main(options: Options) -> int:
    console = Console(highlight=False, width=100)
    missed: list[str] = []
    table = Table("environment", "", "steps/CPU-s", "frame p50, ms", "p95", "CPU", "reset, ms")
    for name in options.envs:
        spec = env_spec(name)
        if spec.package is not None and importlib.util.find_spec(spec.package) is None:
            console.print(f"{name} is left out: {spec.package} is not installed")
            continue
        ours: list[Figures] = []
        theirs: list[Figures] = []
        env = spec.make(randomise=False)
        try:
            for number in range(options.rounds):
                first = spec.training.start + 100 * number
                figures, actions = measure(env, options, first)
                ours.append(figures)
                if (other := plain(name, options, first, actions)) is not None:
                    theirs.append(other)
        finally:
            env.close()
        middle = medians(ours)
        table.add_row(name, "here", *map(shown, middle))
        least, most = PROMISES.get(name, (0.0, float("inf")))
        if middle.steps_per_second < least:
            missed.append(f"{name}: {middle.steps_per_second:.0f} steps per CPU-second, promised {least:.0f}")
        if middle.frame_cpu > most:
            missed.append(f"{name}: {middle.frame_cpu:.1f} ms for a frame, promised {most:.0f}")
        if theirs:
            other = medians(theirs)
            gains = [a.steps_per_second / b.steps_per_second for a, b in zip(ours, theirs, strict=True)]
            if statistics.median(gains) < PROMISED_GAIN.get(name, 0.0):
                missed.append(f"{name}: slower than the plain way")
            times = (statistics.median(gains), *(b / a for a, b in zip(middle[1:], other[1:], strict=True)))
            # FormulaOne's plain world is drawn and reset by the same code.
            compared = len(times) if name.startswith("bullet-") else 1
            table.add_row("", "plain", *map(shown, other[:compared]))
            table.add_row("", "times faster", *map(shown, times[:compared]))
    console.print(table)
    for line in missed:
        console.print(f"missed: {line}")
    return int(bool(missed))


def shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose metadrive.py hides the package of that name
    sys.exit(main(tyro.cli(Options)))
