"""Says what a checkpoint is from its configuration alone. Imports no model library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import COSINE_RULES, YES_NO_RULES

Family = Literal["dual", "chat"]
"""A dual encoder, which compares embeddings, or a model that writes an answer."""

ADAPTER = "adapter_config.json"
_WRITES = ("ForConditionalGeneration", "ForCausalLM", "ForVision2Seq", "ForVisionText2Text", "ForImageTextToText")
"""How transformers names the classes of models that write text."""

_TRAITS: dict[Family, dict[str, Any]] = {
    "dual": {
        "compares": "prompts",
        "rules": COSINE_RULES,
        "frames": 1,
        "gate": "prior-symmetric",
        "precision": "float32",
        "batch": 64,
        "large": "large",
    },
    "chat": {
        "compares": "descriptions",
        "rules": YES_NO_RULES,
        "frames": "any",
        "gate": "probability",
        "precision": "bfloat16",  # most have billions of weights
        "batch": 16,
    },
}
"""What the registry's entry says of each family."""


def split_revision(argument: str) -> tuple[str, str | None]:
    """The name of a model or folder, and the revision after the last @.

    >>> split_revision("google/siglip2-base-patch16-naflex@main")
    ('google/siglip2-base-patch16-naflex', 'main')
    """
    if "@" not in argument or Path(argument).expanduser().is_dir():
        return argument, None
    model, _, revision = argument.rpartition("@")
    if not model or not revision:
        raise InputError(f"'{argument}' has an empty model or revision; expected <model>@<revision>")
    if Path(model).expanduser().is_dir():
        raise InputError(f"'{model}' is a folder, which has no revisions; drop '@{revision}'")
    return model, revision


def family_of(config: dict[str, Any]) -> Family | None:
    """What the architecture in a config.json is; None if it names none."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return None
    return "chat" if names[0].endswith(_WRITES) else "dual"


def known_traits(argument: str) -> dict[str, Any] | None:
    """What is known of a model from files on this machine, as fields of the registry's entry; None if there are none.

    A damaged file counts as none: loading the model says what is wrong with it.
    """
    config = _local_config(*split_revision(argument))
    family = None if config is None else family_of(config)
    return None if family is None else {**_TRAITS[family], "settled": True}


def _local_config(model: str, revision: str | None) -> dict[str, Any] | None:
    """A model's configuration; for an adapter that of the model it is for."""
    adapter = _local_json(model, ADAPTER, revision)
    if adapter is None:
        return _local_json(model, "config.json", revision)
    base, base_revision = base_of(adapter, model)
    return None if base is None else _local_json(base, "config.json", base_revision)


def base_of(adapter: dict[str, Any], folder: str) -> tuple[str | None, str | None]:
    """The model that an adapter is for, and its revision. A relative path may start from the adapter's folder."""
    name, revision = adapter.get("base_model_name_or_path"), adapter.get("revision")
    if not isinstance(name, str) or not name:
        return None, None
    beside = Path(folder).expanduser() / name
    return str(beside) if beside.is_dir() else name, revision if isinstance(revision, str) else None


def _local_json(model: str, name: str, revision: str | None) -> dict[str, Any] | None:
    folder = Path(model).expanduser()
    path = folder / name if folder.is_dir() else _cached(model, name, revision)
    try:
        found = None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _cached(model: str, name: str, revision: str | None) -> Path | None:
    import huggingface_hub  # late: other kinds of scorers do not need it
    from huggingface_hub.errors import HFValidationError

    try:
        found = huggingface_hub.try_to_load_from_cache(model, name, revision=revision)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
