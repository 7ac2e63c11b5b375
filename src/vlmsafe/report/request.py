"""What a report is asked for: the study it is about, and which tables and figures it prints.

A study file names tables and figures by kind, with options where a kind has them. This module knows the words and
checks them; it reads no runs, so that a study file can be checked in a moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from vlmsafe.comparison.claims import Claims, Outcome, Window
from vlmsafe.errors import InputError, unknown_name

Metric = Literal["negative_score", "positive_score", "kappa", "margin"]

TABLES: dict[str, str] = {
    "comparisons": "each claim: both means, the difference with its interval, p and the smallest p that is possible",
    "rates": "each compared pair: catastrophe and violation rates, and the interval of the difference",
    "summary": "arm by arm from an evaluation, published values beside ours",
    "training": "arm by arm from training: cost, returns, seeds over budget",
    "by-environment": "arms in rows, environments in columns, one outcome",
    "per-seed": "one row per run",
    "pairs": "compared arms seed by seed, with their difference",
    "sweep": "an outcome over one or two settings",
    "returns": "the logged return taken apart: bonus, and what the environment paid",
    "passive": "episodes without cost and without return; what cost goes along with",
    "scores": "a score over training, seed by seed",
    "multiplier": "the multiplier replayed without the signal term",
    "gate": "medians of margin and kappa",
    "gate-roc": "does kappa know contact in the same step",
    "lead-time": "does a signal rise before contact",
    "compute": "time per run, speed, and what the signal costs",
    "divergence": "runs of equal seeds: where they part, and how far",
    "protocols": "one outcome by evaluation protocol",
    "methods": "what each arm is made of",
    "settings": "every setting in which the arms differ",
    "published": "every result with a published value, and what was done otherwise",
}
FIGURES: dict[str, str] = {
    "curves": "cost with its budget, environment return and shaped return over training, on axes of their own",
    "multiplier": "the multiplier over training, and its signal term apart",
    "dots": "one dot per seed, with each arm's mean and interval",
    "bars": "means per arm with deviation and seeds, the arm without a signal as a line",
    "protocols": "one outcome per arm and evaluation protocol",
    "evaluation-summary": "catastrophe rates, cost by seed, return against cost, relative change",
    "cost-progress": "cost against how far the agent got, by episode and by run",
    "sweep": "an outcome over a numeric setting",
    "scores": "scores and kappa over training",
    "gate": "margins and kappa of traced frames",
    "gate-roc": "ROC of kappa against contact; precision and recall",
    "lead-time": "AUC before contact by horizon, and the lead-lag profile",
}


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
    runs: tuple[Path, ...] | None = None
    """Its run directories, present or not; others in its folder are left out. None takes all there are."""
    problems: tuple[str, ...] = ()
    """What is to be said beside the state of the runs."""


_CHOICES: dict[str, tuple[str, ...]] = {
    "window": get_args(Window),
    "outcome": get_args(Outcome),
    "metric": get_args(Metric),
}
_LISTS = ("environments", "arms", "over")
_OPTIONS = tuple(field.name for field in fields(Entry) if field.name != "asked")


def read_entries(given: Sequence[str | Mapping[str, Any]], kinds: Mapping[str, str], what: str) -> list[Entry]:
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


def _entry(given: str | Mapping[str, Any], kinds: Mapping[str, str], where: str) -> Entry:
    if isinstance(given, str):
        given = {"kind": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise InputError(f"{where}: expected a kind, or a mapping with 'kind' and options; got {given!r}")
    if given["kind"] not in kinds:
        raise InputError(f"{where}: {unknown_name('kind', given['kind'], kinds)}")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise InputError(f"{where}: {unknown_name('option', str(name), _OPTIONS)}")
        if name in _LISTS:
            entries = [value] if isinstance(value, str) else value
            if not isinstance(entries, Sequence) or not all(isinstance(entry, str) for entry in entries):
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
