"""The comparison of two versions' results goes red on a changed number in each kind of file, and on nothing else."""

import csv
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from safetensors.numpy import save_file

_TOOL = Path(__file__).parents[2] / "tools" / "compare_results.py"
_SPEC = importlib.util.spec_from_file_location("compare_results", _TOOL)
tool = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)

RUN = Path("study/braking/ppo-lag/seed-1")
REPORT = Path("study/report")
FINDING = {
    "code": "too-few-seeds", "severity": "warning", "title": "too few seeds", "evidence": ["3 runs"], "fix": "train",
    "where": "braking: a against b, 'held-out'", "data": {"smallest_p": 0.1, "test": "welch", "run": "/tmp/x/seed-1"},
}  # fmt: skip
AUDIT = {
    "runs": 1, "worst": "warning", "comparisons": ["braking: a against b"], "findings": [FINDING],
    "arms": [{"env": "braking", "arm": "a", "cost": 3.5}],
    "unchecked": [{"codes": ["no-lead-time"], "where": "braking: a; braking: b", "reason": "no trace"}],
}  # fmt: skip


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_checkpoint(path, last=2.0, window=4):
    state = {"epoch": 1, "values": {"window": window, "config": {"run_dir": str(path)}}}
    save_file({"networks": np.array([1.0, last])}, path, {"state": json.dumps(state)})


