"""A short form of tools/chaos.py, which may be run for longer by hand; and how it finds what is lost."""

import importlib.util
import sys
from pathlib import Path

import pytest
from in_process import InProcess

from vlmsafe.studies.execute import execute
from vlmsafe.studies.schema import parse_study

pytest.importorskip("ray", reason="Ray is not installed: pip install 'vlmsafe[ray]'")
TOOL = Path(__file__).parents[2] / "tools" / "chaos.py"


@pytest.fixture(scope="module")
def chaos():
    spec = importlib.util.spec_from_file_location("chaos", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.soak
def test_nothing_is_lost_when_services_nodes_workers_and_the_study_are_killed(chaos, tmp_path, capsys):
    options = chaos.Options(minutes=0.4, seed=2, pause=4.0, seeds=1, steps=6000, folder=tmp_path)
    code = chaos.main(options)
    said = capsys.readouterr().out
    assert code == 0, said
    assert "every run equals the undisturbed one, and every file opens" in said
    assert "killed: " in said


def test_what_is_lost_or_damaged_is_found(chaos, tmp_path):
    study = parse_study(chaos.STUDY.format(seeds=1, steps=800), "")
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        execute(study, folder, InProcess())
    assert list(chaos.problems(study, one, other)) == []
    run = study.expand(one)[0].path
    (run / "checkpoints" / "epoch-00001.safetensors").write_bytes(b"half")
    (run / "timing.jsonl").write_bytes(b'{"epoch": 1}\n{"ep')
    table = run / "evaluations" / "held-out.parquet"
    found = "\n".join(chaos.problems(study, one, other))
    assert "epoch-00001.safetensors" in found
    assert "timing.jsonl: ValueError: the last row is not whole" in found
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(Exception, match=r"[Pp]arquet|magic"):
        list(chaos.problems(study, one, other))
    rows = run / "epochs.jsonl"
    rows.write_text("".join([*rows.read_text().splitlines(keepends=True), rows.read_text().splitlines()[0] + "\n"]))
    assert "not every epoch is there once" in next(chaos.problems(study, one, other))
