"""A study file as YAML with the line of each entry, so that errors name the file, the line and the entry."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from vlmsafe.config.names import short_names
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError, unknown_name, yaml_errors

Place = tuple[str | int, ...]
"""The way to an entry: keys of mappings and positions in lists."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Of studies and arms: it is also the name of a folder."""

_NOT_SETTINGS = {
    "env": "an entry of 'environments'", "method": "'method' of the arm", "seed": "'seeds'",
    "total_steps": "'total_steps' next to 'settings'", "run_dir": "nothing: a study decides where its runs go",
}  # fmt: skip


@dataclass(frozen=True)
class StudyFile:
    """Where the entries of a YAML document are, for checks of them."""

    source: str
    lines: Mapping[Place, int]

    def wrong(self, place: Place, message: str) -> InputError:
        """The error for an entry; an entry without a line gets the line of the entry that contains it."""
        while place not in self.lines:
            place = place[:-1]
        return InputError(f"{self.source}, line {self.lines[place]}: {message}")

    def mapping(self, value: Any, place: Place, known: Sequence[str] = ()) -> Mapping[str, Any]:
        """An entry that must be a mapping; if `known` is given, with no other keys."""
        what = f"'{place[-1]}'" if place else "a study"
        if not isinstance(value, Mapping):
            inside = f" with {', '.join(known)}" if known else ""
            raise self.wrong(place, f"{what} is {shown(value)}; expected a mapping{inside}")
        for key in value:
            if not isinstance(key, str):
                raise self.wrong((*place, key), f"{what} has the key {key!r}; expected a name")
            if known and key not in known:
                raise self.wrong((*place, key), str(unknown_name("entry", key, known)))
        return value

    def texts(self, value: Any, place: Place) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise self.wrong(place, f"'{place[-1]}' is {shown(value)}; expected a list of names")
        return tuple(value)

    def seeds(self, value: Any, place: Place) -> tuple[int, ...]:
        whole = isinstance(value, Sequence) and all(type(v) is int and v >= 0 for v in value)
        if not whole or not value:
            raise self.wrong(place, f"'{place[-1]}' is {shown(value)}; expected a list of whole numbers, 0 or greater")
        if len(set(value)) < len(value):
            raise self.wrong(place, f"'{place[-1]}' names a seed twice, which gives the same run: {shown(value)}")
        return tuple(value)

    def count(self, value: Any, place: Place) -> int:
        if type(value) is not int or value < 1:
            hint = " (write 1000000, not 1e6)" if isinstance(value, str | float) else ""
            raise self.wrong(place, f"'{place[-1]}' is {shown(value)}; expected a whole number above 0{hint}")
        return value


def read_document(text: str, source: str) -> tuple[Any, StudyFile]:
    """The content of a YAML text, and where its entries are."""
    with yaml_errors(source):
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    if root is None:
        raise InputError(f"{source} is empty; expected a study with name, question, environments and arms")
    lines: dict[Place, int] = {}
    _note_lines(root, (), lines, source)
    return document, StudyFile(source, lines)


def _note_lines(node: yaml.Node, place: Place, lines: dict[Place, int], source: str) -> None:
    """Note the line of every entry. An entry that appears twice is an error: YAML would silently take the second."""
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            _note_lines(entry, (*place, index), lines, source)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, key.value)
            if inner in lines:
                raise InputError(f"{source}, line {key.start_mark.line + 1}: '{key.value}' appears a second time")
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, source)


def setting_name(short: str) -> str:
    """The full dotted name of a setting that may be given by its short name."""
    return short_names().get(short.replace("-", "_"), short)


@cache
def known_settings() -> tuple[str, ...]:
    """The full names of all settings."""
    return tuple(flatten(to_dict(TrainConfig())))


def read_settings(given: Mapping[str, Any], place: Place, file: StudyFile) -> dict[str, Any]:
    """Settings under their full dotted names."""
    settings: dict[str, Any] = {}
    for short, value in flatten(given).items():
        inside: Place = (*place, short) if short in given else (*place, *short.split("."))
        key = setting_name(short)
        if key in settings:
            raise file.wrong(inside, f"'{short}' is '{key}', which appears a second time")
        settings[key] = value
        if key in _NOT_SETTINGS:
            raise file.wrong(inside, f"'{key}' is not a setting of a study; it is given by {_NOT_SETTINGS[key]}")
        if key not in known_settings():
            raise file.wrong(inside, str(unknown_name("setting", key, known_settings())))
    return settings


def shown(value: Any) -> str:
    """A value as an error quotes it."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
