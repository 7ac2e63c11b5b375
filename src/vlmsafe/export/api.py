"""`vlmsafe.export`: runs, evaluations and audit findings for other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.errors import InputError
from vlmsafe.evaluation.plan import warn
from vlmsafe.export.csv_files import write_csv
from vlmsafe.export.folder import check_folder
from vlmsafe.export.gather import Gathered, gather
from vlmsafe.export.mlflow_store import write_mlflow
from vlmsafe.export.wandb_runs import require_wandb, write_wandb

_WRITERS: dict[str, Callable[[Gathered, Path], list[Path]]] = {
    "csv": write_csv,
    "mlflow": write_mlflow,
    "wandb": write_wandb,
}


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    runs: int
    """How many runs were exported."""
    findings: int
    """How many findings their audit has."""
    paths: tuple[Path, ...]
    """The CSV files, and the directories of runs for MLflow and W&B."""


def export(
    paths: Sequence[Path | str] | Path | str,
    *,
    csv: Path | str | None = None,
    mlflow: Path | str | None = None,
    wandb: Path | str | None = None,
    findings: bool = True,
    on_note: Callable[[str], None] = warn,
) -> Exported:
    """Write runs, their evaluations and the findings of their audit into folders that other tools read.

    `paths` are run directories or folders of runs, as `audit` takes them. `csv`, `mlflow` and `wandb` are folders, at
    least one of them. A folder is new or empty, or holds an earlier export in the same format. CSV files are replaced.
    For MLflow and W&B a run that was exported before is replaced, and other runs stay. Each run appears there whole or
    not at all. `wandb` needs that package; the others need nothing.

    `findings=False` leaves the audit out, which is quicker if there are many traces. `on_note` is told what could not
    be read and is left out; by default each is a warning.

    >>> import vlmsafe
    >>> run = vlmsafe.train(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first", quiet=True)
    >>> exported = vlmsafe.export("runs", csv="tables")
    >>> exported.runs, [path.name for path in exported.paths]
    (1, ['runs.csv', 'epochs.csv', 'evaluations.csv', 'findings.csv'])
    """
    given = [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths]
    targets = {"csv": csv, "mlflow": mlflow, "wandb": wandb}
    folders = {form: Path(folder) for form, folder in targets.items() if folder is not None}
    if not folders:
        raise InputError("export: no format; expected --csv DIR, --mlflow DIR or --wandb DIR")
    if len({folder.resolve() for folder in folders.values()}) < len(folders):
        raise InputError("export: two formats have the same folder; give each a folder of its own")
    for form, folder in folders.items():
        check_folder(folder, form, given)
    if "wandb" in folders:
        require_wandb()
    data = gather(given, findings=findings)
    for note in data.notes:
        on_note(note)
    written = [path for form, folder in folders.items() for path in _WRITERS[form](data, folder)]
    return Exported(len(data.runs), len(data.findings), tuple(written))
