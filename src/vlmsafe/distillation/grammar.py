"""Captions: facts in many wordings, drawn from the templates in `wordings.yaml`.

Captions never contain the wordings of the shipped prompt sets or the held-out sentences, because the scorer is measured
on those. Their words occur in other sentences.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import resources
from typing import Any

import numpy as np
import yaml

from vlmsafe.signals.prompts import load_prompts, shipped_prompts
from vlmsafe.signals.scorers.embedded.tokenizer import split

_CHOICE = re.compile(r"\{([^{}]*)\}")
_PART = re.compile(r"<(\w+)>")
_SUBJECT = re.compile(r"^(?:the|our|this|a) (?:car|racecar|vehicle) ")


_own: ContextVar[dict[str, Any] | None] = ContextVar("own wordings", default=None)


@contextmanager
def using(wordings: Mapping[str, Any]) -> Iterator[None]:
    """Take wordings of the user's, as read by `own.read_wordings`, for as long as the context lasts.

    They are laid over the shipped ones, fact by fact, so that a file has only what differs. A fact that they word has
    no shipped wordings any more.
    """
    shipped = _shipped()
    merged = {**wordings, **{name: {**part, **wordings.get(name, {})} for name, part in shipped.items()}}
    for fact in wordings.get("predicates", {}):
        merged["sentences"][fact] = wordings.get("sentences", {}).get(fact, [])
    token = _own.set(merged)
    _forget()
    try:
        yield
    finally:
        _own.reset(token)
        _forget()


def _forget() -> None:
    """Drop what was computed from other wordings."""
    for value in list(globals().values()):
        if value is not _shipped and hasattr(value, "cache_clear"):
            value.cache_clear()


def own(section: str) -> Mapping[str, Any]:
    """A section that only wordings of the user's have, such as `prompts`; empty without them."""
    return dict((_own.get() or {}).get(section, {}))


def _wordings() -> dict[str, Any]:
    return _own.get() or _shipped()


@functools.cache
def _shipped() -> dict[str, Any]:
    text = resources.files("vlmsafe.distillation").joinpath("wordings.yaml").read_text(encoding="utf-8")
    held: dict[str, Any] = yaml.safe_load(text)
    return held


def _whole(template: str) -> str:
    """A template with its parts inserted."""
    while _PART.search(template):
        template = _PART.sub(lambda found: _wordings()["parts"][found[1]], template)
    return template


@functools.cache
def predicates(fact: str) -> tuple[str, ...]:
    """The templates of a fact that follow a subject."""
    return tuple(_whole(template) for template in _wordings()["predicates"].get(fact, ()))


@functools.cache
def templates(fact: str) -> tuple[str, ...]:
    """Every template of a fact, as whole sentences."""
    subject = _whole("<subject>")
    alone = tuple(_whole(template) for template in _wordings()["sentences"].get(fact, ()))
    return tuple(f"{subject} {predicate}" for predicate in predicates(fact)) + alone


def held_out() -> dict[str, tuple[str, ...]]:
    """Sentences for measuring, by the fact they state."""
    return {fact: tuple(texts) for fact, texts in _wordings()["held_out"].items()}


@functools.cache
def reserved() -> frozenset[str]:
    """The wordings kept for measuring, without their subject. A caption that contains one of them is drawn again."""
    prompts = [text for name in (*shipped_prompts(), *own("prompts").values()) for text in load_prompts(name).texts]
    kept = [*prompts, *(text for texts in held_out().values() for text in texts)]
    return frozenset(_SUBJECT.sub("", text) for text in kept)


def _draw(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    while True:
        text = choices[int(rng.integers(len(choices)))]
        while _CHOICE.search(text):
            text = _CHOICE.sub(lambda found: str(rng.choice(found[1].split("|"))), text)
        text = " ".join(text.split())
        if not any(wording in text for wording in reserved()):
            return text


def caption(fact: str, rng: np.random.Generator) -> str:
    """One wording of a fact."""
    return _draw(templates(fact), rng)


def joint_caption(first: str, second: str, word: str, rng: np.random.Generator) -> str:
    """Two facts in one sentence, joined by `and` or `or`; the second part has its own subject or none."""
    rest = predicates(second) if rng.random() < 0.7 else templates(second)
    while True:
        text = f"{caption(first, rng)} {word} {_draw(rest, rng)}"
        if not any(wording in text for wording in reserved()):
            return text


def vocabulary() -> tuple[str, ...]:
    """Every word that a caption can contain, in alphabetical order."""
    texts = [template for fact in _wordings()["predicates"] for template in templates(fact)]
    words = {word for text in texts for word in split(re.sub(r"[{|}]", " ", text))}
    return tuple(sorted(words | {"and", "or"}))
