"""The audit of a study's folder knows what the study planned and claimed."""

import shutil
from pathlib import Path

import pytest

import vlmsafe

STUDY = """
name: tiny
question: Does the oracle lower the cost?
environments: [speeding]
seeds: [1, 2]
total_steps: 400
settings: {steps_per_epoch: 200}
arms:
  plain: {method: ppo-lag}
  oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}
  third: {method: ppo}
comparisons: [{first: oracle, second: plain, source: training}]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.yaml").write_text(STUDY)
    return vlmsafe.run_study(folder / "tiny.yaml", folder / "runs", on_event=lambda event: None)


@pytest.fixture
def study(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "tiny"))


def reasons(folder):
    return [one.reason for one in vlmsafe.audit(folder, resamples=50).unchecked]


def test_planned_runs_that_are_missing_from_all_arms_are_said(study):
    assert not [line for line in reasons(study) if "planned runs" in line]
    for path in study.glob("*/*/seed-2"):
        shutil.rmtree(path)
    (line,) = (line for line in reasons(study) if "planned runs" in line)
    assert f"3 of 6 planned runs in {study} are not there" in line


def test_without_a_claims_file_the_studys_own_claims_are_audited(study):
    before = vlmsafe.audit(study, resamples=50).comparisons
    (study / "claims.yaml").unlink()
    assert vlmsafe.audit(study, resamples=50).comparisons == before
    assert any("claims.yaml is not there" in line for line in reasons(study))
