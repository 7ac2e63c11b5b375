"""The page of a report: question and answer, tables, figures, the audit and the configurations, in one HTML file.

This module decides what is shown; `assets/report.html.j2` decides how. The template escapes everything that comes from
runs, prompts and study files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from vlmsafe.audit.findings import Finding, counted
from vlmsafe.audit.kinds import Severity
from vlmsafe.comparison.claims import Claims
from vlmsafe.comparison.preregistration import Moment, claim_states, protocol_lines
from vlmsafe.report.answer import answering, audit_line, contrast_sentence, describe_arms, headline, sentence
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Chart, Column, Missing, Table
from vlmsafe.report.render.cell_text import cell_text, interval_text, published_text
from vlmsafe.report.render.svg import panel_svg, swatch
from vlmsafe.report.render.templates import asset, render_page
from vlmsafe.report.rerun import arm_configs, rerun_lines
from vlmsafe.report.results import ComparisonResult, ContrastResult, contrast_results

_SHOWN_RESULTS = 8
"""Comparisons spelled out under the answer; further ones are in their table."""
_KEYS = ("env", "arm", "first", "second", "first_arm", "second_arm", "run", "seed", "signal", "setting", "audit")
_SECTIONS = {
    "answer": "Answer",
    "results": "Results",
    "figures": "Figures",
    "details": "Further tables",
    "missing": "Asked for and missing",
    "audit": "Audit",
    "configs": "Configurations",
    "rerun": "How to run it again",
}
_CONSEQUENCES = {
    Severity.ERROR: ", so the comparison does not show what it says",
    Severity.WARNING: ", so it shows less than it seems to",
    Severity.NOTE: "",
}


@dataclass(frozen=True)
class ReportItem:
    """One table or figure of a report, and the names of the files that hold it too."""

    content: Table | Chart | Missing
    name: str
    """Unique in the report."""
    files: tuple[str, ...] = ()
    """Relative to the page."""
    lead: bool = False
    """Whether it stands before the figures."""


def page(dataset: Dataset, found: Sequence[ComparisonResult], items: Sequence[ReportItem]) -> str:
    """The whole report as one HTML document."""
    tables = [item for item in items if isinstance(item.content, Table)]
    contents = {
        "results": [item for item in tables if item.lead],
        "figures": [item for item in items if isinstance(item.content, Chart)],
        "details": [item for item in tables if not item.lead],
        "missing": [item.content for item in items if isinstance(item.content, Missing)],
    }
    info = dataset.info
    commands, surroundings = rerun_lines(dataset)
    return render_page(
        "report.html.j2",
        name=info.name,
        style=asset("report.css") + asset("chart.css"),
        script=asset("report.js"),
        sections={key: title for key, title in _SECTIONS.items() if contents.get(key, True)},
        lead=contents["results"],
        charts=contents["figures"],
        more=contents["details"],
        missing=contents["missing"],
        **_answer(dataset, found),
        **_audit(dataset),
        configs=arm_configs(dataset),
        command=info.command,
        definition=info.definition,
        commands=commands,
        versions=json.dumps(surroundings, indent=1, ensure_ascii=False),
        cell_text=cell_text,
        interval_text=interval_text,
        published_text=published_text,
        kind=_kind,
        breakable=_breakable,
        in_pieces=_in_pieces,
        swatch=swatch,
        panel_svg=panel_svg,
        group_key=_group_key,
    )


def _answer(dataset: Dataset, found: Sequence[ComparisonResult]) -> dict[str, Any]:
    known = answering(dataset, found)
    lines = [_result_line(one) for one in known[:_SHOWN_RESULTS]]
    lines += [_contrast_line(one) for one in contrast_results(dataset)]
    if not known:
        lines = [{"sentence": line, "direction": "", "finding": None} for line in describe_arms(dataset)]
    return {
        "question": dataset.info.question or _question(dataset, known),
        "headline": headline(known) if known else "Nothing is compared: this describes the runs.",
        "lines": lines,
        "further": counted(more, "further comparison") if (more := len(known) - _SHOWN_RESULTS) > 0 else "",
        "state": _state(dataset),
        "protocol": _protocol(dataset),
        "problems": dataset.problems,
    }


def _question(dataset: Dataset, known: Sequence[ComparisonResult]) -> str:
    if known:
        claim = known[0].comparison.claim
        return f"Does {claim.first} differ from {claim.second} in {known[0].word}?"
    return "What did these runs come to?" if len(dataset.runs) > 1 else "What did this run come to?"


def _result_line(one: ComparisonResult) -> dict[str, Any]:
    found = one.finding
    return {
        "sentence": sentence(one),
        "direction": {-1: "lower", 0: "undecided", 1: "higher"}[one.decided],
        "finding": found,
        "remark": f"{found.severity}: {found.title}{_CONSEQUENCES[found.severity]}" if found else "",
    }


def _contrast_line(one: ContrastResult) -> dict[str, Any]:
    direction = {-1: "lower", 0: "undecided", 1: "higher"}[one.decision.decided]
    return {"sentence": contrast_sentence(one), "direction": direction, "finding": None, "remark": ""}


def _state(dataset: Dataset) -> str:
    runs, info = dataset.runs, dataset.info
    finished = sum(run.epochs_recorded >= run.config.epochs for run in runs)
    planned = f" of {info.planned} planned" if info.planned is not None and info.planned != len(runs) else ""
    paper = f" Stands for {', '.join(info.paper)} of the paper." if info.paper else ""
    return (
        f"{counted(len(runs), 'run')}{planned}, {finished} trained to the end; "
        f"{counted(len(dataset.environments), 'environment')}, {counted(len(dataset.arm_names), 'arm')}.{paper}"
    )


def _protocol(dataset: Dataset) -> list[str]:
    """What a study had decided before its runs, and what was changed since."""
    info, runs = dataset.info, dataset.runs
    if info.protocol is None:
        return ["This study has no frozen protocol."] if info.definition else []
    frozen = info.protocol.first
    finished = sum(run.epochs_recorded >= run.config.epochs for run in runs)
    now = Moment(len(runs), finished, info.planned if info.planned is not None else len(runs))
    states = claim_states(info.protocol, dataset.claims or Claims(), now)
    lines = protocol_lines(info.protocol, states)
    # Both times are in UTC and written alike up to the second.
    early = [run for run in runs if str(run.recorded.get("started", "9"))[:19] < frozen.time[:19]]
    if early and not frozen.at.begun:
        lines.insert(1, f"{len(early)} of {counted(len(runs), 'run')} had been trained before, for another study.")
    return lines


def _audit(dataset: Dataset) -> dict[str, Any]:
    audit = dataset.audit
    groups: dict[str, list[Finding]] = {}
    for found in audit.findings:
        groups.setdefault(_group_key(found), []).append(found)
    level = str(audit.worst) if audit.worst else "clear"
    return {"audit": audit, "audit_line": audit_line(audit), "level": level, "findings": groups}


def _group_key(found: Finding) -> str:
    """The anchor of findings with one code and one severity."""
    return f"finding-{found.code}-{found.severity}"


def _kind(column: Column) -> str:
    """The class of a column: numbers stand right, names are not broken, other text may be."""
    return "num" if column.is_number else "key" if column.name in _KEYS else "txt"


def _breakable(heading: str) -> Markup:
    """A heading in which names of settings may be broken after a dot or an underscore."""
    return escape(heading).replace(".", Markup(".<wbr>")).replace("_", Markup("_<wbr>"))


def _in_pieces(text: str) -> Markup:
    """Text whose paths may be broken after slashes."""
    return escape(text).replace("/", Markup("/<wbr>"))
