"""The scorer that ships in the package. This file needs no torch, so `vlmsafe doctor` can use it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SHIPPED = Path(__file__).with_name("weights.safetensors")
"""The shipped model."""


def revision_of(path: Path) -> str:
    """Identifies weights by the first 12 digits of their file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def trained_in(path: Path) -> dict[str, int | None]:
    """The environments on which weights were trained, with their versions then, from the data.json beside them.

    Empty where there is no such file, or where it belongs to other weights.
    """
    data = path.with_name("data.json")
    if not data.exists():
        return {}
    values = json.loads(data.read_text())
    return dict(values["versions"]) if values["revision"] == revision_of(path) else {}
