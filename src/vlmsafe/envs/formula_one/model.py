"""The world that MuJoCo compiles once: floor, car, walls and barriers. A new episode compiles nothing.

A barrier has two sliding joints and one that turns, and these joints hold the friction of its foot. It can be pushed
and turned but not tipped over, and needs no contact with the floor. Barriers at rest are asleep and take almost no
time until something awake touches them.
"""

from __future__ import annotations

import functools
import math
from importlib import resources
from typing import Any, Literal

import mujoco

from vlmsafe.envs.formula_one.circuit import circuit

WHEEL_RADIUS, MOST_STEERING = 0.05, 0.785  # metres and radians, as in racecar.xml
BARRIERS = 200
BARRIER_RADIUS, BARRIER_HEIGHT = 0.15, 0.4  # metres
WALL_HEIGHT = 0.5
WALL_HALF_THICKNESS = 0.05
_BARRIER_MASS = 1.0  # kg; the car has three
_GRIP = 0.5  # friction of a barrier's foot
_GREY = ((0.62, 0.62, 0.64, 1.0), (0.48, 0.48, 0.50, 1.0))

Footing = Literal["planar", "free"]


@functools.cache
def build(barriers: int, footing: Footing = "planar") -> Any:
    """The compiled world. With `free` feet, barriers are free bodies on the floor: slow, and only for comparison."""
    text = resources.files("vlmsafe.envs.formula_one").joinpath("racecar.xml").read_text(encoding="utf-8")
    spec = mujoco.MjSpec.from_string(text)
    for number, (start, end) in enumerate(circuit().walls):
        along = end - start
        spec.worldbody.add_geom(
            name=f"wall_{number}",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=(math.hypot(*along) / 2 + 0.02, WALL_HALF_THICKNESS, WALL_HEIGHT / 2),
            pos=(*((start + end) / 2), WALL_HEIGHT / 2),
            quat=_turned(math.atan2(along[1], along[0])),
            rgba=_GREY[number % 2],  # the joints between pieces are seen, and with them how fast they pass
            contype=1,
            conaffinity=1,
            friction=(0.4, 0.005, 0.0001),
        )
    for number in range(barriers):
        _add_barrier(spec, number, footing)
    return spec.compile()


def _add_barrier(spec: Any, number: int, footing: Footing) -> None:
    body = spec.worldbody.add_body(name=f"barrier_{number}", pos=(0.0, 0.0, BARRIER_HEIGHT / 2))
    grip = _GRIP * _BARRIER_MASS * 9.81
    if footing == "free":
        body.add_freejoint()
    else:
        for axis in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)):
            body.add_joint(type=mujoco.mjtJoint.mjJNT_SLIDE, axis=axis, frictionloss=grip)
        # The foot's friction acts at two thirds of its radius.
        turning = grip * BARRIER_RADIUS * 2 / 3
        body.add_joint(type=mujoco.mjtJoint.mjJNT_HINGE, axis=(0.0, 0.0, 1.0), frictionloss=turning)
    body.add_geom(
        name=f"barrier_{number}",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        size=(BARRIER_RADIUS, BARRIER_HEIGHT / 2, 0.0),
        mass=_BARRIER_MASS,
        contype=3 if footing == "free" else 1,
        conaffinity=3 if footing == "free" else 1,
        friction=(0.4, 0.005, 0.0001),
        group=3,
    )


def _turned(yaw: float) -> tuple[float, float, float, float]:
    """A rotation about the vertical as a quaternion."""
    return math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)
