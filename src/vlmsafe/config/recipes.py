"""Recipes: files of settings that ship with the package, chosen by name with `--config`.

A recipe is a configuration file and nothing else. Its settings replace those of the method, and are replaced by what
the user sets. A run records the recipe's name beside all of its settings.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from vlmsafe.config.yaml import parse_yaml
from vlmsafe.errors import unknown_name

_FOLDER = resources.files("vlmsafe.config") / "recipes"


def shipped_recipes() -> dict[str, str]:
    """What each recipe is for, by its name: the comment in its first line."""
    names = sorted(entry.name.removesuffix(".yaml") for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml"))
    return {name: _text(name).partition("\n")[0].removeprefix("# ") for name in names}


def recipe_settings(name: str) -> dict[str, Any]:
    """The settings of a recipe."""
    if name not in (known := shipped_recipes()):
        raise unknown_name("recipe", name, [*known, "a path to a YAML file"])
    return parse_yaml(_text(name), f"{name}.yaml")


def is_path(config: str) -> bool:
    """Whether a value of `--config` is a file; otherwise it is the name of a recipe."""
    return "/" in config or config.endswith((".yaml", ".yml")) or Path(config).is_file()


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
