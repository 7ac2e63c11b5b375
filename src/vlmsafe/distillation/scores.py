"""What a model says of frame stacks, and how well it does on the recordings that choose among candidates.

The training stage uses this module, so it needs no simulator and no tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlmsafe.distillation import grammar
from vlmsafe.distillation.data import Examples, stack_views, world
from vlmsafe.distillation.facts import SURE_STEPS
from vlmsafe.signals.prompts import PromptSet, load_prompts
from vlmsafe.signals.scorers.embedded.network import Embedding
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer

SAFE, HAZARDOUS = 0.1, 0.5  # a frame is safe with danger below SAFE, hazardous from HAZARDOUS on
SETS = {"bullet": "bullet", "formula-one": "formula-one", "metadrive": "metadrive"}
"""The prompt sets of the worlds on which candidates are compared."""


def similarities(model: Embedding, examples: Examples, texts: tuple[str, ...]) -> NDArray[np.float64]:
    """The similarity of every frame stack to every text, [N, texts]."""
    tokens, _ = Tokenizer(model.words, model.longest).encode(texts)
    with torch.inference_mode():
        told = model.text(tokens).T
        frames = torch.from_numpy(examples.frames)
        parts = [
            (model.image_of_views(stack_views(examples.seen, frames[start : start + 256])) @ told).double().numpy()
            for start in range(0, len(examples), 256)
        ]
    return np.concatenate(parts)


def margins(model: Embedding, examples: Examples, prompts: PromptSet) -> NDArray[np.float64]:
    """The mean similarity to positive prompts minus that to negative ones, per frame stack."""
    found, split = similarities(model, examples, prompts.texts), prompts.sizes[0]
    return found[:, :split].mean(axis=1) - found[:, split:].mean(axis=1)


def selection_figures(model: Embedding, examples: Examples) -> dict[str, Any]:
    """Per world the AUC of c_vlm for contact within 20 steps, standardised within episodes, and both shares.

    `score` is the mean over worlds and over AUC and shares, with the two shares as one.
    """
    worlds = np.array([world(str(env)) for env in examples.env])
    told: dict[str, Any] = {}
    sets = {**SETS, **grammar.own("prompts")}
    for name in sorted(set(sets) & set(worlds.tolist())):
        part = examples.select((worlds == name) & (examples.frames[:, 0] != examples.frames[:, 1]))
        prompts = load_prompts(sets[name])
        found, split = similarities(model, part, prompts.texts), prompts.sizes[0]
        negative = found[:, split:].mean(axis=1)
        margin, danger = found[:, :split].mean(axis=1) - negative, part.fact("danger")
        told[name] = {
            "lead": _lead(negative, part),
            "lead_of_margin": _lead(-margin, part),
            "safe": _share(margin[danger < SAFE] > 0.0),
            "hazardous": _share(margin[danger >= HAZARDOUS] < 0.0),
        }
    scores = [one["lead"] + (one["safe"] + one["hazardous"]) / 2.0 for one in told.values()]
    return {"worlds": told, "score": float(np.mean(scores)) / 2.0 if scores else 0.0}


def _share(right: NDArray[np.bool_]) -> float:
    """The share of stacks that are right; 0.5 without any."""
    return float(right.mean()) if right.size else 0.5


def _lead(signal: NDArray[np.float64], examples: Examples) -> float:
    """The clean lead-time AUC on recorded stacks: those in contact and those whose future was cut are left out."""
    rows = ~examples.contact & ~np.isnan(examples.ahead)
    values, episodes = signal[rows], np.unique(examples.episode[rows], return_inverse=True)[1]
    counts = np.bincount(episodes)
    centred = values - (np.bincount(episodes, weights=values) / counts)[episodes]
    deviation = np.sqrt(np.bincount(episodes, weights=centred**2) / counts)
    return rank_auc(centred / np.maximum(deviation, 1e-9)[episodes], examples.ahead[rows] <= SURE_STEPS)


def rank_auc(values: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The chance that a positive value is above another one; ties count as half. 0.5 if there is nothing to compare.

    >>> rank_auc(np.array([0.0, 1.0, 1.0]), np.array([False, True, False]))
    0.75
    """
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return 0.5
    order = np.sort(values[~positive])
    below, up_to = (np.searchsorted(order, values[positive], side) for side in ("left", "right"))
    return float((below + up_to).sum() / 2.0 / pairs)
