"""Warm starts: what a run takes over from another run before its first epoch (`--init-from`).

The policy and the normaliser are taken, and on request the critics. Optimisers and multipliers start anew. What was
taken is copied into the new run as `start.safetensors`, so the run can be repeated when its source is gone.
"""

from __future__ import annotations

from pathlib import Path

from vlmsafe.config.learning import OFF_POLICY
from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.registry import GYM_MODULE, env_spec
from vlmsafe.errors import InputError
from vlmsafe.learners.networks import NAMES, POLICY
from vlmsafe.runs.checkpoint import Checkpoint, load_checkpoint
from vlmsafe.runs.drivers import open_run
from vlmsafe.runs.versions import changed_source, other_world


def read_start(config: TrainConfig) -> Checkpoint | None:
    """What `config` takes over, read from its source; None if the run begins with a new policy."""
    if config.init_from is None:
        return None
    found, elsewhere = _newest(config.init_from)
    if not found.trained:
        raise InputError(f"init_from is {config.init_from}, which holds only an untrained start; train it first")
    settings = found.values["config"]
    theirs, ours = settings["learner"]["algorithm"], config.learner.algorithm
    if theirs != ours and OFF_POLICY & {theirs, ours}:
        raise InputError(
            f"init_from is {config.init_from}, a policy of the learner '{theirs}', which the learner '{ours}' cannot "
            f"train on; expected one of '{ours}'"
        )
    _check_family(config, settings["env"])
    normalised = settings["normalise_observations"]
    if normalised != config.normalise_observations:
        raise InputError(
            f"init_from is {config.init_from}, whose normalise_observations is {normalised}; expected "
            f"{config.normalise_observations}, as in this run, because a policy needs the inputs it learned with"
        )
    if config.init_critics and not found.shape.critics:
        raise InputError(f"init_critics is set, but {config.init_from} has no critics; drop it")
    networks = found.shape.networks if config.init_critics else POLICY + 1
    arrays = {name: array for name, array in found.arrays.items() if name.startswith("normaliser.")}
    arrays["networks"] = found.arrays["networks"][:networks].copy()
    origin = {"source": config.init_from, "env": settings["env"], "method": settings["method"]}
    if settings["env"] != config.env:
        elsewhere.append(f"it was trained on {settings['env']}, and this run is on {config.env}")
    if elsewhere:
        origin["world"] = "; ".join(elsewhere)
    origin["taken"] = [*NAMES[:networks], *(["normaliser"] if normalised else [])]
    shape = {**found.values["shape"], "critics": networks - 1}
    return Checkpoint(found.epoch, arrays, {"shape": shape, "origin": origin})


def check_start(start: Checkpoint, observation: int, action: int, config: TrainConfig) -> None:
    """Refuse what does not fit the networks of a run."""
    theirs = start.shape
    for name, found, expected in (
        ("observations of length", theirs.observation, observation),
        ("actions of length", theirs.action, action),
        ("hidden layers of", _units(theirs.hidden), _units(config.learner.hidden)),
    ):
        if found != expected:
            hint = f"; pass --learner.hidden {_units(theirs.hidden)}" if name.startswith("hidden") else ""
            raise InputError(
                f"init_from is {config.init_from}, a policy with {name} {found}; this run on '{config.env}' has "
                f"{expected}{hint}"
            )


def describe_start(start: Checkpoint) -> str:
    """In words, for the display."""
    origin = start.values["origin"]
    what = ", ".join(name.replace("_", " ") for name in origin["taken"])
    world = f"; {origin['world']}" if "world" in origin else ""
    return (
        f"starts from {origin['source']}, epoch {start.epoch}, of {origin['method']} on {origin['env']}: {what}{world}"
    )


def _check_family(config: TrainConfig, env: str) -> None:
    """Refuse a policy of another simulator. Another level or variant of the same one is a legitimate start.

    Nothing is known about a user's own environments beyond their sizes, which `check_start` compares.
    """
    theirs, ours = env_spec(env).module, config.spec.module
    if theirs != ours and GYM_MODULE not in (theirs, ours):
        raise InputError(
            f"init_from is {config.init_from}, a policy for '{env}', which is another world than '{config.env}'; "
            f"expected one that was trained on '{config.env.partition(':')[0]}', or on another level or variant of it"
        )


def _newest(source: str) -> tuple[Checkpoint, list[str]]:
    """The newest readable checkpoint of a run or a driver, or that of a file; and whether its world has changed since.

    A file does not say in which version of its world the run was trained.
    """
    path = Path(source)
    if path.is_file():
        return load_checkpoint(path), []
    run = open_run(source)
    now = run.config.spec.source_hash()
    changed = None if now is None else changed_source(run, {"environment": now})
    return run.checkpoint()[0], [why for why in (other_world(run), changed) if why]


def _units(hidden: tuple[int, ...]) -> str:
    return " ".join(map(str, hidden))
