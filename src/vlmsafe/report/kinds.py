"""The kinds of tables and figures that a report can have: the one registry of both.

A kind is what a study file may ask for by name. To add one, write a function that takes the `Dataset` and the `Entry`
and returns the table or figure, or a `Missing`, and name it here. Functions are imported when they are called, so that
a study file can be checked in a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of table or figure."""

    about: str
    """What it shows, in one line."""
    function: str
    """The function that makes it: its module in `vlmsafe.report.tables` or `.charts`, a dot, and its name."""
    usual: bool = False
    """Whether a report has it where there is data for it, asked for or not."""
    first: bool = False
    """Whether a usual one stands before the figures."""
    timed: bool = False
    """Whether it depends on how fast a machine was."""
    options: tuple[str, ...] = ()
    """Options of an entry that this kind has and most others lack."""

    def load(self, package: str) -> Any:
        """The function, from the package of tables or of charts."""
        module, name = self.function.split(".")
        return getattr(import_module(f"vlmsafe.report.{package}.{module}"), name)


_EPISODES, _RESAMPLED = ("episodes",), ("episodes", "resamples")

# The usual ones stand in the order in which a report shows them.
TABLES: Mapping[str, Kind] = {
    "comparisons": Kind(
        "each claim: both means, the difference with its interval, p and the smallest p that is possible",
        "comparisons.comparisons", usual=True, first=True,
    ),
    "contrasts": Kind(
        "each claimed interaction: the difference between differences, with its interval and p",
        "contrasts.contrasts", usual=True, first=True,
    ),
    "rates": Kind(
        "each compared pair: catastrophe and violation rates, and the interval of the difference",
        "comparisons.rates", options=("pool",),
    ),
    "summary": Kind(
        "arm by arm from an evaluation, with published values", "arms.summary", usual=True, first=True
    ),
    "training": Kind(
        "arm by arm from training: cost, returns, seeds over budget", "arms.training", usual=True, first=True
    ),
    "learning": Kind(
        "arm by arm: cost of all training episodes, and the steps until the budget is met", "learning.learning"
    ),
    "by-environment": Kind(
        "arms in rows, environments in columns, one outcome", "arms.by_environment", options=("windows",)
    ),
    "per-seed": Kind("one row per run", "arms.per_seed", usual=True, options=("pool",)),
    "pairs": Kind("compared arms seed by seed, with their difference", "comparisons.pairs"),
    "sweep": Kind("an outcome over one or two settings", "arms.sweep"),
    "returns": Kind(
        "the logged return taken apart: bonus, and what the environment paid", "returns.returns", usual=True
    ),
    "returns-runs": Kind("the logged return taken apart, run by run", "returns.returns_runs"),
    "passive": Kind(
        "episodes without cost and without return; what cost goes along with", "returns.passive", usual=True
    ),
    "passive-runs": Kind("episodes without cost and without return, run by run", "returns.passive_runs"),
    "cost-correlations": Kind(
        "cost against distance, progress and return, over episodes, runs and arms", "returns.cost_correlations"
    ),
    "tails": Kind(
        "arm by arm: median, 90 % quantile and CVaR of episode cost, and cost per distance", "tails.tails", usual=True
    ),
    "improvement": Kind(
        "each compared pair: how probably a run of the first arm costs less", "tails.improvement", usual=True
    ),
    "multiplier": Kind("the multiplier replayed without the signal term", "multiplier.multiplier", usual=True),
    "multiplier-runs": Kind("the replay of the multiplier, run by run", "multiplier.multiplier_runs"),
    "multiplier-terms": Kind("sizes of both terms that move the multiplier", "multiplier.multiplier_terms"),
    "multiplier-epochs": Kind("the replay of the multiplier, epoch by epoch", "multiplier.multiplier_epochs"),
    "lead-time": Kind(
        "does a signal rise before contact", "lead_time.lead_time", usual=True, options=_RESAMPLED
    ),
    "lead-time-aucs": Kind(
        "AUC before contact by arm, signal and horizon", "lead_time.lead_time_aucs", options=_RESAMPLED
    ),
    "lead-time-runs": Kind("AUC before contact of every run", "lead_time.lead_time_runs", options=_RESAMPLED),
    "lead-time-counts": Kind(
        "how many AUCs are above one half and above the control", "lead_time.lead_time_counts", options=_RESAMPLED
    ),
    "lead-lag": Kind("correlation of c_vlm with earlier and later cost", "lead_time.lead_lag", options=_EPISODES),
    "gate": Kind("medians of margin and kappa", "gate.gate", usual=True, options=_EPISODES),
    "gate-margins": Kind("margins from lowest to highest", "gate.gate_margins", options=_EPISODES),
    "gate-cells": Kind("kappa from lowest to highest, for every gate", "gate.gate_cells", options=_EPISODES),
    "gate-roc": Kind("does kappa know contact in the same step", "gate.gate_roc", usual=True, options=_RESAMPLED),
    "gate-thresholds": Kind(
        "precision and recall of kappa as a detector of contact", "gate.gate_thresholds", options=_EPISODES
    ),
    "scores": Kind("a score over training, seed by seed", "scores.scores", usual=True),
    "score-variability": Kind(
        "how much scores vary within and between episodes", "scores.score_variability", options=_EPISODES
    ),
    "protocols": Kind("one outcome by evaluation protocol", "arms.protocols", usual=True),
    "compute": Kind("time per run, speed, and what the signal costs", "compute.compute", usual=True, timed=True),
    "divergence": Kind("runs of equal seeds: where they part, and how far", "comparisons.divergence"),
    "methods": Kind("what each arm is made of", "settings.methods", usual=True),
    "settings": Kind("every setting in which the arms differ", "settings.settings", usual=True),
    "published": Kind(
        "every result with a published value, and what was done otherwise", "arms.published", usual=True
    ),
}  # fmt: skip

