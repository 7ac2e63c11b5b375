"""Finds the files of a checkpoint, checks what it is, and reads its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.checkpoints.lora import add_adapter, require_adapter
from vlmsafe.signals.scorers.checkpoints.names import ADAPTER, Family, base_of, family_of, split_revision
from vlmsafe.signals.scorers.hub import Unreadable, find_folder, in_one_line, require_weights
from vlmsafe.signals.scorers.processors import refuse_missing

T = TypeVar("T")
_models: Any = transformers  # only partly typed, so what comes from it is Any
_configurations: Any = configuration_auto
_EXPECTED = "expected a dual encoder, such as CLIP or SigLIP 2, or a chat model with images"


@dataclass(frozen=True)
class Files:
    """The folder of a checkpoint, and of an adapter for it."""

    name: str
    """The model as the user names it, without its revision."""
    folder: str
    """Configuration, weights, tokenizer and image processor."""
    config: dict[str, Any]
    revision: str | None
    """The commit on the hub; None for a folder of the user's."""
    adapter: Path | None = None
    """The folder of an adapter."""
    base: str | None = None
    """The model that the adapter is for."""
    base_revision: str | None = None
    complete: bool = True
    """Whether the weights must be there, and are not yet to be downloaded."""

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def architecture(self) -> str:
        return str(self.config["architectures"][0])

    def describe(self) -> dict[str, Any]:
        """What a run records."""
        found: dict[str, Any] = {"model": self.name, "revision": self.revision, "architecture": self.architecture}
        return found if self.adapter is None else found | {"base": self.base, "base_revision": self.base_revision}


def find_files(argument: str, use: Callable[[Files], T], *, weights: bool = True) -> T:
    """What `use` makes of the files of a model; see `find_folder`."""
    model, revision = split_revision(argument)

    def read(folder: Path, complete: bool) -> T:
        if (folder / ADAPTER).is_file():
            return _with_base(folder, model, use, weights, complete)
        return use(Files(model, str(folder), _config(folder), _commit(folder), complete=complete))

    return find_folder(model, revision, read, "transformers", weights=weights)


def _with_base(folder: Path, model: str, use: Callable[[Files], T], weights: bool, complete: bool) -> T:
    """The files of an adapter and of the model that it is for."""
    base, revision = base_of(_json(folder, ADAPTER, "adapter"), str(folder))
    if base is None:
        raise InputError(f"the adapter '{model}' names no model: base_model_name_or_path in {ADAPTER} is empty")

    def read(own: Path, also: bool) -> T:
        files = Files(model, str(own), _config(own), _commit(folder), folder, base, _commit(own), complete and also)
        return use(files)

    return find_folder(base, revision, read, "transformers", weights=weights)


def _config(folder: Path) -> dict[str, Any]:
    if (folder / "open_clip_config.json").is_file() and not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} holds a model of open_clip alone; expected one exported for transformers, with a config.json"
        )
    return _json(folder, "config.json", "configuration")


def _json(folder: Path, name: str, part: str) -> dict[str, Any]:
    with in_one_line(part):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"there is no {name}")
        found = json.loads((folder / name).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"{name} holds no settings")
    return found


def _commit(folder: Path) -> str | None:
    return folder.name if re.fullmatch("[0-9a-f]{40}", folder.name) else None


def check_family(files: Files) -> Family:
    """Whether a checkpoint is a dual encoder or a chat model with images; an InputError if it is neither."""
    family, kind = family_of(files.config), files.kind
    if family is None:
        raise Unreadable("its configuration: config.json names no architecture")
    if kind not in _configurations.CONFIG_MAPPING_NAMES:
        raise InputError(
            f"the model '{files.name}' is of the kind '{kind}', which transformers {transformers.__version__} does not "
            "know; a newer version may know it, or there may be an export of the model for transformers"
        )
    if family == "chat":
        if kind not in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
            raise InputError(f"the model '{files.name}' ({files.architecture}) reads no images; {_EXPECTED}")
        if files.config.get("is_encoder_decoder"):
            raise InputError(
                f"the model '{files.name}' ({files.architecture}) has an encoder for texts of its own, and its answers "
                f"cannot be compared; {_EXPECTED}"
            )
        return family
    towers = ("get_image_features", "get_text_features")
    if not all(hasattr(dual_class(files), tower) for tower in towers):
        raise InputError(f"the model '{files.name}' ({files.architecture}) embeds no images and texts; {_EXPECTED}")
    return family


def dual_class(files: Files) -> Any:
    """The class that a dual encoder is loaded with."""
    if files.architecture == "BlipForImageTextRetrieval":
        from vlmsafe.signals.scorers.checkpoints.blip import BlipRetrieval  # late: it loads the code of the family

        return BlipRetrieval
    name = modeling_auto.MODEL_MAPPING_NAMES.get(files.kind, "")
    return getattr(_models, name if isinstance(name, str) else name[0], None)


def check_weights(files: Files) -> None:
    """Raise `Unreadable` if there are no weights; nothing is read."""
    with in_one_line("weights"):
        require_weights(files.folder)
    if files.adapter is not None:
        with in_one_line("adapter"):
            require_adapter(files.adapter)


def read_weights(files: Files, kind: Any, dtype: torch.dtype) -> Any:
    """The model in the folder, loaded by a class of transformers, with its adapter."""
    check_weights(files)
    with in_one_line("weights"):
        model, report = kind.from_pretrained(files.folder, dtype=dtype, local_files_only=True, output_loading_info=True)
        refuse_missing(report)
    if files.adapter is not None:
        with in_one_line("adapter"):
            add_adapter(model, files.adapter)
    return model.eval().requires_grad_(False)
