"""Embeds prompts with the text tower of a dual encoder, as each family was trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.processors import pooled
from vlmsafe.signals.scorers.threads import one_if_pinned

_PADDED = ("siglip", "siglip2")
"""These kinds were trained on lower case, and on texts padded to the full length, with attention to the padding."""


def embed_texts(network: Any, tokenizer: Any, prompts: tuple[str, ...], model: str) -> Tensor:
    """The prompt embeddings [P + Q, D]; `model` is its name, for messages."""
    config = network.config
    longest = longest_text(config, tokenizer)
    texts = readable(prompts, config.model_type, tokenizer, longest, model)
    with torch.inference_mode(), one_if_pinned():
        if config.model_type in _PADDED:
            tokens = tokenizer(
                texts, padding="max_length", max_length=longest, padding_side="right", return_tensors="pt"
            )
            given = {"input_ids": tokens["input_ids"]}
        else:
            tokens = tokenizer(texts, padding=True, return_tensors="pt")
            given = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        return pooled(network.get_text_features(**{name: ids.to(network.device) for name, ids in given.items()}))


def longest_text(config: Any, tokenizer: Any) -> int:
    """How many tokens a model reads."""
    found = getattr(config.text_config, "max_position_embeddings", None)
    return int(tokenizer.model_max_length if found is None else found)


def readable(prompts: tuple[str, ...], kind: str, tokenizer: Any, longest: int, model: str) -> list[str]:
    """The prompts as a model of a kind reads them; an InputError for one that is too long for it."""
    # The tokenizer of SigLIP 2 does not convert to lower case.
    texts = [prompt.lower() if kind in _PADDED else prompt for prompt in prompts]
    for prompt, text in zip(prompts, texts, strict=True):
        if (count := len(tokenizer(text)["input_ids"])) > longest:  # cutting it off would change its meaning
            raise InputError(
                f"the prompt '{prompt}' has {count} tokens, and the model '{model}' reads at most {longest}; shorten it"
            )
    return texts
