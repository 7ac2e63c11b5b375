"""The tables of returns: how much of them is bonus, and whether low cost comes from doing little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from vlmsafe.analysis import returns as analysis
from vlmsafe.audit.checks.metrics import passive_threshold
from vlmsafe.comparison.claims import Window
from vlmsafe.report.cells import count, text, window_name
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.report.tables.rows import ARM, BY_RUN, ENV, cells, named
from vlmsafe.runs.records import ArmRecord

_PARTS = [
    Column("logged_return_final", "logged, final epoch", 2),
    Column("bonus_final", "of it bonus", 2, hint="what the signal added"),
    Column("environment_return_final", "environment, final epoch", 2),
    Column("environment_return_last_5", "environment, last 5 epochs", 2),
    Column("environment_return_last_10", "environment, last 10 epochs", 2),
]
_WINDOW_COLUMNS: tuple[Window, ...] = ("last-5", "last-10")
_NO_EVALUATION = "no run has an evaluation; vlmsafe evaluate RUN makes one"
_DISTANCES = ("path", "distance", "net_progress", "route_completion")


def returns(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The logged return taken apart, arm by arm."""
    rows: list[list[Cell]] = []
    parts = _parts(dataset, entry)
    for env, arm, found in return_tables(dataset, entry):
        means = found.filter(pl.col("run").is_null()).row(0, named=True)
        rows.append([text(env), text(arm.name), count(len(found) - 1), *cells(means, parts)])
    if not rows or (not entry.asked and not any(row[4].value for row in rows)):
        return _no_return(entry)
    columns = [ENV, ARM, *named("runs", digits=0), *parts]
    caption = "Means over runs. What the learner maximised is the logged return; the task's is the environment's."
    return Table(entry.kind, entry.title or "The logged return taken apart", columns, rows, caption, entry.label)


def _parts(dataset: Dataset, entry: Entry) -> list[Column]:
    """The columns of a return's parts, with the epochs that the runs really have in their headings.

    Of windows that hold the same epochs, because the runs are short, one has a column.
    """
    runs = [run for env in dataset.envs(entry) for arm in dataset.arms(env, entry) for run in arm.runs]
    means = zip(_PARTS[-len(_WINDOW_COLUMNS) :], _WINDOW_COLUMNS, strict=True)
    by_words: dict[str, Column] = {}
    for column, window in means:
        by_words.setdefault(window_name(window, runs), column)
    if max((run.epochs_recorded for run in runs), default=0) == 1:
        by_words.clear()  # the final epoch is the only one
    named_after = [replace(column, heading=f"environment, {words}") for words, column in by_words.items()]
    return [*_PARTS[: -len(_WINDOW_COLUMNS)], *named_after]


def returns_runs(dataset: Dataset, entry: Entry) -> Table | Missing:
    """The logged return taken apart, run by run, after each arm's mean."""
    columns = [*BY_RUN, Column("epochs", "epochs", 0, hint="with a return"), *_parts(dataset, entry)]
    rows: list[list[Cell]] = []
    strong: set[int] = set()
    for env, arm, found in return_tables(dataset, entry):
        for row in found.iter_rows(named=True):
            if row["run"] is None:
                if len(found) == 2:
                    continue  # the mean of one run is that run
                strong.add(len(rows))
            rows.append(cells({**row, "env": env, "run": row["run"] or "mean", "arm": arm.name}, columns))
    if not rows:
        return _no_return(entry)
    caption = "What the learner maximised is the logged return; the task's is the environment's."
    title = entry.title or "The logged return taken apart, run by run"
    return Table(entry.kind, title, columns, rows, caption, entry.label, frozenset(strong))


def return_tables(dataset: Dataset, entry: Entry) -> Iterator[tuple[str, ArmRecord, pl.DataFrame]]:
    """Of each arm `return_table`, with the runs that finished an episode."""
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            known = {
                run.name: run.epochs for run in arm.runs if any(row["env_return"] is not None for row in run.epochs)
            }
            if known:
                yield env, arm, analysis.return_table({arm.name: known})


def _no_return(entry: Entry) -> Missing:
    return Missing(entry.kind, "Returns", "no run has finished an episode")


