"""Scorers and gates of the user's: `python:<module>:<name>` imports a module, takes what it names, and hashes it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlmsafe.errors import InputError, VlmsafeError, unknown_name
from vlmsafe.io.source import SourceHash, hash_source, loaded_files, stale_files, unseen_files
from vlmsafe.signals.scorers.api import Scorer

if TYPE_CHECKING:  # settings are read without prompts, which need YAML
    from vlmsafe.signals.prompts import PromptSet

PREFIX = "python:"
"""What stands before the module."""

_LOADED: dict[str, tuple[Any, SourceHash]] = {}
"""The user's modules that this process loaded from: the import, which a reload replaces, and the source."""


def look_up(argument: str) -> type[Scorer] | None:
    """Import the scorer that an argument names; gives its class where it is one."""
    maker = import_named("scorer", argument, _is_scorer)
    return maker if _is_scorer(maker) else None  # type: ignore[return-value]


def make(argument: str, prompts: PromptSet) -> Scorer:
    """The user's scorer for these prompts."""
    text, before = f"{PREFIX}{argument}", frozenset(sys.modules)
    maker = import_named("scorer", argument, _is_scorer)
    try:
        scorer = maker(prompts)
    except VlmsafeError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise InputError(f"'{text}' raised {type(error).__name__}: {error}") from error
    if not isinstance(scorer, Scorer):
        raise InputError(f"'{text}' gave a {type(scorer).__name__}; expected a vlmsafe.Scorer")
    made_in = {kind.__module__ for kind in type(scorer).__mro__}
    scorer.source = loaded_source(argument.partition(":")[0], made_in, before)
    return scorer


def _is_scorer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Scorer)


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
