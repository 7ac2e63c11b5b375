"""An embedded model of a few words and a few thousand random weights, saved to a file as the shipped one is."""

from pathlib import Path

import torch

from vlmsafe.signals.scorers.embedded.network import Architecture, Embedding, save

WORDS = (
    "a",
    "about",
    "and",
    "car",
    "clear",
    "danger",
    "drives",
    "hit",
    "lane",
    "leaves",
    "road",
    "safely",
    "the",
    "to",
)
_SMALL = Architecture(
    size=32, widths=(8, 16), depths=(0, 1), dimension=16, text_width=16, text_layers=1, longest=8
)  # fmt: skip


def small_embedded(seed: int = 0) -> Embedding:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Embedding(WORDS, _SMALL).eval()


def save_small_embedded(path: Path, seed: int = 0) -> Path:
    save(small_embedded(seed), path)
    return path
