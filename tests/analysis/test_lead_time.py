"""The lead-time tables hold what the test of anticipation gives, counted as published."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from traces import made_up, two_arms

from vlmsafe import train
from vlmsafe.analysis.anticipation import FORMS, HORIZONS, anticipation
from vlmsafe.analysis.lead_time import (
    LAGS,
    SCHEMA,
    SIGNALS,
    auc_ranges,
    count_aucs,
    lead_lag,
    lead_lag_profile,
    lead_time,
    score_variability,
    variability,
    verdicts,
)
from vlmsafe.analysis.tables import stacked
from vlmsafe.errors import InputError
from vlmsafe.evaluation.trace.record import trace
from vlmsafe.paper.published import published
from vlmsafe.signals.gate import Gate
from vlmsafe.signals.scorers.make import make_scorer

FEW = {"resamples": 20}


def test_every_arm_has_its_pooled_rows_and_those_of_each_run():
    table = lead_time(two_arms(runs=3), **FEW)
    assert table.schema == pl.Schema(SCHEMA)
    cells = (len(SIGNALS) + 1) * len(FORMS) * len(HORIZONS)
    sizes = table.group_by("arm", "run", maintain_order=True).len()
    assert sizes["run"].to_list() == [None, "seed-0", "seed-1", "seed-2"] * 2
    assert set(sizes["len"]) == {cells}
    episodes = table.group_by("arm", "run", maintain_order=True).agg(pl.col("episodes").first())["episodes"]
    assert episodes.to_list() == [12, 4, 4, 4] * 2


@pytest.mark.parametrize("gate", [Gate(), Gate(40.0, 0.01)])
def test_rows_are_those_of_the_test_of_anticipation_with_episodes_kept_apart(gate):
    steps = two_arms(scored=0.6)
    table = lead_time(steps, gate=gate, **FEW)
    own = steps.filter(arm="shaped")
    numbers = own.select(pl.struct("run", "episode").rank("dense")).to_series().to_numpy()
    margin = own["margin"].fill_null(0.0).to_numpy()
    signals = {"kappa": gate.kappa(margin)} | {name: own[name].fill_null(0.0) for name in SIGNALS[1:]}
    expected = anticipation(signals, own["cost"].to_numpy() > 0, numbers, scored=own["scored"], **FEW)
    pooled = table.filter(pl.col("run").is_null(), arm="shaped").drop("arm", "run")
    assert pooled.equals(expected)


def test_single_run_of_an_arm_is_its_pool():
    steps = two_arms(runs=1)
    table = lead_time(steps, **FEW)
    pooled, alone = (table.filter(pl.col("run").is_null() == flag).drop("run") for flag in (True, False))
    assert pooled.equals(alone)
    again = lead_time(stacked({"x": {"a": steps.filter(arm="plain").drop("arm", "run")}}), **FEW)
    assert again.filter(run="a").drop("arm", "run").equals(alone.filter(arm="plain").drop("arm"))


def test_signal_that_warns_passes_and_the_falling_margin_does_not():
    """kappa passes with it: the margin falls far below the gate's centre, and kappa is a distance from it."""
    rng = np.random.default_rng(3)
    steps = stacked({"arm": {"run": made_up(rng, np.full(30, 80), contact=0.02, warning=4.0)}})
    found = verdicts(lead_time(steps, horizons=(5, 20, 40), resamples=100))
    assert dict(found.select("signal", "passes").iter_rows()) == {
        "kappa": True,
        "negative": True,
        "positive": False,
        "margin": False,
    }


def rows(aucs, control, run=None, low=0.0):
    """A table with these AUCs of one signal at horizons 1, 2, ..., and the control."""
    made = [
        {"arm": "a", "run": run, "signal": signal, "form": "raw", "horizon": horizon, "auc": value, "low": low}
        for signal, values in (("negative", aucs), ("step", control))
        for horizon, value in enumerate(values, 1)
    ]
    return pl.DataFrame(made, schema=SCHEMA)


