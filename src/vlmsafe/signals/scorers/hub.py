"""Models by name or folder: from the user's Hugging Face cache, then from the hub, or one line that says why not."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
import transformers
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from vlmsafe.errors import InputError

T = TypeVar("T")

_HUB_SECONDS = 10.0

# Half typed, both of them; what comes from them is Any.
_models: Any = transformers
_hub: Any = huggingface_hub


class Unreadable(Exception):
    """Files that are not there or cannot be used, in one line."""


def find(model: str, read: Callable[[str, bool], T], scorer: str) -> T:
    """What `read(source, local)` makes of a model's files, from wherever they are.

    A folder, or a name: then from the cache where it is complete there, without a request to the hub. `read` raises
    `Unreadable` for files that are missing; `scorer` is what the user named the model with.
    """
    if model and (folder := Path(model).expanduser()).is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"the folder {model} holds no model: there is no config.json in it")
        try:
            return read(str(folder), True)
        except Unreadable as error:
            raise InputError(f"cannot load the model in the folder {model}: {error}") from error
    if re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", model) is None:
        raise InputError(f"there is no folder '{model}', nor can that be the name of a model on the Hugging Face hub")
    try:
        return read(model, True)
    except Unreadable as error:
        _ask_hub(model, str(error), scorer)
    # Hundreds of megabytes, at least, and the libraries' own bars are off.
    print(f"downloading the model '{model}' from the Hugging Face hub", file=sys.stderr, flush=True)
    try:
        return read(model, False)
    except Unreadable as error:
        raise InputError(f"cannot load the model '{model}' from the Hugging Face hub: {error}") from error


def _ask_hub(model: str, missing: str, scorer: str) -> None:
    """Fail at once where the hub cannot be reached or has no such model; a download would try for half a minute."""
    try:
        _hub.HfApi().model_info(model, timeout=_HUB_SECONDS)
    except GatedRepoError as error:
        raise InputError(f"ask for access to '{model}' at https://hf.co/{model}, then run: hf auth login") from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"the model '{model}' is neither a folder nor on the Hugging Face hub; if it is private, run: hf auth login"
        ) from error
    except Exception as error:  # of which class depends on the version of the hub's library
        where = "is neither a folder nor in the Hugging Face cache"
        if find_file(model, "config.json"):
            where = f"is not complete in the Hugging Face cache ({missing})"
        raise InputError(
            f"the model '{model}' {where}, and the hub cannot be reached; get it on a machine with internet with: "
            f"hf download {model}, or pass {scorer}:<folder>"
        ) from error


def find_file(source: str, name: str) -> Path | None:
    """A file of a checkpoint in a folder or in the cache."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    found = _hub.try_to_load_from_cache(source, name)
    return Path(found) if isinstance(found, str) else None


def revision_of(source: str) -> str | None:
    """The commit a checkpoint is of, which is the name of its folder in the cache."""
    config = find_file(source, "config.json")
    return config.parent.name if config and re.fullmatch("[0-9a-f]{40}", config.parent.name) else None


@contextmanager
def in_one_line(part: str) -> Iterator[None]:
    """Whatever a library says of a damaged or missing file, as the first line of it; errors of ours pass."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise Unreadable(f"its {part}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, progress bars or background requests of the libraries, whose settings are as before afterwards."""
    logs = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [log.level for log in logs]
    bars, hub_bars = _models.utils.logging.is_progress_bar_enabled(), not _hub.utils.are_progress_bars_disabled()
    variable = "DISABLE_SAFETENSORS_CONVERSION"  # weights in the older format else start a thread that asks the hub
    before = os.environ.get(variable)
    for log in logs:
        log.setLevel(logging.ERROR)
    _models.utils.logging.disable_progress_bar()  # the hub's too
    os.environ[variable] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
        if bars:
            _models.utils.logging.enable_progress_bar()
        if bars and not hub_bars:
            _hub.utils.disable_progress_bars()
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before
