"""What a reader needs to run everything again: the configuration of each arm, commands and versions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vlmsafe.audit.findings import listed
from vlmsafe.config.yaml import to_dict
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.request import Entry
from vlmsafe.runs.layout import CONFIG, PROMPTS, is_run
from vlmsafe.signals.prompts import shipped_prompts

_ALL = Entry("settings")


def arm_configs(dataset: Dataset) -> Iterator[tuple[str, str, str, str]]:
    """Of each arm: its title, its seeds, its configuration as YAML and the text of its prompts."""
    for env in dataset.environments:
        for arm in dataset.arms(env, _ALL):
            first = arm.first
            settings = {key: value for key, value in to_dict(first.config).items() if key not in ("run_dir", "seed")}
            config = _yaml(settings)
            prompts = _yaml(first.prompts) if first.prompts else ""
            same = [
                run
                for run in arm.runs
                if {**run.settings, "seed": 0, "run_dir": 0} == {**first.settings, "seed": 0, "run_dir": 0}
            ]
            runs = f"Seeds {listed(arm.seeds, most=12)}."
            if len(same) < len(arm.runs):
                runs += f" {len(arm.runs) - len(same)} of the runs have other settings; see the audit."
            yield f"{env}, {arm.name}", runs, config, prompts


def _yaml(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)


def _root(dataset: Dataset) -> Path:
    """The folder that all runs of a report lie in."""
    roots = [Path(os.path.abspath(root)) for root in dataset.roots]  # a link keeps its place
    return Path(os.path.commonpath([root.parent if is_run(root) else root for root in roots]))


def _from_here(folder: Path) -> str:
    """The way to a folder from where the report is written. If it is not below, its name: a report names no machine."""
    here = Path.cwd()
    return folder.relative_to(here).as_posix() if folder.is_relative_to(here) else folder.name


def rerun_lines(dataset: Dataset) -> tuple[list[str], dict[str, Any]]:
    """Commands that make each run again, and what the runs were made with, each variant once.

    A run is trained by its own configuration file and, if its prompts are the user's, its own copy of them. The user's
    modules are found in the folder where the commands are called, so `$RUNS` is the way to the runs from there.
    """
    root = _root(dataset)
    commands = [f"RUNS={shlex.quote(_from_here(root))}"]
    surroundings: dict[str, list[str]] = {}
    for env in dataset.environments:
        for arm in dataset.arms(env, _ALL):
            for run in arm.runs:
                folder = Path(os.path.abspath(run.source.run.path)).relative_to(root).as_posix()
                there, again = f'"$RUNS"/{shlex.quote(folder)}', shlex.quote(f"again/{folder}")
                own = run.config.signal.prompts not in (None, *shipped_prompts())
                prompts = f" --prompts {there}/{PROMPTS}" if own and run.prompts is not None else ""
                commands.append(f"vlmsafe train --config {there}/{CONFIG}{prompts} --run-dir {again}")
                commands += [
                    f"vlmsafe evaluate {again} --protocol {shlex.quote(name)} --episodes {len(table)}"
                    for name, table in sorted(run.evaluations.items())
                ]
                about = {key: value for key, value in run.recorded.items() if key != "started"}
                surroundings.setdefault(yaml.safe_dump(about, sort_keys=True), []).append(run.label)
    return commands, {
        f"made {place}": {"runs": listed(labels, most=6), **yaml.safe_load(text)}
        for place, (text, labels) in enumerate(surroundings.items(), 1)
    }
