"""Digests of short runs: equal on every machine, and under every difference between machines that can be emulated.

    python tools/digests.py [--only speeding formula-one] [--out here.json] [--against there.json]
    python tools/digests.py --emulate
    python tools/digests.py --arms --out before.json   # each method of the paper on MetaDrive Easy

Trains short runs, each with `vlmsafe train` in a process of its own, and prints one digest per run: of the rows of its
epochs, which hold digests of the networks and of all other state. The last digest is of the embedded scorer's scores of
random frames, for machines that have no simulator with frames. What is not installed is left out. Carry the file of
--out to another machine and give it as --against there.

With --emulate every run is trained again with what another machine could have in its environment: settings that make
each library take the code of another CPU, other numbers of threads, other hash seeds. With baseline kernels all digests
must be equal. With native kernels the other CPU must change every digest: otherwise the comparison could not fail.

Exit code 1 if digests differ that must be equal, or the reverse, or if there was nothing to compare.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe import kernels
from vlmsafe.config.methods import METHODS
from vlmsafe.runs.digest import COLUMN, PROGRESS
from vlmsafe.runs.surroundings import surroundings

_SMALL = "--total-steps 3000 --steps-per-epoch 1000"
_SHORT = "--total-steps 600 --steps-per-epoch 300 --num-envs 2 --learner.update-iters 10"
_SPARSE = "--signal.every 10 --signal.calibration.frames 40"
_SIGNAL = f"--method vlm-ppo-lag --scorer embedded {_SPARSE}"
RUNS = {
    "speeding, ppo-lag": f"--env speeding --method ppo-lag {_SMALL}",
    "speeding, cpo": f"--env speeding --method cpo {_SMALL}",
    "braking, cup": f"--env braking --method cup {_SMALL}",
    "formula-one, ppo-lag": f"--env formula-one-l1 --method ppo-lag {_SHORT}",
    "formula-one, embedded": f"--env formula-one-l1 {_SIGNAL} {_SHORT}",
    "metadrive, ppo-lag": f"--env metadrive-easy --method ppo-lag {_SHORT}",
    "metadrive, embedded": f"--env metadrive-easy {_SIGNAL} {_SHORT}",
    "bullet, ppo-lag": f"--env bullet-car-reach:four-steps --method ppo-lag {_SHORT}",
    "bullet, embedded": f"--env bullet-car-reach:four-steps {_SIGNAL} {_SHORT}",
}
ARMS = {
    name: f"--env metadrive-easy --method {name} {_SHORT}" + ("" if method.signal.scorer == "none" else f" {_SPARSE}")
    for name, method in METHODS.items()
    if method.signal.scorer != "qwen2-vl"  # whose weights are not in the package
}
"""A run of each method, to compare versions of the package."""
SCORES = "embedded scorer"
_SCORE = """
import vlmsafe, hashlib
import numpy as np
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer
frames = np.random.default_rng(1).integers(0, 256, (70, 256, 256, 6), np.uint8)
scores = EmbeddedScorer.load("", load_prompts("metadrive"), device="cpu").score(frames)
print(hashlib.sha256(scores.tobytes()).hexdigest()[:16])
"""
_OTHER_CPU = {
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "SSE4_2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD",
}
# What a run says where a simulator, its OpenGL or PyTorch is missing. Every other failure is one of the run.
_MISSING = re.compile(
    r"^error: (environment '\S+' needs the Python package '\S+', which is not installed;|.*cannot draw frames here:)"
    r"|^ModuleNotFoundError: No module named 'torch'$",
    re.MULTILINE,
)
DIFFERENCES: dict[str, dict[str, str]] = {
    "other CPU": _OTHER_CPU,
    "AVX-512": {"OPENBLAS_CORETYPE": "SkylakeX", "ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "1 thread": {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"},
    "2 threads": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "PYTHONHASHSEED": "2"},
    "4 threads": {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4", "MKL_NUM_THREADS": "3", "PYTHONHASHSEED": "3"},
}
"""What the environment of the program has, by its name."""
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Options:
    """Print digests of short runs."""

    only: tuple[str, ...] = ()
    """Beginnings of the names of runs; all runs by default."""
    arms: bool = False
    """Train a run of each method of the paper instead."""
    emulate: bool = False
    """Train each run again under every emulated difference."""
    out: Path | None = None
    """File to write the digests and the machine to."""
    against: Path | None = None
    """File of another machine to compare with."""


def digest_of(words: str, variables: Mapping[str, str], chosen: kernels.Kernels) -> str | None:
    """The digest of a run that is trained in such an environment; None if what it needs is not installed."""
    if words == _SCORE:
        if importlib.util.find_spec("torch") is None:
            return None
        environment = own_environment() | variables | ({} if chosen == "baseline" else {"VLMSAFE_KERNELS": chosen})
        scored = subprocess.run([sys.executable, "-c", words], env=environment, stdout=subprocess.PIPE, check=True)
        return scored.stdout.decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vlmsafe", "train", *words.split(), "--seed", "1", "--kernels", chosen]
        answer = subprocess.run(
            [*command, "--run-dir", folder, "--quiet"],
            env=own_environment() | variables,
            capture_output=True,
            text=True,
        )
        if answer.returncode:
            if _MISSING.search(answer.stderr):
                return None
            raise SystemExit(f"{' '.join(command)} failed:\n{answer.stderr}")
        return hashlib.sha256(_without_progress(Path(folder) / "epochs.jsonl")).hexdigest()[:16]


def _without_progress(path: Path) -> bytes:
    """The rows of epochs as versions wrote them that recorded no progress, so that their digests can be compared."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row.pop(PROGRESS, None)
        row[COLUMN].pop(PROGRESS, None)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def own_environment() -> dict[str, str]:
    """The environment in which this program was started, without what emulations set."""
    emulated = {name for variables in DIFFERENCES.values() for name in variables} - {"GLIBC_TUNABLES"}
    found = kernels.environment("native")
    return {name: value for name, value in found.items() if name not in emulated and "VLMSAFE" not in name}


