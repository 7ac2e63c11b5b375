"""What a scorer is: inputs of one kind in batches, one similarity per prompt out."""

from __future__ import annotations

import abc
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, VlmsafeError

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet

InputKind = Literal["frame", "observation", "hazard", "noise", "nothing"]
"""What a scorer looks at: a rendered frame, the raw observation, the simulator's hazard, random numbers, or nothing."""

Precision = Literal["float32", "bfloat16"]
"""Number format of a model."""

Rule = Literal["decoupled", "coupled", "clg", "yes-no", "novelty"]
"""How similarities become scores, see `vlmsafe.signals.rules`."""

ALL_RULES: tuple[Rule, ...] = get_args(Rule)
COSINE_RULES: tuple[Rule, ...] = ("decoupled", "coupled", "clg")
"""What cosines can be used with."""
YES_NO_RULES: tuple[Rule, ...] = ("yes-no", "decoupled")
"""What probabilities of an answer can be used with."""

SAME_MODEL = 5e-3
"""How far similarities of one picture may be apart: more than by another device, less than by another model."""

Inputs = NDArray[Any]
Similarities = NDArray[np.float32]


class Scorer(abc.ABC):
    """Similarities of a batch of inputs to the positive prompts and, after them, the negative ones."""

    looks_at: ClassVar[InputKind]
    rules: ClassVar[tuple[Rule, ...]]
    """The scoring rules its similarities can be used with."""
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    """What its similarities lie between: cosines by default, (0, 1) for probabilities."""

    calibrated: ClassVar[bool] = False
    """Whether its margins need a gate that was calibrated on them; otherwise the prior-symmetric one serves."""
    frames: int = 1
    """How many frames of a moment it wants, where it looks at frames, see `vlmsafe.signals.frame_stack`."""
    groups: tuple[int, int]
    """How many of the columns belong to positive and to negative prompts."""
    whole: bool = False
    """Whether it computes full batches only: then `begin` may be given parts of several askers at a time."""
    reentrant: bool = False
    """Whether several threads may score at a time; otherwise one thread does, always the same."""

    @abc.abstractmethod
    def score(self, inputs: Inputs) -> Similarities:
        """[N, ...] -> [N, positive + negative].

        Inputs are uint8 frames [N, height, width, 3], or [N, height, width, 3 frames] with the oldest first, float32
        observations [N, D], hazards [N] or dice [N, 2]. Called by two threads at a time only if `reentrant`.
        """

    def begin(self, parts: Sequence[tuple[Scorer, Inputs]]) -> Callable[[], list[Similarities]]:
        """Start to score parts for this scorer and others of its model, together at most a batch; what it returns gives
        the results. Inputs may change once they have been given. Called by one thread alone, unless `reentrant`."""
        found = [scorer.score(inputs) for scorer, inputs in parts]
        return lambda: found

    def with_prompts(self, prompts: PromptSet) -> Scorer | None:
        """A scorer that compares with other prompts by the same model in memory; None where there is nothing to share.

        May be called while another thread scores.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """What a reader of the run wants to know: model, revision, device, precision. Plain values."""
        return {}

    def notes(self, env: str | None = None) -> list[str]:
        """What the user should be told once, before anything of the environment `env`, if it has a name, is scored."""
        return []

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what it holds elsewhere, and of a thread that waits for it; scoring again takes hold again."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Whatever scoring changes, as named arrays; empty for a scorer that does not learn."""
        return {}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from `state`."""
        assert not arrays


def check_scorer(scorer: Scorer) -> None:
    """Refuse a scorer that says of itself what cannot be."""
    name = type(scorer).__name__
    looks_at, rules = getattr(scorer, "looks_at", None), getattr(scorer, "rules", ())
    if looks_at not in get_args(InputKind):
        raise InputError(f"the scorer {name} looks at {looks_at!r}; expected one of {', '.join(get_args(InputKind))}")
    if not rules or not set(rules) <= set(get_args(Rule)):
        raise InputError(f"the scorer {name} has the rules {rules!r}; expected some of {', '.join(get_args(Rule))}")
    groups = getattr(scorer, "groups", None)
    if not isinstance(groups, tuple) or len(groups) != 2 or min(groups) < 0 or groups[1] < 1:
        raise InputError(
            f"the scorer {name} has the groups {groups!r}; expected how many columns are positive and negative, "
            "such as (4, 4)"
        )
    if not isinstance(scorer.frames, int) or scorer.frames < 1:
        raise InputError(f"the scorer {name} wants {scorer.frames!r} frames of a moment; expected a number from 1 on")
    if looks_at == "frame" and scorer.state():
        # Blocks of several workers reach it in the order in which they come; what it learnt would depend on timing.
        raise InputError(f"the scorer {name} looks at frames and learns; only a scorer of observations may")


def check_frames(inputs: Any, frames: int = 1) -> None:
    """Refuse what is no batch of frames: a model would resize almost anything, and score it."""
    channels = 3 * frames
    if not isinstance(inputs, np.ndarray) or inputs.dtype != np.uint8 or inputs.shape[3:] != (channels,):
        came = f"{inputs.dtype} {list(inputs.shape)}" if isinstance(inputs, np.ndarray) else type(inputs).__name__
        raise InputError(f"expected frames as a uint8 array [N, height, width, {channels}], got {came}")
    if 0 in inputs.shape[1:3]:
        raise InputError(f"frames have no pixels: their shape is {list(inputs.shape[1:])}")


def check_options(batch: int, precision: str) -> None:
    """Refuse what no model of frames can be run with."""
    if batch < 1:
        raise InputError(f"a batch must hold at least one frame, got {batch}")
    if precision not in ("float32", "bfloat16"):
        raise InputError(f"unknown precision '{precision}'; known: float32, bfloat16")


class ScorerFailure(VlmsafeError):
    """A scorer raised while scoring, with its traceback for the log."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


