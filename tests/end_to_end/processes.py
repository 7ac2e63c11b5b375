"""Running the command line as a user's shell would."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "vlmsafe"]


def vlmsafe(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 600.0):
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=timeout,
    )


def start_vlmsafe(*arguments: str | Path, cwd: Path | None = None) -> "subprocess.Popen[str]":
    """Start a command and leave it running."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=cwd
    )
