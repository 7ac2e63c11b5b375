"""Train the two towers to distinguish true captions from false ones, and by prompt sets safe scenes from others.

Each step draws frame stacks and captions. The truth of a caption is known for every stack, so every pair is an example:
the similarity should be high for true captions and low for false ones. Rare facts are mostly false, so the true and the
false stacks of a caption have equal weight.

A signal uses whole sets of prompts: the mean similarity to the negative ones, and its distance from that to the
positive ones. Sets of captions are drawn like the prompt sets of users, and these two numbers are trained as well. The
first should tell whether a contact comes, the second should be above zero where a scene is safe and below where not.
"""

from __future__ import annotations

import copy
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
from vlmsafe.distillation.facts import FACTS, FAR_STEPS, SURE_STEPS
from vlmsafe.signals.scorers.embedded.network import Architecture, Embedding
from vlmsafe.signals.scorers.embedded.tokenizer import STOP_WORDS, Tokenizer, split

WORLD_WEIGHTS = {"metadrive": 1.0, "formula-one": 1.0, "bullet": 1.0}
SMALL_WEIGHT = 0.15
"""How often a world is drawn. The small environments look simple and are learnt soon."""

GOOD = ("safe", "lane_keeping", "centred", "aligned", "progress", "spaced", "clear_ahead", "to_goal", "open_space")
BAD = (
    "danger", "hit_soon", "leave_soon", "zone_soon", "touching", "touching_any", "off_road", "in_zone", "near_vehicle",
    "near_object", "near_zone", "wrong_way", "astray", "misaligned",
)  # fmt: skip
"""Facts that the positive and the negative prompts of a set may state."""
PER_GROUP = 4  # prompts, as in the shipped sets

DENIED = {"hit_soon": "touching", "leave_soon": "off_road", "zone_soon": "in_zone"}
"""What is denied along with a fact: who denies that a crash is coming does not mean that it has come."""

_DENIED_SHARE = 0.25  # captions of a fact's contrary, per caption of the fact
_DENIED_PART = 0.2  # the chance that a part of a caption of two facts is denied
_LOSES_WORD = 0.1  # the chance that a caption lacks a word, as a prompt does whose word is not known
_NEEDED = frozenset({"not", "no", "cannot", "never", "nothing", "without", "or", "and", "about", "soon", "will"})
_WIDE = 0.15  # share of stacks whose frames are twice as far apart, as for agents that decide every second step
_AVERAGED = 0.999  # of the running mean of weights, which is what is kept


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
    sets: int = 32
    """Prompt sets per step."""
    sets_weight: float = 1.0
    """Weight of their loss, next to that of single captions."""
    foresight: float = 0.5
    """What the negative prompts of a set should tell: 1 for the contact to come, 0 for danger, or a mean of both."""
    shift: int = 3
    """Pixels by which a view is moved at random; few, so that nothing leaves the picture."""
    caution: float = 0.5
    """Weight of dangerous scenes in the loss of the margin; safe ones have the rest."""


@dataclass(frozen=True)
class Captions:
    """Tokens [M, L] and the two facts that each caption states: the same one twice, or two joined by `and` or `or`."""

    tokens: Tensor
    facts: Tensor
    """[M, 2]."""
    denied: Tensor
    """[M, 2], whether the contrary of a fact is stated."""
    either: Tensor
    """Whether one of the two is enough."""


