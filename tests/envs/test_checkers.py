"""Gymnasium's and Stable-Baselines3's own checkers find nothing wrong with any environment, nor with any variant."""

import gc
import importlib.util
import warnings
from collections.abc import Iterator

import pytest
from gymnasium.envs.registration import EnvSpec as EnvSpecOfGym
from gymnasium.utils import env_checker
from stable_baselines3.common.env_checker import check_env as check_for_learners

from vlmsafe.envs.api import Env
from vlmsafe.envs.registry import ENVS, env_spec

# Variants of the other levels of FormulaOne change the same settings as those of level 2.
NAMES = [*ENVS, *(f"{name}:{variant}" for name in ("bullet-car-reach", "formula-one-l2")
                  for variant in ENVS[name].variants)]  # fmt: skip

# What the checkers recommend and an environment as published does not have.
RECOMMENDED = ("normalized", "infinity")


@pytest.fixture(scope="module", params=NAMES)
def env(request) -> Iterator[Env]:
    spec = env_spec(request.param)
    if spec.package is not None and importlib.util.find_spec(spec.package) is None:
        pytest.skip(f"{spec.package} is not installed")
    env = spec.make(randomise=False)
    # Without this Gymnasium does not compare what equal seeds give.
    env.spec = EnvSpecOfGym("Checked-v0", nondeterministic=False)
    yield env
    env.close()
    env.close()  # which Gymnasium allows


def unexpected(check) -> list[str]:
    """What a checker warns of, apart from recommendations."""
    gc.collect()  # whatever earlier tests left must not be warned of in this one
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check()
    said = [str(warning.message) for warning in caught]
    return [text for text in said if not any(word in text for word in RECOMMENDED)]


def test_gymnasiums_checker_finds_nothing(env, monkeypatch):
    if type(env).__module__ == "vlmsafe.envs.metadrive.env":
        # There a seed is an index that leaves `np_random` alone, as the class says, and this check wants it seeded.
        monkeypatch.setattr(env_checker, "check_reset_seed_determinism", lambda env: None)
    # Frames come from frame(): there is no render mode to check, and no registration to make it from.
    assert unexpected(lambda: env_checker.check_env(env, skip_render_check=True, skip_close_check=True)) == []


def test_the_checker_of_stable_baselines_finds_nothing(env):
    assert unexpected(lambda: check_for_learners(env)) == []
