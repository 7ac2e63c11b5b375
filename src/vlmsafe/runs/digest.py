"""The digest of a run's state after an epoch, part by part, as the epoch's row holds it.

It covers everything that decides how the run continues. A run keeps no state of random generators or environments:
each epoch draws from generators seeded by the run's seed and the epoch, and begins with a reset. So the arrays and
values of a checkpoint are the whole state. The digest depends on them alone, not on the format of a file, the order
of keys, the time or the machine. `tests/runs/test_digest.py` shows what changes it and what does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMN = "digest"
"""The digest's key in the row of an epoch."""
PROGRESS = "progress"
"""The key of the task's figures in the rows of an epoch and of an episode."""
RECORDS = ("row", "episodes", PROGRESS)
"""Parts about what the epoch recorded. All other parts are about the state after it."""
_PARTS = {
    "adam": "optimiser", "multiplier": "multipliers", "signal_multiplier": "multipliers", "scorer": "signal",
    "calibration": "signal", "probe": "signal",
}  # fmt: skip
"""The part that an array or a value belongs to, if it is not the first word of its own name."""
REDUCED = "reduced"
"""The key under which a checkpoint that was made smaller names the parts that are not whole."""
_NOT_STATE = frozenset({"trained", "shape", "origin", "row_files", "config", "prompts", REDUCED})
"""What a checkpoint holds for its readers: it follows from the settings and the epoch, or is compared by itself."""
_DIGITS = 16


def state_digest(arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each part of a run's state, given the arrays and values of a checkpoint.

    Two states are equal, bit for bit, exactly if all parts are. A value that is None counts as absent.
    """
    parts: dict[str, tuple[dict[str, NDArray[Any]], dict[str, Any]]] = {}
    for name, array in arrays.items():
        parts.setdefault(_part(name), ({}, {}))[0][name] = array
    for name, value in values.items():
        if name not in _NOT_STATE and value is not None:
            parts.setdefault(_part(name), ({}, {}))[1][name] = value
    return {part: content_digest(*parts[part])[:_DIGITS] for part in sorted(parts)}


def record_digest(row: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Digests of an epoch's row, apart from the digest that it holds, and of the rows of the epoch's episodes.

    Progress has a digest of its own, so that the others are equal to those of versions that recorded no progress.
    """
    parts: dict[str, Any] = {
        "row": {name: value for name, value in row.items() if name not in (COLUMN, PROGRESS)},
        "episodes": [{name: value for name, value in one.items() if name != PROGRESS} for one in episodes],
    }
    progress = [one[PROGRESS] for one in (row, *episodes) if PROGRESS in one]
    parts |= {PROGRESS: progress} if progress else {}
    return {name: content_digest({}, part)[:_DIGITS] for name, part in parts.items()}


def content_digest(arrays: Mapping[str, NDArray[Any]], values: Any) -> str:
    """SHA-256 of named arrays and of plain values; `values` may be the JSON text of them."""
    text = values if isinstance(values, str) else json.dumps(values, sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _part(name: str) -> str:
    word = name.partition(".")[0]
    return _PARTS.get(word, word)
