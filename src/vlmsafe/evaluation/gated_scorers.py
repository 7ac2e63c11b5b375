"""Who looks on while a policy drives: scorers by name, each with the gate that its margins go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError
from vlmsafe.evaluation.plan import Plan, policy_shape
from vlmsafe.signals.calibration import Calibration
from vlmsafe.signals.gate import (
    GATES,
    AnyGate,
    Gate,
    ProbabilityGate,
)
from vlmsafe.signals.prompts import PromptSet, load_prompts, shipped_prompts
from vlmsafe.signals.scorers.api import InputKind, Inputs, Scorer, Similarities, check_scorer
from vlmsafe.signals.scorers.registry import DEFAULT_SCORER, ScorerName, make_scorer, parse_scorer
from vlmsafe.training.score import FrameScoring, score_named


@dataclass(frozen=True)
class Judge:
    """A scorer and what its similarities are to be read with."""

    scorer: Scorer
    gate: AnyGate = field(default_factory=Gate)
    """Makes kappa of its margins, or of its scores."""
    name: str = ""
    """As the user names it, such as clip:openai/clip-vit-base-patch32."""
    prompts: PromptSet | None = None
    """What it compares with, where it reads and where that is known."""

    def describe(self, prefix: str) -> dict[str, Any]:
        """What a reader of its columns wants to know, as plain values; `prefix` is what their names begin with."""
        return {
            "scorer": self.name or type(self.scorer).__name__,
            "prefix": prefix,
            "similarities": [
                {"column": f"{prefix}similarity_{i}", "group": group, "prompt": text}
                for i, (group, text) in enumerate(self._columns())
            ],
            "gate": {"kind": _kind(self.gate), **gate_levels(self.gate)},
            **({"model": model} if (model := self.scorer.describe()) else {}),
        }

    def _columns(self) -> list[tuple[str, str | None]]:
        positive, negative = self.scorer.groups
        groups = ["positive"] * positive + ["negative"] * negative
        texts = self.prompts.texts if self.prompts is not None else ()
        return list(zip(groups, texts if len(texts) == len(groups) else [None] * len(groups), strict=True))


def gate_levels(gate: AnyGate) -> dict[str, float | None]:
    """s and c of a gate that has them."""
    return {"scale": gate.scale, "centre": gate.centre} if isinstance(gate, Gate) else {"scale": None, "centre": None}


def _kind(gate: AnyGate) -> str:
    if isinstance(gate, Gate):
        return "prior-symmetric" if gate == Gate() else "calibrated"
    return "probability" if isinstance(gate, ProbabilityGate) else "off"


def judges_of(
    plan: Plan,
    scorers: Sequence[str],
    prompts: str | None,
    *,
    device: str = "auto",
    batch: int = 64,
    service: str = "",
) -> dict[str, Judge]:
    """Scorers by name; none is the run's own, or `embedded` where the run has no signal.

    Prompts are by default the run's own, or the environment's where it has none. The run's own scorer with its own
    prompts comes as the checkpoint has it: with its gate, and with what it has learnt. Every other one, and one whose
    run has no gate, has the prior-symmetric gate. A single judge is named '', several after the kind of their scorer.
    """
    signal = plan.run.config.signal
    own = None if signal.scorer == "none" else signal.scorer
    names = [parse_scorer(name).absolute for name in scorers or [own or DEFAULT_SCORER]]
    judges: dict[str, Judge] = {}
    for name in names:
        chosen = _prompts(plan, name, prompts)
        scorer = make_scorer(
            name,
            chosen,
            device=device,
            precision=signal.precision,
            batch=batch,
            observation=policy_shape(plan.checkpoint).observation,
            seed=(plan.run.config.seed,),
            service=service,
            service_wait=signal.service_wait,
        )
        gate: AnyGate = Gate()
        if str(name) == own and prompts is None:
            gate = _own_gate(plan)
            mark = "scorer."
            arrays = plan.checkpoint.arrays.items()
            scorer.load_state({key.removeprefix(mark): array for key, array in arrays if key.startswith(mark)})
        label = "" if len(names) == 1 else _label(name, judges)
        judges[label] = Judge(scorer, gate, str(name), chosen)
    return judges


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


def _own_gate(plan: Plan) -> AnyGate:
    """The run's gate as its checkpoint has it; the prior-symmetric one where it has none."""
    kind = plan.run.config.signal.gate
    if kind == "calibrated":
        return Calibration.from_dict(plan.checkpoint.values["calibration"]).gate
    return Gate() if kind == "off" else GATES[kind]


def _label(name: ScorerName, taken: Mapping[str, Judge]) -> str:
    """The scorer's kind, numbered from the second on: clip, clip2."""
    kind, number = name.kind.name.replace("-", "_"), 1
    while (label := kind if number == 1 else f"{kind}{number}") in taken:
        number += 1
    return label


class Bench(FrameScoring):
    """Several judges at work; those who look at frames score each block one after another, side by side."""

    def __init__(self, judges: Mapping[str, Judge]) -> None:
        super().__init__()
        self._scorers = {name: judge.scorer for name, judge in judges.items()}
        for scorer in self._scorers.values():
            check_scorer(scorer)
        self.looks: tuple[InputKind, ...] = tuple(dict.fromkeys(scorer.looks_at for scorer in self._scorers.values()))
        self._of_frames = [name for name, scorer in self._scorers.items() if scorer.looks_at == "frame"]
        self.frames = max([self._scorers[name].frames for name in self._of_frames], default=1)

    def score(self, inputs: NDArray[np.generic]) -> Similarities:
        parts = []
        for name in self._of_frames:
            newest = inputs[..., -3 * self._scorers[name].frames :]  # of the stack, as many frames as this one wants
            parts.append(_score(self._scorers[name], name, newest))
        return np.concatenate(parts, axis=1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        for scorer in self._scorers.values():
            scorer.close()

    def similarities(self, task: int, inputs: Mapping[InputKind, Inputs]) -> dict[str, Similarities]:
        """What each made of a task's scored steps; frames have come by themselves."""
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
    """A scorer that learns begins every task as it came, and leaves the trace as it came."""
    if not len(inputs):
        return np.empty((0, sum(scorer.groups)), np.float32)
    before = {key: array.copy() for key, array in scorer.state().items()}
    similarities = _score(scorer, name, inputs)
    scorer.load_state(before)
    return similarities