def test_counts_are_strict_and_take_the_control_of_the_same_cell():
    pooled = rows([0.5, 0.3, 0.45, None, 0.7], [0.5, 0.6, 0.55, 0.5, 0.1])
    runs = rows([0.51, 0.9], [0.6, 0.6], run="seed-0", low=0.505)
    found = count_aucs(pl.concat([pooled, runs]))
    assert (found.pooled.total, found.pooled.above_half, found.pooled.interval_above_half) == (4, 1, 0)
    assert (found.pooled.lowest, found.pooled.highest) == (0.3, 0.7)
    # Reversed: 0.5 against 0.5 no, 0.7 against 0.6 yes, 0.55 against 0.55 no, 0.3 against 0.1 yes.
    assert (found.pooled.above_control, found.pooled.reversed_above_control) == (1, 2)
    assert (found.runs.total, found.runs.above_half, found.runs.interval_above_half) == (2, 2, 2)


def test_totals_are_the_published_ones_for_two_arms_of_three_runs():
    text = {row["key"]: row["total"] for row in published("text-results").iter_rows(named=True)}
    found = count_aucs(lead_time(two_arms(runs=3, contact=0.2), **FEW))
    assert found.pooled.total == text["lead-time-reversed-above-control"] == 96
    assert found.runs.total == text["lead-time-runs-above-half"] == 288


def test_ranges_have_the_columns_of_the_published_table_and_span_the_pooled_aucs():
    table = lead_time(two_arms(), **FEW)
    ranges = auc_ranges(table)
    columns = [name.replace("standardised", "as_published") for name in published("horizon-roc").columns]
    assert set(columns) < set(ranges.columns)
    assert ranges["signal"].to_list() == [*SIGNALS, "step"]
    for row in ranges.iter_rows(named=True):
        for form in FORMS:
            own = table.filter(pl.col("run").is_null(), signal=row["signal"], form=form)["auc"]
            name = form.replace(" ", "_")
            assert (row[f"{name}_low"], row[f"{name}_high"]) == (own.min(), own.max())


@st.composite
def scored_steps(draw):
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    n = len(numbers)
    return rng.integers(0, 6, n) / 7.0, rng.integers(0, 3, n).astype(float), numbers, rng.random(n) < 0.8


