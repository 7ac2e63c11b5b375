"""Does a signal rise before contact? The paper's test of anticipation, as a table of AUCs.

A step without contact is positive for the horizon K if a contact follows within the next K steps of its episode. If
the episode ends earlier without a contact, the step is negative. Steps in contact are not classified, because a signal
that only sees what already happens would otherwise seem to warn. Steps between two contacts are classified.

A signal is tested raw and standardised within its episode. Standardising removes differences between episodes, which
cannot warn of anything within one. It uses the classified steps only. The form "as published" uses all steps and drops
those in contact afterwards, as the paper did: a signal that is high in contact then looks low on the steps before it,
because the episodes with contacts, which have all positive steps, are shifted down and shrunk. The step index is tested
as a control: contacts come late in many episodes, so that any signal that drifts with time looks like a warning there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from vlmsafe.analysis.auc import AUC_SCHEMA, RESAMPLES, Float64, Int64, Mask, draw_resamples, number_episodes, pooled
from vlmsafe.errors import InputError

HORIZONS = (1, 3, 5, 10, 20, 40)
RAW, STANDARDISED, PUBLISHED = FORMS = ("raw", "standardised", "as published")
"""A signal as it is; standardised over the classified steps of its episode; standardised over all steps of it."""
CONTROL = "step"
"""Name of the step-index control among the signals."""

_CRITERION_HORIZONS, _CRITERION_AUC = (20, 40), 0.60
_MOST_LEFT_OUT = 0.05  # share of resamples without contact; about three episodes with contact are enough for less
_NEVER = np.iinfo(np.int64).max

SCHEMA: dict[str, Any] = {
    "signal": pl.String,
    "form": pl.String,
    "horizon": pl.Int64,
    **AUC_SCHEMA,
    "resamples": pl.Int64,
}


def anticipation(
    signals: Mapping[str, ArrayLike],
    contact: ArrayLike,
    episodes: ArrayLike,
    *,
    scored: ArrayLike | None = None,
    horizons: Sequence[int] = HORIZONS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> pl.DataFrame:
    """One row per signal, form (`FORMS`) and horizon. The step-index control is one of the signals.

    Arrays have one entry per step, in the order of time, with each episode in one piece. `contact` is cost > 0.
    `scored` marks the steps that have a signal, by default all. Only these are classified and used to standardise;
    contacts count at every step. All rows share the same resamples of episodes. `auc`, `low` and `high` are null if no
    step, or every step, is positive.
    """
    touched = _mask(contact, "contact")
    steps = len(touched)
    numbers, count = number_episodes(episodes, steps)
    drawn = draw_resamples(count, resamples, seed)
    _require_whole(numbers, count)
    for horizon in horizons:
        if horizon < 1:
            raise InputError(f"a horizon is {horizon}; it must be at least 1")
    known = np.ones(steps, np.bool_) if scored is None else _mask(scored, "scored", steps)
    ahead = steps_to_contact(touched, numbers)
    classified = ~touched[known]
    own, near = numbers[known], ahead[known][classified]
    rows = []
    for name, values in _with_control(signals, numbers, known).items():
        shown = {
            RAW: values[classified],
            STANDARDISED: standardise(values[classified], own[classified]),
            PUBLISHED: standardise(values, own)[classified],
        }
        for form in FORMS:
            for horizon in horizons:
                result = pooled(shown[form], near <= horizon, own[classified], drawn)
                rows.append(
                    {"signal": name, "form": form, "horizon": horizon, **asdict(result), "resamples": resamples}
                )
    return pl.DataFrame(rows, schema=SCHEMA)


Verdict = Literal["met", "not met", "too few contacts"]


def passes(table: pl.DataFrame, signal: str = "negative") -> bool:
    """Whether the criterion fixed in advance is met; see `verdict`."""
    return verdict(table, signal) == "met"


def verdict(table: pl.DataFrame, signal: str = "negative") -> Verdict:
    """The criterion fixed in advance: at K = 20 or 40 the standardised signal meets three conditions at once.

    Its AUC is at least 0.60, the interval lies above 0.5, and the AUC is above that of the standardised step index. If
    more than 5 % of the resamples contain no contact, the interval rests on too few episodes with contact. The verdict
    is then 'too few contacts', if the three conditions hold.
    """
    rows = {
        (row["signal"], row["horizon"]): row
        for row in table.filter(pl.col("form") == STANDARDISED).iter_rows(named=True)
    }
    tested = [horizon for horizon in _CRITERION_HORIZONS if (signal, horizon) in rows and (CONTROL, horizon) in rows]
    if not tested:
        names = ", ".join(sorted({name for name, _ in rows} - {CONTROL}))
        raise InputError(f"the table lacks '{signal}' or the control at K = 20 and 40; its signals are: {names}")
    warns = [rows[signal, horizon] for horizon in tested if _warns(rows[signal, horizon], rows[CONTROL, horizon])]
    if any(row["left_out"] <= _MOST_LEFT_OUT * row["resamples"] for row in warns):
        return "met"
    return "too few contacts" if warns else "not met"


def _warns(row: Mapping[str, Any], control: Mapping[str, Any]) -> bool:
    if row["auc"] is None or row["low"] is None:
        return False
    return bool(row["auc"] >= _CRITERION_AUC and row["low"] > 0.5 and row["auc"] > control["auc"])


def steps_to_contact(contact: Mask, episodes: Int64) -> Int64:
    """For each step, the number of steps to the next contact of its episode; a huge number if there is none."""
    steps = len(contact)
    places = np.arange(steps)
    at_or_after = np.minimum.accumulate(np.where(contact, places, steps)[::-1])[::-1]
    after = np.append(at_or_after, [steps, steps])[1 : steps + 1]
    same = np.append(episodes, -1)[after] == episodes
    return np.where(same, after - places, _NEVER)


def standardise(values: Float64, episodes: Int64) -> Float64:
    """Subtract the episode's mean, divide by its population deviation. A constant episode becomes zero."""
    if not len(values):
        return values
    counts = np.maximum(np.bincount(episodes), 1)
    centred = values - (np.bincount(episodes, weights=values) / counts)[episodes]
    deviation = np.sqrt(np.bincount(episodes, weights=centred**2) / counts)
    # Extremes decide whether an episode varies: the mean of equal numbers can be off by a rounding error, and dividing
    # by it would turn that error into a signal.
    low, high = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(low, episodes, values)
    np.maximum.at(high, episodes, values)
    varies = (high > low) & (deviation > 0.0)
    return np.where(varies[episodes], centred / np.where(varies, deviation, 1.0)[episodes], 0.0)


