"""The gate's tables hold what its formula gives, and judge it on the frames they say."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import two_arms

from vlmsafe import train
from vlmsafe.analysis.auc import auc
from vlmsafe.analysis.gate_roc import (
    CELL_SCHEMA,
    PRIOR,
    ROC_SCHEMA,
    THRESHOLDS,
    at_thresholds,
    calibrated,
    first_half,
    gate_cells,
    gate_curves,
    gate_medians,
    gate_roc,
    gate_thresholds,
    roc_curve,
)
from vlmsafe.analysis.tables import stacked
from vlmsafe.errors import InputError
from vlmsafe.evaluation.trace.record import trace
from vlmsafe.paper.published import published
from vlmsafe.signals.gate import Gate, PlattGate, SignedGate, gate_levels
from vlmsafe.signals.scorers.make import make_scorer

FEW = {"resamples": 20}


def test_published_gate_values_follow_from_the_published_margins():
    """With positive margins kappa rises with the margin, so the median of one is that of the other."""
    table = published("gate-medians")
    assert len(table) == 12
    for row in table.iter_rows(named=True):
        ends = PRIOR.kappa(np.array([row["margin_median"] - 0.0005, row["margin_median"] + 0.0005]))
        assert ends[0] - 0.005 <= row["kappa_median_prior"] <= ends[1] + 0.005
        assert 0.0 <= row["kappa_median_calibrated"] <= 0.5, "more than one IQR from the median is not the middle half"


def test_published_medians_at_smaller_scales_follow_too():
    margins = published("gate-medians")["margin_median"].to_numpy()
    assert (Gate(10.0, 0.0).kappa(margins) <= 0.23).all()
    at_50 = Gate(50.0, 0.0).kappa(margins).round(2)
    assert (at_50[0], at_50[3:].min(), at_50[3:].max()) == (0.27, 0.57, 0.82)


def test_cells_are_quantiles_of_margin_and_kappa_per_run_and_gate():
    steps = two_arms(scored=0.5)
    cells = gate_cells(steps)
    assert cells.schema == pl.Schema(CELL_SCHEMA)
    gates = ["s = 10", "s = 50", "s = 100", "calibrated"]
    assert cells.select("arm", "run", "gate").rows() == [
        (arm, run, gate) for arm in ("plain", "shaped") for run in ("seed-0", "seed-1") for gate in gates
    ]
    margins = steps.filter("scored", arm="shaped", run="seed-1")["margin"].to_numpy()
    for row in cells[-4:].iter_rows(named=True):
        gate = Gate.calibrated(margins) if row["gate"] == "calibrated" else Gate(float(row["gate"][4:]), 0.0)
        kappa = gate.kappa(margins)
        assert (row["scale"], row["centre"]) == (gate.scale, gate.centre)
        assert row["frames"] == len(margins)
        for name, values in (("margin", margins), ("kappa", kappa)):
            found = [row[f"{name}_{end}"] for end in ("low", "q25", "median", "q75", "high")]
            assert found == pytest.approx(np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist())
        assert (row["closed"], row["open"]) == pytest.approx(((kappa < 0.1).mean(), (kappa > 0.9).mean()))
        assert row["positive_margins"] == pytest.approx((margins > 0).mean())


@given(st.integers(1, 12), st.integers(0, 2**32), st.floats(0.1, 5.0))
@settings(max_examples=100, deadline=None)
def test_calibrated_on_its_own_frames_half_the_gate_is_at_most_its_target(k, seed, skew):
    """Half of the margins lie between the quartiles, none of which is further than one IQR from the median."""
    margins = np.random.default_rng(seed).gamma(skew, size=4 * k + 1)
    gate = calibrated(margins)
    low, high = np.quantile(margins, [0.25, 0.75])
    assert np.median(gate.kappa(margins)) <= 0.5 + 1e-12
    assert gate.kappa(gate.centre + np.array([low - high, high - low])) == pytest.approx([0.5, 0.5])


def test_calibrated_on_symmetric_margins_the_median_gate_value_is_0_27_whatever_their_scale():
    for scale in (0.001, 1.0, 50.0):
        margins = 0.02 + scale * np.linspace(-1.0, 1.0, 401) ** 3
        assert np.median(calibrated(margins).kappa(margins)) == pytest.approx(0.268, abs=0.001)


def test_so_many_frames_are_taken_evenly_from_first_to_last():
    steps = two_arms()
    margins = steps.filter(arm="plain", run="seed-0")["margin"].to_numpy()
    row = gate_cells(steps, frames=3).row(0, named=True)
    chosen = margins[[0, round((len(margins) - 1) / 2), -1]]
    assert row["frames"] == 3
    assert (row["margin_low"], row["margin_high"]) == (chosen.min(), chosen.max())
    assert gate_cells(steps, frames=10**6).equals(gate_cells(steps))


def test_medians_have_the_columns_of_the_published_table():
    cells = gate_cells(two_arms())
    table = gate_medians(cells)
    assert table.columns[2:] == published("gate-medians").columns[2:]
    assert len(table) == 4
    one = cells.filter(arm="shaped", run="seed-0")
    expected = [one.filter(gate=gate)["kappa_median"].item() for gate in ("s = 100", "calibrated")]
    row = table.filter(arm="shaped", run="seed-0").row(0, named=True)
    assert [row["kappa_median_prior"], row["kappa_median_calibrated"]] == expected
    assert row["margin_median"] == one["margin_median"][0]


def test_scorer_that_tells_no_frames_apart_has_no_calibrated_gate():
    steps = two_arms().with_columns(margin=pl.lit(0.02))
    cells = gate_cells(steps).filter(gate="calibrated")
    assert cells["kappa_median"].null_count() == cells["scale"].null_count() == len(cells) == 4
    assert gate_medians(gate_cells(steps))["kappa_median_prior"].to_list() == pytest.approx([np.tanh(1.0)] * 4)
    table = gate_roc(steps, **FEW)
    assert table["calibrated_on"].null_count() == len(table)
    assert set(table["auc"]) == {0.5}


labelled = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


@given(labelled)
@settings(max_examples=200, deadline=None)
def test_area_under_the_curve_is_the_auc(case):
    scores, labels = (np.array(part) for part in zip(*case, strict=True))
    curve = roc_curve(scores, labels)
    assert curve["flagged"].to_list() == [0, *(int((scores >= level).sum()) for level in sorted(set(scores))[::-1])]
    expected = auc(scores, labels)
    if expected is None:
        assert curve.drop_nulls(["recall", "false_positive_rate"]).is_empty()
    else:
        area = np.trapezoid(curve["recall"].to_numpy(), curve["false_positive_rate"].to_numpy())
        assert area == pytest.approx(expected)
        assert curve.row(-1)[2:4] == (1.0, 1.0)
        assert curve["precision"][-1] == pytest.approx(labels.mean())


@given(labelled)
@settings(max_examples=100, deadline=None)
def test_precision_and_recall_are_shares_of_what_is_flagged_and_what_is_true(case):
    scores, labels = (np.array(part) for part in zip(*case, strict=True))
    table = at_thresholds(scores, labels, [0, 2.5, 3, 99])
    for row in table.iter_rows(named=True):
        flagged = scores >= row["threshold"]
        assert row["flagged"] == flagged.sum()
        assert row["precision"] == (pytest.approx(labels[flagged].mean()) if flagged.any() else None)
        assert row["recall"] == (pytest.approx(flagged[labels].mean()) if labels.any() else None)
        assert row["false_positive_rate"] == (pytest.approx(flagged[~labels].mean()) if not labels.all() else None)
    assert table["precision"][-1] is None


def low_in_contact(seed=0, **settings):
    """Contact frames have low margins, as published: kappa around 0 then falls in contact, folded kappa rises."""
    return two_arms(seed, contact=0.08, **settings).with_columns(
        margin=pl.col("margin") * 0.1 + 0.022 - 0.011 * (pl.col("cost") > 0)
    )


def test_fold_turns_low_margins_into_high_confidence():
    table = gate_roc(low_in_contact(), **FEW)
    assert table.schema == pl.Schema(ROC_SCHEMA)
    whole = table.filter(pl.col("half").is_null(), arm="plain")
    assert whole["score"].to_list() == ["kappa", "kappa", "negated margin"]
    prior, fitted, negated = whole.iter_rows(named=True)
    assert prior["auc"] < 0.2 < 0.8 < fitted["auc"] <= negated["auc"]
    assert fitted["calibrated_on"] == "same frames"
    assert prior["contact_below_centre"] == 0.0
    assert fitted["contact_below_centre"] > 0.9
    assert prior["contact_margin"] < prior["free_margin"]


def test_aucs_are_of_current_contact_at_scored_steps():
    steps = low_in_contact(scored=0.6)
    own = steps.filter("scored", arm="shaped")
    margin, contact = own["margin"].to_numpy(), own["cost"].to_numpy() > 0
    found = gate_roc(steps, **FEW).filter(pl.col("half").is_null(), arm="shaped")["auc"].to_list()
    expected = [
        auc(values, contact) for values in (PRIOR.kappa(margin), Gate.calibrated(margin).kappa(margin), -margin)
    ]
    assert found == expected


def test_out_of_sample_gate_comes_from_the_other_half_of_the_episodes():
    steps = low_in_contact(runs=3)
    own = steps.filter(arm="plain")
    numbers = own.select(pl.struct("run", "episode").rank("dense")).to_series().to_numpy()
    margin, contact = own["margin"].to_numpy(), own["cost"].to_numpy() > 0
    first = first_half(numbers, seed=4)
    assert len(np.unique(numbers[first])) == len(np.unique(numbers[~first])) == 6
    assert not set(numbers[first]) & set(numbers[~first])
    table = gate_roc(steps, seed=4, **FEW).filter(arm="plain", calibrated_on="other half")
    assert table["half"].to_list() == [1, 2]
    for row, used in zip(table.iter_rows(named=True), (first, ~first), strict=True):
        gate = Gate.calibrated(margin[~used])
        assert (row["scale"], row["centre"]) == (gate.scale, gate.centre)
        assert row["auc"] == auc(gate.kappa(margin[used]), contact[used])
        assert row["episodes"] == 6
    negated = gate_roc(steps, seed=4, **FEW).filter(arm="plain", score="negated margin", half=2)["auc"].item()
    assert negated == auc(-margin[~first], contact[~first])


def test_frames_after_the_split_cannot_leak_into_the_gate_that_judges_them():
    """Changing the judged half changes nothing about its gate."""
    steps = low_in_contact(runs=3)
    numbers = steps.select(pl.struct("arm", "run", "episode").rle_id()).to_series().to_numpy()
    judged = np.concatenate([first_half(numbers[steps["arm"] == arm], 0) for arm in ("plain", "shaped")])
    other = steps.with_columns(margin=pl.when(pl.Series(judged)).then(pl.col("margin") * 3).otherwise("margin"))
    before, after = (gate_roc(table, **FEW).filter(calibrated_on="other half", half=1) for table in (steps, other))
    assert before.select("scale", "centre").equals(after.select("scale", "centre"))
    assert not before.select("auc").equals(after.select("auc"))


def test_thresholds_are_those_of_the_judged_gates():
    steps = low_in_contact()
    table = gate_thresholds(steps)
    assert len(table) == 2 * 4 * len(THRESHOLDS)
    own = steps.filter(arm="shaped")
    margin, contact = own["margin"].to_numpy(), own["cost"].to_numpy() > 0
    fitted = table.filter(arm="shaped", calibrated_on="same frames")
    expected = at_thresholds(Gate.calibrated(margin).kappa(margin), contact)
    assert fitted.select(expected.columns).equals(expected)
    assert fitted["prevalence"][0] == pytest.approx(contact.mean())
    assert fitted["recall"].is_sorted(descending=True)


def test_arm_without_contact_has_no_auc_and_no_recall():
    steps = two_arms().with_columns(cost=pl.lit(0.0))
    assert gate_roc(steps, **FEW)["auc"].null_count() == len(gate_roc(steps, **FEW))
    table = gate_thresholds(steps)
    assert table["recall"].null_count() == len(table)
    assert table["false_positive_rate"].null_count() == 0


def test_single_episode_has_no_halves():
    steps = two_arms().filter(pl.col("episode") == 0, run="seed-0")
    assert gate_roc(steps, **FEW)["half"].null_count() == 2 * 3


def test_real_trace_with_a_control_scorer(tmp_path):
    run = train(env="speeding", total_steps=400, steps_per_epoch=400, learner={"update_iters": 1}, quiet=True,
                run_dir=str(tmp_path / "run"))  # fmt: skip
    steps = stacked({"ppo-lag": {"seed-0": trace(run, make_scorer("noise", None), episodes=4, processes=1)}})
    assert gate_medians(gate_cells(steps)).null_count().sum_horizontal().item() == 0
    assert len(gate_roc(steps, **FEW)) == 7


def test_bad_input_is_named():
    steps = two_arms()
    with pytest.raises(InputError, match="no column 'cost'"):
        gate_roc(steps.drop("cost"))
    with pytest.raises(InputError, match="recorded without a scorer"):
        gate_cells(steps.drop("positive", "negative", "margin"))
    with pytest.raises(InputError, match="what `gate_cells` returns"):
        gate_medians(steps)
    with pytest.raises(InputError, match="frames is 0"):
        gate_cells(steps, frames=0)
    with pytest.raises(InputError, match="between 0 and 1"):
        gate_cells(steps, target=1.0)
    with pytest.raises(InputError, match=r"scores \(2,\) and bool labels \(1,\)"):
        roc_curve([1.0, 2.0], [True])
    with pytest.raises(InputError, match="int64 labels"):
        at_thresholds([1.0, 2.0], [0, 1])
    with pytest.raises(InputError, match="not finite"):
        roc_curve([1.0, np.nan], [True, False])
    with pytest.raises(InputError, match="no frames"):
        roc_curve(np.array([]), np.array([], bool))


def test_recorded_kappa_is_a_gate_of_its_own_with_the_settings_it_was_recorded_with():
    steps = two_arms(scored=0.5)
    gate = Gate(40.0, 0.01)
    kappa = gate.kappa(steps["margin"].fill_null(np.nan).to_numpy())
    traced = steps.with_columns(
        kappa=pl.when("scored").then(pl.Series(kappa)), gate_scale=pl.lit(40.0), gate_centre=pl.lit(0.01)
    )
    cells = gate_cells(traced, frames=20)
    assert cells.filter(pl.col("gate") != "recorded").equals(gate_cells(steps, frames=20))
    found = cells.filter(gate="recorded")
    assert found.select("arm", "run").rows() == cells.select("arm", "run").unique(maintain_order=True).rows()
    for row in found.iter_rows(named=True):
        assert (row["scale"], row["centre"], row["frames"]) == (40.0, 0.01, 20)
        own = traced.filter("scored", arm=row["arm"], run=row["run"])
        taken = own["kappa"].to_numpy()[np.linspace(0, len(own) - 1, 20).round().astype(int)]
        assert row["kappa_median"] == pytest.approx(np.median(taken))
        assert row["closed"] == pytest.approx((taken < 0.1).mean())
    one_has_none = traced.with_columns(kappa=pl.when(pl.col("run") == "seed-0").then("kappa"))
    assert gate_cells(one_has_none).filter(gate="recorded", run="seed-1")["kappa_median"].null_count() == 2


@pytest.mark.parametrize("points", [10, 400, 10_000])
def test_thinned_curves_are_points_of_the_whole_ones_with_both_ends(points):
    steps = two_arms(contact=0.2)
    curves = gate_curves(steps, points=points)
    prior = curves.filter(pl.col("calibrated_on").is_null(), pl.col("half").is_null(), arm="plain")
    own = steps.filter(arm="plain")
    margins, contact = own["margin"].to_numpy(), own["cost"].to_numpy() > 0
    for score, values in (("kappa", PRIOR.kappa(margins)), ("negated margin", -margins)):
        whole = roc_curve(values, contact)
        found = prior.filter(score=score).drop("arm", "score", "calibrated_on", "half")
        assert set(found.rows()) <= set(whole.rows())
        assert (found.row(0), found.row(-1)) == (whole.row(0), whole.row(-1))
        assert len(found) <= points + 2
        assert len(found) == len(found.unique())


def test_curves_are_of_what_the_table_judges():
    steps = two_arms(contact=0.2)
    keys = ["arm", "score", "calibrated_on", "half"]
    judged = gate_roc(steps, **FEW).select(keys)
    assert gate_curves(steps).select(keys).unique(maintain_order=True).equals(judged)


@pytest.mark.parametrize("own", [SignedGate(80.0, 0.01), PlattGate(-60.0, -1.0)])
def test_a_gate_that_eq_3_does_not_describe_is_judged_by_its_recorded_kappa(own):
    steps = two_arms(scored=0.5)
    levels = gate_levels(own)
    margins = pl.Series(steps["margin"].fill_null(0.0).to_numpy())

    def recorded(kappa):
        return steps.with_columns(
            kappa=pl.when("scored").then(pl.Series(kappa)), gate_scale=levels["scale"], gate_centre=levels["centre"]
        )

    other = recorded(own.kappa(margins.to_numpy()))
    found = gate_roc(other, **FEW).filter(score="recorded kappa")
    assert found["arm"].to_list() == ["plain", "shaped"]
    for arm, row in zip(("plain", "shaped"), found.iter_rows(named=True), strict=True):
        frames = other.filter("scored", arm=arm)
        contact = (frames["cost"] > 0.0).to_numpy()
        assert row["auc"] == pytest.approx(auc(frames["kappa"].to_numpy(), contact))
    cells = gate_cells(other).filter(gate="recorded")
    assert cells["scale"].to_list() == [levels["scale"]] * 4
    # A gate of Eq. 3 has its rows already.
    folded = recorded(Gate(levels["scale"], levels["centre"]).kappa(margins.to_numpy()))
    assert gate_roc(folded, **FEW).equals(gate_roc(steps, **FEW))


def test_a_recorded_kappa_without_levels_is_judged_too():
    """As that of a probability gate, or of a function of the user's."""
    steps = two_arms(scored=0.5)
    half = pl.when("scored").then(0.5)
    table = steps.with_columns(kappa=half, gate_scale=pl.lit(None, pl.Float64), gate_centre=pl.lit(None, pl.Float64))
    found = gate_roc(table, **FEW).filter(score="recorded kappa")
    assert found["auc"].to_list() == [0.5, 0.5]
