"""Does the embedded scorer need two frames? Both kinds trained on the same recordings, side by side.

    python benchmarks/embedded_frames.py [--dir .embedded] [--steps 3000] [--device cuda]

Recordings are those of `vlmsafe embedded build`. Every tenth scenario is held back to compare on: AUCs of the negative
score for danger on frames without contact, and of two captions about motion.

This script needs torch, numpy and Pillow; the package itself need not be installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from vlmsafe.analysis.auc import auc_interval
from vlmsafe.distillation.data import Examples, read, stack_views
from vlmsafe.distillation.train import Schedule, train
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.embedded.network import Architecture, Embedding
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer


def similarities(model: Embedding, examples: Examples, texts: tuple[str, ...], device: str) -> np.ndarray:
    model = model.to(device)
    with torch.inference_mode():
        told = model.text(Tokenizer(model.words).encode(texts)[0].to(device)).T
        frames = torch.from_numpy(examples.frames[:, -model.architecture.frames :])
        rows = range(0, len(examples), 512)
        seen = (stack_views(examples.seen, frames[at : at + 512]).to(device) for at in rows)
        parts = [model.image_of_views(part) @ told for part in seen]
    return torch.cat(parts).double().cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare one frame with two.")
    parser.add_argument("--dir", type=Path, default=Path(".embedded"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    examples = read(sorted((options.dir / "recordings").glob("metadrive*.npz")))
    held_back = examples.scenario % 10 == 0
    prompts = load_prompts("metadrive")
    print(f"{(~held_back).sum()} frames to train on, {held_back.sum()} to compare on", flush=True)
    for frames in (1, 2):
        model = train(
            examples.select(~held_back),
            Schedule(steps=options.steps),
            device=options.device,
            architecture=Architecture(frames=frames),
        )
        part = examples.select(held_back)
        negative = similarities(model, part, prompts.negative, options.device).mean(axis=1)
        lines = {"danger": (negative, part.fact("danger"), ~part.contact)}
        for fact, text in (("progress", "it moves ahead"), ("closing", "it gains on the truck ahead")):
            scores = similarities(model, part, (text,), options.device)[:, 0]
            lines[f"{fact}: '{text}'"] = (scores, part.fact(fact), ~np.isnan(part.fact(fact)))
        for name, (scores, truth, rows) in lines.items():
            found = auc_interval(scores[rows], truth[rows] >= 0.5, part.episode[rows])
            print(f"{frames} frame(s), {name}: AUC {found.auc:.3f} [{found.low:.3f}, {found.high:.3f}]", flush=True)


if __name__ == "__main__":
    main()
