"""Frames of MetaDrive: the surroundings from above, the agent's car in the middle and heading up.

A frame shows the current state only. MetaDrive's trails of earlier positions would grow with the number of frames
taken, which is a setting of the scorer and not a property of the scene.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from metadrive.component.static_object.traffic_object import TrafficObject
from metadrive.constants import Decoration

# Imported from MetaDrive, pygame does not print its greeting.
from metadrive.obs.top_down_obs_impl import LaneGraphics, WorldSurface, pygame

from vlmsafe.envs.api import Frame
from vlmsafe.envs.metadrive.scene import axes

_FRAME_SIZE = 256  # pixels; what the paper gives the vision-language model
_SCALE = 4.0  # pixels per metre: the frame is 64 m across
_CROP_SIZE = 2 * math.ceil(_FRAME_SIZE / math.sqrt(2))  # a square that covers the frame at any heading
_OUT_OF_VIEW = _CROP_SIZE / math.sqrt(2) / _SCALE + 1.0  # metres: beyond the corners of the crop
_EGO_COLOUR = "#029e73"
_OBJECT_COLOUR = "#eb542a"  # of cones, barriers and warning signs
# The palette MetaDrive's renderer takes traffic from.
_TRAFFIC_COLOURS = ["#0173b2", "#de8f05", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"]


def draw_roads(network: Any) -> Any:
    """The road lines of a whole map at the frame's scale.

    MetaDrive's own top-down renderer draws them on a film of fixed size and shrinks the scale of maps that are too
    large for it. This one is as large as the map, so that a pixel is the same length on every map.
    """
    lanes_to_draw = [
        (lane, lane is lanes[-1] or start == Decoration.start)
        for start, ends in network.graph.items()
        for lanes in ends.values()
        for lane in lanes
    ]
    # The network's own bounding box cuts off up to 4 m of a bend.
    outline = np.concatenate([lane.polygon for lane, _ in lanes_to_draw])
    lowest, highest = outline.min(axis=0)[:2] - 1.0, outline.max(axis=0)[:2] + 1.0
    width, height = np.ceil((highest - lowest) * _SCALE).astype(int).tolist()
    roads = WorldSurface((width, height), 0, pygame.Surface((1, 1)))
    roads.scaling = _SCALE
    roads.origin = lowest
    for lane, both_sides in lanes_to_draw:
        LaneGraphics.display(lane, roads, both_sides, use_line_color=True)
    return roads


def draw_frame(roads: Any, ego: Any, traffic: Iterable[Any]) -> Frame:
    """The frame of the current state; `roads` are those of the episode's map, from `draw_roads`."""
    x, y = roads.pos2pix(*ego.position)
    crop = pygame.Surface((_CROP_SIZE, _CROP_SIZE))
    crop.fill("white")
    crop.blit(roads, (0, 0), (x - _CROP_SIZE // 2, y - _CROP_SIZE // 2, _CROP_SIZE, _CROP_SIZE))
    turned = pygame.transform.rotozoom(crop, 90 - math.degrees(ego.heading_theta), 1.0)
    screen = pygame.Surface((_FRAME_SIZE, _FRAME_SIZE))
    screen.blit(turned, turned.get_rect(center=(_FRAME_SIZE // 2, _FRAME_SIZE // 2)))
    for box, colour in _boxes(ego, traffic):
        pygame.draw.polygon(screen, colour, box)
        pygame.draw.polygon(screen, "#3c3c3c", box, width=1)
    pixels = bytearray(pygame.image.tobytes(screen, "RGB"))  # writable, row by row
    return np.frombuffer(pixels, np.uint8).reshape(_FRAME_SIZE, _FRAME_SIZE, 3)


def _boxes(ego: Any, traffic: Iterable[Any]) -> Iterator[tuple[list[tuple[float, float]], str]]:
    """Corners in pixels and colour of every car and object in view, the agent's own last and so on top."""
    ahead, left = axes(ego.heading_theta)
    to_screen = -_SCALE * np.stack([left, ahead])  # the screen's x goes right, its y down
    here = ego.position
    for car in [*traffic, ego]:
        dx, dy = away = car.position - here
        if dx * dx + dy * dy > _OUT_OF_VIEW**2:
            continue  # most cars, and cheaper to tell than below
        centre = to_screen @ away
        if np.abs(centre).max() > _CROP_SIZE / 2:
            continue
        along, across = axes(car.heading_theta)
        half_length = to_screen @ along * car.top_down_length / 2
        half_width = to_screen @ across * car.top_down_width / 2
        corners = half_length + half_width, half_length - half_width
        # MetaDrive draws a car's colour from the operating system's entropy; a car's seed repeats.
        colour = _EGO_COLOUR if car is ego else _TRAFFIC_COLOURS[car.random_seed % len(_TRAFFIC_COLOURS)]
        colour = _OBJECT_COLOUR if isinstance(car, TrafficObject) else colour
        middle = _FRAME_SIZE / 2 + centre
        yield [tuple(middle + sign * corner) for sign in (1, -1) for corner in corners], colour
