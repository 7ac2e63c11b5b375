"""The table of contrasts: each claimed interaction with its interval and its test."""

from __future__ import annotations

from vlmsafe.comparison.outcomes import WORDS
from vlmsafe.report.cells import text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.results import ContrastResult, contrast_results


def contrasts(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Each contrast: the difference between differences, p, and what is decided."""
    found = contrast_results(dataset)
    if not found:
        return Missing(entry.kind, "Interactions", "no contrast is claimed")
    columns = [
        Column("question", "question"),
        Column("outcome", "outcome"),
        Column("runs", "runs", 0, hint="over all arms of the contrast"),
        Column("estimate", "interaction", 2, hint="how much the difference differs, with its interval"),
        Column("p", "p", 3, hint="of the claimed test"),
        Column("says", "the test says"),
    ]
    tests = list(dict.fromkeys(one.test for one in found))
    caption = f"Differences between differences of arms; rates in percentage points. Tests: {'; '.join(tests)}."
    rows = [_cells(one) for one in found]
    return Table("contrasts", entry.title or "Interactions", columns, rows, caption, entry.label)


def _cells(one: ContrastResult) -> list[Cell]:
    verdict, claim = one.verdict, one.verdict.claim
    estimate = Cell() if verdict.estimate is None else Cell(one.scale * verdict.estimate)
    if verdict.interval is not None:
        low, high = (one.scale * end for end in (verdict.interval.low, verdict.interval.high))
        estimate = Cell(one.scale * verdict.interval.estimate, low=low, high=high)
    runs = sum(map(len, verdict.cells.values()))
    says = {-1: "lower", 0: "no significant interaction", 1: "higher"}[one.decision.decided]
    return [
        text(claim.name),
        text(f"{WORDS[claim.outcome]} ({claim.source})"),
        Cell(float(runs), str(runs)),
        estimate,
        Cell() if verdict.p is None or one.waits else Cell(verdict.p, verdict.text.removeprefix("p = ")),
        text("no verdict yet" if one.waits else "not tested" if verdict.p is None else says),
    ]
