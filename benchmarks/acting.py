"""What acting costs: the time from the return of `env.step` to its next call, while a worker collects.

    python benchmarks/acting.py [--envs formula-one-l0 bullet-car-reach] [--steps 2000] [--rounds 5]

It holds checks, statistics and standardisation of the observation, the policy, its random draw, the map to the
environment's bounds, and what is stored. Each round collects one share twice, once with the same formulas written
plainly and once through `collect`, and compares every number that they stored. A simulator takes the caches between
two calls, so acting takes longer than in a loop of its own; `alone` is an environment that does nothing. Figures are
medians over the steps of a round, and the medians of those over rounds. Exit code 1 if the promise is missed.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe.envs.api import Env, Observation, Scenarios
from vlmsafe.envs.episodes import begin_episode, step_episode
from vlmsafe.envs.registry import env_spec
from vlmsafe.learners.networks import Shape, Stack
from vlmsafe.learners.policy import LOG_SQRT_2PI, Policy
from vlmsafe.numerics.normaliser import Array, Normaliser
from vlmsafe.training.collect import CollectTask, collect

PROMISE, PROMISED_FOR = 30.0, "formula-one-l0"  # microseconds
ALONE = "alone"


@dataclass(frozen=True)
class Options:
    """Measure acting."""

    envs: tuple[str, ...] = (ALONE, "formula-one-l0", "formula-one-l2", "bullet-car-reach", "metadrive-easy")
    """Environments whose simulator is installed, and `alone`."""
    steps: int = 2000
    """Steps of a share."""
    rounds: int = 5
    """How often each way is measured."""


class Nothing(Env):
    """Observations as long as FormulaOne's, and no simulator."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (28,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._rows = np.random.default_rng(0).standard_normal((1000, 28), dtype=np.float32)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._step = 0
        return self._rows[0], {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._rows[self._step % 1000], 0.0, False, self._step == 1000, {"cost": 0.0}

    def frame(self) -> Any:
        raise NotImplementedError


class Watched:
    """Replaces an environment's `step` by one that notes when it was called and when it returned."""

    def __init__(self, env: Env) -> None:
        self._step = env.step
        self._called: list[int] = []
        self._returned: list[int] = []
        env.step = self  # type: ignore[method-assign]

    def __call__(self, action: Any) -> Any:
        self._called.append(time.perf_counter_ns())
        result = self._step(action)
        self._returned.append(time.perf_counter_ns())
        return result

    def microseconds(self, do: Callable[[], Any]) -> tuple[float, Any]:
        """The median time between two steps while `do` runs, and what it returns."""
        self._called.clear()
        self._returned.clear()
        result = do()
        return float(np.median(np.subtract(self._called[1:], self._returned[:-1]))) / 1e3, result


def act_plainly(env: Env, task: CollectTask) -> tuple[Array, Array, Array]:
    """Observations, actions and log-probabilities of a share, one formula after another."""
    space, policy, rng = env.action_space, task.policy, np.random.default_rng(task.seed)
    assert isinstance(space, gymnasium.spaces.Box)
    assert isinstance(policy, Policy)
    assert task.normaliser is not None
    running, seen = task.normaliser.copy(), Normaliser.empty(len(task.normaliser.mean))
    observations, actions = np.empty((task.steps, len(seen.mean)), np.float32), np.empty((task.steps, 2), np.float32)
    log_probs = np.empty(task.steps, np.float32)

    def see(raw: Array) -> Array:
        seen.update(raw)
        running.update(raw)
        if running.count <= 1:
            return raw
        return np.clip((raw - running.mean) / running.std, -5.0, 5.0).astype(np.float32)

    def begin() -> tuple[int, Array]:
        scenario = task.scenarios.draw(rng)
        details = {"traffic_seed": int(rng.integers(2**31))} if task.traffic else {}
        return scenario, see(begin_episode(env, scenario, details))

    scenario, state = begin()
    for t in range(task.steps):
        hidden = state
        for weight, bias in policy.layers[:-1]:
            hidden = np.tanh(weight @ hidden + bias)
        noise = rng.standard_normal(2, dtype=np.float32)
        action = policy.layers[-1][0] @ hidden + policy.layers[-1][1] + np.exp(policy.log_std) * noise
        observations[t], actions[t] = state, action
        log_probs[t] = np.sum(-0.5 * noise * noise - policy.log_std - np.float32(LOG_SQRT_2PI))
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
        scaled = low * (0.5 - 0.5 * action) + high * (0.5 + 0.5 * action)
        sent = scaled.astype(space.low.dtype)
        if env.clips:
            sent = np.clip(sent, space.low, space.high)
        raw, _, _, terminated, truncated, _ = step_episode(env, sent, scenario, t)
        state = see(raw)
        if terminated or truncated:
            scenario, state = begin()
    return observations, actions, log_probs


def measure(name: str, options: Options) -> list[tuple[float, float]]:
    """(plainly, through `collect`) in microseconds, per round."""
    env, spec = (Nothing(), None) if name == ALONE else (env_spec(name).make(), env_spec(name))
    assert env.observation_space.shape is not None
    size = env.observation_space.shape[0]
    stack = Stack(Shape(size, (64, 64), 2, 2))
    stack.initialise(np.random.default_rng(0))
    watched, rounds = Watched(env), []
    repeats = spec is None or not spec.fresh_process  # otherwise the second share starts from another simulator
    for number in range(options.rounds):
        scenarios, traffic = (spec.training, spec.traffic) if spec else (Scenarios(0, 10), False)
        task = CollectTask(stack.policy(), Normaliser.empty(size), scenarios, traffic, options.steps, (number,))
        plain, stored = watched.microseconds(lambda task=task: act_plainly(env, task))  # type: ignore[misc]
        now, share = watched.microseconds(lambda task=task: collect(env, task))  # type: ignore[misc]
        ours = (share.rollout.observations, share.rollout.actions, share.rollout.log_probs)
        equal = all(np.array_equal(one, other) for one, other in zip(stored, ours, strict=True))
        assert equal or not repeats, f"{name}: the two ways stored different numbers"
        rounds.append((plain, now))
    return rounds


def main() -> int:
    options, console = tyro.cli(Options), Console(highlight=False)
    table = Table("environment", "plain, us", "collect, us", "times faster", title="acting, per step")
    kept = True
    for name in options.envs:
        rounds = measure(name, options)
        plain, now = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other in rounds)
        table.add_row(name, f"{plain:.1f}", f"{now:.1f}", f"{ratio:.2f}")
        kept &= name != PROMISED_FOR or now <= PROMISE
    console.print(table)
    console.print(f"at most {PROMISE:.0f} us promised on {PROMISED_FOR}: {'kept' if kept else 'MISSED'}")
    return int(not kept)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose metadrive.py hides the package of that name
    sys.exit(main())
