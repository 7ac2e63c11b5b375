"""What a scorer is: it takes inputs in batches and returns one similarity per prompt."""

from __future__ import annotations

import abc
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.io.source import SourceHash

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
"""The rules for cosines."""
YES_NO_RULES: tuple[Rule, ...] = ("yes-no", "decoupled")
"""The rules for probabilities of an answer."""

SAME_MODEL: dict[Precision, float] = {"float32": 5e-3, "bfloat16": 3e-2}
"""How far two similarities of one picture may differ, by precision: devices differ by less than this, models by more.
bfloat16 has three digits, and the probabilities of Qwen2-VL differ by up to 0.013 between batches of two sizes."""

GateKind = Literal["prior-symmetric", "calibrated", "probability"]
"""The gates that a scorer may have of its own, see `vlmsafe.signals.gate`."""

Inputs = NDArray[Any]
Similarities = NDArray[np.float32]


class Scorer(abc.ABC):
    """Gives the similarities of a batch of inputs to the positive prompts, followed by the negative ones.

    Subclass it to use your own model, and name it with `python:<module>:<class>`. `looks_at`, `rules`, `groups` and
    `score` are required.

    >>> import numpy as np, vlmsafe
    >>> class Brightness(vlmsafe.Scorer):
    ...     looks_at, rules = "frame", ("decoupled",)
    ...
    ...     def __init__(self, prompts):
    ...         self.groups = (1, 1)
    ...
    ...     def score(self, inputs):
    ...         light = inputs.mean(axis=(1, 2, 3)) / 127.5 - 1.0
    ...         return np.stack([light, -light], axis=1).astype(np.float32)
    >>> Brightness(None).score(np.full((1, 8, 8, 3), 255, np.uint8)).tolist()
    [[1.0, -1.0]]
    """

    looks_at: ClassVar[InputKind]
    """The kind of input that `score` gets."""
    rules: ClassVar[tuple[Rule, ...]]
    """The scoring rules its similarities can be used with."""
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    """The range of its similarities: that of cosines by default, (0, 1) for probabilities."""

    gate: ClassVar[GateKind] = "prior-symmetric"
    """The gate that suits its scores: that of CLIP's margins, one calibrated on frames, or one for probabilities."""
    frames: int = 1
    """How many frames it wants in a stack, if it looks at frames, see `vlmsafe.signals.frame_stack`."""
    frame_distance: int = 4
    """Steps between two frames of a stack. The paper scores every fourth step, so with its setting the earlier frame
    has been rendered already."""
    groups: tuple[int, int]
    """The number of columns of positive and of negative prompts."""
    whole: bool = False
    """Whether it computes full batches only; `begin` may then get parts for several clients at a time."""
    reentrant: bool = False
    """Whether several threads may score at a time; otherwise one thread does all the scoring."""
    source: SourceHash | None = None
    """The source of a scorer of the user's, set when it is loaded by name; None for those of this package."""

    @abc.abstractmethod
    def score(self, inputs: Inputs) -> Similarities:
        """[N, ...] -> [N, positive + negative].

        Inputs are uint8 frames [N, height, width, 3], or [N, height, width, 3 frames] with the oldest first, float32
        observations [N, D], hazards [N] or random numbers [N, 2]. Two threads call it at a time only if `reentrant`.
        """

    def begin(self, parts: Sequence[tuple[Scorer, Inputs]]) -> Callable[[], list[Similarities]]:
        """Start to score parts for this scorer and others of its model, at most a batch in all.

        The function that it returns gives the results; until it has, inputs must not change. Only one thread calls it,
        unless `reentrant`.
        """
        found = [scorer.score(inputs) for scorer, inputs in parts]
        return lambda: found

    def with_prompts(self, prompts: PromptSet) -> Scorer | None:
        """A scorer with other prompts and the same model in memory; None where there is nothing to share.

        It may be called while another thread scores.
        """
        return None

    def with_batch(self, batch: int) -> Scorer:
        """The scorer for batches of another size, with the same model in memory; most scorers take batches of any size.

        It may be called while another thread scores.
        """
        return self

    def describe(self) -> dict[str, Any]:
        """Model, revision, device, precision and the like, as plain values; a run records it."""
        return {}

    def notes(self, env: str | None = None) -> list[str]:
        """Warnings for the user, shown once before scoring; `env` is the environment's name, if it has one."""
        return []

    def bill(self) -> dict[str, float]:
        """What scoring has cost since the scorer was loaded, see `vlmsafe.signals.scorers.bill`; empty if nothing.

        A run records it, and no result depends on it.
        """
        return {}

    @property
    def uncached(self) -> Scorer:
        """The scorer that is asked where a cache does not know (`vlmsafe.signals.scorers.cache`)."""
        return self

    def close(self) -> None:  # noqa: B027 - most scorers hold nothing
        """Release what it holds in other processes, and end the wait of a thread that scores; scoring again reopens."""

    def state(self) -> dict[str, NDArray[Any]]:
        """What scoring changes, as named arrays; empty for a scorer that does not learn."""
        return {}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from `state`."""
        assert not arrays


def check_scorer(scorer: Scorer) -> None:
    """Refuse a scorer whose attributes are invalid."""
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
    if scorer.gate not in get_args(GateKind):
        raise InputError(
            f"the scorer {name} has the gate {scorer.gate!r}; expected one of {', '.join(get_args(GateKind))}"
        )
    if not isinstance(scorer.frames, int) or scorer.frames < 1:
        raise InputError(f"the scorer {name} wants stacks of {scorer.frames!r} frames; expected a number from 1 on")
    if not isinstance(scorer.frame_distance, int) or scorer.frame_distance < 1:
        raise InputError(
            f"the scorer {name} wants frames {scorer.frame_distance!r} steps apart; expected a number from 1 on"
        )
    if looks_at == "frame" and scorer.state():
        # Blocks of several workers reach it in the order of their arrival, so what it learns would depend on timing.
        raise InputError(f"the scorer {name} looks at frames and learns; only scorers of observations may")


def check_frames(inputs: Any, frames: int = 1) -> None:
    """Refuse anything but a batch of frames; a model would resize and score almost any array."""
    channels = 3 * frames
    if not isinstance(inputs, np.ndarray) or inputs.dtype != np.uint8 or inputs.shape[3:] != (channels,):
        came = f"{inputs.dtype} {list(inputs.shape)}" if isinstance(inputs, np.ndarray) else type(inputs).__name__
        raise InputError(f"expected frames as a uint8 array [N, height, width, {channels}], got {came}")
    if 0 in inputs.shape[1:3]:
        raise InputError(f"frames have no pixels: their shape is {list(inputs.shape[1:])}")


def check_options(batch: int, precision: str) -> None:
    """Refuse options that no model of frames accepts."""
    if batch < 1:
        raise InputError(f"a batch must hold at least one frame, got {batch}")
    if precision not in ("float32", "bfloat16"):
        raise InputError(f"unknown precision '{precision}'; known: float32, bfloat16")


class ScorerFailure(VlmsafeError):
    """A scorer raised an error while scoring; `details` has the traceback for the log."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


