"""What a report is asked for: the study it is about, which tables and figures it prints, and how they are computed.

A study file names tables and figures by kind (`kinds`), with options where a kind has them. This module checks the
names and options. It reads no runs, so that a study file can be checked in a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from vlmsafe.audit.checks.signal import FEWEST_ONSETS
from vlmsafe.comparison.claims import Claims, Outcome, Window
from vlmsafe.comparison.looks import ONE_LOOK, Looks
from vlmsafe.comparison.preregistration import FrozenProtocol
from vlmsafe.errors import InputError, unknown_name
from vlmsafe.report.kinds import FIGURES, TABLES, Kind

Metric = Literal["negative_score", "positive_score", "kappa", "margin"]


@dataclass(frozen=True)
class Entry:
    """One table or figure as asked for."""

    kind: str
    label: str = ""
    """Of the table or figure in the paper that it stands for."""
    title: str = ""
    """The kind's own where empty."""
    environments: tuple[str, ...] = ()
    """All, where empty."""
    arms: tuple[str, ...] = ()
    source: str = ""
    """A protocol, or training; empty takes an evaluation that all runs have, else training."""
    window: Window = "final"
    outcome: Outcome | None = None
    over: tuple[str, ...] = ()
    """For sweeps: one or two settings by their dotted names."""
    metric: Metric = "negative_score"
    pool: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arms whose runs count together, by the name of the pool."""
    windows: Mapping[tuple[str, str], Window] = field(default_factory=dict)
    """The window of single cells, by arm and environment; other cells have `window`."""
    episodes: int | Literal["all"] | None = None
    """Traced episodes of an arm that are used at most; None takes as many as `AnalysisOptions` says."""
    resamples: int | None = None
    """Resamples of episodes behind each interval; None takes as many as `AnalysisOptions` says."""
    asked: bool = True
    """False for what a report adds by itself, which is left out where there is nothing to show."""


@dataclass(frozen=True)
class StudyInfo:
    """What is known of a study beyond its runs."""

    name: str
    question: str = ""
    paper: tuple[str, ...] = ()
    """Labels of the tables and figures that it makes."""
    tables: tuple[str | Mapping[str, Any], ...] = ()
    """As in the study file; empty for every one that there is data for."""
    figures: tuple[str | Mapping[str, Any], ...] = ()
    command: str = ""
    """How to run it again."""
    planned: int | None = None
    """Runs it is made of."""
    claims: Claims | None = None
    """None takes claims.yaml in the folder, as the audit does."""
    definition: str = ""
    """The study file."""
    arms: tuple[str, ...] = ()
    """The order in which arms are shown; others follow."""
    environments: tuple[str, ...] = ()
    studies: Mapping[Path, Sequence[Path]] = field(default_factory=dict)
    """By the folder of each study its run directories, present or not; others in the folder are left out."""
    problems: tuple[str, ...] = ()
    """What to say in addition to the state of the runs."""
    protocol: FrozenProtocol | None = None
    """What was decided before the runs, and what was changed since; None for a study that was never frozen."""
    planned_seeds: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """The seeds of each cell (environment, arm), in the study's order; `comparison.looks` counts them."""
    looks: Looks = ONE_LOOK
    """When claims are decided."""


@dataclass(frozen=True)
class AnalysisOptions:
    """How much is computed behind tables and figures. The defaults are those of a report, which should be quick."""

    episodes: int | None = 60
    """Traced episodes of an arm that are used at most; None takes all."""
    resamples: int = 500
    """Resamples of episodes behind each interval."""
    seed: int = 0
    """Seed of the resamples, and of how episodes are split in half."""
    by_run: bool = False
    """Whether AUCs of single runs are computed along with those of the arms, for every table that could show them."""
    scorer: str | None = None
    """Scorer to use where a trace has several; None takes the first."""
    frames: int | None = None
    """Frames of each run in the gate's quantiles, evenly spaced; None takes all."""
    onsets: int = FEWEST_ONSETS
    """Onsets below which an arm has no figures on contact: AUCs of fewer mean nothing."""
    passive_below: float | None = None
    """Return below which an episode without cost counts as passive; None takes the audit's threshold."""


_CHOICES: dict[str, tuple[str, ...]] = {
    "window": get_args(Window),
    "outcome": get_args(Outcome),
    "metric": get_args(Metric),
}
_LISTS = ("environments", "arms", "over")
_SPECIAL = ("pool", "windows", "episodes", "resamples")
_OPTIONS = tuple(one.name for one in fields(Entry) if one.name not in ("asked", *_SPECIAL))


