"""vlmsafe train."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vlmsafe.cli.terminal import listing, out, parse
from vlmsafe.config.methods import config_from, config_from_yaml, method_defaults
from vlmsafe.config.recipes import is_path, shipped_recipes
from vlmsafe.config.settings import PLACE, TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError

_ACCEPT = "--accept-changed-code"
_PLACE = {name: f"--{name}".replace("_", "-") for name in sorted(PLACE)}


@dataclass(frozen=True)
class TrainCommand:
    """Train a constrained agent, or continue an interrupted run.

    Defaults shown are those of the chosen method. Settings given on the command line win over those of --config.
    """

    config: str | None = None
    """YAML file of settings, such as the config.yaml of another run, or the name of a recipe; without a value, lists
    the recipes."""
    resume: Path | None = None
    """Run directory to continue exactly where it stopped, or with more --total-steps to extend."""
    accept_changed_code: bool = False
    """With --resume: continue although the source of your own environment or scorer has changed; the run records it."""
    quiet: bool = False
    """Print nothing while training."""
    settings: Annotated[TrainConfig, tyro.conf.arg(name="")] = TrainConfig()  # noqa: RUF009 - frozen


def train_verb(argv: list[str]) -> None:
    early, given = _early(argv)
    if early.config == "":
        _list_recipes()
        return
    if early.resume is not None:
        allowed = ("--quiet", "--no-quiet", "--help", "--total-steps", _ACCEPT, *_PLACE.values())
        unwanted = [word for word in given if word not in allowed]
        unwanted += [f"--{name}" for name in ("config", "method") if getattr(early, name) is not None]
        if unwanted:
            raise InputError(
                f"--resume continues a run with its own settings; drop {', '.join(unwanted)}, or start a new run with "
                f"--config {Path(early.resume) / 'config.yaml'}"
            )
    command = _command(argv, early)

    from vlmsafe.training.start import open_trained, resume, train

    if command.resume is not None:
        from vlmsafe.runs.versions import other_world

        longer = command.settings.total_steps if "--total-steps" in given else None
        run = open_trained(command.resume)
        if run.status() == "finished" and longer in (None, run.config.total_steps):
            out.print(f"{command.resume} is finished; nothing to do")
            if elsewhere := other_world(run):
                out.print(f"note: {elsewhere}")
            return
        settings = flatten(to_dict(command.settings))
        run = resume(
            command.resume,
            total_steps=longer,
            accept_changed_code=command.accept_changed_code,
            quiet=command.quiet,
            place={name: settings[name] for name, option in _PLACE.items() if option in given},
        )
    elif command.accept_changed_code:
        raise InputError(f"{_ACCEPT} is for a run that is continued; name the run with --resume, or drop it")
    else:
        run = train(command.settings, quiet=command.quiet)
    out.print(f"finished: {run.path}", markup=False, soft_wrap=True)
    out.print(f"evaluate it with: vlmsafe evaluate {shlex.quote(str(run.path))}", markup=False, soft_wrap=True)


def settings_of(argv: list[str]) -> TrainConfig:
    """The settings of a new run that a command line asks for."""
    return _command(argv, _early(argv)[0]).settings


def _early(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What must be known before the rest is parsed, and the names of the other options that were given.

    What the method and the file say are the defaults of the rest.
    """
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("--config", nargs="?", const="")
    for name in ("--method", "--resume"):
        known.add_argument(name, nargs="?")  # a value left out is for the full parser to complain about
    early, others = known.parse_known_args(argv)
    return early, [word.partition("=")[0].replace("_", "-") for word in others if word.startswith("--")]


def _command(argv: list[str], early: argparse.Namespace) -> TrainCommand:
    if early.config is not None and is_path(early.config):
        defaults = config_from_yaml(Path(early.config), early.method)
    elif early.config is not None:
        defaults = config_from({"recipe": early.config}, f"{early.config}.yaml", early.method)
    else:
        defaults = method_defaults(early.method or TrainConfig.method)
    command: TrainCommand = parse(TrainCommand, argv, "train", TrainCommand(settings=defaults))
    return command


def _list_recipes() -> None:
    table = listing("recipe", "what it is for")
    for name, summary in shipped_recipes().items():
        table.add_row(name, summary)
    out.print(table)
    out.print("vlmsafe train --config NAME trains with a recipe; vlmsafe methods diff METHOD NAME shows its settings.")
