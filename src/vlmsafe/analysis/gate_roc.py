"""How open the gate is, and whether it distinguishes frames in contact from others.

kappa is a distance from a centre: it is large on both sides. A gate that is nearly open or nearly closed everywhere
gives every frame the same weight. A gate that opens in contact may do so because contact frames have unusually low
margins; the negated margin shows this more directly. A gate that is judged on the frames it was calibrated on is judged
in-sample. For comparison, gates are also calibrated on one half of the episodes and judged on the other. A gate that
Eq. 3 does not describe (signed, platt, probability, or a function of the user's) is judged by the kappa in the traces.

Functions that take tables expect traces stacked by `vlmsafe.analysis.tables.stacked`, and use scored steps only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from vlmsafe.analysis.auc import AUC_SCHEMA, RESAMPLES, Float64, Int64, Mask, auc_interval
from vlmsafe.analysis.tables import episode_numbers, floats, require_columns, require_trace, scorer_column
from vlmsafe.errors import InputError
from vlmsafe.signals.gate import Gate

SCALES = (10.0, 50.0, 100.0)
PRIOR = Gate()
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
CLOSED, OPEN = 0.1, 0.9
"""Below and above these a gate counts as nearly closed and nearly open, as in the paper."""
_WHAT = "gate"

CELL_SCHEMA: dict[str, Any] = {
    "arm": pl.String,
    "run": pl.String,
    "gate": pl.String,
    "scale": pl.Float64,
    "centre": pl.Float64,
    "frames": pl.Int64,
    "positive_margins": pl.Float64,
    "margin_low": pl.Float64,
    "margin_q25": pl.Float64,
    "margin_median": pl.Float64,
    "margin_q75": pl.Float64,
    "margin_high": pl.Float64,
    "kappa_low": pl.Float64,
    "kappa_q25": pl.Float64,
    "kappa_median": pl.Float64,
    "kappa_q75": pl.Float64,
    "kappa_high": pl.Float64,
    "closed": pl.Float64,
    "open": pl.Float64,
}


def gate_cells(
    steps: pl.DataFrame, *, frames: int | None = None, target: float = 0.5, scorer: str = ""
) -> pl.DataFrame:
    """Quantiles of margin and kappa per run, for each of `SCALES` around 0 and for the gate calibrated on the run.

    `frames` is the number of frames to use, evenly spaced, instead of all scored ones. `closed` and `open` are the
    shares of frames with kappa < 0.1 and > 0.9. If half the margins are equal, the gate cannot be calibrated and its
    cells are null. Traces with a kappa have a further gate, `recorded`: the one they were recorded with, which is the
    run's own if it has one.
    """
    require_trace(steps, _WHAT, scorer, ("margin",))
    if frames is not None and frames < 1:
        raise InputError(f"{_WHAT}: frames is {frames}; it must be at least 1")
    rows = []
    recorded = scorer_column(scorer, "kappa")
    for (arm, run), every in steps.filter("scored").group_by("arm", "run", maintain_order=True):
        own = every
        if frames is not None and frames < len(every):
            own = every[np.linspace(0, len(every) - 1, frames).round().astype(np.int64)]
        margins = floats(own, scorer_column(scorer, "margin"))
        gates: dict[str, Gate | None] = {f"s = {scale:g}": Gate(scale, 0.0) for scale in SCALES}
        gates["calibrated"] = calibrated(margins, target)
        common = {"arm": arm, "run": run, "frames": len(margins), "positive_margins": float((margins > 0.0).mean())}
        common |= _quantiles("margin", margins)
        rows += [{**common, "gate": name, **_opening(gate, margins)} for name, gate in gates.items()]
        if recorded in own.columns:
            levels = {
                name: own[column][0]
                for name in ("scale", "centre")
                if (column := scorer_column(scorer, f"gate_{name}")) in own.columns
            }
            kappa = floats(own.drop_nulls(recorded), recorded)
            rows.append({**common, "gate": "recorded", **levels, **_openness(kappa)})
    return pl.DataFrame(rows, schema=CELL_SCHEMA)


def gate_medians(cells: pl.DataFrame) -> pl.DataFrame:
    """The paper's table: median margin, and median kappa at s = 100 around 0 and calibrated, one row per run."""
    require_columns(cells, CELL_SCHEMA, _WHAT, "expected what `gate_cells` returns")
    keys = ["arm", "run"]
    prior, fitted = (
        cells.filter(gate=name).select(*keys, "margin_median", pl.col("kappa_median").alias(column))
        for name, column in (("s = 100", "kappa_median_prior"), ("calibrated", "kappa_median_calibrated"))
    )
    return prior.join(fitted.drop("margin_median"), on=keys, how="left", maintain_order="left")


