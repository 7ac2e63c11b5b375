"""What trained drivers reach: small tables of runs and their evaluations, the table of the documents and its figure.

    python tools/driver_results.py collect "Easy, from scratch" RUN ...   # into benchmarks/drivers/*.csv
    python tools/driver_results.py table                                  # prints Markdown
    python tools/driver_results.py figure docs/images/driver-curves.png [LABEL ...]
    python tools/driver_results.py keep easy-from-scratch-seed-1 RUN      # its policy, into benchmarks/drivers/policies

`collect` replaces what the tables hold of the same seeds under the same label. Runs are too large for the repository;
these tables are what is kept of them: `curves.csv` has a row per run and epoch, `evaluations.csv` one per run and
held-out evaluation.
Steps are those of the simulator: a run that keeps each action for two steps counts both.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from make_drivers import hours_of

from vlmsafe.audit.findings import counted
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.report.elements import Axis, Band, Chart, Line, Mark, Panel, Rule
from vlmsafe.report.render.pictures import chart_svg, png
from vlmsafe.runs.drivers import write_driver
from vlmsafe.runs.layout import DEFAULT_PROTOCOL
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import read_table

FOLDER = Path(__file__).parents[1] / "benchmarks" / "drivers"
CURVES, EVALUATIONS = FOLDER / "curves.csv", FOLDER / "evaluations.csv"
POLICIES = FOLDER / "policies"
TASKS = ("goals", "stages", "arrived")
"""What counts as doing the task, by environment; FormulaOne also has arrivals, after seven stages."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    collecting = verbs.add_parser("collect")
    collecting.add_argument("label", help="what these runs have in common")
    collecting.add_argument("runs", type=Path, nargs="+", help="run directories, one per seed")
    verbs.add_parser("table")
    drawing = verbs.add_parser("figure")
    drawing.add_argument("picture", type=Path)
    drawing.add_argument("labels", nargs="*", help="agents, in this order; by default all")
    keeping = verbs.add_parser("keep")
    keeping.add_argument("name", help="of the policy")
    keeping.add_argument("run", type=Path, help="run directory")
    options = parser.parse_args()
    if options.verb == "keep":
        print(keep(options.name, Run.open(options.run)))
    elif options.verb == "collect":
        collect(options.label, options.runs)
    elif options.verb == "table":
        print("\n".join(table(pl.read_csv(EVALUATIONS, infer_schema_length=None))))
    else:
        curves = pl.read_csv(CURVES, infer_schema_length=None)
        options.picture.write_bytes(png(chart_svg(figure(curves, options.labels))))
        print(options.picture)


def keep(name: str, run: Run) -> Path:
    """Keep the policy of a run whose results are cited, so that `vlmsafe evaluate` can repeat them."""
    folder = POLICIES / name
    card = {"name": name, "env": run.config.env, "seed": run.config.seed}
    write_driver(folder, run, card, b"").picture.unlink()
    return folder


def collect(label: str, folders: Sequence[Path]) -> None:
    curves: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    seeds = []
    for folder in folders:
        run = Run.open(folder)
        seeds.append(run.config.seed)
        curves += [{"label": label, **row} for row in curve(run)]
        evaluations += [{"label": label, **row} for row in evaluated(run)]
    FOLDER.mkdir(exist_ok=True)
    for path, rows in ((CURVES, curves), (EVALUATIONS, evaluations)):
        new = pl.DataFrame(rows, infer_schema_length=None)
        if path.exists():
            kept = pl.read_csv(path, infer_schema_length=None)
            made_anew = (pl.col("label") == label) & pl.col("seed").is_in(seeds)
            new = pl.concat([kept.filter(~made_anew), new], how="diagonal_relaxed")
        new.write_csv(path)
        print(f"{path.name}: {len(rows)} rows of '{label}'")


def curve(run: Run) -> Iterator[dict[str, Any]]:
    """Return, cost and task of every epoch in which episodes ended."""
    config = run.config
    for row in run.rows("epochs"):
        if not row["episodes"]:
            continue
        progress = row.get("progress") or {}
        yield {
            "env": config.env, "method": config.method, "seed": config.seed,
            "steps": row["steps"] * config.action_repeat,
            "budget": config.budget, "return": round(row["env_return"], 2), "cost": round(row["epoch_cost"], 4),
            **{name: round(progress[name], 4) for name in (*TASKS, "passive") if progress.get(name) is not None},
        }  # fmt: skip


def evaluated(run: Run) -> Iterator[dict[str, Any]]:
    """The means of every held-out evaluation of a run, in its own world and in others.

    Those of other protocols are left out, such as 'selection', which runs are chosen by.
    """
    config = run.config
    for path in sorted(run.evaluations.rglob(f"{DEFAULT_PROTOCOL}.parquet")):
        table = read_table(path)
        env = table["env"][0] if "env" in table.columns else config.env
        below = env_spec(env).passive_below
        still = None if below is None else ((table["cost"] == 0.0) & (table["env_return"] < below)).mean()
        figures = (*TASKS, "arrived_without_cost", "route_completion")
        tasks = [name for name in figures if name in table.columns and table[name].count()]
        counts = next((name for name in tasks if name in ("goals", "stages")), None)
        yield {
            "env": env, "trained_in": config.env, "method": config.method, "seed": config.seed,
            "steps": table["checkpoint_epoch"][0] * config.steps_per_epoch * config.action_repeat,
            "hours": hours_of([run]),
            "episodes": len(table), "budget": table["budget"][0], "return": round(_mean(table, "env_return"), 2),
            "cost": round(_mean(table, "cost"), 3), "any_cost": round(float((table["cost"] > 0).mean()), 3),
            **({} if still is None else {"passive": round(float(still), 3)}),
            **{name: round(_mean(table, name), 3) for name in tasks},
            **({} if counts is None else {"at_least_one": round(float((table[counts] >= 1).mean()), 3)}),
        }  # fmt: skip


