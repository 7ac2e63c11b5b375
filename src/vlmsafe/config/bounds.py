"""The values a setting may take, written in the type of its field and checked by one function.

>>> @dataclasses.dataclass
... class Example:
...     gamma: Share = 0.99
...     hidden: tuple[PositiveInt, ...] = (64, 64)
>>> list(out_of_bounds(Example(gamma=1.5, hidden=())))
['gamma is 1.5; it must lie between 0 and 1', 'hidden is (); it must name at least one value']
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints


@dataclass(frozen=True)
class Bounds:
    """A range of finite numbers."""

    low: float
    high: float = math.inf
    exclusive: bool = False
    """Whether the ends themselves are excluded."""

    def __contains__(self, value: Any) -> bool:
        if not math.isfinite(value):
            return False
        return self.low < value < self.high if self.exclusive else self.low <= value <= self.high

    def __str__(self) -> str:
        if math.isfinite(self.high):
            ends = ", both excluded" if self.exclusive else ""
            return f"it must lie between {self.low:g} and {self.high:g}{ends}"
        if math.isinf(self.low):
            return "it must be finite"
        return f"it must be finite and {f'greater than {self.low:g}' if self.exclusive else f'{self.low:g} or greater'}"


@dataclass(frozen=True)
class Pattern:
    """The texts that match a regular expression as a whole."""

    expression: str
    expected: str
    """The same in words, for the message."""

    def __contains__(self, value: Any) -> bool:
        return re.fullmatch(self.expression, value) is not None

    def __str__(self) -> str:
        return f"expected {self.expected}"


PositiveInt = Annotated[int, Bounds(0, exclusive=True)]
NonNegativeInt = Annotated[int, Bounds(0)]
Positive = Annotated[float, Bounds(0, exclusive=True)]
NonNegative = Annotated[float, Bounds(0)]
Finite = Annotated[float, Bounds(-math.inf)]
Share = Annotated[float, Bounds(0, 1)]
OpenShare = Annotated[float, Bounds(0, 1, exclusive=True)]


def out_of_bounds(config: Any, prefix: str = "") -> Iterator[str]:
    """One message per value of a configuration, and of its parts, that lies outside the bounds of its field.

    None, and words that a field allows instead of a number, have no bounds.
    """
    for name, limit in _limits(config.__class__).items():
        value, full_name = getattr(config, name), f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            yield from out_of_bounds(value, f"{full_name}.")
        elif limit is not None and value == ():
            yield f"{full_name} is (); it must name at least one value"
        elif limit is not None:
            checked: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
            of_its_kind = str if isinstance(limit, Pattern) else int | float
            if any(isinstance(entry, of_its_kind) and entry not in limit for entry in checked):
                shown = f"'{value}'" if isinstance(value, str) else value
                yield f"{full_name} is {shown}; {limit}"


@functools.cache
def _limits(kind: type) -> dict[str, Bounds | Pattern | None]:
    """The limit in the type of each field."""
    return {name: _limit_in(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _limit_in(hint: Any) -> Bounds | Pattern | None:
    """The limit that a type contains, also inside a union or a tuple."""
    if isinstance(hint, Bounds | Pattern):
        return hint
    inner = (*get_args(hint), *getattr(hint, "__metadata__", ()))
    return next((limit for entry in inner if (limit := _limit_in(entry)) is not None), None)
