"""The page: question and answer, tables, figures, the audit, configurations, in one file that opens anywhere.

Everything that comes from runs, prompts or study files passes through `html.escape` on its way in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from urllib.parse import quote

from vlmsafe.audit.findings import (
    Audit,
    Finding,
    counted,
)
from vlmsafe.audit.kinds import Severity
from vlmsafe.report.answer import (
    Result,
    answering,
    audit_line,
    describe_arms,
    headline,
    sentence,
)
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import (
    Cell,
    Chart,
    Column,
    Missing,
    Table,
)
from vlmsafe.report.render.cell_text import cell_text, interval_text, published_text
from vlmsafe.report.render.svg import svg, swatch
from vlmsafe.report.rerun import arm_configs, rerun_lines

_SHOWN_RESULTS = 8
"""Comparisons spelled out under the answer; further ones are in their table."""
_KEYS = ("env", "arm", "first", "second", "first_arm", "second_arm", "run", "seed", "signal", "setting", "audit")


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


def page(dataset: Dataset, found: Sequence[Result], items: Sequence[ReportItem]) -> str:
    """The whole report as one HTML document."""
    info = dataset.info
    tables = [item for item in items if isinstance(item.content, Table)]
    charts = [item for item in items if isinstance(item.content, Chart)]
    missing = [item.content for item in items if isinstance(item.content, Missing)]
    lead, more = [item for item in tables if item.lead], [item for item in tables if not item.lead]
    sections = [
        ("answer", "Answer", _answer(dataset, found)),
        ("results", "Results", "".join(map(_table, lead))),
        ("figures", "Figures", "".join(map(_chart, charts))),
        ("details", "Further tables", "".join(map(_table, more))),
        ("missing", "Asked for and missing", _missing(missing)),
        ("audit", "Audit", _audit(dataset.audit)),
        ("configs", "Configurations", _configs(dataset)),
        ("rerun", "How to run it again", _rerun(dataset)),
    ]
    shown = [(key, title, body) for key, title, body in sections if body]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in shown)
    body = "".join(f'<section id="{key}"><h2>{title}</h2>{text}</section>' for key, title, text in shown)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(info.name)}</title><style>{_asset('report.css')}</style></head><body>"
        f'<div class="bar-top"><span class="brand">vlmsafe report</span><nav>{links}</nav>'
        '<button id="theme" type="button" aria-label="switch between light and dark"></button></div>'
        f"<header><h1>{escape(info.name)}</h1></header><main>{body}</main>"
        '<div id="tip" role="status" hidden></div>'
        f"<script>{_asset('report.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (resources.files("vlmsafe.report") / "assets" / name).read_text(encoding="utf-8")


# -- the answer -----------------------------------------------------------------------------------------------------


def _answer(dataset: Dataset, found: Sequence[Result]) -> str:
    info, known = dataset.info, answering(dataset, found)
    question = info.question or _question(dataset, known)
    if known:
        lines = [_result(one) for one in known[:_SHOWN_RESULTS]]
        first = f'<p class="headline">{escape(headline(known))}</p>'
    else:
        lines = [f"<li>{escape(line)}</li>" for line in describe_arms(dataset)]
        first = f'<p class="headline">{escape("Nothing is compared: this describes the runs.")}</p>'
    more = len(known) - _SHOWN_RESULTS
    further = f"<p>{more} further comparisons are in the table below.</p>" if more > 0 else ""
    worst = dataset.audit.worst
    level = worst.name.lower() if worst else "clear"
    badge = f'<p class="badge {level}"><a href="#audit">{escape(audit_line(dataset.audit))}</a></p>'
    return (
        f'<p class="question">{escape(question)}</p><div class="answer">{first}'
        f'<ul class="results">{"".join(lines)}</ul>{further}{badge}</div>{_state(dataset)}'
    )


def _question(dataset: Dataset, known: Sequence[Result]) -> str:
    if known:
        claim = known[0].comparison.claim
        return f"Does {claim.first} differ from {claim.second} in {known[0].word}?"
    return "What did these runs come to?" if len(dataset.runs) > 1 else "What did this run come to?"


def _result(one: Result) -> str:
    word = {-1: "lower", 0: "undecided", 1: "higher"}[one.decided]
    found = one.finding
    note = ""
    if found is not None:
        takes = {
            Severity.ERROR: "so the comparison does not show what it says",
            Severity.WARNING: "so it shows less than it seems to",
            Severity.NOTE: "",
        }[found.severity]
        level = str(found.severity)
        text = f"{level}: {found.title}" + (f", {takes}" if takes else "")
        note = f' <a class="finding {level}" href="#{_code_id(found)}">audit {escape(text)}</a>'
    return f'<li class="{word}">{escape(sentence(one))}{note}</li>'


def _state(dataset: Dataset) -> str:
    runs = dataset.runs
    finished = sum(run.epochs_recorded >= run.config.epochs for run in runs)
    planned = dataset.info.planned
    text = f"{counted(len(runs), 'run')}" + (
        f" of {planned} planned" if planned is not None and planned != len(runs) else ""
    )
    text += f", {finished} trained to the end; {counted(len(dataset.environments), 'environment')}, "
    text += f"{counted(len(dataset.arm_names), 'arm')}."
    labels = f" Stands for {', '.join(dataset.info.paper)} of the paper." if dataset.info.paper else ""
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in dataset.problems)
    return f'<p class="state">{escape(text + labels)}</p>' + (
        f'<ul class="problems">{problems}</ul>' if problems else ""
    )


# -- tables ---------------------------------------------------------------------------------------------------------


def _table(item: ReportItem) -> str:
    table = item.content
    assert isinstance(table, Table)
    heads = "".join(_head(column) for column in table.columns)
    rows = "".join(
        f"<tr{' class=strong' if place in table.strong else ''}>"
        + "".join(_cell(cell, column) for cell, column in zip(row, table.columns, strict=True))
        + "</tr>"
        for place, row in enumerate(table.rows)
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    grid = (
        f'<div class="scroll" tabindex="0"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    inner = f'<p class="caption">{escape(table.caption)}</p>{grid}{notes}{_files(item)}'
    title = f"{escape(table.title)}{_label(table.label)}"
    if table.fold:
        return f'<details class="part" id="{item.name}"><summary><h3>{title}</h3></summary>{inner}</details>'
    return f'<div class="part" id="{item.name}"><h3>{title}</h3>{inner}</div>'


def _label(label: str) -> str:
    return f' <span class="label">{escape(label)}</span>' if label else ""


def _head(column: Column) -> str:
    hint = f' title="{escape(column.hint, quote=True)}"' if column.hint else ""
    kind = _kind(column)
    # Names of settings may be broken after a dot or an underscore.
    heading = escape(column.heading).replace(".", ".<wbr>").replace("_", "_<wbr>")
    return f'<th scope="col" class="{kind}"{hint}><button type="button">{heading}</button></th>'


def _kind(column: Column) -> str:
    """Numbers stand right, names are not broken, other text may be."""
    return "num" if column.is_number else "key" if column.name in _KEYS else "txt"


def _cell(cell: Cell, column: Column) -> str:
    shown = cell_text(cell, column)
    key = cell.value if cell.value is not None else ""
    lines = [escape(shown)] if shown else []
    if interval := interval_text(cell, column):
        lines.append(f'<span class="interval">{escape(interval)}</span>')
    if published := published_text(cell, column):
        lines.append(f'<span class="paper">paper {escape(published)}{escape(cell.mark)}</span>')
    kind = _kind(column)
    state = f" {cell.state}" if cell.state else ""
    says = {"over": "over the budget", "within": "within the budget"}.get(cell.state, "")
    hint = f' title="{says}"' if says else ""
    return f'<td class="{kind}{state}" data-sort="{escape(str(key), quote=True)}"{hint}>{"".join(lines) or "-"}</td>'


def _files(item: ReportItem) -> str:
    if not item.files:
        return ""
    links = " ".join(
        f'<a href="{escape(quote(name), quote=True)}">{escape(name.rsplit(".", 1)[-1].upper())}</a>'
        for name in item.files
    )
    return f'<p class="files">{links}</p>'


# -- figures --------------------------------------------------------------------------------------------------------


def _chart(item: ReportItem) -> str:
    chart = item.content
    assert isinstance(chart, Chart)
    panels = "".join(
        f'<figure class="panel"><figcaption>{escape(panel.title)}</figcaption>'
        f"{svg(panel, chart, f'{item.name}-{place}')}</figure>"
        for place, panel in enumerate(chart.panels)
    )
    index = chart.places
    names = "".join(
        f'<button type="button" data-g="{index[name]}" aria-pressed="false">'
        f"{swatch('', index[name])}{escape(name)}</button>"
        for name in chart.shown_groups
    )
    keys = "".join(f"<span>{swatch(style)}{escape(text)}</span>" for style, text in chart.keys)
    four = " four" if len(chart.panels) == 4 else ""
    legend = f'<div class="legend">{names}{keys}</div>' if chart.legend else ""
    return (
        f'<div class="part chart" id="{item.name}"><h3>{escape(chart.title)}{_label(chart.label)}</h3>'
        f'<p class="caption">{escape(chart.caption)}</p>{legend}'
        f'<div class="panels{four}">{panels}</div>{_files(item)}</div>'
    )


def _missing(missing: Sequence[Missing]) -> str:
    lines = "".join(f"<li>{escape(one.title)}{_label(one.label)}: {escape(one.reason)}.</li>" for one in missing)
    return f"<ul>{lines}</ul>" if lines else ""


# -- the audit ------------------------------------------------------------------------------------------------------


def _code_id(found: Finding) -> str:
    return f"finding-{found.code}-{found.severity}"


def _audit(audit: Audit) -> str:
    groups: dict[str, list[Finding]] = {}
    for found in audit.findings:
        groups.setdefault(_code_id(found), []).append(found)
    blocks = "".join(_finding_group(key, own) for key, own in groups.items())
    compared = "".join(f"<li>{escape(name)}</li>" for name in audit.comparisons)
    looked = f"<details><summary>What was compared ({len(audit.comparisons)})</summary><ul>{compared}</ul></details>"
    unchecked = "".join(
        f"<li><code>{escape(', '.join(entry.codes))}</code>: {escape(entry.reason)} "
        f"<span class=where>{escape(entry.where)}</span></li>"
        for entry in audit.unchecked
    )
    rest = (
        f"<details><summary>Not checked, and why ({len(audit.unchecked)})</summary><ul>{unchecked}</ul></details>"
        if unchecked
        else ""
    )
    return f"<p>{escape(audit_line(audit))} No finding is not the same as nothing wrong.</p>{blocks}{looked}{rest}"


def _finding_group(key: str, own: Sequence[Finding]) -> str:
    level = str(own[0].severity)
    items = "".join(
        f'<div class="one"><p class="where">{escape(found.where)}</p><ul>'
        + "".join(f"<li>{escape(line)}</li>" for line in found.evidence)
        + f"</ul><p class=fix>To fix: {escape(found.fix)}.</p></div>"
        for found in own
    )
    many = f" <span class=count>{len(own)} times</span>" if len(own) > 1 else ""
    title = f'<span class="tag {level}">{level}</span> {escape(own[0].title)} <code>{escape(own[0].code)}</code>{many}'
    opened = " open" if len(own) <= 2 else ""
    return f'<details class="finding-group" id="{key}"{opened}><summary>{title}</summary>{items}</details>'


# -- configurations -------------------------------------------------------------------------------------------------


def _configs(dataset: Dataset) -> str:
    blocks = []
    for title, runs, config, prompts in arm_configs(dataset):
        inner = f"<p>{escape(runs)}</p><pre>{escape(config)}</pre>"
        inner += f"<p>Prompts</p><pre>{escape(prompts)}</pre>" if prompts else ""
        blocks.append(f"<details><summary>{escape(title)}</summary>{inner}</details>")
    return "".join(blocks)


def _rerun(dataset: Dataset) -> str:
    def listing(lines: Iterable[str]) -> str:
        return f"<pre>{escape(chr(10).join(lines))}</pre>"

    info = dataset.info
    text = listing([info.command]) if info.command else ""
    if info.definition:
        text += f"<details><summary>The study file</summary><pre>{escape(info.definition)}</pre></details>"
    commands, surroundings = rerun_lines(dataset)
    opened = "" if info.command else " open"
    text += f"<details{opened}><summary>Run by run, from the folder of the runs</summary>{listing(commands)}</details>"
    versions = escape(json.dumps(surroundings, indent=1))
    return f"{text}<details><summary>Versions and machines</summary><pre>{versions}</pre></details>"