def _mean(table: pl.DataFrame, column: str) -> float:
    return float(table[column].cast(pl.Float64).mean())  # type: ignore[arg-type]


def table(rows: pl.DataFrame) -> Iterator[str]:
    """The figures of each world and label as Markdown: means over runs, with their standard deviation."""
    headings = (
        "agent", "evaluated in", "runs x episodes", "task", "without cost", "cost (budget)", "passive", "return",
        "steps", "hours a run",
    )  # fmt: skip
    yield f"| {' | '.join(headings)} |"
    yield "|---|---" + "|--:" * (len(headings) - 2) + "|"
    for (env, label), own in rows.sort("env", "label").group_by("env", "label", maintain_order=True):
        task = task_of(own)
        clean = _spread(own, "arrived_without_cost", 2)
        steps = " to ".join(f"{end:,}" for end in sorted({own["steps"].min(), own["steps"].max()}))
        yield (
            f"| {label} | `{env}` | {len(own)} x {own['episodes'].min()} | {task_cell(own, task)} | {clean} | "
            f"{_spread(own, 'cost', 2)} ({own['budget'][0]:g}) | {_spread(own, 'passive', 2)} | "
            f"{_spread(own, 'return', 0)} | {steps} | {_spread(own, 'hours', 2)} |"
        )


def task_cell(rows: pl.DataFrame, task: str) -> str:
    """The task, with the share that did some of it where all runs have recorded that."""
    parts = {"arrived": ("route_completion", "route"), "goals": ("at_least_one", "one in")}
    column, word = parts["arrived" if task == "arrived" else "goals"]
    some = column in rows.columns and rows[column].count() == len(rows)
    return f"{task} {_spread(rows, task, 2)}" + (f", {word} {_spread(rows, column, 2)}" if some else "")


def task_of(rows: pl.DataFrame) -> str:
    """What counts as doing the task in these rows; the return where an environment names nothing."""
    return next((name for name in TASKS if name in rows.columns and rows[name].count()), "return")


def _spread(rows: pl.DataFrame, column: str, digits: int) -> str:
    if column not in rows.columns or not rows[column].count():
        return "-"
    mean, std = rows[column].mean(), rows[column].std()
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def figure(curves: pl.DataFrame, labels: Sequence[str] = ()) -> Chart:
    """A row of two panels for each label: the task, and cost with its budget, over training."""
    known = curves["label"].unique(maintain_order=True).to_list()
    if unknown := [label for label in labels if label not in known]:
        raise InputError(f"no curve is called '{unknown[0]}'; there are: {'; '.join(known)}")
    panels = []
    for label in labels or known:
        own = curves.filter(pl.col("label") == label)
        task, count = task_of(own), own["seed"].n_unique()
        budget = own["budget"][0]
        title = f"{label} ({counted(count, 'seed')})"
        for column, name in ((task, f"{task}, mean of an epoch"), ("cost", "episode cost")):
            rules: list[Mark] = [Rule(budget, f"budget {budget:g}")] if column == "cost" else []
            panels.append(Panel(title, Axis("steps"), Axis(name, low=0.0), [*rules, *seeds(own, column)]))
    keys = (("line", "mean over seeds"), ("band", "± 1 deviation"), ("faint", "single seeds"))
    return Chart("drivers", "Learning to drive", panels, ["agent"], legend=True, keys=keys, columns=2)


def seeds(rows: pl.DataFrame, column: str, window: int = 5) -> Iterator[Mark]:
    """A faint line per seed, smoothed over some epochs, and mean and deviation where all seeds have been."""
    smooth = rows.sort("seed", "steps").with_columns(
        pl.col(column).rolling_mean(window, min_samples=1).over("seed").alias("value")
    )
    for _, own in smooth.group_by("seed", maintain_order=True):
        yield Line("agent", own["steps"].to_list(), own["value"].to_list(), f"seed {own['seed'][0]}", faint=True)
    count = smooth["seed"].n_unique()
    shared = smooth.group_by("steps").agg(
        pl.col("value").mean().alias("mean"), pl.col("value").std().alias("std"), pl.len().alias("n")
    ).filter(pl.col("n") == count).sort("steps")  # fmt: skip
    steps, mean = shared["steps"].to_list(), shared["mean"].to_list()
    yield Line("agent", steps, mean, "mean")
    if count > 1:
        std = [0.0 if value is None or math.isnan(value) else value for value in shared["std"]]
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        yield Band("agent", steps, low, high)


if __name__ == "__main__":
    try:
        main()
    except VlmsafeError as error:
        sys.exit(f"error: {error}")
