"""Several prompt sets on recorded frames: every frame embedded once for all of them, against once per set.

    python benchmarks/prompt_sets.py [--frames 96] [--rounds 5] [--sets metadrive metadrive-v2 ...] [--json FILE]

This is what `vlmsafe prompts bench` spends its time on: decoding pictures, preparing frames, the image tower, one small
product per prompt. Both ways take turns in every round; medians are given. Models are loaded before, which flatters set
by set: it would load its model once per set. CLIP ViT-B/32 has random weights, which takes as long as trained ones and
needs no download; the embedded scorer is the one that ships. Frames are drawn, 256 x 256, and kept as pictures.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import transformers
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from vlmsafe.evaluation.trace.rescore import rescore
from vlmsafe.io.images import encode
from vlmsafe.signals.prompts import PromptSet, load_prompts
from vlmsafe.signals.scorers.api import Scorer
from vlmsafe.signals.scorers.clip import ClipScorer
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer
from vlmsafe.signals.scorers.images import Preprocessing

_models: Any = transformers  # half typed; what comes from it is Any

PIXELS = 224


def draw(step: int) -> NDArray[np.uint8]:
    """A road of two lines and a car that moves along it."""
    frame = np.full((256, 256, 3), 255, np.uint8)
    frame[:, 96:100] = frame[:, 156:160] = (112, 112, 112)
    frame[step % 64 :: 64, 126:130] = (240, 176, 0)
    top = 220 - 2 * (step % 100)
    frame[top : top + 24, 118:130] = (0, 144, 112)
    return frame


def record(frames: int) -> pl.DataFrame:
    """Pictures of an episode, every fourth step, as a trace keeps them."""
    rows = [{"episode": 0, "step": 4 * (i + 1), "picture": encode(draw(4 * (i + 1)))} for i in range(frames)]
    return pl.DataFrame(rows)


def make_clip(sets: Sequence[PromptSet]) -> list[Scorer]:
    """One scorer per set and one of all, with the same weights."""
    torch.manual_seed(0)
    model = _models.CLIPModel(_models.CLIPConfig()).eval()
    texts = [torch.randn(len(one.texts), model.config.projection_dim) for one in sets]
    groups = [*(one.sizes for one in sets), (1, sum(len(one.texts) for one in sets) - 1)]
    preprocessing = Preprocessing.clip(PIXELS)
    return [
        ClipScorer(model, own, group, preprocessing, device="cpu")
        for own, group in zip([*texts, torch.cat(texts)], groups, strict=True)
    ]


def make_embedded(sets: Sequence[PromptSet]) -> list[Scorer]:
    """One scorer per set and one of all."""
    every = tuple(dict.fromkeys(text for one in sets for text in one.texts))
    joined = PromptSet(every[:1], every[1:])
    return [EmbeddedScorer.load("", one, device="cpu") for one in (*sets, joined)]


def measure(pictures: pl.DataFrame, scorers: Sequence[Scorer], rounds: int) -> dict[str, float]:
    """Seconds of both ways, taking turns, and their ratio round by round."""
    apart, together = scorers[:-1], scorers[-1]
    ways: dict[str, Callable[[], list[NDArray[np.float32]]]] = {
        "set by set": lambda: [rescore(pictures, scorer, "apart") for scorer in apart],
        "together": lambda: [rescore(pictures, together, "together")],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()  # to warm up
    for number in range(rounds):
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            begin = time.perf_counter()
            ways[name]()
            times[name].append(time.perf_counter() - begin)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    ratios = [one / other for one, other in zip(times["set by set"], times["together"], strict=True)]
    return {**seconds, "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", default=["metadrive", "metadrive-v2", "metadrive-v3"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sets = [load_prompts(name) for name in options.sets]
    pictures = record(options.frames)
    prompts = sum(len(one.texts) for one in sets)
    print(f"{options.frames} frames, {len(sets)} prompt sets of {prompts} prompts, {torch.get_num_threads()} threads")
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "sets": options.sets}
    for name, made in (("CLIP ViT-B/32", make_clip), ("embedded", make_embedded)):
        found = measure(pictures, made(sets), options.rounds)
        results[name] = found
        print(
            f"{name:14} set by set {found['set by set']:7.2f} s   together {found['together']:7.2f} s   "
            f"{found['ratio']:.2f} times as fast ({found['lowest']:.2f} to {found['highest']:.2f})"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
