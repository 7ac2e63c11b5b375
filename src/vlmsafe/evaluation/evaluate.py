"""Evaluate a policy: frozen policy, frozen normaliser, and the environment's own return and cost only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from vlmsafe import kernels
from vlmsafe.analysis.statistics import thresholds
from vlmsafe.envs.api import STEP_LIMIT
from vlmsafe.envs.registry import ordered_name
from vlmsafe.errors import InputError, RunError
from vlmsafe.evaluation.plan import EpisodeTask, Plan, Row, warn
from vlmsafe.evaluation.resume import EpisodeCount, UnfinishedEvaluation
from vlmsafe.io.child import call_in_child
from vlmsafe.io.disk import require_writable
from vlmsafe.io.files import write_atomically
from vlmsafe.runs.drivers import open_run, with_own_directory
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import SOURCE, SUCCESS, read_table, with_success, write_table

SCHEMA: dict[str, Any] = {
    "episode": pl.Int64,
    "scenario": pl.Int64,
    "traffic_seed": pl.Int64,
    "in_training_pool": pl.Boolean,
    "env_return": pl.Float64,
    "cost": pl.Float64,
    "length": pl.Int64,
    **dict.fromkeys(SUCCESS, pl.Boolean),
    "violation": pl.Boolean,
    "catastrophe": pl.Boolean,
    "budget": pl.Float64,
    "protocol": pl.String,
    "deterministic": pl.Boolean,
    "checkpoint_epoch": pl.Int64,
    "run_finished": pl.Boolean,
    "fingerprint": pl.String,
    "env_version": pl.Int64,
}
_MEASURED = ("scenario", "traffic_seed", "arrived", "env_return", "cost", "length")
"""Columns that the episodes themselves give. The other columns follow from the plan."""


def evaluate(
    run: Run | Path | str,
    protocol_name: str = "held-out",
    *,
    protocol: str | None = None,
    episodes: int | None = None,
    epoch: int | None = None,
    processes: int | None = None,
    allow_untrained: bool = False,
    overwrite: bool = False,
    env: str | None = None,
    on_episode: Callable[[int], None] = lambda done: None,
    on_note: Callable[[str], None] = warn,
) -> pl.DataFrame:
    """Evaluate a run's policy, write the table into the run directory and return it.

    The run may be a shipped driver, `driver:<name>`. Its table goes to `runs/drivers/<name>`. `protocol`, the name of
    the command line, is another name for `protocol_name`.

    `epoch` chooses a checkpoint, by default the newest readable one. A run that holds only its untrained start is
    refused unless `allow_untrained` is set. A table with more episodes of the same checkpoint is replaced only if
    `overwrite` is set. One with more episodes of another checkpoint is kept under the name that `epoch` gives a
    table, unless `overwrite` is set or that table has as many; a note says which. `on_note` is told what the command
    line prints as notes, such as a damaged checkpoint or changed code of the environment; by default each is a warning.

    `env` is another level or variant of the run's environment to evaluate in, with its own budget. The table then has a
    column `env` and lies in a folder of its own, which audits and reports do not read.

    Episodes that the table already holds, or that an interrupted evaluation finished, are not run again if policy,
    protocol, environment and versions are the same. `overwrite` runs the episodes of the table again.

    >>> import vlmsafe
    >>> run = vlmsafe.train(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first", quiet=True)
    >>> episodes = vlmsafe.evaluate("runs/first", episodes=5)
    >>> episodes.select("scenario", "cost", "violation").shape
    (5, 3)
    """
    run, protocol_name = open_run(run), protocol or protocol_name
    if env is not None:  # one world has one table, in whatever order its variants are named
        env = None if ordered_name(env) == ordered_name(run.config.env) else ordered_name(env)
    if not kernels.fit(run.config.kernels):
        return call_in_child(
            run.config.kernels, evaluate, run, protocol_name, episodes=episodes, epoch=epoch, processes=processes,
            allow_untrained=allow_untrained, overwrite=overwrite, env=env,
            callbacks={"on_episode": on_episode, "on_note": on_note},
        )  # fmt: skip
    plan = Plan.of(
        run, protocol_name, episodes=episodes, epoch=epoch, processes=processes,
        allow_untrained=allow_untrained, on_note=on_note, env=env,
    )  # fmt: skip
    own = with_own_directory(plan.run)
    path = own.evaluation_path(plan.protocol.name, epoch, env)
    require_writable(path)
    aside = _kept_as(path, own, plan, env, overwrite, on_note)
    held = {} if overwrite else _held(path, plan, on_note)
    if all(_done(task, held) for task in plan.tasks):
        on_note(f"{path} holds these episodes already; pass --overwrite to run them again")
        table = _table(held, plan)
        write_table(path, table)  # the column run_finished may have changed
        return table
    with UnfinishedEvaluation(path, plan) as unfinished:
        unfinished.note_others(on_note)
        table = _table(_completed(plan, unfinished, held, on_episode, on_note), plan)
        if aside is not None:
            write_atomically(aside, path.read_bytes())
        write_table(path, table)
        unfinished.remove()  # last: at any moment, the table or this folder holds the finished episodes
    return table


def _completed(
    plan: Plan,
    unfinished: UnfinishedEvaluation,
    held: Mapping[int, Row],
    on_episode: Callable[[int], None],
    on_note: Callable[[str], None],
) -> dict[int, Row]:
    """The rows of all episodes by number: from the table, from an earlier attempt, and the missing ones run now."""
    rows = {number: held[number] for task in plan.tasks if _done(task, held) for number in task.episodes}
    for task in plan.tasks:
        if not _done(task, rows) and (saved := unfinished.rows(task)) is not None:
            rows |= zip(task.episodes, saved, strict=True)
    missing = [task for task in plan.tasks if not _done(task, rows)]
    count = EpisodeCount(plan, missing, on_episode, on_note)
    results = plan.execute(
        [unfinished.saving(task) for task in missing], plan.recipe(), lambda place, found: count.finished(place)
    )
    for task, found in zip(missing, results, strict=True):
        rows |= zip(task.episodes, found, strict=True)
    cut = sum(row["length"] == STEP_LIMIT for row in rows.values())
    if plan.spec.horizon is None and cut:
        on_note(
            f"{cut} of {plan.episodes} episodes lasted {STEP_LIMIT:,} steps, after which evaluations cut episodes of "
            "an environment without a time limit; register it with max_episode_steps"
        )
    return rows


def _done(task: EpisodeTask, rows: Mapping[int, Row]) -> bool:
    """Whether all episodes of a task are there. Episodes that share a simulator are run together or not at all."""
    return all(number in rows for number in task.episodes)


def _kept_as(
    path: Path, run: Run, plan: Plan, env: str | None, overwrite: bool, on_note: Callable[[str], None]
) -> Path | None:
    """Where a table goes that has more episodes than are asked for, of another checkpoint; None if it goes nowhere.

    It gets the name that `epoch` gives a table, unless that one has as many episodes or `overwrite` is set.
    """
    epochs = _epochs(path)
    if len(epochs) <= plan.episodes or epochs[0] == plan.checkpoint.epoch:
        return None
    aside = run.evaluation_path(plan.protocol.name, epochs[0], env)
    kept = not overwrite and aside != path and len(_epochs(aside)) < len(epochs)
    on_note(
        f"{path} holds {len(epochs)} episodes of epoch {epochs[0]}, more than the {plan.episodes} of epoch "
        f"{plan.checkpoint.epoch} that replace them; "
        + (f"they will be kept in {aside.name}" if kept else "they will not be kept")
    )
    return aside if kept else None


def _epochs(path: Path) -> list[int]:
    """The checkpoint of each episode of a table; empty if there is no table, or it is damaged."""
    try:
        return read_table(path, ["checkpoint_epoch"])["checkpoint_epoch"].to_list() if path.exists() else []
    except RunError:
        return []  # it has nothing to lose; without `overwrite`, `_held` refuses a damaged table


def _held(path: Path, plan: Plan, on_note: Callable[[str], None]) -> dict[int, Row]:
    """The table's episodes by number, if they can be used; an error if writing would lose some."""
    if not path.exists():
        return {}
    epochs = read_table(path, ["checkpoint_epoch"])["checkpoint_epoch"]
    if len(epochs) > plan.episodes and epochs[0] == plan.checkpoint.epoch:
        raise InputError(
            f"{path} already holds {len(epochs)} episodes of this checkpoint, more than the {plan.episodes} asked "
            "for; pass --overwrite to replace them"
        )
    table = read_table(path)
    # Tables of early versions have no fingerprint, so it is not known well enough what they were made with.
    if "fingerprint" not in table.columns or set(table["fingerprint"]) != {plan.fingerprint}:
        other = SOURCE in table.columns and set(table[SOURCE]) != {plan.spec.source}
        what = f"other source of '{plan.spec.name}'" if other else "another checkpoint, setting or version"
        on_note(f"{path} was made with {what}; its episodes are run again")
        return {}
    measured = table.select(*_MEASURED, *plan.spec.metrics)
    return dict(zip(table["episode"], measured.rows(named=True), strict=True))


def _table(rows: Mapping[int, Row], plan: Plan) -> pl.DataFrame:
    """One row per episode. A violation is C > d and a catastrophe C > 4 d, strictly."""
    config, spec = plan.run.config, plan.spec
    elsewhere = spec.name != config.spec.name
    budget, training = spec.budget if elsewhere else config.budget, spec.training
    assert budget is not None
    limits = thresholds(budget)
    common = {
        "budget": budget,
        "protocol": plan.protocol.name,
        "deterministic": not plan.protocol.stochastic,
        "checkpoint_epoch": plan.checkpoint.epoch,
        "run_finished": plan.run.epochs_done() >= config.epochs,
        "fingerprint": plan.fingerprint,
        "env_version": spec.version,
        **({"env": spec.name} if elsewhere else {}),
        **({SOURCE: spec.source} if spec.version is None else {}),
    }
    complete = [
        {
            **(row := rows[episode]),
            "episode": episode,
            "in_training_pool": row["scenario"] in training,
            SUCCESS[1]: None if row["arrived"] is None else row["arrived"] and row["cost"] == 0.0,
            **{name: row["cost"] > limit for name, limit in limits.items()},
            **common,
        }
        for episode in range(plan.episodes)
    ]
    named = {name: pl.String for name in ("env", SOURCE) if name in common}
    return pl.DataFrame(complete, schema={**SCHEMA, **named, **dict.fromkeys(spec.metrics, pl.Float64)})


def summary(table: pl.DataFrame) -> dict[str, float | None]:
    """The figures that people compare: means and rates over episodes, then the environment's own task metrics."""
    table = with_success(table)

    def mean(column: str) -> float | None:
        value = table[column].cast(pl.Float64).mean()
        return None if value is None else float(value)  # type: ignore[arg-type]

    return {
        "episodes": float(len(table)),
        "env_return": mean("env_return"),
        "cost": mean("cost"),
        "violation_rate": mean("violation"),
        "catastrophe_rate": mean("catastrophe"),
        "arrival_rate": mean(SUCCESS[0]),
        "arrival_without_cost_rate": mean(SUCCESS[1]),
        "length": mean("length"),
        **{name: mean(name) for name in table.columns if name not in (*SCHEMA, "env", SOURCE)},
    }