FIGURES: Mapping[str, Kind] = {
    "routes": Kind(
        "the routes of the first traced episodes, seen from above, and where they cost",
        "routes.routes", usual=True,
    ),
    "dots": Kind("one dot per seed, with each arm's mean and interval", "outcomes.dots", usual=True),
    "curves": Kind(
        "cost with its budget, environment return and shaped return over training, on axes of their own",
        "training.curves", usual=True,
    ),
    "multiplier": Kind(
        "the multiplier over training, and its signal term apart", "training.multiplier", usual=True
    ),
    "multiplier-replay": Kind("the multiplier with and without the signal term", "training.multiplier_replay"),
    "bars": Kind("means per arm with deviation and seeds, the arm without a signal as a line", "outcomes.bars"),
    "cost-progress": Kind(
        "cost against how far the agent got, by episode and by run", "progress.cost_progress", usual=True
    ),
    "cost-against": Kind("cost against each of distance, progress and return", "progress.cost_against"),
    "returns": Kind("what each run logged, and what its environment paid", "progress.returns"),
    "protocols": Kind("one outcome per arm and evaluation protocol", "outcomes.protocols", usual=True),
    "evaluation-summary": Kind(
        "catastrophe rates, cost by seed, return against cost, relative change", "outcomes.evaluation_summary"
    ),
    "sweep": Kind("an outcome over a numeric setting", "outcomes.sweep"),
    "scores": Kind("scores and kappa over training", "training.scores", usual=True),
    "lead-time": Kind(
        "AUC before contact by horizon, and the lead-lag profile", "lead_time.lead_time", usual=True,
        options=_RESAMPLED,
    ),
    "lead-time-raw": Kind(
        "AUC before contact by horizon, of signals as they are", "lead_time.lead_time_raw", options=_RESAMPLED
    ),
    "gate": Kind("margins and kappa of traced frames", "gate.gate", usual=True, options=_EPISODES),
    "gate-cells": Kind("margins and kappa of traced frames under every gate", "gate.gate_cells", options=_EPISODES),
    "gate-roc": Kind(
        "ROC of kappa against contact; precision and recall", "gate.gate_roc", usual=True, options=_RESAMPLED
    ),
    "gate-curves": Kind(
        "ROC and precision over recall, also of gates calibrated on other episodes", "gate.gate_curves",
        options=_EPISODES,
    ),
}  # fmt: skip
