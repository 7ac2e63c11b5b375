"""Eight runs with one scoring service against eight with a scorer each: memory, throughput, and that results are equal.

    python benchmarks/service.py [--runs 8] [--blocks 2] [--block 64] [--rounds 2] [--precision bfloat16] [--json FILE]
    python benchmarks/service.py --device cuda --precision bfloat16 --compile --blocks 200

Every simulated run is a process that has imported torch, as a run has, and scores blocks of frames of 256 x 256 with
CLIP ViT-B/32 (random weights, made on the spot). Privately each holds the model and computes with its share of the
cores, at least one, as `vlmsafe study run` gives it; shared, one service does, with all cores. Memory is the
proportional set size of the kernel (PSS: pages that processes share are counted once in all): for private runs what a
process has after scoring beyond what it had before its scorer was made, added up; for the service all of its process,
torch included, and what the runs that ask it have beyond what they had before. On a GPU the memory that is compared is
the GPU's, all that is taken there. The two sides take turns, and medians are given. Ends with 1 where memory falls by
less than four times, or throughput falls.

In float32 on the CPU the libraries map the file of weights as it is, so that private scorers share its pages and gain
less by a service; bfloat16 is converted, and each then has its own. Rates need a machine with nothing else to do:
beside other work, eight processes get more of the cores than one. Frames per second of CPU time do not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

AIM_MEMORY = 4.0
PROMPTS = "metadrive"


def memory_of(process: int) -> float:
    """Proportional set size of a process in bytes."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def cpu_seconds(process: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def simulate_run(given: dict[str, Any]) -> None:
    """One run: says when it is ready, scores when it is told to, and stays until all have been measured."""
    import torch  # as every run does, for its policy

    from vlmsafe.signals.prompts import load_prompts
    from vlmsafe.signals.scorers.make import make_scorer

    torch.zeros(1)

    def step(content: Any) -> None:
        print(json.dumps(content), flush=True)
        sys.stdin.readline()

    dice = np.random.default_rng(given["seed"])
    drawn = [dice.integers(0, 256, (given["block"], 256, 256, 3), np.uint8) for _ in range(min(4, given["blocks"]))]
    blocks = [drawn[number % len(drawn)] for number in range(given["blocks"])]
    step("imported")
    before = memory_of(os.getpid())
    step("measured")
    scorer = make_scorer(
        f"clip:{given['model']}",
        load_prompts(PROMPTS),
        device=given["device"],
        precision=given["precision"],
        compile=given["compile"],
        batch=given["block"],
        service=given["service"],
    )
    scorer.score(blocks[0])
    step("warm")
    found = np.concatenate([scorer.score(block) for block in blocks])
    step({"digest": hashlib.sha256(found.tobytes()).hexdigest()})
    step({"before": before, "after": memory_of(os.getpid())})
    scorer.close()


class Runs:
    """Simulated runs that go through their steps together."""

    def __init__(self, options: argparse.Namespace, model: Path, service: str) -> None:
        given = {
            "block": options.block, "blocks": options.blocks, "model": str(model), "service": service,
            "precision": options.precision, "device": options.device, "compile": options.compile,
        }  # fmt: skip
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--as-run", json.dumps({**given, "seed": seed})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // options.runs))},
            )
            for seed in range(options.runs)
        ]  # fmt: skip

    def next(self) -> list[Any]:
        """Wait until all have come to the end of their step."""
        found = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("a simulated run died")
            found.append(json.loads(line))
        return found

    def go(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def close(self) -> None:
        for process in self.processes:
            process.communicate(timeout=120.0)


def gpu_memory() -> float:
    """Bytes taken on the GPU, by whomever."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return float(total - free)


def measure(options: argparse.Namespace, model: Path, shared: bool) -> dict[str, Any]:
    """Memory and frames per second of all runs together, and what they found."""
    from service_load import service

    taken = gpu_memory() if options.device == "cuda" else 0.0
    if not shared:
        return measure_runs(options, model, "", None, taken)
    with service() as (address, process):
        return measure_runs(options, model, address, process.pid, taken)


def measure_runs(
    options: argparse.Namespace, model: Path, service: str, server: int | None, taken: float
) -> dict[str, Any]:
    runs = Runs(options, model, service)
    for _ in ("imported", "measured"):
        runs.next()
        runs.go()
    runs.next()  # warm
    processes = [process.pid for process in runs.processes] + ([server] if server is not None else [])
    begun, computed = time.perf_counter(), sum(map(cpu_seconds, processes))
    runs.go()
    digests = [found["digest"] for found in runs.next()]
    seconds = time.perf_counter() - begun
    computed = sum(map(cpu_seconds, processes)) - computed
    serving = memory_of(server) if server is not None else 0.0
    on_gpu = gpu_memory() - taken if options.device == "cuda" else 0.0
    runs.go()
    memory = runs.next()
    runs.go()
    runs.close()
    own = sum(found["after"] - found["before"] for found in memory)
    return {
        "gpu_memory": on_gpu,
        "scorer_memory": own + serving,
        "all_memory": sum(found["after"] for found in memory) + serving,
        "frames_per_second": options.runs * options.blocks * options.block / seconds,
        "frames_per_cpu_second": options.runs * options.blocks * options.block / computed,
        "digests": digests,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure runs that share a scoring service against private scorers.")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2, help="blocks that each run scores")
    parser.add_argument("--block", type=int, default=64, help="frames of a block")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=2, help="how often each side takes its turn")
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all works")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--as-run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_run:
        simulate_run(json.loads(options.as_run))
        return

    from service_load import save_random_clip

    sides: dict[str, list[dict[str, Any]]] = {"private": [], "shared": []}
    with tempfile.TemporaryDirectory(prefix="vlmsafe-model-") as name:
        save_random_clip(Path(name), options.tiny)
        for _ in range(options.rounds):
            for side, rounds in sides.items():
                rounds.append(measure(options, Path(name), side == "shared"))
    equal = len({tuple(found["digests"]) for rounds in sides.values() for found in rounds}) == 1
    medians = {
        side: {key: statistics.median(found[key] for found in rounds) for key in rounds[0] if key != "digests"}
        for side, rounds in sides.items()
    }
    private, shared = medians["private"], medians["shared"]
    compared = "scorer_memory" if options.device == "cpu" else "gpu_memory"
    memory = private[compared] / shared[compared]
    speed = shared["frames_per_second"] / private["frames_per_second"]
    print(
        f"{options.runs} runs, {options.blocks} blocks of {options.block} frames each, {options.device}, "
        f"{options.precision}{', compiled' * options.compile}, {os.cpu_count()} cores"
    )
    for side, found in medians.items():
        print(
            f"  {side:8} scorers {found['scorer_memory'] / 2**20:8,.0f} MiB, all processes "
            f"{found['all_memory'] / 2**20:8,.0f} MiB, on the GPU {found['gpu_memory'] / 2**20:8,.0f} MiB, "
            f"{found['frames_per_second']:8.2f} frames/s, {found['frames_per_cpu_second']:8.2f} a CPU second"
        )
    where = "scorers' memory" if options.device == "cpu" else "memory of the GPU"
    work = shared["frames_per_cpu_second"] / private["frames_per_cpu_second"]
    print(
        f"  {where} {memory:.2f} times lower, throughput {speed:.2f} times, per CPU second {work:.2f} times, "
        f"results equal: {equal}"
    )
    if options.json:
        options.json.write_text(
            json.dumps({**sides, "memory": memory, "throughput": speed, "per_cpu_second": work}, indent=2) + "\n"
        )
    if not equal or (not options.tiny and (memory < AIM_MEMORY or speed < 1.0)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
