"""Scores frames with the small dual encoder that ships in the package and needs no download.

Like CLIP it gives cosines of frame embeddings to prompt embeddings, and embeds the prompts once. Unlike CLIP it was
trained on the simulators of this package and knows few words; `card.md` in this folder lists them and says how the
model was made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import Precision, Similarities
from vlmsafe.signals.scorers.batches import DualEncoder, Part, Pipeline, alone
from vlmsafe.signals.scorers.embedded import SHIPPED, revision_of, trained_in
from vlmsafe.signals.scorers.embedded.network import Embedding, load
from vlmsafe.signals.scorers.embedded.prompt_table import find_prompts
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer
from vlmsafe.signals.scorers.threads import one_if_pinned

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet


class EmbeddedScorer(DualEncoder):
    """Cosines of frames with prompts, from a model of this project."""

    gate = "calibrated"

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
        worlds: Mapping[str, int | None] | None = None,
    ) -> None:
        """`worlds` are the versions of the environments in which the model was trained, where they are known."""
        super().__init__(model, prompts.sizes, device, precision, batch, model=name, revision=revision)
        self.frames = model.architecture.frames
        self.whole = self._device.type == "cuda"
        self.reentrant = not self.whole
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._pipelines: dict[tuple[int, ...], Pipeline] = {}
        self._description |= {"image_size": model.architecture.size, "frames": self.frames}
        self._worlds = {**(worlds or {}), **model.worlds}
        self._read(prompts)

    @classmethod
    def load(
        cls, file: str, prompts: PromptSet, *, device: str = "auto", precision: Precision = "float32", batch: int = 64
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
            worlds=trained_in(path),
        )

    def _read(self, prompts: PromptSet) -> None:
        self._unknown: list[str] = []
        if self._model.prompts:
            tokens = find_prompts(prompts.texts, self._model.prompts)
        else:
            tokens, unknown = Tokenizer(self._model.words, self._model.longest).encode(prompts.texts)
            self._unknown = list(dict.fromkeys(word for words in unknown for word in words))
        with torch.inference_mode(), one_if_pinned():
            self._texts = self._model.text(tokens.to(self._device)).T

    def with_prompts(self, prompts: PromptSet) -> EmbeddedScorer:
        other = copy.copy(self)
        other.groups = prompts.sizes
        other._read(prompts)
        return other

    def with_batch(self, batch: int) -> EmbeddedScorer:
        other = copy.copy(self)
        other.batch, other._pipelines = batch, {}  # their buffers hold batches of one size
        return other

    @torch.inference_mode()
    def _begin(self, parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
        if not self.whole:
            found = alone(self._embed, parts)
            return lambda: found
        shape = parts[0][0].shape[1:]
        if shape not in self._pipelines:
            self._pipelines[shape] = Pipeline(self._device, self.batch, shape)
        return self._pipelines[shape].begin(self._embed, parts)

    def _embed(self, frames: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
            return self._model.image(frames)

    def describe(self) -> dict[str, Any]:
        return {**self._description, "unknown_words": self._unknown}

    def notes(self, env: str | None = None) -> list[str]:
        notes = []
        if self._unknown:
            words = ", ".join(self._unknown)
            notes.append(f"the scorer 'embedded' was not trained on these words and leaves them out: {words}")
        if env is not None and self._foreign(env):
            notes.append(
                f"the scorer 'embedded' was not trained on frames of '{env}'; its scores may mean nothing there"
            )
        notes += self._other_world(env) if env is not None else []
        return notes

    def _foreign(self, env: str) -> bool:
        """Whether the model was trained elsewhere, as far as is known."""
        bare = env.partition("@")[0]  # the interpreter is a place
        if self._model.prompts:
            return bare not in self._worlds
        return bare.startswith(("gym:", "safety-gymnasium:")) and bare not in self._worlds

    def _other_world(self, env: str) -> list[str]:
        """A note if the environment has changed since the model was trained."""
        from vlmsafe.envs.registry import ENVS, env_spec  # here, because scoring needs no environments

        known = env.partition(":")[0]
        then, now = self._worlds.get(known), env_spec(env).version if known in ENVS else None
        if then is None or now in (None, then) or env == ENVS[known].formerly.get(then):
            return []
        return [
            f"the scorer 'embedded' was trained and measured in version {then} of {known}, and this is version {now}, "
            "another world; the figures on its card are not those of this one"
        ]


def _read(path: Path) -> Embedding:
    """The model in a file; errors are one line."""
    try:
        return load(path)
    except InputError:
        raise
    except Exception as error:  # torch and JSON raise many kinds of errors for damaged contents
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"the model in {path} is damaged: {text}") from error