def failure_of(name: str, error: BaseException) -> VlmsafeError:
    """What a scorer raised, as an error that names the scorer; errors of this package stay as they are."""
    if isinstance(error, VlmsafeError):
        return error
    text = " ".join(str(error).split()) or "no message"
    details = "".join(traceback.format_exception(error))
    innermost = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" ({frame.filename}, line {frame.lineno}, in {frame.name})" for frame in innermost)
    return ScorerFailure(f"the scorer '{name}' raised {type(error).__name__}: {text}{place}", details)


def score_named(scorer: Scorer, name: str, inputs: Inputs) -> Similarities:
    """The scorer's similarities; anything that it raises becomes an error that names it."""
    try:
        return score_checked(scorer, inputs)
    except VlmsafeError:
        raise
    except (Exception, SystemExit) as error:
        raise failure_of(name, error) from error


def score_checked(scorer: Scorer, inputs: Inputs) -> Similarities:
    """A scorer's similarities, checked for shape and range."""
    return check_similarities(scorer, scorer.score(inputs), len(inputs))


def check_similarities(scorer: Scorer, found: Any, count: int) -> Similarities:
    """Refuse similarities of a wrong shape or outside the scorer's bounds."""
    similarities = np.asarray(found)
    expected, (low, high) = (count, sum(scorer.groups)), scorer.bounds
    name = type(scorer).__name__
    if similarities.shape != expected:
        raise InputError(
            f"the scorer {name} gave similarities of shape {similarities.shape} for {count} inputs and "
            f"{expected[1]} prompts; expected {expected}"
        )
    # Rounding may put a similarity slightly outside the bounds.
    if count and (
        not np.isfinite(similarities).all() or similarities.min() < low - 1e-3 or similarities.max() > high + 1e-3
    ):
        raise InputError(
            f"the scorer {name} gave similarities from {similarities.min():.4g} to {similarities.max():.4g}; they must "
            f"lie between {low:g} and {high:g}"
        )
    return similarities.astype(np.float32, copy=False)
