"""Scores frames with the small dual encoder that ships in the package and needs no download.

Like CLIP it gives cosines of frame embeddings to prompt embeddings, and embeds the prompts once. Unlike CLIP it was
trained on the simulators of this package and knows few words; `card.md` in this folder lists them and says how the
model was made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import (
    COSINE_RULES,
    InputKind,
    Inputs,
    Precision,
    Rule,
    Scorer,
    Similarities,
    check_frames,
    check_options,
)
from vlmsafe.signals.scorers.batches import Part, Pipeline, alone, overlapped
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.embedded import SHIPPED, revision_of
from vlmsafe.signals.scorers.embedded.network import Embedding, load
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet


class EmbeddedScorer(Scorer):
    """Cosines of frames with prompts, from a model of this project."""

    looks_at: ClassVar[InputKind] = "frame"
    rules: ClassVar[tuple[Rule, ...]] = COSINE_RULES
    calibrated: ClassVar[bool] = True

    def __init__(
        self,
        model: Embedding,
        prompts: PromptSet,
        *,
        device: str = "auto",
        precision: Precision = "float32",
        batch: int = 64,
        name: str = "embedded",
        revision: str | None = None,
    ) -> None:
        check_options(batch, precision)
        self.groups = prompts.sizes
        self.frames = model.architecture.frames
        self.batch = batch
        self._device = find_device(device)
        self._half = precision == "bfloat16"
        self.whole = self._device.type == "cuda"
        self.reentrant = not self.whole
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._pipelines: dict[tuple[int, ...], Pipeline] = {}
        self._description = {
            "model": name,
            "revision": revision,
            "device": str(self._device),
            "precision": precision,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "image_size": model.architecture.size,
            "frames": self.frames,
        }
        self._read(prompts)

    @classmethod
    def load(
        cls,
        file: str,
        prompts: PromptSet,
        *,
        device: str = "auto",
        precision: Precision = "float32",
        batch: int = 64,
    ) -> EmbeddedScorer:
        """Load a model from a file of weights; an empty name is the model in the package."""
        path = Path(file).expanduser() if file else SHIPPED
        return cls(
            _read(path),
            prompts,
            device=device,
            precision=precision,
            batch=batch,
            name=file or "embedded",
            revision=revision_of(path),
        )

    def _read(self, prompts: PromptSet) -> None:
        tokens, unknown = Tokenizer(self._model.words, self._model.longest).encode(prompts.texts)
        self._unknown = list(dict.fromkeys(word for words in unknown for word in words))
        with torch.inference_mode():
            self._texts = self._model.text(tokens.to(self._device)).T

    def with_prompts(self, prompts: PromptSet) -> EmbeddedScorer:
        other = copy.copy(self)
        other.groups = prompts.sizes
        other._read(prompts)
        return other

    def score(self, inputs: Inputs) -> Similarities:
        """Stacks uint8 [N, height, width, 3 frames] to similarities [N, P + Q]."""
        check_frames(inputs, self.frames)
        parts = (inputs[start : start + self.batch] for start in range(0, len(inputs), self.batch))
        found = [part for (part,) in overlapped(self.begin([(self, frames)]) for frames in parts)]
        return np.concatenate([np.empty((0, sum(self.groups)), np.float32), *found])

    @torch.inference_mode()
    def begin(self, parts: Sequence[tuple[Scorer, Inputs]]) -> Callable[[], list[Similarities]]:
        given: list[Part] = []
        for scorer, inputs in parts:
            assert isinstance(scorer, EmbeddedScorer)
            given.append((inputs, scorer._texts))
        shape = parts[0][1].shape[1:]
        try:
            if not self.whole:
                found = alone(self._embed, given)
                return lambda: found
            if shape not in self._pipelines:
                self._pipelines[shape] = Pipeline(self._device, self.batch, shape)
            return self._pipelines[shape].begin(self._embed, given)
        except torch.cuda.OutOfMemoryError as error:
            raise InputError(
                f"the memory of {self._device} does not hold {self.batch} frames at a time; lower the batch"
            ) from error

    def _embed(self, frames: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            return self._model.image(frames)

    def describe(self) -> dict[str, Any]:
        return {**self._description, "unknown_words": self._unknown}

    def notes(self, env: str | None = None) -> list[str]:
        notes = []
        if self._unknown:
            words = ", ".join(self._unknown)
            notes.append(f"the scorer 'embedded' was not trained on these words and leaves them out: {words}")
        if env is not None and env.startswith(("gym:", "safety-gymnasium:")):
            notes.append(
                f"the scorer 'embedded' was not trained on frames of '{env}'; its scores may mean nothing there"
            )
        return notes


def _read(path: Path) -> Embedding:
    """The model in a file; errors are one line."""
    try:
        return load(path)
    except InputError:
        raise
    except Exception as error:  # torch and JSON raise many kinds of errors for damaged contents
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"the model in {path} is damaged: {text}") from error
