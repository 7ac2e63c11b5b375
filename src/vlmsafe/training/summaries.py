"""Figures of an epoch: one row per episode, one for the epoch, and the seconds its stages took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmsafe.learners.learner import Losses
from vlmsafe.runs.digest import PROGRESS
from vlmsafe.runs.tables import SUCCESS
from vlmsafe.signals.shaping import Shaped, path_means, path_sums
from vlmsafe.training.collect import Share

Row = dict[str, Any]


def episode_rows(epoch: int, shares: Sequence[Share], shaped: Shaped | None, ends: NDArray[np.int64]) -> list[Row]:
    """One row per episode begun in an epoch, in worker order; `ends` are the ends of their paths in the rollout."""
    rows = [
        {"epoch": epoch, "worker": worker, **episode}
        for worker, share in enumerate(shares)
        for episode in share.episodes
    ]
    if shaped is None:
        return rows
    return [row | figures for row, figures in zip(rows, _signal_figures(shaped, ends), strict=True)]


def _signal_figures(shaped: Shaped, path_ends: NDArray[np.int64]) -> Iterator[Row]:
    """The signal's figures of each episode.

    Scores are means over all steps; kappa and margin are means over the scored steps alone, None where an episode
    ended before its first.
    """
    signals = shaped.signals
    columns = {
        "bonus": path_sums(shaped.bonus, path_ends),
        "positive_score": path_means(signals.positive, path_ends),
        "negative_score": path_means(signals.negative, path_ends),
    }
    if shaped.excess is not None:
        columns["signal_excess"] = path_means(shaped.excess, path_ends)
    start = 0
    for path, end in enumerate(path_ends.tolist()):
        scored = np.flatnonzero(signals.scored[start:end]) + start
        yield {name: float(column[path]) for name, column in columns.items()} | {
            "kappa": float(signals.kappa[scored].mean()) if len(scored) else None,
            "margin": float(signals.margin[scored].mean()) if len(scored) else None,
            "scored": len(scored),
        }
        start = end


def finished_among(episodes: Sequence[Row]) -> list[Row]:
    """The episodes that ended by themselves; the end of a worker's share cut the others."""
    return [row for row in episodes if row["finished"]]


def mean_of(episodes: Sequence[Row], name: str, weight: str | None = None) -> float | None:
    """Mean of a figure over the episodes that have it, each counted once or by another of its figures.

    Eq. 6's mean negative score is this mean over an epoch's finished episodes. Its mean episode cost comes from
    `EpisodeWindow.mean`, because a run may average over more episodes than those of one epoch.
    """
    rows = [row for row in episodes if row.get(name) is not None]
    if not rows:
        return None
    return float(np.average([row[name] for row in rows], weights=[row[weight] for row in rows] if weight else None))


def progress_figures(episodes: Sequence[Row], passive_below: float | None) -> dict[str, float | None]:
    """How far an epoch's finished episodes got: means of the task's metrics, and shares of episodes.

    `arrived` and `arrived_without_cost` are shares where the environment says whether it arrived. `passive` is the
    share of episodes that cost nothing and return less than `passive_below`, where that is given.
    """
    finished = finished_among(episodes)
    metrics = dict.fromkeys(name for row in episodes for name in row.get(PROGRESS, ()))
    figures = {name: mean_of([row.get(PROGRESS, {}) for row in finished], name) for name in metrics}
    shares: list[Row] = [
        {
            SUCCESS[0]: row.get("arrived"),
            SUCCESS[1]: row["arrived"] and row["cost"] == 0.0 if "arrived" in row else None,
            "passive": None if passive_below is None else row["cost"] == 0.0 and row["return"] < passive_below,
        }
        for row in finished
    ]
    known = [*SUCCESS] if any("arrived" in row for row in episodes) else []
    known += ["passive"] if passive_below is not None else []
    return figures | {name: mean_of(shares, name) for name in known}


class EpisodeWindow:
    """The newest finished episodes, over which a run takes its mean cost J_C and its mean return."""

    COLUMNS = ("return", "cost", "length", "bonus")

    def __init__(self, size: int | Literal["epoch"]) -> None:
        self._one_epoch = size == "epoch"
        self._rows: deque[tuple[float, ...]] = deque(maxlen=None if size == "epoch" else size)

    def add(self, finished: Sequence[Row]) -> None:
        """Add the finished episodes of one epoch."""
        if self._one_epoch:
            self._rows.clear()
        self._rows.extend((row["return"], row["cost"], row["length"], row.get("bonus", 0.0)) for row in finished)

    def mean(self, column: str) -> float | None:
        place = self.COLUMNS.index(column)
        return float(np.mean([row[place] for row in self._rows])) if self._rows else None

    def array(self) -> NDArray[np.float64]:
        """Its rows, for a checkpoint."""
        return np.array(self._rows, np.float64).reshape(-1, len(self.COLUMNS))

    def load(self, array: NDArray[np.float64]) -> None:
        """Continue from `array`."""
        self._rows.extend(tuple(row) for row in array.tolist())


def epoch_row(
    epoch: int,
    steps: int,
    episodes: Sequence[Row],
    window: EpisodeWindow,
    multipliers: dict[str, float | None],
    losses: Losses,
    scored: bool,
    passive_below: float | None = None,
) -> Row:
    """The row of an epoch; `scored` says whether the run has a scorer and so a bonus."""
    finished = finished_among(episodes)
    env_return, bonus = window.mean("return"), window.mean("bonus") if scored else None
    reward_loss, cost_loss, signal_loss = (*losses.critic_losses, None, None, None)[:3]
    progress = progress_figures(episodes, passive_below)
    return {
        "epoch": epoch,
        "steps": steps,
        "episodes": len(finished),
        "env_return": env_return,
        "bonus": bonus,
        "shaped_return": None if env_return is None or bonus is None else env_return + bonus,
        "episode_cost": window.mean("cost"),
        "episode_length": window.mean("length"),
        "epoch_cost": mean_of(finished, "cost"),
        **multipliers,
        **{name: mean_of(finished, name) for name in ("positive_score", "negative_score", "signal_excess")},
        **{name: mean_of(episodes, name, weight="scored") for name in ("kappa", "margin")},
        "policy_loss": losses.policy_loss,
        "reward_critic_loss": reward_loss,
        "cost_critic_loss": cost_loss,
        "signal_critic_loss": signal_loss,
        "kl": losses.kl,
        "passes": losses.passes,
        "entropy": losses.entropy,
        **({PROGRESS: progress} if progress else {}),
    }


def epoch_notes(epoch: int, episodes: Sequence[Row], every: int, has_multiplier: bool) -> Iterator[str]:
    """What a user should know of an unusual epoch."""
    if not any(row.get("scored", 1) for row in episodes):  # a run without a scorer has no such figure
        yield (
            f"epoch {epoch}: nothing was scored; no episode lasts the {every} steps between two scored frames "
            "(--signal.every)"
        )
    if not finished_among(episodes):
        consequence = ", so the multiplier is unchanged" if has_multiplier else ""
        yield (
            f"epoch {epoch}: no episode finished{consequence}; "
            "a larger steps_per_epoch or fewer num_envs gives episodes time to end"
        )


class Clock:
    """Seconds spent in each stage of an epoch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._since, 4)
        self._since = now
