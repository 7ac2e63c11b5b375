"""The training of a distilled scorer: a small image tower and a table of prompts learn a teacher's similarities.

Errors are measured in standard deviations of each column, so that a column that varies little counts as much as any
other. The margin between the groups of prompts is a column of its own in the loss: shaping uses margins, and columns of
one teacher rise and fall together, so that their difference is much smaller than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlmsafe.distillation.data import stack_views
from vlmsafe.distillation.stacks import Float64, Frames, cost_within
from vlmsafe.distillation.teach import Float32
from vlmsafe.distillation.train import _groups, _warm_cosine
from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.embedded.network import Architecture, Embedding

_ROOM = 3.0  # a prompt's scale is so many times the reach of its column, where the bounds of cosines allow it
_NOISE = 4.0  # of 255, added to every pixel: no frame is seen twice
_CONSTANT = 1e-5  # a column that varies by less has nothing to learn
_NEAR = 40  # steps; frames this near to a cost are half of those that are drawn


@dataclass(frozen=True)
class Lessons:
    """The length and speed of training."""

    steps: int = 2000
    stacks: int = 64
    """Frame stacks per step."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    mirror: bool = False
    """Whether half of the stacks are mirrored, for a teacher to whom left and right are the same."""


@dataclass(frozen=True)
class Targets:
    """What a student is to say of every frame stack."""

    columns: tuple[str, ...]
    values: Float64
    """[N, columns], from -1 to 1; NaN where it is not known."""
    groups: tuple[int, int]
    """How many of the columns are positive and negative. A column that follows belongs to neither."""


def cost_column(steps: int) -> str:
    """The text under which a student knows the cost within so many steps.

    >>> cost_column(20)
    'cost within 20 steps'
    """
    return f"cost within {steps} steps"


def train_student(
    frames: Frames,
    targets: Targets,
    lessons: Lessons,
    *,
    seed: int = 0,
    device: str = "cpu",
    architecture: Architecture | None = None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Embedding:
    """A model whose prompts are the columns of the targets. The same seed gives the same model on one machine."""
    torch.manual_seed(seed)
    model = Embedding((), architecture, targets.columns).to(device).train()
    centres, scales = reach(targets.values)
    model.table.centres.copy_(torch.from_numpy(centres))
    model.table.scales.copy_(torch.from_numpy(scales))
    seen = frames.seen.to(device)
    stacks = torch.from_numpy(frames.stacks[:, -model.architecture.frames :]).to(device)
    wanted = torch.from_numpy(targets.values).float().to(device)
    spread = torch.from_numpy(np.maximum(np.nanstd(targets.values, axis=0), _CONSTANT)).float().to(device)
    known_margin = margin_of(wanted, targets.groups)
    margin_spread = known_margin.std().clamp_min(_CONSTANT)
    weights = torch.from_numpy(chances(frames)).to(device)
    every = torch.arange(1, len(targets.columns) + 1, device=device)[:, None]
    optimiser = torch.optim.AdamW(_groups(model, lessons.weight_decay), lr=lessons.learning_rate)
    for step in range(lessons.steps):
        for group in optimiser.param_groups:
            group["lr"] = lessons.learning_rate * _warm_cosine(step, lessons.steps)
        chosen = torch.multinomial(weights, lessons.stacks, replacement=True)
        pixels = stack_views(seen, stacks[chosen]).float()
        if lessons.mirror:
            turned = torch.rand(len(pixels), 1, 1, 1, device=device) < 0.5
            pixels = torch.where(turned, pixels.flip(-1), pixels)
        pixels = (pixels + _NOISE * torch.randn_like(pixels)).clamp(0.0, 255.0)
        with torch.autocast("cuda", torch.bfloat16, enabled=device.startswith("cuda")):
            images = model.image_of_views(pixels)
        said = images @ model.text(every).T
        error = _squares((said - wanted[chosen]) / spread)
        error = error + _squares((margin_of(said, targets.groups) - known_margin[chosen])[:, None] / margin_spread)
        optimiser.zero_grad(set_to_none=True)
        error.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 100 == 0:
            on_step(step, error.item())
    return model.eval().cpu()


def _squares(errors: Tensor) -> Tensor:
    """The mean of squares over rows, then over columns. What is not known is left out."""
    known = ~torch.isnan(errors)
    squares = torch.where(known, errors, 0.0).square().sum(dim=0) / known.sum(dim=0).clamp_min(1)
    return squares.mean()


def margin_of(similarities: Tensor, groups: tuple[int, int]) -> Tensor:
    """The mean of the positive columns minus that of the negative ones."""
    positive, negative = groups
    return similarities[:, :positive].mean(dim=1) - similarities[:, positive : positive + negative].mean(dim=1)


def reach(values: Float64) -> tuple[Float32, Float32]:
    """Centre and scale of each column. Cosines of a part of -1 to 1 then cover all of its values.

    >>> reach(np.array([[0.2, -1.0], [0.3, 1.0]]))
    (array([0.25, 0.  ], dtype=float32), array([0.15, 1.  ], dtype=float32))
    """
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    centres, half = (low + high) / 2.0, np.maximum((high - low) / 2.0, _CONSTANT)
    scales = np.minimum(_ROOM * half, 1.0 - np.abs(centres))
    return centres.astype(np.float32), np.maximum(scales, _CONSTANT).astype(np.float32)


def chances(frames: Frames) -> Float64:
    """The chance of drawing each stack: those near a cost as often as the others, if there are both."""
    near = np.nan_to_num(cost_within(frames, _NEAR)) > 0.0
    if not near.any() or near.all():
        return np.full(len(near), 1.0 / len(near))
    return np.where(near, 0.5 / near.sum(), 0.5 / (~near).sum())


def with_prompts(model: Embedding, prompts: Sequence[str], column_of: Sequence[int]) -> Embedding:
    """The same model with these prompts; each has the vector of one of its columns."""
    other = Embedding((), model.architecture, tuple(prompts))
    state = model.state_dict()
    rows = torch.tensor(list(column_of))
    other.load_state_dict({name: value[rows] if name.startswith("_text.") else value for name, value in state.items()})
    other.worlds = model.worlds
    return other.eval()


def require_variation(columns: Sequence[str], values: NDArray[np.floating], teacher: str) -> list[str]:
    """Refuse a teacher that gives all frames the same similarities; returns the columns in which it does."""
    still = [name for name, column in zip(columns, values.T, strict=True) if np.nanstd(column) < _CONSTANT]
    if len(still) == len(columns):
        raise InputError(
            f"the teacher '{teacher}' gives every recorded frame the same similarities, so there is nothing to learn; "
            "look at its frames, or record other drivers"
        )
    return still
