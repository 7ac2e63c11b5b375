"""Our results next to the published ones, with the differences between the two experiments.

Each row is a quantity of one run, or of an arm over its runs, from training or from an evaluation. If the paper has the
same quantity for the same method and environment, and for a run also for the same seed, the row has that value too. The
two are comparable only if the configuration and the results of the run show no difference from the paper in settings,
scorer, world, scenarios, number of episodes, epochs trained, or seeds of an arm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import polars as pl

from vlmsafe.analysis.statistics import summary
from vlmsafe.analysis.tables import require_columns
from vlmsafe.config import methods
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.envs.registry import ENVS
from vlmsafe.paper.published import tables
from vlmsafe.paper.values import TRAINING_WINDOWS, PublishedValue, looks_at_frames, paper_config, published_values
from vlmsafe.runs.arms import ArmRun, by_arm
from vlmsafe.runs.layout import tables_in
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import read_table
from vlmsafe.runs.versions import other_world

SCHEMA: dict[str, Any] = {
    "env": pl.String,
    "arm": pl.String,
    "method": pl.String,
    "paper_arm": pl.String,
    "run": pl.String,
    "seed": pl.Int64,
    "source": pl.String,
    "window": pl.String,
    "quantity": pl.String,
    "unit": pl.String,
    "ours": pl.Float64,
    "ours_std": pl.Float64,
    "ours_runs": pl.Int64,
    "published": pl.Float64,
    "published_std": pl.Float64,
    "published_runs": pl.Int64,
    "difference": pl.Float64,
    "comparable": pl.Boolean,
    "differences": pl.List(pl.String),
    "table": pl.String,
    "label": pl.String,
}
"""`run` and `seed` are null in the rows of arms, `published` and what follows where the paper has no value."""

_TRAINING = {"cost": "episode_cost", "logged_return": "shaped_return", "environment_return": "env_return"}
_EVALUATION = {
    "environment_return": "env_return",
    "cost": "cost",
    "violation_pct": "violation",
    "catastrophe_pct": "catastrophe",
    "arrival_pct": "arrived",
    "length": "length",
}
_METRIC_NAMES = {"path": "path_length", "net_progress": "progress"}
_OWN_UNITS = {"arrival_pct": "%", "length": "steps"}

# Settings that say where and how fast a run was made, or that the paper leaves open (the number of simulators).
_NO_RESULT = re.compile(
    r"run_dir|seed|env|method|num_envs|fresh_workers|max_worker_restarts|kernels|tensorboard|checkpoint\..*"
    r"|signal\.(device|compile|batch|scoring|service|service_wait)"
)


@dataclass(frozen=True)
class Evaluation:
    """One of the paper's evaluations of an environment, by what our tables can show of it."""

    window: str
    env: str
    """Prefix of the environments."""
    episodes: int
    first: int | None
    """First scenario; None where no seed decided it."""
    random_traffic: bool = False


EVALUATIONS = (
    Evaluation("evaluation-50", "metadrive-", 50, 0),
    Evaluation("evaluation-early-20", "metadrive-", 20, 0, random_traffic=True),
    Evaluation("evaluation-50", "formula-one-", 50, 10_000),
    Evaluation("evaluation-20", "formula-one-", 20, 10_000),
    Evaluation("task-metrics", "formula-one-", 50, 30_000),
    Evaluation("evaluation-200", "bullet-", 200, None),
)
"""Those with outcomes in the published tables. On MetaDrive the indices 10000 and up fall on scenarios 0 and up."""


@dataclass(frozen=True)
class _Cell:
    """One of our results, and how its conditions differ from the paper's."""

    quantity: str
    source: str
    window: str | None
    value: float
    differences: tuple[str, ...]
    world: str = ""
    """How its world differs."""


def side_by_side(runs: Sequence[ArmRun]) -> pl.DataFrame:
    """Every training and evaluation result of the runs, with the published one: each arm, followed by its runs.

    `differences` names what differs from the paper, as far as configuration and results show it; `comparable` is true
    if nothing does.
    """
    rows: list[dict[str, Any]] = []
    for (env, arm), members in by_arm(runs).items():
        for method in dict.fromkeys(member.run.config.method for member in members):
            own = [member for member in members if member.run.config.method == method]
            cells = [list(_cells(member.run)) for member in own]
            base = {"env": env, "arm": arm, "method": method, "paper_arm": methods.method(method).paper}
            rows += [base | row for row in _arm_rows(own, cells)]
            for member, found in zip(own, cells, strict=True):
                seed = member.run.config.seed
                rows += [base | {"run": member.name, "seed": seed} | _run_row(member.run, cell) for cell in found]
    return pl.DataFrame(rows, schema=SCHEMA)


def _run_row(run: Run, cell: _Cell) -> dict[str, Any]:
    row: dict[str, Any] = _shared(cell) | {"ours": cell.value, "ours_runs": 1}
    value, settings = _published_value([run.config], cell, run.config.seed)
    if value is None:
        return row
    return row | _published(value, cell.value, [cell.world, *settings, *cell.differences, value.remark])


