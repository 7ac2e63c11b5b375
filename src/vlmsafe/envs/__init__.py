"""The environments by name. Simulators are imported only when one is made."""

from __future__ import annotations

from vlmsafe.envs.api import Env, EnvSpec, Scenarios
from vlmsafe.errors import unknown_name

__all__ = ["ENVS", "Env", "EnvSpec", "Scenarios", "env_spec"]

_GYM_PREFIX = "gym:"


def _metadrive(level: str, blocks: int, density: float) -> EnvSpec:
    return EnvSpec(
        name=f"metadrive-{level}",
        summary=f"MetaDrive driving, {blocks} map blocks, traffic density {density}",
        module="vlmsafe.envs.metadrive",
        horizon=1000,
        budget=25.0,
        training=Scenarios(0, 10_000),
        held_out=Scenarios(10_000, 10_000),
        fresh_process=True,
        traffic=True,
        package="metadrive",
        install="pip install 'metadrive-simulator>=0.4.3,<0.5'",
        prompts="metadrive",
        settings={"map": blocks, "traffic_density": density},
    )


ENVS: dict[str, EnvSpec] = {
    spec.name: spec
    for spec in (
        _metadrive("easy", 3, 0.1),
        _metadrive("medium", 5, 0.2),
        _metadrive("hard", 7, 0.35),
        EnvSpec(
            name="braking",
            summary="a small problem whose cost comes late: speed bumps, and a car that is slow to stop; no simulator",
            module="vlmsafe.envs.braking",
            horizon=200,
            budget=30.0,
            step_seconds=0.2,
            training=Scenarios(0, 10_000),
            held_out=Scenarios(10_000, 10_000),
            prompts="metadrive-v2",
        ),
        EnvSpec(
            name="speeding",
            summary="a small CMDP with a known answer: going fast pays, and costs; needs no simulator",
            module="vlmsafe.envs.speeding",
            horizon=20,
            budget=30.0,
            step_seconds=1.0,
            training=Scenarios(0, 10_000),
            held_out=Scenarios(10_000, 10_000),
            prompts="metadrive-v2",  # the generic template: a car that drives safely, or does not
        ),
    )
}


def env_spec(name: str) -> EnvSpec:
    """The spec of a named environment, or of any registered Gymnasium environment as `gym:<id>`."""
    if name.startswith(_GYM_PREFIX) and len(name) > len(_GYM_PREFIX):
        return EnvSpec(
            name=name,
            summary="a registered Gymnasium environment",
            module="vlmsafe.envs.gym",
            horizon=None,
            budget=25.0,
            # A Gymnasium environment knows no scenarios, only seeds; the pools keep the two uses of seeds apart.
            training=Scenarios(0, 1_000_000),
            held_out=Scenarios(1_000_000, 1_000_000),
        )
    if name not in ENVS:
        raise unknown_name("environment", name, [*ENVS, "gym:<id>"])
    return ENVS[name]
