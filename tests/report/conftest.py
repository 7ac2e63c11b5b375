"""What tests of reports share."""

import sys
from pathlib import Path

# Traces made up for the tests of the analysis, in the columns of real ones.
sys.path.append(str(Path(__file__).parents[1] / "analysis"))
