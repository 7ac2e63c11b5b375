"""The scorers of a trace, each with the gate that turns its margins into kappa."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import InputError
from vlmsafe.evaluation.plan import Plan
from vlmsafe.signals.calibration import Calibration, run_gate
from vlmsafe.signals.frame_stack import joint_stack, part_of_stack, stack_of
from vlmsafe.signals.gate import AnyGate, Gate, UserGate, gate_levels, gate_name, uncalibrated
from vlmsafe.signals.prompts import PromptSet, load_prompts, shipped_prompts
from vlmsafe.signals.scorers.api import InputKind, Inputs, Scorer, Similarities, check_scorer, score_named
from vlmsafe.signals.scorers.make import make_scorer, stack_for
from vlmsafe.signals.scorers.registry import DEFAULT_SCORER, NO_SCORER, ScorerName, parse_scorer
from vlmsafe.training.score import FrameScoring


@dataclass(frozen=True)
class GatedScorer:
    """A scorer, its gate and its prompts."""

    scorer: Scorer
    gate: AnyGate = field(default_factory=Gate)
    """Turns margins, or scores, into kappa."""
    name: str = ""
    """As the user names it, such as clip:openai/clip-vit-base-patch32."""
    prompts: PromptSet | None = None
    """The texts it compares with; None if it reads none or they are not known."""

    def describe(self, prefix: str) -> dict[str, Any]:
        """A description of its columns as plain values. `prefix` is the beginning of their names."""
        frames = self.scorer.frames
        return {
            "scorer": self.name or type(self.scorer).__name__,
            "prefix": prefix,
            "similarities": [
                {"column": f"{prefix}similarity_{i}", "group": group, "prompt": text}
                for i, (group, text) in enumerate(self._columns())
            ],
            "gate": {"kind": gate_name(self.gate), **gate_levels(self.gate), **self._gate_source()},
            **({"frames": frames, "frame_distance": self.scorer.frame_distance} if frames > 1 else {}),
            **({} if self.prompts is None else {"prompts": self.prompts.to_dict()}),
            **({"model": model} if (model := self.scorer.describe()) else {}),
            **({"source": source.to_dict()} if (source := self.scorer.source) is not None else {}),
        }

    def _gate_source(self) -> dict[str, Any]:
        source = self.gate.source if isinstance(self.gate, UserGate) else None
        return {} if source is None else {"source": source.digest}

    def _columns(self) -> list[tuple[str, str | None]]:
        positive, negative = self.scorer.groups
        groups = ["positive"] * positive + ["negative"] * negative
        texts = self.prompts.texts if self.prompts is not None else ()
        return list(zip(groups, texts if len(texts) == len(groups) else [None] * len(groups), strict=True))


def default_scorers(config: TrainConfig, prompts: str | None) -> list[str]:
    """The scorers of a trace that names none: the run's own, else `embedded` if there are prompts for it.

    A run with `shuffled` is traced with the scorer whose scores it shuffles: a trace shows what a scorer sees.
    """
    if config.signal.scorer != NO_SCORER:
        return [str(parse_scorer(config.signal.scorer).unshuffled)]
    return [] if prompts is None and config.spec.prompts is None else [DEFAULT_SCORER]


def gated_scorers(
    plan: Plan,
    scorers: Sequence[str],
    prompts: str | None,
    *,
    device: str = "auto",
    batch: int | None = None,
    service: str = "",
    scorer_frames: int | None = None,
    frame_distance: int | None = None,
) -> dict[str, GatedScorer]:
    """Load scorers by name; without names those of `default_scorers`.

    Prompts are by default the run's own, or the environment's if the run has none. The run's own scorer with its own
    prompts is restored from the checkpoint, with its gate and with what it has learnt. Every other scorer has its own
    gate and the precision of its kind, and so has the scorer of a run without a gate. A gate that would be calibrated
    is the prior-symmetric one, because nothing calibrates it here. A single scorer has the label '', several are
    labelled by their kind. `scorer_frames` and `frame_distance` are for the scorers that take any number of frames; by
    default the run's own scorer looks at as many as in the run.
    """
    signal = plan.run.config.signal
    own = None if signal.scorer == NO_SCORER else str(parse_scorer(signal.scorer).unshuffled)
    names = [parse_scorer(name).absolute for name in scorers or default_scorers(plan.run.config, prompts)]
    loaded: dict[str, GatedScorer] = {}
    for name in names:
        chosen = _prompts(plan, name, prompts)
        trained = (signal.frames, signal.frame_distance) if str(name) == own else (None, None)
        frames, distance = stack_for(name, len(names), (scorer_frames, frame_distance), trained)
        scorer = make_scorer(
            name,
            chosen,
            device=device,
            precision=signal.precision if str(name) == own else None,
            batch=batch,
            observation=plan.checkpoint.shape.observation,
            seed=(plan.run.config.seed,),
            service=service,
            service_wait=signal.service_wait,
            endpoint=signal.endpoint,
            cache=signal.cache,
            cache_mb=signal.cache_mb,
            frames=frames,
            frame_distance=distance,
        )
        gate = uncalibrated(scorer.gate)
        if str(name) == own and prompts is None:
            gate = _own_gate(plan, gate)
            mark = "scorer."
            arrays = plan.checkpoint.arrays.items()
            scorer.load_state({key.removeprefix(mark): array for key, array in arrays if key.startswith(mark)})
        label = "" if len(names) == 1 else _label(name, loaded)
        loaded[label] = GatedScorer(scorer, gate, str(name), chosen)
    return loaded


def _prompts(plan: Plan, name: ScorerName, prompts: str | None) -> PromptSet | None:
    if not name.kind.takes_prompts:
        return None
    if prompts is not None:
        return load_prompts(prompts)
    if (own := plan.run.prompts()) is not None:
        return own
    if plan.spec.prompts is None:
        if not name.kind.needs_prompts:
            return None
        raise InputError(
            f"environment '{plan.spec.name}' has no prompts of its own; pass --prompts with a YAML file or one of "
            f"{', '.join(shipped_prompts())}"
        )
    return load_prompts(plan.spec.prompts)


def _own_gate(plan: Plan, otherwise: AnyGate) -> AnyGate:
    """The run's gate from the checkpoint, or another one if the run has no gate."""
    name, recorded = plan.run.config.signal.gate, plan.checkpoint.values["calibration"]
    if name == "off":
        return otherwise
    return run_gate(name, None if recorded is None else Calibration.from_dict(recorded))


