"""Where a model runs; apart from the hub's libraries, which a model that ships in the package does not need."""

from __future__ import annotations

import torch

from vlmsafe.errors import InputError


def find_device(device: str) -> torch.device:
    """The device a user named; "auto" is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise InputError(f"unknown device '{device}'; known: auto, cpu, cuda, cuda:<number>")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device '{device}' is not there: PyTorch sees {torch.cuda.device_count()} GPUs; use 'cpu' or 'auto'"
        )
    return torch.device(device)
