"""Scores frames with any dual encoder of transformers: cosines of the embeddings of frames and prompts.

Every family is used through its own image processor and the two methods that all of them have. SigLIP 2 of native
resolution works too, because its processor also gives the shapes of the images. CLIP and SigLIP have a fast path,
`vlmsafe.signals.scorers.clip`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import Precision, Similarities
from vlmsafe.signals.scorers.batches import DualEncoder, Part, alone, one_by_one
from vlmsafe.signals.scorers.checkpoints.files import Files, dual_class, read_weights
from vlmsafe.signals.scorers.processors import for_model, pooled, read_image_processor, read_tokenizer
from vlmsafe.signals.scorers.texts import embed_texts

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet


class AnyDualEncoder(DualEncoder):
    """Cosine similarities to the prompts, without the model's logit scale."""

    def __init__(
        self, files: Files, prompts: PromptSet, *, device: torch.device, precision: Precision, batch: int
    ) -> None:
        """Read the model and its processors."""
        self._name = files.name
        self._tokenizer = read_tokenizer(files.folder, files.name)
        self._processor = read_image_processor(files.folder, files.name)
        dtype: torch.dtype = getattr(torch, precision)
        self._model = read_weights(files, dual_class(files), dtype)
        super().__init__(self._model, prompts.sizes, str(device), precision, batch, **files.describe())
        self._model.to(self._device)
        self.reentrant = self._device.type == "cpu"
        self._texts = self._prompts(prompts)

    def _prompts(self, prompts: PromptSet) -> Tensor:
        vectors = embed_texts(self._model, self._tokenizer, prompts.texts, self._name)
        if vectors.ndim != 2:
            raise InputError(f"the model '{self._name}' gives several vectors for a text; expected a dual encoder")
        return functional.normalize(vectors.float(), dim=-1).T.contiguous()

    def with_prompts(self, prompts: PromptSet) -> AnyDualEncoder:
        other = copy.copy(self)
        other.groups, other._texts = prompts.sizes, self._prompts(prompts)
        return other

    def with_batch(self, batch: int) -> AnyDualEncoder:
        other = copy.copy(self)
        other.batch = batch
        return other

    @torch.inference_mode()
    def _begin(self, parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
        found = (alone if self._device.type == "cpu" else one_by_one)(self._embed, parts)
        return lambda: found

    def _embed(self, frames: Tensor) -> Tensor:
        """uint8 [N, height, width, 3] on the CPU to unit vectors [N, D]."""
        images = self._processor(
            images=list(frames.numpy()),
            input_data_format="channels_last",  # otherwise it guesses from the shape
            return_tensors="pt",
        )
        given = for_model(images, self._model)
        return functional.normalize(pooled(self._model.get_image_features(**given)).float(), dim=-1)
