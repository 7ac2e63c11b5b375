"""vlmsafe audit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vlmsafe.cli.terminal import listing, out, parse

if TYPE_CHECKING:
    from vlmsafe.audit.findings import Audit


@dataclass(frozen=True)
class AuditCommand:
    """Find out what a comparison of runs can and cannot show. Each finding has its evidence and a way to fix it.

    Exit code 0: nothing worse than a note; 3: warnings, the comparison shows less than it seems to; 4: errors, it does
    not show what it says.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or folders that hold runs. Of a study's folder, the runs of the study as it is now count."""
    claims: Path | None = None
    """YAML file that says what is compared; by default claims.yaml in the folder, if there is one."""
    baseline: str | None = None
    """Arm that every other arm is compared with."""
    passive_below: float | None = None
    """Environment return below which an episode without cost counts as passive; by default the environment's."""
    json: bool = False
    """Print JSON, for programs."""


def audit_verb(argv: list[str]) -> None:
    command = parse(AuditCommand, argv, "audit")
    from vlmsafe.studies.api import audit

    result = audit(command.paths, claims=command.claims, baseline=command.baseline, passive_below=command.passive_below)
    if command.json:
        print(json.dumps(result.to_dict(), indent=2, allow_nan=False, default=str, ensure_ascii=False))
    else:
        show(result)
    raise SystemExit(result.exit_code)


_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


def show(result: Audit) -> None:
    """Print an audit for people: the results of the arms, then each kind of finding with its evidence."""
    from vlmsafe.audit.findings import Finding, counted
    from vlmsafe.audit.kinds import Severity

    def line(text: str, indent: int, style: str = "") -> None:
        # Each line is printed by itself, so that one too long for the screen keeps its indentation.
        out.print(Padding(Text(text, style=style), (0, 0, 0, indent), expand=False))

    for table in _arms(result):
        out.print(table)
    out.print(f"{counted(result.runs, 'run')}, {counted(len(result.comparisons), 'comparison')}:")
    for comparison in result.comparisons:
        line(comparison, 2)
    groups: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in result.findings:
        groups.setdefault((finding.code, finding.severity), []).append(finding)
    for (code, severity), own in groups.items():
        head = Text(f"\n{severity}: ", style=_COLOURS[str(severity)])
        head.append(own[0].title, style="bold")
        head.append(f"  ({code})", style="dim")
        if len(own) > 1:
            head.append(f"  {len(own)} times")
        out.print(head)
        for place, finding in enumerate(own):
            line(finding.where, 2, "italic")
            for evidence in finding.evidence:
                line(evidence, 4)
            if place + 1 == len(own) or own[place + 1].fix != finding.fix:
                line(f"to fix: {finding.fix}", 2, "green")
    if result.unchecked:
        out.print("\nnot checked", style="bold")
        for entry in result.unchecked:
            line(f"{', '.join(entry.codes)}: {entry.reason}", 2, "dim")
            line(entry.where, 4, "dim")
    counts = {level: sum(finding.severity is level for finding in result.findings) for level in reversed(Severity)}
    out.print()
    if result.findings:
        words = [counted(count, str(level)) for level, count in counts.items() if count]
        out.print(", ".join(words), style="bold")
    else:
        out.print("nothing found", style="bold green")


def _arms(result: Audit) -> Iterator[Table]:
    """The results of the arms, one table per environment. A cost over the budget is red."""

    def figure(row: dict[str, Any], name: str, form: str) -> str:
        return "-" if row[name] is None else format(row[name], form)

    for env in dict.fromkeys(row["env"] for row in result.arms):
        table = listing("arm", "from", "seeds", "cost", "budget", "C > d", "C > 4d", "return", "logged return")
        table.title, table.title_justify = env, "left"
        for row in result.arms:
            if row["env"] != env:
                continue
            cost = figure(row, "cost", ".2f")
            over = row["cost"] is not None and row["cost"] > row["budget"]
            table.add_row(
                escape(row["arm"]),
                row["source"],
                str(len(row["seeds"])),
                f"[red]{cost}[/]" if over else cost,
                f"{row['budget']:g}",
                *(figure(row, name, ".1%") for name in ("violation", "catastrophe")),
                *(figure(row, name, ".2f") for name in ("env_return", "shaped_return")),
            )
        yield table