def failure_of(name: str, error: BaseException) -> VlmsafeError:
    """What a scorer raised, as an error that names it; errors of ours stay what they are."""
    if isinstance(error, VlmsafeError):
        return error
    text = " ".join(str(error).split()) or "no message"
    details = "".join(traceback.format_exception(error))
    return ScorerFailure(f"the scorer '{name}' raised {type(error).__name__}: {text}", details)


def score_named(scorer: Scorer, name: str, inputs: Inputs) -> Similarities:
    """The scorer's similarities, with whatever it raises as an error that names it."""
    try:
        return score_checked(scorer, inputs)
    except VlmsafeError:
        raise
    except (Exception, SystemExit) as error:
        raise failure_of(name, error) from error


def score_checked(scorer: Scorer, inputs: Inputs) -> Similarities:
    """A scorer's similarities, with a clear error where they are not what a scorer promises."""
    return check_similarities(scorer, scorer.score(inputs), len(inputs))


def check_similarities(scorer: Scorer, found: Any, count: int) -> Similarities:
    """Refuse what cannot be the similarities of so many inputs."""
    similarities = np.asarray(found)
    expected, (low, high) = (count, sum(scorer.groups)), scorer.bounds
    name = type(scorer).__name__
    if similarities.shape != expected:
        raise InputError(
            f"the scorer {name} gave similarities of shape {similarities.shape} for {count} inputs and "
            f"{expected[1]} prompts; expected {expected}"
        )
    # A rounding error beyond the bounds is none of the user's.
    if count and (
        not np.isfinite(similarities).all() or similarities.min() < low - 1e-3 or similarities.max() > high + 1e-3
    ):
        raise InputError(
            f"the scorer {name} gave similarities from {similarities.min():.4g} to {similarities.max():.4g}; they must "
            f"lie between {low:g} and {high:g}"
        )
    return similarities.astype(np.float32, copy=False)
