"""A CLIP, a SigLIP and a SigLIP 2 of a few thousand random weights, saved to a folder as real checkpoints are.

All have weights, a tokenizer that spells every word in letters, and settings of an image processor. The weights are
drawn such that similarities depend on the frame and on the prompt about as much as a trained model's.
"""

import string
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Siglip2Config,
    Siglip2ImageProcessorPil,
    Siglip2Model,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
)

PROMPTS = (
    ("a clear road ahead", "the car keeps its lane"),
    ("about to hit something", "the car leaves the road", "Danger"),
)
"""Positive and negative prompts that fit into the models' 48 tokens."""

MAX_TOKENS = 48
_LETTERS = ["<pad>", "<eos>", "<unk>", " ", *string.ascii_letters, *string.digits, *string.punctuation]

Model = TypeVar("Model", bound=PreTrainedModel)
Tower = dict[str, int]
"""The sizes of both towers, as in a configuration."""
SMALL_TOWER: Tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def save_small_clip(
    folder: Path, *, image_size: int = 32, patch_size: int = 8, seed: int = 0, tower: Tower | None = None
) -> CLIPModel:
    """Save model, tokenizer and image processor; gives the model."""
    letters = sorted(ByteLevel.alphabet())
    names = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={name: token for token, name in enumerate(names)}, merges=[])
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(
        size={"shortest_edge": image_size}, crop_size={"height": image_size, "width": image_size}
    ).save_pretrained(folder)
    config = CLIPConfig(
        text_config={
            **(tower or SMALL_TOWER),
            "vocab_size": len(tokenizer),
            "max_position_embeddings": MAX_TOKENS,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={**(tower or SMALL_TOWER), "image_size": image_size, "patch_size": patch_size},
        projection_dim=16,
    )
    return _save(CLIPModel, config, folder, seed)


def save_small_siglip(
    folder: Path, *, image_size: int = 32, patch_size: int = 8, seed: int = 0, tower: Tower | None = None
) -> SiglipModel:
    """Save model, tokenizer and image processor; gives the model."""
    _save_letters(folder)
    SiglipImageProcessorPil(size={"height": image_size, "width": image_size}).save_pretrained(folder)
    config = SiglipConfig(
        text_config=_siglip_text(tower),
        vision_config={**(tower or SMALL_TOWER), "image_size": image_size, "patch_size": patch_size},
    )
    return _save(SiglipModel, config, folder, seed)


def save_small_siglip2(
    folder: Path, *, patches: int = 16, patch_size: int = 8, seed: int = 0, tower: Tower | None = None
) -> Siglip2Model:
    """One of native resolution: an image is scaled to at most so many patches and keeps its proportions."""
    _save_letters(folder)
    Siglip2ImageProcessorPil(patch_size=patch_size, max_num_patches=patches).save_pretrained(folder)
    config = Siglip2Config(
        text_config=_siglip_text(tower),
        vision_config={**(tower or SMALL_TOWER), "num_patches": patches, "patch_size": patch_size},
    )
    return _save(Siglip2Model, config, folder, seed)


def _siglip_text(tower: Tower | None) -> dict[str, int | None]:
    return {
        **(tower or SMALL_TOWER),
        "vocab_size": len(_LETTERS),
        "max_position_embeddings": MAX_TOKENS,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }


def _save_letters(folder: Path) -> None:
    """A tokenizer that spells and keeps capitals."""
    backend = Tokenizer(WordLevel({name: token for token, name in enumerate(_LETTERS)}, unk_token="<unk>"))
    backend.normalizer = normalizers.NFC()  # keeps capitals, as the tokenizer of SigLIP 2 does
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)


def _save(kind: type[Model], config: PreTrainedConfig, folder: Path, seed: int) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "logit" not in name:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        # The last shift before the embeddings; in trained models, too, all images share a direction.
        vision = model.vision_model
        shift = vision.post_layernorm.bias if kind is CLIPModel else vision.head.mlp.fc2.bias
        torch.nn.init.normal_(shift, std=5.0)
    model.save_pretrained(folder)
    return model
