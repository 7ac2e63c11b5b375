"""The runs that the published tables print, and the means and deviations printed beside them."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import vlmsafe
from vlmsafe.analysis.statistics import summary

TABLES = Path(vlmsafe.__file__).parent / "paper" / "tables"
BASELINE, SIGNAL = "ppo-lag", "vlm-ppo-lag-conf"
LEVELS = ("easy", "medium", "hard")


def table(name: str, **where: str) -> list[dict[str, str]]:
    with (TABLES / f"{name}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if all(row[key] == value for key, value in where.items())]
    assert rows, f"no row of {name} has {where}"
    return rows


def column(name: str, column: str, **where: str) -> np.ndarray:
    return np.array([float(row[column]) for row in table(name, **where)])


def f1(arm: str, what: str = "cost") -> np.ndarray:
    """Final-epoch values of FormulaOne-L2 over seeds 42, 123 and 456."""
    return column("full-results", what, arm=arm, environment="formula-one-l2")


def family(letter: str, what: str) -> np.ndarray:
    return column("conf-families", what, family=letter, kind="seed")


def metadrive(level: str, arm: str, what: str = "catastrophe_pct") -> np.ndarray:
    return column("md-perseed", what, environment=f"metadrive-{level}", arm=arm, kind="seed")


def bullet(arm: str, what: str = "catastrophe_pct") -> np.ndarray:
    return column("bullet-perseed", what, arm=arm, kind="seed")


def half_unit(text: str) -> float:
    """Half a unit of the last printed decimal: how far the number printed may be from the number meant."""
    mantissa, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def agrees(published: str, computed: float, inputs: float = 0.0) -> bool:
    """Whether `computed` is what was printed, up to rounding of the print and of the inputs it was computed from."""
    return abs(float(published) - computed) <= half_unit(published) + inputs + 1e-9


@dataclass(frozen=True)
class Cell:
    """A printed mean or deviation beside the one of the printed runs."""

    name: str
    published: str
    computed: float
    rounding: float


def cells() -> list[Cell]:
    """Every printed mean and population deviation of runs whose values are printed too."""
    found: list[Cell] = []

    def add(name: str, runs: list[dict[str, str]], what: str, mean: str, std: str = "", exact: bool = False) -> None:
        values = [float(row[what]) for row in runs]
        rounding = 0.0 if exact else max(half_unit(row[what]) for row in runs)
        if mean:
            found.append(Cell(f"{name}, {what}, mean", mean, summary(values).mean, rounding))
        if std:
            found.append(Cell(f"{name}, {what}, std", std, summary(values).std, rounding))

    for row in table("main-results-training"):
        runs = [run for run in table("full-results", environment=row["environment"]) if run["arm"] == row["arm"]]
        if runs and row["cost"]:
            add(f"training, {row['environment']}, {row['arm']}", runs, "cost", row["cost"], row["cost_std"])
    for row in table("f1-task"):
        runs = table("task-metrics", arm=row["arm"], trained="true")
        for what in ("environment_return", "cost", "path_length", "progress"):
            add(f"task metrics, {row['arm']}", runs, what, row[what], row[f"{what}_std"])
        for what in ("violation_pct", "catastrophe_pct"):
            add(f"task metrics, {row['arm']}", runs, what, row[what], exact=True)
    for name, key in (("md-perseed", "environment"), ("bullet-perseed", "arm")):
        for row in table(name, kind="pooled"):
            runs = table(name, kind="seed", **{"arm": row["arm"], key: row[key]})
            add(f"{name}, {row[key]}, {row['arm']}", runs, "cost", row["cost"])
            for what in ("violation_pct", "catastrophe_pct"):
                add(f"{name}, {row[key]}, {row['arm']}", runs, what, row[what], exact=True)
    for row in table("phaseb-holdout", kind="mean"):
        runs = table("phaseb-holdout", kind="seed", arm=row["arm"])
        for what in ("environment_return", "cost", "violation_pct", "catastrophe_pct"):
            add(f"20-episode evaluation, {row['arm']}", runs, what, row[what], exact=what.endswith("pct"))
    for row in table("phaseb-conf", kind="mean"):
        where = {"environment": row["environment"]}
        runs, std = table("phaseb-conf", kind="seed", **where), table("phaseb-conf", kind="std", **where)[0]
        for what in ("logged_return", "cost"):
            add(f"calibrated, {row['environment']}", runs, what, row[what], std[what])
    for letter in ("A", "B"):
        mean, std = (table("conf-families", family=letter, kind=kind)[0] for kind in ("mean", "std"))
        for what in ("cost_final", "cost_last_10"):
            add(f"family {letter}", table("conf-families", family=letter, kind="seed"), what, mean[what], std[what])
    mean, std = (table("gate-calib-prereg", kind=kind, runs="3")[0] for kind in ("mean", "std"))
    for what in (key for key in mean if key.endswith(("return", "cost"))):
        add("gate calibration", table("gate-calib-prereg", kind="seed"), what, mean[what], std[what])
    for row in table("ablation"):
        runs = table("full-results", environment="formula-one-l2", arm=row["arm"])
        for what in ("logged_return", "cost"):
            add(f"components, {row['arm']}", runs, what, row[what])
    return found