@given(scored_steps(), st.integers(-13, 13))
@settings(max_examples=200, deadline=None)
def test_profile_is_the_correlation_of_pairs_within_episodes(case, lag):
    score, cost, numbers, scored = case
    pairs = [
        (score[t], cost[t + lag])
        for t in range(len(score))
        if scored[t] and 0 <= t + lag < len(score) and numbers[t + lag] == numbers[t]
    ]
    row = lead_lag_profile(score, cost, numbers, scored, [lag]).row(0, named=True)
    assert row["pairs"] == len(pairs)
    x, y = np.array(pairs).T if pairs else (np.array([]), np.array([]))
    if len(pairs) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        assert row["spearman"] is None
    else:
        assert row["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@given(scored_steps())
@settings(max_examples=60, deadline=None)
def test_profile_of_episodes_run_backwards_is_mirrored(case):
    score, cost, numbers, _ = case
    everywhere = np.ones(len(score), bool)
    lags = range(-4, 5)
    forward = lead_lag_profile(score, cost, numbers, everywhere, lags)["spearman"].to_list()
    backward = lead_lag_profile(score[::-1], cost[::-1], numbers[::-1], everywhere, lags)["spearman"].to_list()
    for one, other in zip(forward, reversed(backward), strict=True):
        assert one == (other if other is None else pytest.approx(other, abs=1e-12))


def test_score_that_copies_the_cost_of_three_steps_later_peaks_there():
    steps = two_arms(contact=0.3)
    later = pl.col("cost").shift(-3).over("arm", "run", "episode").fill_null(0.0)
    profile = lead_lag(steps.with_columns(negative=later))
    assert profile["lag"].to_list() == [*LAGS] * 2 == [*range(-10, 21)] * 2
    for _, own in profile.group_by("arm"):
        best = own.sort("spearman", descending=True, nulls_last=True).row(0, named=True)
        assert best["lag"] == 3
        assert best["spearman"] == pytest.approx(1.0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_variance_within_and_between_episodes_adds_up(lengths, seed):
    rng = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(len(lengths)), lengths) * 7 + 3
    values = rng.normal(0.6, 0.05, len(numbers)) + rng.normal(size=len(lengths)).repeat(lengths)
    found = variability(values, numbers)
    assert found.std**2 == pytest.approx(found.within_std**2 + found.between_std**2, abs=1e-12)
    assert (found.mean, found.std) == pytest.approx((values.mean(), values.std()))
    assert (found.low, found.high, found.steps, found.episodes) == (
        values.min(), values.max(), len(values), len(lengths),
    )  # fmt: skip


def test_constant_episodes_vary_between_only_and_equal_episodes_within_only():
    between = variability(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    assert (between.within_std, between.between_std, between.coefficient) == (0.0, 1.0, 0.5)
    within = variability(np.array([1.0, -1.0, 1.0, -1.0]), np.array([0, 0, 1, 1]))
    assert (within.within_std, within.between_std, within.coefficient) == (1.0, 0.0, None)


def test_variability_is_of_scored_steps_per_arm_and_signal():
    steps = two_arms(scored=0.5)
    table = score_variability(steps)
    assert table.select("arm", "signal").rows() == [(arm, name) for arm in ("plain", "shaped") for name in SIGNALS]
    row = table.row(1, named=True)
    known = steps.filter("scored", arm="plain")["negative"]
    assert (row["steps"], row["episodes"]) == (len(known), 8)
    assert (row["mean"], row["low"]) == pytest.approx((known.mean(), known.min()))


def test_trace_of_a_real_run_with_two_scorers_is_read_by_name(tmp_path):
    run = train(env="braking", total_steps=400, steps_per_epoch=400, learner={"update_iters": 1}, quiet=True,
                run_dir=str(tmp_path / "run"))  # fmt: skip
    scorers = {"dice": make_scorer("noise", None), "oracle": make_scorer("oracle", None)}
    steps = stacked({"ppo-lag": {"seed-0": trace(run, scorers, episodes=3, processes=1, every=2)}})
    table = lead_time(steps, scorer="oracle", **FEW)
    assert table["auc"].null_count() == 0
    assert lead_lag(steps, scorer="oracle", signal="positive")["spearman"].null_count() == 0
    assert score_variability(steps, scorer="dice")["steps"].to_list() == [int(steps["scored"].sum())] * 4
    with pytest.raises(InputError, match="the scorers in it are: dice, oracle"):
        lead_time(steps, **FEW)


def test_bad_input_is_named():
    steps = two_arms()
    with pytest.raises(InputError, match="no column 'run'"):
        lead_time(steps.drop("run"))
    with pytest.raises(InputError, match="recorded without a scorer"):
        lead_time(steps.drop("positive", "negative", "margin"))
    nothing = [pl.lit(None, pl.Float64).alias(name) for name in ("positive", "negative", "margin")]
    with pytest.raises(InputError, match="no step of run 'seed-0' of 'plain' was scored"):
        lead_time(steps.with_columns(*nothing, scored=pl.lit(False)))
    with pytest.raises(InputError, match="'negative' is null or not finite"):
        lead_lag(steps.with_columns(negative=pl.lit(None, pl.Float64)))
    with pytest.raises(InputError, match="in several pieces"):
        lead_lag(pl.concat([steps[:20], steps[40:], steps[20:40]]))
    with pytest.raises(InputError, match="episode 0 of run 'seed-0' has step 6 in place of step 5"):
        lead_lag(pl.concat([steps[:4], steps[5:]]))
    with pytest.raises(InputError, match="no rows"):
        score_variability(steps[:0])
    with pytest.raises(InputError, match="unknown signal 'negativ'; did you mean 'negative'"):
        lead_lag(steps, signal="negativ")
    with pytest.raises(InputError, match="what `lead_time` returns"):
        count_aucs(steps)
