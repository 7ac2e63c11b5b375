"""Lead time: the paper's tables of whether signals rise before contact, for the traces of any runs.

`vlmsafe.analysis.anticipation` has the test itself. Here it is applied to every signal of a trace, pooled over the runs
of each arm and run by run, and the AUCs are counted as in the paper. Two more tables show the rank correlations between
a score and earlier and later cost, and how much a score varies.

All functions take traces stacked by `vlmsafe.analysis.tables.stacked`. Contact is cost > 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from vlmsafe.analysis.anticipation import CONTROL, FORMS, HORIZONS, PUBLISHED, RAW, anticipation, passes
from vlmsafe.analysis.anticipation import SCHEMA as ANTICIPATION_SCHEMA
from vlmsafe.analysis.auc import RESAMPLES, Float64, Int64, Mask
from vlmsafe.analysis.tables import episode_numbers, floats, require_columns, require_trace, scorer_column
from vlmsafe.errors import InputError, unknown_name
from vlmsafe.signals.gate import Gate, MarginGate

SIGNALS = ("kappa", "negative", "positive", "margin")
"""kappa, c_vlm, r_vlm and the margin between the prompt groups."""
LAGS = range(-10, 21)
SCHEMA: dict[str, Any] = {"arm": pl.String, "run": pl.String, **ANTICIPATION_SCHEMA}
_PRIOR = Gate()
_WHAT = "lead time"


def lead_time(
    steps: pl.DataFrame,
    *,
    gate: MarginGate = _PRIOR,
    scorer: str = "",
    horizons: Sequence[int] = HORIZONS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> pl.DataFrame:
    """AUCs per arm, run, signal, form and horizon. The step-index control is one of the signals.

    Rows with a null `run` pool all runs of the arm. kappa is that of `gate`, by default the prior-symmetric one, as
    published. `scorer` names one of several in the trace. The columns after `run` are those of `anticipation`.
    """
    require_trace(steps, _WHAT, scorer, ("positive", "negative", "margin"))
    numbered = steps.with_columns(number=episode_numbers(steps, _WHAT))

    def tested(own: pl.DataFrame) -> pl.DataFrame:
        return anticipation(
            {name: _signal(own, name, scorer, gate) for name in SIGNALS},
            floats(own, "cost") > 0.0,
            own["number"],
            scored=own["scored"],
            horizons=horizons,
            resamples=resamples,
            seed=seed,
        )

    parts: list[pl.DataFrame] = []
    for (arm,), own in numbered.group_by("arm", maintain_order=True):
        runs = own.partition_by("run", maintain_order=True, as_dict=True)
        pooled = tested(own)
        found = {None: pooled} | {run: tested(table) if len(runs) > 1 else pooled for (run,), table in runs.items()}
        parts += [
            table.select(pl.lit(arm, pl.String).alias("arm"), pl.lit(run, pl.String).alias("run"), pl.all())
            for run, table in found.items()
        ]
    return pl.concat(parts)


def verdicts(table: pl.DataFrame) -> pl.DataFrame:
    """Which signals of which arms, with the runs of an arm pooled, meet the criterion fixed in advance.

    The criterion is about c_vlm, `negative`. The other signals are there for comparison.
    """
    require_columns(table, SCHEMA, _WHAT, "expected what `lead_time` returns")
    rows = [
        {"arm": arm, "signal": signal, "passes": passes(own, signal)}
        for (arm,), own in table.filter(pl.col("run").is_null()).group_by("arm", maintain_order=True)
        for signal in own["signal"].unique(maintain_order=True)
        if signal != CONTROL
    ]
    return pl.DataFrame(rows, schema={"arm": pl.String, "signal": pl.String, "passes": pl.Boolean})


@dataclass(frozen=True)
class AucCount:
    """Counts of AUCs over all signals and horizons, raw and as published, without the control."""

    total: int
    """AUCs that are defined: there is a positive and a negative step."""
    lowest: float | None
    highest: float | None
    above_half: int
    interval_above_half: int
    above_control: int
    """Above the step index in the same form at the same horizon."""
    reversed_above_control: int
    """1 - AUC is above the step index: low values would warn better than the step index does."""


@dataclass(frozen=True)
class LeadTimeCounts:
    """Counts over the pooled AUCs of all arms, and over those of single runs."""

    pooled: AucCount
    runs: AucCount


def count_aucs(table: pl.DataFrame) -> LeadTimeCounts:
    """Count the rows of `lead_time` as the paper does: AUCs above one half, and reversed ones above the control."""
    require_columns(table, SCHEMA, _WHAT, "expected what `lead_time` returns")
    keys = ["arm", "run", "form", "horizon"]
    counted = table.filter(pl.col("form").is_in((RAW, PUBLISHED)))
    control = counted.filter(signal=CONTROL).select(*keys, control="auc")
    signals = counted.filter(pl.col("signal") != CONTROL).join(control, on=keys, how="left", nulls_equal=True)
    alone = pl.col("run").is_null()
    return LeadTimeCounts(_count(signals.filter(alone)), _count(signals.filter(~alone)))


def _count(rows: pl.DataFrame) -> AucCount:
    known = rows.drop_nulls("auc")
    auc, low, control = (floats(known, name) for name in ("auc", "low", "control"))
    return AucCount(
        total=len(known),
        lowest=float(auc.min()) if len(known) else None,
        highest=float(auc.max()) if len(known) else None,
        above_half=int(np.count_nonzero(auc > 0.5)),
        interval_above_half=int(np.count_nonzero(low > 0.5)),
        above_control=int(np.count_nonzero(auc > control)),
        reversed_above_control=int(np.count_nonzero(1.0 - auc > control)),
    )


def auc_ranges(table: pl.DataFrame) -> pl.DataFrame:
    """Lowest and highest pooled AUC of each signal over arms and horizons, in each form.

    The paper's table has two of them, raw and as published.
    """
    require_columns(table, SCHEMA, _WHAT, "expected what `lead_time` returns")
    pooled = table.filter(pl.col("run").is_null())
    ends = [
        getattr(pl.col("auc").filter(pl.col("form") == form), end)().alias(f"{form.replace(' ', '_')}_{name}")
        for form in FORMS
        for end, name in (("min", "low"), ("max", "high"))
    ]
    return pooled.group_by("signal", maintain_order=True).agg(ends)


def lead_lag(
    steps: pl.DataFrame,
    *,
    signal: str = "negative",
    lags: Iterable[int] = LAGS,
    gate: MarginGate = _PRIOR,
    scorer: str = "",
) -> pl.DataFrame:
    """Spearman's correlation between a signal at step t and the cost at t + k, per arm and lag k.

    A signal that warns correlates more with later cost (k > 0) than with earlier cost. Null if either is constant.
    """
    require_trace(steps, _WHAT, scorer, ("positive", "negative", "margin"))
    numbered = steps.with_columns(number=episode_numbers(steps, _WHAT))
    chosen = list(lags)
    parts = []
    for (arm,), own in numbered.group_by("arm", maintain_order=True):
        profile = lead_lag_profile(
            _signal(own, signal, scorer, gate),
            floats(own, "cost"),
            own["number"].to_numpy(),
            own["scored"].to_numpy(),
            chosen,
        )
        parts.append(profile.select(pl.lit(arm, pl.String).alias("arm"), pl.all()))
    return pl.concat(parts)


def lead_lag_profile(
    score: Float64, cost: Float64, episodes: Int64, scored: Mask, lags: Iterable[int] = LAGS
) -> pl.DataFrame:
    """One row per lag: `spearman` of score[t] and cost[t + k] over the `pairs` of steps within an episode.

    Arrays have one entry per step, in the order of time. Step t must be scored, step t + k need not be.
    """
    rows: list[dict[str, Any]] = []
    for lag in lags:
        here = np.arange(max(0, -lag), max(0, -lag, len(score) - max(0, lag)))
        here = here[scored[here] & (episodes[here] == episodes[here + lag])]
        rows.append({"lag": lag, "spearman": _spearman(score[here], cost[here + lag]), "pairs": len(here)})
    return pl.DataFrame(rows, schema={"lag": pl.Int64, "spearman": pl.Float64, "pairs": pl.Int64})


def _spearman(x: Float64, y: Float64) -> float | None:
    if len(x) < 3 or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return None
    return float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])


@dataclass(frozen=True)
class Variability:
    """How much a score varies over all scored steps. Deviations are population deviations.

    std² = within_std² + between_std². Only variation within episodes can distinguish one step from another.
    """

    steps: int
    episodes: int
    mean: float
    std: float
    coefficient: float | None
    """std / |mean|; None if the mean is zero."""
    within_std: float
    """Root mean square, over steps, of the distance from the episode's mean."""
    between_std: float
    """Root mean square, over steps, of the distance of the episode's mean from the mean of all."""
    low: float
    high: float


