"""Shipped studies from end to end at a tiny scale: with traces, with every kind of scorer, with their reports.

`make test` runs one of them, `make soak` all. `tools/try_studies.py` does the same at a larger scale.
"""

import importlib.util

import pytest
from in_process import InProcess

from vlmsafe.cli import main
from vlmsafe.studies.execute import execute
from vlmsafe.studies.schema import load_study, shipped_studies
from vlmsafe.studies.steps import next_step

pytestmark = pytest.mark.slow
TESTED = "lead-time"


@pytest.mark.parametrize(
    "name",
    [TESTED, *(pytest.param(name, marks=pytest.mark.soak) for name in shipped_studies() if name != TESTED)],
)
def test_a_shipped_study_runs_at_a_tiny_scale_and_its_report_has_its_part_of_the_paper(name, tmp_path, capsys):
    study = load_study(name).varied(0.001, "noise")
    packages = {spec.config.spec.package for spec in study.expand(tmp_path)} - {None}
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    folder = tmp_path / study.title
    outcome = execute(study, folder, InProcess())
    assert outcome.failed == {}
    specs = study.expand(folder)
    assert len(outcome.done) == len(specs)
    assert all(next_step(spec) is None for spec in specs)
    main(["study", "report", str(folder)])
    assert study.question in (folder / "report.html").read_text(encoding="utf-8")
    assert "not in it" not in capsys.readouterr().err
    written = {path.stem for path in (folder / "report").iterdir()}
    assert {label.replace(":", "-") for label in study.paper} <= written
