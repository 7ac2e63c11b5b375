"""Tables hold the numbers of the runs, with intervals, and the published values beside them."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from report_runs import PLAIN, SEEDS, SIGNAL, costs_with, write_evaluation, write_run, write_study, write_trace
from scipy import stats

from vlmsafe.comparison.claims import Claim, Claims, ContrastCell, ContrastClaim
from vlmsafe.report.build import build_chart, build_table
from vlmsafe.report.dataset import read_dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.kinds import TABLES
from vlmsafe.report.render.cell_text import cell_text, number_text
from vlmsafe.report.render.files import latex, table_csv, table_latex, table_markdown
from vlmsafe.report.request import AnalysisOptions, Entry, StudyInfo
from vlmsafe.report.tables import paper

ENV = "metadrive-easy"

ENV = "metadrive-easy"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_dataset([write_study(tmp_path_factory.mktemp("study"), traces=True)], StudyInfo("study"))


@pytest.fixture(scope="module")
def claimed(study):
    """The same with a contrast, which has no use but to fill its table."""
    contrast = ContrastClaim("does it differ", (ContrastCell(SIGNAL, ENV),), (ContrastCell(PLAIN, ENV),))
    claims = Claims((Claim(SIGNAL, PLAIN),), contrasts=(contrast,))
    return read_dataset(study.roots, StudyInfo("study", claims=claims))


def column(table, name):
    return [entry.name for entry in table.columns].index(name)


def values(table, name):
    place = column(table, name)
    return [row[place].value for row in table.rows]


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_of_a_full_study_has_rows_as_wide_as_its_headings(claimed, kind):
    table = build_table(claimed, Entry(kind))
    assert isinstance(table, Table), table
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert len({entry.name for entry in table.columns}) == len(table.columns)
    assert table.title


def test_the_summary_is_the_mean_over_runs_with_its_deviation_and_interval(study):
    table = build_table(study, Entry("summary", source="held-out"))
    assert values(table, "arm") == [PLAIN, SIGNAL]
    cell = table.rows[0][column(table, "catastrophe_pct")]
    rates = np.array([40.0, 45.0, 50.0, 55.0])
    assert cell.value == pytest.approx(rates.mean())
    assert cell.std == pytest.approx(rates.std())
    width = stats.t.ppf(0.975, 3) * rates.std(ddof=1) / 2
    assert (cell.low, cell.high) == pytest.approx((47.5 - width, 47.5 + width))


def test_the_rate_of_unequally_long_evaluations_is_the_mean_over_runs_and_a_note_has_the_pooled_one(tmp_path):
    for seed, (catastrophes, episodes) in zip((1, 2, 3), ((4, 10), (4, 20), (0, 50)), strict=True):
        write_evaluation(write_run(tmp_path, PLAIN, seed), costs_with(catastrophes, episodes))
        write_evaluation(write_run(tmp_path, SIGNAL, seed), costs_with(catastrophes, 50))
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for kind in ("summary", "rates"):
        table = build_table(dataset, Entry(kind))
        cell = table.rows[0][column(table, "catastrophe_pct" if kind == "summary" else "catastrophe_pct_second")]
        assert cell.value == pytest.approx((40.0 + 20.0 + 0.0) / 3)
        (note,) = [line for line in table.notes if "Pooled over episodes" in line]  # the other arm's are equally long
        assert f"'{PLAIN}' on {ENV} (held-out, 10 to 50 episodes per run)" in note
        assert "catastrophe rate 10.0 %" in note


def test_an_interval_needs_three_runs(tmp_path):
    for seed in (1, 2):
        write_evaluation(write_run(tmp_path, PLAIN, seed), costs_with(seed))
    table = build_table(read_dataset([tmp_path], StudyInfo("study")), Entry("summary"))
    cell = table.rows[0][column(table, "catastrophe_pct")]
    assert cell.std is not None
    assert cell.low is None


def test_published_values_stand_beside_ours_and_say_what_was_done_otherwise(study):
    table = build_table(study, Entry("summary", source="paper"))
    cell = table.rows[0][column(table, "catastrophe_pct")]
    assert cell.published == pytest.approx(14.0)  # PPOLag on MetaDrive Easy
    assert cell.mark == "†"  # 240,000 steps are not a million
    assert any("total_steps 240,000 (paper: 1,000,000)" in note for note in table.notes)


def test_costs_over_the_budget_are_marked(study):
    table = build_table(study, Entry("training"))
    states = [row[column(table, "cost_final")].state for row in table.rows]
    assert states == ["over", "over"]
    shares = [row[column(table, "over_budget")].text for row in table.rows]
    assert shares == ["4/4", "4/4"]


def test_the_comparison_has_the_test_and_the_smallest_p_it_could_have_had(study):
    table = build_table(study, Entry("comparisons"))
    (row,) = table.rows
    assert row[column(table, "p")].text == "1/70"
    assert row[column(table, "smallest_p")].value == pytest.approx(1 / 70)
    assert row[column(table, "first_lower")].text == "4/4"
    assert row[column(table, "says")].text == "lower"
    assert row[column(table, "difference")].high < 0


def test_runs_are_listed_by_seed_and_followed_by_their_mean(study):
    table = build_table(study, Entry("per-seed", arms=(PLAIN,), source="held-out"))
    place = column(table, "seed")
    assert [row[place].text for row in table.rows] == [*map(str, SEEDS), "mean"]
    assert table.strong == {4}


def test_matched_seeds_show_their_differences(study):
    table = build_table(study, Entry("pairs"))
    assert [row[column(table, "seed")].text for row in table.rows] == [*map(str, SEEDS), "mean"]
    assert table.rows[0][column(table, "difference")].value == pytest.approx(5.0 - 40.0)


def test_matched_seeds_can_be_asked_for_another_outcome_than_the_claims(study):
    table = build_table(study, Entry("pairs", source="training", window="last-10"))
    assert list(dict.fromkeys(values(table, "outcome"))) == ["logged return", "cost"]
    assert set(values(table, "source")) == {"training, last 10 epochs"}
    table = build_table(study, Entry("pairs", source="held-out", outcome="violation"))
    assert set(values(table, "outcome")) == {"violation rate"}


def test_tables_of_traces_keep_to_the_arms_that_are_asked_for(study):
    table = build_table(study, Entry("lead-time", arms=(SIGNAL,)))
    assert set(values(table, "arm")) == {SIGNAL}
    assert "vlmsafe trace" in build_table(study, Entry("gate", arms=(PLAIN,))).reason
    assert isinstance(build_table(study, Entry("gate", source="paper")), Missing)


def test_whose_criterion_of_lead_time_is_about_which_score_is_said_in_table_and_documentation(study):
    assert "about c_vlm (the paper's is about κ)" in build_table(study, Entry("lead-time")).caption
    page = Path(__file__).parents[2] / "docs" / "explanation" / "diagnostics.md"
    assert "The paper's criterion is about kappa" in page.read_text(encoding="utf-8")


def test_of_many_traced_episodes_as_many_of_every_run_are_taken(study):
    steps = replace(study, options=AnalysisOptions(episodes=8)).traces("metadrive-easy", Entry("lead-time"))
    counts = steps.group_by("run").agg(pl.col("episode").n_unique())["episode"].to_list()
    assert counts == [2, 2, 2, 2]


def test_a_table_of_traces_may_use_more_episodes_and_resamples_than_a_report_does_by_itself(study):
    few = replace(study, options=AnalysisOptions(episodes=8, resamples=50))
    asked = {"few": Entry("lead-time-runs"), "all": Entry("lead-time-runs", episodes="all", resamples=70)}
    tables = {name: build_table(few, entry) for name, entry in asked.items()}
    together = {name: values(table, "run").index("all") for name, table in tables.items()}
    assert values(tables["few"], "episodes")[together["few"]] == 8
    assert values(tables["all"], "episodes")[together["all"]] == 24
    assert set(values(tables["few"], "resamples")) == {50}
    assert set(values(tables["all"], "resamples")) == {70}
    assert "at most 8 traced episodes" in build_table(few, Entry("lead-time")).caption
    assert "traced episodes" not in build_table(few, Entry("lead-time", episodes="all")).caption


PUBLISHED_RATES = {
    PLAIN: ([(23, 36), (28, 39), (32, 46)], [(24, 43), (22, 36), (29, 49)]),
    SIGNAL: ([(29, 43), (24, 42), (31, 47)], [(21, 33), (30, 38), (17, 34)]),
}
"""Catastrophes and violations among 200 episodes of Bullet's runs, seeds 42, 123, 456, at one and two million steps."""


