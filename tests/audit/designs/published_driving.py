"""The published MetaDrive and Bullet runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.config.settings import TrainConfig
from vlmsafe.paper.published import published
from vlmsafe.signals.gate import Gate

from .published_figures import (
    BASELINE,
    CALIBRATED_SEEDS,
    GRID_SEEDS,
    PASSIVE,
    SIGNAL,
    around,
    episode_costs,
    run_rng,
    split,
    spread,
    text_value,
    unsettled,
)
from .run_directory import (
    configured,
    epoch_rows,
    evaluation_table,
    rows_from_episodes,
    trace_table,
    training_episodes,
    write_run,
)

PAPER, EARLY, BULLET_200 = "paper", "paper-early", "paper-200"
_SIGNAL = {"signal.scorer": "clip", "signal.every": 4}
_PENALTY = 5.0  # reward and cost move together: the simulator takes 5 for each cost (its published arms show it)
_IDLE_RETURN = 5.0  # of an episode without cost; the paper counts those below 20
_PER_EPOCH = 20


def write_metadrive(folder: Path, env: str) -> None:
    level = env.removeprefix("metadrive-")
    rows = published("md-perseed").filter(environment=env, kind="seed")
    for arm, side in ((BASELINE, "baseline"), (SIGNAL, "signal")):
        own = rows.filter(arm=arm).to_dicts()
        training = text_value(f"{level}-training-{side}")
        finals = spread(training["value"], training["std"], len(own))
        moving = _moving_return(own, text_value(f"{level}-return-{side}")["value"], _passive(env, arm))
        early = _early_rates(level, side, [row["seed"] for row in own])
        for row, final in zip(own, finals, strict=True):
            config = _metadrive(folder, env, arm, arm, row["seed"])
            tables = {PAPER: _paper_table(config, row, moving, _passive(env, arm).get(row["seed"], 0))}
            if row["seed"] in early:
                tables[EARLY] = _early_table(config, early[row["seed"]])
            _write_driver(config, final, tables)
    _write_replication(folder, env)


def _metadrive(folder: Path, env: str, arm: str, method: str, seed: int) -> TrainConfig:
    signal = dict(_SIGNAL) if method == SIGNAL else {}
    return configured(folder / env / arm / f"seed-{seed}", env, method, seed, signal)


def _passive(env: str, arm: str) -> dict[int, int]:
    return PASSIVE[arm] if env == "metadrive-hard" else {}


def _moving_return(rows: Sequence[Mapping[str, Any]], mean: float, passive: Mapping[int, int]) -> float:
    """Return of an episode that drives, before the penalty for its cost, so that the arm's mean is the printed one."""
    idle, episodes = sum(passive.values()), 50 * len(rows)
    penalties = _PENALTY * sum(row["cost"] * 50 for row in rows)
    return (mean * episodes + penalties - _IDLE_RETURN * idle) / (episodes - idle)


def _paper_table(config: TrainConfig, row: Mapping[str, Any], moving: float, idle: int) -> pl.DataFrame:
    """Indices 10000 to 10049, which are scenarios 0 to 49 of the training pool."""
    rng = run_rng(config, 10)
    severe, over = round(row["catastrophe_pct"] / 2), round(row["violation_pct"] / 2)
    costs = episode_costs(rng, 50, row["cost"], over, severe, zeros=idle)
    still = np.arange(50) < idle
    order = rng.permutation(50)
    returns = np.where(still, _IDLE_RETURN, moving - _PENALTY * costs)
    route = np.where(still, 0.03, 0.6 + 0.1 * rng.random(50))  # not printed
    return evaluation_table(
        config, PAPER, np.arange(50), costs[order], returns[order], route_completion=route[order],
        arrived=np.zeros(50, np.bool_),
    )  # fmt: skip


def _early_rates(level: str, side: str, seeds: Sequence[int]) -> dict[int, int]:
    """Catastrophes among the 20 episodes of each run in the earlier evaluation; Hard had three runs."""
    chosen = [seed for seed in seeds if level != "hard" or seed in GRID_SEEDS]
    total = round(text_value(f"{level}-early-{side}")["value"] * 20 * len(chosen) / 100)
    return dict(zip(chosen, split(total, [1.0] * len(chosen)), strict=True))


def _early_table(config: TrainConfig, catastrophes: int) -> pl.DataFrame:
    """The earlier evaluation: a pool of 100, traffic drawn anew, one simulator. Of its costs only rates are printed."""
    rng = run_rng(config, 20)
    costs = episode_costs(rng, 20, float(10 * catastrophes + 10), catastrophes + 1, catastrophes)
    seeds = rng.integers(2**31, size=20).tolist()
    returns = 100.0 - _PENALTY * costs
    return evaluation_table(
        config, EARLY, np.arange(20), costs, returns, traffic_seeds=seeds, route_completion=np.full(20, 0.6),
        arrived=np.zeros(20, np.bool_),
    )  # fmt: skip


