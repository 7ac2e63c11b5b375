"""Scorers of the user's: `python:<module>:<name>` imports a module, calls what it names, and hashes its source."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlmsafe.errors import InputError, VlmsafeError, unknown_name
from vlmsafe.io.source import SourceHash, hash_source, loaded_files, stale_files, unseen_files
from vlmsafe.signals.scorers.api import Scorer

if TYPE_CHECKING:  # settings are read without prompts, which need YAML
    from vlmsafe.signals.prompts import PromptSet


def look_up(argument: str) -> type[Scorer] | None:
    """Import what an argument names; gives the scorer's class where it is one."""
    maker = _maker(argument)
    return maker if isinstance(maker, type) and issubclass(maker, Scorer) else None


def _maker(argument: str) -> Callable[[PromptSet], Any]:
    """The user's callable that makes a scorer."""
    module, _, name = argument.partition(":")
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"cannot import the scorer 'python:{argument}': {error}; put the folder of its module on PYTHONPATH, or "
            "install it"
        ) from None
    except Exception as error:  # the user's module may raise anything
        raise InputError(f"cannot import the scorer 'python:{argument}': {type(error).__name__}: {error}") from error
    if (maker := getattr(found, name, None)) is None:
        own = [one for one, value in vars(found).items() if isinstance(value, type) and issubclass(value, Scorer)]
        unknown = unknown_name(f"scorer of {module}", name, own)
        raise InputError(f"cannot import the scorer 'python:{argument}': {unknown}")
    if not callable(maker):
        raise InputError(f"'python:{argument}' is a {type(maker).__name__}; expected a class or a function")
    return maker


def make(argument: str, prompts: PromptSet) -> Scorer:
    """The user's scorer for these prompts."""
    text, before = f"python:{argument}", frozenset(sys.modules)
    maker = _maker(argument)
    try:
        scorer = maker(prompts)
    except VlmsafeError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise InputError(f"'{text}' raised {type(error).__name__}: {error}") from error
    if not isinstance(scorer, Scorer):
        raise InputError(f"'{text}' gave a {type(scorer).__name__}; expected a vlmsafe.Scorer")
    scorer.source = _loaded_source(argument.partition(":")[0], scorer, before)
    return scorer


_LOADED: dict[str, tuple[Any, SourceHash]] = {}
"""The user's modules that this process loaded scorers from: the import, which a reload replaces, and the source."""


def _loaded_source(module: str, scorer: Scorer, before: frozenset[str]) -> SourceHash:
    """The source that a scorer was loaded from. Python imports a module once, so a later change is not loaded.

    `before` are the names of the modules that were loaded before. For one of them the present file may not be what was
    imported.
    """
    now, imported = hash_source([module], revision=True), sys.modules[module].__spec__
    if module not in _LOADED or _LOADED[module][0] is not imported:
        if module in before and (stale := stale_files(now)):
            now = replace(now, unknown=f"{', '.join(stale)} may have been changed after this process imported it")
        _LOADED[module] = imported, now
    then = _LOADED[module][1]
    if changes := then.changes(now):
        raise InputError(
            f"the source of 'python:{module}' was changed after this process had loaded it ({changes}); start Python, "
            "or the scoring service, again"
        )
    unseen = unseen_files(loaded_files(before.difference(kind.__module__ for kind in type(scorer).__mro__)), now)
    if unseen and not then.unknown:
        return replace(now, unknown=f"it is made of {', '.join(unseen)}, which '{module}' does not import")
    return replace(now, unknown=then.unknown)
