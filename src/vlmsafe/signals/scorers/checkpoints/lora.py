"""Adds a low-rank adapter (LoRA), as peft saves it, to the weights of a model.

With A [r, in] and B [out, r], a layer's weight becomes W + s B A with s = alpha / r, or alpha / sqrt(r) for rank-stable
adapters. The sum is taken once, in float32, so scoring costs nothing more and peft is not needed. Other kinds of
adapters, and weights that are not low-rank, are refused: merge them with peft, and pass the folder of the result.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vlmsafe.errors import InputError

WEIGHTS = "adapter_model.safetensors"
_KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Ways to start an adapter that change the weights of the model too."""
_MORE = ("alora_invocation_tokens", "layer_replication", "use_qalora")
_MERGE = "merge it with peft, and pass the folder of the result"


def add_adapter(model: nn.Module, folder: Path) -> None:
    """Change the weights of a model in place by the adapter in a folder."""
    settings: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if (kind := settings.get("peft_type")) != "LORA" or settings.get("use_dora"):
        shown = "DORA" if settings.get("use_dora") else kind
        raise InputError(f"the adapter in {folder} is of the kind {shown}; only LORA is supported: {_MERGE}")
    start = settings.get("init_lora_weights")
    if (isinstance(start, str) and start.lower().startswith(_CHANGES_BASE)) or any(map(settings.get, _MORE)):
        raise InputError(f"the adapter in {folder} changes more of the model than LORA does: {_MERGE}")
    require_adapter(folder)
    layers = dict(model.named_modules())
    with torch.no_grad():
        for name, (down, up) in _pairs(load_file(folder / WEIGHTS), folder).items():
            layer = layers[_find(name, list(layers), folder)]
            change = _scale(settings, name, len(down)) * (up.float() @ down.float())
            if settings.get("fan_in_fan_out"):
                change = change.T
            weight = getattr(layer, "weight", None)
            if not isinstance(weight, Tensor) or weight.shape != change.shape:
                shape = None if weight is None else list(weight.shape)
                raise InputError(
                    f"the adapter in {folder} does not fit the model: {name} has the shape {list(change.shape)}, and "
                    f"the model's {shape}"
                )
            weight.copy_(weight.float() + change)


def require_adapter(folder: Path) -> None:
    """Raise FileNotFoundError if a folder has no weights of an adapter."""
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(f"there is no {WEIGHTS}")


def _pairs(tensors: dict[str, Tensor], folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each layer."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or tensor.ndim != 2:
            raise InputError(f"the adapter in {folder} has weights that are not low-rank, such as {key}: {_MERGE}")
        found.setdefault(match[1], {})[match[2]] = tensor
    if incomplete := [name for name, pair in found.items() if len(pair) != 2]:
        raise InputError(f"the adapter in {folder} lacks one of the two matrices of {incomplete[0]}")
    if not found:
        raise InputError(f"the adapter in {folder} is empty")
    return {name: (pair["A"], pair["B"]) for name, pair in found.items()}


def _scale(settings: dict[str, Any], name: str, rank: int) -> float:
    """s of a layer; alpha may differ by a pattern of names."""
    patterns: dict[str, float] = settings.get("alpha_pattern") or {}
    own = (alpha for pattern, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({pattern})", name))
    alpha = float(next(own, settings.get("lora_alpha", rank)))
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _find(name: str, layers: list[str], folder: Path) -> str:
    """The layer that an adapter names. Versions of transformers nest layers differently: model.layers.0 in one is
    model.language_model.layers.0 in another, so parts called 'model' do not count, and the beginning may be missing."""
    if name in layers:
        return name
    wanted = _parts(name)
    alike = [layer for layer in layers if _parts(layer) == wanted]
    ending = [layer for layer in layers if _parts(layer)[-len(wanted) :] == wanted]
    for found in (alike, ending):
        if len(found) == 1:
            return found[0]
    count = f"{len(ending)} layers" if ending else "no layer"
    raise InputError(f"the adapter in {folder} does not fit the model: it has {count} called {name}")


def _parts(name: str) -> list[str]:
    return [part for part in name.split(".") if part != "model"]