def calibrated(margins: Float64, target: float = 0.5) -> Gate | None:
    """The gate calibrated on these margins; None if the middle half of them are equal."""
    low, high = np.quantile(margins, [0.25, 0.75])
    return Gate.calibrated(margins, target) if high > low else None


def _quantiles(name: str, values: Float64) -> dict[str, float]:
    found = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
    return {f"{name}_{end}": value for end, value in zip(("low", "q25", "median", "q75", "high"), found, strict=True)}


def _opening(gate: Gate | None, margins: Float64) -> dict[str, float]:
    if gate is None:
        return {}
    return {"scale": gate.scale, "centre": gate.centre, **_openness(gate.kappa(margins))}


def _openness(kappa: Float64) -> dict[str, float]:
    if not len(kappa):
        return {}
    shares = {"closed": float((kappa < CLOSED).mean()), "open": float((kappa > OPEN).mean())}
    return {**_quantiles("kappa", kappa), **shares}


ROC_SCHEMA: dict[str, Any] = {
    "arm": pl.String,
    "score": pl.String,
    "calibrated_on": pl.String,
    "half": pl.Int64,
    "scale": pl.Float64,
    "centre": pl.Float64,
    **AUC_SCHEMA,
    "contact_margin": pl.Float64,
    "free_margin": pl.Float64,
    "contact_below_centre": pl.Float64,
}


def gate_roc(
    steps: pl.DataFrame, *, target: float = 0.5, scorer: str = "", resamples: int = RESAMPLES, seed: int = 0
) -> pl.DataFrame:
    """AUCs of kappa and of the negated margin against contact in the same step, per arm with its runs pooled.

    `calibrated_on` is null for the prior-symmetric gate and the negated margin, `same frames` for the in-sample gate,
    and `other half` for a gate calibrated on half of the episodes, drawn with `seed`, and judged on the rest. `half` is
    the number of the half that is judged. The negated margin has rows on the halves too, so that it can be compared on
    equal frames. `recorded kappa` is that of the traces, where Eq. 3 does not give it; an AUC below one half says that
    this gate closes in contact, as a signed one should. `contact_margin` and `free_margin` are median margins with and
    without contact. `contact_below_centre` is the share of contact frames with a margin below the gate's centre; they
    count as confident only because kappa is folded.
    """
    rows = []
    for arm, margins, contact, episodes in _scored_arms(steps, scorer):
        for row, gate, used in _judged(margins, episodes, target, seed):
            shown, hits = margins[used], contact[used]
            values = -shown if gate is None else gate.kappa(shown)
            found = auc_interval(values, hits, episodes[used], resamples=resamples, seed=seed)
            levels = {"contact_margin": _median(shown[hits]), "free_margin": _median(shown[~hits])}
            if gate is not None:
                row |= {"scale": gate.scale, "centre": gate.centre}
                levels["contact_below_centre"] = float((shown[hits] < gate.centre).mean()) if hits.any() else None
            rows.append({"arm": arm, **row, **asdict(found), **levels})
        if (kappa := _other_kappa(steps.filter(arm=arm), scorer)) is not None:
            found = auc_interval(kappa, contact, episodes, resamples=resamples, seed=seed)
            levels = {"contact_margin": _median(margins[contact]), "free_margin": _median(margins[~contact])}
            rows.append({"arm": arm, "score": "recorded kappa", **asdict(found), **levels})
    return pl.DataFrame(rows, schema=ROC_SCHEMA)