def _with_control(signals: Mapping[str, ArrayLike], episodes: Int64, known: Mask) -> dict[str, Float64]:
    """The signals at the steps that have one, checked, and the step index."""
    chosen: dict[str, Float64] = {}
    for name, given in signals.items():
        if name == CONTROL:
            raise InputError(f"'{CONTROL}' names the step-index control; give the signal another name")
        values = np.asarray(given, np.float64)
        if values.shape != known.shape:
            raise InputError(f"signal '{name}' has the shape {values.shape}; expected one per step, {known.shape}")
        if not np.isfinite(values[known]).all():
            raise InputError(f"signal '{name}' is not finite at some step; name the steps that have one with `scored`")
        chosen[name] = values[known]
    places = np.arange(len(episodes))
    first = np.append(True, np.diff(episodes) != 0)
    begun = np.maximum.accumulate(np.where(first, places, 0))
    return {**chosen, CONTROL: (places - begun + 1)[known].astype(np.float64)}


def _mask(given: ArrayLike, name: str, steps: int | None = None) -> Mask:
    mask = np.asarray(given)
    if mask.ndim != 1 or mask.dtype != np.bool_ or (steps is not None and len(mask) != steps):
        raise InputError(f"{name} is {mask.dtype} {mask.shape}; expected one true or false per step")
    return mask


def _require_whole(episodes: Int64, count: int) -> None:
    """Refuse an episode in pieces: contacts are searched in the steps that follow."""
    if np.count_nonzero(np.diff(episodes)) + 1 != count:
        raise InputError("an episode's steps are not in one piece; give each episode of each run an id of its own")
