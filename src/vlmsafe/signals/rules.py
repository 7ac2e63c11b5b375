"""Scoring rules: from one similarity per prompt to a positive and a negative score, and the margin between groups.

Similarities come as [N, P + Q], the P positive prompts first. Every rule is a pure function of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.signals.scorers.api import Rule, Similarities

Float64 = NDArray[np.float64]

TEMPERATURE = 100.0  # of the joint softmax: CLIP's own scale of its logits


@dataclass(frozen=True)
class Scores:
    """What a batch of inputs looks like, one entry each."""

    positive: Float64
    """r_vlm, in [0, 1]."""
    negative: Float64
    """c_vlm, in [0, 1]."""
    margin: Float64
    """m = u+ - u-, the mean similarity to positive prompts less that to negative ones, whatever the rule."""


def apply_rule(rule: Rule, similarities: Similarities, groups: tuple[int, int]) -> Scores:
    """Scores of a batch under a rule; `groups` says how many columns are positive and negative."""
    exact = similarities.astype(np.float64)
    positive, negative = exact[:, : groups[0]], exact[:, groups[0] :]
    if rule == "novelty":  # a danger score alone
        novelty = negative.mean(axis=1)
        return Scores(np.zeros_like(novelty), novelty, -novelty)
    u_plus, u_minus = positive.mean(axis=1), negative.mean(axis=1)
    return Scores(*_RULES[rule](u_plus, u_minus, exact, groups[0]), u_plus - u_minus)


def _decoupled(u_plus: Float64, u_minus: Float64, exact: Float64, split: int) -> tuple[Float64, Float64]:
    """Eq. 2: each group's mean cosine, moved from [-1, 1] to [0, 1]."""
    return (u_plus + 1.0) / 2.0, (u_minus + 1.0) / 2.0


def _coupled(u_plus: Float64, u_minus: Float64, exact: Float64, split: int) -> tuple[Float64, Float64]:
    """One softmax over all prompts; a group's score is the mean over its prompts, so P r + Q c = 1."""
    logits = TEMPERATURE * exact
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = weights / weights.sum(axis=1, keepdims=True)
    return shares[:, :split].mean(axis=1), shares[:, split:].mean(axis=1)


def _clg(u_plus: Float64, u_minus: Float64, exact: Float64, split: int) -> tuple[Float64, Float64]:
    """Contrasting language goal with weights of one half: (u+/2 - u-/2 + 1) / 2.

    It has one score, a reward. The negative score stays that of the decoupled rule, for the record.
    """
    return (0.5 * u_plus - 0.5 * u_minus + 1.0) / 2.0, (u_minus + 1.0) / 2.0


def _yes_no(u_plus: Float64, u_minus: Float64, exact: Float64, split: int) -> tuple[Float64, Float64]:
    """Probabilities of a yes are scores already."""
    return u_plus, u_minus


_RULES = {"decoupled": _decoupled, "coupled": _coupled, "clg": _clg, "yes-no": _yes_no}