@pytest.fixture
def folders(tmp_path):
    """A run, an audit and a report, twice."""
    before = tmp_path / "before"
    run = before / RUN
    for folder in ("checkpoints", "evaluations", "traces"):
        (run / folder).mkdir(parents=True)
    config = {"seed": 1, "run_dir": "somewhere", "signal": {"gate": "off"}, "recorded": {"python": "3.11"}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for name in ("epochs", "episodes"):
        rows = [{"epoch": 1, "cost": 2.5, "kappa": None}, {"epoch": 2, "cost": 3.5, "kappa": float("nan")}]
        (run / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "timing.jsonl").write_text('{"epoch": 1, "collect": 0.5}\n')
    write_checkpoint(run / "checkpoints" / "epoch-00001.safetensors")
    for folder in ("evaluations", "traces"):
        table = pl.DataFrame({"episode": [0, 1], "cost": [1.5, None], "fingerprint": ["a", "a"]})
        table.write_parquet(run / folder / "held-out.parquet")
    (run / "traces" / "held-out.json").write_text('{"every": 4, "fingerprint": "a"}')
    (before / "audit-study.json").write_text(json.dumps(AUDIT))
    cells = {"arm": "a", "cost": 2.5, "p": "14/20", "says": "not significant", "audit": "warning: few", "hours": 0.1}
    write(before / REPORT / "table-summary.csv", [cells])
    points = [{"panel": "Cost", "group": "a", "x": 1.0, "y": 2.0}, {"panel": "Cost", "group": "b", "x": 1.0, "y": 3.0}]
    write(before / REPORT / "figure-curves.csv", points)
    return before, shutil.copytree(before, tmp_path / "after")


def differing(folders, capsys):
    code = tool.main([str(folder) for folder in folders])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERENT")]
    assert code == bool(lines)
    return lines


def edit(after, name, old, new):
    path = after / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_equal_results_are_equal_and_what_is_left_out_is_said(folders, capsys):
    assert tool.main([str(folder) for folder in folders]) == 0
    said = capsys.readouterr().out
    assert "no difference" in said
    assert all(word in said for word in ("times", "versions", "paths", "fingerprints", "timing.jsonl"))


@pytest.mark.parametrize(
    ("name", "old", "new", "where"),
    [
        (RUN / "config.yaml", "seed: 1", "seed: 2", "seed: 1 before, 2 after"),
        (RUN / "config.yaml", "gate: 'off'", "gate: prior", "signal, gate"),
        (RUN / "epochs.jsonl", "3.5", "3.6", "row 2, cost: 3.5 before, 3.6 after"),
        (RUN / "epochs.jsonl", "null", "0.5", "row 1, kappa"),
        (RUN / "episodes.jsonl", "2.5", "2.5000001", "row 1, cost"),
        (RUN / "traces/held-out.json", "4", "5", "every: 4 before, 5 after"),
        ("audit-study.json", "0.1", "0.2", "finding too-few-seeds (braking a against b held-out), smallest_p"),
        ("audit-study.json", '"severity": "warning"', '"severity": "error"', "severity warning before, error after"),
        ("audit-study.json", "a against b, '", "a against c, '", "1 times before, 0 after"),
        ("audit-study.json", "3.5", "3.6", "arms[0], cost"),
        ("audit-study.json", "no-lead-time", "constant-score", "not checked"),
        ("audit-study.json", "seed-1", "seed-2", "run: "),
        (REPORT / "table-summary.csv", "2.5", "2.6", "row 1, column cost: 2.5 before, 2.6 after"),
        (REPORT / "table-summary.csv", "14/20", "15/20", "row 1, column p"),
        (REPORT / "table-summary.csv", "warning: few", "error: few", "row 1, column audit"),
        (REPORT / "figure-curves.csv", "3.0", "3.1", "row 2, column y: 3.0 before, 3.1 after"),
        (REPORT / "figure-curves.csv", "b", "c", "row 2, column group"),
    ],
)
def test_a_changed_value_is_named_by_its_file_row_and_column(folders, capsys, name, old, new, where):
    edit(folders[1], name, old, new)
    (line,) = differing(folders, capsys)
    assert line.startswith(f"DIFFERENT {name}: ")
    assert where in line


@pytest.mark.parametrize("folder", ["evaluations", "traces"])
def test_a_changed_table_is_named_by_row_and_column(folders, capsys, folder):
    path = folders[1] / RUN / folder / "held-out.parquet"
    pl.read_parquet(path).with_columns(cost=pl.Series([1.5, 0.0])).write_parquet(path)
    (line,) = differing(folders, capsys)
    assert line.endswith("held-out.parquet: row 2, column cost: None before, 0.0 after")


@pytest.mark.parametrize(
    ("change", "where"),
    [({"last": np.nextafter(2.0, 3.0)}, "array networks: 1 of 2 values"), ({"window": 5}, "state, values, window")],
)
def test_checkpoints_are_compared_bit_for_bit(folders, capsys, change, where):
    write_checkpoint(folders[1] / RUN / "checkpoints" / "epoch-00001.safetensors", **change)
    (line,) = differing(folders, capsys)
    assert where in line


@pytest.mark.parametrize("name", [RUN / "epochs.jsonl", "audit-study.json", REPORT / "table-summary.csv"])
def test_a_missing_file_and_a_damaged_one_are_differences(folders, capsys, name):
    (folders[1] / name).write_text("{")
    assert len(differing(folders, capsys)) == 1
    (folders[1] / name).unlink()
    assert differing(folders, capsys) == [f"DIFFERENT {name}: is missing after"]


def test_times_versions_paths_and_fingerprints_may_differ(folders, capsys):
    after = folders[1]
    edit(after, RUN / "config.yaml", "somewhere", "elsewhere")
    edit(after, RUN / "config.yaml", "3.11", "3.12")
    edit(after, RUN / "timing.jsonl", "0.5", "0.7")
    edit(after, RUN / "traces/held-out.json", '"a"', '"b"')
    edit(after, REPORT / "table-summary.csv", "0.1", "0.2")
    edit(after, "audit-study.json", "/tmp/x", "/home/y")
    write_checkpoint(after / RUN / "checkpoints" / "epoch-00001.safetensors")
    assert differing(folders, capsys) == []


def test_words_order_and_folders_of_a_report_may_differ_and_are_counted(folders, capsys):
    after = folders[1]
    (after / REPORT / "table-summary.csv").unlink()
    cells = {"says": "no difference detected", "p": "14/20", "arm": "a", "cost": 2.5, "audit": "warning: few"}
    write(after / REPORT / "tables" / "table-summary.csv", [{**cells, "extra": 1}])
    points = [
        {"panel": "Costs", "y": 3.0, "x": 1.0, "group": "b"},
        {"panel": "Costs", "y": 2.0, "x": 1.0, "group": "a"},
    ]
    write(after / REPORT / "figure-curves.csv", points)
    assert tool.main([str(folder) for folder in folders]) == 0
    said = capsys.readouterr().out
    assert "phrases that differ in words only: 1" in said
    assert "only after, and not compared: extra" in said


def test_an_audit_with_fields_is_the_same_as_one_with_sentences(folders, capsys):
    fields = {"environment": "braking", "runs": [], "protocol": ""}
    comparison = {**fields, "scope": "comparison", "arms": ["a", "b"], "protocol": "held-out"}
    finding = {**FINDING, **comparison, "where": "a and b on braking", "evidence": ["three runs"], "title": "few"}
    arms = [{**fields, "scope": "arm", "arms": [arm]} for arm in ("b", "a")]
    unchecked = [{"codes": ["no-lead-time"], "where": "b and a", "subjects": arms, "reason": "there is no trace"}]
    path = folders[1] / "audit-study.json"
    path.write_text(json.dumps({**AUDIT, "findings": [finding], "unchecked": unchecked}))
    assert differing(folders, capsys) == []
    finding["arms"] = ["a", "c"]
    path.write_text(json.dumps({**AUDIT, "findings": [finding], "unchecked": unchecked}))
    assert len(differing(folders, capsys)) == 1


def test_a_tolerance_is_for_numbers_that_are_summed_in_another_order(folders):
    edit(folders[1], RUN / "epochs.jsonl", "3.5", "3.5000000001")
    arguments = [str(folder) for folder in folders]
    assert [tool.main(arguments), tool.main([*arguments, "--tolerance", "1e-9"])] == [1, 0]


def test_folders_with_nothing_to_compare_are_refused_in_one_line(tmp_path, capsys):
    assert tool.main([str(tmp_path), str(tmp_path / "none")]) == 2
    assert tool.main([str(tmp_path), str(tmp_path)]) == 2
    assert [line.count("\n") for line in capsys.readouterr().err.splitlines()] == [0, 0]
