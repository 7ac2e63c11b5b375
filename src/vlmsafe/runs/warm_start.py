"""Warm starts: what a run takes over from another run before its first epoch (`--init-from`).

The policy and the normaliser are taken, and on request the critics. Optimisers and multipliers start anew. What was
taken is copied into the new run as `start.safetensors`, so the run can be repeated when its source is gone.
"""

from __future__ import annotations

from pathlib import Path

from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import InputError
from vlmsafe.learners.networks import NAMES, POLICY
from vlmsafe.runs.checkpoint import Checkpoint, load_checkpoint
from vlmsafe.runs.run import Run
from vlmsafe.runs.versions import other_world


def read_start(config: TrainConfig) -> Checkpoint | None:
    """What `config` takes over, read from its source; None if the run begins with a new policy."""
    if config.init_from is None:
        return None
    found = _newest(config.init_from)
    if not found.trained:
        raise InputError(f"init_from is {config.init_from}, which holds only an untrained start; train it first")
    normalised = found.values["config"]["normalise_observations"]
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
    settings = found.values["config"]
    origin = {"source": config.init_from, "env": settings["env"], "method": settings["method"]}
    if (source := Path(config.init_from)).is_dir() and (elsewhere := other_world(Run.open(source))):
        origin["world"] = elsewhere
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


def _newest(source: str) -> Checkpoint:
    """The newest readable checkpoint of a run directory, or the checkpoint in a file."""
    path = Path(source)
    if path.is_file():
        return load_checkpoint(path)
    return Run.open(path).checkpoint()[0]


def _units(hidden: tuple[int, ...]) -> str:
    return " ".join(map(str, hidden))