class _Drawn:
    """Captions as they are drawn."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.texts: list[str] = []
        self.facts: list[tuple[int, int]] = []
        self.denied: list[tuple[bool, bool]] = []
        self.either: list[bool] = []
        self._rng = rng

    def add(
        self, text: str, facts: tuple[int, int], denied: tuple[bool, bool] = (False, False), either: bool = False
    ) -> None:
        self.texts.append(_less_a_word(text, self._rng) if self._rng.random() < _LOSES_WORD else text)
        self.facts.append(facts)
        self.denied.append(denied)
        self.either.append(either)


def _less_a_word(text: str, rng: np.random.Generator) -> str:
    words = text.split()
    can = [place for place, word in enumerate(words) if word not in _NEEDED and "n't" not in word]
    if len(can) < 4:
        return text
    gone = can[int(rng.integers(len(can)))]
    shorter = " ".join(words[:gone] + words[gone + 1 :])
    says_something = not STOP_WORDS.issuperset(split(shorter))
    return shorter if says_something and grammar.allowed(shorter) else text


def draw_captions(schedule: Schedule, known: Sequence[int], tokenizer: Tokenizer, rng: np.random.Generator) -> Captions:
    """All captions of a training. `known` has the numbers of the facts that the examples have values for."""
    longest = tokenizer.longest or math.inf
    names = list(FACTS)
    numbers = {name: index for index, name in enumerate(names)}
    drawn = _Drawn(rng)
    for index in known:
        for _ in range(schedule.wordings):
            drawn.add(grammar.caption(names[index], rng), (index, index))
    for index in known:
        with_it = numbers[DENIED.get(names[index], names[index])]
        for _ in range(max(1, round(_DENIED_SHARE * schedule.wordings))):
            drawn.add(grammar.caption(names[index], rng, deny=True), (index, with_it), (True, True))
    for pair in grammar.joined():
        first, second = (numbers[name] for name in pair)
        if first in known and second in known:
            for _ in range(schedule.wordings):
                drawn.add(grammar.joined_caption(pair, rng), (first, second))
    for _ in range(schedule.joint):
        first, second = (int(index) for index in rng.choice(known, 2, replace=False))
        word = "or" if rng.random() < 0.3 else "and"
        # A fact that is denied along with another one would be a third fact of the caption.
        deny = tuple(names[index] not in DENIED and bool(rng.random() < _DENIED_PART) for index in (first, second))
        text = ""
        while not text or len(list(split(text))) > longest:
            text = grammar.joint_caption(names[first], names[second], word, rng, deny=(deny[0], deny[1]))
        drawn.add(text, (first, second), (deny[0], deny[1]), word == "or")
    tokens, unknown = tokenizer.encode(drawn.texts)
    assert not any(unknown)
    return Captions(tokens, torch.tensor(drawn.facts), torch.tensor(drawn.denied), torch.tensor(drawn.either))


def caption_truths(truths: Tensor, facts: Tensor, either: Tensor, denied: Tensor | None = None) -> Tensor:
    """[N, facts] to [N, captions]: `and` takes the smaller of its two truths, `or` the larger. Denied: 1 - truth."""
    first, second = truths[:, facts[:, 0]], truths[:, facts[:, 1]]
    if denied is not None:
        first = torch.where(denied[:, 0], 1.0 - first, first)
        second = torch.where(denied[:, 1], 1.0 - second, second)
    return torch.where(either, torch.maximum(first, second), torch.minimum(first, second))


def balanced_loss(logits: Tensor, truths: Tensor, share: float = 0.5) -> Tensor:
    """Mean over captions of the losses on true and on false examples. NaN truths are left out.

    `share` is the weight of the true ones.
    """
    known = ~torch.isnan(truths)
    true = torch.where(known, truths, 0.0)
    false = torch.where(known, 1.0 - truths, 0.0)
    for_true = (true * functional.softplus(-logits)).sum(dim=0) / true.sum(dim=0).clamp_min(1e-6)
    for_false = (false * functional.softplus(logits)).sum(dim=0) / false.sum(dim=0).clamp_min(1e-6)
    usable = (true.sum(dim=0) >= 1.0) & (false.sum(dim=0) >= 1.0)
    both = share * for_true + (1.0 - share) * for_false
    return torch.where(usable, both, 0.0).sum() / usable.sum().clamp_min(1)


def frame_weights(examples: Examples) -> NDArray[np.float64]:
    """Chances of drawing each frame stack: worlds as given above, and in each world danger as often as no danger.

    A piece that begins on the way has no frame before its first one. Its first stack would look as if nothing moved.
    """
    weights = np.zeros(len(examples))
    danger = np.nan_to_num(examples.fact("danger"))
    usable = (examples.frames[:, 0] != examples.frames[:, 1]) | (examples.fact("stopped") != 0.0)
    groups = worlds_of(examples)
    for group in np.unique(groups):
        share = WORLD_WEIGHTS.get(str(group), SMALL_WEIGHT)
        for dangerous in (False, True):
            rows = (groups == group) & ((danger >= 0.3) == dangerous) & usable
            weights[rows] = share / max(rows.sum(), 1)
    return weights / weights.sum()


def worlds_of(examples: Examples) -> NDArray[np.str_]:
    """The world of each stack."""
    names, numbers = np.unique(examples.env, return_inverse=True)
    return np.array([world(str(name)) for name in names])[numbers]


@dataclass(frozen=True)
class PromptSets:
    """From which captions prompt sets are drawn, per world, and what they should tell of every stack."""

    good: list[Tensor]
    bad: list[Tensor]
    """Per world, the numbers of captions that a positive or a negative prompt may be."""
    worlds: Tensor
    """[N], the number of each stack's world."""
    danger: Tensor
    coming: Tensor
    """[N], danger and what the negative prompts should tell."""

    def loss(
        self, seen: Tensor, told: Callable[[Tensor], Tensor], chosen: Tensor, model: Embedding, schedule: Schedule
    ) -> Tensor:
        """The loss of some sets on embedded stacks; `told` embeds captions by their numbers."""
        sets = schedule.sets
        usable = [one for one, pools in enumerate(zip(self.good, self.bad, strict=True)) if min(map(len, pools))]
        if not usable:
            return seen.sum() * 0.0
        which = [usable[int(one)] for one in torch.randint(len(usable), (sets,))]
        rows = [_some(pool[one]) for one in which for pool in (self.good, self.bad)]
        texts = told(torch.cat(rows)).reshape(sets, 2, PER_GROUP, -1).mean(dim=2)  # [sets, 2, D]
        positive, negative = (seen @ texts[:, group].T for group in (0, 1))
        own = self.worlds[chosen][:, None] == torch.tensor(which, device=chosen.device)
        scale = model.log_scale.exp()
        safe = torch.where(own, 1.0 - self.danger[chosen][:, None], torch.nan)
        coming = torch.where(own, self.coming[chosen][:, None], torch.nan)
        margin = balanced_loss(scale * (positive - negative), safe, 1.0 - schedule.caution)
        return margin + balanced_loss(scale * negative + model.bias, coming)


