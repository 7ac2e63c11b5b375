"""Frames: what a camera on the car or above it sees, and for people the circuit from above.

MuJoCo draws floor, walls and car; barriers are added here, and only those that can be in view: drawing all of them
takes twice as long. Shadows, smoothing of edges and reflections stay off for the same reason.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import mujoco
import numpy as np
from mujoco.rendering.classic import gl_context
from numpy.typing import NDArray

from vlmsafe.envs import opengl
from vlmsafe.envs.api import Frame
from vlmsafe.envs.formula_one.barriers import BARRIER_RADIUS
from vlmsafe.envs.formula_one.circuit import GOAL_RADIUS, Array
from vlmsafe.envs.formula_one.model import BARRIER_HEIGHT
from vlmsafe.envs.hazard import wrapped
from vlmsafe.errors import EnvironmentFailure

Bodies = NDArray[np.int64]

CAMERAS = ("vision", "track")
"""On the car, looking ahead; and 2 m beside and above it, always from the same side of the world."""

SIZE = 256  # pixels
_SIGHT = 20.0  # metres; a barrier farther away is a few pixels
_DETAIL = 8.0  # metres; of a barrier farther away only the barrel is drawn, for its band would be a pixel or two
_FIELD = math.radians(56.0)  # to either side: half the camera's field of view, and a barrier's width at 1 m
_TRACKED = 4.0  # metres; what is farther from the car is outside the picture of `track`
_ORANGE, _WHITE = (0.95, 0.45, 0.05, 1.0), (0.95, 0.95, 0.95, 1.0)
_GREEN, _BLUE = (0.1, 0.8, 0.2, 0.5), (0.2, 0.5, 1.0, 1.0)
_UPRIGHT: Array = np.eye(3).ravel()
_CYLINDER, _SPHERE = mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_SPHERE

# The original's indicators. A reading of a lidar is a ball above the car, the more opaque the nearer the object is.
_COST_RADIUS, _COST_COLOUR = 0.25, np.array([1.0, 0.0, 0.0, 0.5])
_BALL, _CIRCLE, _LOWEST, _STOREY = 0.025, 0.15, 0.5, 0.06  # radius, radius of their circle, heights, in metres
_LIDAR_COLOURS = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]])  # goal, barriers


class _Ring(NamedTuple):
    """A cylinder that is part of a barrier: radius and half height, how high its middle is, and its colour."""

    size: tuple[float, float, float]
    height: float
    colour: tuple[float, float, float, float]


_BODY = 0.62 * BARRIER_RADIUS
_BARREL = (
    _Ring((_BODY, BARRIER_HEIGHT / 2, 0.0), BARRIER_HEIGHT / 2, _ORANGE),
    _Ring((BARRIER_RADIUS, 0.015, 0.0), 0.015, _ORANGE),
    _Ring((_BODY + 0.004, 0.045, 0.0), 0.23, _WHITE),
)


class Indicators(NamedTuple):
    """What the original draws for people: whether the step cost something, and the readings of each lidar."""

    cost: bool
    readings: tuple[Array, ...]


class Painter:
    """Draws one world; the drawing context is made with the first frame."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._renderers: dict[int, Any] = {}

    def frame(self, data: Any, camera: str, goal: Array, barriers: Bodies, marks: Indicators | None) -> Frame:
        """The picture of one of `CAMERAS`, with the original's indicators or without them."""
        car = data.body("car")
        heading = math.atan2(car.xmat[3], car.xmat[0])
        if camera == "track":
            away = data.xpos[barriers, :2] - car.xpos[:2]
            seen = np.hypot(away[:, 0], away[:, 1]) < _TRACKED
        else:
            away = data.xpos[barriers, :2] - data.camera("vision").xpos[:2]
            distance = np.hypot(away[:, 0], away[:, 1])
            angle = np.abs(wrapped(np.arctan2(away[:, 1], away[:, 0]) - heading))
            seen = (distance < _SIGHT) & ((angle < _FIELD) | (distance < 1.0))
        balls = _indicators(car.xpos, heading, marks) if marks is not None else []
        return self._draw(data, camera, SIZE, goal, barriers[seen], balls)

    def overview(self, data: Any, goal: Array, barriers: Bodies, size: int) -> Frame:
        """The whole circuit from above, the car marked by a ball a metre wide."""
        return self._draw(data, "overview", size, goal, barriers, [(data.body("car").xpos, 0.5, _BLUE)])

    def _draw(self, data: Any, camera: str, size: int, goal: Array, barriers: Bodies, balls: list[Any]) -> Frame:
        renderer = self._renderer(size)
        renderer.update_scene(data, camera)
        scene = renderer.scene
        scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        away = data.xpos[barriers] - scene.camera[0].pos
        near = np.hypot(away[:, 0], away[:, 1]) < _DETAIL if camera == "vision" else np.ones(len(barriers), bool)
        for body, detailed in zip(barriers, near, strict=True):
            for shape in _BARREL if detailed else _BARREL[:1]:
                _add(scene, _CYLINDER, shape.size, data.xpos[body], shape.colour, data.xmat[body], shape.height)
        _add(scene, _CYLINDER, (GOAL_RADIUS, 0.4, 0.0), (*goal, 0.4), _GREEN)
        for place, radius, colour in balls:
            _add(scene, _SPHERE, (radius, 0.0, 0.0), place, colour)
        picture: Frame = renderer.render()
        return picture

    def _renderer(self, size: int) -> Any:
        if size not in self._renderers:
            way = opengl.choose()
            if way is None:
                raise EnvironmentFailure(f"FormulaOne cannot draw frames here: {opengl.missing()}")
            if way in ("egl", "osmesa") and way not in gl_context.GLContext.__module__:
                importlib.reload(gl_context)  # a program that imported MuJoCo first had it choose a screen
            self._renderers[size] = mujoco.Renderer(self._model, size, size, max_geom=1500)
        return self._renderers[size]

    def close(self) -> None:
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()


def _indicators(car: Array, heading: float, marks: Indicators) -> list[Any]:
    """Balls as (place, radius, colour)."""
    balls: list[Any] = []
    for storey, readings in enumerate(marks.readings):
        angles = heading + 2 * math.pi * (np.arange(len(readings)) + 0.5) / len(readings)
        for angle, reading in zip(angles, readings, strict=True):
            above = np.array([_CIRCLE * math.cos(angle), _CIRCLE * math.sin(angle), _LOWEST + _STOREY * storey])
            balls.append((car + above, _BALL, _LIDAR_COLOURS[storey] * min(1.0, reading + 0.1)))
    return [*balls, (car, _COST_RADIUS, _COST_COLOUR)] if marks.cost else balls


def _add(
    scene: Any, shape: Any, size: Any, place: Any, colour: Any, turn: Array = _UPRIGHT, height: float = 0.0
) -> None:
    """One more shape in a scene, so high above a place along the vertical of what is turned."""
    geom = scene.geoms[scene.ngeom]
    position = np.array(place, np.float64) + height * turn[2::3]
    mujoco.mjv_initGeom(geom, shape, np.array(size), position, turn, np.array(colour, np.float32))
    scene.ngeom += 1
