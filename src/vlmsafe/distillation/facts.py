"""What is true of a frame, from the simulator's measures at its step and in the seconds after it.

A truth is a number from 0 (false) to 1 (true), or NaN if the measures do not decide: some distances are neither "close"
nor "far".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Measures = Mapping[str, Float64]

MEASURES: dict[str, str] = {
    "hazard": "closeness to anything that costs, 0 to 1, for environments without finer measures",
    "edge_hazard": "closeness to the edge of the road, 0 to 1",
    "vehicle_hazard": "closeness to another vehicle or a solid object, 0 to 1",
    "zone_hazard": "closeness to a zone that costs and can be driven through, 0 to 1",
    "risk": "how dangerous the road itself is, 0 to 1",
    "hit": "1 while another vehicle or an object is touched",
    "off_road": "1 while off the road, or on the line or at the wall that bounds it",
    "zone": "1 while in a zone that costs",
    "pace": "speed, as a share of what is usual in the environment",
    "lane_offset": "distance from the lane's or track's centre line, in half its widths",
    "heading_error": "angle to the lane's or track's direction, radians",
    "edge_gap": "metres to the nearest line that costs",
    "vehicle_gap": "metres to the nearest other vehicle",
    "ahead_gap": "metres to the nearest vehicle ahead",
    "closing_speed": "m/s at which that gap shrinks",
    "bump_gap": "metres to the next speed bump",
    "object_gap": "car lengths to the nearest solid object that is no vehicle",
    "zone_gap": "car lengths to the nearest zone that costs, 0 inside",
    "ahead_clear": "car lengths that are free straight ahead, at most 10",
    "goal_gap": "car lengths to the goal",
    "goal_angle": "angle from the car's heading to the goal, radians",
    "goal_speed": "speed towards the goal, as a share of what is usual; negative away from it",
}
"""What `Env.facts` may return."""

EVENTS: dict[str, str] = {"hit_soon": "hit", "leave_soon": "off_road", "zone_soon": "zone"}
"""Unwanted events, by the name of the fact that they happen soon."""

SURE, FAR = 2.0, 4.0  # seconds: an event within SURE is about to happen; one from FAR on is not
SURE_STEPS, FAR_STEPS = 20, 40
"""The same in steps, where these are sooner. They are the horizons of the test of anticipation."""


def about(step_seconds: float) -> tuple[float, float]:
    """The steps within which an event is about to happen, and those from which on it is not.

    >>> about(0.1), about(0.2), about(1 / 60)
    ((20, 40), (10.0, 20.0), (20, 40))
    """
    return min(SURE_STEPS, SURE / step_seconds), min(FAR_STEPS, FAR / step_seconds)


def soon(event: NDArray[np.bool_], step_seconds: float, complete: bool) -> Float64:
    """How true it is, per step, that an event happens or is about to: 1 shortly before it, 0 long before; see `about`.

    The seconds after the end of the recording are unknown, unless the recording is `complete`: then the episode ended
    there and no further event came.

    >>> soon(np.array([False, False, True, False]), 1.5, complete=True).round(3).tolist()
    [0.5, 1.0, 1.0, 0.0]
    """
    steps = np.arange(len(event))
    following = np.minimum.accumulate(np.where(event, steps, len(event) * 1e9)[::-1])[::-1]
    sure, far = about(step_seconds)
    truth = np.clip((far - (following - steps)) / (far - sure), 0.0, 1.0)
    if not complete:
        unknown = (following >= len(event)) & (len(event) - 1 - steps < far)
        truth[unknown] = np.nan
    return truth


def above(values: Float64, false: float, true: float) -> Float64:
    """1 beyond `true`, 0 beyond `false`, NaN between the two; `true` may be the smaller one.

    >>> above(np.array([1.0, 2.0, 3.0]), false=1.5, true=2.5).tolist()
    [0.0, nan, 1.0]
    """
    sign = 1.0 if true > false else -1.0
    held = np.where(sign * values >= sign * true, 1.0, np.where(sign * values <= sign * false, 0.0, np.nan))
    return np.where(np.isnan(values), np.nan, held)


FACTS: dict[str, Callable[[Measures], Float64]] = {
    "touching": lambda m: m["hit"],
    "off_road": lambda m: m["off_road"],
    "hit_soon": lambda m: _about_to(m["hit"], m["hit_soon"], m["vehicle_hazard"]),
    "leave_soon": lambda m: _about_to(m["off_road"], m["leave_soon"], m["edge_hazard"]),
    "danger": lambda m: _danger(m),
    "safe": lambda m: 1.0 - _danger(m),
    "centred": lambda m: above(m["lane_offset"], false=0.5, true=0.3),
    "off_centre": lambda m: above(m["lane_offset"], false=0.4, true=0.6),
    "aligned": lambda m: above(m["heading_error"], false=0.25, true=0.1),
    "misaligned": lambda m: above(m["heading_error"], false=0.15, true=0.35),
    "wrong_way": lambda m: _wrong_way(m),
    "lane_keeping": lambda m: np.minimum(
        above(m["lane_offset"], false=0.6, true=0.4), above(m["heading_error"], false=0.25, true=0.12)
    ),
    "stopped": lambda m: _stopped(m),
    "slow": lambda m: above(m["pace"], false=0.6, true=0.3),
    "fast": lambda m: above(m["pace"], false=0.8, true=1.2),
    "near_vehicle": lambda m: above(m["vehicle_gap"], false=8.0, true=4.0),
    "spaced": lambda m: above(m["vehicle_gap"], false=5.0, true=12.0),
    "vehicle_ahead": lambda m: above(m["ahead_gap"], false=30.0, true=20.0),
    "clear_ahead": lambda m: np.minimum(_free_ahead(m), 1.0 - _danger(m)),
    "closing": lambda m: np.minimum(
        above(m["closing_speed"], false=0.0, true=1.0), above(m["ahead_gap"], false=35.0, true=25.0)
    ),
    "progress": lambda m: _progress(m),
    "in_zone": lambda m: m["zone"],
    "zone_soon": lambda m: _about_to(m["zone"], m["zone_soon"], m["zone_hazard"]),
    "touching_any": lambda m: np.fmax(m["hit"], m["zone"]),
    "near_object": lambda m: above(m["object_gap"], false=2.0, true=0.75),
    "near_zone": lambda m: above(m["zone_gap"], false=2.0, true=0.75),
    "open_space": lambda m: _open_space(m),
    "blocked_ahead": lambda m: above(m["ahead_clear"], false=4.0, true=1.5),
    "to_goal": lambda m: np.minimum(
        above(np.abs(m["goal_angle"]), false=0.6, true=0.3), above(m["goal_speed"], false=0.1, true=0.3)
    ),
    "away_from_goal": lambda m: _away(m),
    "near_goal": lambda m: above(m["goal_gap"], false=4.0, true=2.0),
    "astray": lambda m: _astray(m),
}
"""Each fact from the measures of an episode. Measures that an environment lacks are NaN, and so are facts from them."""


def _about_to(event: Float64, event_soon: Float64, hazard: Float64) -> Float64:
    """How true it is that an event is about to happen. It is false while the event happens."""
    return np.where(event > 0.0, 0.0, _at_least(hazard, event_soon))


def _at_least(hazard: Float64, event_soon: Float64) -> Float64:
    """The larger of hazard and future truth. If the future is unknown, a low hazard decides nothing."""
    unknown = np.isnan(event_soon) & ~(hazard >= 0.5)
    return np.where(unknown, np.nan, np.fmax(event_soon, hazard))


def _danger(m: Measures) -> Float64:
    """Cost now or soon, or something near that would cost.

    A contact is danger even where contacts cost nothing, because it looks the same as where they do.
    """
    hazard = np.fmax.reduce([m["hazard"], m["edge_hazard"], m["vehicle_hazard"], m["zone_hazard"]])
    coming = np.fmax.reduce([m["cost_soon"], *(m[name] for name in EVENTS)])
    return np.where(np.isnan(m["risk"]), _at_least(hazard, coming), m["risk"])


def _touched(m: Measures) -> Float64:
    """Whether any event that the environment knows is happening."""
    return np.fmax.reduce([m[event] for event in EVENTS.values()])


def _stopped(m: Measures) -> Float64:
    return above(m["pace"], false=0.15, true=0.05)


def _wrong_way(m: Measures) -> Float64:
    return above(m["heading_error"], false=1.2, true=2.0)


def _away(m: Measures) -> Float64:
    return above(m["goal_speed"], false=0.1, true=-0.2)


def _free_ahead(m: Measures) -> Float64:
    """Whether the way ahead is free, by car lengths if the environment gives them, else by metres to a vehicle."""
    lengths, metres = m["ahead_clear"], m["ahead_gap"]
    return np.where(np.isnan(lengths), above(metres, false=15.0, true=30.0), above(lengths, false=2.0, true=4.0))


def _open_space(m: Measures) -> Float64:
    """Far from the objects and zones that the environment knows, and in contact with nothing."""
    gap = np.fmin(m["object_gap"], m["zone_gap"])
    return above(np.where(_touched(m) > 0.0, np.minimum(gap, 0.0), gap), false=0.75, true=2.0)


def _progress(m: Measures) -> Float64:
    """Moving and in contact with nothing; towards the goal if there is one, and along the lane if there is one."""
    moving = np.minimum(above(m["pace"], false=0.1, true=0.3), 1.0 - _touched(m))
    no_goal = np.isnan(m["goal_speed"])
    moving = np.where(no_goal, moving, np.minimum(moving, above(m["goal_speed"], false=0.0, true=0.2)))
    return np.where(_wrong_way(m) == 1.0, 0.0, moving)


def _astray(m: Measures) -> Float64:
    """Standing still or going the wrong way, by the goal or else the lane; unknown if there is neither."""
    no_goal = np.isnan(m["goal_speed"])
    stopped, wrong = _stopped(m), np.where(no_goal, _wrong_way(m), _away(m))
    either = np.where((stopped == 1.0) | (wrong == 1.0), 1.0, np.maximum(stopped, wrong))
    return np.where(no_goal & np.isnan(m["heading_error"]), np.nan, either)


def truths(measures: Measures, cost: Float64, step_seconds: float, complete: bool) -> dict[str, Float64]:
    """Every fact at every step of an episode; NaN if it is unknown. All arrays are [T]."""
    length = len(cost)
    held = {name: np.asarray(measures.get(name, np.full(length, np.nan)), np.float64) for name in MEASURES}
    for name, event in EVENTS.items():
        known = not np.isnan(held[event]).all()
        held[name] = soon(held[event] > 0.0, step_seconds, complete) if known else np.full(length, np.nan)
    held["cost_soon"] = soon(np.asarray(cost) > 0.0, step_seconds, complete)
    with np.errstate(invalid="ignore"):
        return {name: fact(held) for name, fact in FACTS.items()}
