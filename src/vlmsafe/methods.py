"""The methods by name: what each one sets, as one readable table.

A method is a composition. Two methods that are compared should differ in exactly what the comparison names, so the
table holds whole configurations of the parts, never code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmsafe.config import LearnerConfig, MultiplierConfig, TrainConfig, from_dict, read_yaml
from vlmsafe.errors import InputError, unknown_name


@dataclass(frozen=True)
class Method:
    """One arm: a learner and the settings that tell it from the others."""

    name: str
    summary: str
    learner: LearnerConfig
    multiplier: MultiplierConfig = field(default_factory=MultiplierConfig)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "ppo",
            "PPO without a constraint: the cost is recorded and ignored (10 passes)",
            LearnerConfig(algorithm="ppo", update_iters=10),
        ),
        Method(
            "ppo-lag",
            "PPO-Lagrangian as matched to the signal methods: 40 passes, lambda_0 = 0.001",
            LearnerConfig(algorithm="ppo-lag", update_iters=40),
            MultiplierConfig(initial=0.001),
        ),
        Method(
            "ppo-lag-unmatched",
            "PPO-Lagrangian with the paper's FormulaOne settings: 10 passes, lambda_0 = 0",
            LearnerConfig(algorithm="ppo-lag", update_iters=10),
            MultiplierConfig(initial=0.0),
        ),
    )
}


def method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]


def method_defaults(name: str, base: TrainConfig | None = None) -> TrainConfig:
    """A run configuration with the settings of a method in place."""
    chosen = method(name)
    return replace(base or TrainConfig(), method=name, learner=chosen.learner, multiplier=chosen.multiplier)


def config_from(settings: Mapping[str, Any], source: str = "settings", method_name: str | None = None) -> TrainConfig:
    """A run configuration from plain values: the method's defaults first, then the values themselves.

    `method_name` names the method where the values do not; where both do, they must agree, because a file of
    settings carries those of its method.
    """
    name = settings.get("method", method_name or TrainConfig.method)
    if not isinstance(name, str):
        raise InputError(f"{source}: method must be a name, got {type(name).__name__}")
    if method_name not in (None, name):
        raise InputError(f"{source} holds settings of the method '{name}', not of '{method_name}'; drop one of the two")
    return from_dict({**settings, "method": name}, method_defaults(name), source)


def config_from_yaml(path: Path, method_name: str | None = None) -> TrainConfig:
    """A run configuration from a YAML file, such as a run's own config.yaml."""
    settings = read_yaml(path)
    # A run's own config.yaml also records where it ran; neither its surroundings nor its place are settings.
    if settings.pop("recorded", None) is not None:
        settings.pop("run_dir", None)
    return config_from(settings, str(path), method_name)


def check_method(config: TrainConfig) -> None:
    """Refuse a run whose name says one method and whose learner is another."""
    expected = method(config.method).learner.algorithm
    if config.learner.algorithm != expected:
        raise InputError(
            f"learner.algorithm is '{config.learner.algorithm}', but the method '{config.method}' is '{expected}'; "
            "choose another --method instead"
        )
