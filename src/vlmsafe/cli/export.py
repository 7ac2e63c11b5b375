"""vlmsafe export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from vlmsafe.cli.evaluate import note
from vlmsafe.cli.terminal import out, parse


@dataclass(frozen=True)
class ExportCommand:
    """Write runs, their evaluations and the findings of their audit for other tools.

    A folder must be new or empty, or hold an earlier export in the same format. The same command again gives the same
    files.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or folders that hold runs."""
    csv: Path | None = None
    """Folder for runs.csv, epochs.csv, evaluations.csv and findings.csv."""
    mlflow: Path | None = None
    """Folder that `mlflow ui --backend-store-uri` reads; MLflow need not be installed here."""
    wandb: Path | None = None
    """Folder for offline runs that `wandb sync` uploads; needs the package wandb."""
    findings: bool = True
    """Whether the runs are audited and the findings exported."""


def export_verb(argv: list[str]) -> None:
    command = parse(ExportCommand, argv, "export")
    from vlmsafe.audit.findings import counted
    from vlmsafe.export.api import export

    result = export(
        command.paths,
        csv=command.csv,
        mlflow=command.mlflow,
        wandb=command.wandb,
        findings=command.findings,
        on_note=note,
    )
    out.print(f"{counted(result.runs, 'run')}, {counted(result.findings, 'finding')}")
    for form in ("csv", "mlflow", "wandb"):
        if (folder := getattr(command, form)) is not None:
            out.print(f"{form}: {folder}", markup=False, soft_wrap=True)
