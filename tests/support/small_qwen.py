"""A Qwen2-VL of random weights, tiny, saved as a real checkpoint is: weights, tokenizer and image processor."""

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    PreTrainedModel,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)

WORDS = ("yes", "Yes", " yes", " Yes", "no", "No", " no", "NO")
"""The words that are one token each; the tokenizer spells every other word in bytes."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")


def save_tokenizer(
    folder: Path, words: tuple[str, ...] = WORDS, more: tuple[str, ...] = (), named: dict[str, str] | None = None
) -> Qwen2Tokenizer:
    """A byte-level tokenizer with Qwen's special tokens, in which each of `words` is one token.

    `more` are further special tokens, and `named` those that the tokenizer has as attributes.
    """
    vocabulary = {letter: token for token, letter in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in sorted(words, key=len):  # a word with a space before it is merged from the space and the bare word
        letters = word.replace(" ", "Ġ")
        parts = ["Ġ", letters[1:]] if letters[1:] in vocabulary and letters[0] == "Ġ" else list(letters)
        joined = parts[0]
        for part in parts[1:]:
            merges.append((joined, part))
            joined += part
            vocabulary.setdefault(joined, len(vocabulary))
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=list(dict.fromkeys(merges)),
        pad_token=SPECIAL[0],
        eos_token="<|im_end|>",
        extra_special_tokens=[*SPECIAL, *more],
        model_specific_special_tokens=named or {},
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_small_qwen(
    folder: Path, kind: Literal["qwen2_vl", "qwen2_5_vl"] = "qwen2_vl", words: tuple[str, ...] = WORDS
) -> PreTrainedModel:
    """Save model, tokenizer and image processor; gives the model."""
    tokenizer = save_tokenizer(folder, words)
    text = {
        "vocab_size": len(tokenizer) + 8,  # a real checkpoint's is rounded up too
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        "pad_token_id": None,
        "initializer_range": 0.3,
    }
    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "initializer_range": 0.1}
    if kind == "qwen2_vl":
        vision |= {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "fullatt_block_indexes": [1]}
    config = AutoConfig.for_model(
        kind,
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(folder)
    Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 64).save_pretrained(folder)
    return model
