"""How like the original our FormulaOne is: the same quantities in both, and how far apart they may be.

    python benchmarks/formula_one.py [--only car] [--episodes 100]

The original is Safety-Gymnasium's, measured with its code unchanged; benchmarks/original/ has what was measured.
Speeds, distances and turning circles may differ by 5 %. Counts of barriers may differ by the original's own deviation
between seeds. Ends of drives may differ by as much as the original's own ends do when only the compass heading of the
start changes: its steering flutters, so that the same actions end apart. Exit code 1 if something is farther apart.

How it was measured: walls, the middle of the road, car responses, pushes, costs and cameras by scripts in the
original's own Python that are not part of this project; fixed policies by tools/original_formula_one.py. Where barriers
go that are drawn into walls was measured on seeds 0 to 19 of both levels, and the counts of settled barriers are those
of the same seeds.

With `--episodes`, as many episodes of random actions are driven on level 2, and the table has bounds for speeds and
penetrations in them: light barriers that sleep must not make contacts unstable.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import csv
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vlmsafe.envs import opengl
from vlmsafe.envs.formula_one.barriers import AWAY, BARRIER_RADIUS, draw_layout, settle
from vlmsafe.envs.formula_one.circuit import GOALS, circuit, exits
from vlmsafe.envs.formula_one.env import SUBSTEPS, FormulaOne
from vlmsafe.envs.formula_one.model import BARRIER_HEIGHT, build
from vlmsafe.envs.hazard import wrapped
from vlmsafe.envs.registry import env_spec

Array = NDArray[np.float64]

FOLDER = Path(__file__).parent / "original"
ORIGINAL: dict[str, Any] = json.loads((FOLDER / "formula_one.json").read_text(encoding="utf-8"))
INFIELD = (-3.0, -26.0)  # a free place, where the original's car was measured
SEEDS = range(20)


class Compared(NamedTuple):
    """One quantity in both worlds."""

    quantity: str
    original: float
    ours: float
    allowed: float
    """How far apart they may be."""

    @property
    def ok(self) -> bool:
        return abs(self.ours - self.original) <= self.allowed


def close(quantity: str, original: float, ours: float, share: float = 0.05) -> Compared:
    """Allowed to differ by a share of the original's value."""
    return Compared(quantity, original, ours, share * abs(original))


@functools.cache
def recorded() -> dict[str, Any]:
    with np.load(FOLDER / "formula_one.npz") as read:
        return {name: read[name] for name in read.files}


