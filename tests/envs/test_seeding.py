"""A scenario is the same episode whenever and wherever it is run: to the last bit, whatever ran before it.

MetaDrive, which carries state from one episode to the next, has its own tests of this.
"""

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from vlmsafe.envs.api import Env
from vlmsafe.envs.registry import ENVS

NAMES = ["bullet-car-reach", "formula-one-l0", "formula-one-l1", "formula-one-l2"]
STEPS = 300
SEED, OTHER = 17, 18


@pytest.fixture(scope="module", params=NAMES)
def env(request) -> Iterator[Env]:
    spec = ENVS[request.param]
    if importlib.util.find_spec(spec.package) is None:
        pytest.skip(f"{spec.package} is not installed")
    env = spec.make()
    yield env
    env.close()


def digest(env: Env, scenario: int, steps: int = STEPS, actions: int = 0) -> str:
    """A hash of everything that an episode tells, under actions that do not depend on it."""
    rng = np.random.default_rng(actions)
    low, high = env.action_space.low, env.action_space.high
    observation, info = env.reset(seed=scenario)
    told = hashlib.sha256(observation.tobytes() + repr(info).encode())
    middle = np.zeros(len(low))
    for _ in range(steps):
        # Actions that change slowly get somewhere, against barriers too.
        middle = 0.95 * middle + 0.05 * rng.uniform(-1.0, 1.5, len(low))
        share = np.clip(middle * 3, -1.0, 1.0)
        action = (low + (share + 1) / 2 * (high - low)).astype(np.float32)
        observation, reward, terminated, truncated, info = env.step(action)
        told.update(observation.tobytes())
        told.update(repr((reward, terminated, truncated, sorted(info.items()), env.hazard())).encode())
    return told.hexdigest()


@functools.cache
def elsewhere(name: str, hash_seed: int) -> str:
    """The same episode in a process of its own, where sets and dictionaries of strings have another order."""
    code = f"from test_seeding import *; print(digest(ENVS[{name!r}].make(), SEED))"
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    variables = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": paths}
    answer = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split()[-1]


def test_equal_seeds_give_equal_rollouts_in_one_process_even_after_other_episodes(env):
    first = digest(env, SEED)
    assert digest(env, SEED) == first
    for scenario in range(100, 105):  # long enough to run into things
        digest(env, scenario, steps=120, actions=scenario)
    assert digest(env, SEED) == first


def test_equal_seeds_give_equal_rollouts_in_fresh_processes_and_here(env, request):
    name = request.node.callspec.params["env"]
    assert elsewhere(name, 1) == elsewhere(name, 2) == digest(env, SEED)


def test_different_seeds_give_different_episodes(env):
    assert len({env.reset(seed=scenario)[0].tobytes() for scenario in range(SEED, SEED + 5)}) == 5
    assert digest(env, SEED, steps=30) != digest(env, OTHER, steps=30)


def test_two_environments_in_one_process_do_not_disturb_each_other(env, request):
    """Their steps take turns, as those of an environment for training and one for evaluation may."""
    alone = digest(env, SEED, steps=40)
    other = ENVS[request.node.callspec.params["env"]].make()
    other.reset(seed=OTHER)

    class Turns:
        """Steps `env`, and the other one after each step."""

        action_space = env.action_space

        def reset(self, **arguments):
            return env.reset(**arguments)

        def step(self, action):
            result = env.step(action)
            other.step(action)
            return result

        def hazard(self):
            return env.hazard()

    try:
        assert digest(Turns(), SEED, steps=40) == alone
    finally:
        other.close()
