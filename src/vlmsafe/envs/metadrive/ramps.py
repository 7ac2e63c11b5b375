"""Ramps along their road.

MetaDrive lays the widening part of an exit ramp, and the narrowing part of an entry ramp, along the world's x axis. On
a road that runs in another direction, the exit ramp and its solid lines then cross all lanes, and nobody can pass
without touching a line. The variant `mended` has these blocks instead.
"""

from __future__ import annotations

from typing import Any, ClassVar

from metadrive.component.algorithm.blocks_prob_dist import PGBlockDistConfig
from metadrive.component.lane.extension_lane import ExtendingLane, ExtensionDirection
from metadrive.component.pgblock.ramp import InRampOnStraight, OutRampOnStraight
from metadrive.constants import PGLineType
from metadrive.utils import registry


def _part(lane: Any, start: float, length: float, aside: float, direction: ExtensionDirection) -> ExtendingLane:
    """A part of changing width that goes along with a lane."""
    ends = lane.position(start, aside), lane.position(start + length, aside)
    return ExtendingLane(direction, *ends, lane.width, [PGLineType.NONE, PGLineType.CONTINUOUS])


class EntryAlongRoad(InRampOnStraight):  # type: ignore[misc]
    """An entry ramp whose narrowing part goes along with the road."""

    def _get_merge_part(self, att_lane: Any, length: float) -> ExtendingLane:
        return _part(att_lane, att_lane.length, length, 0.0, ExtensionDirection.SHRINK)


class ExitAlongRoad(OutRampOnStraight):  # type: ignore[misc]
    """An exit ramp that begins along with the road and leaves it to the right."""

    def _get_merge_part(self, att_lane: Any, length: float) -> ExtendingLane:
        return _part(att_lane, 0.0, length, self.lane_width, ExtensionDirection.EXTEND)


MENDED = {ramp.__base__.__name__: ramp for ramp in (EntryAlongRoad, ExitAlongRoad)}
"""The blocks of this module by the names of MetaDrive's."""


class MendedBlocks(PGBlockDistConfig):  # type: ignore[misc]
    """MetaDrive's blocks and their probabilities, with the ramps of this module."""

    BLOCK_TYPE_DISTRIBUTION_V2: ClassVar = {
        MENDED[name].__name__ if name in MENDED else name: share
        for name, share in PGBlockDistConfig.BLOCK_TYPE_DISTRIBUTION_V2.items()
    }


def mended_blocks() -> type[MendedBlocks]:
    """The blocks, known to MetaDrive. It finds a block's class by name, and has no function that adds one."""
    registry._initialize_registry()
    registry._metadrive_class_registry.update({block.__name__: block for block in MENDED.values()})
    return MendedBlocks
