"""The paper's numbers are all here, are described, and give its summaries but for the listed contradictions."""

from importlib import resources

import numpy as np
import polars as pl
import printed_arithmetic
import published_checks
import pytest
import yaml
from printed_arithmetic import BUDGET, EPS, GATED, cell, half_unit, resampled
from published_checks import all_checks, intervals

from vlmsafe.config.methods import METHODS
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError
from vlmsafe.paper.published import contradictions, left_out, misstatements, published, table, tables, windows

NAMES = [entry.name for entry in tables()]
ARMS = ("arm", "arm_1", "arm_2", "versus", "baseline_arm", "signal_arm")


# -- files and their descriptions --------------------------------------------------------------------------------


def test_every_file_is_in_the_index_and_the_other_way_round():
    folder = resources.files("vlmsafe.paper") / "tables"
    assert sorted(NAMES) == sorted(file.name[:-4] for file in folder.iterdir() if file.name.endswith(".csv"))


def test_every_table_of_the_paper_is_here_or_left_out_with_a_reason():
    labels = {entry.label for entry in tables()} - {"text"}
    assert len(labels) == 27
    assert set(left_out()) == {"tab:prompt-sets", "tab:comparison"}
    assert not labels & set(left_out())


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_those_of_the_index(name):
    assert published(name, printed=True).columns == list(table(name).columns)
    types = {"str": pl.String, "int": pl.Int64, "float": pl.Float64, "bool": pl.Boolean}
    assert dict(published(name).schema) == {column: types[about.type] for column, about in table(name).columns.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_number_survives_typing_and_only_true_and_false_are_booleans(name):
    texts, values = published(name, printed=True), published(name)
    assert values.height > 0
    for column, about in table(name).columns.items():
        assert texts[column].null_count() == values[column].null_count()
        if about.type == "bool":
            assert set(texts[column].drop_nulls()) <= {"true", "false"}
        if about.type in ("int", "float"):
            given = [float(text) for text in texts[column].drop_nulls()]
            assert values[column].drop_nulls().to_list() == given


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_told_apart_by_what_they_belong_to(name):
    frame = published(name, printed=True)
    keys = [column for column, about in table(name).columns.items() if about.unit in ("name", "text")]
    keys += [column for column in ("seed", "runs", "training_steps", "eta_1", "eta_2", "budget") if column in frame]
    keys += ["setting_value"] if name == "hparams" else []
    assert frame.select(keys).is_unique().all()


@pytest.mark.parametrize("name", NAMES)
def test_arms_environments_and_windows_are_names_of_this_package(name):
    frame = published(name)
    for column in set(ARMS) & set(frame.columns):
        assert set(frame[column].drop_nulls()) <= set(METHODS)
    if "environment" in frame.columns:
        for environment in set(frame["environment"].drop_nulls()) - {"all", "metadrive", "formula-one"}:
            env_spec(environment)
    if "window" in frame.columns:
        assert set(frame["window"].drop_nulls()) <= set(windows())


def test_an_unknown_table_is_answered_with_the_nearest_one():
    with pytest.raises(InputError, match="unknown published table 'task-metric'; did you mean 'task-metrics'"):
        published("task-metric")


def test_printed_cells_keep_their_digits_and_missing_ones_are_null():
    families = published("conf-families", printed=True)
    assert families.filter(family="A", seed="456")["cost_final"].item() == "21.70"
    assert published("main-results-evaluation").filter(arm="cpo-coupled")["cost_std"].item() is None
    assert published("generalisation").filter(environment="metadrive-easy")["difference_low_pp"].item() == 5.3


# -- the paper against itself ------------------------------------------------------------------------------------


def test_the_paper_agrees_with_itself_but_for_the_listed_cells():
    checks = all_checks()
    assert len(checks) > 580
    found = {(c.table, c.row, c.column, c.source): c for c in checks if not c.agrees}
    listed = {(c.table, c.row, c.column, c.source): c for c in contradictions()}
    assert set(found) == set(listed)
    for key, check in found.items():
        assert listed[key].printed == check.printed
        assert listed[key].computed == pytest.approx(check.computed, abs=5e-5)
        assert listed[key].tolerance == pytest.approx(check.tolerance, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "column", "row", "wrong", "found"),
    [
        ("conf-families", "cost_last_10", 4, "18.43", ("conf-families", "cost_last_10")),  # a run
        ("conf-families", "cost_last_10", 5, "22.56", ("conf-families", "cost_last_10")),  # its summary
        ("md-perseed", "catastrophe_pct", 20, "28", ("generalisation", "baseline_catastrophe_pct")),
        ("full-results", "cost", 5, "190.85", ("main-results-training", "cost")),  # two digits swapped
        ("task-metrics", "progress", 0, "2.256", ("f1-task", "progress")),
        ("perm-l2", "p_total", 0, "55", ("perm-l2", "p_total")),
        ("text-results", "count", 11, "8", ("text-results", "count")),
    ],
)
def test_a_wrong_digit_would_be_found(monkeypatch, name, column, row, wrong, found):
    def damaged(asked: str, printed: bool = False) -> pl.DataFrame:
        frame = published(asked, printed)
        if asked != name:
            return frame
        texts = frame[column].to_list()
        texts[row] = wrong if printed else pl.Series([wrong]).cast(frame[column].dtype).item()
        return frame.with_columns(pl.Series(column, texts, frame[column].dtype))

    for module in (printed_arithmetic, published_checks):
        monkeypatch.setattr(module, "published", damaged)
    assert found in {(check.table, check.column) for check in all_checks() if not check.agrees}


