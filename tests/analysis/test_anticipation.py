"""The test of anticipation classifies the steps it says, and passes only what warns."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.analysis.anticipation import (
    FORMS,
    HORIZONS,
    SCHEMA,
    anticipation,
    passes,
    standardise,
    steps_to_contact,
    verdict,
)
from vlmsafe.analysis.auc import auc
from vlmsafe.errors import InputError


@st.composite
def episodes_with_contacts(draw):
    lengths = draw(st.lists(st.integers(1, 15), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    return numbers, rng.random(len(numbers)) < draw(st.sampled_from([0.0, 0.15, 0.6])), rng


@given(episodes_with_contacts(), st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_step_is_positive_if_a_contact_follows_within_k_steps_of_its_episode(case, horizon):
    numbers, contact, _ = case
    expected = []
    for t in range(len(contact)):
        window = [u for u in range(t + 1, t + horizon + 1) if u < len(contact) and numbers[u] == numbers[t]]
        expected.append(any(contact[u] for u in window))
    assert (steps_to_contact(contact, numbers) <= horizon).tolist() == expected


@given(episodes_with_contacts())
@settings(max_examples=100, deadline=None)
def test_standardised_episodes_have_mean_zero_and_population_deviation_one(case):
    numbers, _, rng = case
    values = rng.normal(5.0, 2.0, len(numbers))
    values[numbers == 0] = 0.1
    shown = standardise(values, numbers)
    for number in range(numbers.max() + 1):
        own, given_values = shown[numbers == number], values[numbers == number]
        if np.ptp(given_values) == 0.0:
            assert (own == 0.0).all()
        else:
            np.testing.assert_allclose(own, (given_values - given_values.mean()) / given_values.std(), atol=1e-9)


def test_constant_episode_is_zero_although_its_mean_is_rounded():
    assert (standardise(np.full(7, 0.1), np.zeros(7, np.int64)) == 0.0).all()


@given(episodes_with_contacts(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_table_holds_the_auc_of_classified_steps_for_every_signal_form_and_horizon(case, partly):
    numbers, contact, rng = case
    values = rng.integers(0, 5, len(numbers)).astype(float)
    scored = rng.random(len(numbers)) < 0.7 if partly else None
    known = np.ones(len(numbers), bool) if scored is None else scored
    table = anticipation({"score": values}, contact, numbers, scored=scored, resamples=10)
    assert table.schema == pl.Schema(SCHEMA)
    assert table.select("signal", "form", "horizon").rows() == [
        (signal, form, horizon) for signal in ("score", "step") for form in FORMS for horizon in HORIZONS
    ]
    first = np.searchsorted(numbers, numbers)
    shown = {"score": values, "step": np.arange(len(numbers)) - first + 1.0}
    distance, chosen = steps_to_contact(contact, numbers), known & ~contact
    for row in table.iter_rows(named=True):
        raw = shown[row["signal"]]
        form = raw.astype(float)
        if row["form"] != "raw":
            over = chosen if row["form"] == "standardised" else known
            form[over] = standardise(raw[over], numbers[over])
        positive = distance[chosen] <= row["horizon"]
        assert row["auc"] == auc(form[chosen], positive)
        assert (row["positives"], row["negatives"]) == (positive.sum(), (~positive).sum())
        assert row["episodes"] == numbers.max() + 1


def rollouts(warning, late=False, episodes=40, length=120, seed=0):
    """Episodes with two contacts, and a signal that rises by `warning` deviations in the 20 steps before each."""
    rng = np.random.default_rng(seed)
    contact = np.zeros((episodes, length), bool)
    signal = rng.normal(size=(episodes, length)) + 3.0 * rng.normal(size=(episodes, 1))
    for episode in range(episodes):
        for hit in rng.choice(np.arange(90 if late else 25, length), 2, replace=False):
            contact[episode, hit] = True
            signal[episode, hit - 20 : hit] += warning
    return signal.ravel(), contact.ravel(), np.repeat(np.arange(episodes), length)


def table_of(*args, **kwargs):
    signal, contact, numbers = rollouts(*args, **kwargs)
    return anticipation({"negative": signal, "reversed": -signal}, contact, numbers, resamples=300)


def test_signal_that_rises_before_contact_passes_and_its_reverse_does_not():
    table = table_of(1.5)
    assert passes(table)
    assert not passes(table, "reversed")


def test_signal_that_means_nothing_fails():
    assert not passes(table_of(0.0))


def seen_in_contact(warning, rise, episodes=200, length=100, lasting=25, seed=0):
    """Half of the episodes have a contact of many steps, with a rise in it and a warning in the 20 steps before it."""
    rng = np.random.default_rng(seed)
    signal, contact = rng.normal(size=(episodes, length)), np.zeros((episodes, length), bool)
    for episode in range(0, episodes, 2):
        begin = rng.integers(25, length - lasting)
        contact[episode, begin : begin + lasting] = True
        signal[episode, begin : begin + lasting] += rise
        signal[episode, begin - 20 : begin] += warning
    return signal.ravel(), contact.ravel(), np.repeat(np.arange(episodes), length)


def at_20(signal, contact, numbers):
    table = anticipation({"negative": signal}, contact, numbers, resamples=100)
    return dict(table.filter(signal="negative", horizon=20).select("form", "auc").iter_rows()), table


def test_what_a_signal_does_in_contact_does_not_change_whether_it_warns():
    quiet, _ = at_20(*seen_in_contact(0.0, rise=0.0))
    loud, table = at_20(*seen_in_contact(0.0, rise=3.0))
    assert loud["standardised"] == quiet["standardised"] == pytest.approx(0.5, abs=0.03)
    assert loud["as published"] < 0.4  # contact pulls down the steps before it
    assert not passes(table)


def test_a_signal_that_warns_passes_although_it_is_higher_in_contact():
    found, table = at_20(*seen_in_contact(1.5, rise=3.0))
    assert found["standardised"] > 0.75
    assert found["as published"] < found["standardised"] - 0.1
    assert passes(table)


def test_signal_seen_only_in_contact_is_no_warning():
    _, contact, numbers = rollouts(0.0)
    assert not passes(anticipation({"negative": contact.astype(float)}, contact, numbers, resamples=100))


def test_drift_with_time_fails_against_the_step_index():
    """Contacts come late; a signal that only grows, and noisily, looks like a warning and is none."""
    _, contact, numbers = rollouts(0.0, late=True)
    drift = np.tile(np.arange(120.0), 40) + np.random.default_rng(1).normal(0.0, 30.0, 4800)
    table = anticipation({"negative": drift}, contact, numbers, resamples=100)
    at_20 = table.filter(pl.col("form") == "standardised", pl.col("horizon") == 20)
    own, control = at_20["auc"].to_list()
    assert 0.6 <= own < control
    assert not passes(table)


@pytest.mark.parametrize(
    ("auc_low_control", "met"),
    [
        ((0.60, 0.51, 0.55), True),
        ((0.59, 0.55, 0.50), False),
        ((0.70, 0.50, 0.55), False),
        ((0.70, 0.60, 0.70), False),
        ((None, None, None), False),
    ],
)
def test_criterion_needs_all_three_at_one_horizon(auc_low_control, met):
    own, low, control = auc_low_control
    rest = {"positives": 1, "negatives": 1, "episodes": 1, "left_out": 0, "high": 0.9, "resamples": 20}
    rows = []
    for horizon, (point, floor, step) in {10: (0.9, 0.8, 0.5), 20: (0.5, 0.4, 0.5), 40: (own, low, control)}.items():
        for signal, value in (("negative", point), ("step", step)):
            common = {"signal": signal, "horizon": horizon, **rest}
            rows.append({**common, "form": "standardised", "auc": value, "low": floor})
            rows.append({**common, "form": "raw", "auc": 0.99, "low": 0.98})
    assert passes(pl.DataFrame(rows, schema=SCHEMA)) is met


@pytest.mark.parametrize(("with_contact", "said"), [(1, "too few contacts"), (2, "too few contacts"), (6, "met")])
def test_a_perfect_warning_in_one_episode_of_many_does_not_meet_the_criterion(with_contact, said):
    episodes = np.repeat(np.arange(12), 100)
    at = np.tile(np.arange(100), 12)
    contact = (at == 50) & (episodes < with_contact)
    warning = ((at >= 30) & (at < 50) & (episodes < with_contact)).astype(float)
    table = anticipation({"negative": warning}, contact, episodes, resamples=400)
    assert table.filter(signal="negative", form="standardised", horizon=20)["auc"].item() == 1.0
    assert verdict(table) == said
    assert passes(table) is (said == "met")


def test_table_without_contacts_has_counts_and_no_auc():
    table = anticipation({"negative": np.arange(6.0)}, np.zeros(6, bool), np.repeat([0, 1], 3), resamples=20)
    assert table["auc"].null_count() == table["low"].null_count() == len(table)
    assert set(table["left_out"]) == {20}
    assert not passes(table)


def test_bad_input_is_named():
    contact, numbers, values = np.zeros(4, bool), np.array([0, 0, 1, 1]), np.arange(4.0)
    with pytest.raises(InputError, match="in one piece"):
        anticipation({"a": values}, contact, [0, 1, 0, 1])
    with pytest.raises(InputError, match="signal 'a' has the shape"):
        anticipation({"a": values[:3]}, contact, numbers)
    with pytest.raises(InputError, match="signal 'a' is not finite"):
        anticipation({"a": np.where(values == 2.0, np.nan, values)}, contact, numbers)
    with pytest.raises(InputError, match="another name"):
        anticipation({"step": values}, contact, numbers)
    with pytest.raises(InputError, match="contact is float64"):
        anticipation({"a": values}, values, numbers)
    with pytest.raises(InputError, match="horizon is 0"):
        anticipation({"a": values}, contact, numbers, horizons=(0,))
    with pytest.raises(InputError, match="lacks 'negative' or the control at K = 20 and 40"):
        passes(anticipation({"a": values}, contact, numbers, resamples=5))
