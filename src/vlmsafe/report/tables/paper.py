"""Published values that are no outcome of a run, for the tables that show the same of ours: gates, times, scores.

Outcomes stand beside ours through `vlmsafe.paper.side_by_side`, which also says what was done otherwise. Of these the
paper says less, so they are always marked as obtained under other conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from vlmsafe.paper.published import published
from vlmsafe.report.cells import MARK
from vlmsafe.report.elements import Cell

GATE_NOTE = "published: 200 frames of one video each, CLIP ViT-B/32, policies of a million steps"
TIME_NOTE = "published: on the paper's cluster, one GPU a run, CLIP ViT-B/32"
SCORE_NOTE = "published: FormulaOne after Safety-Gymnasium, a million steps"


@cache
def _rows(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(published(name).iter_rows(named=True))


def beside(value: float | None, published: float | None) -> Cell:
    """Our value with the published one, marked as obtained under other conditions."""
    return Cell(value, published=published, mark=MARK if published is not None else "")


def note(rows: Sequence[Sequence[Cell]], words: str) -> list[str]:
    """Under what conditions published values were obtained, where a table has one."""
    return [f"{MARK} {words}."] if any(cell.published is not None for row in rows for cell in row) else []


def gate_medians(env: str, seed: int | None) -> dict[str, float]:
    """Published medians of margin and kappa, by column; empty where there are none."""
    found = [row for row in _rows("gate-medians") if (row["environment"], row["seed"]) == (env, seed)]
    return {name: value for name, value in found[0].items() if isinstance(value, float)} if found else {}


def times(env: str, method: str, steps: int, every: int | None) -> dict[str, float]:
    """Published hours, rollout hours and steps per second of such a run: hours only where it is as long as ours."""
    names = ("hours", "rollout_hours", "steps_per_second")
    same = ("environment", "arm", "clip_period")
    own = [row for row in _rows("compute") if tuple(row[name] for name in same) == (env, method, every)]
    for row in sorted(own, key=lambda row: row["training_steps"] != steps):
        kept = names if row["training_steps"] == steps else names[2:]
        return {name: row[name] for name in kept if row[name] is not None}
    return {}


def scores(env: str, scorer: str, seed: int) -> dict[int, float]:
    """Published epoch means of RND's novelty and of Qwen2-VL's danger score, by training steps."""
    if scorer.startswith("rnd"):
        own = [row for row in _rows("rnd-novelty") if (row["environment"], row["seed"]) == (env, seed)]
        return {row["training_steps"]: row["novelty"] for row in own}
    if scorer.startswith("qwen2-vl") and env == "formula-one-l2":
        return {row["training_steps"]: row["danger_score"] for row in _rows("qwen-vlmc") if row["seed"] == seed}
    return {}


def lead_time_line(env: str) -> str:
    """The published ranges of AUCs before contact, in words; empty where the paper has none."""
    if env != "formula-one-l2":
        return ""
    parts = [
        f"{row['signal']} {row['raw_low']:.3f} to {row['raw_high']:.3f} raw, {row['standardised_low']:.3f} to "
        f"{row['standardised_high']:.3f} as published"
        for row in _rows("horizon-roc")
        if None not in row.values()
    ]
    return f"Published for FormulaOne-L2, over two arms, with CLIP ViT-B/32: {'; '.join(parts)}."
