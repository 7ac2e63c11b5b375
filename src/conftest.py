"""Examples in docstrings run in a folder of their own, where they may write as a user's session would."""

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, before examples load numpy

import pytest


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
