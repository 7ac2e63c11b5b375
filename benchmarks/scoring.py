"""Scoring frames: CLIP ViT-B/32 in batches against one frame at a time, the embedded scorer, the latency of one frame.

    python benchmarks/scoring.py [--rounds 5] [--passes 500] [--json FILE]
    python benchmarks/scoring.py --device cuda [--batches 64 256 1024]
    python benchmarks/scoring.py --device cuda --service [--clients 32] [--batches 64 256] [--qwen]
    python benchmarks/scoring.py --service --tiny

Throughput: the usual way hands each step's frame to transformers' own processor and model; `ClipScorer` gets the same
frames (256 x 256, uint8, in host memory) as one array. All take turns in every round of one run; medians are given.
Latency: one frame through everything, eight prompts embedded before, the mean of 500 passes after 50 to warm up, as the
paper counts it. On a GPU also the rate of the vision tower alone, on pixels that are already there: what scoring from
host memory could reach at best. CLIP's weights are random, which takes as long as trained ones and needs no download.
The embedded scorer is the one that ships; its stacks have two frames each, and on a CPU it is also timed on one core.

`--service` measures something else: what many processes get from one scoring service (`service_load.py`), and with
`--qwen` yes/no scoring by a model of Qwen2-VL's shape, in batches against one call per question (`qwen_load.py`).

This script needs torch, transformers, numpy, PyYAML and safetensors, and for `--service` msgspec; the package itself
need not be installed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.clip import ClipScorer
from vlmsafe.signals.scorers.embedded import SHIPPED
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer
from vlmsafe.signals.scorers.images import Preprocessing

PROMPTS = 8
FRAME = 256
PIXELS = 224
WARM_UP = 50

_models: Any = transformers  # half typed; what comes from it is Any
Frames = NDArray[np.uint8]
Score = Callable[[Frames], NDArray[np.float32]]


def make_model() -> tuple[Any, torch.Tensor]:
    """The architecture of openai/clip-vit-base-patch32 and embeddings of prompts, at random."""
    torch.manual_seed(0)
    model = _models.CLIPModel(_models.CLIPConfig()).eval()
    return model, torch.randn(PROMPTS, model.config.projection_dim)


def make_naive(model: Any, texts: torch.Tensor, device: str) -> tuple[Score, str]:
    """One frame at a time through transformers' processor and model, in float32; also the processor's name."""
    found = "CLIPImageProcessor" if _models.utils.is_torchvision_available() else "CLIPImageProcessorPil"
    processor = getattr(_models, found)()
    network = copy.deepcopy(model).to(device)
    wanted = torch.nn.functional.normalize(texts, dim=-1).T.to(device)

    def score(frames: Frames) -> NDArray[np.float32]:
        rows = []
        with torch.inference_mode():
            for frame in frames:
                pixels = processor(images=frame, return_tensors="pt")["pixel_values"].to(device)
                features = network.get_image_features(pixel_values=pixels)
                features = getattr(features, "pooler_output", features)  # a plain tensor in some versions
                rows.append((torch.nn.functional.normalize(features, dim=-1) @ wanted).cpu().numpy())
        return np.concatenate(rows)

    return score, found


def take_turns(sides: dict[str, tuple[Score, Frames]], rounds: int) -> dict[str, list[float]]:
    """Frames per second of each side in each round, after one round that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, (score, frames) in sides.items():
            begun = time.perf_counter()
            score(frames)
            if number:
                rates[name].append(len(frames) / (time.perf_counter() - begun))
    return rates


def measure_latency(score: Score, frame: Frames, passes: int) -> tuple[float, float]:
    """Mean and median milliseconds of one frame; scores come back to the host, so nothing is left running."""
    times = []
    for number in range(WARM_UP + passes):
        begun = time.perf_counter()
        score(frame)
        if number >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - begun))
    return statistics.mean(times), statistics.median(times)


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}")
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
    sys.stdout.flush()


