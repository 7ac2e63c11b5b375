"""The hazard is a number from 0 to 1 that follows its definition, and every environment that is shipped has one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from vlmsafe.envs.api import Env
from vlmsafe.envs.hazard import gaps_to_box, hazard_of, outlines
from vlmsafe.envs.registry import ENVS
from vlmsafe.errors import EXIT_BAD_INPUT, InputError

GAPS = st.floats(-100.0, 1000.0)
SPEEDS = st.floats(-50.0, 50.0)
POSITIVE = st.floats(0.01, 100.0)
PLACES = st.floats(-8.0, 8.0)
HALVES = st.floats(0.1, 4.0)

# -- the function ------------------------------------------------------------------------------------------------


@given(GAPS, SPEEDS, POSITIVE, POSITIVE)
def test_hazard_is_from_zero_to_one_and_one_exactly_at_contact(gap, speed, reach, seconds):
    hazard = hazard_of(gap, speed, reach=reach, seconds=seconds)
    assert 0.0 <= hazard <= 1.0
    if gap <= 0.0:
        assert hazard == 1.0
    if gap >= 1e-6:
        assert hazard < 1.0


@given(GAPS, GAPS, SPEEDS, POSITIVE, POSITIVE)
def test_a_wider_gap_is_never_more_hazardous(gap, other, speed, reach, seconds):
    near, far = (hazard_of(g, speed, reach=reach, seconds=seconds) for g in sorted((gap, other)))
    assert near >= far


@given(GAPS, SPEEDS, SPEEDS, POSITIVE, POSITIVE)
def test_a_gap_that_closes_faster_is_never_less_hazardous(gap, speed, other, reach, seconds):
    slow, fast = (hazard_of(gap, s, reach=reach, seconds=seconds) for s in sorted((speed, other)))
    assert slow <= fast


def test_it_falls_and_rises_where_it_should_and_not_only_weakly():
    assert hazard_of(2.0, 3.0, reach=1.0, seconds=1.0) < hazard_of(1.0, 3.0, reach=1.0, seconds=1.0)
    assert hazard_of(2.0, 3.0, reach=1.0, seconds=1.0) < hazard_of(2.0, 4.0, reach=1.0, seconds=1.0)


@given(POSITIVE, POSITIVE, st.floats(0.0, 50.0))
def test_reach_and_seconds_are_where_it_is_one_over_e(reach, seconds, speed):
    assert hazard_of(reach, 0.0, reach=reach, seconds=seconds) == pytest.approx(1 / math.e)
    assert hazard_of(reach, -speed, reach=reach, seconds=seconds) == pytest.approx(1 / math.e), "parting is no safer"
    assert hazard_of(reach + speed * seconds, speed, reach=reach, seconds=seconds) == pytest.approx(1 / math.e)


# -- distances ---------------------------------------------------------------------------------------------------


def outside(point, half) -> float:
    """How far a point is outside a box."""
    return float(np.hypot(*(point - np.clip(point, -half, half))))


def search(start, end, half) -> float:
    """The least distance of a segment's points to a box, found by a general-purpose search: it is convex along it."""
    result = minimize_scalar(
        lambda t: outside(start + t * (end - start), half), bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-9}
    )
    return min(float(result.fun), outside(start, half), outside(end, half))


@settings(max_examples=300, deadline=None)
@given(st.tuples(PLACES, PLACES), st.tuples(PLACES, PLACES), st.tuples(HALVES, HALVES))
def test_the_gap_from_a_box_to_a_segment_agrees_with_a_search(start, end, half):
    start, end, half = map(np.array, (start, end, half))
    (gap,), (direction,) = gaps_to_box(start[None], end[None], half)
    assert gap == pytest.approx(search(start, end, half), abs=1e-5)
    if gap > 1e-6:
        assert np.hypot(*direction) == pytest.approx(1.0)
        (closer,), _ = gaps_to_box((start - gap / 2 * direction)[None], (end - gap / 2 * direction)[None], half)
        assert closer == pytest.approx(gap / 2, abs=1e-6), "the direction is the one along which the gap closes"


@pytest.mark.parametrize(
    ("start", "end", "gap"),
    [
        ((3.0, -9.0), (3.0, 9.0), 1.0),  # beside it
        ((-9.0, 0.2), (9.0, 0.3), 0.0),  # through it, both ends outside
        ((0.5, 0.5), (0.6, 0.4), 0.0),  # within it
        ((0.0, 4.0), (5.0, -1.0), math.sqrt(0.5)),  # off a corner
        ((5.0, 5.0), (5.0, 5.0), 5.0),  # a point
    ],
)
def test_gaps_from_the_box_of_half_length_two_and_half_width_one(start, end, gap):
    gaps, _ = gaps_to_box(np.array([start]), np.array([end]), np.array([2.0, 1.0]))
    assert gaps[0] == pytest.approx(gap)


def test_segments_are_measured_each_on_its_own():
    starts, ends = np.random.default_rng(0).uniform(-6, 6, (2, 50, 2))
    half = np.array([2.0, 1.0])
    together = gaps_to_box(starts, ends, half)
    for index in range(50):
        alone = gaps_to_box(starts[index : index + 1], ends[index : index + 1], half)
        assert (alone[0][0], *alone[1][0]) == (together[0][index], *together[1][index])


def test_the_outline_of_a_turned_box_gives_the_distance_between_two_boxes():
    """A square of side 2 that stands on its corner, 4 to the right of a box that ends at 2."""
    along, across = np.array([1.0, 1.0]) / math.sqrt(2), np.array([-1.0, 1.0]) / math.sqrt(2)
    starts, ends = outlines(np.array([[6.0, 0.0]]), along[None], across[None])
    np.testing.assert_allclose(sorted(starts[0, :, 0]), [6 - math.sqrt(2), 6, 6, 6 + math.sqrt(2)])
    np.testing.assert_allclose(np.hypot(*(ends - starts)[0].T), 2.0)
    gaps, directions = gaps_to_box(starts[0], ends[0], np.array([2.0, 1.0]))
    assert gaps.min() == pytest.approx(4 - math.sqrt(2))
    np.testing.assert_allclose(directions[gaps.argmin()], [1.0, 0.0], atol=1e-9)


# -- environments ------------------------------------------------------------------------------------------------


class Blind(Env):
    def frame(self):
        raise AssertionError


def test_an_environment_without_a_hazard_says_in_one_line_what_to_define():
    with pytest.raises(InputError, match=r"'Blind' has no hazard.* define hazard\(\) on it") as caught:
        Blind().hazard()
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_BAD_INPUT


@pytest.mark.parametrize("name", ENVS)
def test_every_environment_that_is_listed_defines_a_hazard(name):
    """As the error says; whether it means anything is the environment's own test."""
    if ENVS[name].package is not None:
        pytest.importorskip(ENVS[name].package)
    env = ENVS[name].make()
    assert type(env).hazard is not Env.hazard
    env.close()


@pytest.mark.parametrize("name", [name for name, spec in ENVS.items() if spec.package is None])
def test_asking_changes_nothing_and_stays_from_zero_to_one(name):
    told = []
    for asking in (False, True):
        env = ENVS[name].make()
        env.reset(seed=3)
        rng, steps = np.random.default_rng(3), []
        for _ in range(ENVS[name].horizon):
            action = rng.uniform(env.action_space.low, env.action_space.high)
            observation, reward, *_, info = env.step(action)
            steps.append((observation.tolist(), reward, info))
            if asking:
                assert 0.0 <= env.hazard() <= 1.0
                assert env.hazard() == env.hazard()
        told.append(steps)
    assert told[0] == told[1]
