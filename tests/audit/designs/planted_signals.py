"""Defects of a signal: a term without effect, a gate that does not choose, a score that does not warn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.runs.run import Run
from vlmsafe.signals.gate import Gate

from .editing import Row, edit_trace, retrain, run_paths, set_up_with
from .planting import FIRST, Plant, add, each_run, planted, set_up

# The signal.
add("small-weight", "inert-signal-term", each_run(FIRST, set_up({"multiplier.signal_weight": 0.01})))
add("small-weight-in-both", "inert-signal-term", each_run(None, set_up({"multiplier.signal_weight": 0.03})), "gate")


@planted("score-at-its-reference", "inert-signal-term", also=["constant-score"])
def _at_reference(folder: Path) -> None:
    for path in run_paths(folder, FIRST):
        retrain(path, lambda row: row | {"negative_score": 0.5 + (row["negative_score"] - 0.6) * 1e-3})


def _gate_at(low: float, high: float, *, training: bool = True, trace: bool = True) -> Plant:
    """kappa between two levels, in the records of training, in the trace, or both, with the margins that give it."""

    def kappa_of(value: Any) -> Any:
        return low + (high - low) * value

    def of_margin(kappa: Any) -> Any:
        return 2.0 * np.arctanh(kappa) / 100.0  # the prior-symmetric gate

    def traced(table: pl.DataFrame) -> pl.DataFrame:
        margin = of_margin(kappa_of(table["kappa"].to_numpy()))
        return table.with_columns(margin=margin, kappa=Gate().kappa(margin))

    def trained(row: Row) -> Row:
        kappa = kappa_of(row["kappa"])
        bonus = row["bonus"] * kappa / row["kappa"]
        return row | {"kappa": kappa, "margin": float(of_margin(kappa)), "bonus": bonus}

    def plant(folder: Path) -> None:
        for path in run_paths(folder, FIRST):
            set_up_with(path, {"signal.gate": "prior-symmetric"})
            if training:
                retrain(path, trained)
            if trace:
                edit_trace(path, traced)

    return plant


add("gate-open", "gate-saturated", _gate_at(0.95, 0.99))
add("gate-closed", "gate-saturated", _gate_at(0.0, 0.02))
add("gate-open-in-the-trace", "gate-saturated", _gate_at(0.95, 0.99, training=False))
add("gate-open-in-training", "gate-saturated", _gate_at(0.95, 0.99, trace=False))


def _scored(negative: Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]) -> Plant:
    """Another negative score in all traces, from contacts [episode, step] and noise."""

    def change(path: Path) -> None:
        def again(table: pl.DataFrame) -> pl.DataFrame:
            episodes = table["episode"].n_unique()
            contact = table["cost"].to_numpy().reshape(episodes, -1) > 0.0
            rng = np.random.default_rng(Run.open(path).config.seed)
            noise = rng.normal(0.0, 0.01, contact.shape)
            return table.with_columns(negative=(0.6 + negative(contact, noise, rng)).ravel())

        edit_trace(path, again)

    return each_run(None, change)


def _before(contact: np.ndarray, steps: int = 20) -> np.ndarray:
    """Steps shortly before the first contact of each episode."""
    start = contact.argmax(axis=1)[:, None]
    step = np.arange(contact.shape[1])
    return (step < start) & (step >= start - steps)


add("noise-for-a-score", "no-lead-time", _scored(lambda contact, noise, rng: noise))
add("score-falls-before", "no-lead-time", _scored(lambda contact, noise, rng: noise - 0.03 * _before(contact)))
add("score-sees-contact-only", "no-lead-time", _scored(lambda contact, noise, rng: noise + 0.05 * contact))
add(
    "score-is-a-clock", "no-lead-time",
    _scored(lambda contact, noise, rng: 3e-4 * np.arange(contact.shape[1]) + 0.01 * noise), "gate",
)  # fmt: skip
add(
    "score-constant", "constant-score", _scored(lambda contact, noise, rng: np.zeros(contact.shape)),
    also=["no-lead-time"],
)  # fmt: skip
add(
    "score-hardly-moves", "constant-score", _scored(lambda contact, noise, rng: 1e-3 * noise), "gate",
    also=["no-lead-time"],
)  # fmt: skip

# Frames.
add("indicators-in-both-arms", "frames-show-cost", each_run(None, set_up({"frame_indicators": True})), "gate")
add(
    "indicators-in-one-arm", "frames-show-cost", each_run(FIRST, set_up({"frame_indicators": True})), "gate",
    also=["unmatched-arms"],
)  # fmt: skip
