"""Score the frames of recorded traces anew.

A trace keeps pictures of its scored steps only. A scorer that wants a stack of frames gets the earlier ones
from among these pictures. If a frame that it wants was not kept, the trace is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from vlmsafe.errors import InputError
from vlmsafe.signals.frame_stack import Frame, StepsBack, stack_of
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import GateKind, Scorer, Similarities, check_scorer, score_named
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import ScorerName


def stacks(pictures: pl.DataFrame, stack: StepsBack) -> Iterator[Frame]:
    """The frame stack of each picture, see `vlmsafe.signals.frame_stack`."""
    from vlmsafe.io.images import decode  # here, because nothing else needs an image library

    held: dict[int, Frame] = {}
    of: int | None = None
    for episode, step, picture in pictures.select("episode", "step", "picture").iter_rows():
        if episode != of:
            held, of = {}, episode
        held = {at: frame for at, frame in held.items() if at >= step - stack[0]}
        held[step] = now = decode(picture)
        wanted = [step - back for back in stack]
        if lacking := [at for at in wanted if at > 0 and at not in held]:
            distance = stack[-2]
            raise InputError(
                f"the scorer looks at frames {_steps(distance)} apart, and the frame of step {lacking[-1]} of episode "
                f"{episode} was not kept; record the trace with --every {_divisors(distance)}"
            )
        yield np.concatenate([held.get(at, now) for at in wanted], axis=-1) if len(stack) > 1 else now


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _divisors(number: int) -> str:
    """The divisors of a number as words: the periods with which every frame that many steps back is kept."""
    *most, last = [str(one) for one in range(1, number + 1) if number % one == 0]
    return f"{', '.join(most)} or {last}" if most else last


def rescore(
    pictures: pl.DataFrame,
    scorer: Scorer,
    name: str,
    *,
    batch: int = 64,
    on_frames: Callable[[int], None] = lambda more: None,
) -> Similarities:
    """A scorer's similarities for recorded frames, [pictures, prompts]. `on_frames` is told how many more are done."""
    check_scorer(scorer)
    if scorer.looks_at != "frame":
        raise InputError(
            f"the scorer '{name}' looks at no frame ({scorer.looks_at}), so it cannot score recorded frames; record a "
            "new trace with it"
        )
    parts: list[Similarities] = [np.empty((0, sum(scorer.groups)), np.float32)]
    block: list[Frame] = []
    done = 0
    for stack in stacks(pictures, stack_of(scorer)):
        block.append(stack)
        if len(block) == batch or done + len(block) == len(pictures):
            parts.append(score_named(scorer, name, np.stack(block)))
            done += len(block)
            on_frames(len(block))
            block = []
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Rescored:
    """The scores of recorded frames under one prompt set."""

    similarities: Similarities
    groups: tuple[int, int]
    bounds: tuple[float, float]
    labels: tuple[tuple[str, str], ...]
    """The group and the text of each column."""
    gate: GateKind = "prior-symmetric"
    """The gate that suits the scorer."""


def takes_sets_together(name: ScorerName) -> bool:
    """Whether its similarity to a prompt is the same whichever other prompts there are: that of a cosine is."""
    return name.kind.compares == "prompts"


def rescore_sets(
    pictures: Sequence[pl.DataFrame],
    name: ScorerName,
    sets: Mapping[str, PromptSet],
    *,
    together: bool = True,
    device: str = "auto",
    batch: int | None = None,
    stack: tuple[int | None, int | None] = (None, None),
    endpoint: EndpointOptions | None = None,
    env: str | None = None,
    on_frames: Callable[[int], None] = lambda more: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> dict[str, Rescored]:
    """Score the frames of several traces, one after another, under every prompt set.

    A cosine scorer's similarity to a prompt does not depend on the other prompts. So all sets are joined, each prompt
    once, and every frame is embedded once. `together=False` scores set by set, as other scorers have to. `batch` is by
    default the scorer's own. `stack` has `frames` and `frame_distance` of `make_scorer`, and `endpoint` says how one is
    asked.
    """
    frames, distance = stack
    batch = name.kind.batch if batch is None else batch
    if together and takes_sets_together(name):
        places = _places(sets.values())
        texts = tuple(text for text, _ in places.values())
        scorer = make_scorer(
            name, PromptSet(texts[:1], texts[1:]), device=device, batch=batch, frames=frames, frame_distance=distance,
            endpoint=endpoint,
        )  # fmt: skip
        found = _noted(pictures, scorer, name, batch, env, on_frames, on_note)
        return {
            label: Rescored(
                found[:, [places[_key(text)][1] for text in one.texts]],
                one.sizes,
                scorer.bounds,
                _labels(one),
                scorer.gate,
            )
            for label, one in sets.items()
        }
    results: dict[str, Rescored] = {}
    for label, one in sets.items():
        scorer = make_scorer(
            name, one, device=device, batch=batch, frames=frames, frame_distance=distance, endpoint=endpoint
        )
        found = _noted(pictures, scorer, name, batch, env, on_frames, on_note)
        results[label] = Rescored(found, scorer.groups, scorer.bounds, _asked(name, scorer, one), scorer.gate)
    return results


def _noted(
    pictures: Sequence[pl.DataFrame],
    scorer: Scorer,
    name: ScorerName,
    batch: int,
    env: str | None,
    on_frames: Callable[[int], None],
    on_note: Callable[[str], None],
) -> Similarities:
    """The similarities of all frames, after the scorer's warnings; the scorer is closed."""
    try:
        for note in scorer.notes(env):
            on_note(note)
        return _all(pictures, scorer, name, batch, on_frames)
    finally:
        scorer.close()


def _all(
    pictures: Sequence[pl.DataFrame], scorer: Scorer, name: ScorerName, batch: int, on_frames: Callable[[int], None]
) -> Similarities:
    return np.concatenate([rescore(own, scorer, str(name), batch=batch, on_frames=on_frames) for own in pictures])


def _asked(name: ScorerName, scorer: Scorer, prompts: PromptSet) -> tuple[tuple[str, str], ...]:
    """What the columns of a scorer are of: its prompts, or, where it asks about a whole group, its description."""
    if scorer.groups == prompts.sizes and name.kind.compares != "descriptions":
        return _labels(prompts)
    positive, negative = scorer.groups
    return (("positive", prompts.positive_description or "positive"),) * positive + (
        ("negative", prompts.negative_description or "negative"),
    ) * negative


def _labels(prompts: PromptSet) -> tuple[tuple[str, str], ...]:
    return tuple([("positive", text) for text in prompts.positive] + [("negative", text) for text in prompts.negative])


def _key(text: str) -> str:
    """Prompts that differ only in case or spacing count as one, as within a prompt set."""
    return " ".join(text.split()).casefold()


def _places(sets: Iterable[PromptSet]) -> dict[str, tuple[str, int]]:
    """The text and the column of every prompt of all sets, each once, by its key."""
    places: dict[str, tuple[str, int]] = {}
    for one in sets:
        for text in one.texts:
            places.setdefault(_key(text), (text, len(places)))
    return places
