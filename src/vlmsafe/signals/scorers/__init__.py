"""Scorers by name. A model and its libraries are imported only when one is asked for.

embedded                        the small model that ships in the package; embedded:<file> is one of your own making
clip:<model id or folder>       any CLIP or SigLIP checkpoint; clip alone is the paper's ViT-B/32
qwen2-vl:<model id or folder>   yes/no probabilities; qwen2-vl alone is the paper's 7B model
rnd                             novelty of the observation
constant:<value>                a control; constant:<positive>,<negative> sets the two scores apart
noise                           a control
oracle                          a control: the simulator's own hazard
python:<module>:<name>          your own: a callable that takes the PromptSet and returns a Scorer
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vlmsafe.errors import InputError, VlmsafeError, unknown_name
from vlmsafe.signals.scorers.api import (
    COSINE_RULES,
    YES_NO_RULES,
    Look,
    Rule,
    Scorer,
)

if TYPE_CHECKING:  # workers import this package too, and need no YAML
    from vlmsafe.signals.prompts import PromptSet

__all__ = ["Look", "Precision", "Rule", "Scorer", "ScorerName", "known_rules", "make_scorer", "parse_scorer"]

Precision = Literal["float32", "bfloat16"]

CLIP_DEFAULT = "openai/clip-vit-base-patch32"
QWEN2_VL_DEFAULT = "Qwen/Qwen2-VL-7B-Instruct"

# What may follow the colon, and what stands for it where nothing does; None: nothing may follow.
_ARGUMENTS: dict[str, tuple[str, str | None] | None] = {
    "embedded": ("<file>", ""),
    "clip": ("<model id or folder>", CLIP_DEFAULT),
    "qwen2-vl": ("<model id or folder>", QWEN2_VL_DEFAULT),
    "rnd": None,
    "constant": ("<value>", None),
    "noise": None,
    "oracle": None,
    "python": ("<module>:<name>", None),
}


@dataclass(frozen=True)
class ScorerName:
    """A scorer as the user names it, taken apart."""

    kind: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def is_model(self) -> bool:
        """Whether it is a model that compares frames with text; it needs prompts."""
        return self.kind in ("embedded", "clip", "qwen2-vl")

    @property
    def reads(self) -> bool:
        """Whether it may compare with text; the others have no use for prompts."""
        return self.is_model or self.kind == "python"

    @property
    def absolute(self) -> ScorerName:
        """The same scorer with a model's file or folder, if one is named, in full: a run may be resumed elsewhere."""
        if self.kind == "embedded" and self.argument:
            return ScorerName(self.kind, os.path.abspath(os.path.expanduser(self.argument)))
        if self.is_model and os.path.isdir(self.argument):
            return ScorerName(self.kind, os.path.abspath(self.argument))
        return self

    @property
    def gate(self) -> Literal["prior-symmetric", "calibrated"]:
        """What the gate 'auto' is; the prior-symmetric one was chosen for CLIP's margins, and `embedded` has others."""
        return "calibrated" if self.kind == "embedded" else "prior-symmetric"

    @property
    def large(self) -> bool:
        """Whether this is a large model such as ViT-L/14, whose gate the paper calibrates on ten times the frames."""
        return self.kind == "clip" and "large" in self.argument.lower()


def parse_scorer(text: str) -> ScorerName:
    """Take a scorer's name apart and fill in the default model."""
    kind, _, argument = text.partition(":")
    if kind not in _ARGUMENTS:
        raise unknown_name("scorer", kind, _ARGUMENTS)
    after = _ARGUMENTS[kind]
    if after is None:
        if argument:
            raise InputError(f"the scorer '{kind}' takes nothing after it, got '{argument}'")
        return ScorerName(kind)
    form, default = after
    if not argument and default is None:
        raise InputError(f"the scorer '{kind}' needs something after it: {kind}:{form}")
    return ScorerName(kind, argument or str(default))


def known_rules(name: ScorerName) -> tuple[Rule, ...] | None:
    """The rules of a scorer, as far as they can be told before it is loaded."""
    if name.kind in ("embedded", "clip"):
        return COSINE_RULES
    return YES_NO_RULES if name.kind == "qwen2-vl" else None


def make_scorer(
    name: ScorerName | str,
    prompts: PromptSet | None,
    *,
    device: str = "auto",
    precision: Precision = "float32",
    compile: bool = False,
    batch: int = 64,
    observation: int = 0,
    seed: tuple[int, ...] = (0,),
    service: str = "",
    service_wait: float = 120.0,
    give_up: Callable[[], bool] = lambda: False,
) -> Scorer:
    """Load a scorer. `observation` is the length of the vectors a scorer of observations will see.

    With the address of a scoring service, a scorer of frames is one that asks it; others stay in this process. Once
    `give_up` says so, the service is not waited for any longer.
    """
    from vlmsafe.signals.prompts import PromptSet

    name = parse_scorer(name) if isinstance(name, str) else name
    if prompts is None:
        if name.is_model:
            raise InputError(f"the scorer '{name}' compares frames with prompts; pass a prompt set's name or a file")
        prompts = PromptSet(("positive",), ("negative",))  # for the columns of one that compares with no text
    if compile and name.is_model and name.kind != "clip":
        raise InputError(f"compile is for the scorer 'clip'; drop it for '{name.kind}'")
    if service:
        from vlmsafe.signals.service.client import connect
        from vlmsafe.signals.service.spec import SHARED, ModelSpec, NotShared

        if name.kind in SHARED:
            with suppress(NotShared):  # one of the user's own that looks at something else
                spec = ModelSpec(str(name.absolute), device, precision, compile, batch)
                return connect(service, spec, prompts, service_wait, give_up)
    if name.kind == "embedded":
        from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

        return EmbeddedScorer.load(name.argument, prompts, device=device, precision=precision, batch=batch)
    if name.kind == "clip":
        from vlmsafe.signals.scorers.clip import ClipScorer

        return ClipScorer.load(name.argument, prompts, device=device, precision=precision, compile=compile, batch=batch)
    if name.kind == "qwen2-vl":
        from vlmsafe.signals.scorers.qwen2_vl import Qwen2VLScorer

        return Qwen2VLScorer.load(name.argument, prompts, device=device, precision=precision, batch=batch)
    if name.kind == "rnd":
        from vlmsafe.signals.scorers.rnd import RndScorer

        return RndScorer(observation, seed)
    if name.kind == "python":
        return _own_scorer(name.argument, prompts)
    from vlmsafe.signals.scorers import controls

    if name.kind == "constant":
        return controls.ConstantScorer(*_constants(name.argument))
    return controls.NoiseScorer() if name.kind == "noise" else controls.OracleScorer()


def _constants(argument: str) -> tuple[float, float]:
    try:
        values = [float(value) for value in argument.split(",")]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 2 or not all(0.0 <= value <= 1.0 for value in values):
        raise InputError(f"the scorer 'constant' takes one score in [0, 1], or two with a comma, got '{argument}'")
    return values[0], values[-1]


def _own_scorer(argument: str, prompts: PromptSet) -> Scorer:
    module, _, name = argument.partition(":")
    try:
        maker = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"cannot import the scorer 'python:{argument}': {error}") from None
    try:
        scorer = maker(prompts)
    except VlmsafeError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"'python:{argument}' raised {type(error).__name__}: {error}") from error
    if not isinstance(scorer, Scorer):
        raise InputError(
            f"'python:{argument}' gave a {type(scorer).__name__}; expected a vlmsafe.signals.scorers.Scorer"
        )
    return scorer