def emulate(runs: Mapping[str, str]) -> bool:
    """Print how the digests of runs compare under emulated differences; whether all is as it must be."""
    table = Table("run", "kernels", "digest", *DIFFERENCES)
    good = True
    for name, words in runs.items():
        for chosen in ("baseline", "native"):
            first = digest_of(words, {}, chosen)
            if first is None:
                table.add_row(name, "", "not installed")
                break
            tried = DIFFERENCES if chosen == "baseline" else {"other CPU"}
            same = {what: digest_of(words, DIFFERENCES[what], chosen) == first for what in tried}
            good &= all(same.values()) if chosen == "baseline" else not same["other CPU"]
            table.add_row(name, chosen, first, *("equal" if equal else "differs" for equal in same.values()))
            print(f"{name}, {chosen}: {same}", file=sys.stderr)  # a table is printed when it is complete
    console.print(table)
    return good


def compare(digests: Mapping[str, str | None], path: Path) -> bool:
    """Print how the digests compare with another machine's; whether both have some, and these are equal."""
    there = json.loads(path.read_text())
    table = Table("run", "here", f"{there['machine']['processor']}", "")
    words = []
    for name, digest in digests.items():
        other = there["digests"].get(name)
        words.append("-" if None in (digest, other) else "equal" if digest == other else "differs")
        table.add_row(name, digest or "not installed", other or "not installed", words[-1])
    console.print(table)
    here, other = surroundings()["packages"], there["machine"]["packages"]
    for name in sorted(set(here) & set(other)):
        if here[name] != other[name]:
            console.print(f"{name} is {here[name]} here and {other[name]} there")
    if "equal" not in words and "differs" not in words:
        console.print("no run has a digest on both machines, so nothing was compared")
    return "equal" in words and "differs" not in words


def main() -> int:
    options = tyro.cli(Options)
    known = ARMS if options.arms else RUNS | {SCORES: _SCORE}
    runs = {name: words for name, words in known.items() if not options.only or name.startswith(options.only)}
    if reason := kernels.unavailable():
        console.print(reason)
        return 1
    machine = surroundings()
    console.print(f"{machine['processor']}, {machine['system']}, {os.cpu_count()} cores, Python {machine['python']}")
    console.print(", ".join(f"{name} {version}" for name, version in machine["packages"].items()))
    if options.emulate:
        return 0 if emulate(runs) else 1
    digests = {}
    for name, words in runs.items():
        digests[name] = digest_of(words, {}, "baseline")
        console.print(f"{digests[name] or 'not installed':<16}  {name}")
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": machine, "digests": digests}, indent=2))
    return 0 if options.against is None or compare(digests, options.against) else 1


if __name__ == "__main__":
    sys.exit(main())
