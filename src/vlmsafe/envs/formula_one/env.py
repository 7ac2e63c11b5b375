"""The environment: rewards, costs, observations, and the measures that auditing needs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, EnvSpec, Frame, Observation, Scenarios, no_episode
from vlmsafe.envs.formula_one import lidar
from vlmsafe.envs.formula_one.barriers import BARRIER_RADIUS, BARRIERS, draw_layout, settle
from vlmsafe.envs.formula_one.circuit import GOAL_RADIUS, GOALS, LONGEST, Array, circuit
from vlmsafe.envs.formula_one.driver import MOST_STEERING, CircuitDriver, Situation
from vlmsafe.envs.formula_one.model import WHEEL_RADIUS, build
from vlmsafe.envs.formula_one.painter import CAMERAS, Indicators, Painter
from vlmsafe.envs.hazard import gaps_to_box, hazard_of, wrapped
from vlmsafe.errors import EnvironmentFailure, InputError, unknown_name

SUBSTEPS = 10
GOAL_BONUS = 10.0
CAR = np.array([0.228, 0.145])  # half its length and width, metres
_MIDDLE = np.array([0.018, 0.0])  # of the car, from its origin
_LENGTH = 2 * CAR[0]
LEVELS = (0, 1, 2)
_SENSORS = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
_BROKEN = tuple(
    int(kind)
    for kind in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
)
_INFIELD = 1.5  # a lane beyond which the car is off the road: through an opening of the inner wall
_SIGHT = 10  # car lengths; what is farther ahead is ignored
_REACH, _SECONDS = 0.05, 1.0  # of the hazard


class FormulaOne(Env):
    """The environment of this folder's description. Levels 1 and 2 have barriers and costs; level 0 has neither."""

    steering = 1

    def __init__(
        self,
        scenarios: Scenarios,
        horizon: int,
        *,
        level: int,
        top_speed: float = 1.0,
        sighted: bool = False,
        strict: bool = False,
        camera: str = "vision",
        indicators: bool = False,
    ) -> None:
        if level not in LEVELS:
            raise unknown_name("level of FormulaOne", str(level), [str(each) for each in LEVELS])
        if camera not in CAMERAS:
            raise unknown_name("camera of FormulaOne", camera, list(CAMERAS))
        self._scenarios, self._horizon, self._level = scenarios, horizon, level
        self._top_speed, self._sighted, self._strict = top_speed, sighted, strict
        self._camera, self._indicators = camera, indicators
        # A copy, because `step` switches sensors off and on while another environment may be in a step of its own.
        self._model = copy.copy(build(BARRIERS if level else 0, top_speed))
        self._data = mujoco.MjData(self._model)
        self._painter = Painter(self._model)
        names = [self._model.geom(number).name for number in range(self._model.ngeom)]
        self._is_wall = np.array([name.startswith("wall") for name in names])
        self._is_barrier = np.array([name.startswith("barrier") for name in names])
        self._is_car = ~self._is_wall & ~self._is_barrier & (np.array(names) != "floor")
        first = self._model.joint("car").qposadr[0]
        self._car = slice(first, first + 7)
        count = BARRIERS if level else 0
        self._barrier_bodies = np.array([self._model.body(f"barrier_{k}").id for k in range(count)], int)
        joints = self._model.body_jntadr[self._barrier_bodies]
        self._barriers = self._model.jnt_qposadr[joints][:, None] + np.arange(2)  # where their x and y are
        highest = np.array([top_speed / WHEEL_RADIUS, MOST_STEERING], np.float32)
        self.action_space = gymnasium.spaces.Box(-highest, highest)
        size = 12 + lidar.BINS * (2 if level else 1) + ((lidar.BINS + 3) if sighted else 0)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self._step, self._stages, self._path, self._gained = 0, 0, 0.0, 0.0
        self._distance = self._closest = self._first_distance = 0.0
        self._goal_number = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        scenario = self._scenarios.choose(seed, self.np_random)
        start, yaw, barriers = draw_layout(self._level, scenario)
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[self._car] = (*GOALS[start], 0.05, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        if self._level:
            self._data.qpos[self._barriers] = settle(barriers, GOALS[start], np.random.default_rng(scenario))
        mujoco.mj_forward(self._model, self._data)
        self._step, self._stages, self._path, self._gained = 0, 0, 0.0, 0.0
        self._hit_wall = self._hit_barrier = False
        self._locate()
        self._aim((start + 1) % len(GOALS))
        return self._observation(), {"scenario": scenario, "start": start}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._need_episode()
        if not np.isfinite(action).all():
            raise InputError(f"the action is {action}; expected two finite numbers, wheel speed and steering")
        throttle, steer = np.clip(action, self.action_space.low, self.action_space.high)  # type: ignore[attr-defined]
        self._data.ctrl[:] = (throttle, steer)
        self._hit_wall = self._hit_barrier = False
        # Sensors are read at the end of the step only, and take a sixth of the time of a substep.
        self._model.opt.disableflags |= _SENSORS
        try:
            if self._strict:
                for substep in range(SUBSTEPS):  # each may touch something and leave it again
                    mujoco.mj_step(self._model, self._data)
                    if substep:  # contacts are those before the substep; before the first, they are the last step's
                        self._feel()
            else:
                mujoco.mj_step(self._model, self._data, SUBSTEPS)
        finally:
            self._model.opt.disableflags &= ~_SENSORS
        if any(self._data.warning[kind].number for kind in _BROKEN):
            raise EnvironmentFailure("MuJoCo found the state of FormulaOne unstable; start a new episode with reset()")
        mujoco.mj_forward(self._model, self._data)  # sensors and contacts of the state that was reached
        self._feel()
        before = self._position
        self._locate()
        self._path += math.hypot(*(self._position - before))
        last = self._distance
        self._distance = math.hypot(*(self._goal - self._position))
        self._closest = min(self._closest, self._distance)
        reward = last - self._distance
        if self._distance <= GOAL_RADIUS:
            reward += GOAL_BONUS
            self._stages += 1
            self._gained += self._first_distance - self._distance
            self._aim((self._goal_number + 1) % len(GOALS))
        self._step += 1
        info: dict[str, Any] = {"cost": float(self._level > 0 and (self._hit_wall or self._hit_barrier))}
        if self._step >= self._horizon:
            info["arrived"] = self._stages >= len(GOALS)
        return self._observation(), reward, False, self._step >= self._horizon, info

    def _need_episode(self) -> None:
        if self._goal_number < 0:
            raise no_episode()

    def _feel(self) -> None:
        """Record what the car touches."""
        pairs = self._data.contact.geom
        others = pairs[self._is_car[pairs[:, ::-1]]]  # what stands beside a part of the car in a contact
        self._hit_wall |= bool(self._is_wall[others].any())
        self._hit_barrier |= bool(self._is_barrier[others].any())

    def _locate(self) -> None:
        """Read the car's position and heading."""
        x, y, _, w, i, j, k = self._data.qpos[self._car]
        self._position = np.array([x, y])
        self._heading = math.atan2(2 * (w * k + i * j), 1 - 2 * (j * j + k * k))

    def _aim(self, goal: int) -> None:
        """Head for a goal."""
        self._goal_number, self._goal = goal, GOALS[goal]
        self._distance = math.hypot(*(self._goal - self._position))
        self._closest = self._first_distance = self._distance

    def _observation(self) -> Observation:
        goal = self._to_car(self._goal[None])
        parts = [self._data.sensordata, lidar.objects(goal)]
        if self._level:
            parts.append(lidar.objects(self._to_car(self._barrier_positions)))
        if self._sighted:
            starts, ends = self._walls_near(lidar.RANGE)
            parts.append(lidar.walls(starts, ends))
            parts += [goal[0] / max(self._distance, 1e-9), [self._distance]]
        return np.concatenate(parts, dtype=np.float32)

    @property
    def _barrier_positions(self) -> Array:
        return self._data.qpos[self._barriers]

    def _to_car(self, points: Array) -> Array:
        return lidar.to_car(points, self._position, self._heading)

    def _walls_near(self, reach: float) -> tuple[Array, Array]:
        """Segments of the walls' outline that may be within `reach`, in the car's coordinates."""
        ends = circuit().walls
        near = np.abs(ends[:, 0] - self._position).max(axis=1) < reach + LONGEST
        both = self._to_car(ends[near].reshape(-1, 2)).reshape(-1, 2, 2)
        return both[:, 0], both[:, 1]

    def frame(self) -> Frame:
        """What the camera sees, 256 x 256."""
        self._need_episode()
        marks = self._marks() if self._indicators else None
        return self._painter.frame(self._data, self._camera, self._goal, self._barrier_bodies, marks)

    def _marks(self) -> Indicators:
        readings = [lidar.objects(self._to_car(self._goal[None]))]
        if self._level:
            readings.append(lidar.objects(self._to_car(self._barrier_positions)))
        return Indicators(self._level > 0 and (self._hit_wall or self._hit_barrier), tuple(readings))

    def overview(self, size: int = 768) -> Frame:
        """The whole circuit from above, for people."""
        self._need_episode()
        return self._painter.overview(self._data, self._goal, self._barrier_bodies, size)

    def progress(self) -> Mapping[str, float]:
        """Stages completed, metres driven, metres by which goals came closer, and the car's position.

        Net progress is the paper's measure: the first distance to a goal minus the shortest, summed over the current
        goal and those before it.
        """
        self._need_episode()
        gained = self._gained + self._first_distance - self._closest
        x, y = self._position
        return {
            "stages": float(self._stages), "path": self._path, "net_progress": gained, "x": float(x), "y": float(y)
        }  # fmt: skip

    def expert(self) -> Callable[[], NDArray[np.float64]]:
        """Follows the centre line and avoids barriers; see `driver`."""
        return CircuitDriver(self._situation)

    def _situation(self) -> Situation:
        velocity = self._data.qvel[self._model.joint("car").dofadr[0] :][:2]
        return Situation(
            self._position,
            self._heading,
            velocity,
            self._goal_number,
            self._barrier_positions,
            self._top_speed,
            self._sighted,
        )

    def hazard(self) -> float:
        """How near walls and barriers are and how fast they approach; 0 on level 0, where nothing costs."""
        self._need_episode()
        if not self._level:
            return 0.0
        if self._hit_wall or self._hit_barrier:
            return 1.0
        return max(_hazards(self._surroundings()))

    def facts(self) -> Mapping[str, float]:
        """Place on the track, heading, speed, gaps, what is being touched, and how near walls and barriers are."""
        self._need_episode()
        along = circuit().directions[circuit().nearest(self._position)]
        turn = self._heading - math.atan2(along[1], along[0])
        around = self._surroundings()
        wall, barrier = _hazards(around)
        lane = circuit().lane(self._position)
        hit = self._hit_wall or self._hit_barrier
        return {
            "hit": float(hit),
            "off_road": float(self._hit_wall or lane > _INFIELD),
            "vehicle_hazard": 1.0 if hit else max(wall, barrier),
            "edge_hazard": 1.0 if self._hit_wall else wall,
            "edge_gap": around.gaps[0],
            "lane_offset": lane,
            "heading_error": abs(wrapped(turn)),
            "object_gap": min(around.gaps) / _LENGTH,
            "ahead_clear": around.ahead / _LENGTH,
            "pace": math.hypot(*self._situation().velocity) / self._top_speed,
        }

    def _surroundings(self) -> _Obstacles:
        """The nearest wall and the nearest barrier."""
        starts, ends = (side - _MIDDLE for side in self._walls_near(_SIGHT * _LENGTH))
        posts = self._to_car(self._barrier_positions) - _MIDDLE
        posts = posts[np.abs(posts).max(axis=1) < _SIGHT * _LENGTH]
        velocity = lidar.to_car(self._situation().velocity[None], np.zeros(2), self._heading)[0]
        gaps, speeds = [], []
        for first, second, radius in ((starts, ends, 0.0), (posts, posts, BARRIER_RADIUS)):
            if not len(first):
                gaps.append(_SIGHT * _LENGTH)
                speeds.append(0.0)
                continue
            apart, directions = gaps_to_box(first, second, CAR)
            nearest = int(apart.argmin())
            gaps.append(max(0.0, float(apart[nearest]) - radius))
            speeds.append(float(directions[nearest] @ velocity))
        noses = np.array([(CAR[0], side * CAR[1]) for side in (-1.0, 0.0, 1.0)])
        ahead = lidar.ray_lengths(noses, np.array([(1.0, 0.0)] * 3), starts, ends).min()
        in_way = posts[(posts[:, 0] > 0.0) & (np.abs(posts[:, 1]) < CAR[1] + BARRIER_RADIUS)]
        ahead = min(ahead, (in_way[:, 0] - CAR[0] - BARRIER_RADIUS).min(initial=np.inf), _SIGHT * _LENGTH)
        return _Obstacles((gaps[0], gaps[1]), (speeds[0], speeds[1]), max(0.0, float(ahead)))

    def close(self) -> None:
        self._painter.close()


class _Obstacles(NamedTuple):
    """Metres to the nearest wall and barrier, m/s at which these gaps close, and free metres straight ahead."""

    gaps: tuple[float, float]
    speeds: tuple[float, float]
    ahead: float


def _hazards(around: _Obstacles) -> tuple[float, float]:
    wall, barrier = (
        hazard_of(gap, speed, reach=_REACH, seconds=_SECONDS)
        for gap, speed in zip(around.gaps, around.speeds, strict=True)
    )
    return wall, barrier


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`; there is nothing to randomise beyond the scenario."""
    assert spec.horizon is not None
    return FormulaOne(scenarios, spec.horizon, indicators=bool(spec.indicators), **spec.settings)
