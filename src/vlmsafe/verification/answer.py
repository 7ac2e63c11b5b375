"""What a verification returns: what was compared, where the run and its replay differ, and the surroundings of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vlmsafe.errors import EXIT_ERRORS, EXIT_WARNINGS

EPOCHS = 2
"""Epochs that are replayed at each end of a run unless a number is given."""


@dataclass(frozen=True)
class Mismatch:
    """One thing that is not as it should be."""

    epoch: int
    quantity: str
    """A column of the epoch's row such as episode_cost, or `episodes`, `state`, `row`, `rows`, `checkpoint`, ..."""
    text: str
    """The finding in words, without the epoch."""
    source: Literal["records", "computation"] = "records"
    """Whether the records were changed or do not fit together, or whether the run was computed otherwise."""
    in_run: Any = None
    in_replay: Any = None

    def __str__(self) -> str:
        return f"epoch {self.epoch}, {self.quantity}: {self.text}"


@dataclass(frozen=True)
class Replay:
    """Epochs that were computed again, one after another."""

    start: int
    """The epoch of the checkpoint that they began from; 0 is the start from the seed."""
    last: int
    """The last epoch that was compared."""

    def __str__(self) -> str:
        source = f"the checkpoint of epoch {self.start}" if self.start else "the seed"
        return f"{epochs_text(self.start + 1, self.last)} from {source}"


@dataclass(frozen=True)
class Surrounding:
    """A version or a property of the machine: in the run, and where it was replayed."""

    name: str
    in_run: str
    """If a resumed run has several values, all of them in order."""
    here: str

    @property
    def differs(self) -> bool:
        return self.in_run != self.here


@dataclass(frozen=True)
class Verification:
    """The result of `vlmsafe.verify`."""

    run: Path
    title: str
    """Method, environment and seed of the run."""
    epochs: int
    """Epochs that the run has recorded."""
    planned: int
    """Epochs that its settings ask for."""
    checkpoints: tuple[int, ...]
    """Epochs of the kept checkpoints that fit the settings and their rows."""
    replays: tuple[Replay, ...]
    differences: tuple[Mismatch, ...]
    """In the order of their epochs."""
    surroundings: tuple[Surrounding, ...]
    notes: tuple[str, ...] = ()
    """What was not compared, and why."""
    obstacle: str | None = None
    """Why epochs that should have been replayed could not be, if so."""

    @property
    def outcome(self) -> Literal["equal", "different", "not replayed"]:
        if self.differences:
            return "different"
        return "equal" if self.obstacle is None else "not replayed"

    @property
    def exit_code(self) -> int:
        return {"equal": 0, "different": EXIT_ERRORS, "not replayed": EXIT_WARNINGS}[self.outcome]

    @property
    def summary(self) -> str:
        """The outcome in one line."""
        if self.differences:
            others = len(self.differences) - 1
            more = f" (and {others} more)" if others else ""
            return f"different: {self.differences[0]}{more}"
        if self.obstacle is not None:
            return f"not replayed: {self.obstacle}"
        replayed = ", ".join(map(str, self.replays)) or "nothing was replayed, but the records fit together"
        return f"equal: {replayed}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"run": str(self.run), "outcome": self.outcome, "exit_code": self.exit_code}


def epochs_text(first: int, last: int) -> str:
    """
    >>> epochs_text(1, 3), epochs_text(4, 4)
    ('epochs 1 to 3', 'epoch 4')
    """
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def listed(names: Sequence[object], most: int = 5) -> str:
    """
    >>> listed(["networks", "optimiser", "window"]), listed(["networks"]), listed([1, 2, 3, 4], most=2)
    ('networks, optimiser and window', 'networks', '1, 2 and 2 more')
    """
    words = [*map(str, names[:most]), *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
