"""The figures of the gate: how open it is, and whether it knows contact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from vlmsafe.analysis.gate_roc import PRIOR, at_thresholds, calibrated, roc_curve
from vlmsafe.analysis.tables import floats
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Axis, Box, Chart, Line, Mark, Missing, Panel, Rule
from vlmsafe.report.request import Entry

_CURVE_POINTS = 80
_SCORES = ("κ, s = 100, c = 0", "κ, calibrated on these frames", "negated margin", "κ, calibrated on other episodes")
_ENDS = ("low", "q25", "median", "q75", "high")
_NO_CONTACT = "no traced frame is in contact"


def gate(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Margins of each run, and its kappa under the prior-symmetric and the calibrated gate."""
    return _boxes(dataset, entry, "Margins and the gate", ("s = 100", "calibrated"))


def gate_cells(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """Margins of each run, and its kappa under every gate."""
    return _boxes(dataset, entry, "Margins and κ under every gate", None)


def _boxes(dataset: Dataset, entry: Entry, title: str, gates: tuple[str, ...] | None) -> Chart | Missing:
    panels = []
    envs = dataset.gate_cells(entry)
    for env, cells in envs.items():
        where = f", {env}" if len(envs) > 1 else ""
        shown = gates or tuple(cells["gate"].unique(maintain_order=True))
        panels.append(_box_panel(cells, "margin", shown[0], f"Margin{where}"))
        for form in shown:
            words = f"{form}, c = 0" if form.startswith("s =") else form
            panels.append(_box_panel(cells, "kappa", form, f"κ, {words}{where}"))
    if not panels:
        return Missing(entry.kind, "The gate", dataset.why_no_trace(entry))
    caption = (
        "Scored frames of each run's trace, from lowest to highest, with quarters. Below 0.1 a gate is nearly closed, "
        "above 0.9 nearly open."
    )
    return Chart(entry.kind, entry.title or title, panels, dataset.arm_names, caption, entry.label, False)


def _box_panel(cells: pl.DataFrame, quantity: str, form: str, title: str) -> Panel:
    rows = cells.select("arm", "run").unique(maintain_order=True).rows()
    single = len({arm for arm, _ in rows}) == 1
    names = tuple(run if single or arm == run else f"{arm} {run}" for arm, run in rows)
    marks: list[Mark] = [Rule(0.0, along="y")] if quantity == "margin" else []
    for place, (arm, run) in enumerate(rows):
        for row in cells.filter(arm=arm, run=run, gate=form).iter_rows(named=True):
            if row[f"{quantity}_median"] is not None:  # else a gate that could not be calibrated
                low, q25, median, q75, high = (row[f"{quantity}_{end}"] for end in _ENDS)
                marks.append(Box(arm, place, low, q25, median, q75, high, f"{arm} {run}"))
    axis = _share("κ") if quantity == "kappa" else Axis("margin")
    return Panel(title, axis, Axis("", names), marks)


def _share(label: str) -> Axis:
    return Axis(label, low=0.0, high=1.0)


def gate_roc(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """ROC of kappa and of the negated margin against contact, and precision and recall by threshold."""
    panels, detectors = [], []
    scores = _SCORES[:3]
    measures = ("precision", "recall", "prevalence")
    for arm, where, own in _contact_frames(dataset, entry):
        margins, contact = floats(own, "margin"), floats(own, "cost") > 0.0
        fitted = calibrated(margins)
        values = [PRIOR.kappa(margins), None if fitted is None else fitted.kappa(margins), -margins]
        marks: list[Mark] = [Line("chance", [0.0, 1.0], [0.0, 1.0], "chance", faint=True)]
        for name, score in zip(scores, values, strict=True):
            if score is not None:
                curve = roc_curve(score, contact)
                kept = np.unique(np.linspace(0, len(curve) - 1, _CURVE_POINTS).astype(int))
                x, y = floats(curve, "false_positive_rate")[kept], floats(curve, "recall")[kept]
                marks.append(Line(name, x.tolist(), y.tolist(), name, dashed=name == "negated margin"))
        panels.append(Panel(f"ROC, {arm}{where}", _share("false-positive rate"), _share("recall"), marks))
        if fitted is not None:
            table = at_thresholds(fitted.kappa(margins), contact)
            at = floats(table, "threshold").tolist()
            marks = [Line(name, at, _known(table, name), name) for name in measures[:2]]
            share = float(contact.mean())
            marks.append(Line("prevalence", [at[0], at[-1]], [share, share], "prevalence", dashed=True))
            title = f"Calibrated κ as a detector, {arm}{where}"
            detectors.append(Panel(title, _share("threshold on κ"), _share("share"), marks))
    if not panels:
        return Missing(entry.kind, "Gate and contact", dataset.why_no_trace(entry, _NO_CONTACT))
    caption = "Against contact in the same step; the calibrated gate is judged on the frames it was calibrated on."
    groups = [*scores, *measures, "chance"]
    title = entry.title or "Does the gate know contact?"
    return Chart(entry.kind, title, [*panels, *detectors], groups, caption, entry.label)


def _contact_frames(dataset: Dataset, entry: Entry) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """The scored frames of each arm that has some with and some without contact."""
    envs = dataset.gate_cells(entry)
    for env, cells in envs.items():
        traces = dataset.traces(env, entry)
        assert traces is not None
        steps = dataset.with_onsets(traces)
        if steps is None:
            continue
        kept = steps.filter("scored", pl.col("arm").is_in(cells["arm"].unique().implode()))
        for (arm,), own in kept.group_by("arm", maintain_order=True):
            if 0 < len(own.filter(pl.col("cost") > 0.0)) < len(own):
                yield str(arm), f", {env}" if len(envs) > 1 else "", own


def gate_curves(dataset: Dataset, entry: Entry) -> Chart | Missing:
    """ROC, and precision over recall, also of gates that were calibrated on the other half of the episodes."""
    panels = []
    envs = dataset.gate_curves(entry)
    for env, curves in envs.items():
        where = f", {env}" if len(envs) > 1 else ""
        known = curves.drop_nulls(("recall", "false_positive_rate"))
        for (arm,), own in known.group_by("arm", maintain_order=True):
            roc: list[Mark] = [Line("chance", [0.0, 1.0], [0.0, 1.0], "chance", faint=True)]
            # Flagging every frame, as the last threshold does, is as precise as contacts are frequent.
            precision: list[Mark] = [Rule(own.filter(pl.col("half").is_null())["precision"][-1], "prevalence")]
            for key, curve in own.group_by("score", "calibrated_on", "half", maintain_order=True):
                group = _group(*key)
                if group is None:
                    continue
                name = f"{group}, half {key[2]}" if key[2] else group
                dashed = group in _SCORES[2:]
                recall = floats(curve, "recall").tolist()
                roc.append(Line(group, floats(curve, "false_positive_rate").tolist(), recall, name, dashed=dashed))
                precision.append(Line(group, recall, _known(curve, "precision"), name, dashed=dashed))
            panels.append(Panel(f"ROC, {arm}{where}", _share("false-positive rate"), _share("recall"), roc))
            panels.append(Panel(f"Precision, {arm}{where}", _share("recall"), _share("precision"), precision))
    if not panels:
        return Missing(entry.kind, "Gate and contact", dataset.why_no_trace(entry, _NO_CONTACT))
    caption = (
        "Against contact in the same step. Gates calibrated on other episodes are judged on the half of the episodes "
        "that they were not calibrated on."
    )
    title = entry.title or "Does the gate know contact in other episodes?"
    return Chart(entry.kind, title, panels, [*_SCORES, "chance"], caption, entry.label)


def _group(score: object, calibrated_on: object, half: object) -> str | None:
    """The group of a curve; None for the negated margin of half the episodes, which is drawn for all of them."""
    if score == "kappa":
        return {None: _SCORES[0], "same frames": _SCORES[1]}.get(calibrated_on, _SCORES[3])  # type: ignore[call-overload]
    return _SCORES[2] if half is None else None


def _known(table: pl.DataFrame, name: str) -> list[float | None]:
    """A column with nothing where a share is not defined."""
    return [None if value != value else value for value in floats(table, name).tolist()]
