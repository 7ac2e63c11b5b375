"""A design with nothing to complain about: two arms that differ in what their comparison names, and no more.

Equal seeds, every run finished and evaluated on scenarios that training never draws. Both arms drive, equally far, and
cost has nothing to do with how far. Both meet the budget, by every window. The signal's term is as large as the cost
gap, the gate passes some frames and not others, and the negative score rises before contact.

There are two variants: a signal against none on MetaDrive, and the gate against none on FormulaOne.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import to_yaml
from vlmsafe.signals.gate import Gate

from .run_directory import configured, evaluation_table, rows_from_episodes, trace_table, training_episodes, write_run

Variant = Literal["signal", "gate"]

EPOCHS, PER_EPOCH, LENGTH = 20, 20, 1000
EPISODES = 50
POSITIVE, NEGATIVE, MARGIN, SPREAD = 0.63, 0.60, 0.05, 0.02
_TRACED, _STEPS, _LEAD = 8, 300, 20


@dataclass(frozen=True)
class Arm:
    """What tells an arm's runs from the other's."""

    method: str
    cost: float
    """Mean episode cost once it has learned; the budget is 25."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Design:
    """Two arms on one environment, and what is said of them."""

    env: str
    first: Arm
    second: Arm
    about: tuple[str, ...]
    test: str
    metrics: Mapping[str, float]
    """Task metrics at the end of an episode, about."""


# With eta_2 = 100 the term is about 10, as large as the gap to the budget and of the other sign.
_TERM = {"multiplier.signal_weight": 100.0}
DESIGNS: dict[Variant, Design] = {
    "signal": Design(
        "metadrive-medium",
        Arm("vlm-ppo-lag-conf", 17.0, _TERM),
        Arm("ppo-lag", 22.0),
        ("signal",),
        "permutation",
        {"route_completion": 0.7},
    ),
    "gate": Design(
        "formula-one-l1",
        Arm("vlm-ppo-lag-conf", 16.5, _TERM),
        Arm("vlm-ppo-lag", 20.5, _TERM),
        ("gate",),
        "sign-flip",
        {"stages": 2.0, "path": 30.0, "net_progress": 20.0},
    ),
}
RETURN = 200.0


def write_clean_design(folder: Path, seeds: int = 6, variant: Variant = "signal", first_seed: int = 11) -> Path:
    """The runs under `folder/<env>/<arm>/seed-<n>`, and `folder/claims.yaml`; another first seed is another design."""
    design = DESIGNS[variant]
    numbers = [first_seed + 7 * place for place in range(seeds)]
    costs = {
        (arm.method, seed): _evaluation_costs(np.random.default_rng((seed, len(arm.method))), arm.cost)
        for arm in (design.first, design.second)
        for seed in numbers
    }
    aside = _unrelated(list(costs.values()), np.random.default_rng((first_seed, seeds)))
    for (method, seed), noise in zip(costs, aside, strict=True):
        arm = design.first if method == design.first.method else design.second
        path = folder / design.env / method / f"seed-{seed}"
        config = configured(path, design.env, method, seed, {"total_steps": EPOCHS * 20_000, **arm.settings})
        _write(config, design, arm, costs[method, seed], noise)
    (folder / "claims.yaml").write_text(to_yaml({"comparisons": _claims(design)}))
    return folder


def _claims(design: Design) -> list[dict[str, Any]]:
    both = {"first": design.first.method, "second": design.second.method, "env": design.env}
    said = {**both, "about": list(design.about), "outcome": "cost"}
    tested = {"test": design.test, "sides": "less", "alpha": 0.05}
    return [
        {**said, "source": "held-out", **tested},
        {**said, "source": "training", "window": "final", **tested},
        {**said, "outcome": "env_return", "source": "held-out", "test": "none"},
    ]


