"""BLIP for retrieval, with the two methods that other dual encoders have."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import BlipForImageTextRetrieval


class BlipRetrieval(BlipForImageTextRetrieval):  # type: ignore[no-untyped-call]
    """Its contrastive vectors. The head that decides whether a text matches an image is not used."""

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        found: Any = self.vision_model(pixel_values=pixel_values).last_hidden_state
        vectors: Tensor = self.vision_proj(found[:, 0])
        return vectors

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Any = self.text_encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        vectors: Tensor = self.text_proj(found[:, 0])
        return vectors
