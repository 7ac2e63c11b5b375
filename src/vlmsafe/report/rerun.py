"""What a reader needs to run everything again: the configuration of each arm, commands and versions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from vlmsafe.audit.findings import listed
from vlmsafe.config.yaml import to_dict
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.request import Entry

_ALL = Entry("settings")


def arm_configs(dataset: Dataset) -> Iterator[tuple[str, str, str, str]]:
    """Of each arm: its title, its seeds, its configuration as YAML and the text of its prompts."""
    for env in dataset.environments:
        for arm in dataset.arms(env, _ALL):
            first = arm.first
            settings = {key: value for key, value in to_dict(first.config).items() if key not in ("run_dir", "seed")}
            config = yaml.safe_dump(settings, sort_keys=False, width=100)
            prompts = yaml.safe_dump(first.prompts, sort_keys=False, width=100) if first.prompts else ""
            same = [
                run
                for run in arm.runs
                if {**run.settings, "seed": 0, "run_dir": 0} == {**first.settings, "seed": 0, "run_dir": 0}
            ]
            runs = f"Seeds {listed(arm.seeds, most=12)}."
            if len(same) < len(arm.runs):
                runs += f" {len(arm.runs) - len(same)} of the runs have other settings; see the audit."
            yield f"{env}, {arm.name}", runs, config, prompts


def _relative(path: Path, roots: Sequence[Path]) -> str:
    """A run's place within the folder it was found in, so that a report does not depend on where that folder is."""
    for root in roots:
        if path.resolve().is_relative_to(root.resolve()) and path.resolve() != root.resolve():
            return path.resolve().relative_to(root.resolve()).as_posix()
    return path.resolve().name


def rerun_lines(dataset: Dataset) -> tuple[list[str], dict[str, Any]]:
    """A command per run, by its own configuration file, and what the runs were made with, each variant once."""
    commands = []
    surroundings: dict[str, list[str]] = {}
    for env in dataset.environments:
        for arm in dataset.arms(env, _ALL):
            for run in arm.runs:
                folder = _relative(run.source.run.path, dataset.roots)
                again = shlex.quote(f"again/{folder}")
                commands.append(f"vlmsafe train --config {shlex.quote(f'{folder}/config.yaml')} --run-dir {again}")
                commands += [
                    f"vlmsafe evaluate {again} --protocol {shlex.quote(name)}" for name in sorted(run.evaluations)
                ]
                about = {key: value for key, value in run.recorded.items() if key != "started"}
                surroundings.setdefault(yaml.safe_dump(about, sort_keys=True), []).append(run.label)
    return commands, {
        f"made {place}": {"runs": listed(labels, most=6), **yaml.safe_load(text)}
        for place, (text, labels) in enumerate(surroundings.items(), 1)
    }
