"""The prompt bench says of every candidate what the tests of one signal say, and how far two are apart."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from vlmsafe.analysis.anticipation import anticipation, passes
from vlmsafe.analysis.auc import auc, auc_interval, draw_resamples
from vlmsafe.analysis.prompt_bench import Candidate, bench, difference
from vlmsafe.errors import InputError
from vlmsafe.signals.gate import Gate, ProbabilityGate
from vlmsafe.signals.rules import Scores


@pytest.fixture(scope="module")
def steps():
    """Twelve episodes of 120 steps, every second one scored, with a contact in most of them."""
    dice = np.random.default_rng(1)
    rows = []
    for episode in range(12):
        start = int(dice.integers(30, 100)) if episode % 4 else 999
        for step in range(1, 121):
            cost = 1.0 if start <= step < start + 6 else 0.0
            ahead = start - step if start >= step else 999
            rows.append((f"e{episode}", cost, step % 2 == 0, 1.0 / (1.0 + ahead)))
    return pl.DataFrame(rows, schema=["episode", "cost", "scored", "hazard"], orient="row")


def candidate(steps, name, weight, seed=0):
    """c_vlm is the hazard under noise, and r_vlm falls with it; the less weight, the less of it."""
    seen = steps.filter("scored")
    noise = np.random.default_rng(seed).normal(size=(2, len(seen)))
    level = 0.02 * seen["episode"].rle_id().to_numpy()  # differs between episodes, and warns of nothing
    negative = 0.5 + 0.1 * (weight * seen["hazard"].to_numpy() + 0.1 * noise[0] + level)
    positive = 0.5 - 0.02 * (weight * seen["hazard"].to_numpy() + 0.1 * noise[1])
    similarities = np.stack([positive, negative], axis=1)
    prompts = (("positive", "safe"), ("negative", "danger"))
    return Candidate(name, positive, negative, positive - negative, prompts, similarities)


def spread(steps, values):
    whole = np.full(len(steps), np.nan)
    whole[steps["scored"].to_numpy()] = values
    return whole


def test_aucs_are_those_of_the_tests_of_one_signal(steps):
    one = candidate(steps, "one", 1.0)
    table = bench(steps, [one, candidate(steps, "two", 0.2, 1)], resamples=300, seed=3).aucs
    seen = steps.filter("scored")
    alone = anticipation({"negative": spread(steps, one.negative)}, steps["cost"] > 0, steps["episode"],
                         scored=steps["scored"], resamples=300, seed=3)  # fmt: skip
    own = table.filter(candidate="one", signal="c_vlm")
    for horizon in (5, 10, 20, 40):
        row, wanted = (
            own.filter(horizon=horizon).row(0, named=True),
            alone.filter(signal="negative", form="standardised", horizon=horizon).row(0, named=True),
        )
        assert {key: row[key] for key in ("auc", "low", "high", "positives")} == {
            key: wanted[key] for key in ("auc", "low", "high", "positives")
        }
        assert row["passes"] == passes(alone)
    contact = own.filter(pl.col("horizon").is_null()).row(0, named=True)
    wanted = auc_interval(one.negative, seen["cost"] > 0, seen["episode"], resamples=300, seed=3)
    assert (contact["auc"], contact["low"], contact["high"]) == (wanted.auc, wanted.low, wanted.high)
    control = table.filter(candidate="step", horizon=20).row(0, named=True)
    assert control["auc"] == alone.filter(signal="step", form="standardised", horizon=20)["auc"].item()


def test_signals_are_turned_towards_danger(steps):
    table = bench(steps, [candidate(steps, "one", 1.0)], resamples=50).aucs
    by = {row["signal"]: row["auc"] for row in table.filter(candidate="one", horizon=20).iter_rows(named=True)}
    assert min(by.values()) > 0.7
    assert set(by) == {"c_vlm", "-r_vlm", "-margin"}
    assert table.filter(candidate="hazard", horizon=20)["auc"].item() > 0.9


def test_a_signal_that_knows_meets_the_criterion_and_noise_does_not(steps):
    table = bench(steps, [candidate(steps, "knows", 1.0), candidate(steps, "noise", 0.0)], resamples=300).aucs
    met = dict(table.filter(signal="c_vlm").select("candidate", "passes").unique().iter_rows())
    assert met == {"knows": True, "noise": False}


def test_difference_is_that_of_the_aucs_and_its_interval_that_of_their_resamples(steps):
    first, other = candidate(steps, "first", 0.2), candidate(steps, "other", 1.0, 5)
    result = bench(
        steps, [first, other, Candidate("same", first.positive, first.negative, first.margin)], resamples=200
    )
    for horizon in (None, 20):
        by = {
            row["candidate"]: row["auc"]
            for row in result.aucs.filter(pl.col("horizon").eq_missing(horizon), signal="c_vlm").iter_rows(named=True)
        }
        row = result.differences.filter(pl.col("horizon").eq_missing(horizon), candidate="other", signal="c_vlm")
        assert row["difference"].item() == pytest.approx(by["other"] - by["first"], abs=1e-12)
        same = result.differences.filter(pl.col("horizon").eq_missing(horizon), candidate="same", signal="c_vlm")
        assert same.select("difference", "low", "high").row(0) == (0.0, 0.0, 0.0)
    # Resample by resample, with whole episodes repeated.
    seen = steps.filter("scored")
    labels = (seen["cost"] > 0).to_numpy()
    names, numbers = np.unique(seen["episode"].to_numpy(), return_inverse=True)
    drawn = draw_resamples(len(names), 200, 0)
    differences = []
    for weights in drawn.astype(int):
        rows = np.concatenate([np.flatnonzero(numbers == i) for i, weight in enumerate(weights) for _ in range(weight)])
        pair = [auc(values[rows], labels[rows]) for values in (other.negative, first.negative)]
        if None not in pair:
            differences.append(pair[0] - pair[1])
    found = difference(other.negative, first.negative, labels, numbers, drawn)
    np.testing.assert_allclose(found[1:], np.quantile(differences, [0.025, 0.975]), atol=1e-12)


def test_margins_say_where_they_lie_and_what_the_gate_makes_of_them(steps):
    one = candidate(steps, "one", 1.0)
    row = bench(steps, [one], resamples=20).margins.row(0, named=True)
    touched = (steps.filter("scored")["cost"] > 0).to_numpy()
    assert row["frames"] == len(one.margin) == 720
    assert row["margin_median"] == pytest.approx(np.median(one.margin))
    assert row["contact_margin"] == pytest.approx(np.median(one.margin[touched]))
    assert row["free_margin"] == pytest.approx(np.median(one.margin[~touched]))
    assert row["kappa_median"] == pytest.approx(np.median(Gate().kappa(one.margin)))
    assert 0.0 < row["c_vlm_within"] <= row["c_vlm_std"]


def test_each_prompt_is_judged_by_itself(steps):
    one = candidate(steps, "one", 1.0)
    result = bench(steps, [one], resamples=20)
    safe, danger = result.prompts.iter_rows(named=True)
    assert (safe["prompt"], danger["prompt"]) == ("safe", "danger")
    touched = steps.filter("scored")["cost"] > 0
    assert danger["contact_auc"] == pytest.approx(auc(one.negative, touched))
    assert safe["contact_auc"] == pytest.approx(1.0 - auc(one.positive, touched))
    # The only negative prompt is c_vlm, in another unit.
    group = result.aucs.filter(candidate="one", signal="c_vlm", horizon=20).row(0, named=True)
    assert [danger[f"ahead_{name}"] for name in ("auc", "low", "high")] == [
        group[name] for name in ("auc", "low", "high")
    ]


def test_episodes_without_contact_give_no_auc_and_no_difference(steps):
    calm = steps.with_columns(cost=pl.lit(0.0))
    result = bench(calm, [candidate(steps, "one", 1.0), candidate(steps, "two", 0.5)], resamples=20)
    assert result.onsets == result.contacts == 0
    assert result.aucs["auc"].null_count() == len(result.aucs)
    assert result.differences["difference"].null_count() == len(result.differences)
    assert not result.aucs.filter(signal="c_vlm")["passes"].any()


def test_onsets_are_counted_episode_by_episode():
    steps = pl.DataFrame(
        {"episode": [0, 0, 0, 1, 1, 1], "cost": [0.0, 1.0, 1.0, 1.0, 0.0, 2.0], "scored": [True] * 6},
    )
    values = np.linspace(0.1, 0.6, 6)
    result = bench(steps, [Candidate("one", values, values, values)], resamples=10)
    assert (result.onsets, result.contacts, result.episodes) == (3, 4, 2)


def test_candidates_that_do_not_fit_the_steps_are_refused(steps):
    one = candidate(steps, "one", 1.0)
    with pytest.raises(InputError, match="different names, other than hazard and step; got: one, one"):
        bench(steps, [one, one])
    with pytest.raises(InputError, match="different names, other than hazard and step; got: hazard"):
        bench(steps, [candidate(steps, "hazard", 1.0)])
    short = Candidate("short", one.positive[1:], one.negative[1:], one.margin[1:])
    with pytest.raises(InputError, match=r"'short' has positive of shape \(719,\); .* each of the 720 scored steps"):
        bench(steps, [short])
    with pytest.raises(InputError, match="no step of the trace was scored"):
        bench(steps.with_columns(scored=pl.lit(False)), [one])


def test_a_gate_counts_as_open_above_nine_tenths(steps):
    one = candidate(steps, "one", 1.0)
    margin = np.linspace(-0.04, 0.04, len(one.margin))
    kappa = Gate().kappa(margin)
    row = bench(steps, [Candidate("one", one.positive, one.negative, margin)], resamples=20).margins.row(0, named=True)
    between = ((kappa > 0.88) & (kappa <= 0.9)).sum(), ((kappa > 0.9) & (kappa < 0.92)).sum()
    assert min(between) > 0  # another threshold would count others
    assert row["kappa_open"] == pytest.approx((kappa > 0.9).mean())


def test_a_warning_that_rests_on_one_episode_is_too_few_contacts(steps):
    touched = steps.filter(pl.col("cost") > 0)["episode"][0]
    lonely = steps.with_columns(cost=pl.when(pl.col("episode") == touched).then("cost").otherwise(0.0))
    hazard = steps["hazard"] * (steps["episode"] == touched)
    one = candidate(lonely.with_columns(hazard=hazard), "one", 5.0)
    own = bench(lonely, [one, candidate(lonely, "noise", 0.0)], resamples=300).aucs.filter(signal="c_vlm", horizon=20)
    assert dict(own.select("candidate", "criterion").iter_rows()) == {"one": "too few contacts", "noise": "not met"}
    assert not own["passes"].any()


def test_a_seed_below_zero_is_refused(steps):
    with pytest.raises(InputError, match="the seed of the resamples is -1; it must be at least 0"):
        bench(steps, [candidate(steps, "one", 1.0)], resamples=5, seed=-1)


def test_kappa_is_that_of_the_gate_that_a_run_with_the_scorer_would_have(steps):
    one = candidate(steps, "one", 1.0)
    gates = {"prior-symmetric": Gate(), "calibrated": Gate.calibrated(one.margin), "probability": ProbabilityGate()}
    candidates = [replace(one, name=name, gate=name) for name in gates]
    recorded = np.linspace(0.0, 1.0, len(one.margin))
    candidates.append(replace(one, name="as recorded", gate="platt", recorded_kappa=recorded))
    flat = replace(one, name="flat", gate="calibrated", margin=np.full_like(one.margin, 0.02))
    rows = bench(steps, [*candidates, flat], resamples=20).margins.rows_by_key("candidate", named=True, unique=True)
    scores = Scores(one.positive, one.negative, one.margin)
    for name, gate in gates.items():
        assert rows[name]["gate"] == name
        assert rows[name]["kappa_median"] == pytest.approx(np.median(gate(scores)))
    assert (rows["as recorded"]["gate"], rows["as recorded"]["kappa_median"]) == ("platt", pytest.approx(0.5))
    assert (rows["flat"]["kappa_median"], rows["flat"]["kappa_open"]) == (None, None), "it cannot be calibrated"