def test_intervals_are_those_of_a_bootstrap_over_runs():
    """At each end lies 2.5 % of all resamples, give or take three deviations of what 10,000 of them can show."""
    slack, seen = 3.0 * np.sqrt(0.025 * 0.975 / 10_000), 0
    for name, low, high, one, other in intervals():
        first_means, second_means = (resampled([float(text) for text in group]) for group in (one, other))
        apart = np.subtract.outer(list(first_means), list(second_means)).ravel()
        chance = np.multiply.outer(list(first_means.values()), list(second_means.values())).ravel()
        for text, below in ((low, 0.025), (high, 0.975)):
            reach = half_unit(text) + EPS
            at_most = chance[apart <= float(text) + reach].sum()
            less = chance[apart < float(text) - reach].sum()
            assert less - slack <= below <= at_most + slack, (name, text)
            seen += 1
    assert seen == 22


def test_generalisation_repeats_the_intervals_of_the_text():
    level = {"easy": "metadrive-easy", "medium": "metadrive-medium", "hard": "metadrive-hard",
             "bullet": "bullet-car-reach"}  # fmt: skip
    for short, environment in level.items():
        for end in ("low", "high"):
            printed = cell("generalisation", f"difference_{end}_pp", environment=environment)
            assert printed == cell("text-results", end, key=f"{short}-catastrophe-difference")


def test_marks_of_the_paper_are_what_its_numbers_say():
    for name in ("main-results-training", "extra-baselines"):
        frame = published(name).drop_nulls("cost")
        assert (frame["within_budget"] == (frame["cost"] <= BUDGET)).all()
    tests = published("perm-l2")
    assert (tests["at_minimum"] == (tests["p_count"] == 1)).all()
    grid_runs = published("full-results")
    assert (grid_runs["checkpoint_lost"] == (grid_runs["epochs"] < 50)).all()


def test_ranges_hold_what_is_known_to_lie_in_them():
    for environment, low, high in (
        published("md-noise-floor").select("environment", "seed_low_pct", "seed_high_pct").rows()
    ):
        rates = published("md-perseed").filter(environment=environment, arm=GATED, kind="seed")["catastrophe_pct"]
        assert rates.is_between(low, high).all()
    (low,), (high,) = (published("text-results").filter(key="qwen-danger-range")[end] for end in ("low", "high"))
    assert published("qwen-vlmc")["danger_score"].is_between(low, high).all()
    rates = published("compute")
    assert (rates["hours"].is_between(rates["hours_low"], rates["hours_high"])).all()


@pytest.mark.parametrize(
    ("name", "column", "step"),
    [
        ("task-metrics", "cost", 0.02), ("task-metrics", "violation_pct", 2.0),
        ("task-metrics", "catastrophe_pct", 2.0), ("phaseb-holdout", "cost", 0.05),
        ("phaseb-holdout", "violation_pct", 5.0), ("phaseb-holdout", "catastrophe_pct", 5.0),
        ("bullet-perseed", "violation_pct", 0.5),
        ("bullet-perseed", "catastrophe_pct", 0.5), ("md-perseed", "violation_pct", 2.0),
        ("md-perseed", "catastrophe_pct", 2.0),
    ],
)  # fmt: skip
def test_per_run_numbers_are_whole_episodes_and_whole_costs(name, column, step):
    frame = published(name)
    values = (frame.filter(kind="seed") if "kind" in frame.columns else frame)[column].to_numpy() / step
    assert np.abs(values - values.round()).max() < 1e-6


def test_misstatements_name_what_is_in_the_paper():
    labels = {entry.label for entry in tables()}
    assert len(misstatements()) == 4
    for entry in misstatements():
        assert any(label in f"{entry.where} {entry.but}" for label in labels)


def test_every_column_is_explained_in_whole_words():
    """A comma in YAML's short form would cut the sentence and leave the rest as a key of its own."""
    index = yaml.safe_load(((resources.files("vlmsafe.paper") / "tables") / "index.yaml").read_text())
    for name, column in index["columns"].items():
        assert set(column) == {"type", "unit", "means"}, name