def _write(config: TrainConfig, design: Design, arm: Arm, costs: np.ndarray, noise: np.ndarray) -> None:
    rng = np.random.default_rng((config.seed, len(config.method), 1))
    epoch = np.repeat(np.arange(EPOCHS), PER_EPOCH)
    trained = rng.poisson(arm.cost + 40.0 * np.exp(-epoch / 1.5)).astype(np.float64)
    # A seed is easier or harder for both arms alike, by more than chance makes them differ.
    level = RETURN + float(np.random.default_rng(config.seed).normal(0.0, 8.0))
    returns = level - 120.0 * np.exp(-epoch / 3.0) + rng.normal(0.0, 10.0, len(epoch))
    gated, signal = config.signal.gate != "off", config.signal.scorer != "none"
    margins = rng.normal(MARGIN, SPREAD, (_TRACED, _STEPS))
    gate = Gate.calibrated(margins) if gated else None
    kappa = (0.3 + rng.normal(0.0, 0.02, EPOCHS))[epoch] if gated else np.ones(len(epoch))
    figures: dict[str, Any] = {}
    if signal:
        figures = {
            "bonus": (config.signal.reward_weight * kappa * POSITIVE * LENGTH).tolist(),
            "positive_score": (POSITIVE + rng.normal(0.0, 0.01, len(epoch))).tolist(),
            "negative_score": (NEGATIVE + rng.normal(0.0, 0.02, len(epoch))).tolist(),
            "kappa": kappa.tolist(),
            "margin": (MARGIN + rng.normal(0.0, 0.004, len(epoch))).tolist(),
            "scored": LENGTH // config.signal.every,
        }
    scenarios = rng.integers(config.spec.training.start, config.spec.training.size, len(epoch))
    held_out = config.spec.held_out.start + np.arange(EPISODES)
    evaluation = evaluation_table(
        config, "held-out", held_out, costs, RETURN + 10.0 * noise, lengths=LENGTH,
        **{name: _metric(name, value, noise) for name, value in design.metrics.items()},
    )  # fmt: skip
    episodes = training_episodes(
        config, trained, returns, scenarios, per_epoch=PER_EPOCH, length=LENGTH, figures=figures
    )
    write_run(
        config,
        rows_from_episodes(config, episodes),
        episodes=episodes,
        evaluations={"held-out": evaluation},
        traces={"held-out": _trace(config, rng, margins, gate)} if signal else {},
    )


def _metric(name: str, value: float, noise: np.ndarray) -> np.ndarray:
    return np.full(len(noise), value) if name == "stages" else value * (1.0 + 0.05 * noise)


def _evaluation_costs(rng: np.random.Generator, mean: float) -> np.ndarray:
    """Of one run's episodes: about as many above the mean as below, none far off, and a run mean of its own."""
    return rng.poisson(mean + rng.normal(0.0, 0.5), EPISODES).astype(np.float64)


def _unrelated(costs: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Deviations, about one in size, that cost tells nothing of: not over episodes, nor over run means, nor arms.

    Within a run they are made orthogonal to its costs; run means, to those of cost, and equal for both arms.
    """
    runs = len(costs)
    arms = np.repeat([0.0, 1.0], runs // 2)
    means = _residual(rng.normal(0.0, 0.2, runs), np.array([own.mean() for own in costs]), arms)
    return [_residual(rng.normal(size=len(own)), own) + mean for own, mean in zip(costs, means, strict=True)]


def _residual(values: np.ndarray, *others: np.ndarray) -> np.ndarray:
    basis = np.column_stack([np.ones(len(values)), *others])
    return values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]


def _trace(config: TrainConfig, rng: np.random.Generator, margins: np.ndarray, gate: Gate | None) -> pl.DataFrame:
    """Contacts anywhere in an episode, and a negative score that has begun to rise twenty steps before."""
    contact = np.zeros((_TRACED, _STEPS), np.bool_)
    negative = NEGATIVE + rng.normal(0.0, 0.01, contact.shape)
    for episode, start in enumerate(rng.permutation(np.linspace(40, _STEPS - 20, _TRACED).astype(int))):
        contact[episode, start : start + 4] = True
        negative[episode, start - _LEAD : start + 4] += 0.03
    positive = POSITIVE + rng.normal(0.0, 0.01, contact.shape)
    scenarios = config.spec.held_out.start + np.arange(_TRACED)
    return trace_table(config, "held-out", scenarios, contact, positive, negative, margins, gate=gate)
