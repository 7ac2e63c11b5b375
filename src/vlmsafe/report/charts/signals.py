"""The figures of traces: does a signal rise before contact, how open is the gate, does it know contact?"""

from __future__ import annotations

import numpy as np
import polars as pl

from vlmsafe.analysis.anticipation import CONTROL
from vlmsafe.analysis.gate_roc import (
    PRIOR,
    at_thresholds,
    calibrated,
    roc_curve,
)
from vlmsafe.analysis.tables import floats
from vlmsafe.report.dataset import TRACED, Dataset
from vlmsafe.report.elements import (
    Axis,
    Box,
    Chart,
    Line,
    Mark,
    Missing,
    Panel,
    Rule,
    Span,
)
from vlmsafe.report.request import Entry

_NAMES = {"kappa": "κ", "negative": "c_vlm", "positive": "r_vlm", "margin": "margin", CONTROL: "step index (control)"}
_TRACE = "no run has a trace that a scorer looked at; vlmsafe trace RUN records one"
_CURVE_POINTS = 80


def lead_time(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Standardised AUC by horizon for each arm, and the lead-lag profile of c_vlm."""
    panels = []
    envs = dataset.lead_times(entry)
    for env, aucs in envs.items():
        found = aucs.drop_nulls("auc").filter(form="standardised")
        for (arm,), own in found.group_by("arm", maintain_order=True):
            horizons = sorted(own["horizon"].unique())
            marks: list[Mark] = [Rule(0.5, "chance")]
            for place, (signal, name) in enumerate(_NAMES.items()):
                rows = own.filter(signal=signal).sort("horizon")
                at = [horizons.index(horizon) + 0.13 * (place - 2) for horizon in rows["horizon"]]
                auc, low, high = (floats(rows, column) for column in ("auc", "low", "high"))
                marks.append(Line(name, at, auc.tolist(), dashed=signal == CONTROL))
                for x, centre, a, b, horizon in zip(at, auc, low, high, rows["horizon"], strict=True):
                    # A percentile interval need not hold the estimate itself; the bar must.
                    bottom, top = (min(a, centre), max(b, centre)) if np.isfinite(a) else (centre, centre)
                    label = f"{name}, K = {horizon}"
                    marks.append(Span(name, x, float(centre), float(bottom), float(top), name=label))
            where = f", {env}" if len(envs) > 1 else ""
            along = Axis("contact within the next K steps", tuple(map(str, horizons)))
            panels.append(Panel(f"{arm}{where}", along, Axis("AUC, standardised"), marks))
        panels += _lead_lag(dataset.lead_lags(entry).get(env), env if len(envs) > 1 else "")
    if not panels:
        why = "no traced episode has a contact, so there is nothing to rise before" if envs else _TRACE
        return Missing(entry.kind, "Lead time", why)
    caption = (
        "Above one half a signal, standardised within episodes, is higher before contact. The step index is the "
        "control: contacts come late in many "
        "episodes. Last panel: Spearman's correlation of c_vlm at t with cost at t + k; flat is no warning. "
        f"From at most {TRACED} traced episodes of an arm; vlmsafe diagnose lead-time takes all."
    )
    groups = [*dataset.arm_names, *_NAMES.values()]
    return Chart(
        "lead-time", entry.title or "Does the signal rise before contact?", panels, groups, caption, entry.label
    )


def _lead_lag(profile: pl.DataFrame | None, env: str) -> list[Panel]:
    known = profile.drop_nulls("spearman") if profile is not None else None
    if known is None or not len(known):
        return []
    marks: list[Mark] = [Rule(0.0), Rule(0.0, along="y")]
    for (arm,), own in known.group_by("arm", maintain_order=True):
        marks.append(Line(str(arm), floats(own, "lag").tolist(), floats(own, "spearman").tolist(), str(arm)))
    where = f", {env}" if env else ""
    y = Axis("Spearman's correlation", low=-0.1, high=0.1)  # further where a line goes further, with room around it
    return [Panel(f"c_vlm at t and cost at t + k{where}", Axis("lag k, steps"), y, marks)]


def gate(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Margins of each run, and its kappa under the prior-symmetric and the calibrated gate."""
    panels = []
    envs = dataset.gate_cells(entry)
    for env, cells in envs.items():
        rows = cells.select("arm", "run").unique(maintain_order=True).rows()
        single = len({arm for arm, _ in rows}) == 1
        names = tuple(run if single else f"{arm} {run}" for arm, run in rows)
        shown = (
            ("margin", "s = 100", "Margin"),
            ("kappa", "s = 100", "κ, s = 100, c = 0"),
            ("kappa", "calibrated", "κ, calibrated"),
        )
        for quantity, form, title in shown:
            marks: list[Mark] = [Rule(0.0, along="y")] if quantity == "margin" else []
            for place, (arm, run) in enumerate(rows):
                row = cells.filter(arm=arm, run=run, gate=form).row(0, named=True)
                if row[f"{quantity}_median"] is not None:
                    low, q25, median, q75, high = (
                        row[f"{quantity}_{end}"] for end in ("low", "q25", "median", "q75", "high")
                    )
                    marks.append(Box(arm, place, low, q25, median, q75, high, f"{arm} {run}"))
            axis = _share("κ") if quantity == "kappa" else Axis("margin")
            where = f", {env}" if len(envs) > 1 else ""
            panels.append(Panel(f"{title}{where}", axis, Axis("", names), marks))
    if not panels:
        return Missing(entry.kind, "The gate", _TRACE)
    caption = (
        "Scored frames of each run's trace, from lowest to highest, with quarters. Below 0.1 a gate is nearly closed, "
        "above 0.9 nearly open."
    )
    return Chart("gate", entry.title or "Margins and the gate", panels, dataset.arm_names, caption, entry.label, False)


def _share(label: str) -> Axis:
    return Axis(label, low=0.0, high=1.0)


def gate_roc(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """ROC of kappa and of the negated margin against contact, and precision and recall by threshold."""
    panels, detectors = [], []
    scores = ("κ, s = 100, c = 0", "κ, calibrated on these frames", "negated margin")
    measures = ("precision", "recall", "prevalence")
    envs = dataset.gate_cells(entry)
    for env, cells in envs.items():
        steps = dataset.traces(env, entry.source)
        assert steps is not None
        steps = steps.filter(pl.col("arm").is_in(cells["arm"].unique().implode()))
        for (arm,), own in steps.filter("scored").group_by("arm", maintain_order=True):
            margins, contact = floats(own, "margin"), floats(own, "cost") > 0.0
            fitted = calibrated(margins)
            if not contact.any() or contact.all():
                continue
            values = [PRIOR.kappa(margins), None if fitted is None else fitted.kappa(margins), -margins]
            marks: list[Mark] = [Line("chance", [0.0, 1.0], [0.0, 1.0], "chance", faint=True)]
            for name, score in zip(scores, values, strict=True):
                if score is not None:
                    curve = roc_curve(score, contact)
                    kept = np.unique(np.linspace(0, len(curve) - 1, _CURVE_POINTS).astype(int))
                    x, y = floats(curve, "false_positive_rate")[kept], floats(curve, "recall")[kept]
                    marks.append(Line(name, x.tolist(), y.tolist(), name, dashed=name == "negated margin"))
            where = f", {env}" if len(envs) > 1 else ""
            panels.append(Panel(f"ROC, {arm}{where}", _share("false-positive rate"), _share("recall"), marks))
            if fitted is not None:
                table = at_thresholds(fitted.kappa(margins), contact)
                at = floats(table, "threshold").tolist()
                marks = [
                    Line(name, at, [None if v != v else v for v in floats(table, name).tolist()], name)
                    for name in measures[:2]
                ]
                share = float(contact.mean())
                marks.append(Line("prevalence", [at[0], at[-1]], [share, share], "prevalence", dashed=True))
                title = f"Calibrated κ as a detector, {arm}{where}"
                detectors.append(Panel(title, _share("threshold on κ"), _share("share"), marks))
    if not panels:
        why = "no traced frame is in contact" if envs else _TRACE
        return Missing(entry.kind, "Gate and contact", why)
    caption = "Against contact in the same step; the calibrated gate is judged on the frames it was calibrated on."
    groups = [*scores, *measures, "chance"]
    panels += detectors
    return Chart("gate-roc", entry.title or "Does the gate know contact?", panels, groups, caption, entry.label)
