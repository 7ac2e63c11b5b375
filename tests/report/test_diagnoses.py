"""A diagnosis holds what the analysis gives for the runs it was asked for, and says what it left out."""

import io
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from traces import two_arms

from vlmsafe import evaluate, train
from vlmsafe.analysis.gate_roc import gate_cells, gate_roc
from vlmsafe.analysis.lead_time import lead_time, verdicts
from vlmsafe.analysis.multiplier_replay import replay
from vlmsafe.cli import main
from vlmsafe.errors import InputError, RunError
from vlmsafe.report.diagnoses import (
    DIAGNOSES,
    Diagnosis,
    Settings,
    diagnose,
    draw,
    write,
)
from vlmsafe.report.inputs import (
    evaluations,
    runs_only,
    scorer_of,
    sources,
    traces,
)
from vlmsafe.report.text import rendered
from vlmsafe.runs.run import Run

FEW = Settings(resamples=20)


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
def shaped(study):
    groups, _ = sources([study / "shaped"])
    return groups["braking"]


def test_multiplier_replays_every_run_with_a_signal_and_notes_the_others(study):
    groups, problems = sources([study])
    found = diagnose("multiplier", "braking", groups["braking"], FEW)
    table = found.tables["multiplier"]
    assert table.select("arm", "run", "runs").rows() == [
        ("shaped", None, 2),
        ("shaped", "seed-1", 1),
        ("shaped", "seed-2", 1),
    ]
    assert table["agrees"].all()
    assert (table["largest_change"] > 0).all()
    assert (found.notes, problems) == (
        ["plain seed-1: eta_2 (multiplier.signal_weight) is 0, so there is no term to remove"],
        [],
    )
    run = Run.open(study / "shaped" / "seed-2")
    own = found.tables["multiplier-epochs"].filter(run="seed-2").drop("arm", "run")
    assert own.equals(replay(run.rows("epochs"), run.config.multiplier))
    with pytest.raises(InputError, match=r"nothing to replay\. plain seed-1: eta_2"):
        diagnose("multiplier", "braking", sources([study / "plain"])[0]["braking"], FEW)


def test_lead_time_and_gate_hold_what_the_analysis_gives_for_the_traces(shaped):
    steps = (
        two_arms(contact=0.2)
        .filter(arm="shaped")
        .with_columns(run=pl.col("run").replace({"seed-0": "seed-1", "seed-1": "seed-2"}))
    )
    found = diagnose("lead-time", "braking", shaped, FEW).tables
    assert found["lead-time"].equals(lead_time(steps, resamples=20))
    assert found["lead-time-verdicts"].equals(verdicts(lead_time(steps, resamples=20)))
    assert found["lead-time-counts"].select("of", "total").rows() == [("pools", 48), ("runs", 96)]
    gates = diagnose("gate", "braking", shaped, Settings(resamples=20, frames=30)).tables
    assert gates["gate-cells"].equals(gate_cells(steps, frames=30))
    assert gates["gate-roc"].equals(gate_roc(steps, resamples=20))
    assert set(gates["gate-medians"]["run"]) == {"seed-1", "seed-2"}


def test_returns_read_epochs_and_what_evaluations_there_are(study):
    groups, _ = sources([study])
    found = diagnose("returns", "braking", groups["braking"], Settings(passive_below=5.0))
    assert found.tables["returns"].drop_nulls("run")["run"].to_list() == ["seed-1", "seed-1", "seed-2"]
    assert found.tables["cost-correlations"].filter(level="episodes")["n"].unique().to_list() == [8]
    assert found.tables["passive-episodes"]["episodes"].to_list() == [8, 4, 4]
    (note,) = found.notes
    assert note.startswith("plain seed-1 has no evaluation")
    assert f"vlmsafe evaluate {study / 'plain' / 'seed-1'}" in note
    bare = diagnose("returns", "braking", sources([study / "plain"])[0]["braking"], Settings(passive_below=5.0))
    assert list(bare.tables) == ["returns"]


