"""The power of a study's claims, with the variance between runs from pilot runs or from the published tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmsafe.analysis.power import POWER
from vlmsafe.comparison.claims import RATES, WINDOWS, Outcome
from vlmsafe.comparison.power import (
    KnownArm,
    PlannedArm,
    PlannedTest,
    PowerRow,
    Spread,
    known_arms,
    planned_tests,
    power_row,
    spread,
)
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.envs.registry import world_name
from vlmsafe.errors import InputError
from vlmsafe.paper.values import PublishedValue, published_values
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.records import ArmRecord, read_arms
from vlmsafe.studies.study import RunSpec, Study, cells

PUBLISHED_QUANTITIES: dict[Outcome, str] = {
    "cost": "cost",
    "violation": "violation_pct",
    "catastrophe": "catastrophe_pct",
    "env_return": "environment_return",
    "shaped_return": "logged_return",
}
"""What the published tables call the outcomes that they print. Rates are in percent."""
_PAPER_WINDOWS = {
    "paper": "evaluation-50",
    "paper-early": "evaluation-early-20",
    "paper-20": "evaluation-20",
    "paper-environment-only": "evaluation-50",
    "paper-task-metrics": "task-metrics",
    "paper-200": "evaluation-200",
}
"""The evaluation of the paper that a protocol repeats."""
_CHOOSING = "selection"
"""The protocol for choosing, whose scenarios no result is reported on."""


@dataclass(frozen=True)
class StudyPower:
    """What the tests of a study can detect."""

    rows: tuple[PowerRow, ...]
    notes: tuple[str, ...] = ()


def study_power(
    study: Study,
    specs: Sequence[RunSpec],
    *,
    pilot: Path | None = None,
    difference: float | None = None,
    wanted: float = POWER,
) -> StudyPower:
    """What each claimed test of a study can detect, and how many seeds a difference needs.

    Deviations come from the runs in the folder `pilot`, or else from the published tables.
    """
    _check(difference, wanted)
    own = cells(specs)
    planned = planned_tests(study.claims, {key: _planned_arm(runs) for key, runs in own.items()})
    if not planned:
        if pilot is not None or difference is not None:
            raise InputError(
                f"the study '{study.name}' claims no test, so there is no power to plan; add 'comparisons'"
            )
        return StudyPower(())
    if difference is not None and difference > 1.0 and all(one.claim.outcome in RATES for one in planned):
        raise InputError(f"the difference is {difference:g}, but all claims are about rates; give one from 0 to 1")
    arms, notes = _pilot(pilot, planned) if pilot is not None else ({}, [])
    rows = []
    for test in planned:
        found = _pilot_spread(test, arms)
        if found is None and any(env == test.env for env, _ in arms):
            notes.append(
                f"the pilot runs on {test.env} tell nothing about {test.claim.outcome} from {test.source}: fewer than "
                "two runs of an arm have it, or all are equal"
            )
        configs = {name: own[test.env, name][0].config for name in (test.claim.first, test.claim.second)}
        rows.append(power_row(test, found or published_spread(test, configs), wanted=wanted, difference=difference))
    if study.claims.contrasts:
        notes.append("the power of contrasts is not computed")
    if len(study.looks.at) > 1:
        notes.append("the power is that of one test with all seeds; interim looks lower it a little")
    if any(row.spread is None for row in rows):
        notes.append("some runs of each arm, in a folder given as --pilot, tell how much runs differ")
    return StudyPower(tuple(rows), tuple(dict.fromkeys(notes)))


def _pilot_spread(test: PlannedTest, arms: Mapping[tuple[str, str], ArmRecord]) -> Spread | None:
    """Deviations between pilot runs, from the claimed evaluation or else from 'selection'.

    A pilot chooses settings, so it should not look at the scenarios on which its study is decided.
    """
    found = spread(test, known_arms(arms, test), "pilot runs")
    if found is not None or test.source == "training":
        return found
    return spread(test, known_arms(arms, replace(test, source=_CHOOSING)), f"pilot runs ({_CHOOSING})")


def _check(difference: float | None, wanted: float) -> None:
    if difference is not None and not (math.isfinite(difference) and difference > 0.0):
        raise InputError(f"the difference is {difference:g}; expected a number above 0, in the unit of the outcome")
    if not 0.0 < wanted < 1.0:
        raise InputError(f"the wanted power is {wanted:g}; it must lie between 0 and 1, such as 0.8")


def _planned_arm(runs: Sequence[RunSpec]) -> PlannedArm:
    protocols = set.intersection(*({request.protocol for request in run.evaluations} for run in runs))
    return PlannedArm(tuple(run.seed for run in runs), tuple(sorted(protocols)))


def _pilot(folder: Path, planned: Sequence[PlannedTest]) -> tuple[dict[tuple[str, str], ArmRecord], list[str]]:
    """The arms in a folder of runs, and a line about runs that cannot be read."""
    sources, unreadable = open_arms([folder])
    names = {world_name(one.env): one.env for one in planned}
    used = [replace(one, env=names[world]) for one in sources if (world := world_name(one.env)) in names]
    if not used:
        there = ", ".join(dict.fromkeys(one.env for one in sources)) or "nothing that can be read"
        raise InputError(f"the pilot folder {folder} has no runs of {' or '.join(names)}; it has runs of {there}")
    return read_arms(used), [f"not read: {one}" for one in unreadable]


# -- published tables -----------------------------------------------------------------------------------------------


def published_spread(planned: PlannedTest, configs: Mapping[str, TrainConfig]) -> Spread | None:
    """Deviations between the paper's runs in the same environment, for the same outcome; None if it prints none.

    `configs` has the settings of both arms. Of the training windows, or of the evaluations, the one with most of these
    arms is taken, then the claimed one, then the one with most runs.
    """
    quantity, env = PUBLISHED_QUANTITIES.get(planned.claim.outcome), world_name(planned.env)
    values = [one for one in published_values() if (one.env, one.quantity) == (env, quantity)]
    training = planned.source == "training"
    same = planned.claim.window if training else _PAPER_WINDOWS.get(planned.source)
    choices: dict[tuple[int, bool, int], tuple[str, list[KnownArm]]] = {}
    for window in dict.fromkeys(one.window for one in values if (one.window in WINDOWS) == training):
        known = _published_arms([one for one in values if one.window == window], planned, configs)
        matched = sum(one.name in configs for one in known)
        if known:
            choices.setdefault((matched, window == same, sum(one.runs for one in known)), (window, known))
    if not choices:
        return None
    window, known = choices[max(choices)]
    return spread(planned, known, f"runs of the paper ({window})")


def _published_arms(
    values: Sequence[PublishedValue], planned: PlannedTest, configs: Mapping[str, TrainConfig]
) -> list[KnownArm]:
    """The paper's arms with a deviation; those that a claim's arms repeat have the names of the claim's arms."""
    means = [one for one in values if one.seed is None and one.std is not None and (one.runs or 0) > 1]
    scale = 0.01 if planned.claim.outcome in RATES else 1.0
    found, used = [], set()
    for name, config in configs.items():
        settings = flatten(to_dict(config))
        alike = [one for one in means if one.arm == config.method]
        if alike:
            nearest = min(alike, key=lambda one: _unlike(one, settings))
            used.add(config.method)
            found.append(_known(name, nearest, values, scale))
    if len({config.method for config in configs.values()}) < len(configs):
        found = [replace(one, values={}) for one in found]  # the same published runs, which are not pairs
    return found + [_known(one.arm, one, values, scale) for one in means if not one.settings and one.arm not in used]


def _unlike(value: PublishedValue, settings: Mapping[str, Any]) -> tuple[int, int]:
    """How many of its special settings a published run does not share with ours; then how few it shares."""
    shared = sum(settings[key] == wanted for key, wanted in value.settings)
    return len(value.settings) - shared, -shared


def _known(name: str, mean: PublishedValue, values: Sequence[PublishedValue], scale: float) -> KnownArm:
    """A published arm. Its deviation over runs is a population deviation and becomes that of a sample."""
    assert mean.std is not None
    assert mean.runs is not None
    by_seed: dict[int | str, float] = {
        one.seed: scale * one.value
        for one in values
        if one.seed is not None and (one.arm, one.settings) == (mean.arm, mean.settings)
    }
    runs = mean.runs
    return KnownArm(name, scale * mean.std * math.sqrt(runs / (runs - 1)), runs, by_seed)
