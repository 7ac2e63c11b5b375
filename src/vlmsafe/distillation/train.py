"""Train the two towers to distinguish true captions from false ones.

Each step draws frame stacks and captions. The truth of a caption is known for every stack, so every pair is an example:
the similarity should be high for true captions and low for false ones. Rare facts are mostly false, so the true and the
false stacks of a caption have equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vlmsafe.distillation import grammar
from vlmsafe.distillation.data import Examples, stack_views, world
from vlmsafe.distillation.facts import FACTS
from vlmsafe.signals.scorers.embedded.network import Architecture, Embedding
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer, split

WORLD_WEIGHTS = {"metadrive": 1.0, "formula-one": 1.0, "bullet": 0.6}
SMALL_WEIGHT = 0.15
"""How often a world is drawn. The small environments look simple and are learnt soon."""

_SHIFT = 3  # pixels by which a view is moved at random; small, so that gaps look the same


@dataclass(frozen=True)
class Schedule:
    """The length and speed of training."""

    steps: int = 6000
    frames: int = 512
    """Frame stacks per step; `data.json` stores it under this name."""
    captions: int = 256
    """Captions per step."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.2
    wordings: int = 3000
    """Captions drawn beforehand per fact."""
    joint: int = 21000
    """Captions of two facts."""


@dataclass(frozen=True)
class Captions:
    """Tokens [M, L] and the two facts that each caption states: the same one twice, or two joined by `and` or `or`."""

    tokens: Tensor
    facts: Tensor
    """[M, 2]."""
    either: Tensor
    """Whether one of the two is enough."""


def draw_captions(schedule: Schedule, known: Sequence[int], tokenizer: Tokenizer, rng: np.random.Generator) -> Captions:
    """All captions of a training. `known` has the numbers of the facts that the examples have values for."""
    longest = tokenizer.longest or math.inf
    names = list(FACTS)
    texts, facts, either = [], [], []
    for index in known:
        texts += [grammar.caption(names[index], rng) for _ in range(schedule.wordings)]
        facts += [(index, index)] * schedule.wordings
    either += [False] * len(texts)
    for _ in range(schedule.joint):
        first, second = (int(index) for index in rng.choice(known, 2, replace=False))
        word = "or" if rng.random() < 0.3 else "and"
        text = grammar.joint_caption(names[first], names[second], word, rng)
        while len(list(split(text))) > longest:
            text = grammar.joint_caption(names[first], names[second], word, rng)
        texts.append(text)
        facts.append((first, second))
        either.append(word == "or")
    tokens, unknown = tokenizer.encode(texts)
    assert not any(unknown)
    return Captions(tokens, torch.tensor(facts), torch.tensor(either))


def caption_truths(truths: Tensor, facts: Tensor, either: Tensor) -> Tensor:
    """[N, facts] to [N, captions]: `and` takes the smaller of its two truths, `or` the larger."""
    first, second = truths[:, facts[:, 0]], truths[:, facts[:, 1]]
    return torch.where(either, torch.maximum(first, second), torch.minimum(first, second))


def balanced_loss(logits: Tensor, truths: Tensor) -> Tensor:
    """Mean over captions of the losses on true and on false examples, half each. NaN truths are left out."""
    known = ~torch.isnan(truths)
    true = torch.where(known, truths, 0.0)
    false = torch.where(known, 1.0 - truths, 0.0)
    for_true = (true * functional.softplus(-logits)).sum(dim=0) / true.sum(dim=0).clamp_min(1e-6)
    for_false = (false * functional.softplus(logits)).sum(dim=0) / false.sum(dim=0).clamp_min(1e-6)
    usable = (true.sum(dim=0) >= 1.0) & (false.sum(dim=0) >= 1.0)
    return torch.where(usable, for_true + for_false, 0.0).sum() / (2.0 * usable.sum().clamp_min(1))


def frame_weights(examples: Examples) -> NDArray[np.float64]:
    """Chances of drawing each frame stack: worlds as given above, and in each world danger as often as no danger."""
    weights = np.zeros(len(examples))
    danger = np.nan_to_num(examples.fact("danger"))
    names, numbers = np.unique(examples.env, return_inverse=True)
    groups = np.array([world(str(name)) for name in names])[numbers]
    for group in np.unique(groups):
        share = WORLD_WEIGHTS.get(str(group), SMALL_WEIGHT)
        for dangerous in (False, True):
            rows = (groups == group) & ((danger >= 0.3) == dangerous)
            weights[rows] = share / max(rows.sum(), 1)
    return weights / weights.sum()


def train(
    examples: Examples,
    schedule: Schedule,
    *,
    seed: int = 0,
    device: str = "cpu",
    architecture: Architecture | None = None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Embedding:
    """A model trained on the examples."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    words = grammar.vocabulary()
    model = Embedding(words, architecture).to(device).train()
    known = np.flatnonzero(~np.isnan(examples.truths).all(axis=0)).tolist()
    captions = draw_captions(schedule, known, Tokenizer(words, model.longest), rng)
    tokens, facts, either = (part.to(device) for part in (captions.tokens, captions.facts, captions.either))
    seen, truths = examples.seen.to(device), torch.from_numpy(examples.truths).to(device)
    frames = torch.from_numpy(examples.frames[:, -model.architecture.frames :]).to(device)
    weights = torch.from_numpy(frame_weights(examples)).float().to(device)
    optimiser = torch.optim.AdamW(_groups(model, schedule.weight_decay), lr=schedule.learning_rate)
    on_gpu = device.startswith("cuda")
    for step in range(schedule.steps):
        for group in optimiser.param_groups:
            group["lr"] = schedule.learning_rate * _warm_cosine(step, schedule.steps)
        chosen = torch.multinomial(weights, schedule.frames, replacement=True)
        said = torch.randint(len(tokens), (schedule.captions,), device=device)
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            images = model.image_of_views(_varied(stack_views(seen, frames[chosen])))
            texts = model.text(tokens[said])
        logits = model.log_scale.exp() * images @ texts.T + model.bias
        loss = balanced_loss(logits, caption_truths(truths[chosen], facts[said], either[said]))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 100 == 0:
            on_step(step, loss.item())
    return model.eval().cpu()


def _varied(seen: Tensor) -> Tensor:
    """Views mirrored, moved a little and with a little noise. Captions do not distinguish left from right."""
    pixels = seen.float()
    if torch.rand(()) < 0.5:
        pixels = pixels.flip(-1)
    down, right = (int(shift) for shift in torch.randint(-_SHIFT, _SHIFT + 1, (2,)))
    pixels = pixels.roll((down, right), dims=(-2, -1))
    return (pixels + 8.0 * torch.randn_like(pixels)).clamp(0.0, 255.0)


def _groups(model: Embedding, weight_decay: float) -> list[dict[str, object]]:
    """Parameter groups: weight decay does not apply to biases, norms and scales."""
    decayed = [value for value in model.parameters() if value.ndim >= 2]
    others = [value for value in model.parameters() if value.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def _warm_cosine(step: int, steps: int) -> float:
    warm = max(1, steps // 20)
    return min(1.0, (step + 1) / warm) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
