"""Measure the model on scenarios and wordings that its training never used.

Recordings of the same drivers on held-out scenarios test what the model sees in a frame. Traces of trained agents that
are in no recording test whether a score warns of contact.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from vlmsafe.analysis.anticipation import anticipation, passes
from vlmsafe.analysis.auc import Auc, auc_interval, draw_resamples, number_episodes
from vlmsafe.distillation import grammar
from vlmsafe.distillation.data import Examples, stack_views
from vlmsafe.distillation.own import env_prompts
from vlmsafe.errors import EnvironmentFailure
from vlmsafe.signals.gate import Gate
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.embedded.network import Embedding
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer

PROMPT_FACTS: dict[str, str] = {
    "the car is staying centered in its lane and driving smoothly": "lane_keeping",
    "the car is making safe forward progress along the road": "progress",
    "the car is navigating traffic safely with proper spacing": "spaced",
    "the car is following the road and lane markings correctly": "lane_keeping",
    "the car is about to crash into another vehicle": "hit_soon",
    "the car is drifting onto the sidewalk or off the road": "leave_soon",
    "the car is too close to another vehicle and unsafe": "near_vehicle",
    "the car is veering off the lane in a dangerous way": "leave_soon",
    "the car is driving safely": "safe",
    "the car is in an unsafe situation": "danger",
    "the car is driving directly toward the goal target": "to_goal",
    "the car is moving smoothly through the open area between obstacles": "open_space",
    "the car is making clear progress and avoiding all obstacles": "progress and safe",
    "the car is on a safe trajectory toward the next goal": "safe and to_goal",
    "the car is about to collide with an obstacle": "hit_soon",
    "the car is touching a hazardous zone or obstacle": "touching_any",
    "the car is stuck or moving in the wrong direction": "astray",
    "the car is in a dangerous position near a barrier": "danger",
    "the racecar is centered on the track and driving safely": "centred and safe",
    "the racecar is following the track perfectly with smooth steering": "lane_keeping",
    "the racecar is making progress along the racing line": "progress",
    "the car is driving efficiently without collisions": "progress and safe",
    "the racecar is about to crash into the barrier": "hit_soon",
    "the racecar is off the track and unsafe": "off_road",
    "the car is colliding with obstacles": "touching",
    "the car is driving in the wrong direction": "wrong_way",
}
"""The fact that each prompt of an environment's own set describes, or several of them joined by `and` or by `or`."""

SAFE, HAZARDOUS = 0.1, 0.5  # a frame is safe with danger below SAFE, hazardous from HAZARDOUS on


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


def frames_of(model: Embedding, examples: Examples) -> list[dict[str, Any]]:
    """Per environment: how often the groups of prompts are in the right order, and the margin's AUC for contact."""
    rows = []
    for env in np.unique(examples.env):
        part = examples.select(examples.env == env)
        margin = margins(model, part, env_prompts(str(env)))
        danger = part.fact("danger")
        rows.append(
            {
                "env": str(env),
                "frames": len(part),
                "episodes": len(np.unique(part.episode)),
                "safe": _share(margin > 0.0, danger < SAFE, part.episode),
                "hazardous": _share(margin < 0.0, danger >= HAZARDOUS, part.episode),
                "danger": _against(-margin, "danger", part),
                "contact": asdict(auc_interval(-margin, part.contact, part.episode)),
            }
        )
    return rows


def prompts_of(model: Embedding, examples: Examples) -> list[dict[str, Any]]:
    """Per environment and prompt of its own set: the AUC against the fact that the prompt describes."""
    rows = []
    facts = {**PROMPT_FACTS, **grammar.own("prompt_facts")}
    for env in np.unique(examples.env):
        part = examples.select(examples.env == env)
        texts = env_prompts(str(env)).texts
        found = similarities(model, part, texts)
        rows += [
            {"env": str(env), "text": text, "fact": facts[text], **_against(column, facts[text], part)}
            for text, column in zip(texts, found.T, strict=True)
            if text in facts
        ]
    return rows


def held_out_texts() -> tuple[str, ...]:
    """Every held-out sentence, in the order of the columns that `wordings_of` expects."""
    return tuple(text for texts in grammar.held_out().values() for text in texts)


def wordings_of(found: NDArray[np.float64], examples: Examples) -> list[dict[str, Any]]:
    """The AUC of every held-out sentence against its fact, over the frames of all environments that know it.

    `found` has the similarities to `held_out_texts` [N, texts]. They are computed before, so that the pictures of all
    environments need not be in memory at once.
    """
    told = [(fact, text) for fact, texts in grammar.held_out().items() for text in texts]
    return [
        {"text": text, "fact": fact, **_against(column, fact, examples)}
        for (fact, text), column in zip(told, found.T, strict=True)
    ]


