"""What tests of several folders share."""

from pathlib import Path

import pytest


@pytest.fixture
def frame_scorer(monkeypatch):
    """Makes `python:frame_scorer:FrameScorer` importable, a small deterministic scorer of frames."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "signals")
