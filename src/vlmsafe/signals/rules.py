"""Scoring rules turn one similarity per prompt into a positive score, a negative score, and the margin between groups.

Similarities are [N, P + Q], with the P positive prompts first. Every rule is a pure function of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vlmsafe.signals.scorers.api import Rule, Similarities

ClgWeights = Literal["half", "full"]

Float64 = NDArray[np.float64]

TEMPERATURE = 100.0  # of the joint softmax; CLIP scales its logits by it too


@dataclass(frozen=True)
class Scores:
    """The scores of a batch, one entry per input."""

    positive: Float64
    """r_vlm, in [0, 1]; clg with full weights reaches from -1/2 to 3/2."""
    negative: Float64
    """c_vlm, in [0, 1]."""
    margin: Float64
    """m = u+ - u-, the mean similarity to positive prompts minus that to negative prompts, under every rule."""

    @classmethod
    def join(cls, parts: Sequence[Scores], count: int) -> Scores:
        """The first `count` entries of several batches."""
        names = ("positive", "negative", "margin")
        return cls(*(np.concatenate([getattr(part, name) for part in parts])[:count] for name in names))


def apply_rule(
    rule: Rule,
    similarities: Similarities,
    groups: tuple[int, int],
    bounds: tuple[float, float] = (-1.0, 1.0),
    clg_weights: ClgWeights = "half",
) -> Scores:
    """Scores of a batch under a rule; `groups` has the numbers of positive and of negative columns.

    The decoupled rule is Eq. 2: r_vlm = (u+ + 1) / 2 and c_vlm = (u- + 1) / 2, from the mean cosine of each group.
    """
    exact, split = similarities.astype(np.float64), groups[0]
    u_minus = exact[:, split:].mean(axis=1)
    u_plus = exact[:, :split].mean(axis=1) if split else np.full_like(u_minus, bounds[0])
    margin = u_plus - u_minus
    if rule == "coupled":
        return Scores(*_coupled(exact, split), margin)
    positive, negative = _share(u_plus, bounds), _share(u_minus, bounds)
    if rule == "clg":
        return Scores(_clg(positive, negative, clg_weights), negative, margin)
    if rule == "novelty":  # it has a danger score only
        return Scores(np.zeros_like(negative), negative, margin)
    return Scores(positive, negative, margin)  # decoupled, and yes-no for probabilities


def _share(similarity: Float64, bounds: tuple[float, float]) -> Float64:
    """Scale from the scorer's bounds to [0, 1]: (u + 1) / 2 for cosines; probabilities stay as they are."""
    low, high = bounds
    return (similarity - low) / (high - low)


def _coupled(exact: Float64, split: int) -> tuple[Float64, Float64]:
    """One softmax over all prompts. A group's score is the mean over its prompts, so P r + Q c = 1."""
    logits = TEMPERATURE * exact
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = weights / weights.sum(axis=1, keepdims=True)
    return shares[:, :split].mean(axis=1), shares[:, split:].mean(axis=1)


def _clg(positive: Float64, negative: Float64, weights: ClgWeights) -> Float64:
    """Contrasting language goal (w u+ - w u- + 1) / 2 = w (r - c) + 1/2, with weights w of one half or one.

    This rule defines a positive score only. The negative score is that of the decoupled rule.
    """
    return (positive - negative + 1.0) / 2.0 if weights == "half" else positive - negative + 0.5