def passive(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Passive episodes of each arm, and what cost correlates with over its episodes."""
    rows: list[list[Cell]] = []
    for env, episodes, threshold in _judged_episodes(dataset, entry):
        rates = analysis.passive_episodes(episodes, threshold).filter(pl.col("run").is_null())
        for row in rates.iter_rows(named=True):
            own = episodes.filter(arm=row["arm"])
            correlations = [_correlation(own, names) for names in (_DISTANCES, ("env_return",))]
            head = [text(env), text(row["arm"]), count(row["episodes"]), Cell(threshold), Cell(100 * row["rate"])]
            rows.append([*head, *correlations])
    if not rows:
        return Missing(entry.kind, "Passive episodes", _NO_EVALUATION)
    columns = [
        ENV,
        ARM,
        *named("episodes", digits=0),
        _THRESHOLD,
        _PASSIVE,
        Column(
            "cost_distance", "cost with distance", 2, hint="Spearman's correlation over episodes, with how far it got"
        ),
        Column(
            "cost_return", "cost with return", 2, hint="Spearman's correlation over episodes, with environment return"
        ),
    ]
    caption = "Doing little costs little: passive episodes, and Spearman's correlation of cost over episodes."
    return Table(
        entry.kind, entry.title or "Does low cost come from doing little?", columns, rows, caption, entry.label
    )


_THRESHOLD = Column(
    "threshold", "passive below", 1, hint="environment return below which an episode without cost is passive"
)
_PASSIVE = Column("passive_pct", "passive %", 1, hint="episodes without cost that return less than that")


def passive_runs(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Passive episodes of each run, after those of its arm."""
    rows: list[list[Cell]] = []
    strong: set[int] = set()
    columns = [*BY_RUN, *named("episodes", "passive", digits=0), _PASSIVE, _THRESHOLD]
    for env, episodes, threshold in _judged_episodes(dataset, entry):
        for row in analysis.passive_episodes(episodes, threshold).iter_rows(named=True):
            if row["run"] is None:
                strong.add(len(rows))
            shown = cells({**row, "env": env}, columns[:-2])
            rows.append([*shown, Cell(100 * row["rate"]), Cell(threshold)])
    if not rows:
        return Missing(entry.kind, "Passive episodes", _NO_EVALUATION)
    caption = (
        "Passive episodes cost nothing and return less than the threshold. Rates that differ much between runs say "
        "that the behaviour belongs to single seeds."
    )
    title = entry.title or "Passive episodes, run by run"
    return Table(entry.kind, title, columns, rows, caption, entry.label, frozenset(strong))


def _judged_episodes(dataset: Dataset, entry: Entry) -> Iterator[tuple[str, pl.DataFrame, float]]:
    """The evaluation episodes of each environment, and the return below which one is passive."""
    for env in dataset.envs(entry):
        episodes = dataset.episodes(env, entry)
        if episodes is not None:
            given = dataset.options.passive_below
            threshold = passive_threshold(dataset.arms(env, entry), dataset.source(env, entry), given)
            if threshold is not None:
                yield env, episodes, threshold


def _correlation(episodes: pl.DataFrame, names: Sequence[str]) -> Cell:
    name = next((name for name in names if name in episodes.columns and episodes[name].drop_nulls().len()), None)
    if name is None:
        return Cell()
    row = analysis.cost_correlations(episodes, [name]).row(0, named=True)
    return Cell(row["spearman"])


def cost_correlations(dataset: Dataset, entry: Entry) -> Table | Missing:
    """What cost goes along with: over episodes, over runs by their means, over arms by the means of their runs."""
    columns = [
        ENV,
        Column("against", "cost against"),
        Column("level", "over"),
        Column("n", "number", 0),
        Column("pearson", "Pearson", 3),
        Column("spearman", "Spearman", 3),
    ]
    rows: list[list[Cell]] = []
    for env in dataset.envs(entry):
        episodes = dataset.episodes(env, entry)
        if episodes is not None:
            found = analysis.cost_correlations(episodes).sort("against", maintain_order=True)
            rows += [
                cells({**row, "env": env, "against": against_name(row["against"])}, columns)
                for row in found.iter_rows(named=True)
            ]
    if not rows:
        return Missing(entry.kind, "Cost against", _NO_EVALUATION)
    caption = "Where cost rises with progress, doing little looks safe."
    return Table(entry.kind, entry.title or "What cost goes along with", columns, rows, caption, entry.label)


def against_name(column: str) -> str:
    """What cost is held against, in words."""
    return {"path": "path length", "env_return": "environment return"}.get(column, column.replace("_", " "))
