"""What is true of a frame, from measures and the recorded future."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vlmsafe.embedded import grammar
from vlmsafe.embedded.facts import FACTS, FAR, MEASURES, SURE, above, soon, truths
from vlmsafe.envs import ENVS

EVENTS = arrays.arrays(np.bool_, st.integers(1, 60))


@given(EVENTS, st.floats(0.05, 1.0))
def test_an_event_is_the_truer_the_nearer_it_comes(event: np.ndarray, step_seconds: float) -> None:
    truth = soon(event, step_seconds, complete=True)
    for t in range(len(event)):
        later = np.flatnonzero(event[t:])
        wait = later[0] * step_seconds if len(later) else np.inf
        assert truth[t] == pytest.approx(min(max((FAR - wait) / (FAR - SURE), 0.0), 1.0))


@given(EVENTS, st.floats(0.05, 1.0))
def test_what_was_not_recorded_is_unknown_and_what_was_is_not(event: np.ndarray, step_seconds: float) -> None:
    cut, whole = (soon(event, step_seconds, complete=complete) for complete in (False, True))
    remaining = (len(event) - 1 - np.arange(len(event))) * step_seconds
    no_more = ~np.logical_or.accumulate(event[::-1])[::-1]
    assert np.array_equal(np.isnan(cut), no_more & (remaining < FAR))
    assert np.array_equal(cut[~np.isnan(cut)], whole[~np.isnan(cut)])


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


def test_every_fact_can_be_said() -> None:
    assert all(grammar.templates(fact) for fact in FACTS)


@pytest.mark.parametrize("name", ["braking", "speeding", "metadrive-easy"])
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
