"""What an environment costs in another interpreter: steps per second there and in this process.

    python benchmarks/bridge.py --python /opt/venv/bin/python [--env gym:<module>:<id>] [--seconds 2] [--rounds 3]

The default environment is this file's own, whose step does next to nothing, so the difference is the bridge. Both are
measured side by side in every round. Exit code 1 if the bridge makes fewer than 3,000 steps per second of a trivial
environment.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from vlmsafe.envs.api import Env
from vlmsafe.envs.registry import make_env

PROMISE = 3000
OWN = "gym:trivial_env:Trivial-v0"


@dataclass(frozen=True)
class Options:
    """Measure the bridge."""

    python: str
    """The other interpreter: a path, or an entry of interpreters.yaml."""
    env: str = OWN
    """Environment that both interpreters can make."""
    seconds: float = 2.0
    """Duration of a measurement."""
    rounds: int = 3
    """How often each is measured."""
    frames: bool = False
    """Whether a frame is rendered after every step."""


def steps_per_second(env: Env, seconds: float, frames: bool) -> float:
    """Steps of random actions, with resets where episodes end."""
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(256)]
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        terminated, truncated = env.step(actions[count % 256])[2:4]
        count += 1
        if frames:
            env.frame()
        if terminated or truncated:
            env.reset(seed=count)
    return count / (time.perf_counter() - began)


def main(options: Options) -> int:
    folder = str(Path(__file__).parent)
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    here, there = make_env(options.env), make_env(f"{options.env}@{options.python}")
    pairs = [
        (
            steps_per_second(here, options.seconds, options.frames),
            steps_per_second(there, options.seconds, options.frames),
        )
        for _ in range(options.rounds)
    ]
    there.close()
    inside, bridged = (statistics.median(column) for column in zip(*pairs, strict=True))
    out = Console(highlight=False)
    out.print(f"{options.env}, medians of {options.rounds} rounds of {options.seconds:g} s")
    out.print(f"in this process  {inside:>9,.0f} steps/s")
    out.print(f"{f'in {options.python}'}  {bridged:>9,.0f} steps/s", soft_wrap=True)
    out.print(f"ratio {bridged / inside:.3f}; the bridge adds {1e6 * (1 / bridged - 1 / inside):.0f} µs to a step")
    return int(options.env == OWN and not options.frames and bridged < PROMISE)


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options)))
