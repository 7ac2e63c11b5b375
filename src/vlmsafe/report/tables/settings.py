"""The tables of what arms are: what each is made of, and the settings in which they differ."""

from __future__ import annotations

from typing import Any

from vlmsafe.comparison.settings import ABSENT, effective
from vlmsafe.report.cells import settings_word, text
from vlmsafe.report.dataset import Dataset
from vlmsafe.report.elements import Cell, Column, Missing, Table
from vlmsafe.report.request import Entry
from vlmsafe.runs.records import ArmRecord
from vlmsafe.signals.scorers.registry import kind_of

_KINDS = {"none": "none", "adam": "Adam", "gradient": "gradient", "pid": "PID"}


def methods(dataset: Dataset, entry: Entry) -> Table | Missing:
    """What each arm is made of, in words."""
    rows: list[list[Cell]] = []
    seen: dict[str, ArmRecord] = {}
    for env in dataset.envs(entry):
        for arm in dataset.arms(env, entry):
            seen.setdefault(arm.name, arm)
    for name, arm in seen.items():
        config = arm.first.config
        signal, has = config.signal, arm.has_signal
        routes = [
            word
            for word, on in (
                ("reward", signal.reward_weight > 0),
                ("multiplier", config.multiplier.signal_weight > 0 and config.multiplier.kind != "none"),
                ("cost" if signal.cost_form == "level" else "change of cost", signal.cost_weight > 0),
                ("own multiplier", signal.multiplier.kind != "none"),
            )
            if has and on
        ]
        rows.append(
            [
                text(name),
                text(config.learner.algorithm),
                text("none" if config.learner.algorithm == "ppo" else "CMDP"),
                text(signal.scorer if has else "none"),
                text(signal.rule if has else ""),
                text(", ".join(routes) or ("none" if has else "")),
                text(_KINDS[config.multiplier.kind]),
                text(
                    settings_word(config.multiplier.signal_weight) if has and config.multiplier.kind != "none" else ""
                ),
                text(signal.gate if has else ""),
                text(("no" if kind_of(signal.scorer).learns else "yes") if has else ""),
            ]
        )
    headings = {
        "arm": "arm", "learner": "learner", "formulation": "safety formulation", "scorer": "scorer", "rule": "scoring",
        "routes": "role of the signal", "multiplier": "multiplier", "term": "η₂", "gate": "gate", "frozen": "frozen",
    }  # fmt: skip
    columns = [Column(name, heading) for name, heading in headings.items()]
    caption = "From the settings of each arm's runs."
    return Table("methods", entry.title or "What the arms are made of", columns, rows, caption, entry.label)


def settings(dataset: Dataset, entry: Entry) -> Table | Missing:
    """Every setting in which arms differ, of those that have an effect."""
    arms = [arm for env in dataset.envs(entry) for arm in dataset.arms(env, entry)]
    found = [effective(arm.first.settings) for arm in arms]
    names = sorted({name for one in found for name in one})
    rows: list[list[Cell]] = []
    for name in names:
        values = [one.get(name, ABSENT) for one in found]
        if len({str(value) for value in values}) > 1:
            rows.append([text(name), *(text(_setting(value)) for value in values)])
    if not rows:
        return Missing(entry.kind, "Settings", "the arms differ in no setting")
    several = len({arm.env for arm in arms}) > 1
    heads = [Column(f"{arm.env}/{arm.name}", f"{arm.name}, {arm.env}" if several else arm.name) for arm in arms]
    caption = "Settings with an effect in which some arms differ; - where an arm has no such part."
    title = entry.title or "In what the arms differ"
    return Table(
        "settings", title, [Column("setting", "setting"), *heads], rows, caption, entry.label, fold=not entry.asked
    )


def _setting(value: Any) -> str:
    return ABSENT if value == ABSENT else settings_word(value)
