"""Diagnoses as people read them in a terminal: rich tables, laid out like the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from vlmsafe.analysis.anticipation import CONTROL, verdict
from vlmsafe.analysis.multiplier_replay import AGREEMENT
from vlmsafe.report.diagnoses import Diagnosis

SHOWN_HORIZONS = (5, 10, 20, 40)
SHOWN_LAGS = (-10, -5, -1, 0, 1, 5, 10, 20)
CRITERION = (
    "The criterion, fixed in advance: standardised, at K = 20 or 40, an AUC of at least 0.60, its interval above 0.5, "
    "and above the step index, with contact in enough episodes that 95 % of the resamples have some. The signal it is "
    "about is c_vlm."
)
_SIGNALS = {"negative": "c_vlm", "positive": "r_vlm", CONTROL: "step index"}


def rendered(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The tables of a diagnosis, and a sentence where one needs it, in the order in which they are read."""
    yield from _LAYOUTS[diagnosis.name](diagnosis)


def _multiplier(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    rows = diagnosis.tables["multiplier"]
    wrong = rows.filter(~pl.col("agrees"))
    table = _table(
        _title("Multiplier with and without the signal term", diagnosis),
        ("arm", "run", "epochs", "rebuilt\nλ off by", "largest change\nwithout the term", "largest step\nof λ",
         "sign\nreversals", "J_C = d"),
    )  # fmt: skip
    sizes = _table(
        "Sizes of both terms",
        ("arm", "run", "signal term\nmean", "\nlargest", "|J_C - d|\nsmallest", "\nmedian", "\nlargest", "mean\nc_vlm",
         "budget\nshift"),
    )  # fmt: skip
    for row in rows.iter_rows(named=True):
        if row["run"] is None and row["runs"] == 1:
            continue  # the pool of one run is that run
        name = (row["arm"], row["run"] or f"all {row['runs']}")
        table.add_row(
            *name, str(row["epochs"]), f"{row['error']:.1e}", f"{row['largest_change']:.3g}",
            f"{row['largest_step']:.3g}", str(row["sign_reversals"]), str(row["at_budget"]),
        )  # fmt: skip
        figures = ("mean_term", "largest_term", "smallest_gap", "median_gap", "largest_gap", "mean_score")
        sizes.add_row(*name, *(f"{row[figure]:.3g}" for figure in figures), f"{row['budget_shift']:+.2e}")
    yield table
    yield sizes
    if len(wrong):
        yield f"A replay is not the recorded run (off by more than {AGREEMENT:g}): its figures cannot be believed."
    else:
        yield f"The replay agrees with every recorded λ to {AGREEMENT:g}. Costs are held fixed: a direct effect only."


def _anticipation(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    aucs, verdicts = diagnosis.tables["lead-time"], diagnosis.tables["lead-time-verdicts"]
    met = {(arm, signal): passes for arm, signal, passes in verdicts.iter_rows()}
    pooled = aucs.filter(pl.col("run").is_null())
    for (arm,), own in pooled.group_by("arm", maintain_order=True):
        first = own.row(0, named=True)
        runs = aucs.filter(arm=arm)["run"].n_unique() - 1
        title = _title(f"AUC before contact: {arm}", diagnosis, f"{_many(runs, 'run')}, {first['episodes']} episodes")
        table = _table(title, ("signal", *(f"K = {k}" for k in SHOWN_HORIZONS), "criterion"), names=1)
        for (signal, form), rows in own.group_by("signal", "form", maintain_order=True):
            by = {row["horizon"]: row for row in rows.iter_rows(named=True)}
            cells = [_interval(by[k]) for k in SHOWN_HORIZONS]
            judged = form == "standardised" and signal != CONTROL
            found = ("met" if met[arm, signal] else verdict(own, str(signal))) if judged else ""
            name = _SIGNALS.get(str(signal), str(signal))
            table.add_row(name if form == "raw" else f"  {form}", *cells, found)
        table.add_section()
        at = {row["horizon"]: row for row in own.filter(signal=CONTROL, form="raw").iter_rows(named=True)}
        counts = [f"{at[k]['positives']:,} of {at[k]['positives'] + at[k]['negatives']:,}" for k in SHOWN_HORIZONS]
        table.add_row("contact ahead", *counts, "")
        yield table
    yield CRITERION
    yield from _anticipation_counts(diagnosis)
    yield _lags(diagnosis.tables["lead-lag"])
    yield _variability(diagnosis.tables["score-variability"])


def _anticipation_counts(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    table = _table(
        "AUCs of all signals, forms and horizons (K = 1, 3, 5, 10, 20, 40), counted",
        ("", "AUCs", "lowest", "highest", "above 0.5", "interval\nabove 0.5", "above the\nstep index",
         "reversed, above\nthe step index"),
        names=1,
    )  # fmt: skip
    names = {"pools": "arms, runs together", "runs": "single runs"}
    for row in diagnosis.tables["lead-time-counts"].iter_rows(named=True):
        counted = ("above_half", "interval_above_half", "above_control", "reversed_above_control")
        table.add_row(
            names[row["of"]], str(row["total"]), _number(row["lowest"]), _number(row["highest"]),
            *(str(row[name]) for name in counted),
        )  # fmt: skip
    yield table
    ranges = _table("Range of AUCs over arms and horizons", ("signal", "raw", "standardised"), names=1)
    for row in diagnosis.tables["lead-time-ranges"].iter_rows(named=True):
        ends = [f"{_number(row[f'{form}_low'])} to {_number(row[f'{form}_high'])}" for form in ("raw", "standardised")]
        ranges.add_row(_SIGNALS.get(row["signal"], row["signal"]), *ends)
    yield ranges


def _lags(profile: pl.DataFrame) -> Table:
    table = _table(
        "Spearman's correlation of c_vlm at t with the cost at t + k",
        ("arm", *(f"k = {lag}" for lag in SHOWN_LAGS), "lowest", "highest"),
        names=1,
    )
    for (arm,), own in profile.group_by("arm", maintain_order=True):
        by = dict(own.select("lag", "spearman").iter_rows())
        ends = (own["spearman"].min(), own["spearman"].max())
        table.add_row(str(arm), *(_number(by[lag]) for lag in SHOWN_LAGS), *map(_number, ends))
    return table


def _variability(scores: pl.DataFrame) -> Table:
    headings = ("signal", "steps", "mean", "deviation", "of the\nmean", "within\nepisodes", "between\nepisodes",
                "lowest", "highest")  # fmt: skip
    table = _table("How much scores vary", headings, names=1)
    for (arm,), own in scores.group_by("arm", maintain_order=True):
        table.add_section()
        table.add_row(str(arm), *("" for _ in headings[1:]))
        for row in own.iter_rows(named=True):
            figures = (f"{row[name]:.4f}" for name in ("within_std", "between_std", "low", "high"))
            table.add_row(
                "  " + _SIGNALS.get(row["signal"], row["signal"]), f"{row['steps']:,}", f"{row['mean']:.4f}",
                f"{row['std']:.4f}", _percent(row["coefficient"]), *figures,
            )  # fmt: skip
    return table


def _gate(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    cells = diagnosis.tables["gate-cells"]
    gates = cells["gate"].unique(maintain_order=True).to_list()
    medians = _table(
        _title("Medians of margin and κ, gate by gate", diagnosis),
        ("", "frames", "margin > 0", "margin", *(f"κ, {gate}" for gate in gates)),
        names=1,
    )
    spread = _table(
        "κ from lowest to highest, and the shares of frames where the gate is nearly closed (< 0.1) and open (> 0.9)",
        ("", "gate", "s", "c", "lowest", "25 %", "median", "75 %", "highest", "closed", "open"),
    )
    for (arm, run), own in cells.group_by("arm", "run", maintain_order=True):
        rows = {row["gate"]: row for row in own.iter_rows(named=True)}
        first, who = rows[gates[0]], _who(arm, run)
        margin = (f"{first['frames']:,}", _percent(first["positive_margins"]), _number(first["margin_median"]))
        medians.add_row(who, *margin, *(_number(rows[gate]["kappa_median"], 2) for gate in gates))
        for gate, row in rows.items():
            ends = (_number(row[f"kappa_{end}"], 2) for end in ("low", "q25", "median", "q75", "high"))
            scale = "-" if row["scale"] is None else f"{row['scale']:.4g}"
            centre = "-" if row["centre"] is None else f"{row['centre']:.3g}"
            shares = (_percent(row["closed"]), _percent(row["open"]))
            spread.add_row(who if gate == gates[0] else "", gate, scale, centre, *ends, *shares)
    yield medians
    yield spread
    yield from _gate_roc(diagnosis.tables["gate-roc"])
    yield _gate_thresholds(diagnosis.tables["gate-thresholds"])
    yield "Where the negated margin does as well as the calibrated gate, it has found an unusual margin, not danger."


def _gate_roc(roc: pl.DataFrame) -> Iterator[Table]:
    headings = ("score", "contact frames", "AUC", "margin in\ncontact", "without", "contact below\nthe centre")
    for (arm,), own in roc.group_by("arm", maintain_order=True):
        table = _table(f"Does it know contact in the same step? {arm}", headings, names=1)
        for row in own.iter_rows(named=True):
            levels = (_number(row[name], 4) for name in ("contact_margin", "free_margin"))
            frames = f"{row['positives']:,} of {row['positives'] + row['negatives']:,}"
            table.add_row(_judged(row), frames, _interval(row), *levels, _percent(row["contact_below_centre"]))
        yield table


def _gate_thresholds(rows: pl.DataFrame) -> Table:
    shown = (0.2, 0.3, 0.5, 0.7, 0.9)
    table = _table(
        "Precision / recall when κ at or above a threshold flags contact",
        ("gate", "prevalence", *(f"κ ≥ {level}" for level in shown)),
        names=1,
    )
    keys = ("calibrated_on", "half", "prevalence")
    for (arm,), of_arm in rows.group_by("arm", maintain_order=True):
        table.add_section()
        table.add_row(str(arm), *("" for _ in range(len(shown) + 1)))
        for values, own in of_arm.group_by(*keys, maintain_order=True):
            key = dict(zip(keys, values, strict=True))
            by = {round(row["threshold"], 6): row for row in own.iter_rows(named=True)}
            cells = (f"{_number(by[level]['precision'])} / {_number(by[level]['recall'], 2)}" for level in shown)
            table.add_row("  " + _judged({"score": "kappa", **key}), _percent(key["prevalence"]), *cells)
    return table


def _judged(row: dict[str, Any]) -> str:
    """Which score, under which gate, on which frames."""
    if row["score"] != "kappa":
        return row["score"] + (f", half {row['half']}" if row["half"] else "")
    if row["calibrated_on"] is None:
        return "κ, s = 100, c = 0"
    return "κ, in-sample" if row["calibrated_on"] == "same frames" else f"κ, out-of-sample, half {row['half']}"


def _returns(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    table = _table(
        _title("Training return taken apart", diagnosis),
        ("arm", "run", "epochs", "logged", "bonus", "environment", "last 5 epochs", "last 10 epochs"),
    )
    parts = ("logged_return_final", "bonus_final", "environment_return_final", "environment_return_last_5",
             "environment_return_last_10")  # fmt: skip
    rows = diagnosis.tables["returns"]
    single = {arm for (arm,), own in rows.group_by("arm") if len(own) == 2}
    for row in rows.iter_rows(named=True):
        if row["run"] is not None or row["arm"] not in single:
            epochs = "" if row["epochs"] is None else str(row["epochs"])
            table.add_row(row["arm"], row["run"] or "mean", epochs, *(f"{row[name]:.2f}" for name in parts))
    yield table
    if "cost-correlations" in diagnosis.tables:
        over = _table("Cost against", ("", "over", "number", "Pearson", "Spearman"), names=2)
        for row in diagnosis.tables["cost-correlations"].sort("against", maintain_order=True).iter_rows(named=True):
            name = row["against"].replace("_", " ")
            over.add_row(name, row["level"], str(row["n"]), _number(row["pearson"]), _number(row["spearman"]))
        yield over
    if "passive-episodes" in diagnosis.tables:
        passive = _table(
            "Passive episodes: no cost, and too small a return", ("arm", "run", "episodes", "passive", "rate")
        )
        for row in diagnosis.tables["passive-episodes"].iter_rows(named=True):
            counts = (str(row["episodes"]), str(row["passive"]), _percent(row["rate"]))
            passive.add_row(row["arm"], row["run"] or "all", *counts)
        yield passive


_LAYOUTS: dict[str, Callable[[Diagnosis], Iterator[RenderableType]]] = {
    "multiplier": _multiplier,
    "lead-time": _anticipation,
    "gate": _gate,
    "returns": _returns,
}


def _table(title: str, headings: Sequence[str], names: int = 2) -> Table:
    """A table whose first columns are names, and whose others are figures."""
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", padding=(0, 1))
    for place, heading in enumerate(headings):
        is_name = place < names
        table.add_column(Text(heading), justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    return table


def _who(arm: Any, run: Any) -> str:
    """A run by its arm and name; a trace that came by itself has one name for both."""
    return str(arm) if arm == run else f"{arm} {run}"


def _title(text: str, diagnosis: Diagnosis, more: str = "") -> str:
    return ", ".join(part for part in (text, diagnosis.env or "", more) if part)


def _interval(row: dict[str, Any]) -> str:
    if row["auc"] is None:
        return "-"
    ends = "" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row['auc']:.3f}{ends}"


def _number(value: Any, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