def _some(pool: Tensor) -> Tensor:
    return pool[torch.randint(len(pool), (PER_GROUP,), device=pool.device)]


def prompt_sets(examples: Examples, captions: Captions, foresight: float, device: str) -> PromptSets:
    """The prompt sets of a training. A world's captions state facts that are true and false there."""
    names, groups = list(FACTS), worlds_of(examples)
    worlds = np.unique(groups)
    joined = {tuple(names.index(name) for name in pair) for pair in grammar.joined()}
    plain = ~captions.denied.any(dim=1)
    single = plain & (captions.facts[:, 0] == captions.facts[:, 1])
    pairs = [tuple(pair) for pair in captions.facts.tolist()]
    both = plain & ~captions.either & torch.tensor([pair in joined for pair in pairs])
    good: list[Tensor] = []
    bad: list[Tensor] = []
    for group in worlds:
        truths = examples.truths[groups == group]
        told = torch.from_numpy((truths > 0.5).any(axis=0) & (truths < 0.5).any(axis=0))
        for pool, members, keyword in ((good, GOOD, "safe"), (bad, BAD, "danger")):
            mine = torch.zeros(len(names), dtype=torch.bool)
            mine[[names.index(name) for name in members]] = True
            alone = single & (mine & told)[captions.facts[:, 0]]
            keyed = (captions.facts == names.index(keyword)).any(dim=1)
            pool.append(torch.nonzero(alone | (both & keyed & told[captions.facts].all(dim=1)))[:, 0].to(device))
    danger = examples.fact("danger")
    ahead = np.where(examples.contact, 0.0, examples.ahead)
    # Where the future was cut, or where contacts cost nothing, danger is all that is known.
    costs = np.isin(examples.env, np.unique(examples.env[examples.contact | np.isfinite(ahead)]))
    coming = np.clip((FAR_STEPS - ahead) / (FAR_STEPS - SURE_STEPS), 0.0, 1.0)
    contact = np.where(np.isnan(ahead) | ~costs, danger, coming)
    numbers = np.searchsorted(worlds, groups)
    return PromptSets(
        good, bad, torch.from_numpy(numbers).to(device), torch.from_numpy(danger).to(device),
        torch.from_numpy((foresight * contact + (1.0 - foresight) * danger).astype(np.float32)).to(device),
    )  # fmt: skip


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
    on_gpu = device.startswith("cuda")
    model = Embedding(words, architecture).to(device).train()
    if on_gpu:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kept = copy.deepcopy(model)
    known = np.flatnonzero(~np.isnan(examples.truths).all(axis=0)).tolist()
    captions = draw_captions(schedule, known, Tokenizer(words, model.longest), rng)
    sets = prompt_sets(examples, captions, schedule.foresight, device)
    tokens, facts, denied, either = (
        part.to(device) for part in (captions.tokens, captions.facts, captions.denied, captions.either)
    )
    seen, truths = examples.seen.to(device), torch.from_numpy(examples.truths).to(device)
    frames = torch.from_numpy(examples.frames[:, -model.architecture.frames :]).to(device)
    before = torch.from_numpy(_before(examples)[:, -model.architecture.frames :]).to(device)
    weights = torch.from_numpy(frame_weights(examples)).float().to(device)
    optimiser = torch.optim.AdamW(_groups(model, schedule.weight_decay), lr=schedule.learning_rate)

    def told(numbers: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            return model.text(tokens[numbers])

    for step in range(schedule.steps):
        for group in optimiser.param_groups:
            group["lr"] = schedule.learning_rate * _warm_cosine(step, schedule.steps)
        chosen = torch.multinomial(weights, schedule.frames, replacement=True)
        said = torch.randint(len(tokens), (schedule.captions,), device=device)
        wide = torch.rand(len(chosen), 1, device=device) < _WIDE
        stacks = torch.where(wide, before[chosen], frames[chosen])
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            images = model.image_of_views(_varied(stack_views(seen, stacks), schedule.shift))
        logits = model.log_scale.exp() * images @ told(said).T + model.bias
        loss = balanced_loss(logits, caption_truths(truths[chosen], facts[said], either[said], denied[said]))
        if schedule.sets_weight:
            loss = loss + schedule.sets_weight * sets.loss(images, told, chosen, model, schedule)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        _average(kept, model, min(_AVERAGED, (step + 1) / (step + 10)))
        if step % 100 == 0:
            on_step(step, loss.item())
    return kept.eval().cpu()


def _before(examples: Examples) -> NDArray[np.int64]:
    """Stacks whose frames are twice as far apart, where the episode has such frames."""
    first, last = examples.frames[:, 0], examples.frames[:, -1]
    earlier = np.maximum(first - 1, 0)
    episodes = np.zeros(int(last.max()) + 1, np.int64) - 1
    episodes[last] = examples.episode
    same = (episodes[earlier] == examples.episode) & (first != last)
    return np.stack([np.where(same, earlier, first), last], axis=1)


@torch.no_grad()
def _average(kept: Embedding, model: Embedding, share: float) -> None:
    """Move the running mean of weights a little towards the present ones."""
    for mean, value in zip(kept.state_dict().values(), model.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, 1.0 - share)
        else:
            mean.copy_(value)


def _varied(seen: Tensor, shift: int) -> Tensor:
    """Views mirrored, moved a little and with a little noise. Captions do not distinguish left from right."""
    count, _, height, width = seen.shape
    rows, columns = (torch.arange(size, device=seen.device).expand(count, size) for size in (height, width))
    columns = torch.where(torch.rand(count, 1, device=seen.device) < 0.5, columns, width - 1 - columns)
    moves = torch.randint(-shift, shift + 1, (2, count, 1), device=seen.device)
    rows, columns = (rows + moves[0]) % height, (columns + moves[1]) % width
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)[:, None].expand(-1, seen.shape[1], -1)
    pixels = seen.flatten(2).gather(2, places).view_as(seen).float()
    return (pixels + 8.0 * torch.randn_like(pixels)).clamp(0.0, 255.0)


def _groups(model: Embedding, weight_decay: float) -> list[dict[str, object]]:
    """Parameter groups: weight decay does not apply to biases, norms and scales."""
    decayed = [value for value in model.parameters() if value.ndim >= 2]
    others = [value for value in model.parameters() if value.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def _warm_cosine(step: int, steps: int) -> float:
    warm = max(1, steps // 20)
    return min(1.0, (step + 1) / warm) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