@pytest.fixture(scope="module")
def bullet(tmp_path_factory):
    """Bullet's twelve runs with the published rates."""
    folder = tmp_path_factory.mktemp("bullet")
    for method, lengths in PUBLISHED_RATES.items():
        for arm, steps, rates in zip((method, f"{method}-2m"), (1_000_000, 2_000_000), lengths, strict=True):
            for seed, (catastrophes, violations) in zip((42, 123, 456), rates, strict=True):
                run = write_run(folder, method, seed, arm=arm, env="bullet-car-reach", total_steps=steps)
                costs = [200.0] * catastrophes + [50.0] * (violations - catastrophes) + [0.0] * (200 - violations)
                write_evaluation(run, costs, "paper-200")
    (folder / "claims.yaml").write_text(
        "comparisons:\n"
        f"- {{first: {SIGNAL}, second: {PLAIN}, outcome: catastrophe, source: paper-200}}\n"
        f"- {{first: {SIGNAL}-2m, second: {PLAIN}-2m, outcome: catastrophe, source: paper-200}}\n"
    )
    return read_dataset([folder], StudyInfo("bullet"))


BOTH = {"both, plain": (PLAIN, f"{PLAIN}-2m"), "both, signal": (SIGNAL, f"{SIGNAL}-2m")}


