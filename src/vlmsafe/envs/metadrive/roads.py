"""The bodies that a MetaDrive map puts into the physics worlds: planned once per map, built anew for every episode.

MetaDrive creates some 2,000 nodes while it generates a map, at 8 kB each. A plan holds the same numbers in arrays. The
bodies built from it have the names, shapes, places, masks and order that MetaDrive gives them, so the solver and
every query find the same worlds. Time is saved in two ways: nodes that would only be drawn are left out, and the points
of a lane are computed together. Sines, cosines and arc tangents still come from `math`, because numpy's differ in the
last digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from metadrive.component.lane.circular_lane import CircularLane
from metadrive.component.lane.straight_lane import StraightLane
from metadrive.constants import (
    CollisionGroup,
    MetaDriveType,
    PGDrivableAreaProperty,
    PGLineColor,
    PGLineType,
    TerrainProperty,
)
from metadrive.utils.math import norm
from metadrive.utils.vertex import is_anticlockwise
from numpy.typing import NDArray
from panda3d.bullet import (
    BulletBoxShape,
    BulletConvexHullShape,
    BulletGhostNode,
    BulletRigidBodyNode,
    BulletTriangleMesh,
    BulletTriangleMeshShape,
)
from panda3d.core import LQuaternionf, PTA_int, PTA_LVecBase3f, TransformState, Triangulator, Vec3

_LINE_HEIGHT = PGDrivableAreaProperty.LANE_LINE_GHOST_HEIGHT
_LINE_HALF_WIDTH = PGDrivableAreaProperty.LANE_LINE_WIDTH / 4
_BROKEN_PIECE = 2  # metres
_LANE_DEPTH = 0.1
_SIDEWALK_GAP = 0.2  # from the lane's edge
_SIDEWALK_OVERHANG = 0.1  # past the lane's end
_UNSCALED = Vec3(1, 1, 1)

Points = NDArray[np.float64]  # [N, 2]


class Stripe(NamedTuple):
    """The pieces of one lane line."""

    name: str
    mask: Any
    boxes: NDArray[np.float32]
    """[N, 5]: half the length, x, y, and the rotation's cosine and sine."""


class Surface(NamedTuple):
    """A lane's surface and the lines beside it."""

    lane: tuple[str, str, int]
    name: str
    outline: Points
    stripes: list[Stripe]


class Sidewalk(NamedTuple):
    """A triangle mesh."""

    vertices: bytes
    triangles: bytes
    height: float


class BlockPlan(NamedTuple):
    """The bodies of one block of a map."""

    surfaces: list[Surface]
    sidewalks: list[Sidewalk]


# -- planning ----------------------------------------------------------------------------------------------------


def plan(block: Any) -> BlockPlan:
    """Plan the bodies of a block, and name its lanes."""
    surfaces: list[Surface] = []
    edges: dict[str, Any] = {}  # the lanes with a sidewalk
    for start, ends in block.block_network.graph.items():
        for end, lanes in ends.items():
            for number, lane in enumerate(lanes):
                lane.index = (start, end, number)
                stripes = []
                for side in (-1, 1) if number == len(lanes) - 1 else (-1,):
                    kind = lane.line_types[side > 0]
                    if kind != PGLineType.NONE:
                        stripes.append(_plan_stripe(lane, side, kind, lane.line_colors[side > 0]))
                    if kind == PGLineType.SIDE:
                        edges[str(lane.index)] = lane
                surfaces.append(Surface(lane.index, lane.metadrive_type, _outline(lane), stripes))
    outlines = [_beside(lane) for lane in edges.values() if _has_room(lane)]
    clipped = [polygon for points in outlines for polygon in TerrainProperty.clip_polygon(points) or ()]
    return BlockPlan(surfaces, [_plan_sidewalk(polygon) for polygon in clipped])


