"""Pools: arms whose runs count together in a table, such as runs of one method at two lengths.

An entry names its pools. They only concern the rows of its table: claims, the audit and every other table keep the arms
apart, because arms that differ in a setting are not repetitions of each other.
"""

from __future__ import annotations

from vlmsafe.report.cells import varied
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.request import Entry
from vlmsafe.runs.records import ArmRecord


def pools(dataset: Dataset, env: str, entry: Entry) -> dict[str, tuple[ArmRecord, ...]]:
    """By the name of each pool its arms in an environment; without pools that have fewer than two arms there."""
    found = {
        name: tuple(arm for arm in dataset.arms(env, entry) if arm.name in members)
        for name, members in entry.pool.items()
    }
    return {name: arms for name, arms in found.items() if len(arms) > 1}


def pooled(name: str, arms: tuple[ArmRecord, ...]) -> ArmRecord:
    """All runs of some arms of one environment, as one arm."""
    return ArmRecord(arms[0].env, name, tuple(run for arm in arms for run in arm.runs))


def pool_note(name: str, arms: tuple[ArmRecord, ...]) -> str:
    """What a pool consists of, and in what its arms differ."""
    names = " and ".join(f"'{arm.name}'" for arm in arms)
    settings = varied(arms)
    apart = f", which differ in {', '.join(settings)}" if settings else ""
    return f"'{name}' on {arms[0].env} has the runs of {names}{apart}."
