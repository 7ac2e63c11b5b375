"""Rooms import only rooms that stand above them in the list below. The architecture page draws the same order."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import vlmsafe

ROOMS = (
    "errors", "kernels", "io", "numerics", "envs", "signals", "config", "learners", "analysis", "runs", "training",
    "verification", "evaluation", "cloning", "distillation", "comparison", "audit", "paper", "report", "studies",
    "export", "wrapper", "doctor", "cli",
)  # fmt: skip
SOURCE = Path(vlmsafe.__file__).parent
# A literal name in code, such as that of a module to start with `python -m`, counts as an import too.
LITERAL = re.compile(r"vlmsafe\.([a-z_]+)(\.[a-z_]+)*(:[A-Za-z_]+)?")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Rooms that a module imports, at its head or inside a function, or names in a string of code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vlmsafe":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("vlmsafe.")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            literal = LITERAL.fullmatch(node.value)
            found |= {literal[1]} if literal else set()
    return found


FRONT = {SOURCE / "__init__.py", SOURCE / "__main__.py"}  # the doors: the public API, and `python -m vlmsafe`
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path not in FRONT)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room):
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    wrong = {
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in MODULES
        if room_of(path) == room
        for other in imported(path) & set(ROOMS) - allowed
    }
    assert not wrong


def test_every_module_stands_in_a_room():
    assert {room_of(path) for path in MODULES} == set(ROOMS)


def test_a_class_name_means_one_thing_in_the_package():
    bodies = (ast.parse(path.read_text(encoding="utf-8")).body for path in MODULES)
    names = Counter(node.name for body in bodies for node in body if isinstance(node, ast.ClassDef))
    shared = {name for name, count in names.items() if count > 1 and not name.startswith("_")}
    assert shared <= {"Checkpoint", "Kind"}  # these two are not renamed yet


@pytest.mark.parametrize("module", ["vlmsafe", "vlmsafe.envs.registry", "vlmsafe.learners.policy", "vlmsafe.analysis"])
def test_importing_it_loads_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
