"""Every shipped study from end to end at a tiny scale, with its report.

    python tools/try_studies.py [--scale 0.01] [--scorer noise] [--root runs/tried] [NAME ...]

Runs `vlmsafe study run` and `vlmsafe study report` for each and prints how it went, and which of the paper's tables and
figures the report lacks. Calling it again continues. `noise` stands in for models that must be downloaded, because it
knows every rule. Exit code 1 if a study failed or its report lacks something.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from vlmsafe.studies.schema import load_study, shipped_studies


@dataclass(frozen=True)
class Options:
    """Try the shipped studies."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Studies; all by default."""
    scale: float = 0.01
    """By how much they shrink."""
    scorer: str = "noise"
    """What stands in for CLIP and Qwen2-VL."""
    root: Path = Path("runs/tried")
    """Where their runs go."""


def main() -> int:
    options = tyro.cli(Options)
    failed = []
    for name in options.names or shipped_studies():
        folder = options.root / load_study(name).varied(options.scale, options.scorer).title
        size = ("--scale", str(options.scale), "--scorer", options.scorer, "--root", str(options.root))
        begun = time.monotonic()
        for words in (("run", name, *size), ("report", str(folder))):
            answer = subprocess.run([sys.executable, "-m", "vlmsafe", "study", *words], capture_output=True, text=True)
            if answer.returncode != 0:
                break
        minutes = (time.monotonic() - begun) / 60
        if answer.returncode == 0:
            size_mb = (folder / "report.html").stat().st_size / 1e6
            lacking = [line for line in answer.stderr.splitlines() if line.startswith("not in it: ")]
            print(
                f"{name}: done in {minutes:.1f} minutes, report of {size_mb:.1f} MB", *lacking, sep="\n  ", flush=True
            )
            failed += [name] * bool(lacking)
        else:
            failed.append(name)
            print(f"{name}: study {words[0]} failed after {minutes:.1f} minutes:\n{answer.stderr}", flush=True)
    print(f"{len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