def _plan_stripe(lane: Any, side: int, kind: str, colour: tuple[float, ...]) -> Stripe:
    broken = kind == PGLineType.BROKEN
    spacing = _BROKEN_PIECE if broken else PGDrivableAreaProperty.LANE_SEGMENT_LENGTH
    points = _polyline(lane, spacing, side * lane.width / 2)
    step = 2 if broken else 1  # every other piece of a broken line is a gap
    starts, ends = points[:-1:step], points[1::step]
    limit = TerrainProperty.map_region_size / 2
    boxes = []
    for (x, y), (along, across) in zip(((starts + ends) / 2).tolist(), (ends - starts).tolist(), strict=True):
        length = norm(along, across)
        if length > 0 and -limit <= x <= limit and -limit <= y <= limit:
            turn = math.atan2(across, along)
            boxes.append((length / 2, x, y, math.cos(turn / 2), math.sin(turn / 2)))
    white = colour == PGLineColor.GREY
    if broken:
        name = MetaDriveType.LINE_BROKEN_SINGLE_WHITE if white else MetaDriveType.LINE_BROKEN_SINGLE_YELLOW
        mask = PGDrivableAreaProperty.BROKEN_COLLISION_MASK
    else:
        name = MetaDriveType.LINE_SOLID_SINGLE_WHITE if white else MetaDriveType.LINE_SOLID_SINGLE_YELLOW
        mask = PGDrivableAreaProperty.CONTINUOUS_COLLISION_MASK
    return Stripe(name, mask, np.array(boxes, np.float32).reshape(-1, 5))


def _plan_sidewalk(polygon: list[tuple[float, float]]) -> Sidewalk:
    corners = polygon if is_anticlockwise(polygon) else polygon[::-1]
    height, count = PGDrivableAreaProperty.SIDEWALK_THICKNESS, len(corners)
    cut = Triangulator()
    for number, (x, y) in enumerate(corners):
        cut.addVertex(x, y)
        cut.addPolygonVertex(number)
    cut.triangulate()
    triangles = [
        (cut.getTriangleV0(number), cut.getTriangleV1(number), cut.getTriangleV2(number))
        for number in range(cut.getNumTriangles())
    ]
    for here in range(count):
        there = (here + 1) % count
        triangles += [(there + count, here + count, here), (there + count, here, there)]
    vertices = np.zeros((2 * count, 3), np.float32)
    vertices[:count, :2] = vertices[count:, :2] = corners
    vertices[count:, 2] = -height
    return Sidewalk(vertices.tobytes(), np.array(triangles, np.int32).tobytes(), height)


# -- points of lanes ---------------------------------------------------------------------------------------------


def _positions(lane: Any, longs: NDArray[np.float64], lateral: float) -> Points:
    """`lane.position` of many places."""
    points: Points
    if isinstance(lane, StraightLane):
        points = lane.start + longs[:, None] * lane.direction + lateral * lane.direction_lateral
        return points
    phases = (lane.direction * longs / lane.radius + lane.start_phase).tolist()
    circle = np.array([(math.cos(phase), math.sin(phase)) for phase in phases])
    return np.asarray(lane.center) + circle * (lane.radius + lateral * lane.direction)


def _polyline(lane: Any, spacing: float, lateral: float) -> Points:
    if type(lane) in (StraightLane, CircularLane):
        return _positions(lane, np.append(np.arange(0, lane.length, spacing), lane.length), lateral)
    points: Points = lane.get_polyline(spacing, lateral)
    return points


def _sidewalk_edges(lane: Any) -> tuple[float, float]:
    near = lane.width_at(0) / 2 + _SIDEWALK_GAP
    return near, near + PGDrivableAreaProperty.SIDEWALK_WIDTH


def _has_room(lane: Any) -> bool:
    """Whether a lane's bend is wide enough for a sidewalk on its right."""
    return bool(lane.radius == 0 or _sidewalk_edges(lane)[1] <= lane.radius)