def test_runs_of_two_lengths_can_be_pooled_into_the_papers_row_of_six_runs(bullet):
    assert len(build_table(bullet, Entry("rates")).rows) == 2
    table = build_table(bullet, Entry("rates", pool=BOTH))
    (row,) = table.rows
    assert row[column(table, "runs")].text == "6 / 6"
    rate = {side: row[column(table, f"catastrophe_pct_{side}")] for side in ("first", "second")}
    assert rate["second"].value == pytest.approx(100 * 158 / 1200)
    assert rate["first"].value == pytest.approx(100 * 152 / 1200)
    assert rate["second"].published == pytest.approx(rate["second"].value)  # made from the paper's own runs
    assert rate["first"].published_std == pytest.approx(rate["first"].std)
    difference = row[column(table, "difference_pp")]
    assert (difference.value, difference.low, difference.high) == pytest.approx((-0.5, -3.1, 1.9), abs=0.05)
    assert "It is too narrow for few runs and decides nothing" in table.caption
    assert row[column(table, "p")].value == pytest.approx(2 * 359 / 924)
    assert "'both, plain' on bullet-car-reach has the runs of 'ppo-lag' and 'ppo-lag-2m'" in table.notes[0]
    assert "which differ in total_steps" in table.notes[0]


def test_two_arms_of_one_pool_are_compared_as_they_are(bullet):
    table = build_table(bullet, Entry("rates", pool={"all four": (PLAIN, f"{PLAIN}-2m", SIGNAL, f"{SIGNAL}-2m")}))
    assert [row[column(table, "runs")].text for row in table.rows] == ["3 / 3", "3 / 3"]


def test_a_pool_has_a_mean_of_its_own_after_the_runs_of_its_arms(bullet):
    table = build_table(bullet, Entry("per-seed", source="paper-200", pool=BOTH))
    assert values(table, "arm")[-2:] == ["both, plain", "both, signal"]
    assert values(table, "violation_pct")[-2:] == [pytest.approx(100 * 249 / 1200), pytest.approx(100 * 237 / 1200)]


def test_a_pool_of_arms_that_have_no_runs_changes_nothing(study):
    table = build_table(study, Entry("rates", pool={"both": (PLAIN, "ppo-lag-2m")}))
    assert table == build_table(study, Entry("rates"))


def test_one_cell_may_have_another_window_than_the_others_and_says_so(study):
    plain = build_table(study, Entry("by-environment", source="training"))
    table = build_table(study, Entry("by-environment", source="training", windows={(SIGNAL, ENV): "last-10"}))
    training = build_table(study, Entry("training"))
    signal = values(table, "arm").index(SIGNAL)
    assert values(table, ENV)[signal] == values(training, "cost_last-10")[signal]
    assert values(plain, ENV)[signal] == values(training, "cost_final")[signal]
    assert values(table, ENV)[1 - signal] == values(plain, ENV)[1 - signal]
    assert f"'{SIGNAL}' on {ENV}: last 10 epochs." in table.notes
    assert "From training, other cells: final epoch." in table.caption


