"""An endpoint against the same checkpoint in this process: how far the probabilities differ, and frames per second.

    python benchmarks/endpoint.py make FOLDER                     a small Qwen2-VL of random weights that vLLM can load
    vllm serve FOLDER --served-model-name tiny --dtype float32 --max-logprobs 300 --max-model-len 1024
    python benchmarks/endpoint.py compare FOLDER openai:tiny@http://localhost:8000/v1

Random weights spread the probability over the whole vocabulary, so `compare` asks for all of it (--top-logprobs). With
a trained model nearly all of it is on yes and no.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import vlmsafe  # isort: skip - first: it pins the kernels

import numpy as np
import tyro
from numpy.typing import NDArray

from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.signals.scorers.make import make_scorer

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
)  # fmt: skip
WORDS = ("yes", "Yes", "no", "No")
# What Qwen2-VL's own template makes of one question with images.
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if 'text' in c %}"
    "{{ c['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Make:
    """Save a small Qwen2-VL of random weights."""

    folder: tyro.conf.Positional[Path]


@dataclass(frozen=True)
class Compare:
    """Score frames of `braking` by an endpoint and by the checkpoint that it serves."""

    folder: tyro.conf.Positional[Path]
    scorer: tyro.conf.Positional[str]
    """openai:<model>@<url>."""
    frames: int = 64
    top_logprobs: int = 270
    """All tokens of the small model, but for those that stand for nothing."""
    concurrency: tuple[int, ...] = (1, 8)


def make(folder: Path) -> None:
    import torch
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel

    models: Any = transformers  # only partly typed
    vocabulary = {letter: token for token, letter in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        joined = word[0]
        for letter in word[1:]:
            merges.append((joined, letter))
            joined += letter
            vocabulary.setdefault(joined, len(vocabulary))
    tokenizer = models.Qwen2Tokenizer(
        vocab=vocabulary, merges=list(dict.fromkeys(merges)), pad_token=SPECIAL[0], eos_token=SPECIAL[2],
        extra_special_tokens=list(SPECIAL), chat_template=TEMPLATE,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    # vLLM's kernels on a CPU want heads of at least 32 numbers.
    text = {
        "vocab_size": len(tokenizer) + 8, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096, "pad_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
        "initializer_range": 0.3,
    }  # fmt: skip
    vision = {
        "depth": 2, "num_heads": 2, "embed_dim": 128, "hidden_size": 128, "mlp_ratio": 2, "initializer_range": 0.1,
    }  # fmt: skip
    config = models.AutoConfig.for_model(
        "qwen2_vl", text_config=text, vision_config=vision, image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"], vision_start_token_id=tokenizer.convert_tokens_to_ids(SPECIAL[3]),
        vision_end_token_id=tokenizer.convert_tokens_to_ids(SPECIAL[4]),
    )  # fmt: skip
    torch.manual_seed(0)
    models.AutoModelForImageTextToText.from_config(config).eval().save_pretrained(folder)
    models.Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 64).save_pretrained(folder)


def frames_of_braking(count: int) -> NDArray[np.uint8]:
    env: Any = vlmsafe.make_env("braking")
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        env.step(rng.uniform(-1.0, 1.0, 1).astype(np.float32))
        found.append(env.frame().copy())
    return np.stack(found)


def compare(command: Compare) -> None:
    prompts, frames = load_prompts("metadrive"), frames_of_braking(command.frames)
    own = make_scorer(f"qwen2-vl:{command.folder}", prompts, device="cpu", precision="float32").score(frames)
    for concurrency in command.concurrency:
        options = EndpointOptions(top_logprobs=command.top_logprobs, concurrency=concurrency)
        scorer = make_scorer(command.scorer, prompts, endpoint=options, cache="off")
        begun = time.monotonic()
        found = scorer.score(frames)
        rate = len(frames) / (time.monotonic() - begun)
        print(
            f"concurrency {concurrency}: largest difference {np.abs(found - own).max():.2g} of probabilities from "
            f"{own.min():.3f} to {own.max():.3f}; {rate:.1f} frames/s"
        )
        print(scorer.bill())
        scorer.close()


def main() -> None:
    command: Make | Compare = tyro.cli(
        Annotated[Make, tyro.conf.subcommand("make")] | Annotated[Compare, tyro.conf.subcommand("compare")],
        description=__doc__,
    )
    if isinstance(command, Make):
        make(command.folder)
    else:
        compare(command)


if __name__ == "__main__":
    main()
