"""The scorer that ships in the package. This file needs no torch, so `vlmsafe doctor` can use it."""

from __future__ import annotations

import hashlib
from pathlib import Path

SHIPPED = Path(__file__).with_name("weights.safetensors")
"""The shipped model."""


def revision_of(path: Path) -> str:
    """Identifies weights by the first 12 digits of their file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