def read_entries(given: Sequence[str | Mapping[str, Any]], kinds: Mapping[str, Kind], what: str) -> list[Entry]:
    """Entries of `tables` or `figures`; an `InputError` names the first that cannot be used."""
    if isinstance(given, str | Mapping):
        raise InputError(f"{what}: expected a list of kinds, such as [{', '.join(list(kinds)[:2])}]; got {given!r}")
    return [_entry(one, kinds, f"{what}, entry {place}") for place, one in enumerate(given, 1)]


def check_entries(
    tables: Sequence[str | Mapping[str, Any]], figures: Sequence[str | Mapping[str, Any]], source: str = ""
) -> None:
    """Raise an `InputError` for an entry with an unknown kind or option; `source` names the study file."""
    where = f"{source}: " if source else ""
    read_entries(tables, TABLES, f"{where}tables")
    read_entries(figures, FIGURES, f"{where}figures")


def _entry(given: str | Mapping[str, Any], kinds: Mapping[str, Kind], where: str) -> Entry:
    if isinstance(given, str):
        given = {"kind": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise InputError(f"{where}: expected a kind, or a mapping with 'kind' and options; got {given!r}")
    if given["kind"] not in kinds:
        raise InputError(f"{where}: {unknown_name('kind', given['kind'], kinds)}")
    values: dict[str, Any] = {}
    known = (*_OPTIONS, *kinds[given["kind"]].options)
    for name, value in given.items():
        if name in _SPECIAL and name not in known:
            having = ", ".join(kind for kind, one in kinds.items() if name in one.options)
            raise InputError(f"{where}: '{given['kind']}' has no option '{name}'; these have it: {having or 'none'}")
        if name not in known:
            raise InputError(f"{where}: {unknown_name('option', str(name), known)}")
        if name in _SPECIAL:
            values[name] = _READERS[name](value, where)
        elif name in _LISTS:
            entries = [value] if isinstance(value, str) else value
            if not _are_names(entries):
                raise InputError(f"{where}: '{name}' is {value!r}; expected a list of names")
            values[name] = tuple(entries)
        elif not isinstance(value, str):
            raise InputError(f"{where}: '{name}' is {value!r}; expected text")
        elif name in _CHOICES and value not in _CHOICES[name]:
            raise InputError(f"{where}: {unknown_name(name, value, _CHOICES[name])}")
        else:
            values[name] = value
    if len(values.get("over", ())) > 2:
        raise InputError(f"{where}: a sweep is over one or two settings; got {len(values['over'])}")
    return Entry(**values)


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)


def _pool(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    """`{both: [one, other]}`. An arm in two pools would be counted twice."""
    if not isinstance(value, Mapping) or not all(_are_names(arms) and len(arms) > 1 for arms in value.values()):
        raise InputError(
            f"{where}: 'pool' is {value!r}; expected a list of two or more arms under the name of each pool"
        )
    members = [arm for arms in value.values() for arm in arms]
    twice = next((arm for arm in members if members.count(arm) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: 'pool' names the arm '{twice}' twice; its runs can count once")
    return {str(name): tuple(arms) for name, arms in value.items()}


def _windows(value: Any, where: str) -> dict[tuple[str, str], Window]:
    """`{arm: {environment: window}}`."""
    if not isinstance(value, Mapping) or not all(isinstance(windows, Mapping) for windows in value.values()):
        raise InputError(f"{where}: 'windows' is {value!r}; expected a window by environment under the name of an arm")
    found: dict[tuple[str, str], Window] = {}
    for arm, windows in value.items():
        for env, window in windows.items():
            if window not in get_args(Window):
                raise InputError(f"{where}: {unknown_name('window', str(window), get_args(Window))}")
            found[str(arm), str(env)] = window
    return found


def _episodes(value: Any, where: str) -> int | Literal["all"]:
    return "all" if value == "all" else _count("episodes", value, where, " or 'all'")


def _resamples(value: Any, where: str) -> int:
    return _count("resamples", value, where)


def _count(name: str, value: Any, where: str, otherwise: str = "") -> int:
    if type(value) is not int or value < 1:
        raise InputError(f"{where}: '{name}' is {value!r}; expected a whole number above 0{otherwise}")
    return value


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "pool": _pool, "windows": _windows, "episodes": _episodes, "resamples": _resamples,
}  # fmt: skip
