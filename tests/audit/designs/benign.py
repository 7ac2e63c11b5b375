"""Changes to a clean design that leave it clean: an audit that complains of them cries wolf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from recorded_versions import edit_recorded

from vlmsafe.runs.run import Run

from .clean_design import Variant
from .editing import (
    HELD_OUT,
    checkpointed_at,
    edit_claims,
    edit_table,
    freeze_claims,
    run_paths,
    with_costs,
    write_settings,
)
from .planting import BASELINE, FIRST, UNGATED, Plant, each_run, set_up, table
from .run_directory import RECORDED, write_rows


@dataclass(frozen=True)
class Benign:
    """A harmless change."""

    name: str
    change: Plant
    variant: Variant = "signal"


def _no_claims(folder: Path) -> None:
    (folder / "claims.yaml").unlink()


def _resumed(path: Path) -> None:
    """Interrupted and continued with the same versions: the result is the same, bit for bit."""
    run = Run.open(path)
    stopped = {"time": RECORDED["started"], "event": "interrupted", "epoch": 7}
    resumed = {"time": RECORDED["started"], "event": "resumed", "epoch": 7, "packages": RECORDED["packages"]}
    write_rows(run, "events", [run.events()[0], stopped, resumed, *run.events()[1:]])


def _other_folders(folder: Path) -> None:
    """Folders that are not named after the seeds in them, so that arms are the methods."""
    for number, path in enumerate(run_paths(folder)):
        path.rename(path.with_name(f"run-{chr(97 + number)}"))


def _agreeing_protocol(path: Path) -> None:
    """The paper's first 20 scenarios, which are the first of the held-out ones on FormulaOne."""
    table = pl.read_parquet(path / "evaluations" / f"{HELD_OUT}.parquet").head(20)
    table.with_columns(protocol=pl.lit("paper-20")).write_parquet(path / "evaluations" / "paper-20.parquet")


def _earlier_checkpoint(path: Path) -> None:
    """An evaluation of an epoch that was asked for, under its own name, beside that of the last."""
    table = pl.read_parquet(path / "evaluations" / f"{HELD_OUT}.parquet")
    early = table.with_columns(checkpoint_epoch=pl.lit(10, pl.Int64))
    early.write_parquet(path / "evaluations" / f"{HELD_OUT}-epoch-00010.parquet")


def _without_traces(path: Path) -> None:
    for file in (path / "traces").glob("*.parquet"):
        file.unlink()


def _other_budget(folder: Path) -> None:
    for path in run_paths(folder):
        set_up({"budget": 26.0})(path)


def _saved_less_often(path: Path) -> None:
    write_settings(path, {"checkpoint.every": 5, "checkpoint.keep": 1})
    checkpointed_at(path, Run.open(path).config.epochs)


def _scaled(cost: float = 1.0, way: float = 1.0) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Other costs and other ways, by a factor each."""
    names = ("path", "net_progress", "route_completion")
    return lambda own: with_costs(lambda costs: (costs * cost).round(0))(
        own.with_columns(pl.col(name) * way for name in names if name in own.columns)
    )


def _near_the_budget(folder: Path) -> None:
    """The dearer arm as near its budget as may be, and within it."""
    for path in run_paths(folder, BASELINE):
        costs = float(pl.read_parquet(path / "evaluations" / f"{HELD_OUT}.parquet")["cost"].mean())  # type: ignore[arg-type]
        edit_table(path, _scaled(cost=24.5 / costs))


def _swapped(folder: Path) -> None:
    """The same comparison the other way round."""
    turned = {"less": "greater", "greater": "less"}
    edit_claims(
        folder,
        lambda claims: [
            claim
            | {"first": claim["second"], "second": claim["first"]}
            | ({"sides": turned[claim["sides"]]} if "sides" in claim else {})
            for claim in claims
        ],
    )


BENIGN: list[Benign] = [
    Benign("no-claims", _no_claims),
    Benign("no-claims-about-the-gate", _no_claims, "gate"),
    Benign("claims-the-other-way-round", _swapped),
    Benign("another-machine", each_run(FIRST, lambda path: edit_recorded(path, processor="another", cores=64))),
    Benign("another-day", each_run(BASELINE, lambda path: edit_recorded(path, started="2026-02-01T00:00:00+00:00"))),
    Benign("interrupted-and-resumed", each_run(FIRST, _resumed, slice(0, 2))),
    Benign("saved-less-often", each_run(BASELINE, _saved_less_often)),
    Benign("another-device", each_run(FIRST, set_up({"signal.device": "cuda", "signal.batch": 256}))),
    Benign("scored-in-step", each_run(UNGATED, set_up({"signal.scoring": "in-step"})), "gate"),
    Benign("settings-without-effect", each_run(BASELINE, set_up({"learner.cg_iters": 20, "multiplier.pid_kp": 0.2}))),
    Benign("another-budget-for-all", _other_budget),
    Benign("other-folder-names", _other_folders),
    Benign("a-second-protocol-agrees", each_run(None, _agreeing_protocol), "gate"),
    Benign("an-earlier-epoch-beside", each_run(None, _earlier_checkpoint)),
    Benign("near-the-budget", _near_the_budget),
    Benign("the-cheaper-arm-gets-a-little-less-far", each_run(FIRST, table(_scaled(way=0.9)), slice(0, 3))),
    Benign("the-cheaper-arm-gets-further", each_run(FIRST, table(_scaled(way=1.6))), "gate"),
    Benign("no-traces", each_run(None, _without_traces)),
    Benign("frozen-before-the-first-run", freeze_claims),
    Benign("claims-changed-before-the-first-run", lambda folder: freeze_claims(folder, (0, lambda claims: claims[:1]))),
    Benign("a-description-dropped", lambda folder: freeze_claims(folder, (9, lambda claims: claims[:2])), "gate"),
]
