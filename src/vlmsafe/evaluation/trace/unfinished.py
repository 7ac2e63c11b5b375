"""The finished episodes of an unfinished trace, so that the same command goes on after an interruption.

    traces/held-out.partial-<fingerprint>/
        plan.json                     what the episodes were recorded and scored with, for human readers
        00007-00007.parquet           the scored steps of a finished task, named after its first and last episode
        00007-00007-frames.parquet    its pictures, if they are kept

The fingerprint is over everything that the steps and scores depend on: the plan of the evaluation, the scorers with
their models, prompts, gates and states, and how steps are scored. A task is written once its last step is scored.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.evaluation.gated_scorers import GatedScorer
from vlmsafe.evaluation.plan import EpisodeTask, Plan
from vlmsafe.evaluation.resume import UnfinishedTable
from vlmsafe.runs.layout import frames_path
from vlmsafe.runs.tables import read_part, write_table
from vlmsafe.signals.scorers.api import Scorer


@dataclass(frozen=True, eq=False)
class TracedTask:
    """The scored steps of a finished task."""

    steps: pl.DataFrame
    """One row per step, with scores."""
    pictures: pl.DataFrame | None
    """The frames of the scored steps, by episode and step; None if they are not kept."""


class UnfinishedTrace(UnfinishedTable):
    """The finished episodes of one trace."""

    def __init__(
        self, table: Path, plan: Plan, scorers: Mapping[str, GatedScorer], named: bool, how: Mapping[str, Any]
    ) -> None:
        """`how` says how steps are scored. Only scorers that were `named`, and not passed, can be told apart later."""
        known = named and all(one.scorer.source is None or not one.scorer.source.unknown for one in scorers.values())
        identity = {
            **plan.identity,
            "trace": {
                **how,
                "indicators": bool(plan.spec.indicators),
                "scorers": {name: _identity(one) for name, one in scorers.items()},
                **({} if known else {"unknown": uuid.uuid4().hex}),
            },
        }
        super().__init__(table, identity, repeatable=known and plan.repeatable)
        self._frames = bool(how["frames"])

    def save(self, task: EpisodeTask, traced: TracedTask) -> None:
        """Write a finished task. Its steps are written last, because they say that it is finished."""
        path = self.file(task, ".parquet")
        if traced.pictures is not None:
            write_table(frames_path(path), traced.pictures)
        write_table(path, traced.steps)

    def load(self, task: EpisodeTask) -> TracedTask | None:
        """A task that an earlier process finished; None if there is none."""
        path = self.file(task, ".parquet")
        if not path.exists():
            return None
        return TracedTask(read_part(path), read_part(frames_path(path)) if self._frames else None)


def _identity(one: GatedScorer) -> dict[str, Any]:
    """What a scorer's scores depend on, as plain values."""
    description = one.describe("")
    # The address of a service is where a model runs, and a revision changes without the source.
    model = {name: value for name, value in description.get("model", {}).items() if name != "service"}
    source = one.scorer.source
    return {
        **description,
        "model": model,
        "source": None if source is None else source.digest,
        "state": _state_digest(one.scorer),
    }


def _state_digest(scorer: Scorer) -> str:
    """A digest of what a scorer has learnt; empty if it does not learn."""
    state = scorer.state()
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(state[name]).tobytes())
    return digest.hexdigest() if state else ""
