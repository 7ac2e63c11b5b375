"""Yes/no scoring by a model of Qwen2-VL's shape: batches, with each image read once, against one call per question.

`python benchmarks/scoring.py --service --qwen 7b` runs this. Weights are random, which takes as long; the tokenizer
spells in bytes, so that questions are longer than with the real one, on both sides alike.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.questions import questions
from vlmsafe.signals.scorers.qwen2_vl import CHAT, IMAGE, PICTURE, Checkpoint, Qwen2VLScorer

_models: Any = transformers  # half typed; what comes from it is Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", IMAGE)
# Hidden size, intermediate size, layers, heads, key and value heads of the text model; depth and width of the tower.
SHAPES: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "7b": (3584, 18944, 28, 28, 4, 32, 1280),
    "2b": (1536, 8960, 28, 12, 2, 32, 1280),
    "tiny": (64, 128, 2, 4, 2, 2, 32),
}


def make_checkpoint(size: str, device: str) -> Checkpoint:
    """A model of the published shape, a tokenizer and the image processor."""
    vocabulary = {letter: token for token, letter in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in ("yes", "no"):
        joined = word[0]
        for letter in word[1:]:
            merges.append((joined, letter))
            joined += letter
            vocabulary.setdefault(joined, len(vocabulary))
    tokenizer = _models.Qwen2Tokenizer(
        vocab=vocabulary, merges=merges, pad_token=SPECIAL[0], eos_token="<|im_end|>",
        extra_special_tokens=list(SPECIAL),
    )  # fmt: skip
    hidden, intermediate, layers, heads, few, depth, width = SHAPES[size]
    section = [16, 24, 24] if size != "tiny" else [2, 3, 3]
    config = _models.AutoConfig.for_model(
        "qwen2_vl",
        text_config={
            "vocab_size": 152_064 if size != "tiny" else 512, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": few,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section},
            "pad_token_id": None,
        },
        vision_config={
            "depth": depth, "embed_dim": width, "hidden_size": hidden, "num_heads": 16 if size != "tiny" else 2,
        },
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )  # fmt: skip
    torch.manual_seed(0)
    precision = torch.bfloat16 if device == "cuda" else torch.float32
    before = torch.get_default_dtype()
    torch.set_default_dtype(precision)
    try:
        with torch.device(device):
            model = _models.AutoModelForImageTextToText.from_config(config).eval()
    finally:
        torch.set_default_dtype(before)
    processor = _models.Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
    return Checkpoint(model, tokenizer, processor, None)


class OneByOne:
    """The usual way: the model is called for each question about each frame, with all of its tokens."""

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        prompts = load_prompts("metadrive")
        self.model, self.tokenizer, self.processor = checkpoint.model, checkpoint.tokenizer, checkpoint.processor
        self.texts = [CHAT.format(pictures=PICTURE, question=question) for question in questions(prompts, "qwen2-vl")]
        self.device = device
        self.yes, self.no = (self.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))

    @torch.inference_mode()
    def score(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        rows = []
        for frame in frames:
            answers = []
            for text in self.texts:
                images = self.processor(images=[frame], return_tensors="pt")
                count = int(images["image_grid_thw"].prod()) // 4
                tokens = self.tokenizer(text.replace(IMAGE, IMAGE * count), return_tensors="pt")
                ids = tokens["input_ids"].to(self.device)
                kinds = {"mm_token_type_ids": (ids == self.model.config.image_token_id).long()}
                logits = self.model(
                    input_ids=ids,
                    attention_mask=tokens["attention_mask"].to(self.device),
                    pixel_values=images["pixel_values"].to(self.device, self.model.dtype),
                    image_grid_thw=images["image_grid_thw"].to(self.device),
                    logits_to_keep=1,
                    **kinds,
                ).logits[0, -1].float()  # fmt: skip
                answers.append(float((logits[self.yes] - logits[self.no]).sigmoid()))
            rows.append(answers)
        return np.array(rows, np.float32)


def measure_qwen(device: str, size: str, rounds: int) -> dict[str, Any]:
    """Frames per second of both ways, side by side, and how far apart their answers are."""
    checkpoint = make_checkpoint(size, device)
    gpu = device == "cuda"
    few = 8 if gpu else 2
    sides: dict[str, tuple[Any, int]] = {"one call per question": (OneByOne(checkpoint, device), few)}
    for batch in (16, 64) if gpu else (4,):
        scorer = Qwen2VLScorer(
            checkpoint, load_prompts("metadrive"), name=f"random {size}", device=torch.device(device), batch=batch
        )
        sides[f"batches of {batch}"] = (scorer, 2 * batch)
    frames = np.random.default_rng(0).integers(
        0, 256, (max(count for _, count in sides.values()), 256, 256, 3), np.uint8
    )
    expected = sides["one call per question"][0].score(frames[:few])
    found: dict[str, Any] = {}
    print(f"\nyes/no scoring, random weights of the shape of Qwen2-VL {size}, frames of 256 x 256, two questions each")
    for name, (side, count) in sides.items():
        rates = []
        for number in range(rounds + 1):
            begun = time.perf_counter()
            side.score(frames[:count])
            if number:
                rates.append(count / (time.perf_counter() - begun))
        rate = statistics.median(rates)
        difference = float(np.abs(side.score(frames[:few]) - expected).max())
        base = next(iter(found.values()))["frames_per_second"] if found else rate
        found[name] = {"frames_per_second": rate, "ratio": rate / base, "largest_difference": difference}
        print(
            f"  {name:24}{rate:10,.1f} frames/s   {rate / base:6.1f} x   largest difference {difference:.1e}",
            flush=True,
        )
    return found
