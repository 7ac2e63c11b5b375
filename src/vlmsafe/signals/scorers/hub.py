"""Finds models in a folder, in the user's Hugging Face cache or on the hub; errors are one line."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
import transformers
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from vlmsafe.errors import InputError

T = TypeVar("T")

_HUB_SECONDS = 10.0
_TEXTS = (".json", ".txt", ".model", ".jinja")
"""Files of a checkpoint other than its weights: configurations, vocabularies and templates."""
_LOADING = threading.RLock()
"""Held while a model is loaded: the libraries keep log levels, warnings and the default number format per process."""

# Both libraries are only partly typed, so what comes from them is Any.
_models: Any = transformers
_hub: Any = huggingface_hub


class Unreadable(Exception):
    """Files that are missing or cannot be used, in one line."""


def find(model: str, read: Callable[[str, bool], T], scorer: str) -> T:
    """What `read(source, local)` makes of a model's files.

    `model` is a folder or a name. A name is looked up in the cache first; the hub is asked only if files are missing
    there. `read` raises `Unreadable` for missing files. `scorer` is the kind of the scorer, for messages.
    """
    if model and (folder := Path(model).expanduser()).is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"the folder {model} holds no model: there is no config.json in it")
        try:
            return read(str(folder), True)
        except Unreadable as error:
            raise InputError(f"cannot load the model in the folder {model}: {error}") from error
    _check_name(model)
    try:
        return read(model, True)
    except Unreadable as error:
        _ask_hub(model, str(error), scorer)
    _announce(model)
    try:
        return read(model, False)
    except Unreadable as error:
        raise InputError(f"cannot load the model '{model}' from the Hugging Face hub: {error}") from error


def find_folder(
    model: str, revision: str | None, read: Callable[[Path, bool], T], scorer: str, *, weights: bool = True
) -> T:
    """What `read(folder, complete)` makes of a model's files: the user's own folder, or one of the cache.

    As in `find`, the hub is asked only if files are missing in the cache. Without `weights` only the rest is
    downloaded; `complete` is then False.
    """
    if model and (folder := Path(model).expanduser()).is_dir():
        try:
            return read(folder, True)
        except Unreadable as error:
            raise InputError(f"cannot load the model in the folder {model}: {error}") from error
    _check_name(model)
    shown = f"{model}@{revision}" if revision else model
    try:
        return read(_cached(model, revision), True)
    except Unreadable as error:
        found = _ask_hub(model, str(error), scorer, revision)
    if weights:
        _announce(shown)
    try:
        with in_one_line("files"):
            names = _wanted([entry.rfilename for entry in found.siblings or ()], weights)
            folder = Path(_hub.snapshot_download(model, revision=revision, allow_patterns=names))
        return read(folder, weights)
    except Unreadable as error:
        raise InputError(f"cannot load the model '{shown}' from the Hugging Face hub: {error}") from error


def _cached(model: str, revision: str | None) -> Path:
    """The folder of a model in the cache; it need not be complete."""
    try:
        return Path(_hub.snapshot_download(model, revision=revision, local_files_only=True))
    except FileNotFoundError as error:
        raise Unreadable("its files: there are none") from error


def _wanted(names: Sequence[str], weights: bool) -> list[str]:
    """The files that a model is loaded from; weights in the older format only if there are no others."""
    top = [name for name in names if "/" not in name]
    texts = [name for name in top if name.endswith(_TEXTS)]
    if not weights:
        return texts
    tensors = [name for name in top if name.endswith(".safetensors")]
    older = [name for name in top if re.fullmatch(r"(pytorch|adapter)_model.*\.bin", name)]
    return [*texts, *(tensors or older)]


def _check_name(model: str) -> None:
    if re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", model) is None:
        raise InputError(f"there is no folder '{model}', and it cannot be the name of a model on the Hugging Face hub")


def _announce(model: str) -> None:
    """The download is hundreds of megabytes or more, and the libraries' own progress bars are off."""
    print(f"downloading the model '{model}' from the Hugging Face hub", file=sys.stderr, flush=True)


def _ask_hub(model: str, missing: str, scorer: str, revision: str | None = None) -> Any:
    """What the hub knows of a model. It fails at once if the hub cannot be reached or lacks the model; a download would
    try for half a minute."""
    try:
        return _hub.HfApi().model_info(model, revision=revision, timeout=_HUB_SECONDS)
    except GatedRepoError as error:
        raise InputError(f"ask for access to '{model}' at https://hf.co/{model}, then run: hf auth login") from error
    except RevisionNotFoundError as error:
        raise InputError(f"the model '{model}' has no revision '{revision}' on the Hugging Face hub") from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"the model '{model}' is neither a folder nor on the Hugging Face hub; if it is private, run: hf auth login"
        ) from error
    except Exception as error:  # its class depends on the version of the hub's library
        where = "is neither a folder nor in the Hugging Face cache"
        if revision is not None:
            where = f"is not in the Hugging Face cache with the revision '{revision}'"
        if any(find_file(model, name, revision) for name in ("config.json", "adapter_config.json")):
            where = f"is not complete in the Hugging Face cache ({missing})"
        option = f" --revision {revision}" if revision else ""
        raise InputError(
            f"the model '{model}' {where}, and the hub cannot be reached; get it on a machine with internet with: "
            f"hf download {model}{option}, or pass {scorer}:<folder>"
        ) from error


def find_file(source: str, name: str, revision: str | None = None) -> Path | None:
    """A file of a checkpoint, in a folder or in the cache; None if it is missing."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    found = _hub.try_to_load_from_cache(source, name, revision=revision)
    return Path(found) if isinstance(found, str) else None


def require_weights(source: str) -> None:
    """Raise FileNotFoundError if a folder or the cache holds no weights of a checkpoint; nothing is read."""
    names = (f"{name}{index}" for name in ("model.safetensors", "pytorch_model.bin") for index in ("", ".index.json"))
    if not any(find_file(source, name) for name in names):
        raise FileNotFoundError("there are none")


def revision_of(source: str) -> str | None:
    """The commit of a checkpoint in the cache, where it is the name of the folder; None for other folders."""
    config = find_file(source, "config.json")
    return config.parent.name if config and re.fullmatch("[0-9a-f]{40}", config.parent.name) else None


@contextmanager
def in_one_line(part: str) -> Iterator[None]:
    """Turn a library's error about a damaged or missing file into its first line; errors of this package pass."""
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
    """Silence the libraries' warnings, progress bars and background requests; restore their settings afterwards.

    The settings belong to the process, so another thread that wants to load a model waits.
    """
    with _LOADING, ExitStack() as restore:
        for log in map(logging.getLogger, ("transformers", "huggingface_hub")):
            restore.callback(log.setLevel, log.level)
            log.setLevel(logging.ERROR)
        if _models.utils.logging.is_progress_bar_enabled():
            if _hub.utils.are_progress_bars_disabled():
                restore.callback(_hub.utils.disable_progress_bars)  # called last: enabling the others enables it too
            restore.callback(_models.utils.logging.enable_progress_bar)
            _models.utils.logging.disable_progress_bar()  # the hub's too
        variable = "DISABLE_SAFETENSORS_CONVERSION"  # without it, weights in the older format ask the hub
        restore.callback(_set_variable, variable, os.environ.get(variable))
        os.environ[variable] = "1"
        restore.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