def _arm_rows(members: Sequence[ArmRun], cells: Sequence[Sequence[_Cell]]) -> Iterator[dict[str, Any]]:
    """Means and population deviations over the runs that have a result."""
    groups: dict[tuple[str, str | None, str], list[tuple[Run, _Cell]]] = {}
    for member, found in zip(members, cells, strict=True):
        for cell in found:
            groups.setdefault((cell.source, cell.window, cell.quantity), []).append((member.run, cell))
    for group in groups.values():
        own, first = summary([cell.value for _, cell in group]), group[0][1]
        row: dict[str, Any] = _shared(first) | {"ours": own.mean, "ours_std": own.std, "ours_runs": own.n}
        value, settings = _published_value([run.config for run, _ in group], first, None)
        if value is not None:
            conditions = [text for _, cell in group for text in cell.differences]
            seeds = _seed_difference(sorted(run.config.seed for run, _ in group), value)
            worlds = [cell.world for _, cell in group]
            row |= _published(value, own.mean, [*worlds, *settings, *conditions, seeds, value.remark])
        yield row


def _shared(cell: _Cell) -> dict[str, Any]:
    return {
        "source": cell.source,
        "window": cell.window,
        "quantity": cell.quantity,
        "unit": _units().get(cell.quantity),
    }


def _published(value: PublishedValue, ours: float, differences: Iterable[str]) -> dict[str, Any]:
    found = list(dict.fromkeys(filter(None, differences)))
    return {
        "published": value.value,
        "published_std": value.std,
        "published_runs": 1 if value.seed is not None else value.runs,
        "difference": ours - value.value,
        "comparable": not found,
        "differences": found,
        "table": value.table,
        "label": value.label,
    }


def _seed_difference(seeds: Sequence[int], value: PublishedValue) -> str:
    if value.seeds and tuple(seeds) != value.seeds:
        word = "seed" if len(seeds) == 1 else "seeds"
        return f"{word} {', '.join(map(str, seeds))} (paper: {', '.join(map(str, value.seeds))})"
    if value.runs is None:
        return f"{_counted(len(seeds), 'run')} (paper: does not say)"
    return f"{_counted(len(seeds), 'run')} (paper: {value.runs})" if value.runs != len(seeds) else ""


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# -- the published value for one of ours ---------------------------------------------------------------------


def _published_value(
    configs: Sequence[TrainConfig], cell: _Cell, seed: int | None
) -> tuple[PublishedValue | None, list[str]]:
    """The published value of the settings nearest to ours, and what still differs."""
    key = (_paper_env(configs[0].env), configs[0].method, seed, cell.quantity, cell.window)
    candidates = [(value, _settings_differences(configs, value)) for value in _by_key().get(key, ())]
    if not candidates:
        return None, []
    return min(candidates, key=lambda candidate: len(candidate[1]))


@cache
def _by_key() -> dict[tuple[Any, ...], list[PublishedValue]]:
    groups: dict[tuple[Any, ...], list[PublishedValue]] = {}
    for value in published_values():
        groups.setdefault((value.env, value.arm, value.seed, value.quantity, value.window), []).append(value)
    return groups


def _paper_env(name: str) -> str:
    """Which of the paper's environments this stands for; empty if none."""
    original = re.fullmatch(r"safety-gymnasium:SafetyRacecarFormulaOne([012])-v\d+", name)
    base = f"formula-one-l{original[1]}" if original else name.partition(":")[0]
    return base if base in ENVS else ""


def _settings_differences(configs: Sequence[TrainConfig], value: PublishedValue) -> list[str]:
    """Settings in which any of the runs departs from the paper's, as `name ours (paper: theirs)`."""
    paper = paper_config(value.env, value.arm, value.settings)
    theirs = flatten(to_dict(paper))
    found: dict[str, None] = {}
    for config in configs:
        ours = flatten(to_dict(config))
        calibrated = config.signal.needs_calibration or paper.signal.needs_calibration
        for key in theirs:
            irrelevant = (
                _NO_RESULT.fullmatch(key)
                or (key == "frame_indicators" and not looks_at_frames(config.signal.scorer))
                or (key.startswith("signal.calibration.") and not calibrated)
            )
            if ours[key] != theirs[key] and not irrelevant:
                # The paper does not say with which camera it drew FormulaOne, and only one of them shows indicators.
                open_question = key == "frame_indicators" and value.env.startswith("formula-one")
                said = "does not say" if open_question else _text(theirs[key])
                found[f"{key} {_text(ours[key])} (paper: {said})"] = None
    return list(found)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


@cache
def _units() -> dict[str, str]:
    return _OWN_UNITS | {name: column.unit for table in tables() for name, column in table.columns.items()}


# -- our own results --------------------------------------------------------------------------------------------


