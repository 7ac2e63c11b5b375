"""Low-rank adapters: they change the model as peft would, and what cannot be added is one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_families import save_chat_model
from small_models import PROMPTS, save_small_clip

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.make import look_up_scorer, make_scorer
from vlmsafe.signals.scorers.registry import parse_scorer

SMALL = PromptSet(*PROMPTS, "safe driving", "danger")
LAYER = "vision_model.encoder.layers.1.self_attn.q_proj"


def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 60, 90, 3), np.uint8)


def save_adapter(folder: Path, base: str, layers: dict[str, int], **settings: Any) -> dict[str, torch.Tensor]:
    """An adapter of rank 2 for square layers of these widths, as peft saves it; gives B A by layer."""
    folder.mkdir()
    random = torch.Generator().manual_seed(0)
    tensors, products = {}, {}
    for name, width in layers.items():
        down, up = (torch.randn(shape, generator=random) for shape in ((2, width), (width, 2)))
        tensors |= {f"base_model.model.{name}.lora_{kind}.weight": one for kind, one in (("A", down), ("B", up))}
        products[name] = up @ down
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "base_model_name_or_path": base, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return products


def load(folder: Path) -> Any:
    return make_scorer(f"transformers:{folder}", SMALL, device="cpu", precision="float32")


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 2}}, 1.0),
        ({"alpha_pattern": {"k_proj": 2}}, 3.0),
    ],
)
def test_an_adapter_equals_weights_changed_by_hand(tmp_path, settings, scale):
    base, adapter, changed = tmp_path / "base", tmp_path / "adapter", tmp_path / "changed"
    save_small_clip(base)
    save_small_clip(changed)
    product = save_adapter(adapter, str(base), {LAYER: 32}, **settings)[LAYER]
    weights = load_file(changed / "model.safetensors")
    weights[f"{LAYER}.weight"] += scale * product
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    scorer = load(adapter)
    got, expected = scorer.score(frames()), load(changed).score(frames())
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert np.abs(got - load(base).score(frames())).max() > 1e-3
    described = scorer.describe()
    assert (described["model"], described["base"]) == (str(adapter), str(base))


def test_an_adapter_of_a_chat_model_is_known_before_it_is_loaded(tmp_path):
    save_chat_model(tmp_path / "base", "llava")
    layer = "language_model.model.layers.0.self_attn.q_proj"  # the name in older versions of transformers
    save_adapter(tmp_path / "adapter", "../base", {layer: 32})
    name = parse_scorer(f"transformers:{tmp_path / 'adapter'}")
    assert (name.kind.gate, name.kind.precision) == ("probability", "bfloat16")
    assert look_up_scorer(str(name), SMALL)[1] == ("yes-no", "decoupled")
    difference = load(tmp_path / "adapter").score(frames()) - load(tmp_path / "base").score(frames())
    assert np.abs(difference).max() > 1e-3


def other_weights(folder: Path) -> None:
    save_file({"base_model.model.text_projection.weight": torch.zeros(2, 2)}, folder / "adapter_model.safetensors")


def half(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[:1]), folder / "adapter_model.safetensors")


def settings(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("layer", "damage", "message"),
    [
        (LAYER, settings(peft_type="IA3"), "is of the kind IA3; only LORA is supported: merge it with peft"),
        (LAYER, settings(use_dora=True), "is of the kind DORA; only LORA"),
        (LAYER, settings(init_lora_weights="pissa_niter_4"), "changes more of the model than LORA does: merge it"),
        (LAYER, settings(layer_replication=[[0, 1]]), "changes more of the model than LORA does: merge it"),
        (LAYER, settings(base_model_name_or_path=""), "names no model"),
        (LAYER, other_weights, "has weights that are not low-rank, such as base_model.model.text_projection.weight"),
        (LAYER, half, "lacks one of the two matrices of"),
        (LAYER, lambda folder: (folder / "adapter_model.safetensors").unlink(), "there is no adapter_model.safetens"),
        ("vision_model.post_layernorm", None, r"has the shape \[32, 32\], and the model's \[32\]"),
        ("layers.0.self_attn.q_proj", None, "it has 2 layers called layers.0.self_attn.q_proj"),
        ("decoder.0", None, "it has no layer called decoder.0"),
    ],
)
def test_an_adapter_that_cannot_be_added_is_one_clear_line(tmp_path, layer, damage, message):
    save_small_clip(tmp_path / "base")
    save_adapter(tmp_path / "adapter", str(tmp_path / "base"), {layer: 32})
    if damage is not None:
        damage(tmp_path / "adapter")
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path / "adapter")
    assert "\n" not in str(caught.value)