def test_the_cost_of_learning_counts_every_episode_and_the_first_epoch_within_the_budget(tmp_path):
    for seed, first in ((1, 2), (2, 4), (3, None)):
        run = write_run(tmp_path, PLAIN, seed)
        rows = [{**row, "episode_cost": 0.0 if row["epoch"] == first else 1e6} for row in run.rows("epochs")]
        (run.path / "epochs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        episodes = [{"epoch": 1, "cost": cost, "finished": True} for cost in (0.0, 3.0, float(seed), 0.0)]
        (run.path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
        steps = run.config.steps_per_epoch
    table = build_table(read_dataset([tmp_path], StudyInfo("study")), Entry("learning"))
    assert values(table, "training_cost") == [pytest.approx(5.0)]
    assert values(table, "costly_pct") == [pytest.approx(50.0)]
    assert values(table, "met") == [pytest.approx(2 / 3)]
    assert values(table, "steps_to_budget") == [3 * steps]


def test_the_bonus_is_taken_out_of_the_logged_return(study):
    table = build_table(study, Entry("returns"))
    assert values(table, "bonus_final") == [0.0, 60.0]


def test_tails_are_those_of_the_runs_with_intervals_over_runs(study):
    table = build_table(study, Entry("tails"))
    assert values(table, "arm") == [PLAIN, SIGNAL]
    tails = [np.mean(sorted(costs_with(1 + place % 3))[-2:]) for place in range(len(SEEDS))]
    cell = table.rows[1][column(table, "cvar_10")]
    assert cell.value == pytest.approx(np.mean(tails))
    assert cell.low < cell.value < cell.high
    means = [np.mean(costs_with(1 + place % 3)) for place in range(len(SEEDS))]
    assert values(table, "cost")[1] == pytest.approx(np.mean(means))
    way = np.mean([0.1 + 0.01 * place for place in range(20)])  # of every run: no metres, but a share of the route
    assert values(table, "cost_per_distance")[1] == pytest.approx(np.mean(means) / way)
    assert set(values(table, "unit")) == {"whole route"}


def test_the_first_arm_is_probably_lower_by_the_share_of_pairs(study):
    table = build_table(study, Entry("improvement"))
    (row,) = table.rows
    cell = row[column(table, "mean_cost")]
    assert (cell.value, row[column(table, "runs")].text) == (1.0, "4 / 4")
    assert 0.5 < cell.low < 0.6  # four against four
    assert row[column(table, "cvar_10")].value == pytest.approx(0.75)  # two runs of each arm tie


def test_runs_without_distances_or_with_damaged_costs_leave_their_cells_empty(tmp_path):
    for seed in (1, 2, 3):
        run = write_run(tmp_path, PLAIN, seed)
        write_evaluation(run, costs_with(seed))
        path = run.evaluations / "held-out.parquet"
        table = pl.read_parquet(path).drop("route_completion", "length")
        if seed == 3:
            table = table.with_columns(cost=pl.lit(float("nan")))
        table.write_parquet(path)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    table = build_table(dataset, Entry("tails"))
    assert (values(table, "runs"), values(table, "cost_per_distance"), values(table, "unit")) == ([2.0], [None], [""])
    assert "two evaluated runs each" in build_table(dataset, Entry("improvement")).reason


def test_a_sweep_is_ordered_by_its_setting(tmp_path):
    for budget in (35.0, 15.0):
        for seed in (1, 2, 3):
            write_run(tmp_path, PLAIN, seed, arm=f"d{budget:g}", budget=budget)
    table = build_table(read_dataset([tmp_path], StudyInfo("study")), Entry("sweep", over=("budget",)))
    assert values(table, "budget") == [15.0, 35.0]
    assert values(table, "arm") == ["d15", "d35"]


def test_reruns_that_are_equal_never_part_and_others_do(tmp_path):
    for arm, seed, cost in (("a", 1, 40.0), ("b", 1, 40.0), ("a", 2, 40.0), ("b", 2, 41.0)):
        write_run(tmp_path, PLAIN, seed, arm=arm, cost=cost)
    table = build_table(read_dataset([tmp_path], StudyInfo("study")), Entry("divergence"))
    assert [row[column(table, "epoch")].text for row in table.rows] == ["never", "1"]


def test_the_overhead_of_a_signal_is_time_per_step(study):
    table = build_table(study, Entry("compute"))
    assert [row[column(table, "overhead_pct")].text for row in table.rows] == ["reference", "+20 %"]


def test_what_cannot_be_made_says_which_command_makes_it(tmp_path):
    write_run(tmp_path, PLAIN, 1)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    assert "vlmsafe evaluate" in build_table(dataset, Entry("summary")).reason
    assert "vlmsafe trace" in build_table(dataset, Entry("gate")).reason
    assert isinstance(build_table(dataset, Entry("comparisons")), Missing)


@pytest.mark.parametrize("kind", TABLES)
def test_runs_that_have_only_begun_do_no_harm(begun, kind):
    assert isinstance(build_table(begun, Entry(kind, over=("budget",) if kind == "sweep" else ())), Table | Missing)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    write_run(folder, PLAIN, 1, epochs=0)
    write_run(folder, SIGNAL, 1, epochs=0)
    write_run(folder, SIGNAL, 2, epochs=1)
    return read_dataset([folder], StudyInfo("study"))


def test_which_scorer_looked_is_said_beside_published_values(tmp_path):
    path = write_run(tmp_path, SIGNAL, 42).path
    config = path / "config.yaml"
    config.write_text(config.read_text().replace("clip:openai/clip-vit-base-patch32", "embedded"))
    table = build_table(read_dataset([tmp_path], StudyInfo("study")), Entry("training"))
    assert any(
        "Ours: signal.scorer embedded (paper: clip:openai/clip-vit-base-patch32)" in note for note in table.notes
    )


def test_published_gates_times_and_scores_stand_beside_ours(study):
    gate = build_table(study, Entry("gate"))
    first = gate.rows[[row[1].text for row in gate.rows].index("seed-42")]
    assert first[column(gate, "margin_median")].published == 0.046
    times = build_table(study, Entry("compute"))
    assert [row[column(times, "steps_per_second")].published for row in times.rows] == [131, 101]
    assert paper.times("bullet-car-reach", "ppo-lag", 2_000_000, None)["hours"] == 3.3
    assert set(paper.times("bullet-car-reach", "ppo-lag", 500, None)) == {"steps_per_second"}
    assert paper.times("metadrive-easy", "vlm-ppo-lag-conf", 1_000_000, 1) == {}  # the paper scored every fourth step
    assert paper.scores("formula-one-l2", "rnd", 42)[100_000] == 0.0128
    assert paper.scores("formula-one-l2", "qwen2-vl:x", 123)[1_000_000] == 0.616
    assert "c_vlm 0.199 to 0.452 raw" in paper.lead_time_line("formula-one-l2")
    assert not paper.lead_time_line("metadrive-easy")


def test_a_table_on_one_environment_names_it_once(study):
    table = build_table(study, Entry("multiplier"))
    assert "metadrive-easy" in table.title
    assert "env" not in [entry.name for entry in table.columns]


# -- files ------------------------------------------------------------------------------------------------------


def test_csv_has_full_precision_and_the_ends_of_intervals(study):
    table = build_table(study, Entry("summary", source="paper"))
    rows = list(csv.DictReader(io.StringIO(table_csv(table))))
    cell = table.rows[1][column(table, "cost")]
    assert float(rows[1]["cost"]) == cell.value
    assert float(rows[1]["cost_low"]) == cell.low
    assert float(rows[0]["catastrophe_pct_published"]) == pytest.approx(14.0)


def test_csv_keeps_text_that_is_more_than_its_number(study):
    ranges = list(csv.DictReader(io.StringIO(table_csv(build_table(study, Entry("lead-time"))))))
    assert " to " in ranges[0]["raw"]
    (row,) = csv.DictReader(io.StringIO(table_csv(build_table(study, Entry("comparisons")))))
    assert (row["p"], row["runs"]) == ("1/70", "4 / 4")
    times = list(csv.DictReader(io.StringIO(table_csv(build_table(study, Entry("compute"))))))
    assert float(times[1]["overhead_pct"]) == pytest.approx(20.0)


def test_latex_is_balanced_and_escapes_what_would_be_a_command(study):
    table = build_table(study, Entry("summary"))
    text = table_latex(table)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in rows} == {len(table.columns) - 1}
    assert r"catastrophe \%" in text
    assert latex("a_b$<\\") == r"a\_b\$\textless{}\textbackslash{}"
    assert text.count(r"\begin{") == text.count(r"\end{")


def test_markdown_has_a_cell_per_column_whatever_an_arm_is_called():
    columns = (Column("arm", "arm"), Column("cost", "cost", 1))
    rows = ((Cell("a|b <i>*_"), Cell(1.25, low=1.0, high=2.0, published=3.0, mark="†")),)
    table = Table("t", "Title", columns, rows, "Caption", strong=frozenset({0}), notes=("a note",))
    assert table_markdown(table) == (
        "**Title.** Caption\n\n| arm | cost |\n|---|--:|\n"
        "| **a\\|b \\<i\\>\\*\\_** | **1.2 \\[1.0, 2.0\\] (paper 3.0†)** |\n\na note\n"
    )


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (3.14159, 2, "3.14"),
        (-0.001, 2, "0.00"),
        (123.456, 2, "123.5"),
        (1e-5, 4, "1.0e\N{MINUS SIGN}05"),
        (2e-17, 4, "0.0000"),
    ],
)
def test_numbers_are_as_long_as_they_need_to_be(value, digits, shown):
    assert number_text(value, Column("x", "x", digits)) == shown


