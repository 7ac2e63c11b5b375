"""The careful driver arrives where MetaDrive's own driver crashes, and its mathematics is right."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("metadrive")

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.metadrive.careful import (
    CRUISE,
    SIDEWAYS,
    TIMES,
    Boxes,
    OnPath,
    aside,
    cruise_speed,
    fading,
    first_meeting,
    futures,
    pedal,
    plans,
    speed_limit,
    steering,
)
from vlmsafe.envs.metadrive.driver import Driver
from vlmsafe.envs.metadrive.paths import Path
from vlmsafe.envs.registry import env_spec

CROSSING, TRAFFIC = 23, 0  # an easy scenario in which cars cross the first intersection when the agent comes


def arc(radius: float, straight: float = 0.0) -> Path:
    """A straight piece along x, then a bend to the left."""
    along = np.arange(0.0, 100.0)
    turned = np.maximum(along - straight, 0.0) / radius
    x = np.minimum(along, straight) + radius * np.sin(turned)
    return Path(along, x, radius * (1 - np.cos(turned)), turned, np.where(along > straight, 1 / radius, 0.0))


def boxes(x: float, y: float, heading: float, length: float = 4.0, width: float = 2.0) -> Boxes:
    """One rectangle that stands still."""
    return Boxes(*(np.full((1, len(TIMES)), value) for value in (x, y, heading, length / 2, width / 2)))


def episode(drive: str) -> tuple[float, bool]:
    env: Any = env_spec("metadrive-easy:ends").make(Scenarios(CROSSING, 1))
    try:
        env.reset(seed=CROSSING, options={"traffic_seed": TRAFFIC})
        driver = Driver(env._simulator.agent, 0)
        act, cost, over = env.expert() if drive == "careful" else driver.act, 0.0, False
        while not over:
            *_, terminated, truncated, info = env.step(np.clip(act(), -1.0, 1.0))
            cost, over = cost + info["cost"], terminated or truncated
        return cost, info["arrived"]
    finally:
        env.close()


def test_it_arrives_without_cost_where_metadrives_driver_crashes() -> None:
    assert episode("traffic's") == (1.0, False)
    assert episode("careful") == (0.0, True)


@pytest.mark.parametrize(
    ("x", "y", "heading", "meets"),
    [
        (3.9, 0.0, 0.0, True),  # nose to tail
        (4.1, 0.0, 0.0, False),
        (0.0, 1.9, 0.0, True),  # side by side
        (0.0, 2.1, 0.0, False),
        (2.9, 0.0, math.pi / 2, True),  # across
        (3.1, 0.0, math.pi / 2, False),
        (3.0, 2.1, math.pi / 4, True),  # a corner reaches in
        (3.9, 2.6, math.pi / 4, False),  # both projections on the first car overlap, one on the second does not
    ],
)
def test_cars_meet_where_their_rectangles_overlap(x: float, y: float, heading: float, meets: bool) -> None:
    for one, two in ((boxes(0, 0, 0), boxes(x, y, heading)), (boxes(x, y, heading), boxes(0, 0, 0))):
        assert first_meeting(one, two).tolist() == [0.0 if meets else math.inf]


def test_the_first_meeting_is_the_first_time_of_any_car() -> None:
    coming = boxes(0, 0, 0)._replace(x=(30.0 - 10.0 * TIMES)[None])
    both = Boxes(*(np.concatenate(pair) for pair in zip(boxes(0, 50, 0), coming, strict=True)))
    assert first_meeting(boxes(0, 0, 0), both).tolist() == pytest.approx([2.8])  # 4 m apart after 2.6 s: just touching


def test_plans_hold_an_acceleration_or_stop_after_it() -> None:
    ways, speeds = plans(5.0, np.array([2.0, -3.0]), 9.0)
    held, braked, short, _ = zip(ways, speeds, strict=True)
    assert held[1][-1] == 9.0
    assert held[1][5] == pytest.approx(7.0)
    assert held[0][5] == pytest.approx(5.0 + 1.0)
    assert braked[1][-1] == 0.0
    assert braked[0][-1] == pytest.approx(5.0**2 / 6.0, abs=0.1)
    assert short[1].max() > 5.0
    assert short[1][-1] == 0.0
    assert short[0][-1] < held[0][-1]


def test_a_car_may_stop_go_on_or_drive_as_traffic_does_and_one_that_crawls_does_not() -> None:
    assert [way[5] for way in futures(4.0)] == pytest.approx([0.0, 4.0, 30 / 3.6])  # after 1 s
    assert [way[5] for way in futures(0.2)] == pytest.approx([0.0, 0.2])


def test_the_speed_falls_before_a_bend_and_is_free_on_a_straight_road() -> None:
    bend = math.sqrt(SIDEWAYS * 10.0)
    places = [OnPath(arc(10.0, 50.0), along, 0.0, 0.0, 0.0) for along in (10.0, 40.0, 48.0, 60.0)]
    limits = [speed_limit(place, 9.0) for place in places]
    assert limits[0] == pytest.approx(9.0)
    assert limits[3] == pytest.approx(bend)
    assert bend < limits[2] < limits[1] < 9.0


def test_the_driver_takes_its_time_and_hurries_where_the_route_is_long() -> None:
    assert [cruise_speed(metres, 100.0) for metres in (300.0, 560.0, 2000.0)] == [CRUISE[0], 8.0, CRUISE[1]]


def test_a_car_that_drifts_goes_on_to_the_side_and_another_returns() -> None:
    returning, drifting = (aside(OnPath(arc(50.0), 0.0, 0.5, drift, 0.0), 4.0) for drift in (0.2, 1.0))
    assert returning[0] == drifting[0] == 0.5
    assert returning[-1] < 0.1
    assert drifting[-1] == pytest.approx(2.5)
    assert fading(np.array([0.0, 8.0]), 8.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_it_steers_back_to_its_lane_and_around_a_bend(sign: float) -> None:
    size = {"speed": 5.0, "REAR_WHEELBASE": 1.4, "FRONT_WHEELBASE": 1.1, "max_steering": 40.0, "heading_theta": 0.0}
    straight = steering(SimpleNamespace(position=(20.0, sign), **size), OnPath(arc(1e9), 20.0, sign, 0.0, 0.0), 5.0)
    assert -1.0 < sign * straight < -0.05
    turn = steering(SimpleNamespace(position=(0.0, 0.0), **size), OnPath(arc(sign * 12.0), 0.0, 0.0, 0.0, 0.0), 5.0)
    assert sign * turn == pytest.approx(math.degrees(math.atan(2.5 / 12.0)) / 40.0, abs=0.1)


def test_the_pedal_accelerates_rolls_or_brakes() -> None:
    assert pedal(2.4) == pytest.approx(1.0)
    assert pedal(0.0) == pytest.approx(0.36 / 2.76)
    assert pedal(-8.0) == pytest.approx(-0.47, abs=0.01)
    assert (pedal(9.0), pedal(-99.0)) == (1.0, -1.0)
