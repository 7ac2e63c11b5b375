"""What scorers by yes/no probabilities share: the tokens that answer their questions, and batches of frames.

A chat model is asked, for each group of prompts, whether the frame shows the group's description. With l the logits of
the next token, and Y and N the tokens that spell yes and no,

    P(yes | frame, description) = sigmoid(logsumexp of l over Y - logsumexp of l over N)
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import YES_NO_RULES, Inputs, Scorer, Similarities, check_frames
from vlmsafe.signals.scorers.questions import NO, YES

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet


def split_shared(texts: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The tokens that all questions begin with, and the rest of each: at least the token before the answer."""
    same = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*texts, strict=False)))
    shared = min(same, *(len(tokens) - 1 for tokens in texts))
    return list(texts[0][:shared]), [list(tokens[shared:]) for tokens in texts]


@dataclass(frozen=True)
class Answers:
    """The tokens of a model that spell yes and no, by spelling."""

    yes: dict[str, int]
    no: dict[str, int]

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> Answers:
        """The spellings that are one token of a tokenizer; `name` is the model's, for messages."""
        return cls(_single_tokens(tokenizer, YES, name), _single_tokens(tokenizer, NO, name))

    def probability(self, logits: Tensor) -> Tensor:
        """P(yes) of each row of logits [N, vocabulary]."""
        exact = logits.float()
        yes, no = (exact[:, list(tokens.values())].logsumexp(1) for tokens in (self.yes, self.no))
        return (yes - no).sigmoid()


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _single_tokens(tokenizer: Any, variants: Sequence[str], name: str) -> dict[str, int]:
    """The variants that are one token. Decoding the token must give the variant, which excludes the 'unknown' token."""
    found: dict[str, int] = {}
    for variant in variants:
        tokens = encode(tokenizer, variant)
        if len(tokens) == 1 and tokenizer.decode(tokens) == variant:
            found[variant] = tokens[0]
    if not found:
        raise InputError(f"the tokenizer of {name} has no single token for '{variants[0]}' in any spelling")
    return found


class YesNoScorer(Scorer):
    """Two columns: P(yes) for the description of the positive group and of the negative group."""

    looks_at = "frame"
    rules = YES_NO_RULES
    bounds = (0.0, 1.0)
    gate = "probability"
    groups = (1, 1)
    _questions: Sequence[str]

    def __init__(self, model: Any, answers: Answers, *, kind: str, name: str, device: torch.device, batch: int) -> None:
        """`kind` is the scorer's kind and `name` the model's name, for messages."""
        if batch < 1:
            raise InputError(f"the batch of the scorer '{kind}' must be at least 1, got {batch}")
        self._kind, self._name, self._device, self._batch = kind, name, device, batch
        self._answers = answers
        try:
            self._model = model.to(device).eval().requires_grad_(False)
        except torch.cuda.OutOfMemoryError:
            raise InputError(
                f"{name} does not fit into the memory of {device}; use a smaller model, or the precision bfloat16"
            ) from None

    @abstractmethod
    def _ask(self, prompts: PromptSet) -> None:
        """Prepare the questions about the prompts."""

    @abstractmethod
    def _probabilities(self, frames: Inputs) -> Tensor:
        """P(yes) for stacks of frames of one size and both questions, [N, 2]."""

    def with_prompts(self, prompts: PromptSet) -> Self:
        other = copy.copy(self)
        other._ask(prompts)
        return other

    def with_batch(self, batch: int) -> Self:
        other = copy.copy(self)
        other._batch = batch
        return other

    @torch.inference_mode()
    def score(self, inputs: Inputs) -> Similarities:
        check_frames(inputs, self.frames)
        probabilities = np.empty((len(inputs), len(self._questions)), np.float32)
        for start in range(0, len(inputs), self._batch):
            part = slice(start, start + self._batch)
            try:
                probabilities[part] = self._probabilities(inputs[part]).cpu().numpy()
            except torch.cuda.OutOfMemoryError:
                raise InputError(
                    f"{self._name} runs out of memory on {self._device} with {self._batch} frames at a time; "
                    "lower the batch, or use a smaller model"
                ) from None
        return probabilities

    def _repeat(self, tokens: Sequence[int], count: int) -> Tensor:
        return torch.tensor(tokens, device=self._device).expand(count, -1)

    def describe(self) -> dict[str, Any]:
        return {
            "model": self._name,
            "device": str(self._device),
            "precision": str(self._model.dtype).removeprefix("torch."),
            "frames": self.frames,
            "parameters": sum(parameter.numel() for parameter in self._model.parameters()),
            "questions": list(self._questions),
            "yes": list(self._answers.yes),
            "no": list(self._answers.no),
        }
