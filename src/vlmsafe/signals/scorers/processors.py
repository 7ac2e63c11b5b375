"""Reads what stands before a model: the tokenizer, the image processor, and the processor that joins both.

Image processors use Pillow, so pixels do not depend on whether torchvision is installed, and nothing here needs it.
Processors of many chat models also take videos, and the part for videos needs torchvision. They are made without that
part: several frames are several images here.
"""

from __future__ import annotations

import re
from typing import Any

import transformers
from torch import Tensor
from transformers.models.auto import image_processing_auto, processing_auto

from vlmsafe.errors import InputError, MissingDependencyError
from vlmsafe.signals.scorers.hub import find_file, first_line, in_one_line

_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",), ("tokenizer.model",))
_models: Any = transformers  # only partly typed, so what comes from it is Any
_processors: Any = processing_auto
_images: Any = image_processing_auto  # some versions export its class only where torchvision is installed


def read_tokenizer(source: str, model: str, local: bool = True) -> Any:
    """The tokenizer of a checkpoint; `model` is its name, for messages."""
    with in_one_line("tokenizer"):
        try:
            tokenizer: Any = _models.AutoTokenizer.from_pretrained(source, local_files_only=local)
        except ImportError as error:
            raise MissingDependencyError(
                f"the tokenizer of '{model}' needs the Python packages sentencepiece and protobuf; "
                "install them with: pip install sentencepiece protobuf"
            ) from error
        # A tokenizer loads without its vocabulary too, and then treats every word as unknown.
        if not any(all(find_file(source, name) for name in names) for names in _VOCABULARIES):
            raise FileNotFoundError("there is no vocabulary")
    return tokenizer


def read_image_processor(source: str, model: str, local: bool = True) -> Any:
    """The image processor of a checkpoint."""
    with in_one_line("preprocessor"):
        try:
            return _images.AutoImageProcessor.from_pretrained(source, backend="pil", local_files_only=local)
        except (ImportError, ValueError) as error:
            if (package := _package(error)) is None:
                raise
            raise _missing(f"the image processor of '{model}'", package) from error


def read_processor(source: str, model: str, kind: str, tokenizer: Any, image_processor: Any) -> Any:
    """The processor of a chat model, which puts the tokens of an image into a text; `kind` is the config's model_type.

    The parts for videos and sound are left out.
    """
    with in_one_line("processor"):
        name = _processors.PROCESSOR_MAPPING_NAMES.get(kind)
        try:
            family: Any = None if name is None else _processors.processor_class_from_name(name)
            if family is None:
                raise InputError(
                    f"the model '{model}' is of the kind '{kind}', for which transformers has no processor of images "
                    "and texts"
                )
            parts = {"tokenizer": tokenizer, "image_processor": image_processor}
            return _without_other_parts(family, parts).from_pretrained(source, local_files_only=True)
        except ImportError as error:
            raise _missing(f"the processor of '{model}'", _package(error) or first_line(error)) from error


def _without_other_parts(family: Any, parts: dict[str, Any]) -> Any:
    """A family's processor that loads with these parts and has None for others."""

    def arguments(cls: Any, *_: Any, **__: Any) -> list[Any]:
        return [parts.get(name) for name in cls.get_attributes()]

    def check(self: Any, name: str, argument: Any) -> Any:
        return None if argument is None else family.check_argument_for_proper_class(self, name, argument)

    own = {"_get_arguments_from_pretrained": classmethod(arguments), "check_argument_for_proper_class": check}
    return type(family.__name__, (family,), own)


def _package(error: Exception) -> str | None:
    """The package that an error of transformers asks for."""
    if "torchvision" in str(error).lower():
        return "torchvision"
    found = re.search(r"pip install ([\w-]+)", str(error))
    return None if found is None else found[1]


def _missing(what: str, package: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{what} needs the Python package {package}, which this package does not install; install it with: "
        f"pip install {package}"
    )


def refuse_missing(report: Any) -> None:
    """Raise ValueError if weights were missing when a model was loaded: they would keep random values."""
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{len(missing)} of them are missing, such as {missing[0]}")


def pooled(found: Any) -> Tensor:
    """The vectors that a tower gives: some versions of transformers return them by themselves, some with more."""
    vectors: Tensor = getattr(found, "pooler_output", found)
    return vectors


def for_model(inputs: Any, model: Any) -> dict[str, Tensor]:
    """What a processor gave, on the model's device; pixels also have the model's precision."""
    return {
        name: tensor.to(model.device, model.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in inputs.items()
    }