def test_a_deviation_has_the_digits_of_its_mean():
    assert cell_text(Cell(149.79, std=80.72), Column("x", "x", 2)) == "149.8 ± 80.7"


def test_each_row_shows_its_own_budget_and_is_judged_by_it(tmp_path):
    for arm, budget in (("strict", 5.0), ("loose", 300.0)):
        write_evaluation(write_run(tmp_path, PLAIN, 1, arm=arm, budget=budget), [100.0, 100.0])
    for seed, budget in ((1, 5.0), (2, 300.0)):
        write_evaluation(write_run(tmp_path, PLAIN, seed, arm="mixed", budget=budget), [100.0, 100.0])
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for kind in ("summary", "training"):
        table = build_table(dataset, Entry(kind))
        shown = {row[column(table, "arm")].text: row[column(table, "budget")].text for row in table.rows}
        assert shown == {"strict": "5", "loose": "300", "mixed": "5 to 300"}
    table = build_table(dataset, Entry("summary"))
    over = {row[column(table, "arm")].text: row[column(table, "over_budget")].text for row in table.rows}
    assert over == {"strict": "1/1", "loose": "0/1", "mixed": "1/2"}


def test_a_window_longer_than_the_runs_is_called_what_it_is(tmp_path):
    write_run(tmp_path, SIGNAL, 1, epochs=4)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    headings = [entry.heading for entry in build_table(dataset, Entry("training")).columns]
    assert "cost, all 4 epochs" in headings
    headings = [entry.heading for entry in build_table(dataset, Entry("returns")).columns]
    assert [heading for heading in headings if "epochs" in heading] == ["environment, all 4 epochs"]