def compare(
    model: Any, texts: torch.Tensor, options: argparse.Namespace, frames: Frames
) -> tuple[dict[str, Any], ClipScorer]:
    """The throughput table, and the batched scorer of float32."""
    device, gpu = options.device, options.device == "cuda"
    naive, processor = make_naive(model, texts, device)
    few = frames[: 256 if gpu else 16]
    many = frames[: 4096 if gpu else 64]
    sides: dict[str, tuple[Score, Frames]] = {f"one at a time, transformers ({processor})": (naive, few)}
    scorers: dict[str, ClipScorer] = {}
    for kind in ("float32", "bfloat16", "bfloat16, compiled")[: 3 if gpu else 2]:
        name = f"batches of 64, {kind}"
        scorers[name] = make_scorer(model, texts, device, kind, 64)
        sides[name] = (scorers[name].score, many)
    expected = naive(few)
    errors = {name: float(np.abs(score(few) - expected).max()) for name, (score, _) in sides.items()}
    rates = {name: statistics.median(found) for name, found in take_turns(sides, options.rounds).items()}
    base = next(iter(rates.values()))
    show(
        f"{FRAME} x {FRAME} frames from host memory on {options.device}, median of {options.rounds} rounds",
        ("", "frames/s", "ratio", "largest difference"),
        [(name, f"{rate:,.1f}", f"{rate / base:.2f}", f"{errors[name]:.1e}") for name, rate in rates.items()],
    )
    return {"frames_per_second": rates, "largest_difference": errors}, next(iter(scorers.values()))


