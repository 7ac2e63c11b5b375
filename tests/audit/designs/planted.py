"""One defect at a time in a clean design, each in several forms, with the finding that should name it.

`also` holds findings that a defect honestly brings with it: a run that is missing also leaves its arm with other seeds.
"""

from . import planted_conclusions, planted_design, planted_evaluations, planted_runs, planted_signals  # noqa: F401
from .planting import PLANTED, Planted

__all__ = ["PLANTED", "Planted"]
