"""Run directories without a simulator: figures go in, a directory comes out that the package takes for a run.

Rows, tables and checkpoints have the form in which training and evaluation write them. A multiplier is what the run's
own rule makes of the costs and scores given. What nobody looks at (losses, seconds) is a constant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.statistics import CATASTROPHE
from vlmsafe.config.methods import check_method, config_from
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import to_dict, to_yaml
from vlmsafe.evaluation.evaluate import SCHEMA
from vlmsafe.learners.multipliers import Bracket, make_multiplier
from vlmsafe.runs.checkpoint import Checkpoint
from vlmsafe.runs.run import Run
from vlmsafe.signals.gate import Gate
from vlmsafe.signals.prompts import PromptSet, load_prompts

RECORDED: dict[str, Any] = {
    "started": "2026-01-05T09:00:00+00:00",
    "python": "3.11.9",
    "packages": {"vlmsafe": "0.1.0", "numpy": "2.1.0", "torch": "2.5.0", "gymnasium": "1.0.0"},
    "git_revision": "5f1c0a7d9b3e4c2f8a6d1e0b7c9f2a4d6e8b0c1d",
    "system": "Linux",
    "processor": "unknown",
    "cores": 8,
}
"""Surroundings that all runs of a design share; each also records the present version of its environment."""

_TIME = "2026-01-05T09:00:00+00:00"
_LOSSES = {"policy_loss": 0.0, "reward_critic_loss": 0.1, "kl": 0.01, "passes": 10, "entropy": 1.4}


def configured(path: Path, env: str, method: str, seed: int, settings: Mapping[str, Any] | None = None) -> TrainConfig:
    """The resolved settings of a run; `settings` has dotted names, such as `learner.update_iters`."""
    nested: dict[str, Any] = {"env": env, "method": method, "seed": seed, "run_dir": str(path)}
    for name, value in (settings or {}).items():
        *folders, last = name.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    config = config_from(nested, str(path)).resolved()
    check_method(config)
    return config


def epoch_rows(
    config: TrainConfig,
    costs: Sequence[float],
    env_returns: Sequence[float],
    *,
    episodes: int = 20,
    lengths: Sequence[float] | None = None,
    epoch_costs: Sequence[float] | None = None,
    **signal: Sequence[float | None] | float | None,
) -> list[dict[str, Any]]:
    """The rows of `epochs.jsonl`: J_C and the environment's return per epoch, and what the signal has to add.

    `signal` holds `bonus`, `positive_score`, `negative_score`, `kappa` and `margin`, per epoch or for all of them.
    """
    multiplier = make_multiplier(config.multiplier)
    assert config.budget is not None
    rows = []
    for place, (cost, env_return) in enumerate(zip(costs, env_returns, strict=True)):
        own = {name: _at(signal.get(name), place) for name in _SIGNAL}
        bracket = Bracket(cost - config.budget)
        if multiplier is not None:
            bracket = multiplier.bracket(cost, config.budget, own["negative_score"])
            multiplier.update(bracket, cost)
        bonus = own["bonus"]
        rows.append(
            {
                "epoch": place + 1,
                "steps": (place + 1) * config.steps_per_epoch,
                "episodes": episodes,
                "env_return": env_return,
                "bonus": bonus,
                "shaped_return": None if bonus is None else env_return + bonus,
                "episode_cost": cost,
                "episode_length": lengths[place] if lengths else config.steps_per_epoch / episodes,
                "epoch_cost": epoch_costs[place] if epoch_costs else cost,
                "budget": config.budget,
                "cost_gap": bracket.cost_gap,
                "signal_term": bracket.signal_term,
                "bracket": bracket.value,
                "multiplier": multiplier.value if multiplier else None,
                "signal_gap": None,
                "signal_multiplier": None,
                "positive_score": own["positive_score"],
                "negative_score": own["negative_score"],
                "signal_excess": None,
                "kappa": own["kappa"],
                "margin": own["margin"],
                **_LOSSES,
                "cost_critic_loss": 0.1,
                "signal_critic_loss": None,
            }
        )
    return rows


_SIGNAL = ("bonus", "positive_score", "negative_score", "kappa", "margin")


def rows_from_episodes(config: TrainConfig, episodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `epochs.jsonl` that follow from those of `episodes.jsonl`, all of them finished.

    Returns, costs, lengths and bonuses are means over the window of newest episodes, scores over the epoch's own.
    """
    last = max(row["epoch"] for row in episodes)
    own = [[row for row in episodes if row["epoch"] == epoch] for epoch in range(1, last + 1)]
    ends = np.cumsum([len(rows) for rows in own])
    assert isinstance(config.cost_window, int)
    window = config.cost_window

    def newest(name: str) -> list[float]:
        values = np.array([row[name] for row in episodes], np.float64)
        return [float(values[max(0, end - window) : end].mean()) for end in ends]

    def each(name: str) -> list[float]:
        return [float(np.mean([row[name] for row in rows])) for rows in own]

    figures: dict[str, list[float]] = {}
    if "bonus" in episodes[0]:
        figures = {"bonus": newest("bonus"), **{name: each(name) for name in _SIGNAL[1:]}}
    return epoch_rows(
        config, newest("cost"), newest("return"), episodes=len(own[0]), lengths=newest("length"),
        epoch_costs=each("cost"), **figures,
    )  # fmt: skip