def _label(name: ScorerName, taken: Mapping[str, GatedScorer]) -> str:
    """The scorer's kind, with a number from the second of a kind on: clip, clip2."""
    kind, number = name.kind.name.replace("-", "_"), 1
    while (label := kind if number == 1 else f"{kind}{number}") in taken:
        number += 1
    return label


class TraceScoring(FrameScoring):
    """Several scorers of one trace. Those that look at frames score each block of frames one after another."""

    def __init__(self, scorers: Mapping[str, GatedScorer]) -> None:
        super().__init__()
        self._scorers = {name: one.scorer for name, one in scorers.items()}
        for scorer in self._scorers.values():
            check_scorer(scorer)
        self.looks: tuple[InputKind, ...] = tuple(dict.fromkeys(scorer.looks_at for scorer in self._scorers.values()))
        self._of_frames = [name for name, scorer in self._scorers.items() if scorer.looks_at == "frame"]
        self.stack = joint_stack(stack_of(self._scorers[name]) for name in self._of_frames)

    def score(self, inputs: NDArray[np.generic]) -> Similarities:
        parts = []
        for name in self._of_frames:
            scorer = self._scorers[name]
            parts.append(_score(scorer, name, part_of_stack(inputs, self.stack, stack_of(scorer))))
        return np.concatenate(parts, axis=1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        for scorer in self._scorers.values():
            scorer.close()

    def similarities(self, task: int, inputs: Mapping[InputKind, Inputs]) -> dict[str, Similarities]:
        """Each scorer's similarities for the scored steps of a task. Frames were scored as they arrived."""
        found: dict[str, Similarities] = {}
        if self._of_frames:
            widths = [sum(self._scorers[name].groups) for name in self._of_frames]
            joined = np.concatenate([np.empty((0, sum(widths)), np.float32), *self.results(task)])
            found |= zip(self._of_frames, np.split(joined, np.cumsum(widths)[:-1], axis=1), strict=True)
        for name, scorer in self._scorers.items():
            if scorer.looks_at != "frame":
                found[name] = _score_and_forget(scorer, name, inputs[scorer.looks_at])
        return found


def _score(scorer: Scorer, name: str, inputs: NDArray[np.generic]) -> Similarities:
    return score_named(scorer, name or type(scorer).__name__, inputs)


def _score_and_forget(scorer: Scorer, name: str, inputs: Inputs) -> Similarities:
    """Score, then restore the scorer: one that learns starts every task in the same state."""
    if not len(inputs):
        return np.empty((0, sum(scorer.groups)), np.float32)
    before = {key: array.copy() for key, array in scorer.state().items()}
    similarities = _score(scorer, name, inputs)
    scorer.load_state(before)
    return similarities