@pytest.mark.parametrize("name", DIAGNOSES)
def test_every_table_and_figure_is_written_and_reads_back_equal(name, shaped, tmp_path):
    found = diagnose(name, "braking", shaped, Settings(resamples=20, passive_below=5.0))
    paths, notes = write(found, tmp_path / "out")
    drawn, _ = draw(found)
    expected = {f"{table}.{kind}" for table in found.tables for kind in ("csv", "json")}
    expected |= {f"{figure}.{kind}" for figure in drawn for kind in ("png", "pdf")}
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "out").iterdir()} == expected
    assert drawn
    assert notes == []
    for table, wanted in found.tables.items():
        assert pl.read_csv(tmp_path / "out" / f"{table}.csv", schema=wanted.schema).equals(wanted)
        rows = json.loads((tmp_path / "out" / f"{table}.json").read_text())
        assert [list(row) for row in rows] == [wanted.columns] * len(wanted)


def test_figure_without_data_is_noted_and_the_others_are_drawn():
    quiet = lead_time(two_arms().with_columns(cost=pl.lit(0.0)), resamples=5)
    drawn, notes = draw(Diagnosis("lead-time", None, {"lead-time": quiet, "gate-cells": gate_cells(two_arms())}))
    assert list(drawn) == ["gate-cells"]
    assert notes == ["no figure lead-time: nothing to draw: no AUC: no arm has steps with and without a contact ahead"]


def test_runs_of_different_environments_are_kept_apart(study, tmp_path):
    other = train(env="speeding", method="ppo-lag", total_steps=200, steps_per_epoch=200, quiet=True,
                  learner={"update_iters": 1}, run_dir=str(tmp_path / "fast"))  # fmt: skip
    lone = put(steps_of("plain", "seed-0"), tmp_path / "x.parquet")
    groups, _ = sources([study / "plain", other.path, lone])
    assert {env: [(one.arm, one.name) for one in group] for env, group in groups.items()} == {
        "braking": [("plain", "seed-1")],
        "speeding": [("ppo-lag", "fast")],
        None: [("x", "x")],
    }


def test_trace_in_a_run_belongs_to_it_and_lone_traces_of_one_name_keep_their_paths(study, tmp_path):
    own = study / "shaped" / "seed-1" / "traces" / "held-out.parquet"
    groups, _ = sources([own])
    assert [(one.title, one.trace) for one in groups["braking"]] == [("shaped seed-1", own)]
    with pytest.raises(InputError, match="shaped seed-1 was given twice"):
        sources([own, study / "shaped" / "seed-1"])
    one, other = (put(steps_of("plain", "seed-0"), tmp_path / name / "t.parquet") for name in ("a", "b"))
    assert [source.title for source in sources([one, other])[0][None]] == [str(one), str(other)]
    with pytest.raises(InputError, match=r"there is no gone\.parquet"):
        sources([Path("gone.parquet")])


def test_protocol_is_held_out_else_the_only_one_and_otherwise_asked_for(study, tmp_path):
    run = train(env="braking", method="ppo-lag", total_steps=400, steps_per_epoch=400, quiet=True,
                learner={"update_iters": 1}, run_dir=str(tmp_path / "r"))  # fmt: skip
    (group,) = sources([run.path])[0].values()
    with pytest.raises(InputError, match=f"r has no trace; record one with: vlmsafe trace {run.path}$"):
        traces(group, None)
    with pytest.raises(
        InputError, match=f"no trace 'paper'; record one with: vlmsafe trace {run.path} --protocol paper"
    ):
        traces(group, "paper")
    table = steps_of("plain", "seed-0")
    put(table[:30], run.path / "traces" / "paper.parquet")
    put(table, run.path / "traces" / "paper-frames.parquet")
    assert traces(group, None)["ppo-lag"]["r"].equals(table[:30])
    put(table, run.path / "traces" / "other.parquet")
    with pytest.raises(InputError, match="choose with --protocol: other, paper"):
        traces(group, None)
    put(table, run.path / "traces" / "held-out.parquet")
    assert traces(group, None)["ppo-lag"]["r"].equals(table)
    assert traces(group, "paper")["ppo-lag"]["r"].equals(table[:30])
    found, notes = evaluations(runs_only(group, "returns"), "paper")
    assert found == {}
    assert notes[0].endswith(f"vlmsafe evaluate {run.path} --protocol paper")


