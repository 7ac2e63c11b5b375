"""An export holds what the runs hold, is whole or absent, is the same each time, and overwrites nothing of others."""

import csv
import json
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from report_runs import EPOCHS, PLAIN, SIGNAL, costs_with, write_evaluation, write_run, write_study

import vlmsafe
from vlmsafe.cli import main
from vlmsafe.errors import EXIT_BAD_INPUT, InputError
from vlmsafe.export.folder import MARK
from vlmsafe.runs.run import Run

SEEDS = (42, 123)
EVERYTHING = "all comparisons"
KEY = ["env", "arm", "run", "seed"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study") / "runs", SEEDS)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def no_notes(note):
    raise AssertionError(note)


# -- CSV --


def test_csv_files_hold_runs_epochs_evaluations_and_findings_in_full(study, tmp_path):
    exported = vlmsafe.export(study, csv=tmp_path / "csv", on_note=no_notes)
    runs, epochs, episodes, findings = map(rows_of, exported.paths)
    assert [path.name for path in exported.paths] == ["runs.csv", "epochs.csv", "evaluations.csv", "findings.csv"]
    assert exported.runs == len(runs) == 4
    signal = next(row for row in runs if row["arm"] == SIGNAL and row["seed"] == "42")
    run = Run.open(signal["path"])
    assert signal["signal.scorer"] == run.config.signal.scorer
    assert float(signal["learner.gamma"]) == run.config.learner.gamma
    assert json.loads(signal["learner.hidden"]) == list(run.config.learner.hidden)
    assert "run_dir" not in signal
    assert len(epochs) == 4 * EPOCHS
    own = [row for row in epochs if [row[name] for name in KEY] == [signal[name] for name in KEY]]
    recorded = run.rows("epochs")
    assert [float(row["episode_cost"]) for row in own] == [row["episode_cost"] for row in recorded]
    assert {row["signal_gap"] for row in own} == {""}
    table = pl.read_parquet(run.evaluations / "held-out.parquet")
    driven = [row for row in episodes if (row["arm"], row["seed"], row["protocol"]) == (SIGNAL, "42", "held-out")]
    assert [float(row["cost"]) for row in driven] == table["cost"].to_list()
    assert [row["violation"] for row in driven] == ["true" if value else "false" for value in table["violation"]]
    found = vlmsafe.audit(study).findings
    assert [(row["code"], row["severity"]) for row in findings] == [(one.code, str(one.severity)) for one in found]
    assert exported.findings == len(found) > 0
    assert json.loads(findings[0]["data"]) is not None


def test_every_table_of_a_checkpoint_is_exported_and_results_are_those_of_the_newest(tmp_path):
    run = write_run(tmp_path / "runs", PLAIN, 1)
    write_evaluation(run, [1.0, 2.0])
    write_evaluation(run, [9.0], "held-out-epoch-00003")
    vlmsafe.export(run.path, csv=tmp_path / "csv", mlflow=tmp_path / "mlruns")
    rows = rows_of(tmp_path / "csv" / "evaluations.csv")
    costs = [("held-out", "1.0"), ("held-out", "2.0"), ("held-out-epoch-00003", "9.0")]
    assert sorted((row["table"], row["cost"]) for row in rows) == costs
    (line,) = (tmp_path / "mlruns").glob("*/*/metrics/held-out/cost")
    assert line.read_text().split()[1:] == ["1.5", str(EPOCHS)]


def test_runs_with_other_settings_and_columns_share_a_file(tmp_path):
    write_run(tmp_path / "runs", PLAIN, 1)
    run = write_run(tmp_path / "runs", SIGNAL, 1)
    run.append("epochs", [{"epoch": EPOCHS + 1, "kl": 0.5, "progress": {"arrived": 0.25}, "digest": {"row": "ab"}}])
    vlmsafe.export(tmp_path / "runs", csv=tmp_path / "csv", findings=False)
    epochs = rows_of(tmp_path / "csv" / "epochs.csv")
    assert [row["progress.arrived"] for row in epochs if row["progress.arrived"]] == ["0.25"]
    assert not [name for name in epochs[0] if name.startswith("digest")]
    assert rows_of(tmp_path / "csv" / "findings.csv") == []


# -- MLflow --


def test_mlflow_gets_settings_metrics_tags_and_files(study, tmp_path):
    exported = vlmsafe.export(study, mlflow=tmp_path / "mlruns", on_note=no_notes)
    assert len(exported.paths) == 4
    (experiment,) = [path for path in (tmp_path / "mlruns").iterdir() if path.is_dir()]
    about = yaml.safe_load((experiment / "meta.yaml").read_text())
    assert (about["name"], about["experiment_id"]) == ("metadrive-easy", experiment.name)
    for place in exported.paths:
        meta = yaml.safe_load((place / "meta.yaml").read_text())
        assert (meta["run_id"], meta["experiment_id"]) == (place.name, experiment.name)
        assert meta["artifact_uri"] == (place / "artifacts").as_uri()
        run = Run.open((place / "tags" / "vlmsafe.path").read_text())
        assert meta["run_name"] == f"{(place / 'tags' / 'vlmsafe.arm').read_text()} {run.path.name}"
        assert (place / "params" / "seed").read_text() == str(run.config.seed)
        assert (place / "params" / "learner.gamma").read_text() == str(run.config.learner.gamma)
        lines = [line.split() for line in (place / "metrics" / "episode_cost").read_text().splitlines()]
        rows = run.rows("epochs")
        assert [(float(value), int(step)) for _, value, step in lines] == [
            (row["episode_cost"], row["epoch"]) for row in rows
        ]
        times = [int(time) for time, _, _ in lines]
        took = 1000 * sum(value for key, value in run.rows("timing")[0].items() if key != "epoch")
        assert [after - before for before, after in zip([meta["start_time"], *times], times, strict=False)] == [
            took
        ] * EPOCHS
        table = pl.read_parquet(run.evaluations / "paper.parquet")
        _, value, step = (place / "metrics" / "paper" / "cost").read_text().split()
        assert (float(value), int(step)) == (table["cost"].mean(), EPOCHS)
        assert len(rows_of(place / "artifacts" / "evaluations" / "paper.csv")) == len(table)
        kept = json.loads((place / "artifacts" / "findings.json").read_text())
        warned = sum(one["severity"] == "warning" for one in kept)
        assert (place / "metrics" / "findings" / "warning").read_text().split()[1] == str(warned)


def test_a_finding_goes_to_the_runs_that_it_is_about(study, tmp_path):
    for place in vlmsafe.export(study, mlflow=tmp_path / "mlruns").paths:
        arm = (place / "tags" / "vlmsafe.arm").read_text()
        label = yaml.safe_load((place / "meta.yaml").read_text())["run_name"]
        expected = [
            one.code
            for one in vlmsafe.audit(study).findings
            if one.subject.scope == "all"
            or label in one.subject.runs
            or (not one.subject.runs and arm in one.subject.arms)
        ]
        assert [one["code"] for one in json.loads((place / "artifacts" / "findings.json").read_text())] == expected
        assert expected


def test_runs_of_an_earlier_export_stay_and_one_that_is_exported_again_is_replaced(study, tmp_path):
    runs = sorted(path.parent for path in study.rglob("config.yaml"))
    (first,) = vlmsafe.export(runs[0], mlflow=tmp_path / "mlruns").paths
    (first / "metrics" / "stale").write_text("0 1.0 1\n")
    vlmsafe.export(runs[1], mlflow=tmp_path / "mlruns")
    assert (first / "metrics" / "stale").exists()
    vlmsafe.export(study, mlflow=tmp_path / "mlruns")
    assert not (first / "metrics" / "stale").exists()
    assert len(list((tmp_path / "mlruns").glob("*/*/meta.yaml"))) == 4


class Killed(BaseException):
    pass


def killed_at(number):
    """A method that writes a file, and kills the process instead at the given one."""
    real, count = Path.write_text, 0

    def write_text(self, *arguments, **options):
        nonlocal count
        count += 1
        if count == number:
            raise Killed
        return real(self, *arguments, **options)

    return write_text


@pytest.mark.parametrize("again", [False, True])
def test_an_export_that_is_killed_leaves_whole_runs_only_and_can_be_repeated(study, tmp_path, monkeypatch, again):
    runs = sorted(path.parent for path in study.rglob("config.yaml"))[:2]
    whole = {place.name: content(place) for place in vlmsafe.export(runs, mlflow=tmp_path / "mlruns").paths}
    expected = content(tmp_path / "mlruns")
    shutil.rmtree(tmp_path / "mlruns")
    for number in range(1, 1000, 23):
        if again:
            vlmsafe.export(runs, mlflow=tmp_path / "mlruns", findings=False)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", killed_at(number))
            try:
                vlmsafe.export(runs, mlflow=tmp_path / "mlruns")
                finished = True
            except Killed:
                finished = False
        found = list((tmp_path / "mlruns").glob("[0-9]*/*/meta.yaml"))
        assert len(found) == 2 if again else len(found) <= 2
        for meta in found:
            assert again or content(meta.parent) == whole[meta.parent.name]
        if finished:
            break
    assert finished
    assert number > 100
    assert content(tmp_path / "mlruns") == expected


def test_the_real_mlflow_reads_it(study, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    vlmsafe.export(study, mlflow=tmp_path / "mlruns")
    client = MlflowClient(tracking_uri=str(tmp_path / "mlruns"))
    (experiment,) = client.search_experiments()
    runs = client.search_runs([experiment.experiment_id], "params.seed = '42'")
    assert {run.data.tags["vlmsafe.arm"] for run in runs} == {PLAIN, SIGNAL}
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "episode_cost")
        rows = Run.open(run.data.tags["vlmsafe.path"]).rows("epochs")
        assert [(one.step, one.value) for one in history] == [(row["epoch"], row["episode_cost"]) for row in rows]


# -- Weights & Biases --


def test_a_missing_wandb_is_one_line_with_the_command_and_nothing_is_written(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit) as exit_:
        main(["export", str(study), "--csv", str(tmp_path / "csv"), "--wandb", str(tmp_path / "wandb")])
    assert exit_.value.code == EXIT_BAD_INPUT
    assert "install it with: pip install wandb" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_the_real_wandb_writes_runs_that_are_replaced_when_exported_again(study, tmp_path):
    pytest.importorskip("wandb")
    exported = vlmsafe.export(study, wandb=tmp_path / "wandb")
    assert len(exported.paths) == 4
    assert vlmsafe.export(study, wandb=tmp_path / "wandb") == exported
    for place in exported.paths:
        assert len(list(place.glob("run-*.wandb"))) == 1
        assert len(rows_of(place / "files" / "evaluations" / "held-out.csv")) == 20
        assert json.loads((place / "files" / "findings.json").read_text())
    assert {path.name for path in (tmp_path / "wandb").iterdir()} == {MARK, *(path.name for path in exported.paths)}


# -- every format --


def test_the_same_command_again_gives_the_same_files(study, tmp_path):
    first, places = None, {"csv": tmp_path / "csv", "mlflow": tmp_path / "mlruns"}
    for _ in range(2):
        vlmsafe.export([study], **places)
        before, first = first, content(tmp_path)
    assert first == before
    assert len(first) > 100


def test_a_run_that_cannot_be_read_is_told_and_the_others_are_exported(tmp_path):
    run = write_run(tmp_path / "runs", PLAIN, 1)
    write_evaluation(run, costs_with(1))
    write_evaluation(run, costs_with(2), "paper")
    (run.evaluations / "paper.parquet").write_bytes(b"rubbish")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.yaml").write_text("env: [")
    notes = []
    assert vlmsafe.export(tmp_path / "runs", csv=tmp_path / "csv", on_note=notes.append).runs == 1
    assert any("not exported" in note and "broken" in note for note in notes)
    assert any("paper.parquet is damaged" in note for note in notes)
    assert {row["table"] for row in rows_of(tmp_path / "csv" / "evaluations.csv")} == {"held-out"}
    assert "unreadable-run" in {row["code"] for row in rows_of(tmp_path / "csv" / "findings.csv")}
    shutil.rmtree(run.path)
    with pytest.raises(InputError, match=r"no run can be read: .*broken"):
        vlmsafe.export(tmp_path / "runs", csv=tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("form", ["csv", "mlflow"])
def test_nothing_of_others_is_overwritten(study, tmp_path, form):
    other, file = tmp_path / "other", tmp_path / "file"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    file.write_text("mine")
    earlier = tmp_path / "earlier"
    vlmsafe.export(study, **{"mlflow" if form == "csv" else "csv": earlier}, findings=False)
    before = content(tmp_path)
    for folder, message in (
        (other, r"holds other things \(thesis.tex\), and nothing is overwritten"),
        (file, "is a file; expected a folder"),
        (earlier, "holds an export for (csv|mlflow) already"),
        (study / "export", "lies in .*, which is exported"),
        (study, "lies in .*, which is exported"),
    ):
        with pytest.raises(InputError, match=message):
            vlmsafe.export(study, **{form: folder})
    assert content(tmp_path) == before
    assert not (study / "export").exists()


def test_what_cannot_be_exported_is_one_line(study, tmp_path):
    with pytest.raises(InputError, match="no format; expected --csv DIR, --mlflow DIR or --wandb DIR"):
        vlmsafe.export(study)
    with pytest.raises(InputError, match="give each a folder of its own"):
        vlmsafe.export(study, csv=tmp_path / "x", mlflow=tmp_path / "x")
    with pytest.raises(InputError, match="no runs; expected a folder"):
        vlmsafe.export([], csv=tmp_path / "x")
    with pytest.raises(InputError, match="there is no"):
        vlmsafe.export(tmp_path / "nowhere", csv=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_command_says_what_it_wrote(study, tmp_path, capsys):
    main(["export", str(study), "--csv", str(tmp_path / "csv"), "--mlflow", str(tmp_path / "mlruns"), "--no-findings"])
    out = capsys.readouterr().out
    assert "4 runs, 0 findings" in out
    assert f"mlflow: {tmp_path / 'mlruns'}" in out
    with pytest.raises(SystemExit) as exit_:
        main(["export", str(study)])
    assert exit_.value.code == EXIT_BAD_INPUT


def test_names_that_a_tool_refuses_are_replaced_and_stay_apart(tmp_path):
    run = write_run(tmp_path / "runs", PLAIN, 1)
    run.append("epochs", [{"epoch": 20, "progress": {"speed (m/s)": 1.0, "../../up": 2.0, "a:b": 3.0, "a;b": 4.0}}])
    (place,) = vlmsafe.export(run.path, mlflow=tmp_path / "mlruns", findings=False).paths
    kept = {str(path.relative_to(place / "metrics")) for path in (place / "metrics").rglob("*") if path.is_file()}
    assert {"progress/speed _m/s_", "progress/up", "progress/a_b", "progress/a_b_2"} <= kept
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "mlruns"}
