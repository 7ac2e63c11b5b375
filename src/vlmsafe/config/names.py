"""Settings under all names that users know: nested, dotted, and as on the command line.

>>> full_names({"scorer": "oracle", "signal.every": 4, "learner": {"gamma": 0.9}, "num-envs": 2})
{'signal': {'scorer': 'oracle', 'every': 4}, 'learner': {'gamma': 0.9}, 'num_envs': 2}
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import nested
from vlmsafe.errors import InputError


@functools.cache
def short_names() -> dict[str, str]:
    """The dotted name of every setting that the command line also takes under a shorter one, such as `scorer`."""
    return dict(_aliases(TrainConfig, ""))


def _aliases(kind: type, prefix: str) -> Iterator[tuple[str, str]]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for part in getattr(hint, "__metadata__", ()):
            for alias in getattr(part, "aliases", None) or ():
                yield alias.lstrip("-").replace("-", "_"), f"{prefix}{name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _aliases(hint, f"{prefix}{name}.")


def full_names(settings: Mapping[str, Any], source: str = "settings") -> dict[str, Any]:
    """The settings as the nested mappings of a configuration. Paths become texts, as they are in files."""
    found: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, value in _flat(settings, ""):
        full = short_names().get(name.replace("-", "_"), name.replace("-", "_"))
        inside = next((other for other in found if other == full or f"{other}.".startswith(f"{full}.")), None)
        inside = inside or next((other for other in found if f"{full}.".startswith(f"{other}.")), None)
        if inside is not None:
            raise InputError(f"{source}: '{given[inside]}' and '{name}' are one setting; give one of them")
        found[full], given[full] = value, name
    return nested(found)


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", os.fspath(value) if isinstance(value, os.PathLike) else value
