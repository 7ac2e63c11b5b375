"""The environments by name.

An entry of `ENVS` is what is known of an environment without starting it; `EnvSpec` explains each field. Its `module`
is imported when an environment is made. The docstring of `vlmsafe.envs` says how to add one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vlmsafe.envs.api import Env, EnvSpec, Scenarios, Variant
from vlmsafe.errors import InputError, unknown_name

__all__ = ["ENVS", "Env", "EnvSpec", "Scenarios", "env_spec", "make_env", "world_name"]

_FORK_STEPS = {"physics_steps": 4, "clips": True}
"""How the PyPI fork of Bullet Safety-Gym steps."""
GYM_MODULE = "vlmsafe.envs.gym"
"""Makes every environment that is not of this package."""
_ORIGINAL_INSTALL = (
    "python3.10 -m venv original && original/bin/pip install numpy==1.23.5 mujoco==2.3.3 gymnasium==0.28.1 "
    "gymnasium-robotics==1.2.2 pygame xmltodict imageio glfw PyYAML && original/bin/pip install --no-deps "
    "git+https://github.com/PKU-Alignment/safety-gymnasium && echo 'use it as safety-gymnasium:<id>@original'"
)
"""Installs the original Safety-Gymnasium in a Python of its own: here it would replace Gymnasium, MuJoCo and numpy."""
_GYM_PREFIX, _SAFETY_PREFIX = "gym:", "safety-gymnasium:"


def _metadrive(level: str, blocks: int, density: float) -> EnvSpec:
    return EnvSpec(
        name=f"metadrive-{level}",
        summary=f"MetaDrive driving, {blocks} map blocks, traffic density {density}",
        module="vlmsafe.envs.metadrive.env",
        horizon=1000,
        budget=25.0,
        training=Scenarios(0, 10_000),
        held_out=Scenarios(10_000, 10_000),
        fresh_process=True,
        traffic=True,
        package="metadrive",
        install="pip install 'metadrive-simulator>=0.4.3,<0.5'",
        metrics=("route_completion",),
        passive_below=20.0,  # the paper's
        prompts="metadrive",
        score_every=4,
        settings={"map": blocks, "traffic_density": density},
        variants={
            # The levels change map and traffic together; these variants change only the traffic.
            **{
                f"density-{other:g}": Variant(f"traffic density {other:g}", settings={"traffic_density": other})
                for other in (0.1, 0.2, 0.35)
            },
            "no-traffic": Variant("no other cars drive", settings={"traffic_density": 0.0}),
            "ends": Variant(
                "the first step that costs ends the episode",
                budget=0.1,  # an episode costs 0 or 1, so this is the share of episodes that may end by a cost
                settings={"out_of_road_done": True, "crash_vehicle_done": True, "crash_object_done": True},
            ),
            # What differs from the paper's world in the simulator's own configuration. The reward is the same.
            "native": Variant(
                "SafeMetaDrive's own rules: accidents block lanes, and leaving the road ends the episode",
                budget=1.0,  # as in published recipes for SafeMetaDrive; 25 steps in contact would be several crashes
                settings={"accident_prob": 0.8, "out_of_road_done": True},
            ),
            "mended": Variant("exit ramps leave the road; MetaDrive lays many across it", settings={"mended": True}),
            "route": Variant("also observes how much of the route and of the time is left", settings={"route": True}),
            "soft-brake": Variant(
                "the brake answers to the square of the action: noise on the pedal hardly brakes",
                settings={"soft_brake": True},
            ),
            "stock": Variant("MetaDrive's own, slower code; the same trajectories", settings={"fast": False}),
        },
    )


def _formula_one(level: int, summary: str) -> EnvSpec:
    return EnvSpec(
        name=f"formula-one-l{level}",
        summary=f"a racecar on a walled circuit with seven goals, {summary}",
        module="vlmsafe.envs.formula_one.env",
        horizon=1000,
        budget=25.0,
        step_seconds=0.04,
        training=Scenarios(0, 10_000),
        held_out=Scenarios(10_000, 40_000),  # the paper's evaluations use 10000 to 10049 and 30000 to 30049
        package="mujoco",
        install="pip install 'mujoco>=4.0,<5'",
        metrics=("stages", "path", "net_progress"),
        passive_below=1.0,  # a tenth of a stage's reward
        prompts="formula-one",
        version=2,  # 1 was another circuit with another car
        settings={"level": level},
        variants={
            "long": Variant("6,000 steps: a lap at the original 1 m/s", horizon=6000),
            "fast": Variant("a car of 6 m/s instead of 1, with less inertia", settings={"top_speed": 6.0}),
            "strict": Variant("a touch that ends within a step costs too", settings={"strict": True}),
            # The original's indicators are in the pictures of this camera. The default one is inside the red sphere and
            # below the lidar markers, so that they change none of its pixels.
            "track": Variant(
                "frames of the camera that follows the car from above",
                indicators=False,
                settings={"camera": "track"},
            ),
            "sighted": Variant(
                "also observes the walls around it, and the goal's direction at any distance",
                settings={"sighted": True},
            ),
        },
    )


ENVS: dict[str, EnvSpec] = {
    spec.name: spec
    for spec in (
        _metadrive("easy", 3, 0.1),
        _metadrive("medium", 5, 0.2),
        _metadrive("hard", 7, 0.35),
        EnvSpec(
            name="bullet-car-reach",
            summary="Bullet Safety-Gym's SafetyCarReach: a car reaches goals among puddles and a moving box",
            module="vlmsafe.envs.bullet.env",
            horizon=500,
            budget=25.0,
            version=2,
            formerly={1: "bullet-car-reach:four-steps"},
            step_seconds=1 / 60,
            training=Scenarios(0, 10_000),
            held_out=Scenarios(10_000, 40_000),
            package="bullet_safety_gym",
            install="pip install 'pybullet>=3.2.6' && pip install --no-deps 'bullet-safety-gym>=1.4,<2'",
            metrics=("goals", "path", "net_progress"),
            passive_below=1.0,  # goals came less than a metre nearer; random actions return 0.01, a goal pays 5
            prompts="bullet",
            score_every=4,
            indicators=False,
            variants={
                "four-steps": Variant(
                    "4 physics steps of 1/60 s per action, which is clipped, as in the PyPI fork: 33 s an episode",
                    step_seconds=4 / 60,
                    settings=_FORK_STEPS,
                ),
                "fork": Variant(
                    "the PyPI fork's task: 4 steps, rewards of 3 times the way, a bonus of 30, two alternating goals",
                    step_seconds=4 / 60,
                    version=1,
                    settings={"task": "fork", **_FORK_STEPS},
                ),
            },
        ),
        _formula_one(0, "nothing costs"),
        _formula_one(1, "200 barriers spread over the area; barriers and walls cost"),
        _formula_one(2, "200 barriers, more of them around the goals; barriers and walls cost"),
        EnvSpec(
            name="braking",
            summary="a small problem whose cost comes late: speed bumps, and a car that is slow to stop; no simulator",
            module="vlmsafe.envs.small.braking",
            horizon=200,
            budget=30.0,
            step_seconds=0.2,
            training=Scenarios(0, 10_000),
            held_out=Scenarios(10_000, 10_000),
            metrics=("distance",),
            prompts="metadrive-v2",
        ),
        EnvSpec(
            name="speeding",
            summary="a small CMDP with a known answer: going fast pays, and costs; needs no simulator",
            module="vlmsafe.envs.small.speeding",
            horizon=20,
            budget=30.0,
            step_seconds=1.0,
            training=Scenarios(0, 10_000),
            held_out=Scenarios(10_000, 10_000),
            prompts="metadrive-v2",  # the generic template: a car that drives safely, or does not
        ),
    )
}


def make_env(name: str, *, held_out: bool = False, indicators: bool | None = None) -> Env:
    """Start a named environment on its training scenarios, or on the held-out ones.

    >>> env = make_env("speeding")
    >>> observation, info = env.reset(seed=3)  # scenario 3
    >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    >>> "cost" in info
    True
    """
    spec = env_spec(name, indicators=indicators)
    return spec.make(spec.held_out if held_out else spec.training)


def env_spec(name: str, *, indicators: bool | None = None) -> EnvSpec:
    """The spec of a named environment, of a variant as `<name>:<variant>`, or of any other one as `<prefix>:<id>`.

    `indicators` says whether frames show the simulator's own cost indicators. By default they do only where they cannot
    be left out.
    """
    spec = _named(name)
    if indicators is None or indicators == spec.indicators:
        return spec
    if spec.indicators is None and indicators:
        raise InputError(
            f"frame_indicators is true, but frames of environment '{name}' show no cost indicators; leave it out, or "
            f"choose one whose frames can show them: {', '.join(_drawing())}"
        )
    if spec.indicators and not indicators:
        raise InputError(f"the frames of environment '{name}' always show its cost indicators; leave indicators out")
    return spec if spec.indicators is None else replace(spec, indicators=indicators)


def world_name(name: str) -> str:
    """The name of an environment without the interpreter that runs it, which is a place and changes no result.

    >>> world_name("gym:my_envs:Crossing-v0@/opt/venv/bin/python")
    'gym:my_envs:Crossing-v0'
    """
    return name.partition("@")[0]


def ordered_name(name: str) -> str:
    """The name with its variants in alphabetical order: they can be joined in any order, and the world is the same.

    >>> ordered_name("metadrive-easy:no-traffic+ends")
    'metadrive-easy:ends+no-traffic'
    """
    known, colon, variants = name.partition(":")
    return f"{known}:{'+'.join(sorted(variants.split('+')))}" if colon and known in ENVS else name


def _drawing() -> Iterator[str]:
    """The names of environments and variants whose frames can show cost indicators."""
    for spec in ENVS.values():
        if spec.indicators is not None:
            yield spec.name
        else:
            yield from (f"{spec.name}:{name}" for name, own in spec.variants.items() if own.indicators is not None)


def _named(name: str) -> EnvSpec:
    bare, at, python = name.partition("@")
    if at and not (python and bare.startswith((_GYM_PREFIX, _SAFETY_PREFIX))):
        raise InputError(
            f"'{name}' names an interpreter; expected gym:<id>@<python> or safety-gymnasium:<id>@<python>, with the "
            "path of a python or an entry of interpreters.yaml"
        )
    if bare.startswith(_GYM_PREFIX) and len(bare) > len(_GYM_PREFIX):
        return _registered(name, "a registered Gymnasium environment")
    if bare.startswith(_SAFETY_PREFIX) and len(bare) > len(_SAFETY_PREFIX):
        return _original(name, bare.removeprefix(_SAFETY_PREFIX), bridged=bool(python))
    known, colon, variants = name.partition(":")
    if known not in ENVS:
        raise unknown_name("environment", name, [*ENVS, "gym:<id>", "safety-gymnasium:<id>"])
    return ENVS[known].varied(variants) if colon else ENVS[known]


def _registered(name: str, summary: str) -> EnvSpec:
    return EnvSpec(
        name=name,
        summary=summary,
        module=GYM_MODULE,
        version=None,
        horizon=None,
        budget=25.0,
        # A registered environment has seeds instead of scenarios; the pools keep training and held-out seeds apart.
        training=Scenarios(0, 1_000_000),
        held_out=Scenarios(1_000_000, 1_000_000),
    )


def _original(name: str, env_id: str, *, bridged: bool) -> EnvSpec:
    """An environment of the original Safety-Gymnasium, `<id>` or `<id>:<camera>`."""
    spec = replace(
        _registered(name, "an environment of the original Safety-Gymnasium"),
        package=None if bridged else "safety_gymnasium",
        install=_ORIGINAL_INSTALL,
        fresh_process=bridged,  # an episode depends on the one before it (vlmsafe check-env says so)
        indicators=not bridged,
    )
    if "FormulaOne" not in env_id:
        return spec
    return replace(
        spec,
        horizon=1000,
        step_seconds=0.04,
        metrics=("stages",),
        passive_below=1.0,
        prompts="formula-one",
        # Its default camera sees none of the indicators.
        indicators=spec.indicators if ":" in env_id else None,
    )
