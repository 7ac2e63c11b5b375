"""Captions: facts in many wordings, drawn from the templates in `wordings.yaml`, some of them denied.

A denial is made from the wording of a fact: "is not in its lane", "does not keep to its lane", "it is not true that".
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

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import load_prompts, shipped_prompts
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer, split

_TRIES = 1000  # after which a wording is taken to be impossible
_CHOICE = re.compile(r"\{([^{}]*)\}")
_PART = re.compile(r"<(\w+)>")
_DENIALS = frozenset({"cannot", "hardly", "nor", "not", "no", "nothing", "never", "none", "nowhere", "or", "without"})
"""A wording with one of these is not denied: denying a denial, or one of two alternatives, is not simple."""
_PARTICIPLES = frozenset({
    "been", "hit", "struck", "crashed", "collided", "bumped", "rammed", "left", "gone", "departed", "crossed",
    "stopped", "entered", "driven", "touched", "run", "almost", "nearly",
})  # fmt: skip
_VERB = re.compile(r"[a-z]{3,}s")
_NOT_TRUE = ("it is not true that", "it is not the case that", "it is false that")
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


@functools.cache
def joined() -> dict[tuple[str, str], tuple[str, ...]]:
    """Templates, as whole sentences, that state two facts at once without a word that joins them."""
    subject = _whole("<subject>")
    return {
        tuple(facts.split(" and ")): tuple(f"{subject} {_whole(template)}" for template in own)
        for facts, own in _wordings()["joined"].items()
    }


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
    for _ in range(_TRIES):
        text = choices[int(rng.integers(len(choices)))]
        while _CHOICE.search(text):
            text = _CHOICE.sub(lambda found: str(rng.choice(found[1].split("|"))), text)
        text = " ".join(text.split())
        if allowed(text):
            return text
    raise _no_caption(choices[0])


def _no_caption(about: str) -> InputError:
    return InputError(
        f"no caption can be made of '{about}': every wording of it contains a prompt or a held-out sentence, or cannot "
        "be denied; add other wordings"
    )


def allowed(text: str) -> bool:
    """Whether a caption may be drawn: it holds no wording that is kept for measuring."""
    return not any(wording in text for wording in reserved())


def denied(predicate: str) -> str | None:
    """A predicate denied, or None where that is not simple.

    >>> denied("is in its lane"), denied("keeps to its lane"), denied("has room"), denied("has no room")
    ('is not in its lane', 'does not keep to its lane', 'does not have room', None)
    """
    first, _, rest = predicate.partition(" ")
    if not _DENIALS.isdisjoint(predicate.split()) or not rest:
        return None
    if first in ("is", "will", "can"):
        return f"{first} not {rest}"
    if first == "has":
        return f"has not {rest}" if rest.split()[0] in _PARTICIPLES else f"does not have {rest}"
    return f"does not {_base(first)} {rest}" if _VERB.fullmatch(first) else None


def _base(verb: str) -> str:
    """The base of a verb in the third person.

    >>> _base("crosses"), _base("goes"), _base("faces")
    ('cross', 'go', 'face')
    """
    return verb.removesuffix("es") if verb.endswith(("sses", "ches", "shes", "oes")) else verb.removesuffix("s")


def caption(fact: str, rng: np.random.Generator, *, deny: bool = False) -> str:
    """One wording of a fact, or of its contrary."""
    if not deny:
        return _draw(templates(fact), rng)
    for _ in range(_TRIES):
        if rng.random() < 0.2:
            text = f"{_NOT_TRUE[int(rng.integers(len(_NOT_TRUE)))]} {_draw(templates(fact), rng)}"
            wording = text if _DENIALS.isdisjoint(text.split()[4:]) else None
        else:
            subject, predicate = _draw((_whole("<subject>"),), rng), _draw(predicates(fact), rng)
            wording = (found := denied(predicate)) and f"{subject} {found}"
        if wording is not None and allowed(wording):
            return wording
    raise _no_caption(fact)


def joined_caption(facts: tuple[str, str], rng: np.random.Generator) -> str:
    """One wording that states two facts at once."""
    return _draw(joined()[facts], rng)


def joint_caption(
    first: str, second: str, word: str, rng: np.random.Generator, *, deny: tuple[bool, bool] = (False, False)
) -> str:
    """Two facts in one sentence, joined by `and` or `or`; the second part has its own subject or none.

    Either may be denied. A denied second part may be shortened, as in "turns and not in line with the lane".
    """
    for _ in range(_TRIES):
        begin = caption(first, rng, deny=deny[0])
        if not deny[1]:
            rest: str | None = _draw(predicates(second) if rng.random() < 0.7 else templates(second), rng)
        else:
            rest = denied(_draw(predicates(second), rng))
            if rest is not None and rng.random() < 0.5:
                rest = rest.removeprefix("is ")
        text = f"{begin} {word} {rest}"
        if rest is not None and allowed(text):
            return text
    raise _no_caption(f"{first} {word} {second}")


def _deniable(fact: str) -> bool:
    """Whether some wording of a fact can be denied."""
    plain = [_CHOICE.sub(lambda found: found[1].split("|")[0], template) for template in predicates(fact)]
    return any(denied(" ".join(re.sub(r"[{}]", "", text).split())) for text in plain)


def deniable() -> tuple[str, ...]:
    """The facts that can be denied."""
    return tuple(fact for fact in _wordings()["predicates"] if _deniable(fact))


def vocabulary() -> tuple[str, ...]:
    """Every word that a caption can contain, in alphabetical order."""
    texts = [template for fact in _wordings()["predicates"] for template in templates(fact)]
    texts += [template for own in joined().values() for template in own]
    words = {word for text in texts for word in split(re.sub(r"[{|}]", " ", text))}
    bases = {_base(word) for word in words if _VERB.fullmatch(word)}
    more = {"and", "or", "not", "does", "have", *(word for text in _NOT_TRUE for word in split(text))}
    # A base is a word of its own only if the tokenizer would not take it for another form of a known word.
    known = Tokenizer(sorted(words | more))
    return tuple(sorted(words | more | {base for base in bases if known.find(base) is None and base in _verbs()}))


@functools.cache
def _verbs() -> frozenset[str]:
    """The bases of verbs that begin a predicate, which a denial may contain."""
    firsts = (
        word
        for fact in _wordings()["predicates"]
        for template in predicates(fact)
        for word in re.findall(r"[a-z]+", template.split("}")[0])
    )
    return frozenset(_base(word) for word in firsts if _VERB.fullmatch(word))