class Drive:
    """A car alone on the circuit, which does what it is told."""

    def __init__(self, x: float, y: float, yaw: float = 0.0) -> None:
        self.model = build(0)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:7] = (x, y, 0.05, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        self.go([(0.0, 0.0)] * 25)

    def go(self, actions: Any) -> Array:
        """Poses and forward speeds after each action, [A, 4]."""
        told = []
        for action in actions:
            self.data.ctrl[:] = action
            mujoco.mj_step(self.model, self.data, SUBSTEPS)
            turn = self.data.body("car").xmat.reshape(3, 3)
            mujoco.mj_kinematics(self.model, self.data)
            told.append((*self.data.qpos[:2], math.atan2(turn[1, 0], turn[0, 0]), turn[:2, 0] @ self.data.qvel[:2]))
        return np.array(told)


def compare_circuit() -> Iterator[Compared]:
    original, world = ORIGINAL["circuit"], circuit()
    yield close("lap along the middle, m", original["lap_length"], world.length)
    for name, of in (("min", np.min), ("median", np.median), ("max", np.max)):
        yield close(f"width of the road, {name}, m", original["width"][name], float(of(world.left + world.right)))
    for number, (clearance, ours) in enumerate(zip(original["clearance_at_starts"], exits(GOALS)[0], strict=True)):
        yield close(f"from start {number} to the nearest wall, m", clearance, float(ours))


def compare_car() -> Iterator[Compared]:
    original, model = ORIGINAL["car"], build(0)
    yield close("mass, kg", original["mass"], float(model.body("car").subtreemass[0]), 0.001)
    yield close("yaw inertia, kg m2", original["yaw_inertia"], yaw_inertia(model), 0.001)
    car = Drive(*INFIELD)
    speeds = car.go([(20.0, 0.0)] * 100)[:, 3]
    for steps, speed in original["speed_after_steps"].items():
        yield close(f"speed after {steps} steps of full throttle, m/s", speed, float(speeds[int(steps) - 1]))
    above = 0.04 * (1 + int((speeds >= 0.9 * speeds[-1]).argmax()))
    yield Compared("seconds to 90 % of the top speed", original["seconds_to_90_percent"], above, 0.04)
    for name, throttle in (("stop_at_zero", 0.0), ("stop_in_reverse", -20.0)):
        car = Drive(*INFIELD)
        car.go([(20.0, 0.0)] * 100)
        start = float(car.data.qpos[0])
        told = car.go([(throttle, 0.0)] * 40)
        yield close(f"way until it stands, {name}, m", original[name], float(told[:, 0].max()) - start)
    for command, turning in original["turning"].items():
        told = Drive(*INFIELD).go([tuple(map(float, command.split(",")))] * 300)[100:]
        yield close(f"turning radius at {command}, m", turning["radius"], radius(told[:, :2]))
        rate = float(np.diff(np.unwrap(told[:, 2])).mean()) / 0.04
        yield close(f"yaw rate at {command}, rad/s", turning["yaw_rate"], rate, 0.1)


def yaw_inertia(model: Any) -> float:
    """Of the whole car about the vertical through its centre of mass."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    bodies = [body for body in range(model.nbody) if model.body_rootid[body] == model.body("car").id]
    total = 0.0
    for body in bodies:
        turn = data.ximat[body].reshape(3, 3)
        away = data.xipos[body, :2] - data.subtree_com[model.body("car").id, :2]
        total += (turn @ np.diag(model.body_inertia[body]) @ turn.T)[2, 2] + model.body_mass[body] * (away @ away)
    return float(total)


def radius(places: Array) -> float:
    """Of the circle that fits places [N, 2] best."""
    known = np.column_stack([2 * places, np.ones(len(places))])
    x, y, rest = np.linalg.lstsq(known, (places**2).sum(axis=1), rcond=None)[0]
    return math.sqrt(rest + x**2 + y**2)


def compare_drives() -> Iterator[Compared]:
    """Where recorded actions lead to, beside how much the original's ends differ from each other."""
    for name in recorded()["names"]:
        actions, pose, spread = (recorded()[f"{name}_{what}"] for what in ("actions", "pose", "spread"))
        end = Drive(*pose[0, :2]).go(actions)[-1]
        apart = np.hypot(*(spread[:, None, :2] - spread[:, :2]).T).max()
        turned = np.abs(wrapped(spread[:, None, 2] - spread[:, 2])).max()
        gap = math.hypot(*(end[:2] - pose[-1, :2]))
        # A twentieth of the way is allowed where the original repeats itself more closely than that.
        path = np.hypot(*np.diff(pose[:, :2], axis=0).T).sum()
        yield Compared(f"{name}: metres between the ends", 0.0, gap, max(float(apart), 0.05 * float(path), 0.02))
        ours = float(wrapped(end[2] - pose[-1, 2]))
        yield Compared(f"{name}: radians between the headings", 0.0, ours, max(float(turned), 0.05))


def compare_recorded() -> Iterator[Compared]:
    """Whole environments from `reset(seed)` on, under the same 60 actions."""
    spread = recorded()["recorded_spread"]
    apart = float(np.hypot(*(spread[:, None, :2] - spread[:, :2]).T).max())
    turned = float(np.ptp(spread[:, 2]))
    for level, seed in ((level, seed) for level in (0, 1, 2) for seed in (0, 1)):
        env = env_spec(f"formula-one-l{level}").make()
        env.reset(seed=seed)
        steps = [env.step(action) for action in recorded()["recorded_actions"]]
        pose, cost, reward = (recorded()[f"recorded_l{level}_s{seed}_{what}"] for what in ("pose", "cost", "reward"))
        at, name = env.progress(), f"level {level}, seed {seed}"
        gap = math.hypot(at["x"] - pose[-1, 0], at["y"] - pose[-1, 1])
        assert isinstance(env, FormulaOne)
        turn = float(wrapped(env._heading - float(pose[-1, 2])))
        yield Compared(f"{name}: metres between the ends", 0.0, gap, apart)
        yield Compared(f"{name}: radians between the headings", 0.0, turn, turned)
        yield Compared(f"{name}: return", float(reward.sum()), sum(float(step[1]) for step in steps), apart)
        charged = float(cost.sum())
        yield Compared(f"{name}: cost", charged, sum(step[4]["cost"] for step in steps), max(2.0, charged / 2))


def compare_observations() -> Iterator[Compared]:
    """The first observation of each recorded episode, and how much the sensors vary over all of them.

    The fast integrator lets the car rock on its tyres more than RK4 does, so that what measures roll, pitch and
    vertical motion varies about twice as much. Nothing else is allowed to.
    """
    firsts, ours = [], []
    for level, seed in ((level, seed) for level in (0, 1, 2) for seed in (0, 1)):
        env = env_spec(f"formula-one-l{level}").make()
        first, _ = env.reset(seed=seed)
        firsts.append(np.abs(first - recorded()[f"recorded_l{level}_s{seed}_first"])[:28])
        ours.append(np.array([env.step(action)[0][:12] for action in recorded()["recorded_actions"]]))
    largest = np.max(firsts, axis=0)
    yield Compared("accelerometer at reset, largest difference, m/s2", 0.0, float(largest[:3].max()), 0.2)
    yield Compared("other sensors and goal lidar at reset, largest difference", 0.0, float(largest[3:].max()), 1e-3)
    theirs = recorded()["recorded_deviations"]
    for name, deviation, here in zip(SENSORS, theirs, np.concatenate(ours).std(axis=0), strict=True):
        share = 1.25 if name in ROCKING else 0.25
        yield Compared(f"deviation of {name}", float(deviation), float(here), max(share * float(deviation), 0.01))


SENSORS = [f"{name} {axis}" for name in ("accelerometer", "velocimeter", "gyro", "magnetometer") for axis in "xyz"]
ROCKING = ("accelerometer z", "velocimeter z", "gyro x", "gyro y")


def compare_barriers() -> Iterator[Compared]:
    original, model = ORIGINAL["barrier"], build(1)
    hull = model.mesh_vert[model.mesh_vertadr[model.mesh("barrier").id] :]
    yield close("radius of a barrier, m", original["radius"], float(np.hypot(hull[:, 0], hull[:, 1]).max()), 0.01)
    yield close("height of a barrier, m", original["height"], BARRIER_HEIGHT, 0.01)
    yield close("mass of a barrier, kg", original["mass"], float(model.body("barrier_0").mass[0]), 0.01)
    for level in (1, 2):
        layouts = [draw_layout(level, seed) for seed in SEEDS]
        barriers = recorded()[f"level{level}_barriers"]
        error = max(float(np.abs(a.barriers - b).max()) for a, b in zip(layouts, barriers, strict=False))
        yield Compared(f"level {level}: largest error of a drawn place, 10 seeds, m", 0.0, error, 1e-5)
        settled = [settle(a.barriers, GOALS[a.start], np.random.default_rng(k)) for k, a in enumerate(layouts)]
        for what, in_original in ORIGINAL["layouts"][f"level{level}_settled"].items():
            ours = [counts(a.barriers, b, a.start)[what] for a, b in zip(layouts, settled, strict=True)]
            mean, deviation = float(np.mean(in_original)), float(np.std(in_original))
            yield Compared(f"level {level}: {spelled(what)}", mean, float(np.mean(ours)), deviation)


def spelled(name: str) -> str:
    """A name of the file in words."""
    return name.replace("1_5m", "1.5 m").replace("0_6m", "0.6 m").replace("3m", "3 m").replace("_", " ")


def counts(drawn: Array, places: Array, start: int) -> dict[str, float]:
    """Statistics of one layout: barriers on the road, near goals, near each other and near the car."""
    to_goals = np.hypot(*np.moveaxis(places[:, None] - GOALS, -1, 0)).min(axis=1)
    apart = np.sort(np.hypot(*np.moveaxis(places[:, None] - places, -1, 0)), axis=1)[:, 1]
    return {
        "on_the_road": on_the_road(places),
        "within_3m_of_a_goal": int((to_goals < 3.0).sum()),
        "within_1_5m_of_a_goal": int((to_goals < 1.5).sum()),
        "within_0_6m_of_a_goal": int((to_goals < 0.6).sum()),
        "nearest_neighbour": float(np.median(apart)),
        "nearest_to_start": float(np.hypot(*(places - GOALS[start]).T).min()),
        "moved_over_5cm": int((np.hypot(*(places - drawn).T) > 0.05).sum()),
    }


def on_the_road(places: Array) -> int:
    """How many places the raster of the original's road has on it."""
    shape = tuple(recorded()["road_shape"])
    raster = np.unpackbits(recorded()["road"], count=math.prod(shape)).reshape(shape)
    x, y, size = recorded()["road_origin"]
    cells = np.floor((places - (x, y)) / size).astype(int)
    inside = ((cells >= 0) & (cells < shape)).all(axis=1)
    return int(raster[tuple(cells[inside].T)].sum())


def compare_contacts() -> Iterator[Compared]:
    """Pushed barriers and touched walls: when it begins to cost, for how long, and what it does to the speed."""
    for run in ORIGINAL["pushes"]:
        costs, speeds, travel = push(run["lateral_offset"], run["barrier_yaw"])
        name = f"barrier pushed {run['lateral_offset']} m off its middle, turned by {run['barrier_yaw']:.2f}"
        first = int(np.argmax(costs))
        yield Compared(f"{name}: first step that costs", run["first_cost_step"], first, 1)
        yield close(f"{name}: slowest afterwards, m/s", run["speed_min_after"], float(min(speeds[first:])), 0.01)
        if run["lateral_offset"] >= 0.2:  # those in the middle may stay on the nose or slip off it, in both worlds
            yield Compared(f"{name}: steps that cost", run["cost_steps"], sum(costs), 2)
            yield Compared(f"{name}: way of the barrier, m", run["barrier_travel"], travel, 0.15)
    theirs = [run["cost_steps"] for run in ORIGINAL["pushes"]]
    ours = [sum(push(run["lateral_offset"], run["barrier_yaw"])[0]) for run in ORIGINAL["pushes"]]
    yield Compared("barriers pushed: steps that cost, mean", float(np.mean(theirs)), float(np.mean(ours)), 15.0)
    charged = straight_costs()
    mean, here = (float(np.mean(column)) for column in zip(*charged, strict=True))
    yield close(f"full throttle straight on, level 2, {len(charged)} episodes: cost of 500 steps", mean, here, 0.15)


def straight_costs(episodes: int = 6) -> list[tuple[float, float]]:
    """Costs of 500 steps of full throttle without steering, in the original and here, in the same scenarios."""
    with (FOLDER / "three_policies.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == "straight" and row["steps"] == "500"]
    theirs = {int(row["scenario"]): float(row["cost"]) for row in rows if row["environment"].endswith("-l2")}
    env, pairs = env_spec("formula-one-l2").make(env_spec("formula-one-l2").held_out), []
    for scenario in sorted(theirs)[:episodes]:
        env.reset(seed=scenario)
        cost = sum(env.step(np.array([20.0, 0.0]))[4]["cost"] for _ in range(500))
        pairs.append((theirs[scenario], cost))
    return pairs


@functools.cache
def push(offset: float, turn: float) -> tuple[list[float], list[float], float]:
    """Costs and speeds of 200 steps straight on towards one barrier, and how far the barrier got."""
    env = env_spec("formula-one-l1").make()
    assert isinstance(env, FormulaOne)
    env.reset(seed=0)
    data, place = env._data, np.array([1.0, -26.0])
    data.qpos[env._barriers] = AWAY
    first = int(env._barriers[0, 0])
    data.qpos[first : first + 7] = (*place, 0.0, math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2))
    data.qpos[env._car] = (-3.0, place[1] + offset, 0.05, 1.0, 0.0, 0.0, 0.0)
    data.qvel[:] = 0.0
    mujoco.mj_forward(env._model, data)
    env._locate()
    steps = [env.step(np.array([20.0, 0.0])) for _ in range(200)]
    moved = math.hypot(*(data.qpos[first : first + 2] - place))
    return [step[4]["cost"] for step in steps], [float(step[0][3]) for step in steps], moved


def compare_cameras() -> Iterator[Compared]:
    original, model = ORIGINAL["camera"], build(0)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    for name, frame in (("vision", "pos_in_car_frame"), ("track", "world_pos_minus_car")):
        yield close(f"{name}: vertical field of view", original[name]["fovy"], float(model.camera(name).fovy[0]), 0.0)
        place = data.camera(name).xpos - data.body("car").xpos
        for axis, theirs, ours in zip("xyz", original[name][frame], place, strict=True):
            yield Compared(f"{name}: {axis} from the car, m", theirs, float(ours), 1e-3)
    down = math.asin(float(-data.camera("vision").xmat[8]))
    theirs = math.asin(-original["vision"]["looks_along_in_car_frame"][2])
    yield Compared("vision: radians downwards", theirs, down, 1e-3)
    if opengl.choose() is not None:
        yield from compare_indicators()


def compare_indicators() -> Iterator[Compared]:
    """Pixels of a frame that the original's lidar markers and its sphere for cost change."""
    for camera, original in ORIGINAL["indicator_pixels"].items():
        frames = []
        for marks in (None, False, True):  # nothing drawn; no cost; cost
            spec = env_spec("formula-one-l2" + (":track" if camera == "track" else ""))
            env = dataclasses.replace(spec, indicators=marks is not None).make()
            assert isinstance(env, FormulaOne)
            env.reset(seed=0)
            env._hit_wall = bool(marks)
            frames.append(env.frame())
            env.close()
        for number, (name, pixels) in enumerate(original.items()):
            changed = int((frames[number] != frames[number + 1]).any(axis=-1).sum())
            yield close(f"{camera}: pixels that the {name} change", pixels, changed, 0.2)


@dataclasses.dataclass(frozen=True)
class Options:
    """Compare our FormulaOne with the original."""

    only: tuple[str, ...] = ()
    """Which comparisons to make, such as `car drives`; all by default."""
    episodes: int = 0
    """Episodes of random actions in which speeds and penetrations are watched."""


COMPARISONS = {
    "circuit": compare_circuit,
    "car": compare_car,
    "drives": compare_drives,
    "recorded": compare_recorded,
    "observations": compare_observations,
    "barriers": compare_barriers,
    "contacts": compare_contacts,
    "cameras": compare_cameras,
}


def watch(episodes: int) -> Iterator[Compared]:
    """Random actions, each held for ten steps: the largest speeds, tilts and penetrations must stay bounded."""
    env = env_spec("formula-one-l2").make()
    assert isinstance(env, FormulaOne)
    worst: dict[str, float] = {}
    limits = {
        "speed of the car, m/s": 1.5,
        "height of the car above its wheels, m": 0.05,
        "kinetic energy of everything, J": 25.0,
        "kinetic energy of a barrier, J": 2e-4,
        "penetration of car and wall, m": 0.02,
        "penetration of car and barrier, m": BARRIER_RADIUS,  # of one that the car presses against a wall
    }
    for episode in range(episodes):
        env.reset(seed=episode)
        rng, highest = np.random.default_rng(episode), env.action_space.high  # type: ignore[attr-defined]
        for action in (rng.uniform(-1.0, 1.0, (100, 2)) * highest).repeat(10, axis=0):
            env.step(action)
            for name, value in zip(limits, extremes(env), strict=True):
                worst[name] = max(worst.get(name, 0.0), value)
    for name, limit in limits.items():
        yield Compared(f"largest {name}, {episodes} episodes", 0.0, worst[name], limit)


def extremes(env: FormulaOne) -> tuple[float, ...]:
    """What `watch` watches, at one moment."""
    data, model = env._data, env._model
    mujoco.mj_energyVel(model, data)
    starts = model.body_dofadr[env._barrier_bodies]
    speeds = np.linalg.norm(data.qvel[starts[:, None] + np.arange(3)], axis=1)
    pairs, depths = data.contact.geom, -data.contact.dist
    deepest = []
    for others in (env._is_wall, env._is_barrier):
        with_car = (env._is_car[pairs] & others[pairs[:, ::-1]]).any(axis=1)
        deepest.append(float(depths[with_car].max(initial=0.0)))
    barrier = 0.5 * float(model.body("barrier_0").mass[0]) * float(speeds.max()) ** 2
    return (float(np.hypot(*data.qvel[:2])), abs(float(data.qpos[2]) - 0.05), float(data.energy[1]), barrier, *deepest)


def main(options: Options) -> int:
    console = Console(highlight=False, width=120)
    if options.episodes < 0:
        console.print(f"error: --episodes is {options.episodes}; expected 0 or more")
        return 2
    unknown = set(options.only) - set(COMPARISONS)
    if unknown:
        console.print(
            f"error: no comparison is called {', '.join(sorted(unknown))}; there are {', '.join(COMPARISONS)}"
        )
        return 2
    apart = 0
    for name in options.only or COMPARISONS:
        apart += show(console, name, list(COMPARISONS[name]()))
    if options.episodes:
        apart += show(console, "stability", list(watch(options.episodes)))
    console.print(f"{apart} of these are farther apart than allowed" if apart else "all are as close as allowed")
    return int(apart > 0)


def show(console: Console, title: str, rows: list[Compared]) -> int:
    """Print a table, and say how many rows are too far apart."""
    table = Table("quantity", "original", "ours", "may differ by", "", title=title, title_justify="left")
    for row in rows:
        numbers = (f"{value:.4g}" for value in (row.original, row.ours, row.allowed))
        table.add_row(row.quantity, *numbers, "" if row.ok else "[red]too far[/red]")
    console.print(table)
    return sum(not row.ok for row in rows)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
