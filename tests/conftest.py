"""What tests of several folders share."""

import sys
from pathlib import Path

# `python:frame_scorer:FrameScorer`, a small deterministic scorer, is imported by name, as a user's own would be.
sys.path.append(str(Path(__file__).parent / "signals"))
# Small models that tests of several folders save to disk and load.
sys.path.append(str(Path(__file__).parent / "signals" / "scorers"))