VARIABILITY_SCHEMA: dict[str, Any] = {
    "arm": pl.String,
    "signal": pl.String,
    "steps": pl.Int64,
    "episodes": pl.Int64,
    **{name: pl.Float64 for name in ("mean", "std", "coefficient", "within_std", "between_std", "low", "high")},
}


def variability(values: Float64, episodes: Int64) -> Variability:
    """The variability of one score; `episodes` has the episode of each value."""
    if not len(values) or len(values) != len(episodes):
        raise InputError(f"variability: {len(values)} values in {len(episodes)} episodes' steps; expected one each")
    numbers = np.unique(episodes, return_inverse=True)[1]
    counts = np.bincount(numbers)
    own_mean = (np.bincount(numbers, weights=values) / counts)[numbers]
    mean = float(values.mean())
    std = float(values.std())
    return Variability(
        steps=len(values),
        episodes=len(counts),
        mean=mean,
        std=std,
        coefficient=std / abs(mean) if mean else None,
        within_std=float(np.sqrt(np.mean((values - own_mean) ** 2))),
        between_std=float(np.sqrt(np.mean((own_mean - mean) ** 2))),
        low=float(values.min()),
        high=float(values.max()),
    )


def score_variability(steps: pl.DataFrame, *, gate: MarginGate = _PRIOR, scorer: str = "") -> pl.DataFrame:
    """`variability` of every signal of a trace, per arm."""
    require_trace(steps, _WHAT, scorer, ("positive", "negative", "margin"))
    numbered = steps.with_columns(number=episode_numbers(steps, _WHAT)).filter("scored")
    return pl.DataFrame(
        [
            {
                "arm": arm,
                "signal": name,
                **asdict(variability(_signal(own, name, scorer, gate), own["number"].to_numpy())),
            }
            for (arm,), own in numbered.group_by("arm", maintain_order=True)
            for name in SIGNALS
        ],
        schema=VARIABILITY_SCHEMA,
    )


def _signal(steps: pl.DataFrame, name: str, scorer: str, gate: MarginGate) -> Float64:
    """A signal at every step; NaN at steps that were not scored."""
    if name not in SIGNALS:
        raise unknown_name("signal", name, SIGNALS)
    if name == "kappa":
        return gate.kappa(floats(steps, scorer_column(scorer, "margin")))
    return floats(steps, scorer_column(scorer, name))
