"""Classes and functions of the user's, named as `python:<module>:<name>`: their import and the source behind them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from vlmsafe.errors import InputError, unknown_name
from vlmsafe.io.source import SourceHash, hash_source, loaded_files, stale_files, unseen_files

PREFIX = "python:"
"""What stands before the module."""

_LOADED: dict[str, tuple[Any, SourceHash]] = {}
"""The user's modules that this process loaded from: the import, which a reload replaces, and the source."""


def import_named(what: str, argument: str, offers: Callable[[Any], bool]) -> Callable[..., Any]:
    """The user's callable behind `<module>:<name>`. `what` it is, and which names of a module `offers` it, is for
    messages."""
    text, (module, _, name) = f"{PREFIX}{argument}", argument.partition(":")
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"cannot import the {what} '{text}': {error}; put the folder of its module on PYTHONPATH, or install it"
        ) from None
    except Exception as error:  # the user's module may raise anything
        raise InputError(f"cannot import the {what} '{text}': {type(error).__name__}: {error}") from error
    if (made := getattr(found, name, None)) is None:
        own = [one for one, value in vars(found).items() if offers(value)]
        raise InputError(f"cannot import the {what} '{text}': {unknown_name(f'{what} of {module}', name, own)}")
    if not callable(made):
        raise InputError(f"'{text}' is a {type(made).__name__}; expected a class or a function")
    return made


def loaded_source(module: str, made_in: Iterable[str], before: frozenset[str]) -> SourceHash:
    """The source that something was loaded from. Python imports a module once, so a later change is not loaded.

    `made_in` are the modules that define it. `before` are the names of the modules that were loaded before. For one of
    them the present file may not be what was imported.
    """
    now, imported = hash_source([module], revision=True), sys.modules[module].__spec__
    if module not in _LOADED or _LOADED[module][0] is not imported:
        if module in before and (stale := stale_files(now)):
            now = replace(now, unknown=f"{', '.join(stale)} may have been changed after this process imported it")
        _LOADED[module] = imported, now
    then = _LOADED[module][1]
    if changes := then.changes(now):
        raise InputError(
            f"the source of '{PREFIX}{module}' was changed after this process had loaded it ({changes}); start Python, "
            "or the scoring service, again"
        )
    unseen = unseen_files(loaded_files(before.difference(made_in)), now)
    if unseen and not then.unknown:
        return replace(now, unknown=f"it is made of {', '.join(unseen)}, which '{module}' does not import")
    return replace(now, unknown=then.unknown)


def present_source(argument: str) -> SourceHash:
    """The source as it is in the files now; nothing is imported."""
    return hash_source([argument.partition(":")[0]])