def _other_kappa(steps: pl.DataFrame, scorer: str) -> Float64 | None:
    """kappa of an arm's scored steps, in the order of `_scored_arms`, where no gate of Eq. 3 has recorded it."""
    names = [scorer_column(scorer, name) for name in ("kappa", "gate_scale", "gate_centre", "margin")]
    own = steps.filter("scored")
    if not set(names) <= set(own.columns) or own[names[0]].null_count():
        return None
    kappa, scale, centre, margin = (floats(own, name) for name in names)
    folded = np.abs(np.tanh(scale * (margin - centre) / 2.0))
    return None if np.allclose(kappa, folded, rtol=0.0, atol=1e-6) else kappa


def gate_thresholds(
    steps: pl.DataFrame,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    target: float = 0.5,
    scorer: str = "",
    seed: int = 0,
) -> pl.DataFrame:
    """Precision and recall of kappa against contact in the same step, per arm, gate and threshold.

    The gates and the frames that they are judged on are those of `gate_roc`. `prevalence` is the share of contact
    frames, which is the precision of flagging everything.
    """
    parts = []
    for arm, margins, contact, episodes in _scored_arms(steps, scorer):
        for row, gate, used in _judged(margins, episodes, target, seed):
            if gate is not None:
                names = {"arm": arm, "calibrated_on": row.get("calibrated_on"), "half": row.get("half")}
                names |= {"prevalence": float(contact[used].mean())}
                columns = [pl.lit(value, _LABELS[name]).alias(name) for name, value in names.items()]
                parts.append(
                    at_thresholds(gate.kappa(margins[used]), contact[used], thresholds).select(*columns, pl.all())
                )
    return pl.concat(parts)


