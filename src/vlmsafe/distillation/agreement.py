"""What is measured of a distilled scorer on held-out scenarios: agreement with its teacher, warning of cost, speed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from vlmsafe.analysis.anticipation import STANDARDISED, anticipation, verdict
from vlmsafe.analysis.auc import auc_interval
from vlmsafe.distillation.stacks import Float64, Frames, RecordedFrames
from vlmsafe.signals.rules import apply_rule
from vlmsafe.signals.scorers.api import Scorer

HORIZONS = (5, 10, 20, 40)
_FEWEST = 3  # frames for a correlation
_STACKS = 64  # scored at a time when speed is measured
_ROUNDS = 3  # the fewest


def agreement(
    columns: Sequence[str], student: NDArray[Any], teacher: NDArray[Any], usual: NDArray[Any]
) -> list[dict[str, Any]]:
    """Per column: correlations, the mean absolute error, and that of `usual`, the teacher's mean on training frames.

    Arrays are [N, columns]. A correlation is None where one side does not vary.
    """
    rows = []
    for name, said, wanted, mean in zip(columns, student.T, teacher.T, usual, strict=True):
        rows.append(
            {
                "column": name,
                "pearson": _correlation(said, wanted),
                "spearman": _correlation(stats.rankdata(said), stats.rankdata(wanted)),
                "error": float(np.abs(said - wanted).mean()),
                "error_of_mean": float(np.abs(mean - wanted).mean()),
                "mean": float(wanted.mean()),
                "deviation": float(wanted.std()),
            }
        )
    return rows


def _correlation(one: NDArray[Any], other: NDArray[Any]) -> float | None:
    if len(one) < _FEWEST or np.ptp(one) == 0.0 or np.ptp(other) == 0.0:
        return None
    return float(np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1])


def signals_of(similarities: NDArray[Any], groups: tuple[int, int], name: str) -> dict[str, Float64]:
    """c_vlm and the negated margin, which should both rise before a cost, from similarities [N, columns]."""
    scores = apply_rule("decoupled", similarities[:, : sum(groups)].astype(np.float32), groups)
    return {f"{name} c_vlm": scores.negative, f"{name} margin": -scores.margin}


def warnings_of(frames: Frames, signals: Mapping[str, Float64], *, resamples: int = 2000) -> list[dict[str, Any]]:
    """How well signals [N] know cost: at the step of a frame, and before it by the clean test of lead time.

    One entry per environment for all drivers, and one for policies without noise if there are others.
    """
    found = []
    for env in np.unique(frames.env):
        for drivers in _groups(frames.driver[frames.env == env]):
            rows = (frames.env == env) & (np.isin(frames.driver, drivers) if drivers else True)
            steps = np.isin(frames.episode, np.unique(frames.episode[frames.at[rows]]))
            found.append(
                {
                    "env": str(env),
                    "drivers": "policies without noise" if drivers else "all drivers",
                    **_warnings(frames, rows, steps, signals, resamples),
                }
            )
    return found


def _groups(drivers: NDArray[np.str_]) -> list[tuple[str, ...]]:
    """All drivers, and agents alone where they are some of them."""
    present = set(drivers.tolist())
    return [(), ("agent",)] if "agent" in present and len(present) > 1 else [()]


def _warnings(
    frames: Frames, rows: NDArray[np.bool_], steps: NDArray[np.bool_], signals: Mapping[str, Float64], resamples: int
) -> dict[str, Any]:
    contact, episodes, at = frames.contact, frames.episode, frames.at[rows]
    scored = np.zeros(len(contact), np.bool_)
    scored[at] = True

    def spread(values: Float64) -> Float64:
        placed = np.full(len(contact), np.nan)
        placed[at] = values[rows]
        return placed[steps]

    table = anticipation(
        {name: spread(values) for name, values in signals.items()},
        contact[steps], episodes[steps], scored=scored[steps], horizons=HORIZONS, resamples=resamples,
    )  # fmt: skip
    before = np.concatenate([[False], contact[:-1] & (episodes[1:] == episodes[:-1])])
    now = {
        name: asdict(auc_interval(values[rows], contact[at], episodes[at], resamples=resamples))
        for name, values in signals.items()
    }
    return {
        "episodes": len(np.unique(episodes[steps])),
        "cut": int((~frames.complete[np.unique(episodes[steps])]).sum()),
        "steps": int(steps.sum()),
        "frames": int(rows.sum()),
        "cost_steps": int(contact[steps].sum()),
        "onsets": int((contact & ~before)[steps].sum()),
        "now": now,
        "ahead": [row for row in table.to_dicts() if row["form"] == STANDARDISED],
        "verdict": verdict(table, next(iter(signals))),
    }


def similarities_of(scorer: Scorer, recordings: Sequence[RecordedFrames], batch: int = _STACKS) -> NDArray[np.float32]:
    """A scorer's similarities of every stack of recordings."""
    return np.concatenate(
        [scorer.score(stacks) for recording in recordings for stacks in recording.batches(scorer, batch)]
    )


def speeds(
    scorers: Mapping[str, Scorer], recording: RecordedFrames, *, seconds: float = 3.0, stacks: int = _STACKS
) -> dict[str, Any]:
    """Frames per second of scorers on the same frames, in turns. Each has the median of its rounds.

    A frame stack counts as one frame: it is what a run scores at a step.
    """
    inputs = {name: next(recording.batches(scorer, stacks)) for name, scorer in scorers.items()}
    times: dict[str, list[float]] = {name: [] for name in scorers}
    for name, scorer in scorers.items():
        scorer.score(inputs[name])  # the first time is slower
    end = time.perf_counter() + seconds * len(scorers)
    while time.perf_counter() < end or min(map(len, times.values())) < _ROUNDS:
        for name, scorer in scorers.items():
            began = time.perf_counter()
            scorer.score(inputs[name])
            times[name].append(time.perf_counter() - began)
    count = len(next(iter(inputs.values())))
    return {
        "frames_per_second": {name: count / float(np.median(taken)) for name, taken in times.items()},
        "at_a_time": count,
        "frame": list(next(iter(inputs.values())).shape[1:3]),
        "threads": torch.get_num_threads(),
        "devices": {name: str(scorer.describe().get("device", "cpu")) for name, scorer in scorers.items()},
    }