def test_file_that_is_no_table_and_trace_where_a_run_is_needed_are_refused(tmp_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not a table")
    (group,) = sources([broken])[0].values()
    with pytest.raises(RunError, match=r"broken\.parquet is damaged"):
        traces(group, None)
    with pytest.raises(InputError, match=r"diagnose multiplier reads run directories; .*broken\.parquet is a trace"):
        diagnose("multiplier", None, group, FEW)


def test_scorer_is_the_only_one_or_the_one_that_was_named():
    table = steps_of("plain", "seed-0")
    two = table.rename({name: f"clip_{name}" for name in ("positive", "negative", "margin")})
    assert scorer_of(table, None) == ""
    assert scorer_of(two, None) == scorer_of(two, "clip") == "clip"
    several = two.with_columns(oracle_negative=pl.lit(0.0))
    with pytest.raises(InputError, match="several scorers; choose one with --scorer: clip, oracle"):
        scorer_of(several, None)
    with pytest.raises(InputError, match="no scorer 'rnd'; it has: clip, oracle"):
        scorer_of(several, "rnd")
    assert scorer_of(table.drop("negative"), None) == "", "the analysis then says that there is none"


@pytest.mark.parametrize("name", DIAGNOSES)
def test_command_prints_tables_or_json_and_writes_files(name, study, tmp_path, capsys):
    main(["diagnose", name, str(study / "shaped"), "--resamples", "20", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert "braking" in printed.out
    assert "seed-1" in printed.out or "2 runs" in printed.out
    assert f"files in {tmp_path / 'out'}" in printed.err
    assert any(path.suffix == ".png" for path in (tmp_path / "out").iterdir())
    main(["diagnose", name, str(study / "shaped"), "--resamples", "20", "--json"])
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["diagnosis"], answer["env"], answer["notes"]) == (name, "braking", [])
    (group,) = sources([study / "shaped"])[0].values()
    assert {table: len(rows) for table, rows in answer["tables"].items()} == {
        table: len(rows) for table, rows in diagnose(name, "braking", group, FEW).tables.items()
    }


def test_several_environments_get_folders_of_their_own(study, tmp_path, capsys):
    other = train(env="speeding", method="ppo-lag", total_steps=200, steps_per_epoch=200, quiet=True,
                  learner={"update_iters": 1}, run_dir=str(tmp_path / "fast"))  # fmt: skip
    main(["diagnose", "returns", str(study), str(other.path), "--out", str(tmp_path / "out")])
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


def printed(diagnosis):
    console = Console(width=120, file=io.StringIO())
    for part in rendered(diagnosis):
        console.print(part)
    return console.file.getvalue()


def test_text_gives_aucs_with_intervals_and_a_verdict_per_signal(shaped):
    found = diagnose("lead-time", "braking", shaped, FEW)
    text = printed(found)
    pooled = found.tables["lead-time"].filter(pl.col("run").is_null())
    for row in pooled.filter(pl.col("horizon").is_in([5, 10, 20, 40])).iter_rows(named=True):
        assert f"{row['auc']:.3f} [{row['low']:.2f}, {row['high']:.2f}]" in text
    assert text.count("not met") == 4, "the made-up signals warn of nothing"
    assert max(map(len, text.splitlines())) <= 120
    flipped = found.tables["lead-time-verdicts"].with_columns(passes=pl.col("signal") == "negative")
    text = printed(Diagnosis("lead-time", None, {**found.tables, "lead-time-verdicts": flipped}))
    assert text.count("not met") == 3


def test_text_of_traces_without_contact_has_dashes_for_what_is_not_defined(tmp_path):
    calm = put(steps_of("plain", "seed-0").with_columns(cost=pl.lit(0.0)), tmp_path / "calm.parquet")
    (group,) = sources([calm])[0].values()
    for name in ("lead-time", "gate"):
        text = printed(diagnose(name, None, group, FEW))
        assert " - " in text
        assert "None" not in text
        assert "nan" not in text


def test_replay_that_is_not_the_record_is_called_out(shaped):
    found = diagnose("multiplier", "braking", shaped, FEW)
    assert "agrees with every recorded" in printed(found)
    wrong = found.tables["multiplier"].with_columns(agrees=pl.lit(False))
    assert "cannot be believed" in printed(Diagnosis("multiplier", None, {"multiplier": wrong}))


def test_tables_need_no_matplotlib():
    code = "import sys, vlmsafe.report.diagnoses, vlmsafe.report.text; print('matplotlib' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
