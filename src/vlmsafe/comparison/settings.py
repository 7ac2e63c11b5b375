"""Settings: in which settings with an effect two runs differ, grouped by what a comparison can be about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmsafe.config.settings import PLACE, TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.errors import InputError
from vlmsafe.signals.gate import FITTED

Settings = Mapping[str, Any]
ABSENT = "-"
_KNOWN = tuple(flatten(to_dict(TrainConfig())))

_PLACE = ("env", "method", "recipe", "seed", "run_dir")
# These settings are not a condition of an experiment. They say where and how often to save, and how to compute: device,
# batch, compilation and kernels change the last digits of a run, as another machine may, but not what is compared.
_NO_EFFECT = (
    "kernels", "tensorboard", "checkpoint.every", "checkpoint.keep", "max_worker_restarts", "fresh_workers",
    "signal.scoring", "signal.device", "signal.batch", "signal.compile", *PLACE,
)  # fmt: skip
_OF_ALGORITHM = {
    "focops": r"learner\.focops_.*",
    "p3o": r"learner\.p3o_.*",
    "cpo": r"learner\.(cg_.*|line_search_.*)",
    "sac": r"learner\.sac\..*",
}
_FIRST_ORDER_ONLY = r"learner\.(actor_lr|lr_decay|clip_ratio|kl_early_stop)"

FACTORS: dict[str, str] = {
    "signal": r"signal\..*|multiplier\.signal_.*|frame_indicators",
    "scorer": r"signal\.(scorer|precision|frames|frame_distance|endpoint\..*)",
    "prompts": r"signal\.prompts",
    "rule": r"signal\.rule",
    "gate": r"signal\.(gate|calibration\..*)",
    "query period": r"signal\.every",
    "bonus": r"signal\.reward_weight",
    "multiplier term": r"multiplier\.signal_.*",
    "cost route": r"signal\.(cost_weight|cost_form|reference)",
    "own multiplier": r"signal\.multiplier\..*",
    "learner": r"learner\.(algorithm|variant|focops_.*|p3o_.*|cg_.*|line_search_.*)|multiplier\.(kind|pid_.*)",
    "multiplier": r"multiplier\.(?!signal_).*",
}
"""What a comparison can be about, with the settings that belong to it."""

_PARTS_OF_SIGNAL = (
    "scorer", "prompts", "rule", "gate", "bonus", "multiplier term", "cost route", "own multiplier", "query period",
)  # fmt: skip
# Conditions of training. A comparison is about one of them only if it says so.
CONDITIONS = (
    "total_steps", "extended_from", "steps_per_epoch", "num_envs", "budget", "cost_window", "normalise_observations",
    "observation_clip", "observation_floor", "action_repeat", "observe_changes", "init_from", "init_critics",
    "init_std", "init_mean", "frame_indicators",
)  # fmt: skip


def effective(settings: Settings) -> dict[str, Any]:
    """The settings that have an effect on a run's results, without those of parts that the run does not have."""
    algorithm = settings["learner.algorithm"]
    signal = settings["signal.scorer"] != "none"
    multiplier = settings["multiplier.kind"]

    def counts(name: str) -> bool:
        if name in _PLACE or name in _NO_EFFECT:
            return False
        if any(own != algorithm and re.fullmatch(pattern, name) for own, pattern in _OF_ALGORITHM.items()):
            return False
        if algorithm == "cpo" and re.fullmatch(_FIRST_ORDER_ONLY, name):
            return False
        if name in ("learner.lr_schedule", "learner.lr_floor"):
            falls = settings.get("learner.lr_decay", True) and algorithm != "cpo"
            return bool(falls or settings.get("learner.critic_lr_decay"))
        if name in ("observation_clip", "observation_floor"):
            return bool(settings["normalise_observations"])
        if name.startswith("signal.") or name.startswith("multiplier.signal_") or name == "frame_indicators":
            return signal and _signal_counts(name, settings)
        if name.startswith("multiplier.pid_"):
            return multiplier == "pid"
        if name == "multiplier.learning_rate" and multiplier == "pid":
            return False
        if name.startswith("multiplier.") and name != "multiplier.kind":
            return multiplier != "none"
        return True

    found = {name: value for name, value in settings.items() if counts(name)}
    if found.get("init_from") is not None:
        # Each seed may start from a run of its own; these runs then differ in their seed, as those that start do.
        found["init_from"] = re.sub(rf"seed-{settings['seed']}(?!\d)", "seed-<seed>", str(found["init_from"]))
    return found


