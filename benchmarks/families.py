"""Scoring by models of many families: plain path and fast path, how far apart they are, and frames per second.

    python benchmarks/families.py [--device cuda] [--precision float32] [--rounds 3] [--json FILE]

The plain path is the scorer `transformers:<folder>`, which uses a checkpoint's own processor and works for any family.
CLIP, SigLIP, Qwen2-VL and Qwen2.5-VL also have a fast path, the scorers `clip` and `qwen2-vl`. Where there is none, the
plain path is compared with the model called by hand: one frame and one question at a time, every token each time. The
script makes its models, of random weights, and their tokenizers itself. They are medium-sized: a text and a vision
tower of twelve layers on a GPU, of four on a CPU.

Three differences are given, each the largest of any similarity or probability: plain path to by hand and fast path to
plain path, both in float32, and the plain path in bfloat16 to itself in float32. Rates are medians over rounds, in
which all sides take turns.

This script needs torch, transformers, numpy, PyYAML and safetensors; the package itself need not be installed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from scoring import describe_machine, show

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Precision, Scorer
from vlmsafe.signals.scorers.checkpoints.chat import ChatReader
from vlmsafe.signals.scorers.checkpoints.files import Files
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.processors import read_image_processor

_models: Any = transformers  # half typed; what comes from it is Any
families: Any = importlib.import_module("small_families")  # of the tests, which make the same models, only smaller
Frames = NDArray[np.uint8]
Score = Callable[[Frames], NDArray[np.float32]]

FAST = {"clip": "clip", "siglip": "clip", "qwen2_vl": "qwen2-vl", "qwen2_5_vl": "qwen2-vl"}
"""The scorers that are fast paths, by family."""
PROMPTS = PromptSet(
    ("a clear road ahead", "the car keeps its lane"),
    ("about to hit something", "the car leaves the road"),
    "safe driving conditions",
    "driving danger or imminent collision",
)
FRAME = 256
SIZES = {
    "cuda": families.Size(width=512, layers=12, heads=8, image=224),
    "cpu": families.Size(width=256, layers=4, heads=4, image=112),
}


def save(folder: Path, family: str, device: str) -> None:
    if family in families.DUAL_FAMILIES:
        families.save_dual_encoder(folder, family, SIZES[device])
    else:
        families.save_chat_model(folder, family, SIZES[device])


def by_hand(folder: Path, family: str, device: str) -> Score:
    """One frame and one question at a time through transformers' own model, in float32."""
    return (
        _dual_by_hand(folder, family, device)
        if family in families.DUAL_FAMILIES
        else _chat_by_hand(folder, family, device)
    )


def _dual_by_hand(folder: Path, family: str, device: str) -> Score:
    kind = _models.BlipForImageTextRetrieval if family == "blip" else _models.AutoModel
    model = kind.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    tokenizer = _models.AutoTokenizer.from_pretrained(folder)
    processor = read_image_processor(str(folder), family)
    if family.startswith("siglip"):  # trained on lower case and full length
        longest = model.config.text_config.max_position_embeddings
        texts = [prompt.lower() for prompt in PROMPTS.texts]
        ids = tokenizer(texts, padding="max_length", max_length=longest, padding_side="right")["input_ids"]
        tokens = {"input_ids": torch.tensor(ids, device=device)}
    else:
        found = tokenizer(list(PROMPTS.texts), padding=True, return_tensors="pt").to(device)
        tokens = {name: found[name] for name in ("input_ids", "attention_mask")}

    @torch.inference_mode()
    def score(frames: Frames) -> NDArray[np.float32]:
        rows = []
        for frame in frames:
            pixels = processor([frame], input_data_format="channels_last", return_tensors="pt").to(device)
            if family == "blip":
                rows.append(model(**tokens, **pixels, use_itm_head=False).itm_score)
            else:
                output = model(**tokens, **pixels)
                rows.append(output.image_embeds @ output.text_embeds.T)
        return torch.cat(rows).float().cpu().numpy()

    return score


