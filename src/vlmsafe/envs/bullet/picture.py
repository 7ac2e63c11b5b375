"""Frames: the package's camera and renderer, which draw for each frame only what has moved.

The camera does not move, so floor and walls are drawn once per process, puddles and goal once per goal, and the car and
the box for each frame. The layers are combined by their depths. The result equals the picture of one pass over
everything, except that the gears inside the car's axles are left out: they took 35 of 80 ms per frame for a few pixels.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Frame
from vlmsafe.envs.bullet.package import pb

WIDTH, HEIGHT = 480, 360
_FIELD_OF_VIEW, _NEAR, _FAR = 60.0, 0.1, 100.0
_INDICATOR_OPACITY = 0.5


class _Layer(NamedTuple):
    """Pixels [HEIGHT * WIDTH, 3] and their depths."""

    pixels: Frame
    depth: NDArray[np.float32]


class _Shot(NamedTuple):
    """A picture of some bodies alone."""

    layer: _Layer
    drawn: NDArray[np.intp]
    """Indices of the pixels that show one of them."""


class Picture:
    """Draws one world, episode after episode."""

    _room: ClassVar[_Layer | None] = None  # the same in every world

    def __init__(self, bodies: Any) -> None:
        self._client: int = bodies.bullet_client_id
        self._agent = bodies.agent
        box, *puddles = bodies.obstacles
        self._room_ids = [bodies.world.plane_id, bodies.world.room_id]
        self._ground_ids = [bodies.task.goal.body_id, *(puddle.body_id for puddle in puddles)]
        self._moving_ids = [bodies.agent.body_id, box.body_id]
        gears = {link.index for link in bodies.agent.link_list if link.name.startswith("diff")}  # of the differentials
        # The renderer draws everything, so bodies are left out by making them transparent. All are opaque otherwise.
        self._colours = {
            body: {
                shape[1]: shape[7][:3]
                for shape in pb.getVisualShapeData(body, physicsClientId=self._client)
                if body != bodies.agent.body_id or shape[1] not in gears
            }
            for body in range(pb.getNumBodies(physicsClientId=self._client))
        }
        for link in gears:
            self._colour(bodies.agent.body_id, link, (1.0, 1.0, 1.0), 0.0)
        self._shown = set(self._colours)
        camera = bodies.world.camera
        self._view = pb.computeViewMatrixFromYawPitchRoll(
            camera.cam_base_pos, camera.cam_dist, camera.cam_yaw, camera.cam_pitch, 0, 2
        )
        self._projection = pb.computeProjectionMatrixFOV(_FIELD_OF_VIEW, WIDTH / HEIGHT, _NEAR, _FAR)
        self._ground: _Layer | None = None
        self._places = b""

    def draw(self, goal: NDArray[np.float64], puddles: NDArray[np.float64], indicator: bool) -> Frame:
        """The world as it is, with the package's red sphere around the car where `indicator` says so."""
        places = goal.tobytes() + puddles.tobytes()
        if self._ground is None or self._places != places:
            if Picture._room is None:
                Picture._room = self._shoot(self._room_ids).layer
            self._ground, self._places = _over(self._shoot(self._ground_ids), Picture._room), places
        frame = _over(self._shoot(self._moving_ids), self._ground)
        pixels = self._with_sphere(frame) if indicator else frame.pixels
        return pixels.reshape(HEIGHT, WIDTH, 3)

    def _with_sphere(self, frame: _Layer) -> Frame:
        place = tuple(self._agent.get_position())
        sphere_id = self._agent.violation_body_id
        pb.resetBasePositionAndOrientation(sphere_id, place, (0.0, 0.0, 0.0, 1.0), physicsClientId=self._client)
        sphere = self._shoot([sphere_id])
        in_front = _nearer(sphere, frame)
        pixels, red = frame.pixels.copy(), sphere.layer.pixels[in_front]
        tinted = _INDICATOR_OPACITY * red + (1.0 - _INDICATOR_OPACITY) * pixels[in_front]
        pixels[in_front] = tinted.astype(np.uint8)
        return pixels

    def _shoot(self, bodies: list[int]) -> _Shot:
        for body in self._shown.symmetric_difference(bodies):
            for link, colour in self._colours[body].items():
                self._colour(body, link, colour, float(body in bodies))
        self._shown = set(bodies)
        _, _, pixels, depth, owner = pb.getCameraImage(
            WIDTH,
            HEIGHT,
            self._view,
            self._projection,
            renderer=pb.ER_TINY_RENDERER,
            physicsClientId=self._client,
        )
        layer = _Layer(
            np.reshape(pixels, (-1, 4)).astype(np.uint8, copy=False)[:, :3],  # the fourth is no colour
            np.reshape(depth, -1).astype(np.float32, copy=False),
        )
        return _Shot(layer, np.flatnonzero(np.reshape(owner, -1) >= 0))

    def _colour(self, body: int, link: int, colour: tuple[float, ...], opacity: float) -> None:
        pb.changeVisualShape(body, link, rgbaColor=(*colour, opacity), physicsClientId=self._client)


def _nearer(front: _Shot, back: _Layer) -> NDArray[np.intp]:
    """Indices of the pixels where the front hides the back."""
    return front.drawn[front.layer.depth[front.drawn] <= back.depth[front.drawn]]


def _over(front: _Shot, back: _Layer) -> _Layer:
    """At each pixel the nearer one. Only the pixels that the front has drawn are looked at."""
    nearer = _nearer(front, back)
    pixels, depth = back.pixels.copy(), back.depth.copy()
    pixels[nearer], depth[nearer] = front.layer.pixels[nearer], front.layer.depth[nearer]
    return _Layer(pixels, depth)
