"""What an environment in another interpreter is made of: the source there, and the versions that it meets.

The path of an interpreter is a place. The source is found there by the rule of `vlmsafe.io.source`, with that
interpreter's own paths. The versions of Python and of the packages below are recorded beside the files, so that a run
sees a changed version as it sees a changed file.
"""

from __future__ import annotations

import json
import subprocess

from vlmsafe.envs.bridge.interpreters import find_interpreter
from vlmsafe.errors import InputError
from vlmsafe.io import source
from vlmsafe.io.source import SourceHash

_PACKAGES = (
    "numpy", "gymnasium", "safety-gymnasium", "gymnasium-robotics", "mujoco", "mujoco-py", "pybullet", "panda3d",
    "metadrive-simulator", "box2d-py", "box2d", "pygame", "pymunk", "scipy", "torch", "jax",
)  # fmt: skip
# Run by the other interpreter. An id without a module is looked up in Gymnasium's own registry there.
_PROGRAM = """
import importlib.util, json, os, sys
from importlib import metadata

place, modules, env_id, packages, revision = json.loads(sys.argv[1])
sys.path[:1] = []
sys.path.append(os.getcwd())
spec = importlib.util.spec_from_file_location("source_of_users", place)
rule = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rule)
if not modules:
    import gymnasium
    registered = gymnasium.spec(env_id).entry_point
    modules = [registered.split(":")[0] if isinstance(registered, str) else registered.__module__]
found = rule.hash_source(modules, revision=revision)
versions = {"python": sys.version.split()[0]}
for name in packages:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps([dict(found.files), found.unknown, found.revision, dict(found.seen), versions]))
"""


def source_there(python: str, modules: list[str], env_id: str, revision: bool) -> SourceHash:
    """The source of modules in the interpreter that `python` names; without modules, that of a registered id."""
    try:
        interpreter = find_interpreter(python)
    except InputError as error:  # on a machine that only compares runs there may be none
        return SourceHash(unknown=str(error))
    arguments = json.dumps([source.__file__, modules, env_id, _PACKAGES, revision])
    try:
        answer = subprocess.run(
            [interpreter.python, "-c", _PROGRAM, arguments],
            capture_output=True, text=True, timeout=120, check=True, env=interpreter.environment(),
        )  # fmt: skip
        files, unknown, revised, seen, versions = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", "") or "").strip().splitlines()
        return SourceHash(unknown=f"{interpreter.python} could not look it up: {said[-1] if said else error}")
    if unknown:
        return SourceHash(unknown=unknown)
    stamps = {path: tuple(stamp) for path, stamp in seen.items()}
    return SourceHash(files | {f"version of {name}": found for name, found in versions.items()}, "", revised, stamps)