def make_scorer(model: Any, texts: torch.Tensor, device: str, kind: str, batch: int) -> ClipScorer:
    """A scorer of a kind: a precision, and whether it is compiled."""
    return ClipScorer(
        copy.deepcopy(model),
        texts,
        (PROMPTS // 2, PROMPTS - PROMPTS // 2),
        Preprocessing.clip(PIXELS),
        device=device,
        precision="float32" if kind.startswith("float32") else "bfloat16",
        compile=kind.endswith("compiled"),
        batch=batch,
    )


def compare_latency(model: Any, texts: torch.Tensor, options: argparse.Namespace, frames: Frames) -> dict[str, Any]:
    sides: dict[str, Score] = {"transformers": make_naive(model, texts, options.device)[0]}
    for kind in ("float32", "bfloat16", "bfloat16, compiled")[: 3 if options.device == "cuda" else 2]:
        sides[kind] = make_scorer(model, texts, options.device, kind, 1).score
    found = {name: measure_latency(score, frames[:1], options.passes) for name, score in sides.items()}
    show(
        f"latency of one frame on {options.device}, {options.passes} passes after {WARM_UP}",
        ("", "mean, ms", "median, ms"),
        [(name, f"{mean:.2f}", f"{median:.2f}") for name, (mean, median) in found.items()],
    )
    return {name: {"mean_ms": mean, "median_ms": median} for name, (mean, median) in found.items()}


def measure_gpu(model: Any, texts: torch.Tensor, options: argparse.Namespace, frames: Frames) -> dict[str, Any]:
    """bfloat16 and compiled: the tower alone, and from host memory, for each size of batch."""
    from service_load import tower_alone

    rows, found = [], {}
    for batch in options.batches:
        torch.compiler.reset()  # it keeps a limited number of versions
        scorer = make_scorer(model, texts, "cuda", "bfloat16, compiled", batch)
        scorer.score(frames[: 2 * batch])
        tower = tower_alone(scorer, "cuda", batch, options.rounds)
        rates = take_turns({"": (scorer.score, frames)}, options.rounds)[""]
        whole = statistics.median(rates)
        rows.append((str(batch), f"{tower:,.0f}", f"{whole:,.0f}", f"{100 * whole / tower:.0f} %"))
        found[str(batch)] = {"tower": tower, "from_host_memory": whole}
    show(
        "bfloat16, compiled, frames/s by size of batch",
        ("batch", "tower alone", "from host memory", "share"),
        rows,
    )
    return found


def measure_embedded(options: argparse.Namespace, frames: Frames) -> dict[str, Any]:
    """The shipped scorer: its size, and frame stacks per second in batches of 64 and one at a time."""
    scorer = EmbeddedScorer.load("", load_prompts("metadrive"), device=options.device)
    few = frames[: 1024 if options.device == "cuda" else 64]
    stacks = np.concatenate([few] * scorer.frames, axis=-1)
    threads = torch.get_num_threads()
    rows, found = [], {"bytes": SHIPPED.stat().st_size, "parameters": scorer.describe()["parameters"]}
    for used in dict.fromkeys((1, threads)) if options.device == "cpu" else (threads,):
        torch.set_num_threads(used)
        rate = statistics.median(take_turns({"": (scorer.score, stacks)}, options.rounds)[""])
        latency, _ = measure_latency(scorer.score, stacks[:1], max(options.passes, 1))
        name = f"{used} {'core' if used == 1 else 'cores'}" if options.device == "cpu" else "GPU"
        rows.append((name, f"{rate:,.0f}", f"{1e3 / rate:.2f}", f"{latency:.2f}"))
        found[name] = {"moments_per_second": rate, "ms_per_moment": 1e3 / rate, "latency_ms": latency}
    torch.set_num_threads(threads)
    show(
        f"embedded scorer on {options.device}: {found['bytes'] / 1e6:.2f} MB, {found['parameters'] / 1e6:.2f} million "
        f"parameters, stacks of {scorer.frames} frames of {FRAME} x {FRAME} from host memory",
        ("", "stacks/s in batches of 64", "ms each", "one at a time, ms"),
        rows,
    )
    return found


def describe_machine(device: str) -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).is_file():
        cpu = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure scoring with CLIP ViT-B/32.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side takes its turn")
    parser.add_argument("--passes", type=int, default=500, help="timed passes of one frame; 0 leaves latency out")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024], help="sizes of batches on the GPU")
    parser.add_argument("--only-embedded", action="store_true", help="leave CLIP out")
    parser.add_argument("--service", action="store_true", help="measure a scoring service with many clients instead")
    parser.add_argument("--clients", type=int, default=32, help="processes that ask the service")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long they ask, at full and at half load")
    parser.add_argument("--qwen", choices=("2b", "7b"), help="with --service: also yes/no scoring by this size")
    parser.add_argument("--tiny", action="store_true", help="with --service: small models, to see that all works")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()

    results: dict[str, Any] = {"machine": describe_machine(options.device)}
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items() if value is not None), flush=True)
    if options.service:
        measure_sharing(options, results)
        return
    count = 8192 if options.device == "cuda" else 64
    frames = np.random.default_rng(0).integers(0, 256, (count, FRAME, FRAME, 3), dtype=np.uint8)
    results["embedded"] = measure_embedded(options, frames)
    if not options.only_embedded:
        results |= measure_clip(options, frames)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def measure_sharing(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """The service, and yes/no scoring; ends with 1 where a large GPU misses what is aimed at."""
    from qwen_load import measure_qwen
    from service_load import measure_service, missed

    results["service"] = measure_service(
        options.device,
        clients=2 if options.tiny else options.clients,
        batches=[16] if options.tiny else options.batches,
        seconds=2.0 if options.tiny else options.seconds,
        rounds=options.rounds,
        tiny=options.tiny,
    )
    if options.qwen or options.tiny:
        results["qwen"] = measure_qwen(options.device, "tiny" if options.tiny else options.qwen, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.device == "cuda" and not options.tiny and (said := missed(results["service"])):
        raise SystemExit("missed: " + "; ".join(said))


def measure_clip(options: argparse.Namespace, frames: Frames) -> dict[str, Any]:
    results: dict[str, Any] = {}
    model, texts = make_model()
    results["throughput"], scorer = compare(model, texts, options, frames)
    if options.device == "cuda":
        few = frames[:64]
        on_cpu = make_scorer(model, texts, "cpu", "float32", 64).score(few)
        results["gpu_against_cpu"] = float(np.abs(scorer.score(few) - on_cpu).max())
        print(f"float32 on the GPU against the CPU: largest difference {results['gpu_against_cpu']:.1e}")
        results["batches"] = measure_gpu(model, texts, options, frames)
    if options.passes:
        results["latency"] = compare_latency(model, texts, options, frames)
    return results


if __name__ == "__main__":
    main()
