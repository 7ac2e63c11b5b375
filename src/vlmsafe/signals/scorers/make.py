"""Make a scorer from its name: in this process or by asking a service, with its stack of frames, through a cache.

`registry` has the kinds and reads names; nothing there needs a model or prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import InputKind, Precision, Rule, Scorer
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.signals.scorers.loaders import Loading
from vlmsafe.signals.scorers.registry import KINDS, ScorerName, parse_scorer

if TYPE_CHECKING:  # settings are read without prompts, which need YAML
    from vlmsafe.signals.prompts import PromptSet

MOST_FRAMES = 16
"""The most frames in a stack. More would be a video, and a block of them would not fit into a service's messages."""


def make_scorer(
    name: ScorerName | str,
    prompts: PromptSet | None,
    *,
    device: str = "auto",
    precision: Precision | None = None,
    compile: bool = False,
    batch: int | None = None,
    observation: int = 0,
    seed: tuple[int, ...] = (0,),
    service: str = "",
    service_wait: float = 120.0,
    give_up: Callable[[], bool] = lambda: False,
    frames: int | None = None,
    frame_distance: int | None = None,
    endpoint: EndpointOptions | None = None,
    cache: str = "auto",
    cache_mb: int | None = None,
) -> Scorer:
    """Load a scorer. `observation` is the length of the vectors that a scorer of observations will see.

    `precision` and `batch` are by default the kind's own. `frames` is the number of frames in a stack, and
    `frame_distance` the number of steps between two of them; by default they are the scorer's own. With the address of
    a scoring service, a scorer of frames asks that service; other scorers stay in this process. A service, and an
    endpoint, which is asked as `endpoint` says, are waited for until `give_up` returns True. `cache` is 'auto', 'off'
    or the file in which scores of frames are kept, up to `cache_mb` megabytes.
    """
    name = parse_scorer(name) if isinstance(name, str) else name
    if name.kind.shuffles:
        raise InputError(
            f"the scorer '{name}' is for training runs, where an episode gets the scores of another one; use "
            f"'{name.unshuffled}', whose scores they are"
        )
    if precision is None or batch is None or frames is not None:
        name = name.settle()
    kind = name.kind
    precision = kind.precision if precision is None else precision
    batch = kind.batch if batch is None else batch
    prompts = _some_prompts(name, prompts)
    check_stack(name, frames, frame_distance)
    loading = Loading(
        name.argument, prompts, device, precision, compile, batch, observation, seed, frames or 1,
        endpoint or EndpointOptions(), give_up,
    )  # fmt: skip
    stack = frames if kind.frames == "any" else None
    scorer = _with_stack(_loaded(name, loading, stack, service, service_wait), name, frames, frame_distance)
    if scorer.looks_at != "frame" or cache == "off" or (cache == "auto" and not kind.cached):
        return scorer
    from vlmsafe.signals.scorers.cache import with_cache

    return with_cache(scorer, name, loading, cache, cache_mb)


def _loaded(name: ScorerName, loading: Loading, stack: int | None, service: str, service_wait: float) -> Scorer:
    """A scorer of a service, or of this process."""
    kind, compile = name.kind, loading.compile
    if compile and kind.needs_prompts and not kind.compiles:
        able = " and ".join(f"'{one.name}'" for one in KINDS.values() if one.compiles)
        raise InputError(f"compile is for the scorer {able}; drop it for '{kind.name}'")
    if service and kind.shared:
        from vlmsafe.signals.service.client import connect
        from vlmsafe.signals.service.spec import ModelSpec, NotShared

        with suppress(NotShared):  # a scorer of the user's that looks at something else
            spec = ModelSpec(str(name.absolute), loading.device, loading.precision, compile, loading.batch, stack)
            return connect(service, spec, loading.prompts, service_wait, loading.give_up)
    return kind.load(loading)