def gate_curves(
    steps: pl.DataFrame, *, points: int = 400, target: float = 0.5, scorer: str = "", seed: int = 0
) -> pl.DataFrame:
    """`roc_curve` of everything that `gate_roc` judges, per arm, thinned to about `points` points.

    Half of the points are spaced evenly over the ranking. The others are spaced by its logarithm, because the first few
    decide precision. Both ends are kept.
    """
    parts = []
    for arm, margins, contact, episodes in _scored_arms(steps, scorer):
        for row, gate, used in _judged(margins, episodes, target, seed):
            curve = roc_curve(-margins[used] if gate is None else gate.kappa(margins[used]), contact[used])
            last = len(curve) - 1
            half = max(points // 2, 2)
            kept = np.concatenate([np.linspace(0, last, half), np.geomspace(1, last, half), [0, last]])
            names = {"arm": arm, "score": None, "calibrated_on": None, "half": None} | row
            columns = [pl.lit(value, _LABELS[name]).alias(name) for name, value in names.items()]
            parts.append(curve[np.unique(kept.round().astype(np.int64))].select(*columns, pl.all()))
    return pl.concat(parts)


_LABELS: dict[str, Any] = {
    "arm": pl.String,
    "score": pl.String,
    "calibrated_on": pl.String,
    "half": pl.Int64,
    "prevalence": pl.Float64,
}


def _scored_arms(steps: pl.DataFrame, scorer: str) -> Iterator[tuple[str, Float64, Mask, Int64]]:
    """Each arm's scored steps, its runs together: margins, whether there is contact, and the episodes they are of."""
    require_trace(steps, _WHAT, scorer, ("margin",))
    numbered = steps.with_columns(number=episode_numbers(steps, _WHAT)).filter("scored")
    for (arm,), own in numbered.group_by("arm", maintain_order=True):
        margins = floats(own, scorer_column(scorer, "margin"))
        yield str(arm), margins, floats(own, "cost") > 0.0, own["number"].to_numpy()


def _judged(
    margins: Float64, episodes: Int64, target: float, seed: int
) -> Iterator[tuple[dict[str, Any], Gate | None, Mask]]:
    """What is judged: how its row begins, the gate (None for the negated margin), and the steps it is judged on.

    A gate that cannot be calibrated is left out.
    """
    everywhere = np.ones(len(margins), np.bool_)
    yield {"score": "kappa"}, PRIOR, everywhere
    if (gate := calibrated(margins, target)) is not None:
        yield {"score": "kappa", "calibrated_on": "same frames"}, gate, everywhere
    yield {"score": "negated margin"}, None, everywhere
    first = first_half(episodes, seed)
    for half, used in ((1, first), (2, ~first)):
        if not used.any() or used.all():
            continue  # there is only one episode, which has no halves
        if (gate := calibrated(margins[~used], target)) is not None:
            yield {"score": "kappa", "calibrated_on": "other half", "half": half}, gate, used
        yield {"score": "negated margin", "half": half}, None, used


def first_half(episodes: Int64, seed: int) -> Mask:
    """Which steps belong to a random half of the episodes; the larger half if their number is odd."""
    names = np.unique(episodes)
    chosen = np.random.default_rng(seed).permutation(names)[: (len(names) + 1) // 2]
    return np.isin(episodes, chosen)


def _median(values: Float64) -> float | None:
    return float(np.median(values)) if len(values) else None


CURVE_SCHEMA: dict[str, Any] = {
    "threshold": pl.Float64,
    "flagged": pl.Int64,
    "recall": pl.Float64,
    "false_positive_rate": pl.Float64,
    "precision": pl.Float64,
}


def roc_curve(scores: ArrayLike, labels: ArrayLike) -> pl.DataFrame:
    """Recall, false-positive rate and precision when everything at or above a threshold is flagged.

    The first row flags nothing. Then there is one row per distinct score, from the highest down. The area under recall
    over false-positive rate is the AUC. Recall without positives, and precision without flags, are null.
    """
    values, positive = _checked(scores, labels)
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of each group of ties
    hits = np.append(0, np.cumsum(positive[order])[last])
    return _curve(np.append(np.inf, ranked[last]), np.append(0, last + 1), hits, positive)


def at_thresholds(scores: ArrayLike, labels: ArrayLike, thresholds: Sequence[float] = THRESHOLDS) -> pl.DataFrame:
    """The same at given thresholds, such as kappa >= 0.2 as a detector of contact."""
    values, positive = _checked(scores, labels)
    levels = np.asarray(thresholds, np.float64)
    above = [values >= level for level in levels]
    flagged = np.array([np.count_nonzero(mask) for mask in above])
    return _curve(levels, flagged, np.array([np.count_nonzero(mask & positive) for mask in above]), positive)


def _curve(thresholds: Float64, flagged: Int64, hits: Int64, positive: Mask) -> pl.DataFrame:
    positives, negatives = np.count_nonzero(positive), np.count_nonzero(~positive)
    return pl.DataFrame(
        {
            "threshold": thresholds,
            "flagged": flagged,
            "recall": hits / positives if positives else None,
            "false_positive_rate": (flagged - hits) / negatives if negatives else None,
            "precision": [hit / many if many else None for hit, many in zip(hits, flagged, strict=True)],
        },
        schema=CURVE_SCHEMA,
    )


def _checked(scores: ArrayLike, labels: ArrayLike) -> tuple[Float64, Mask]:
    values, positive = np.asarray(scores, np.float64), np.asarray(labels)
    if values.ndim != 1 or values.shape != positive.shape or positive.dtype != np.bool_:
        raise InputError(
            f"ROC: scores {values.shape} and {positive.dtype} labels {positive.shape}; expected a number and true or "
            "false for each frame"
        )
    if not np.isfinite(values).all():
        raise InputError("ROC: a score is not finite; leave out the frames that were not scored")
    if not len(values):
        raise InputError("ROC: no frames; expected at least one")
    return values, positive