def _write_driver(
    config: TrainConfig, final: float, tables: Mapping[str, pl.DataFrame], *, keep_episodes: bool = True
) -> None:
    """A MetaDrive run: flat costs, and the gate as open as its videos show it."""
    rng = run_rng(config, 1)
    costs = np.full(config.epochs * _PER_EPOCH, round(final, 2))
    costs[: -15 * _PER_EPOCH] = unsettled(costs[: -15 * _PER_EPOCH], rng)  # nor are returns printed
    figures: dict[str, Any] = {}
    traces: dict[str, pl.DataFrame] = {}
    if config.method == SIGNAL:
        medians = published("gate-medians").filter(environment=config.env, seed=config.seed).to_dicts()
        margin = medians[0]["margin_median"] if medians else 0.037
        kappa = round(float(Gate().kappa(np.array(margin))), 3)
        figures = {
            "bonus": round(61.8 * kappa, 2), "positive_score": 0.618, "negative_score": 0.624, "kappa": kappa,
            "margin": margin, "scored": 250,
        }  # fmt: skip
        if medians:
            traces[PAPER] = _video(config, rng, margin)
    returns = np.round(100.0 - _PENALTY * costs, 2)
    scenarios = rng.integers(0, 10_000, len(costs))
    episodes = training_episodes(config, costs, returns, scenarios, per_epoch=_PER_EPOCH, length=1000, figures=figures)
    rows = rows_from_episodes(config, episodes)
    write_run(config, rows, episodes=episodes if keep_episodes else (), evaluations=tables, traces=traces)


def _video(config: TrainConfig, rng: np.random.Generator, margin: float) -> pl.DataFrame:
    """200 frames without contact, as the videos had no labels: 93 % of Hard's have kappa above 0.9, none above 0.99."""
    margins = margin + 0.0008 * rng.normal(size=(1, 200))
    positive, negative = 0.618 + margins / 4.0, 0.618 - margins / 4.0
    return trace_table(config, PAPER, [0], np.zeros((1, 200), np.bool_), positive, negative, margins, gate=Gate())


def _write_replication(folder: Path, env: str) -> None:
    """The second set of the same settings: meant to calibrate the gate, which it did not (app:md-calib)."""
    row = published("md-noise-floor").filter(environment=env).to_dicts()[0]
    counts = zip(
        split(round(row["second_violation_pct"] * 2.5), [1.0] * 5),
        split(round(row["second_catastrophe_pct"] * 2.5), [1.0] * 5),
        strict=True,
    )
    for seed, (over, severe) in zip(CALIBRATED_SEEDS, counts, strict=True):
        config = _metadrive(folder, env, f"{SIGNAL}-replication", SIGNAL, seed)
        # Neither costs nor the rates of single runs are printed.
        same = {"cost": 5.0 * severe + 40.0, "violation_pct": 2.0 * over, "catastrophe_pct": 2.0 * severe}
        _write_driver(config, 43.8, {PAPER: _paper_table(config, same, 100.0, 0)}, keep_episodes=False)


def write_bullet(folder: Path) -> None:
    """Six runs of each method taken for one arm, three of them twice as long as the others."""
    env = "bullet-car-reach"
    for arm, side in ((BASELINE, "baseline"), (SIGNAL, "signal")):
        for steps, mark in ((1_000_000, "1m"), (2_000_000, "2m")):
            rows = published("bullet-perseed").filter(arm=arm, kind="seed", training_steps=steps).to_dicts()
            training = text_value(f"bullet-{mark}-training-cost-{side}")
            logged = text_value(f"bullet-{mark}-training-return-{side}")["value"]
            own = text_value(f"bullet-{mark}-training-return-baseline")["value"]  # of the environment, for both arms
            for row, final in zip(rows, spread(training["value"], training["std"], len(rows)), strict=True):
                seed = row["seed"]
                name = f"seed-{seed}" if steps == 1_000_000 else f"seed-{seed}-2m"
                signal = dict(_SIGNAL) if arm == SIGNAL else {}
                settings = {"total_steps": steps, "frame_indicators": True, **signal}
                config = configured(folder / env / arm / name, env, arm, seed, settings)
                figures: dict[str, Any] = {}
                if arm == SIGNAL:
                    kappa = (logged - own) / (50.0 * 0.617)
                    figures = {"bonus": logged - own, "positive_score": 0.617, "negative_score": 0.62}
                    figures |= {"kappa": kappa, "margin": 0.02}
                costs = np.full(config.epochs, final)
                costs[:-10] = unsettled(costs[:-10], run_rng(config, 0))
                epochs = epoch_rows(config, costs.tolist(), [own] * config.epochs, episodes=40, **figures)
                write_run(config, epochs, evaluations={BULLET_200: _bullet_table(config, row, own)})


def _bullet_table(config: TrainConfig, row: Mapping[str, Any], env_return: float) -> pl.DataFrame:
    rng = run_rng(config, config.epochs)
    over, severe = round(row["violation_pct"] * 2), round(row["catastrophe_pct"] * 2)
    costs = episode_costs(rng, 200, row["cost"], over, severe)
    scenarios = range(10_000, 10_200)
    return evaluation_table(config, BULLET_200, scenarios, costs, around(rng, env_return, 200), lengths=500)
