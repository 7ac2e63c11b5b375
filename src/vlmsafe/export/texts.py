"""Texts about a run that go to several tools: files with its details, and its findings in words."""

from __future__ import annotations

import json

from vlmsafe.config.yaml import nested, to_yaml
from vlmsafe.export.csv_files import episode_table
from vlmsafe.export.gather import ExportedRun, described


def artifacts(run: ExportedRun) -> dict[str, str]:
    """The files of a run by name. None is called config.yaml, by which vlmsafe recognises a run directory."""
    return {
        "settings.yaml": to_yaml(nested(run.settings)),
        "findings.json": json.dumps([described(one) for one in run.findings], indent=2, ensure_ascii=False) + "\n",
        **{f"evaluations/{name}.csv": episode_table(table) for name, table in run.tables.items()},
    }


def notes(run: ExportedRun) -> str:
    """The findings about a run as Markdown, for a tool that shows a description."""
    if not run.findings:
        return ""
    entries = [
        f"- **{one.severity}: {one.title}** (`{one.code}`, {one.where})\n"
        + "".join(f"    - {line}\n" for line in one.evidence)
        for one in run.findings
    ]
    return "Findings of `vlmsafe audit`:\n\n" + "".join(entries)