def test_one_epoch_is_named_once_and_in_the_singular(tmp_path):
    write_run(tmp_path, SIGNAL, 1, epochs=1)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    headings = [entry.heading for entry in build_table(dataset, Entry("training")).columns]
    assert "cost, the only epoch" in headings
    table = build_table(dataset, Entry("returns"))
    assert [entry.heading for entry in table.columns][-1] == "environment, final epoch"
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_figures_on_contact_need_as_many_onsets_as_the_audit(tmp_path):
    write_trace(write_run(tmp_path, SIGNAL, 1), episodes=1)
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for kind in ("lead-time", "gate-roc", "gate-thresholds"):
        assert "no arm has 10 onsets" in build_table(dataset, Entry(kind)).reason
    for kind in ("lead-time", "gate-roc"):
        assert "no arm has 10 onsets" in build_chart(dataset, Entry(kind)).reason
    assert isinstance(build_table(dataset, Entry("gate")), Table)  # how open a gate is does not depend on contact


def test_a_report_has_no_tables_of_a_gate_that_no_run_has(tmp_path):
    write_trace(write_run(tmp_path, "vlm-ppo-lag", 1))
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    for kind in ("gate", "gate-roc"):
        assert isinstance(build_table(dataset, Entry(kind, asked=False)), Missing)
        assert isinstance(build_chart(dataset, Entry(kind, asked=False)), Missing)
        assert isinstance(build_table(dataset, Entry(kind)), Table)
    titles = [panel.title for panel in build_chart(dataset, Entry("scores")).panels]
    assert titles == ["Mean c_vlm", "Mean r_vlm"]


def test_reports_speak_of_the_task_and_not_of_driving(claimed):
    for kind in TABLES:
        table = build_table(claimed, Entry(kind))
        words = " ".join([table.title, table.caption, *(f"{one.heading} {one.hint}" for one in table.columns)])
        assert "driv" not in words.replace("metadrive", "")
