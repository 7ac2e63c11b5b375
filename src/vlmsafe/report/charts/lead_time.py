"""The figures of lead time: does a signal rise before contact?"""

from __future__ import annotations

import numpy as np
import polars as pl

from vlmsafe.analysis.anticipation import CONTROL, RAW, STANDARDISED
from vlmsafe.analysis.tables import floats
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Axis, Chart, Line, Mark, Missing, Panel, Rule, Span
from vlmsafe.report.request import Entry
from vlmsafe.report.tables.lead_time import NO_CONTACT, SIGNALS, traced_episodes

_CONTROL = "The step index is the control: contacts come late in many episodes."


def lead_time(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Standardised AUC by horizon for each arm, and the lead-lag profile of c_vlm."""
    panels = []
    envs = dataset.lead_times(entry)
    for env, aucs in envs.items():
        where = f", {env}" if len(envs) > 1 else ""
        panels += _by_horizon(aucs, STANDARDISED, where)
        panels += _lead_lag(dataset.lead_lags(entry).get(env), where)
    caption = (
        "Above one half a signal, standardised over its episode without contact, is higher before contact. "
        f"{_CONTROL} Last panel: Spearman's correlation of c_vlm at t with cost at t + k; flat is no warning."
    )
    return _chart(dataset, entry, "Does the signal rise before contact?", panels, caption)


def lead_time_raw(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """AUC by horizon for each arm, of signals as they are."""
    envs = dataset.lead_times(entry)
    panels = [
        panel for env, aucs in envs.items() for panel in _by_horizon(aucs, RAW, f", {env}" if len(envs) > 1 else "")
    ]
    caption = f"Signals as they are, not standardised: a high AUC may tell episodes apart, not moments. {_CONTROL}"
    return _chart(dataset, entry, "Does the signal as it is rise before contact?", panels, caption)


def _chart(dataset: Dataset, entry: Entry, title: str, panels: list[Panel], caption: str) -> Chart | Missing:
    if not panels:
        return Missing(entry.kind, "Lead time", dataset.why_no_trace(entry, NO_CONTACT))
    groups = [*dataset.arm_names, *SIGNALS.values()]
    whole = f"{caption}{traced_episodes(dataset, entry)}"
    return Chart(entry.kind, entry.title or title, panels, groups, whole, entry.label)


def _by_horizon(aucs: pl.DataFrame, form: str, where: str) -> list[Panel]:
    """A panel for each arm, its runs together."""
    panels = []
    found = aucs.filter(pl.col("run").is_null(), form=form).drop_nulls("auc")
    for (arm,), own in found.group_by("arm", maintain_order=True):
        horizons = sorted(own["horizon"].unique())
        marks: list[Mark] = [Rule(0.5, "chance")]
        for place, (signal, name) in enumerate(SIGNALS.items()):
            rows = own.filter(signal=signal).sort("horizon")
            at = [horizons.index(horizon) + 0.13 * (place - 2) for horizon in rows["horizon"]]
            auc, low, high = (floats(rows, column) for column in ("auc", "low", "high"))
            marks.append(Line(name, at, auc.tolist(), dashed=signal == CONTROL))
            for x, centre, a, b, horizon in zip(at, auc, low, high, rows["horizon"], strict=True):
                # A percentile interval need not hold the estimate itself; the bar must.
                bottom, top = (min(a, centre), max(b, centre)) if np.isfinite(a) else (centre, centre)
                label = f"{name}, K = {horizon}"
                marks.append(Span(name, x, float(centre), float(bottom), float(top), name=label))
        along = Axis("contact within the next K steps", tuple(map(str, horizons)))
        panels.append(Panel(f"{arm}{where}", along, Axis(f"AUC, {form}"), marks))
    return panels


def _lead_lag(profile: pl.DataFrame | None, where: str) -> list[Panel]:
    known = profile.drop_nulls("spearman") if profile is not None else None
    if known is None or not len(known):
        return []
    marks: list[Mark] = [Rule(0.0), Rule(0.0, along="y")]
    for (arm,), own in known.group_by("arm", maintain_order=True):
        marks.append(Line(str(arm), floats(own, "lag").tolist(), floats(own, "spearman").tolist(), str(arm)))
    y = Axis("Spearman's correlation", low=-0.1, high=0.1)  # further where a line goes further, with room around it
    return [Panel(f"c_vlm at t and cost at t + k{where}", Axis("lag k, steps"), y, marks)]