def check_stack(name: ScorerName, frames: int | None, frame_distance: int | None) -> None:
    """Refuse a stack that a kind does not look at. What only the loaded scorer knows, `make_scorer` checks."""
    own = name.kind.frames
    if frames is None and frame_distance is None:
        return
    if frames is not None and not 1 <= frames <= MOST_FRAMES:
        raise InputError(f"frames is {frames}; a scorer gets from 1 to {MOST_FRAMES} frames at a time")
    if frame_distance is not None and frame_distance < 1:
        raise InputError(f"frame_distance is {frame_distance}; frames are at least 1 step apart")
    if not name.kind.may_look_at_frames:
        raise InputError(f"the scorer '{name.kind.name}' looks at no frames; drop frames and frame_distance")
    if isinstance(own, int) and frames not in (None, own):
        raise _other_stack(name, f"{own} {'frame' if own == 1 else 'frames'} at a time, and frames is {frames}")
    if frame_distance is not None and (own == 1 or (own == "any" and frames in (None, 1))):
        raise InputError(
            f"frame_distance is {frame_distance}, but the scorer '{name.kind.name}' gets 1 frame at a time; "
            + ("drop frame_distance" if own == 1 else "set frames to 2 or more, or drop it")
        )


def stack_for(
    name: ScorerName, scorers: int, chosen: tuple[int | None, int | None], before: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    """`frames` and `frame_distance` for one of several scorers: the chosen ones, else those that it had `before`."""
    if chosen == (None, None):
        return before
    # Of several scorers some may look at a fixed number; a single one is told that it cannot look at another.
    return chosen if scorers == 1 or name.kind.frames == "any" else (None, None)


def _with_stack(scorer: Scorer, name: ScorerName, frames: int | None, frame_distance: int | None) -> Scorer:
    """The scorer, with the distance of its frames set where its kind takes any; otherwise checked to be its own."""
    if name.kind.frames == "any":
        scorer.frame_distance = frame_distance or scorer.frame_distance
        return scorer
    if frames not in (None, scorer.frames) or frame_distance not in (None, scorer.frame_distance):
        own, distance = scorer.frames, scorer.frame_distance
        wanted = f"frames is {own if frames is None else frames}"
        wanted += "" if frame_distance is None else f", frame_distance {frame_distance}"
        scorer.close()
        stack = "1 frame at a time" if own == 1 else f"{own} frames at a time, {distance} steps apart"
        raise _other_stack(name, f"{stack}, and {wanted}")
    return scorer


def _other_stack(name: ScorerName, clause: str) -> InputError:
    able = " or ".join(f"'{kind.name}'" for kind in KINDS.values() if kind.frames == "any")
    return InputError(
        f"the scorer '{name.kind.name}' looks at {clause}; drop frames, or use {able}, which takes any number"
    )


def look_up_scorer(
    name: str, prompts: PromptSet | None, endpoint: EndpointOptions | None = None
) -> tuple[InputKind | None, tuple[Rule, ...] | None]:
    """Check that a scorer can be had, without loading a large model.

    Returns what it looks at and its rules; None where only the loaded scorer can say.
    """
    named = parse_scorer(name).unshuffled
    kind = named.kind
    chosen = _some_prompts(named, prompts)
    loading = Loading(
        named.argument, chosen, "cpu", kind.precision, False, kind.batch, observation=1, seed=(0,),
        endpoint=endpoint or EndpointOptions(),
    )  # fmt: skip
    if kind.look_up is None:
        kind.load(loading).close()
        return kind.looks_at, kind.rules
    found = kind.look_up(loading)
    if found is None:
        return kind.looks_at, kind.rules
    return getattr(found, "looks_at", None), getattr(found, "rules", None)  # some set them when they are made


def _some_prompts(name: ScorerName, prompts: PromptSet | None) -> PromptSet:
    from vlmsafe.signals.prompts import PromptSet

    if prompts is None and name.kind.needs_prompts:
        raise InputError(f"the scorer '{name}' compares frames with prompts; pass a prompt set's name or a file")
    # One column per group, for scorers without text.
    return PromptSet(("positive",), ("negative",)) if prompts is None else prompts