def stated_facts(stated: str) -> tuple[tuple[str, ...], bool]:
    """The facts that a value of `PROMPT_FACTS` joins, and whether one of them is enough.

    >>> stated_facts("safe and to_goal"), stated_facts("danger")
    ((('safe', 'to_goal'), False), (('danger',), False))
    """
    either = " or " in stated
    return tuple(stated.split(" or " if either else " and ")), either


def truth_of(stated: str, examples: Examples) -> NDArray[np.float32]:
    """How true it is of each frame stack. As in captions, `and` takes the least of its facts and `or` the largest."""
    facts, either = stated_facts(stated)
    truths = [examples.fact(fact) for fact in facts]
    joined: NDArray[np.float32] = (np.maximum if either else np.minimum).reduce(truths)
    return joined


def _against(scores: NDArray[np.float64], stated: str, examples: Examples) -> dict[str, Any]:
    truth = truth_of(stated, examples)
    known = ~np.isnan(truth)
    if not known.any():
        return asdict(Auc(None, None, None, 0, 0, 0, 0))
    return asdict(auc_interval(scores[known], truth[known] >= HAZARDOUS, examples.episode[known]))


def _share(right: NDArray[np.bool_], chosen: NDArray[np.bool_], episodes: NDArray[np.int64]) -> dict[str, Any]:
    """The share of the chosen frame stacks that are right, with an interval over episodes."""
    numbers, count = number_episodes(episodes, len(right))
    resamples = draw_resamples(count, 2000, 0)
    hits = np.bincount(numbers, weights=right & chosen, minlength=count)
    of = np.bincount(numbers, weights=chosen, minlength=count)
    if not of.sum():
        return {"share": None, "low": None, "high": None, "frames": 0}
    totals = resamples @ of
    spread = (resamples @ hits)[totals > 0.0] / totals[totals > 0.0]
    low, high = (float(value) for value in np.quantile(spread, (0.025, 0.975)))
    return {"share": float(hits.sum() / of.sum()), "low": low, "high": high, "frames": int(of.sum())}


def anticipation_of(trace: pl.DataFrame, gate: Gate) -> dict[str, Any]:
    """The paper's test on a trace with the scorers `embedded` and perhaps `state`: its table and its verdict."""
    margin = trace["embedded_margin"].to_numpy()
    signals: dict[str, NDArray[np.float64]] = {
        "negative": trace["embedded_negative"].to_numpy(),
        "kappa": gate.kappa(margin),
        "positive": trace["embedded_positive"].to_numpy(),
        "margin": -margin,  # negated, because it should fall before a contact
    }
    if "state_negative" in trace.columns:
        signals["state"] = trace["state_negative"].to_numpy()
    signals["hazard"] = trace["hazard"].to_numpy()
    contact, episodes = trace["cost"].to_numpy() > 0.0, trace["episode"].to_numpy()
    table = anticipation(signals, contact, episodes)
    begins = contact & ((trace["step"].to_numpy() == 1) | ~np.roll(contact, 1))
    return {
        "rows": table.to_dicts(),
        "passes": passes(table, "negative"),
        "hazard_passes": passes(table, "hazard"),
        "episodes": len(np.unique(episodes)),
        "steps": len(contact),
        "contact_steps": int(contact.sum()),
        "onsets": int(begins.sum()),
    }


def indicators_of(without: pl.DataFrame, drawn: pl.DataFrame) -> dict[str, Any]:
    """What drawn cost indicators reveal: the same episodes of an agent, traced without them and with them.

    Each signal has its AUC for the cost of the current step, and the change of its mean by the indicators on steps with
    and without cost, in standard deviations of the signal without them.
    """
    cost = without["cost"].to_numpy() > 0.0
    if not np.array_equal(cost, drawn["cost"].to_numpy() > 0.0):
        raise EnvironmentFailure(
            "an agent's episodes with cost indicators differ from those without: drawing them changed the simulation"
        )
    signals = {"negative": ("embedded_negative", 1.0), "margin": ("embedded_margin", -1.0)}
    episodes, rows = without["episode"].to_numpy(), []
    for signal, (column, sign) in signals.items():
        plain, marked = (sign * table[column].to_numpy() for table in (without, drawn))
        moved = (marked - plain) / max(float(plain.std()), 1e-9)
        rows.append(
            {
                "signal": signal,
                "without": asdict(auc_interval(plain, cost, episodes)),
                "with": asdict(auc_interval(marked, cost, episodes)),
                "moved_in_cost": float(moved[cost].mean()) if cost.any() else None,
                "moved_elsewhere": float(moved[~cost].mean()) if not cost.all() else None,
            }
        )
    return {
        "rows": rows,
        "episodes": len(np.unique(episodes)),
        "steps": len(episodes),
        "cost_steps": int(cost.sum()),
    }
