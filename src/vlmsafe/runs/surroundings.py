"""What a run records about where it was made: versions, revision and hardware."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from vlmsafe import kernels

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
        "git_revision": _git_revision(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that results depend on."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _git_revision() -> str | None:
    """The revision of this package if it runs from a checkout, else None."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=10,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
