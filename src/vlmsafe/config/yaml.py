"""Configurations as plain values and as YAML, with errors that name the setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
import yaml

from vlmsafe.errors import InputError, unknown_name

T = TypeVar("T")
# Ten times faster where PyYAML was built with libyaml. Reading a folder of runs is mostly reading configurations.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain values, ready for YAML."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value

    settings: dict[str, Any] = plain(msgspec.to_builtins(config, enc_hook=str))
    return settings


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, such as `learner.gamma`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn settings under dotted names into the nested mappings of a configuration.

    >>> nested({"signal.every": 4, "signal.gate": "off", "num_envs": 2})
    {'signal': {'every': 4, 'gate': 'off'}, 'num_envs': 2}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def from_dict(data: Mapping[str, Any], defaults: T, source: str) -> T:
    """`defaults` with the values of `data` put over them; unknown keys and wrong types are errors.

    `source` names where the values came from, for the message.
    """
    merged = _merge(defaults, data, source, "")
    try:
        return msgspec.convert(merged, type(defaults), dec_hook=lambda kind, value: kind(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError(f"{source}: {error}{_number_hint(str(error))}") from None


def _number_hint(error: str) -> str:
    """How to write a number that YAML reads as something else."""
    if "Expected `int`" in error and ("got `str`" in error or "got `float`" in error):
        return " (write whole numbers out, such as 1000000; YAML does not read 1e6 as one)"
    if "Expected `float" in error and "got `str`" in error:
        return " (YAML reads 1e-3 as text; write 1.0e-3)"
    return ""


def _merge(defaults: Any, data: Any, source: str, path: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        where = f" for '{path.rstrip('.')}'" if path else ""
        raise InputError(f"{source}: expected a mapping of settings{where}, got {type(data).__name__}")
    known = [f.name for f in dataclasses.fields(defaults)]
    merged = to_dict(defaults)
    hints = get_type_hints(type(defaults))
    for key, value in data.items():
        if key not in known:
            raise InputError(f"{source}: {unknown_name('setting', f'{path}{key}', [path + name for name in known])}")
        nested = dataclasses.is_dataclass(hints[key])
        merged[key] = _merge(getattr(defaults, key), value, source, f"{path}{key}.") if nested else value
    return merged


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not valid YAML: {error}") from None


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping in a YAML text; `source` names where it came from, for the message."""
    try:
        data = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise InputError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"{source}: expected a mapping of settings, got {type(data).__name__}")
    return data


def to_yaml(data: Mapping[str, Any]) -> str:
    """A mapping as YAML, in its own order."""
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True)
