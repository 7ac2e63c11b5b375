"""Where a run directory keeps its files.

    config.yaml       every setting, with versions and hardware under `recorded`
    prompts.yaml      the prompts of a run that has any, as they were when it began
    start.safetensors what a run took over from another one (`--init-from`), if it did
    card.yaml         what a shipped driver is; only in copies of drivers, which have no rows
    epochs.jsonl      one row per epoch; equal runs have equal files
    episodes.jsonl    one row per training episode, including the unfinished ones
    timing.jsonl      seconds per stage of each epoch
    events.jsonl      what happened to the run: starts, stops, crashes, fallbacks
    checkpoints/      see `checkpoint`
    replay/           see `experience`; only in runs of methods that learn from all steps
    evaluations/      held-out.parquet: one row per episode; one table per protocol
    traces/           held-out.parquet: one row per step; one table per protocol
                      held-out.json: the trace's scorers, prompts and gates
                      held-out-frames.parquet: episode, step and picture of each scored step, if frames were kept
    evaluations/<environment>/  the same for an environment that the run was not trained in, with `-` for `:`

A table of a chosen epoch has the epoch in its name: `held-out-epoch-00005.parquet`.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from vlmsafe.errors import InputError

CONFIG = "config.yaml"
PROMPTS = "prompts.yaml"
START = "start.safetensors"
CARD = "card.yaml"
ROW_FILES = ("epochs", "episodes", "timing")
"""Row files that a checkpoint knows the size of."""
STUDY_FILE = "study.yaml"
"""The copy of its definition that a study keeps in its folder."""
DEFAULT_PROTOCOL = "held-out"
_EPOCH = "-epoch-"
_FRAMES = "-frames"
_MAKERS = {"evaluations": "evaluate", "traces": "trace"}


def is_run(directory: Path) -> bool:
    """Whether a directory holds a run. The configuration is written last, so a directory without one is no run."""
    return (directory / CONFIG).is_file()


def is_driver(directory: Path) -> bool:
    """Whether a run directory is a shipped driver, or a copy of one."""
    return (directory / CARD).is_file()


def row_file(directory: Path, name: str) -> Path:
    """The file of one kind of rows, such as epochs."""
    return directory / f"{name}.jsonl"


def evaluation_path(directory: Path, protocol: str, epoch: int | None = None, env: str | None = None) -> Path:
    """The table of an evaluation. The epoch is in its name if one was asked for.

    One in another environment, `env`, lies in a folder of its own, so that reports do not take it for the run's.
    """
    folder = directory / "evaluations" / ("" if env is None else env.replace(":", "-").replace("/", "-"))
    return folder / f"{protocol}{_epoch_suffix(epoch)}.parquet"


def trace_path(directory: Path, protocol: str, epoch: int | None = None, variant: str = "") -> Path:
    """The table of a trace. `variant` names a trace whose frames differ from those the run was trained with."""
    return directory / "traces" / f"{protocol}{variant}{_epoch_suffix(epoch)}.parquet"


def _epoch_suffix(epoch: int | None) -> str:
    return "" if epoch is None else f"{_EPOCH}{epoch:05d}"


def protocol_of(table: Path) -> str:
    """The protocol that a table's name says it was made under, without an epoch."""
    return table.stem.removesuffix(_FRAMES).split(_EPOCH)[0]


def frames_path(trace: Path) -> Path:
    """The pictures of a trace, if it has any."""
    return trace.with_name(f"{trace.stem}{_FRAMES}.parquet")


def about_path(trace: Path) -> Path:
    """The file that names a trace's scorers and prompts."""
    return trace.with_suffix(".json")


def run_of(table: Path) -> Path | None:
    """The run directory that a table lies in; None if it lies elsewhere."""
    folder = table.absolute().parent
    return table.parent.parent if folder.name in _MAKERS and is_run(folder.parent) else None


def tables_in(folder: Path) -> dict[str, Path]:
    """The tables in a run's `evaluations` or `traces`, by name.

    Pictures are no table. Neither are `trace-*` files: earlier versions kept traces among the evaluations.
    """
    return {
        path.stem: path
        for path in sorted(folder.glob("*.parquet"))
        if not path.stem.endswith(_FRAMES) and not path.stem.startswith("trace-")
    }


def find_table(folder: Path, protocol: str | None) -> Path | None:
    """The table of a protocol. Without a name: that of held-out, else the only one. None if there is no such table."""
    present = tables_in(folder)
    if protocol is not None or DEFAULT_PROTOCOL in present:
        return present.get(protocol or DEFAULT_PROTOCOL)
    if len(present) > 1:
        raise InputError(
            f"{folder} has no {DEFAULT_PROTOCOL} table but several others; choose with --protocol: {', '.join(present)}"
        )
    return next(iter(present.values()), None)


def protocol_option(protocol: str | None) -> str:
    """The option with which a command uses this protocol."""
    return "" if protocol in (None, DEFAULT_PROTOCOL) else f" --protocol {protocol}"


def how_to_replace(table: Path) -> str:
    """What to do about a table that cannot be used."""
    run = run_of(table)
    if run is None:
        return "give a table that vlmsafe evaluate or vlmsafe trace wrote"
    command = f"vlmsafe {_MAKERS[table.parent.name]} {shlex.quote(str(run))}{protocol_option(protocol_of(table))}"
    return f"move it away and make it again with: {command}"
