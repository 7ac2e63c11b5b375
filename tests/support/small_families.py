"""Random models of many families, saved as real checkpoints are: weights, tokenizer, image processor, chat template.

The tests load tiny ones, and `benchmarks/families.py` larger ones. Nothing here needs torchvision or a download.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from small_models import save_small_clip, save_small_siglip, save_small_siglip2
from small_qwen import WORDS, save_tokenizer
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel

_models: Any = transformers  # half typed; what comes from it is Any


@dataclass(frozen=True)
class Size:
    """How large the parts of a model are."""

    width: int = 32
    layers: int = 2
    heads: int = 2
    image: int = 32
    """Pixels on a side of the images that models of fixed resolution read."""


TINY = Size()

QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
QWEN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What the published checkpoints of Qwen2-VL make of one image and one question."""

_PLAIN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE\n{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _template(image: str) -> str:
    return _PLAIN_TEMPLATE.replace("IMAGE", image)


def _text(size: Size, vocabulary: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": size.width,
        "intermediate_size": 2 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": max(size.heads // 2, 1),
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "initializer_range": 1.7 * size.width**-0.5,  # frames and questions must matter
        **more,
    }


def _vision(size: Size, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": size.width,
        "intermediate_size": 2 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "initializer_range": 0.57 * size.width**-0.5,
        **more,
    }


def _save_chat(
    folder: Path,
    kind: str,
    tokenizer: Any,
    processor: Any,
    template: str,
    settings: dict[str, Any],
    about_processor: dict[str, Any] | None = None,
) -> Any:
    config = _models.AutoConfig.for_model(kind, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _models.AutoModelForImageTextToText.from_config(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("mm_input_projection_weight"):  # Gemma's begins with zeros, which hides the image
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)
    if about_processor is not None:
        (folder / "processor_config.json").write_text(json.dumps(about_processor))
    return model


def _qwen(folder: Path, kind: str, size: Size, words: tuple[str, ...]) -> Any:
    tokenizer = save_tokenizer(folder, words)
    half = size.width // size.heads // 2
    section = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]
    vision: dict[str, Any] = {"depth": size.layers, "num_heads": size.heads}
    vision["initializer_range"] = 0.57 * size.width**-0.5
    more: dict[str, Any] = {}
    if kind == "qwen2_vl":
        vision |= {"embed_dim": size.width, "hidden_size": size.width, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": size.width, "out_hidden_size": size.width, "intermediate_size": 2 * size.width}
    if kind == "qwen2_5_vl":
        vision["fullatt_block_indexes"] = [size.layers - 1]
    if kind == "qwen3_vl":
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
        more["head_dim"] = size.width // size.heads
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": section}
    patch = 16 if kind == "qwen3_vl" else 14
    return _save_chat(
        folder,
        kind,
        tokenizer,
        _models.Qwen2VLImageProcessorPil(
            min_pixels=(4 * patch) ** 2, max_pixels=(16 * patch) ** 2, patch_size=patch, merge_size=2
        ),
        QWEN_TEMPLATE,
        {
            "text_config": _text(size, len(tokenizer) + 8, rope_parameters=rope, **more),
            "vision_config": vision,
            "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
            "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        },
    )


def _internvl(folder: Path, size: Size, words: tuple[str, ...]) -> Any:
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = save_tokenizer(folder, words, named=names)
    per_image = (size.image // 8) ** 2 // 4
    return _save_chat(
        folder,
        "internvl",
        tokenizer,
        _models.GotOcr2ImageProcessorPil(size={"height": size.image, "width": size.image}, max_patches=4),
        _template("<IMG_CONTEXT>"),
        {
            "text_config": {"model_type": "qwen2", **_text(size, len(tokenizer) + 8)},
            "vision_config": _vision(size, image_size=[size.image, size.image], patch_size=[8, 8]),
            "image_token_id": tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
            "image_seq_length": per_image,
        },
        {"processor_class": "InternVLProcessor", "image_seq_length": per_image},
    )


def _idefics3(folder: Path, size: Size, words: tuple[str, ...]) -> Any:
    places = [f"<row_{row + 1}_col_{column + 1}>" for row in range(6) for column in range(6)]
    special = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *places)
    tokenizer = save_tokenizer(folder, words, special)
    per_image = (size.image // 8) ** 2 // 4
    return _save_chat(
        folder,
        "idefics3",
        tokenizer,
        _models.Idefics3ImageProcessorPil(
            size={"longest_edge": 2 * size.image}, max_image_size={"longest_edge": size.image}
        ),
        _template("<image>"),
        {
            "text_config": {"model_type": "llama", **_text(size, len(tokenizer) + 8)},
            "vision_config": _vision(size, image_size=size.image, patch_size=8),
            "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
            "pad_token_id": 0,
            "scale_factor": 2,
        },
        {"processor_class": "Idefics3Processor", "image_seq_len": per_image},
    )


def _llava(folder: Path, size: Size, words: tuple[str, ...]) -> Any:
    tokenizer = save_tokenizer(folder, words, ("<image>",))
    return _save_chat(
        folder,
        "llava",
        tokenizer,
        _models.CLIPImageProcessorPil(
            size={"shortest_edge": size.image}, crop_size={"height": size.image, "width": size.image}
        ),
        _template("<image>"),
        {
            "text_config": {"model_type": "llama", **_text(size, len(tokenizer) + 8)},
            "vision_config": {
                "model_type": "clip_vision_model",
                **_vision(size, image_size=size.image, patch_size=8, projection_dim=size.width),
            },
            "image_token_index": tokenizer.convert_tokens_to_ids("<image>"),
            "vision_feature_layer": -1,
        },
        {
            "processor_class": "LlavaProcessor",
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    )


def _gemma3(folder: Path, size: Size, words: tuple[str, ...]) -> Any:
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = save_tokenizer(folder, words, named=names)
    per_image = (size.image // 8 // 2) ** 2
    head = size.width // size.heads
    return _save_chat(
        folder,
        "gemma3",
        tokenizer,
        _models.Gemma3ImageProcessorPil(size={"height": size.image, "width": size.image}),
        _template("<start_of_image>"),
        {
            "text_config": _text(
                size,
                len(tokenizer) + 8,
                head_dim=head,
                query_pre_attn_scalar=head,
                sliding_window=64,  # shorter than a question, so that half of the layers forget its beginning
                layer_types=["sliding_attention" if n % 2 == 0 else "full_attention" for n in range(size.layers)],
            ),
            "vision_config": {"model_type": "siglip_vision_model", **_siglip_vision(size)},
            "mm_tokens_per_image": per_image,
            "boi_token_index": tokenizer.convert_tokens_to_ids("<start_of_image>"),
            "eoi_token_index": tokenizer.convert_tokens_to_ids("<end_of_image>"),
            "image_token_index": tokenizer.convert_tokens_to_ids("<image_soft_token>"),
            "initializer_range": 1.7 * size.width**-0.5,
        },
        {"processor_class": "Gemma3Processor", "image_seq_length": per_image},
    )


def _siglip_vision(size: Size) -> dict[str, Any]:
    plain = _vision(size, image_size=size.image, patch_size=8, vision_use_head=False)
    del plain["initializer_range"]
    return plain


_CHAT: dict[str, Callable[[Path, Size, tuple[str, ...]], Any]] = {
    "qwen2_vl": lambda folder, size, words: _qwen(folder, "qwen2_vl", size, words),
    "qwen2_5_vl": lambda folder, size, words: _qwen(folder, "qwen2_5_vl", size, words),
    "qwen3_vl": lambda folder, size, words: _qwen(folder, "qwen3_vl", size, words),
    "internvl": _internvl,
    "idefics3": _idefics3,
    "llava": _llava,
    "gemma3": _gemma3,
}
CHAT_FAMILIES = tuple(_CHAT)


def save_chat_model(folder: Path, family: str, size: Size = TINY, words: tuple[str, ...] = WORDS) -> Any:
    """Save a chat model of a family; gives the model. `words` are one token each."""
    folder.mkdir(parents=True, exist_ok=True)
    return _CHAT[family](folder, size, words)


def _letters(folder: Path) -> int:
    """A tokenizer that spells; gives the number of its tokens."""
    letters = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *string.ascii_letters, *string.digits, *string.punctuation]
    backend = Tokenizer(WordLevel({name: token for token, name in enumerate(letters)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    _models.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return len(letters)


def _save_dual(folder: Path, kind: Any, config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "logit" not in name:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    model.save_pretrained(folder)
    return model


def _align(folder: Path, size: Size) -> Any:
    """It always reads small images: the width of its last pooling depends on their size."""
    vocabulary = _letters(folder)
    _models.EfficientNetImageProcessorPil(
        size={"height": 32, "width": 32}, do_center_crop=False, include_top=False
    ).save_pretrained(folder)
    one = {"kernel_sizes": [3], "in_channels": [32], "out_channels": [16], "strides": [2], "num_block_repeats": [1]}
    vision = {**one, "image_size": 32, "expand_ratios": [1], "width_coefficient": 1.0, "depth_coefficient": 1.0}
    config = _models.AlignConfig(
        text_config=_text(size, vocabulary, max_position_embeddings=64, hidden_dropout_prob=0.0, pad_token_id=0),
        vision_config={**vision, "hidden_dim": 16, "batch_norm_eps": 1e-3},
        projection_dim=16,
    )
    return _save_dual(folder, _models.AlignModel, config)


def _blip(folder: Path, size: Size) -> Any:
    vocabulary = _letters(folder)
    _models.BlipImageProcessorPil(size={"height": size.image, "width": size.image}).save_pretrained(folder)
    text = _text(size, vocabulary, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, sep_token_id=2)
    config = _models.BlipConfig(
        text_config={**text, "encoder_hidden_size": size.width},
        vision_config=_vision(size, image_size=size.image, patch_size=8 if size == TINY else 16),
        projection_dim=16,
        image_text_hidden_size=16,
    )
    return _save_dual(folder, _models.BlipForImageTextRetrieval, config)


DUAL_FAMILIES = ("clip", "siglip", "siglip2", "align", "blip")
"""SigLIP 2 of fixed resolution is a SigLIP with another tokenizer, so `siglip` stands for it; `siglip2` is the one of
native resolution."""


def save_dual_encoder(folder: Path, family: str, size: Size = TINY) -> Any:
    """Save a dual encoder of a family; gives the model."""
    folder.mkdir(parents=True, exist_ok=True)
    patch = 8 if size == TINY else 16
    tower = {
        "hidden_size": size.width,
        "intermediate_size": 2 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
    }
    if family == "clip":
        return save_small_clip(folder, image_size=size.image, patch_size=patch, tower=tower)
    if family == "siglip":
        return save_small_siglip(folder, image_size=size.image, patch_size=patch, tower=tower)
    if family == "siglip2":
        return save_small_siglip2(folder, patches=(size.image // patch) ** 2, patch_size=patch, tower=tower)
    return {"align": _align, "blip": _blip}[family](folder, size)