def _signal_counts(name: str, settings: Settings) -> bool:
    """Whether a setting of the signal has an effect in a run that has one."""
    if name in ("signal.calibration.label", "signal.calibration.horizon"):
        ahead = settings.get("signal.calibration.label") == "cost-ahead"
        return settings["signal.gate"] == "platt" and (ahead or not name.endswith("horizon"))
    if name.startswith("signal.calibration."):
        return settings["signal.gate"] in FITTED or bool(settings.get("signal.cost_weight"))
    if name.startswith("signal.multiplier.") and name != "signal.multiplier.kind":
        return settings["signal.multiplier.kind"] != "none"
    if name == "multiplier.signal_weight":
        return settings["multiplier.kind"] != "none"
    if name == "multiplier.signal_reference":
        return bool(settings["multiplier.signal_weight"]) and settings["multiplier.kind"] != "none"
    if name == "signal.cost_form":
        return bool(settings["signal.cost_weight"])
    if name == "signal.reference":
        return bool(settings["signal.cost_weight"]) or settings["signal.multiplier.kind"] != "none"
    return True


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two runs."""

    setting: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.setting}: {self.first} against {self.second}"


def differences(first: Settings, second: Settings) -> list[Difference]:
    """The settings in which two runs differ, of those that have an effect in either."""
    a, b = effective(first), effective(second)
    return [
        Difference(name, a.get(name, ABSENT), b.get(name, ABSENT))
        for name in sorted(a.keys() | b.keys())
        if a.get(name, ABSENT) != b.get(name, ABSENT)
    ]


def named_pattern(about: Iterable[str]) -> str:
    """A pattern of the settings in which a comparison about these things may differ."""
    parts = []
    for word in about:
        if word not in FACTORS and not any(name == word or name.startswith(f"{word}.") for name in _KNOWN):
            raise InputError(
                f"a comparison cannot be about '{word}'; expected {', '.join(FACTORS)}, or a setting such as "
                "learner.gamma"
            )
        parts.append(FACTORS.get(word, rf"{re.escape(word)}(\..*)?"))
    return "|".join(parts) or "(?!)"


def infer_about(found: Sequence[Difference]) -> list[str]:
    """What a comparison is about if it does not say so.

    It is the signal if only one arm has one, else the learner, else the first part of the signal or the first setting
    that differs. It is never a condition of training such as the budget.
    """
    names = [difference.setting for difference in found]
    if any(d.setting == "signal.scorer" and ABSENT in (d.first, d.second) for d in found):
        return ["signal"]
    if "learner.algorithm" in names:
        return ["learner"]
    for factor in (*_PARTS_OF_SIGNAL, "multiplier", "learner"):
        if any(re.fullmatch(FACTORS[factor], name) for name in names):
            return [factor]
    free = [name for name in names if name not in CONDITIONS]
    return free[:1]


def unnamed(found: Sequence[Difference], about: Sequence[str]) -> list[Difference]:
    """The differences that a comparison about these things does not explain."""
    pattern = named_pattern(about)
    names = {difference.setting for difference in found}

    def follows(difference: Difference) -> bool:
        """Whether it follows from what is compared: a learner's own setting, or prompts that one scorer ignores."""
        one_sided = ABSENT in (difference.first, difference.second)
        if "learner" in about and one_sided and re.match(r"learner\.|multiplier\.(?!signal_)", difference.setting):
            return True
        unread = None in (difference.first, difference.second)
        return difference.setting == "signal.prompts" and unread and "signal.scorer" in names and "scorer" in about

    return [
        difference for difference in found if not re.fullmatch(pattern, difference.setting) and not follows(difference)
    ]


def factors_of(found: Sequence[Difference]) -> int:
    """How many things two arms differ in; `claims` looks for the nearest arm with it."""
    about = infer_about(found)
    rest = unnamed(found, about)
    return bool(about) + len({_factor(difference.setting) for difference in rest})


def _factor(setting: str) -> str:
    parts = (*_PARTS_OF_SIGNAL, "learner")
    return next((factor for factor in parts if re.fullmatch(FACTORS[factor], setting)), setting)
