"""What is learned is what the scripted driver would do; what is executed has noise, or is the clone's own action."""

import numpy as np
import pytest
from driven_envs import GAIN, HORIZON, Steered
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.cloning.demonstrate import (
    AFTER_COST,
    BRAKES,
    MEMORY,
    NOISE,
    CorrelatedNoise,
    DemonstrationTask,
    demonstrate,
)
from vlmsafe.envs.api import Scenarios
from vlmsafe.errors import EnvironmentFailure, InputError
from vlmsafe.learners.policy import Policy
from vlmsafe.numerics.normaliser import Normaliser


def task(steps, seed=0, clone=None):
    return DemonstrationTask("steered", Scenarios(0, 1000), traffic=False, steps=steps, seed=(seed,), clone=clone)


def noises(env, found):
    """The noise of each step, by episode: actions in the environment's bounds are twice those of a policy."""
    executed = [np.array(actions) for actions in env.executed]
    answers = np.split(found.actions, np.cumsum([len(actions) for actions in executed])[:-1])
    return [actions / 2.0 - answer for actions, answer in zip(executed, answers, strict=True)]


@given(st.integers(0, 2**32 - 1))
def test_noise_is_executed_and_never_learned(seed):
    env = Steered()
    found = demonstrate(env, task(400, seed))
    assert found.observations.shape == found.actions.shape == (400, 2)
    np.testing.assert_allclose(found.actions, found.observations @ GAIN.T, atol=1e-6)
    assert max(np.abs(actions).max() for actions in env.executed) <= 2.0
    for noise in noises(env, found):
        assert np.abs(noise).max() < 1e-6 or np.abs(noise).max() > 1e-3


def test_states_are_marked_in_which_the_driver_brakes():
    found = demonstrate(Steered(), task(400))
    assert (found.brakes == (found.actions[:, 1] < BRAKES)).all()
    assert 0 < found.brakes.sum() < 400


def test_seven_of_ten_episodes_have_noise():
    env = Steered()
    found = demonstrate(env, task(200 * HORIZON))
    noisy = [np.abs(noise).max() > 1e-3 for noise in noises(env, found)]
    assert len(found.episodes) == len(noisy) == 200
    assert np.mean(noisy) == pytest.approx(0.7, abs=0.1)
    assert found.episodes[0] == {"return": float(HORIZON), "cost": 0.0, "length": HORIZON}


def test_noise_has_its_deviation_and_changes_slowly():
    noise = CorrelatedNoise(NOISE[0], 1, np.random.default_rng(0))
    values = np.array([noise.draw()[0] for _ in range(20_000)])[100:]
    assert values.std() == pytest.approx(NOISE[0], rel=0.1)
    assert np.corrcoef(values[1:], values[:-1])[0, 1] == pytest.approx(MEMORY, abs=0.02)


def test_half_of_the_episodes_end_soon_after_their_first_cost():
    env = Steered(costly=(5, 50))
    demonstrate(env, task(20_000))
    lengths = [len(actions) for actions in env.executed[:-1]]
    assert set(lengths) == {5 + AFTER_COST, HORIZON}
    assert lengths.count(HORIZON) / len(lengths) == pytest.approx(0.5, abs=0.12)


def test_the_clone_drives_and_the_scripted_driver_answers():
    weight, bias = np.array([[0.1, 0.0], [0.0, -0.1]], np.float32), np.array([0.2, 0.0], np.float32)
    policy, normaliser = Policy([(weight, bias)], np.zeros(2)), Normaliser(10.0, np.array([0.5, 0.0]), np.ones(2))
    env = Steered()
    found = demonstrate(env, task(250, clone=(policy, normaliser)))
    np.testing.assert_allclose(found.actions, found.observations @ GAIN.T, atol=1e-6)
    expected = np.array([policy.mean(normaliser.normalise(observation)) for observation in found.observations])
    np.testing.assert_allclose(np.concatenate(env.executed), 2.0 * expected, atol=1e-6)


@pytest.mark.parametrize("answer", [[3.0, -1.0], [1.0, -1.00001]])
def test_answers_in_the_environments_own_units_are_refused(answer):
    with pytest.raises(EnvironmentFailure, match=r"'steered': expert\(\) gave the action .* -1 to 1: .* own units"):
        demonstrate(Steered(answer=lambda state: np.array(answer)), task(10))


def test_answers_that_rounding_carried_beyond_the_bounds_are_cut():
    found = demonstrate(Steered(answer=lambda state: np.array([1.0 + 5e-7, -1.0 - 5e-7])), task(10))
    np.testing.assert_array_equal(found.actions, [[1.0, -1.0]] * 10)


def test_answers_beyond_the_bounds_stay_where_the_environment_does_not_clip():
    env = Steered(answer=lambda state: np.array([1.5, -3.0]))
    env.clips = False
    found = demonstrate(env, task(5 * HORIZON))
    np.testing.assert_array_equal(found.actions, [[1.5, -3.0]] * 5 * HORIZON)
    assert max(np.abs(actions).max() for actions in env.executed) > 5.0  # the environment's bounds are twice as wide


@pytest.mark.parametrize("answer", [[0.5], [0.5, np.nan], [[0.5, 0.5]], ["left", "right"]])
def test_an_answer_that_is_no_action_is_named(answer):
    with pytest.raises(EnvironmentFailure, match=r"expert\(\) gave the action .*; expected 2 finite numbers"):
        demonstrate(Steered(answer=lambda state: np.array(answer)), task(10))


def test_an_environment_without_a_scripted_driver_is_refused():
    env = Steered()
    env.expert = lambda: None
    with pytest.raises(InputError, match="'steered' has no scripted driver to clone; define expert"):
        demonstrate(env, task(10))