_WORLDS = {
    "formula-one": "a world after Safety-Gymnasium's: its circuit, layouts and car within the tolerances of "
    "benchmarks/formula_one.py",
    "bullet": "a world with the original's task and step, but seeded starts and a box that moves by simulated time",
}
"""Worlds of this package that are not the paper's own, by how their names begin."""


def _cells(run: Run) -> Iterator[_Cell]:
    """All results of a run, each with what sets the run's world apart from the paper's."""
    world = _world(run)
    for cell in _results(run):
        yield replace(cell, world=world)


def _world(run: Run) -> str:
    if elsewhere := other_world(run):
        return elsewhere
    base, _, variant = run.config.env.partition(":")
    about = next((text for prefix, text in _WORLDS.items() if base.startswith(prefix)), "")
    if not variant or base not in ENVS:
        return about
    return f"variant {variant} of {about}" if about else f"variant {variant}"


def _results(run: Run) -> Iterator[_Cell]:
    yield from _training_cells(run)
    for name, path in tables_in(run.evaluations).items():
        yield from _evaluation_cells(run, name, read_table(path))


def _training_cells(run: Run) -> Iterator[_Cell]:
    """Means over the last epochs in which the quantity is known; a run that stopped early counts with its own last."""
    rows, planned = run.rows("epochs"), run.config.epochs
    short = () if len(rows) >= planned else (f"ended at epoch {len(rows)} of {planned}",)
    for window, epochs in TRAINING_WINDOWS.items():
        for quantity, column in _TRAINING.items():
            # A method without a bonus logs the environment's return.
            known = [value for row in rows if (value := _logged(row, column)) is not None][-epochs:]
            if known:
                fewer = (
                    () if len(known) == epochs else (f"a window of {_counted(len(known), 'epoch')} (paper: {epochs})",)
                )
                yield _Cell(quantity, "training", window, summary(known).mean, (*short, *fewer))


def _logged(row: dict[str, Any], column: str) -> float | None:
    value = row[column]
    return row["env_return"] if value is None and column == "shaped_return" else value


def _evaluation_cells(run: Run, name: str, table: pl.DataFrame) -> Iterator[_Cell]:
    hint = f"expected an evaluation's table in {run.evaluations}"
    require_columns(table, (*_EVALUATION.values(), "scenario", "traffic_seed", "checkpoint_epoch"), name, hint)
    window, differences = _nearest_evaluation(run.config, table)
    metrics = {_METRIC_NAMES.get(metric, metric): metric for metric in run.config.spec.metrics}
    for quantity, column in {**_EVALUATION, **metrics}.items():
        mean = table[column].cast(pl.Float64).mean() if column in table.columns else None
        if isinstance(mean, float):
            scale = 100.0 if quantity.endswith("_pct") else 1.0
            yield _Cell(quantity, name, window, scale * mean, differences)


def _nearest_evaluation(config: TrainConfig, table: pl.DataFrame) -> tuple[str | None, tuple[str, ...]]:
    """Which of the paper's evaluations an evaluation is nearest to, judged by what was driven and not by its name."""
    scenarios = set(table["scenario"])
    traffic = table["traffic_seed"].is_not_null().any()

    def distance(other: Evaluation) -> tuple[bool, int, int]:
        common = len(scenarios & _scenarios(other)) if other.first is not None else 0
        return other.random_traffic != traffic, -common, abs(other.episodes - len(table))

    choices = [other for other in EVALUATIONS if _paper_env(config.env).startswith(other.env)]
    if not choices:
        return None, ()
    nearest = min(choices, key=distance)
    return nearest.window, tuple(_evaluation_differences(config, table, nearest, bool(traffic)))


def _evaluation_differences(
    config: TrainConfig, table: pl.DataFrame, other: Evaluation, traffic: bool
) -> Iterator[str]:
    scenarios, paper = set(table["scenario"]), _scenarios(other)
    if other.first is not None and scenarios != paper:
        yield f"scenarios {_span(scenarios)} (paper: {_span(paper)})"
    if len(table) != other.episodes:
        yield f"{_counted(len(table), 'episode')} (paper: {other.episodes})"
    if traffic != other.random_traffic:
        yield f"{'random' if traffic else 'fixed'} traffic (paper: {'random' if other.random_traffic else 'fixed'})"
    if "deterministic" in table.columns and not table["deterministic"].all():
        yield "stochastic actions (paper: deterministic)"
    epochs = sorted(set(table["checkpoint_epoch"]))
    if epochs != [config.epochs]:
        kind = "untrained policy" if epochs == [0] else "policy"
        yield f"{kind} of epoch {', '.join(map(str, epochs))} (planned: {config.epochs})"


def _scenarios(other: Evaluation) -> set[int]:
    return set() if other.first is None else set(range(other.first, other.first + other.episodes))


def _span(scenarios: set[int]) -> str:
    low, high = min(scenarios), max(scenarios)
    gaps = "" if len(scenarios) == high - low + 1 else ", with gaps"
    return f"{low} to {high}{gaps}" if low < high else str(low)