def _beside(lane: Any) -> Points:
    """The outline of the sidewalk to the right of a lane."""
    near, far = _sidewalk_edges(lane)
    length = PGDrivableAreaProperty.SIDEWALK_LENGTH
    longs = np.minimum(np.arange(0, lane.length + length, length), lane.length + _SIDEWALK_OVERHANG)
    return np.concatenate([_positions(lane, longs, near), _positions(lane, longs[::-1], far)])


def _outline(lane: Any) -> Points:
    """`lane.polygon`, which the lane keeps."""
    if lane._polygon is None and type(lane) in (StraightLane, CircularLane):
        longs = np.arange(0, lane.length + lane.POLYGON_SAMPLE_RATE, lane.POLYGON_SAMPLE_RATE)
        right, left = _positions(lane, longs, lane.width / 2), _positions(lane, longs[::-1], -lane.width / 2)
        if type(lane) is CircularLane:
            before, after = (
                np.array([math.cos(heading), math.sin(heading)]) * lane.POLYGON_SAMPLE_RATE
                for heading in (lane.heading_theta_at(0), lane.heading_theta_at(lane.length))
            )
            right = np.concatenate([right[:1] - before, right, right[-1:] + after])
            left = np.concatenate([left[:1] + after, left, left[-1:] - before])
        lane._polygon = np.concatenate([right, left])
    points: Points = np.asarray(lane.polygon)
    return points


# -- building ----------------------------------------------------------------------------------------------------


def build_statics(planned: BlockPlan) -> Iterator[Any]:
    """The bodies of a block in the static world, in MetaDrive's order."""
    shapes: dict[float, Any] = {}
    height = _LINE_HEIGHT / 2
    for surface in planned.surfaces:
        yield _build_surface(surface)
        for name, mask, boxes in surface.stripes:
            for half_length, x, y, cos, sin in boxes.tolist():
                shape = shapes.get(half_length)
                if shape is None:
                    shape = shapes[half_length] = BulletBoxShape(Vec3(half_length, _LINE_HALF_WIDTH, _LINE_HEIGHT))
                node = BulletGhostNode(name)
                node.setActive(False)
                node.setKinematic(False)
                node.setStatic(True)
                node.addShape(shape)
                node.setIntoCollideMask(mask)
                place = TransformState.makePosQuatScale(Vec3(x, y, height), LQuaternionf(cos, 0, 0, sin), _UNSCALED)
                node.setTransform(place)
                yield node


def _build_surface(surface: Surface) -> Any:
    node = BulletRigidBodyNode(surface.name)
    # How MetaDrive finds the lane of a node that a ray has hit.
    node.setPythonTag(surface.name, SimpleNamespace(base_object_name=surface.lane, type_name=surface.name))
    node.setActive(False)
    node.setKinematic(False)
    node.setStatic(True)
    corners = np.zeros((len(surface.outline), 2, 3), np.float32)
    corners[:, :, :2] = surface.outline[:, None]
    corners[:, 1, 2] = -_LANE_DEPTH
    shape = BulletConvexHullShape()
    shape.addArray(_points(corners.tobytes()))
    node.addShape(shape)
    return node


def build_dynamics(planned: BlockPlan) -> Iterator[Any]:
    """The bodies of a block in the dynamic world, in MetaDrive's order."""
    for vertices, triangles, height in planned.sidewalks:
        node = BulletRigidBodyNode(MetaDriveType.BOUNDARY_SIDEWALK)
        node.setKinematic(False)
        node.setStatic(True)
        node.setTransform(TransformState.makePos(Vec3(0, 0, height / 2)))
        mesh, corners = BulletTriangleMesh(), PTA_int()
        corners.setData(triangles)
        mesh.addArray(_points(vertices), corners)
        node.addShape(BulletTriangleMeshShape(mesh, dynamic=False))
        node.setIntoCollideMask(CollisionGroup.Sidewalk)
        yield node


def _points(data: bytes) -> Any:
    points = PTA_LVecBase3f()
    points.setData(data)
    return points
