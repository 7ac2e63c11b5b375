"""The device of a model. This module imports none of the hub's libraries, which the embedded scorer does not need."""

from __future__ import annotations

import torch

from vlmsafe.errors import InputError


def find_device(device: str) -> torch.device:
    """The device that the user named; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise InputError(f"unknown device '{device}'; known: auto, cpu, cuda, cuda:<number>")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device '{device}' does not exist: PyTorch sees {torch.cuda.device_count()} GPUs; use 'cpu' or 'auto'"
        )
    return torch.device(device)