def _at(values: Sequence[float | None] | float | None, place: int) -> float | None:
    return values[place] if isinstance(values, Sequence) else values


def write_run(
    config: TrainConfig,
    epochs: Sequence[Mapping[str, Any]],
    *,
    episodes: Sequence[Mapping[str, Any]] = (),
    evaluations: Mapping[str, pl.DataFrame] | None = None,
    traces: Mapping[str, pl.DataFrame] | None = None,
    trained_epochs: int | None = None,
    recorded: Mapping[str, Any] | None = None,
) -> Run:
    """A run directory with these rows and tables.

    `trained_epochs` is the epoch of its only checkpoint, by default that of the last row.
    """
    assert config.run_dir is not None
    path = config.run_dir
    for folder in ("checkpoints", "evaluations"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    run = Run(path, config)
    if config.signal.prompts is not None:
        (path / "prompts.yaml").write_text(to_yaml(_prompts(config.signal.prompts).to_dict()), encoding="utf-8")
    surroundings = {"env_version": config.spec.version, **(recorded or RECORDED)}
    (path / "config.yaml").write_text(to_yaml(to_dict(config) | {"recorded": surroundings}))
    write_rows(run, "epochs", epochs)
    write_rows(run, "episodes", episodes)
    write_rows(run, "timing", [{"epoch": row["epoch"], "collect": 1.0} for row in epochs])
    done = len(epochs) if trained_epochs is None else trained_epochs
    save_state(run, done)
    events: list[dict[str, Any]] = [{"time": _TIME, "event": "started"}]
    if len(epochs) >= config.epochs:
        events.append({"time": _TIME, "event": "finished", "epoch": config.epochs})
    write_rows(run, "events", events)
    for name, table in (evaluations or {}).items():
        table.write_parquet(path / "evaluations" / f"{name}.parquet")
    for name, table in (traces or {}).items():
        (path / "traces").mkdir(exist_ok=True)
        table.write_parquet(path / "traces" / f"{name}.parquet")
    return run


def write_rows(run: Run, file: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """One of the row files, in place of what it held; NaN is written as Python writes it."""
    (run.path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def save_state(run: Run, epoch: int) -> None:
    """A checkpoint of this epoch that remembers the settings and the row files as they are now; weights are left out.

    Its array is random, so that equal checkpoints mean equal runs.
    """
    rng = np.random.default_rng((run.config.seed, epoch, len(run.config.method)))
    arrays = {"networks": rng.normal(size=8).astype(np.float32), "window": np.zeros((0, 4))}
    run.save(Checkpoint(epoch, arrays, {"trained": epoch > 0}))


@cache
def _prompts(name: str) -> PromptSet:
    return load_prompts(name)


def training_episodes(
    config: TrainConfig,
    costs: Sequence[float],
    env_returns: Sequence[float],
    scenarios: Sequence[int],
    *,
    per_epoch: int,
    length: int,
    figures: Mapping[str, Sequence[float] | float] | None = None,
) -> list[dict[str, Any]]:
    """The rows of `episodes.jsonl`, in the order of training: cost and return of each, `per_epoch` to an epoch.

    `figures` of the signal are per episode or for all of them.
    """
    traffic = config.spec.traffic
    return [
        {
            "epoch": place // per_epoch + 1,
            "worker": 0,
            "scenario": int(scenario),
            **({"traffic_seed": place} if traffic else {}),
            "finished": True,
            "return": float(env_return),
            "cost": float(cost),
            "length": length,
            **{name: _at(values, place) for name, values in (figures or {}).items()},
        }
        for place, (cost, env_return, scenario) in enumerate(zip(costs, env_returns, scenarios, strict=True))
    ]


def evaluation_table(
    config: TrainConfig,
    protocol: str,
    scenarios: Sequence[int],
    costs: Sequence[float],
    env_returns: Sequence[float],
    *,
    lengths: Sequence[int] | int = 1000,
    checkpoint_epoch: int | None = None,
    run_finished: bool | None = None,
    deterministic: bool = True,
    traffic_seeds: Sequence[int] | None = None,
    arrived: Sequence[bool] | None = None,
    **metrics: Sequence[float],
) -> pl.DataFrame:
    """A table as `evaluate` writes it, with the verdicts that follow from cost and budget."""
    budget, training = config.budget, config.spec.training
    assert budget is not None
    epoch = config.epochs if checkpoint_epoch is None else checkpoint_epoch
    cost = np.asarray(costs, np.float64)
    columns = {
        "episode": np.arange(len(cost)),
        "scenario": np.asarray(scenarios),
        "traffic_seed": traffic_seeds,
        "in_training_pool": [int(scenario) in training for scenario in scenarios],
        "env_return": np.asarray(env_returns, np.float64),
        "cost": cost,
        "length": np.broadcast_to(lengths, len(cost)),
        "arrived": arrived,
        "violation": cost > budget,
        "catastrophe": cost > CATASTROPHE * budget,
        "budget": np.full(len(cost), budget),
        "checkpoint_epoch": np.full(len(cost), epoch),
        "run_finished": np.full(len(cost), epoch >= config.epochs if run_finished is None else run_finished),
    }
    columns |= {"protocol": [protocol] * len(cost), "deterministic": np.full(len(cost), deterministic)}
    known = {name: np.asarray(metrics[name], np.float64) for name in config.spec.metrics if name in metrics}
    # What is not made up here, such as the fingerprint of the code, is null.
    schema = {**SCHEMA, **dict.fromkeys(known, pl.Float64)}
    return pl.DataFrame({name: columns.get(name) for name in SCHEMA} | known, schema=schema)


def trace_table(
    config: TrainConfig,
    protocol: str,
    scenarios: Sequence[int],
    contact: np.ndarray,
    positive: np.ndarray,
    negative: np.ndarray,
    margin: np.ndarray,
    *,
    gate: Gate | None = None,
) -> pl.DataFrame:
    """A trace of whole episodes with every step scored: arrays have one row per episode, one column per step.

    Without a gate kappa is 1, as a run without one records it.
    """
    episodes, steps = contact.shape
    kappa = np.ones_like(margin) if gate is None else gate.kappa(margin)
    return pl.DataFrame(
        {
            "protocol": [protocol] * (episodes * steps),
            "deterministic": np.ones(episodes * steps, np.bool_),
            "checkpoint_epoch": np.full(episodes * steps, config.epochs),
            "episode": np.repeat(np.arange(episodes), steps),
            "scenario": np.repeat(np.asarray(scenarios), steps),
            "traffic_seed": pl.Series([None] * (episodes * steps), dtype=pl.Int64),
            "step": np.tile(np.arange(1, steps + 1), episodes),
            "reward": np.zeros(episodes * steps),
            "cost": contact.astype(np.float64).ravel(),
            "hazard": pl.Series([None] * (episodes * steps), dtype=pl.Float64),
            "scored": np.ones(episodes * steps, np.bool_),
            "positive": positive.ravel(),
            "negative": negative.ravel(),
            "margin": margin.ravel(),
            "kappa": kappa.ravel(),
        }
    )
