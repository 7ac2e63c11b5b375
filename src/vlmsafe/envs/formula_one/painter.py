"""Frames: what the driver sees, and for people the circuit from above.

MuJoCo draws floor, walls and car; barriers are added here, and only those that can be in view: drawing all of them
takes twice as long. Shadows, smoothing of edges and reflections stay off for the same reason.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import mujoco
import numpy as np
from mujoco.rendering.classic import gl_context

from vlmsafe.envs import opengl
from vlmsafe.envs.api import Frame
from vlmsafe.envs.formula_one.circuit import GOAL_RADIUS, Array
from vlmsafe.envs.formula_one.model import BARRIER_HEIGHT, BARRIER_RADIUS
from vlmsafe.envs.hazard import wrapped
from vlmsafe.errors import EnvironmentFailure

SIZE = 256  # pixels
_SIGHT = 20.0  # metres; a barrier farther away is a few pixels
_FIELD = math.radians(55.0)  # to either side: the corners of the camera's picture, and room for a barrier's width
_ORANGE, _WHITE = (0.95, 0.45, 0.05, 1.0), (0.95, 0.95, 0.95, 1.0)
_GREEN, _RED, _BLUE = (0.1, 0.8, 0.2, 0.5), (1.0, 0.0, 0.0, 0.6), (0.2, 0.5, 1.0, 1.0)
_UPRIGHT = np.eye(3).ravel()
_CYLINDER, _SPHERE = mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_SPHERE


class Painter:
    """Draws one world; the drawing context is made with the first frame."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._renderers: dict[int, Any] = {}

    def driver(self, data: Any, heading: float, goal: Array, barriers: Array, *, alarm: bool) -> Frame:
        """The driver's camera. An alarm puts the red sphere on the car that its publishers draw for cost."""
        away = barriers - data.camera("vision").xpos[:2]
        distance = np.hypot(away[:, 0], away[:, 1])
        angle = np.abs(wrapped(np.arctan2(away[:, 1], away[:, 0]) - heading))
        seen = (distance < _SIGHT) & ((angle < _FIELD) | (distance < 1.0))
        marks = [(data.body("car").xpos, 0.22, _RED)] if alarm else []
        return self._draw(data, "vision", SIZE, goal, barriers[seen], marks)

    def overview(self, data: Any, goal: Array, barriers: Array, size: int) -> Frame:
        """The whole circuit from above, the car marked by a ball a metre wide."""
        return self._draw(data, "overview", size, goal, barriers, [(data.body("car").xpos, 0.5, _BLUE)])

    def _draw(self, data: Any, camera: str, size: int, goal: Array, barriers: Array, marks: list[Any]) -> Frame:
        renderer = self._renderer(size)
        renderer.update_scene(data, camera)
        scene = renderer.scene
        scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        for x, y in barriers:
            _add(scene, _CYLINDER, (BARRIER_RADIUS, BARRIER_HEIGHT / 2, 0.0), (x, y, BARRIER_HEIGHT / 2), _ORANGE)
            _add(scene, _CYLINDER, (BARRIER_RADIUS + 0.005, 0.05, 0.0), (x, y, 0.24), _WHITE)
        _add(scene, _CYLINDER, (GOAL_RADIUS, 0.4, 0.0), (*goal, 0.4), _GREEN)
        for place, radius, colour in marks:
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


def _add(scene: Any, shape: Any, size: Any, position: Any, colour: Any) -> None:
    """One more shape in a scene."""
    geom = scene.geoms[scene.ngeom]
    mujoco.mjv_initGeom(
        geom, shape, np.array(size), np.array(position, np.float64), _UPRIGHT, np.array(colour, np.float32)
    )
    scene.ngeom += 1
