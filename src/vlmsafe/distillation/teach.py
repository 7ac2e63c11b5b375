"""The teacher of a distillation: any scorer, which scores every recorded frame stack once.

A teacher gives one column per prompt, or one per group of prompts: the oracle and models that answer yes or no do the
latter. Each prompt of a group then has the column of its group.

The student gives cosines, from -1 to 1. A teacher with other bounds is mapped to them by the straight line that takes
its lower bound to -1 and its upper bound to 1: a probability p becomes 2 p - 1, and so does a hazard. The decoupled
rule takes a cosine u to (u + 1) / 2, so that the scores of a run are the teacher's own probabilities again.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.distillation.stacks import RecordedFrames, distance_of
from vlmsafe.envs.api import no_hazard
from vlmsafe.errors import InputError, RunError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import files_digest, write_atomically
from vlmsafe.signals.frame_stack import STEPS_APART
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Inputs, Scorer, check_scorer, score_named
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import KINDS, parse_scorer

_TEACHES = ("frame", "hazard", "observation")
_BATCH = 64  # inputs at a time that are no frames, or where a scorer names no number
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Teacher:
    """A loaded scorer with the prompts that it compares with."""

    name: str
    scorer: Scorer
    prompts: PromptSet

    @classmethod
    def load(
        cls,
        name: str,
        prompts: PromptSet,
        *,
        device: str = "auto",
        batch: int | None = None,
        endpoint: EndpointOptions | None = None,
    ) -> Teacher:
        """Load a scorer by name, and refuse one that has nothing to teach."""
        named = parse_scorer(name)
        if named.kind.learns or (named.kind.looks_at or "frame") not in _TEACHES:
            able = ", ".join(
                kind.name for kind in KINDS.values() if not kind.learns and (kind.looks_at or "frame") in _TEACHES
            )
            raise InputError(f"'{name}' scores no state as a teacher must; expected one of {able}")
        scorer = make_scorer(named, prompts, device=device, batch=batch, endpoint=endpoint)
        check_scorer(scorer)
        if scorer.looks_at not in _TEACHES or scorer.state():
            raise InputError(
                f"the teacher '{name}' learns or looks at {scorer.looks_at}; it must score frames or states"
            )
        if scorer.looks_at == "frame":
            distance_of(scorer)
        if scorer.groups not in (prompts.sizes, (1, 1)):
            raise InputError(
                f"the teacher '{name}' has {scorer.groups[0]} positive and {scorer.groups[1]} negative columns for "
                f"{prompts.sizes[0]} and {prompts.sizes[1]} prompts; expected one per prompt, or one per group"
            )
        return cls(str(named), scorer, prompts)

    @property
    def per_group(self) -> bool:
        """Whether it gives a column per group of prompts."""
        return self.scorer.groups != self.prompts.sizes

    @property
    def stack(self) -> int:
        """How many recorded frames its stacks reach back, with the newest one; at least the student's two."""
        if self.scorer.looks_at != "frame":
            return 2
        return max(2, 1 + (self.scorer.frames - 1) * distance_of(self.scorer) // STEPS_APART)

    @property
    def columns(self) -> tuple[str, ...]:
        """What each of its columns is about."""
        if not self.per_group:
            return self.prompts.texts
        positive, negative = self.prompts.positive_description, self.prompts.negative_description
        return (
            f"all positive prompts ({positive})" if positive else "all positive prompts",
            f"all negative prompts ({negative})" if negative else "all negative prompts",
        )

    @property
    def column_of(self) -> list[int]:
        """The column of each prompt."""
        positive, negative = self.prompts.sizes
        return [0] * positive + [1] * negative if self.per_group else list(range(positive + negative))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that its similarities depend on, as plain values."""
        about = self.scorer.describe()
        kept: dict[str, Any] = {name: about[name] for name in ("revision", "precision") if name in about}
        source = None if self.scorer.source is None else self.scorer.source.digest
        named = parse_scorer(self.name)
        files = files_digest(Path(named.absolute.argument)) if named.kind.path and named.argument else None
        return {"teacher": self.name, **kept, "source": source, "files": files, "prompts": self.prompts.to_dict()}

    def score(self, recording: RecordedFrames) -> Float32:
        """The similarities of every stack of a recording, [N, columns], from -1 to 1."""
        found = [self._similarities(inputs) for inputs in self._inputs(recording)]
        return np.concatenate(found) if found else np.empty((0, sum(self.scorer.groups)), np.float32)

    def _inputs(self, recording: RecordedFrames) -> Any:
        size = getattr(self.scorer, "batch", _BATCH)
        if self.scorer.looks_at == "frame":
            return recording.batches(self.scorer, size)
        values = recording.arrays["hazard" if self.scorer.looks_at == "hazard" else "observations"][recording.rows]
        if np.isnan(values).any():
            raise no_hazard(recording.env)
        return (values[start : start + size] for start in range(0, len(values), size))

    def _similarities(self, inputs: Inputs) -> Float32:
        return to_cosines(score_named(self.scorer, self.name, inputs), self.scorer.bounds)


def to_cosines(values: NDArray[Any], bounds: tuple[float, float]) -> Float32:
    """From a scorer's bounds to those of cosines, by a straight line.

    >>> to_cosines(np.array([0.0, 0.25, 1.0]), (0.0, 1.0)).tolist()
    [-1.0, -0.5, 1.0]
    """
    low, high = bounds
    if (low, high) == (-1.0, 1.0):
        return np.asarray(values, np.float32)
    return (2.0 * (np.asarray(values, np.float64) - low) / (high - low) - 1.0).astype(np.float32)


@dataclass(frozen=True)
class Lesson:
    """What a teacher said of a recording."""

    similarities: Float32
    """[N, columns], from -1 to 1."""
    seconds: float
    """How long it took, with the decoding of frames."""


def teach(teacher: Teacher, path: Path, folder: Path, should_stop: Callable[[], bool] = lambda: False) -> Lesson | None:
    """Have a recording scored, or read what was scored before; None if the work was to stop first.

    Similarities are kept in `folder`, one file per recording, so that no frame is scored twice.
    """
    kept = folder / path.name
    if not kept.exists():
        if should_stop():
            return None
        recording, began = RecordedFrames.read(path), time.perf_counter()
        similarities = teacher.score(recording)
        buffer = io.BytesIO()
        np.savez(buffer, similarities=similarities, seconds=time.perf_counter() - began)
        make_directory(folder)
        write_atomically(kept, buffer.getvalue())
    try:
        with np.load(kept) as file:
            return Lesson(file["similarities"], float(file["seconds"]))
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"the scores in {kept} are damaged ({error}); delete the file and run the command again"
        ) from None


def digest_of(values: Any) -> str:
    """Plain values in 12 letters."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
