"""Prompt sets: what a scorer compares a frame with. They come from the package or from the user's YAML file.

A file has two lists. It may also describe each group, for a model that answers yes or no:

    positive:
      - the car has a clear road ahead
    negative:
      - the car is about to hit something
    descriptions:
      positive: safe driving conditions
      negative: driving danger or imminent collision
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vlmsafe.errors import InputError, unknown_name, yaml_errors

_FOLDER = resources.files("vlmsafe.signals") / "prompt_sets"
_GROUPS = ("positive", "negative")
_FORMER = ("safe driving conditions", "driving danger or imminent collision")


@dataclass(frozen=True)
class PromptSet:
    """Prompts for desirable states and for undesirable states."""

    positive: tuple[str, ...]
    negative: tuple[str, ...]
    positive_description: str = ""
    """The positive group in a few words, for a model that is asked one question per group; empty if it has none."""
    negative_description: str = ""
    """The negative group in a few words."""

    def __post_init__(self) -> None:
        for group in _GROUPS:
            prompts = getattr(self, group)
            if isinstance(prompts, str):  # it would be read as a list of letters
                raise InputError(f"the {group} group is one text; expected a list of prompts")
            object.__setattr__(self, group, tuple(prompts))
            if not prompts:
                raise InputError(f"the {group} group is empty; it needs at least one prompt")
            _check_texts((prompt, f"in the {group} group") for prompt in prompts)
        _check_unique((prompt, f"in the {group} group") for group in _GROUPS for prompt in getattr(self, group))

    @property
    def texts(self) -> tuple[str, ...]:
        """All prompts, positive ones first, in the order of a scorer's columns."""
        return self.positive + self.negative

    def to_dict(self) -> dict[str, Any]:
        """The set as in its YAML file."""
        descriptions = {"positive": self.positive_description, "negative": self.negative_description}
        known = {group: text for group, text in descriptions.items() if text}
        described = {"descriptions": known} if known else {}
        return {"positive": list(self.positive), "negative": list(self.negative), **described}

    def same_as(self, recorded: PromptSet) -> bool:
        """Whether a run that recorded its prompts began with these.

        Version 0.1.0 gave every set without descriptions the same two, and recorded them.
        """
        bare = recorded
        if (recorded.positive_description, recorded.negative_description) == _FORMER and not self.positive_description:
            bare = replace(recorded, positive_description="", negative_description="")
        return self in (recorded, bare)

    def require_descriptions(self, scorer: str) -> None:
        """Refuse to guess what a scorer is to ask about."""
        missing = [group for group in _GROUPS if not getattr(self, f"{group}_description")]
        if missing:
            raise InputError(
                f"the scorer '{scorer}' asks about each group of prompts by its description, and the {missing[0]} "
                "group has none; add it to the prompts: 'descriptions: {positive: ..., negative: ...}'"
            )

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.positive), len(self.negative)


def shipped_prompts() -> list[str]:
    """Names of the prompt sets in the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml"))


def load_prompts(name: str | Path) -> PromptSet:
    """A prompt set of the package, by name, or from a YAML file; a file name has a slash or ends in .yaml or .yml."""
    text = str(name)
    if "/" in text or text.endswith((".yaml", ".yml")):
        try:
            return parse_prompts(Path(name).read_text(encoding="utf-8"), text)
        except OSError as error:
            raise InputError(f"cannot read prompts from {text}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"{text} is not a text file in UTF-8") from None
    if text not in (known := shipped_prompts()):
        raise unknown_name("prompt set", text, [*known, "a path to a YAML file"])
    return parse_prompts((_FOLDER / f"{text}.yaml").read_text(encoding="utf-8"), f"{text}.yaml")


def parse_prompts(text: str, source: str) -> PromptSet:
    """Read a prompt set from YAML text; errors name `source` and the line."""
    with yaml_errors(source):
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        raise InputError(f"{source} is empty; expected a 'positive' and a 'negative' list of prompts")
    sections = _mapping(root, source, [*_GROUPS, "descriptions"])
    groups: dict[str, list[tuple[str, str]]] = {}
    for group in _GROUPS:
        if group not in sections:
            raise InputError(f"{source}: there is no '{group}' list; both a positive and a negative group are needed")
        node = sections[group]
        if not isinstance(node, yaml.SequenceNode):
            raise InputError(f"{_at(source, node)}: '{group}' must be a list of prompts, one '- prompt' per line")
        if not node.value:
            raise InputError(f"{_at(source, node)}: the {group} group is empty; it needs at least one prompt")
        groups[group] = [(_text(entry, source, f"a {group} prompt"), _at(source, entry)) for entry in node.value]
    entries = [entry for group in _GROUPS for entry in groups[group]]
    _check_texts(entries)
    _check_unique(entries)
    described: dict[str, str] = {}
    if "descriptions" in sections:
        for group, node in _mapping(sections["descriptions"], source, list(_GROUPS)).items():
            described[f"{group}_description"] = _text(node, source, f"the description of the {group} group")
            _check_texts([(described[f"{group}_description"], _at(source, node))])
    return PromptSet(
        tuple(prompt for prompt, _ in groups["positive"]),
        tuple(prompt for prompt, _ in groups["negative"]),
        **described,
    )


def _mapping(node: yaml.Node, source: str, known: list[str]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{_at(source, node)}: expected the keys {' and '.join(known)}")
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value)
        if name not in known:
            raise InputError(f"{_at(source, key)}: {unknown_name('key', name, known)}")
        if name in entries:
            raise InputError(f"{_at(source, key)}: '{name}' appears a second time")
        entries[name] = value
    return entries


def _text(node: yaml.Node, source: str, what: str) -> str:
    """A node's text; a bare `yes` or `3` is another type in YAML, and most likely a mistake."""
    value: Any = node.value
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
        shown = f", got {value}" if isinstance(node, yaml.ScalarNode) and value else ""
        raise InputError(f"{_at(source, node)}: {what} must be a text{shown}; put it in quotation marks")
    return str(value).strip()


def _at(source: str, node: yaml.Node) -> str:
    return f"{source}, line {node.start_mark.line + 1}"


def _check_texts(entries: Iterable[tuple[str, str]]) -> None:
    for prompt, where in entries:
        if not prompt.strip():
            raise InputError(f"{where}: a prompt is empty")


def _check_unique(entries: Iterable[tuple[str, str]]) -> None:
    """Refuse a prompt that appears twice: in one group it would count double, in both it would cancel itself."""
    first: dict[str, str] = {}
    for prompt, where in entries:
        key = " ".join(prompt.split()).casefold()
        if key in first:
            raise InputError(f"{where}: the prompt '{prompt}' appears twice (first: {first[key]})")
        first[key] = where
