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
    pixels: Frame
    depth: NDArray[np.float32]
    drawn: NDArray[np.bool_]


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
                Picture._room = self._shoot(self._room_ids)
            self._ground, self._places = _over(self._shoot(self._ground_ids), Picture._room), places
        frame = _over(self._shoot(self._moving_ids), self._ground)
        return self._with_sphere(frame) if indicator else frame.pixels

    def _with_sphere(self, frame: _Layer) -> Frame:
        place = tuple(self._agent.get_position())
        sphere_id = self._agent.violation_body_id
        pb.resetBasePositionAndOrientation(sphere_id, place, (0.0, 0.0, 0.0, 1.0), physicsClientId=self._client)
        sphere = self._shoot([sphere_id])
        tinted = _INDICATOR_OPACITY * sphere.pixels + (1.0 - _INDICATOR_OPACITY) * frame.pixels
        in_front = sphere.drawn & (sphere.depth <= frame.depth)
        return np.where(in_front[..., None], tinted.astype(np.uint8), frame.pixels)

    def _shoot(self, bodies: list[int]) -> _Layer:
        """A picture of these bodies alone."""
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
        shape = (HEIGHT, WIDTH)
        return _Layer(
            np.reshape(pixels, (*shape, 4))[..., :3].astype(np.uint8),
            np.reshape(depth, shape).astype(np.float32),
            np.reshape(owner, shape) >= 0,
        )

    def _colour(self, body: int, link: int, colour: tuple[float, ...], opacity: float) -> None:
        pb.changeVisualShape(body, link, rgbaColor=(*colour, opacity), physicsClientId=self._client)


def _over(front: _Layer, back: _Layer) -> _Layer:
    """Combine two layers: at each pixel the nearer one."""
    nearer = front.drawn & (front.depth <= back.depth)
    return _Layer(
        np.where(nearer[..., None], front.pixels, back.pixels),
        np.where(nearer, front.depth, back.depth),
        front.drawn | back.drawn,
    )
