"""A diagnosis holds what the analysis gives for the runs it was asked for, and says what it left out."""

import csv
import json
from pathlib import Path

import polars as pl
import pytest
from report_runs import write_evaluation, write_run
from traces import two_arms

from vlmsafe import evaluate, train
from vlmsafe.analysis.gate_roc import gate_cells, gate_roc, gate_thresholds
from vlmsafe.analysis.lead_time import lead_lag, lead_time
from vlmsafe.analysis.multiplier_replay import AGREEMENT, replay, summarise
from vlmsafe.cli import main
from vlmsafe.errors import InputError, RunError
from vlmsafe.report.build import build_table
from vlmsafe.report.diagnose import DIAGNOSES, diagnose, read_sources
from vlmsafe.report.request import AnalysisOptions, Entry
from vlmsafe.runs.run import Run

FEW = AnalysisOptions(episodes=None, resamples=20, by_run=True, onsets=0)


def steps_of(arm, run):
    return two_arms(contact=0.2).filter(arm=arm, run=run).drop("arm", "run")


def put(table, path):
    path.parent.mkdir(exist_ok=True)
    table.write_parquet(path)
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds of an arm with a signal and one of an arm without, the first two with traces and evaluations."""
    folder = tmp_path_factory.mktemp("study")
    for arm, method, seed in (("shaped", "vlm-ppo-lag", 1), ("shaped", "vlm-ppo-lag", 2), ("plain", "ppo-lag", 1)):
        signal = {"scorer": "oracle", "every": 4} if arm == "shaped" else {}
        run = train(env="braking", method=method, seed=seed, total_steps=800, steps_per_epoch=400,
                    learner={"update_iters": 1}, signal=signal, quiet=True,
                    run_dir=str(folder / arm / f"seed-{seed}"))  # fmt: skip
        if arm == "shaped":
            evaluate(run, episodes=4, processes=1)
            put(steps_of("shaped", f"seed-{seed - 1}"), run.path / "traces" / "held-out.parquet")
    return folder


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    """A run of another environment."""
    return train(env="speeding", method="ppo-lag", total_steps=200, steps_per_epoch=200, quiet=True,
                 learner={"update_iters": 1}, run_dir=str(tmp_path_factory.mktemp("other") / "fast"))  # fmt: skip


@pytest.fixture(scope="module")
def shaped(study):
    return read_sources([study / "shaped"], FEW)


def records(diagnosis, kind):
    return diagnosis.as_dict()["tables"][kind]


def pick(rows, **wanted):
    (found,) = (row for row in rows if all(row[name] == value for name, value in wanted.items()))
    return found


def test_multiplier_replays_every_run_with_a_signal_and_notes_the_others(study):
    found = diagnose("multiplier", read_sources([study], FEW), "braking")
    rows = records(found, "multiplier-runs")
    assert [(row["arm"], row["run"]) for row in rows] == [("shaped", "all"), ("shaped", "seed-1"), ("shaped", "seed-2")]
    assert {row["agrees"] for row in rows} == {"yes"}
    assert found.notes == ["plain seed-1: eta_2 (multiplier.signal_weight) is 0, so there is no term to remove"]
    run = Run.open(study / "shaped" / "seed-2")
    replayed = replay(run.rows("epochs"), run.config.multiplier)
    own = [row for row in records(found, "multiplier-epochs") if row["run"] == "seed-2"]
    assert [row["change"] for row in own] == replayed["change"].to_list()
    summary = summarise(replayed)
    assert pick(rows, run="seed-2")["largest_change"] == summary.largest_change > 0
    assert pick(records(found, "multiplier-terms"), run="seed-2")["budget_shift"] == summary.budget_shift
    with pytest.raises(InputError, match=r"no arm has a signal term in its multiplier; plain seed-1: eta_2"):
        diagnose("multiplier", read_sources([study / "plain"], FEW), "braking")


def test_lead_time_holds_what_the_analysis_gives_for_all_traced_episodes(shaped):
    steps = two_arms(contact=0.2).filter(arm="shaped")
    steps = steps.with_columns(run=pl.col("run").replace({"seed-0": "seed-1", "seed-1": "seed-2"}))
    found = diagnose("lead-time", shaped, "braking")
    wanted = lead_time(steps, resamples=20)
    rows = records(found, "lead-time-runs")
    assert [(row["auc"], row["auc_low"], row["positives"]) for row in rows] == wanted.select(
        "auc", "low", "positives"
    ).rows()
    pooled = pick(records(found, "lead-time-aucs"), signal="c_vlm", form="standardised")
    known = wanted.filter(pl.col("run").is_null(), signal="negative", form="standardised", horizon=20)
    assert (pooled["k_20"], pooled["k_20_low"]) == known.select("auc", "low").row(0)
    assert [row["total"] for row in records(found, "lead-time-counts")] == [48, 96]
    (lags,) = records(found, "lead-lag")
    assert lags["lag_5"] == lead_lag(steps).filter(lag=5)["spearman"].item()
    assert found.reading == "c_vlm does not meet the criterion: shaped."


def test_gate_holds_what_the_analysis_gives_with_the_options_of_the_command(study):
    steps = two_arms(contact=0.2).filter(arm="shaped")
    steps = steps.with_columns(run=pl.col("run").replace({"seed-0": "seed-1", "seed-1": "seed-2"}))
    options = AnalysisOptions(episodes=None, resamples=20, seed=3, frames=30)
    found = diagnose("gate", read_sources([study / "shaped"], options), "braking")
    cells = gate_cells(steps, frames=30)
    assert [row["kappa_q75"] for row in records(found, "gate-cells")] == cells["kappa_q75"].to_list()
    assert {row["frames"] for row in records(found, "gate-margins")} == {30}
    roc = gate_roc(steps, resamples=20, seed=3)
    assert [row["auc_low"] for row in records(found, "gate-roc")] == roc["low"].to_list()
    flagged = gate_thresholds(steps, seed=3).filter(threshold=0.5, half=2)["precision"].item()
    row = pick(records(found, "gate-thresholds"), gate="κ, calibrated on others, half 2", measure="precision")
    assert row["at_0.5"] == flagged


def test_returns_read_epochs_and_what_evaluations_there_are(study):
    options = AnalysisOptions(passive_below=5.0)
    found = diagnose("returns", read_sources([study], options), "braking")
    assert [(row["arm"], row["run"]) for row in records(found, "returns-runs")] == [
        ("plain", "seed-1"), ("shaped", "mean"), ("shaped", "seed-1"), ("shaped", "seed-2"),
    ]  # fmt: skip
    assert {row["n"] for row in records(found, "cost-correlations") if row["level"] == "episodes"} == {8.0}
    assert [row["episodes"] for row in records(found, "passive-runs")] == [8.0, 4.0, 4.0]
    assert {row["threshold"] for row in records(found, "passive-runs")} == {5.0}
    (note,) = found.notes
    assert note.startswith("plain seed-1 has no evaluation")
    assert note.endswith(f"vlmsafe evaluate {study / 'plain' / 'seed-1'}")
    bare = diagnose("returns", read_sources([study / "plain"], options), "braking")
    assert list(bare.as_dict()["tables"]) == ["returns-runs"]
    assert bare.reading == "No logged return has a bonus in it."


@pytest.mark.parametrize("name", DIAGNOSES)
def test_every_table_and_figure_is_written_as_the_report_writes_it(name, shaped, tmp_path):
    found = diagnose(name, shaped, "braking")
    written = {path.name for path in found.write(tmp_path / "out")}
    assert written == {path.name for path in (tmp_path / "out").iterdir()}
    assert {f"table-{table.name}.{ending}" for table in found.tables for ending in ("csv", "json", "tex", "md")} <= (
        written
    )
    assert {f"figure-{chart.name}.{ending}" for chart in found.charts for ending in ("csv", "png", "pdf")} <= written
    assert found.charts
    for kind, rows in found.as_dict()["tables"].items():
        assert json.loads((tmp_path / "out" / f"table-{kind}.json").read_text()) == rows
        with (tmp_path / "out" / f"table-{kind}.csv").open() as file:
            assert [list(row) for row in csv.DictReader(file)] == [list(row) for row in rows]


def test_tables_and_figures_without_contact_are_noted_and_the_others_are_there(tmp_path):
    calm = put(steps_of("plain", "seed-0").with_columns(cost=pl.lit(0.0)), tmp_path / "calm.parquet")
    dataset = read_sources([calm], FEW)
    found = diagnose("lead-time", dataset, "")
    assert "Lead time: no traced episode has a contact, so there is nothing to rise before" in found.notes
    assert "score-variability" in found.as_dict()["tables"]
    found = diagnose("gate", dataset, "")
    assert found.notes == ["Gate and contact: no traced frame is in contact"]
    assert [chart.name for chart in found.charts] == ["gate-cells"]


def test_an_arm_with_fewer_onsets_than_the_audit_takes_has_no_figures_on_contact_and_a_line_says_so(tmp_path, capsys):
    steps = steps_of("plain", "seed-0")
    once = pl.when((pl.col("episode") == 0) & (pl.col("step") == 9)).then(1.0).otherwise(0.0)
    rare = put(steps.with_columns(cost=once), tmp_path / "rare.parquet")
    often = put(steps_of("shaped", "seed-0"), tmp_path / "often.parquet")
    main(["diagnose", "lead-time", str(rare), str(often), "--resamples", "20", "--json"])
    said = capsys.readouterr()
    (answer,) = json.loads(said.out)
    assert {row["arm"] for row in answer["tables"]["lead-time-aucs"]} == {"often"}
    assert {row["arm"] for row in answer["tables"]["score-variability"]} == {"often", "rare"}
    line = "rare has 1 onset of contact in its traces, and the audit needs at least 10: it has no figures on contact"
    assert f"note: {line}" in said.err
    assert answer["notes"] == [line]
    main(["diagnose", "lead-time", str(rare), "--resamples", "20"])
    said = capsys.readouterr()
    assert "there are too few onsets of contact" in said.out
    assert "note: Lead time: no arm has 10 onsets of contact in its traces" in said.err


def test_runs_of_different_environments_are_kept_apart(study, fast, tmp_path):
    lone = put(steps_of("plain", "seed-0"), tmp_path / "x.parquet")
    dataset = read_sources([study / "plain", fast.path, lone], FEW)
    assert set(dataset.environments) == {"braking", "speeding", ""}
    assert diagnose("gate", dataset, "").as_dict()["env"] is None
    found = diagnose("returns", dataset, "speeding")
    assert [row["run"] for row in records(found, "returns-runs")] == ["fast"]


def test_trace_in_a_run_belongs_to_it_and_lone_traces_of_one_name_keep_their_paths(study, tmp_path):
    own = study / "shaped" / "seed-1" / "traces" / "held-out.parquet"
    dataset = read_sources([own], FEW)
    assert [run.label for run in dataset.runs] == ["shaped seed-1"]
    with pytest.raises(InputError, match="shaped seed-1 was given twice"):
        read_sources([own, study / "shaped"], FEW)
    other = put(steps_of("plain", "seed-0")[:30], study / "shaped" / "seed-1" / "traces" / "another.parquet")
    (run,) = read_sources([other], FEW, "paper").runs
    assert {name: len(table) for name, table in run.traces.items()} == {"paper": 30}, "a file comes before a protocol"
    other.unlink()
    one, two = (put(steps_of("plain", "seed-0"), tmp_path / name / "t.parquet") for name in ("a", "b"))
    assert list(read_sources([one, two], FEW).lone_traces) == [str(one), str(two)]
    with pytest.raises(InputError, match=r"there is no gone\.parquet"):
        read_sources([Path("gone.parquet")], FEW)


def test_protocol_is_held_out_else_the_only_one_and_otherwise_asked_for(tmp_path):
    run = train(env="braking", method="ppo-lag", total_steps=400, steps_per_epoch=400, quiet=True,
                learner={"update_iters": 1}, run_dir=str(tmp_path / "r"))  # fmt: skip

    def frames(protocol=None):
        found = diagnose("gate", read_sources([run.path], FEW, protocol), "braking", protocol)
        return records(found, "gate")[0]["frames"]

    with pytest.raises(InputError, match=f"r has no trace; record one with: vlmsafe trace {run.path}$"):
        frames()
    with pytest.raises(
        InputError, match=f"no trace 'paper'; record one with: vlmsafe trace {run.path} --protocol paper"
    ):
        frames("paper")
    table = steps_of("plain", "seed-0")
    put(table[:30], run.path / "traces" / "paper.parquet")
    put(table, run.path / "traces" / "paper-frames.parquet")
    assert frames() == 30
    put(table[:40], run.path / "traces" / "other.parquet")
    with pytest.raises(InputError, match="choose with --protocol: other, paper"):
        frames()
    put(table, run.path / "traces" / "held-out.parquet")
    assert (frames(), frames("paper")) == (len(table), 30)
    note = diagnose("returns", read_sources([run.path], FEW), "braking", "paper").notes[0]
    assert note.endswith(f"vlmsafe evaluate {run.path} --protocol paper")


def test_file_that_is_no_table_and_trace_where_a_run_is_needed_are_refused(study, tmp_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not a table")
    with pytest.raises(RunError, match=r"broken\.parquet is damaged"):
        read_sources([broken], FEW)
    lone = put(steps_of("plain", "seed-0"), tmp_path / "lone.parquet")
    with pytest.raises(InputError, match="diagnose multiplier reads run directories; lone is a trace"):
        diagnose("multiplier", read_sources([lone], FEW), "")
    blind = put(steps_of("plain", "seed-0").drop("negative"), tmp_path / "blind.parquet")
    with pytest.raises(InputError, match="recorded without a scorer"):
        diagnose("gate", read_sources([blind], FEW), "")


def test_a_damaged_trace_of_a_run_is_named(study, tmp_path):
    run = train(env="braking", method="ppo-lag", total_steps=400, steps_per_epoch=400, quiet=True,
                learner={"update_iters": 1}, run_dir=str(tmp_path / "r"))  # fmt: skip
    (run.path / "traces").mkdir(exist_ok=True)
    (run.path / "traces" / "held-out.parquet").write_bytes(b"not a table")
    with pytest.raises(InputError, match=r"held-out\.parquet is damaged"):
        diagnose("gate", read_sources([run.path], FEW), "braking")


def test_replay_that_is_not_the_record_is_called_out(study, tmp_path):
    run = train(env="braking", method="vlm-ppo-lag", total_steps=800, steps_per_epoch=400, quiet=True,
                signal={"scorer": "oracle", "every": 4}, learner={"update_iters": 1},
                run_dir=str(tmp_path / "arm" / "seed-1"))  # fmt: skip
    assert not build_table(read_sources([run.path], FEW), Entry("multiplier-runs")).notes
    rows = [json.loads(line) for line in (run.path / "epochs.jsonl").read_text().splitlines()]
    rows[-1]["multiplier"] += 10 * AGREEMENT
    (run.path / "epochs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (note,) = build_table(read_sources([run.path], FEW), Entry("multiplier-runs")).notes
    assert "in arm seed-1: these figures cannot be believed" in note


@pytest.mark.parametrize("name", DIAGNOSES)
def test_command_prints_tables_or_json_and_writes_files(name, study, tmp_path, capsys):
    main(["diagnose", name, str(study / "shaped"), "--resamples", "20", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert "(braking)" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 120
    assert "None" not in printed.out
    assert f"files in {tmp_path / 'out'}" in printed.err
    assert any(path.suffix == ".png" for path in (tmp_path / "out").iterdir())
    main(["diagnose", name, str(study / "shaped"), "--resamples", "20", "--json"])
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["diagnosis"], answer["env"], answer["notes"]) == (name, "braking", [])
    assert answer["tables"] == diagnose(name, read_sources([study / "shaped"], FEW), "braking").as_dict()["tables"]


def test_several_environments_get_folders_of_their_own(study, fast, tmp_path, capsys):
    main(["diagnose", "returns", str(study), str(fast.path), "--out", str(tmp_path / "out")])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["braking", "speeding"]
    assert "note: plain seed-1 has no evaluation" in capsys.readouterr().err.replace("\n", " ")


def test_command_without_a_trace_names_the_command_that_records_one(study, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["diagnose", "lead-time", str(study / "plain")])
    assert stopped.value.code == 2
    assert f"vlmsafe trace {study / 'plain' / 'seed-1'}" in capsys.readouterr().err.replace("\n", "")
    with pytest.raises(SystemExit) as stopped:
        main(["diagnose", "gate"])
    assert stopped.value.code == 2


def test_a_table_of_a_certain_epoch_can_be_named(study):
    run = Run.open(study / "shaped" / "seed-1")
    name = "held-out-epoch-00001"
    trace, evaluation = (folder / f"{name}.parquet" for folder in (run.traces, run.evaluations))
    put(steps_of("shaped", "seed-0").head(40), trace)
    evaluate(run, episodes=2, epoch=1, processes=1)
    try:
        dataset = read_sources([run.path], FEW, name)
        (found,) = dataset.runs
        assert (len(found.traces[name]), len(found.evaluations[name])) == (40, 2)
        assert diagnose("gate", dataset, "braking", name).tables
        assert diagnose("returns", dataset, "braking", name).tables
    finally:
        trace.unlink()
        evaluation.unlink()


def test_one_of_several_evaluations_must_be_chosen_unless_one_is_held_out(tmp_path):
    run = write_run(tmp_path, "ppo-lag", 1, env="metadrive-easy")
    for name in ("other", "paper"):
        write_evaluation(run, [1.0, 2.0], name)
    with pytest.raises(InputError, match="choose with --protocol: other, paper"):
        diagnose("returns", read_sources([run.path], FEW), "metadrive-easy")
    write_evaluation(run, [3.0], "held-out")
    shown = diagnose("returns", read_sources([run.path], FEW), "metadrive-easy")
    assert not any("no evaluation" in note for note in shown.notes)