def _chat_by_hand(folder: Path, family: str, device: str) -> Score:
    config = json.loads((folder / "config.json").read_text())
    reader = ChatReader(Files(family, str(folder), config, None))
    model = _models.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    descriptions = (PROMPTS.positive_description, PROMPTS.negative_description)
    texts = [reader.write(f"Does this image show {text}? Answer yes or no.", 1) for text in descriptions]
    yes, no = (
        [reader.tokenizer.convert_tokens_to_ids(word) for word in words]
        for words in (("yes", "Yes", "Ġyes", "ĠYes"), ("no", "No", "NO", "Ġno"))
    )

    @torch.inference_mode()
    def score(frames: Frames) -> NDArray[np.float32]:
        rows = []
        for frame in frames:
            answers = []
            for text in texts:
                inputs = {name: tensor.to(device) for name, tensor in reader.read(text, frame[None]).items()}
                shares = model(**inputs, use_cache=False).logits[0, -1].double().softmax(0)
                positive, negative = float(shares[yes].sum()), float(shares[no].sum())
                answers.append(positive / (positive + negative))
            rows.append(answers)
        return np.array(rows, np.float32)

    return score


def scorer(kind: str, folder: Path, device: str, precision: Precision, batch: int) -> Scorer:
    return make_scorer(f"{kind}:{folder}", PROMPTS, device=device, precision=precision, batch=batch)


def measure(folder: Path, family: str, options: argparse.Namespace) -> dict[str, Any]:
    """The differences and rates of one family."""
    device, gpu = options.device, options.device == "cuda"
    few, many = (8, 128) if gpu else (2, 8)
    frames = np.random.default_rng(0).integers(0, 256, (many, FRAME, FRAME, 3), np.uint8)
    plain = scorer("transformers", folder, device, "float32", 64)
    reference = by_hand(folder, family, device)
    expected = reference(frames[:few])
    found: dict[str, Any] = {
        "parameters": plain.describe()["parameters"],
        "tolerance": float(np.abs(plain.score(frames[:few]) - expected).max()),
    }
    if family in FAST:
        fast = scorer(FAST[family], folder, device, "float32", 64)
        found["fast_against_plain"] = float(np.abs(fast.score(frames[:few]) - plain.score(frames[:few])).max())
    half = scorer("transformers", folder, device, "bfloat16", 64)
    found["bfloat16"] = float(np.abs(half.score(frames[:few]) - plain.score(frames[:few])).max())
    sides: dict[str, tuple[Score, int]] = {"by_hand": (reference, few)}
    sides["plain"] = (scorer("transformers", folder, device, options.precision, 64).score, many)
    if family in FAST:
        sides["fast"] = (scorer(FAST[family], folder, device, options.precision, 64).score, many)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.rounds + 1):
        for name, (score, count) in sides.items():
            begun = time.perf_counter()
            score(frames[:count])
            if number:  # the first round does not count
                rates[name].append(count / (time.perf_counter() - begun))
    return found | {"frames_per_second": {name: statistics.median(own) for name, own in rates.items()}}


def row(family: str, found: dict[str, Any]) -> tuple[str, ...]:
    rates = found["frames_per_second"]
    fast = found.get("fast_against_plain")
    return (
        family,
        f"{found['parameters'] / 1e6:.1f}",
        f"{found['tolerance']:.1e}",
        "" if fast is None else f"{fast:.1e}",
        f"{found['bfloat16']:.1e}",
        *(f"{rates[name]:,.1f}" if name in rates else "" for name in ("by_hand", "plain", "fast")),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the plain and the fast path of scorers by family.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the timed scorers")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side takes its turn")
    parser.add_argument("--families", nargs="+", default=[*families.DUAL_FAMILIES, *families.CHAT_FAMILIES])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": describe_machine(options.device), "families": {}}
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items() if value is not None), flush=True)
    _models.logging.set_verbosity_error()
    _models.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as root:
        for family in options.families:
            folder = Path(root) / family
            try:
                save(folder, family, options.device)
            except ImportError as error:
                print(f"  {family} left out: {str(error).strip().splitlines()[0]}", flush=True)
                continue
            results["families"][family] = measure(folder, family, options)
            print(f"  {family} done", file=sys.stderr, flush=True)
    show(
        f"frames of {FRAME} x {FRAME} on {options.device}; tolerance in float32, rates in {options.precision}",
        ("", "million weights", "plain to by hand", "fast to plain", "bfloat16", "by hand/s", "plain/s", "fast/s"),
        [row(family, found) for family, found in results["families"].items()],
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
