"""A finished run that each test may change."""

import shutil

import pytest
from verified_runs import make_run

from vlmsafe.runs.run import Run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("verified") / "run")


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    return Run.open(tmp_path / "run")
