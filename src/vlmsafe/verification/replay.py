"""Compute epochs of a run again in a temporary folder, and compare each with what the run recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vlmsafe.config.learning import OFF_POLICY
from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import Interrupted
from vlmsafe.io.disk import make_directory
from vlmsafe.io.interrupts import StopRequest, stop_on_signals
from vlmsafe.learners.networks import POLICY
from vlmsafe.runs.checkpoint import Checkpoint, save_checkpoint, saved_epochs
from vlmsafe.runs.digest import COLUMN
from vlmsafe.runs.experience import copy_experience
from vlmsafe.runs.layout import ROW_FILES
from vlmsafe.runs.run import Row, Run
from vlmsafe.training.setup import set_up
from vlmsafe.training.trainer import Trainer
from vlmsafe.verification.answer import Mismatch, Replay, listed
from vlmsafe.verification.history import History, other_parts, reduced

_SEEN_ENOUGH = "the end of the replay"


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What a replay found."""

    replay: Replay
    difference: Mismatch | None
    """The first one."""
    absent: frozenset[str]
    """Columns that only the run's rows have, or only those of the replay: another version wrote them."""
    scorer: Mapping[str, Any]
    """The scorer as it describes itself here; empty without one."""


def replay(
    history: History,
    start: Checkpoint | None,
    until: int,
    folder: Path,
    *,
    service: str = "",
    on_steps: Callable[[int], None] = lambda steps: None,
) -> Replayed:
    """Train in `folder` from a checkpoint of the run, or from its seed, to the end of epoch `until`.

    The replay ends early at the first epoch after which the state differs, because all later ones would differ too.
    `on_steps` is told the environment steps that were made.
    """
    config = _config(history.run.config, make_directory(folder), service)
    prompts = history.run.prompts()
    with stop_on_signals() as stop:
        try:
            setup = set_up(config, prompts, stop)
            scorer = setup.scorer.describe() if setup.scorer is not None else {}
            run = Run.create(config, prompts, history.run.start())
            if start is not None:
                # The row files of the replay begin here; the checkpoint knows the sizes of the run's.
                values = start.values | {"row_files": dict.fromkeys(ROW_FILES, 0)}
                save_checkpoint(run.checkpoints, dataclasses.replace(start, values=values), config.checkpoint.keep)
                if config.learner.algorithm in OFF_POLICY:
                    copy_experience(history.run.path, run.path, start.epoch)
            watch = _Watch(history, run, until, stop, on_steps)
            attempts = {row["epoch"]: row["attempt"] for row in history.rows if "attempt" in row}
            Trainer(run, setup, watch, stop, attempts).train()
        except Interrupted:
            if stop.reason != _SEEN_ENOUGH:
                raise KeyboardInterrupt from None  # there is nothing to save or to continue
    first = 0 if start is None else start.epoch
    difference = watch.difference or _kept_policy(history, run, watch.seen)
    return Replayed(Replay(first, watch.seen), difference, frozenset(watch.absent), scorer)


def _kept_policy(history: History, run: Run, epoch: int) -> Mismatch | None:
    """Compare the policy of a checkpoint that was reduced to it with that of the replay."""
    kept = history.checkpoints.get(epoch)
    if kept is None or not reduced(kept) or epoch not in saved_epochs(run.checkpoints):
        return None
    replayed = run.checkpoint(epoch)[0].arrays["networks"][: POLICY + 1]
    if np.array_equal(kept.arrays["networks"], replayed):
        return None
    return Mismatch(epoch, "checkpoint", "its policy is not that of the replay, whose state is the one recorded")


def _config(config: TrainConfig, folder: Path, service: str) -> TrainConfig:
    """The run's settings; only its directory and the place of its scorer are others, which do not affect results."""
    signal = dataclasses.replace(config.signal, service=service)
    return dataclasses.replace(config, run_dir=folder, signal=signal).resolved()


class _Watch:
    """A display of the replay that compares each epoch when it is recorded, and stops the replay when it may end."""

    def __init__(
        self, history: History, run: Run, until: int, stop: StopRequest, on_steps: Callable[[int], None]
    ) -> None:
        self._history, self._run, self._until, self._stop, self._on_steps = history, run, until, stop, on_steps
        self._before = 0
        self.seen = 0
        self.difference: Mismatch | None = None
        self.absent: set[str] = set()

    def start(self, epoch: int) -> None:
        self._before = epoch * self._run.config.steps_per_epoch
        self.seen = epoch

    def steps(self, total: int) -> None:
        self._on_steps(total - self._before)

    def epoch(self, row: Mapping[str, Any]) -> None:
        history, self.seen = self._history, row["epoch"]
        recorded = history.rows[self.seen - 1]
        self.absent |= (recorded.keys() ^ row.keys()) - {COLUMN}
        own = history.episodes.get(self.seen, [])
        episodes = [one for one in self._run.rows("episodes") if one["epoch"] == self.seen]
        for one, other in zip(own, episodes, strict=False):
            self.absent |= {f"{name} of episodes" for name in one.keys() ^ other.keys()}
        state, found = history.state_after(self.seen), row[COLUMN]
        parts = other_parts(state, found)
        if self.difference is None:
            self.difference = (
                compare_rows(recorded, row, parts)
                or compare_episodes(self.seen, own, episodes, parts)
                or _state(self.seen, parts)
            )
        unknown = state is None and self.difference is not None
        if (parts or unknown or self.seen >= self._until) and not self._stop.requested:
            self._stop.reason = _SEEN_ENOUGH

    def note(self, text: str) -> None:
        pass  # notes on training are for those who train


def compare_rows(recorded: Row, replayed: Mapping[str, Any], parts: Sequence[str] = ()) -> Mismatch | None:
    """The first quantity of an epoch's row that differs. `parts` are those of the state that do."""
    names = [name for name in recorded if name != COLUMN and name in replayed and recorded[name] != replayed[name]]
    if not names:
        return None
    first, *others = names
    text = f"{recorded[first]} in the run, {replayed[first]} in the replay"
    if others:
        text += f" (others that differ: {listed(others)})"
    if parts or COLUMN not in recorded:
        return Mismatch(recorded["epoch"], first, text, "computation", recorded[first], replayed[first])
    text += "; the state after the epoch is equal, so the row was changed and not the training"
    return Mismatch(recorded["epoch"], first, text, "records", recorded[first], replayed[first])


def compare_episodes(
    epoch: int, recorded: Sequence[Row], replayed: Sequence[Row], parts: Sequence[str] = ()
) -> Mismatch | None:
    """The first quantity of an episode that differs, in an epoch whose row does not. `parts` are those of the state."""
    source: Literal["records", "computation"] = "computation" if parts else "records"
    for place, (one, other) in enumerate(zip(recorded, replayed, strict=False), 1):
        for name in one:
            if name in other and one[name] != other[name]:
                text = f"{name} of episode {place} is {one[name]} in the run, {other[name]} in the replay"
                return Mismatch(epoch, "episodes", text, source, one[name], other[name])
    if len(recorded) != len(replayed):
        text = f"{len(recorded)} in the run, {len(replayed)} in the replay"
        return Mismatch(epoch, "episodes", text, source, len(recorded), len(replayed))
    return None


def _state(epoch: int, parts: Sequence[str]) -> Mismatch | None:
    if not parts:
        return None
    text = f"all figures are equal, but the digests of {listed(parts)} differ"
    return Mismatch(epoch, "state", text, "computation")
