"""What a run records about where it was made: versions, revision and hardware."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from vlmsafe import kernels
from vlmsafe.io.source import SourceHash, git_revision

_PACKAGES = (
    "vlmsafe", "numpy", "torch", "transformers", "gymnasium", "metadrive-simulator", "mujoco", "pybullet",
    "bullet-safety-gym",
)  # fmt: skip


def surroundings() -> dict[str, Any]:
    """Versions, revision and hardware, so that a reader knows what produced the numbers."""
    return {"started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), **code_and_machine()}


def code_and_machine() -> dict[str, Any]:
    """The surroundings without the time: a run that is resumed records them again."""
    return {
        "python": platform.python_version(),
        "packages": package_versions(),
        "kernels": kernels.in_effect(),
        "git_revision": git_revision(os.path.dirname(__file__)),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def source_record(source: Mapping[str, SourceHash]) -> dict[str, Any]:
    """The source of the user's own environment and scorer, as it is recorded; nothing if the run has neither."""
    return {"source": {part: one.to_dict() for part, one in source.items()}} if source else {}


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that results depend on."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
