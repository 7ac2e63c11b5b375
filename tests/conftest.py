"""What tests of several folders share."""

import sys
from pathlib import Path

# Small models, scorers and made-up runs. They are imported by name, as a user's own would be
# (`python:frame_scorer:FrameScorer`), in worker processes too.
sys.path.append(str(Path(__file__).parent / "support"))
