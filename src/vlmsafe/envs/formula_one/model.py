"""The world that MuJoCo compiles once: floor, car, walls and barriers. A new episode compiles nothing.

Barriers are free bodies. At rest they are asleep, and take almost no time until something awake touches them.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import mujoco
import numpy as np

from vlmsafe.envs.formula_one.barriers import AWAY, BARRIER_RADIUS
from vlmsafe.envs.formula_one.circuit import Array, circuit

WHEEL_RADIUS = 0.05  # metres, as in racecar.xml
BARRIER_HEIGHT = 0.375  # metres
WALL_HEIGHT = 0.875  # the median of the original's pieces, which are 0.33 to 1.33 m high
_BARRIER_MASS = 1.4e-5  # kg; the original's barriers weigh next to nothing
_BARRIER_INERTIA = (1.959e-7, 1.958e-7, 9.132e-8)  # kg m^2, about the centre of mass
_BARRIER_CENTRE = 0.1266  # metres above the floor
_BARRIER_RINGS = ((BARRIER_RADIUS, 0.0), (0.085, 0.335), (0.035, BARRIER_HEIGHT))  # radius at a height
_BARRIER_SIDES = 24
_FRICTION = (1.0, 0.005, 0.0001)
# The original's axle has the inertia of 20 kg at the wheels, and its chassis is as slow to turn. At more than 3 m/s
# such an axle is a gyroscope that turns the car over, and a stronger motor would lift the front wheels.
_FAST = {"car": 0.25, "axle": 0.06}  # shares of the inertias that a faster car has
_FAST_MOTOR = 0.6  # Nm instead of 1
_GREY = ((0.62, 0.62, 0.64, 1.0), (0.48, 0.48, 0.50, 1.0))


@functools.cache
def build(barriers: int, top_speed: float = 1.0) -> Any:
    """The compiled world. A car faster than the original's has less inertia, or it could not be driven."""
    text = resources.files("vlmsafe.envs.formula_one").joinpath("racecar.xml").read_text(encoding="utf-8")
    spec = mujoco.MjSpec.from_string(text)
    if top_speed > 1.0:
        for name, share in _FAST.items():
            spec.body(name).inertia *= share
        spec.actuator("throttle").forcerange = (-_FAST_MOTOR, _FAST_MOTOR)
    for number, piece in enumerate(circuit().pieces):
        spec.add_mesh(name=f"wall_{number}", uservert=_prism(piece).ravel())
        spec.worldbody.add_geom(
            name=f"wall_{number}",
            type=mujoco.mjtGeom.mjGEOM_MESH,
            meshname=f"wall_{number}",
            rgba=_GREY[number % 2],  # the joints between pieces are seen, and with them how fast they pass
            solref=(0.02, 1.3),  # for the reason that racecar.xml gives
            solimp=(0.7, 0.95, 0.002, 0.5, 2.0),
            priority=1,
            **_SOLID,
        )
    if barriers:
        spec.add_mesh(name="barrier", uservert=_barrel().ravel())
    for number in range(barriers):
        _add_barrier(spec, number)
    return spec.compile()


_SOLID = {"contype": 1, "conaffinity": 1, "condim": 6, "friction": _FRICTION}


def _prism(outline: Array) -> Array:
    """The corners [2 P, 3] of a piece of wall."""
    return np.concatenate([np.column_stack([outline, np.full(len(outline), z)]) for z in (0.0, WALL_HEIGHT)])


def _barrel() -> Array:
    """The corners of a barrier, whose foot is at height 0."""
    angles = 2 * np.pi * np.arange(_BARRIER_SIDES) / _BARRIER_SIDES
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.concatenate([np.column_stack([radius * circle, np.full(len(circle), z)]) for radius, z in _BARRIER_RINGS])


def _add_barrier(spec: Any, number: int) -> None:
    # A place of its own, in case that MuJoCo has to start a broken simulation anew.
    body = spec.worldbody.add_body(name=f"barrier_{number}", pos=(*AWAY[number], 0.0))
    body.mass, body.ipos, body.inertia = _BARRIER_MASS, (0.0, 0.0, _BARRIER_CENTRE), _BARRIER_INERTIA
    body.explicitinertial = True
    body.add_freejoint()
    body.add_geom(
        name=f"barrier_{number}",
        type=mujoco.mjtGeom.mjGEOM_MESH,
        meshname="barrier",
        group=3,  # which is not drawn: the painter draws barriers
        **_SOLID | {"contype": 5},  # 4 is for the floor
    )
