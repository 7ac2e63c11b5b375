"""What is true of a frame, from measures and the recorded future."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vlmsafe.distillation import grammar
from vlmsafe.distillation.facts import FACTS, MEASURES, about, above, soon, truths
from vlmsafe.envs.registry import ENVS

EVENTS = arrays.arrays(np.bool_, st.integers(1, 60))


@given(EVENTS, st.floats(0.05, 1.0))
def test_an_event_is_the_truer_the_nearer_it_comes(event: np.ndarray, step_seconds: float) -> None:
    truth = soon(event, step_seconds, complete=True)
    for t in range(len(event)):
        later = np.flatnonzero(event[t:])
        wait = later[0] if len(later) else np.inf
        sure, far = about(step_seconds)
        assert truth[t] == pytest.approx(min(max((far - wait) / (far - sure), 0.0), 1.0))


@given(EVENTS, st.floats(0.05, 1.0))
def test_what_was_not_recorded_is_unknown_and_what_was_is_not(event: np.ndarray, step_seconds: float) -> None:
    cut, whole = (soon(event, step_seconds, complete=complete) for complete in (False, True))
    remaining = len(event) - 1 - np.arange(len(event))
    no_more = ~np.logical_or.accumulate(event[::-1])[::-1]
    assert np.array_equal(np.isnan(cut), no_more & (remaining < about(step_seconds)[1]))
    assert np.array_equal(cut[~np.isnan(cut)], whole[~np.isnan(cut)])


def test_about_to_is_at_most_two_seconds_and_twenty_steps() -> None:
    assert about(0.1) == (20, 40)
    assert about(1 / 60) == (20, 40), "short steps: the horizon of the test of anticipation"
    assert about(0.5) == (4.0, 8.0), "long steps: seconds"


def test_between_two_thresholds_nothing_is_said_in_either_direction() -> None:
    values = np.array([0.0, 1.0, 2.0, np.nan])
    assert np.array_equal(above(values, false=0.5, true=1.5), [0.0, np.nan, 1.0, np.nan], equal_nan=True)
    assert np.array_equal(above(values, false=1.5, true=0.5), [1.0, np.nan, 0.0, np.nan], equal_nan=True)


def test_measures_that_an_environment_does_not_give_leave_their_facts_unknown() -> None:
    known = truths({"hazard": np.array([0.2, 0.9])}, np.zeros(2), 0.1, complete=True)
    assert known["danger"].tolist() == pytest.approx([0.2, 0.9])
    assert known["safe"].tolist() == pytest.approx([0.8, 0.1])
    assert all(np.isnan(known[name]).all() for name in ("touching", "hit_soon", "centred", "near_vehicle", "progress"))


def test_a_contact_is_danger_before_and_while_it_lasts_and_says_which_kind() -> None:
    off = np.array([0.0] * 60 + [1.0] * 5)
    quiet = {name: np.zeros(65) for name in ("hit", "edge_hazard", "vehicle_hazard")}
    known = truths({**quiet, "off_road": off}, off, 0.1, complete=True)
    assert known["danger"][60:].min() == known["leave_soon"][45] == known["off_road"][60] == 1.0
    assert 0.0 < known["leave_soon"][25] < known["leave_soon"][35] < 1.0
    assert known["leave_soon"][:20].max() == known["hit_soon"].max() == known["touching"].max() == 0.0
    assert known["leave_soon"][60:].max() == 0.0, "it is not about to happen, it happens"


def test_a_low_hazard_says_nothing_where_the_future_was_not_recorded() -> None:
    held = {name: np.zeros(60) for name in ("hit", "off_road", "vehicle_hazard")}
    hazard = np.where(np.arange(60) == 58, 0.8, 0.1)
    known = truths({**held, "edge_hazard": hazard}, np.zeros(60), 0.1, complete=False)
    for name in ("danger", "safe", "leave_soon", "hit_soon"):
        assert np.isnan(known[name][[25, 40, 57, 59]]).all(), name
        assert not np.isnan(known[name][:19]).any(), name
    assert known["danger"][58] == known["leave_soon"][58] == 0.8


def test_geometry_counts_where_it_sees_more_than_the_future_showed() -> None:
    held = {name: np.zeros(3) for name in ("hit", "off_road", "vehicle_hazard")}
    known = truths({**held, "edge_hazard": np.array([0.1, 0.6, 0.1])}, np.zeros(3), 0.1, complete=True)
    assert known["leave_soon"].tolist() == known["danger"].tolist() == pytest.approx([0.1, 0.6, 0.1])


METADRIVE = ("hit", "off_road", "pace", "lane_offset", "heading_error", "edge_gap", "vehicle_gap", "ahead_gap",
             "closing_speed", "edge_hazard", "vehicle_hazard")  # fmt: skip
FORMULA_ONE = ("hit", "off_road", "pace", "lane_offset", "heading_error", "edge_gap", "object_gap", "ahead_clear",
               "edge_hazard", "vehicle_hazard")  # fmt: skip
BULLET = ("hit", "zone", "pace", "vehicle_hazard", "zone_hazard", "object_gap", "zone_gap", "ahead_clear",
          "goal_gap", "goal_angle", "goal_speed")  # fmt: skip
OF_VEHICLES = {"near_vehicle", "spaced", "vehicle_ahead", "closing"}
OF_LANES = {"off_road", "leave_soon", "centred", "off_centre", "aligned", "misaligned", "wrong_way", "lane_keeping"}
OF_ZONES = {"in_zone", "zone_soon", "near_zone"}
OF_GOALS = {"to_goal", "away_from_goal", "near_goal"}
OF_OBJECTS = {"near_object", "open_space", "blocked_ahead"}


@pytest.mark.parametrize(
    ("measures", "unknown"),
    [
        (METADRIVE, OF_ZONES | OF_GOALS | OF_OBJECTS),
        (FORMULA_ONE, OF_ZONES | OF_GOALS | OF_VEHICLES),
        (BULLET, OF_VEHICLES | OF_LANES),
        (("hazard", "pace", "bump_gap"), set(FACTS) - {"danger", "safe", "stopped", "slow", "fast"}),
    ],
)
def test_a_world_has_the_facts_that_its_measures_tell_and_no_others(
    measures: tuple[str, ...], unknown: set[str]
) -> None:
    known = truths({name: np.array([0.0, 3.0]) for name in measures}, np.zeros(2), 0.1, complete=True)
    assert {name for name, truth in known.items() if np.isnan(truth).all()} == unknown


@given(EVENTS, EVENTS, arrays.arrays(np.float64, 60, elements=st.floats(0.0, 1.0)), st.booleans())
def test_where_every_contact_costs_danger_is_told_from_cost_and_hazard_alone(
    hit: np.ndarray, off: np.ndarray, hazard: np.ndarray, complete: bool
) -> None:
    length = min(len(hit), len(off))
    hit, off, hazard = hit[:length].astype(float), off[:length].astype(float), hazard[:length]
    measures = {"hit": hit, "off_road": off, "vehicle_hazard": hazard, "edge_hazard": np.zeros(length)}
    cost = np.maximum(hit, off)
    full, bare = (truths(known, cost, 0.3, complete)["danger"] for known in (measures, {"hazard": hazard}))
    np.testing.assert_array_equal(full, bare)


def test_a_contact_is_danger_where_it_costs_nothing() -> None:
    held = {"hit": np.array([0.0] * 60 + [1.0]), "vehicle_hazard": np.zeros(61)}
    known = truths(held, np.zeros(61), 0.1, complete=True)
    assert known["danger"][[10, 45, 60]].tolist() == [0.0, 1.0, 1.0]


def test_a_zone_is_danger_before_and_while_one_is_in_it_and_is_touching_but_no_hit() -> None:
    zone = np.array([0.0] * 60 + [1.0] * 5)
    known = truths({"hit": np.zeros(65), "zone": zone, "zone_hazard": np.zeros(65)}, zone, 0.1, complete=True)
    assert (
        known["danger"][60:].min() == known["zone_soon"][45] == known["in_zone"][60] == known["touching_any"][60] == 1.0
    )
    assert known["zone_soon"][60:].max() == known["touching"].max() == known["hit_soon"].max() == 0.0
    near = truths({"zone": np.zeros(2), "zone_hazard": np.array([0.1, 0.7])}, np.zeros(2), 0.1, complete=True)
    assert near["danger"].tolist() == near["zone_soon"].tolist() == [0.1, 0.7]


def _at(**measures: float) -> dict[str, float]:
    """The facts of a single step of an episode that ends there."""
    known = truths({name: np.array([value]) for name, value in measures.items()}, np.zeros(1), 0.1, complete=True)
    return {name: float(truth[0]) for name, truth in known.items()}


def test_open_space_is_far_from_objects_and_zones_alike_and_from_whatever_is_touched() -> None:
    assert _at(object_gap=3.0, zone_gap=3.0)["open_space"] == _at(object_gap=3.0)["open_space"] == 1.0
    assert _at(object_gap=3.0, zone_gap=0.5)["open_space"] == _at(object_gap=0.5, zone_gap=3.0)["open_space"] == 0.0
    assert _at(object_gap=3.0, off_road=1.0)["open_space"] == 0.0
    assert np.isnan(_at(object_gap=1.5, zone_gap=3.0)["open_space"])
    assert _at(object_gap=0.5, zone_gap=3.0)["near_object"] == _at(object_gap=3.0, zone_gap=0.5)["near_zone"] == 1.0


def test_clear_ahead_is_told_in_car_lengths_where_there_are_any_and_never_in_danger() -> None:
    assert _at(ahead_clear=5.0, ahead_gap=1.0, hazard=0.0)["clear_ahead"] == 1.0
    assert _at(ahead_clear=1.0, ahead_gap=50.0, hazard=0.0)["clear_ahead"] == 0.0
    assert _at(ahead_gap=50.0, hazard=0.0)["clear_ahead"] == 1.0
    assert _at(ahead_clear=5.0, hazard=0.9)["clear_ahead"] == pytest.approx(0.1)
    assert [_at(ahead_clear=gap)["blocked_ahead"] for gap in (1.0, 5.0)] == [1.0, 0.0]


def test_progress_is_towards_the_goal_and_along_the_track() -> None:
    moving = {"pace": 0.8, "hit": 0.0}
    assert _at(**moving)["progress"] == _at(**moving, goal_speed=0.5)["progress"] == 1.0
    assert _at(**moving, goal_speed=-0.1)["progress"] == _at(**moving, heading_error=3.0)["progress"] == 0.0
    assert _at(pace=0.8, hit=0.0, zone=1.0)["progress"] == _at(pace=0.0, hit=0.0, goal_speed=0.5)["progress"] == 0.0
    assert np.isnan(_at(**moving, goal_speed=0.1)["progress"])


def test_going_to_the_goal_takes_both_the_direction_and_the_speed() -> None:
    assert _at(goal_angle=0.1, goal_speed=0.5)["to_goal"] == _at(goal_angle=-0.1, goal_speed=0.5)["to_goal"] == 1.0
    assert _at(goal_angle=1.0, goal_speed=0.5)["to_goal"] == _at(goal_angle=0.1, goal_speed=0.0)["to_goal"] == 0.0
    assert [_at(goal_speed=speed)["away_from_goal"] for speed in (-0.3, 0.2)] == [1.0, 0.0]
    assert [_at(goal_gap=gap)["near_goal"] for gap in (1.0, 5.0)] == [1.0, 0.0]


def test_astray_is_standing_still_or_going_wrong_by_the_goal_or_else_by_the_lane() -> None:
    assert _at(pace=0.0, goal_speed=0.0)["astray"] == _at(pace=1.0, goal_speed=-0.5)["astray"] == 1.0
    assert _at(pace=0.1, goal_speed=-0.5)["astray"] == _at(pace=0.0, goal_speed=-0.1)["astray"] == 1.0, "one suffices"
    assert _at(pace=1.0, goal_speed=0.5)["astray"] == _at(pace=1.0, heading_error=0.1)["astray"] == 0.0
    assert _at(pace=1.0, heading_error=3.0)["astray"] == _at(pace=0.0, heading_error=0.1)["astray"] == 1.0
    assert np.isnan(_at(pace=1.0, goal_speed=-0.1)["astray"])
    assert np.isnan(_at(pace=0.0)["astray"]), "nobody knows where it should go"


def test_every_fact_can_be_said() -> None:
    assert all(grammar.templates(fact) for fact in FACTS)


@pytest.mark.parametrize(
    "name", ["braking", "speeding", "metadrive-easy", "formula-one-l0", "formula-one-l2", "bullet-car-reach"]
)
def test_environments_give_known_measures(name: str) -> None:
    if ENVS[name].package is not None:
        pytest.importorskip(ENVS[name].package)
    env = ENVS[name].make()
    env.reset(seed=0)
    env.step(env.action_space.sample())
    facts = env.facts()
    env.close()
    assert facts
    assert set(facts) <= set(MEASURES)
    assert all(np.isfinite(value) for value in facts.values())
