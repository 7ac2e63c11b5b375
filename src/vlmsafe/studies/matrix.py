"""Matrices: an entry of a study's arms that stands for many arms, one for every combination of settings.

    control:
      method: vlm-ppo-lag
      matrix:
        signal.scorer: {constant: "constant:0.5", noise: noise}    # a setting: labels and values, or a list of values
        path: {bonus: {multiplier.signal_weight: 0.0}, term: {signal.reward_weight: 0.0}}    # labels and their settings
      name: "{path}-{signal.scorer}"

makes the arms bonus-constant, term-constant, bonus-noise and term-noise. Without `name` an arm is called after its
entry and its labels, such as control-constant-bonus.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vlmsafe.errors import unknown_name
from vlmsafe.studies.document import NAME, Place, StudyFile, known_settings, read_settings, setting_name, shown

MOST_ARMS = 256
"""Of one matrix. More are probably a mistake: each arm has runs on every environment with every seed."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]+")
_FIELD = re.compile(r"\{([^{}]*)\}")
_ENTRY = "arm"

Settings = Mapping[str, Any]
_Axis = dict[str, Settings]
"""The settings of each label."""


def combinations(
    entry: str, matrix: Any, template: Any, taken: Sequence[str], place: Place, file: StudyFile
) -> dict[str, Settings]:
    """The settings of each arm that a matrix makes, by the arm's name.

    `entry` is the key of the arm in the file, `template` its `name`, and `taken` are the settings that it gives
    elsewhere.
    """
    at = (*place, "matrix")
    axes = {axis: _axis(axis, given, (*at, axis), file) for axis, given in file.mapping(matrix, at).items()}
    if not axes:
        raise file.wrong(at, "'matrix' is empty; expected settings with a list of values each")
    _require_apart(axes, taken, at, file)
    count = math.prod(map(len, axes.values()))
    if count > MOST_ARMS:
        raise file.wrong(at, f"'matrix' makes {count:,} arms; at most {MOST_ARMS} are possible")
    pattern = _template(entry, template, axes, place, file)
    found: dict[str, Settings] = {}
    labels_of: dict[str, str] = {}
    for labels in itertools.product(*axes.values()):
        chosen = dict(zip(axes, labels, strict=True))
        name = _filled(pattern, {_ENTRY: entry, **chosen})
        words = ", ".join(f"{axis} {label}" for axis, label in chosen.items())
        if not NAME.fullmatch(name):
            raise file.wrong(
                (*place, "name"), f"the arm of {words} is called '{name}'; expected letters, digits, dots and dashes"
            )
        if name in found:
            raise file.wrong(
                (*place, "name"), f"two arms are called '{name}': {labels_of[name]}, and {words}; change 'name'"
            )
        found[name] = {key: value for axis, label in chosen.items() for key, value in axes[axis][label].items()}
        labels_of[name] = words
    return found


def _filled(pattern: str, parts: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda field: parts[field[1]], pattern)


def _axis(axis: str, given: Any, place: Place, file: StudyFile) -> _Axis:
    """One line of a matrix."""
    if isinstance(given, Mapping):
        return _labelled(axis, file.mapping(given, place), place, file)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise file.wrong(place, f"'{axis}' is {shown(given)}; expected a list of values, or labels with a value each")
    if not given:
        raise file.wrong(place, f"'{axis}' has no values; expected at least one")
    found: _Axis = {}
    for value in given:
        if not isinstance(value, str | int | float):
            raise file.wrong(
                place, f"'{axis}' has the value {shown(value)}, which names no arm; give labels: {{label: value}}"
            )
        label = _ILLEGAL.sub("-", str(value).lower() if isinstance(value, bool) else str(value))
        if label in found:
            raise file.wrong(
                place, f"'{axis}' has two values that are both labelled '{label}'; give labels: {{label: value}}"
            )
        found[label] = read_settings({axis: value}, place[:-1], file)
    return found


def _labelled(axis: str, given: Mapping[str, Any], place: Place, file: StudyFile) -> _Axis:
    """Labels with the values of a setting, or under any other name with settings."""
    if not given:
        raise file.wrong(place, f"'{axis}' has no labels; expected at least one")
    setting = setting_name(axis) in known_settings()
    found: _Axis = {}
    for label, value in given.items():
        if not NAME.fullmatch(label):
            raise file.wrong((*place, label), f"the label is '{label}'; expected letters, digits, dots and dashes")
        if setting:
            found[label] = read_settings({axis: value}, place[:-1], file)
        elif not isinstance(value, Mapping):
            raise file.wrong(
                (*place, label),
                f"'{axis}' is not a setting, so '{label}' needs settings of its own; got {shown(value)}",
            )
        else:
            found[label] = read_settings(file.mapping(value, (*place, label)), (*place, label), file)
    return found


def _require_apart(axes: Mapping[str, _Axis], taken: Sequence[str], place: Place, file: StudyFile) -> None:
    """Refuse a setting that is given twice: which one counts would be a guess."""
    by_setting = dict.fromkeys(taken, "'settings'")
    for axis, choices in axes.items():
        own = list(dict.fromkeys(key for settings in choices.values() for key in settings))
        twice = next((key for key in own if key in by_setting), None)
        if twice is not None:
            raise file.wrong(
                (*place, axis), f"'{twice}' is given by '{axis}' of the matrix and by {by_setting[twice]}; give it once"
            )
        by_setting |= dict.fromkeys(own, f"'{axis}' of the matrix")


def _template(entry: str, given: Any, axes: Mapping[str, _Axis], place: Place, file: StudyFile) -> str:
    """The pattern of the arms' names."""
    if given is None:
        return "-".join([entry, *(f"{{{axis}}}" for axis in axes)])
    at = (*place, "name")
    if not isinstance(given, str):
        raise file.wrong(at, f"'name' is {shown(given)}; expected text such as \"{{{next(iter(axes))}}}\"")
    for field in _FIELD.findall(given):
        if field not in (*axes, _ENTRY):
            raise file.wrong(at, str(unknown_name("part of a name", field, [*axes, _ENTRY])))
    return given
