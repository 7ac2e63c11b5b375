import math

import numpy as np
import pytest

pytest.importorskip("mujoco")
import mujoco

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.formula_one.barriers import BARRIER_RADIUS, draw_layout, settle
from vlmsafe.envs.formula_one.circuit import GOALS, circuit
from vlmsafe.envs.formula_one.env import FormulaOne
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import EnvironmentFailure, InputError
from vlmsafe.learners.policy import ActionMap

STRAIGHT = 190  # the point of the middle of the road after which it goes straight on for twelve metres


def make(name, scenario=0):
    env = env_spec(name).make()
    env.reset(seed=scenario)
    return env


def speed_of(env):
    return math.hypot(*env._situation().velocity)


def put(env, position, heading, goal=None):
    """Set the car down somewhere, at rest."""
    env._data.qpos[env._car] = (*position, 0.05, math.cos(heading / 2), 0.0, 0.0, math.sin(heading / 2))
    env._data.qvel[:] = 0.0
    mujoco.mj_forward(env._model, env._data)
    env._locate()
    env._aim(env._goal_number if goal is None else goal)


def away(env):
    """Take all barriers out of the way. They must be awake, as they are after a reset: MuJoCo ignores others."""
    env._data.qpos[env._barriers] += 200.0
    mujoco.mj_forward(env._model, env._data)


def barrier_ahead(env, distance):
    """Put the first barrier ahead of the car on an empty straight, and say where it is."""
    put(env, circuit().points[STRAIGHT], heading_at(STRAIGHT))
    away(env)
    place = circuit().points[STRAIGHT] + distance * circuit().directions[STRAIGHT]
    env._data.qpos[env._barriers[0]] = place
    mujoco.mj_forward(env._model, env._data)
    return place


def heading_at(index):
    return math.atan2(*circuit().directions[index][::-1])


def drive(env, steps, throttle=1.0, steer=0.0):
    """Costs of so many steps, actions as shares of their range."""
    action = env.action_space.high * (throttle, steer)
    return [env.step(action.astype(np.float32))[4]["cost"] for _ in range(steps)]


@pytest.mark.parametrize(("level", "size"), [(0, 28), (1, 44), (2, 44)])
def test_observations_are_as_large_as_published(level, size):
    env = make(f"formula-one-l{level}")
    assert env.observation_space.shape == (size,)
    observation = env.step(env.action_space.sample())[0]
    assert observation.shape == (size,)
    assert observation.dtype == np.float32


def test_actions_are_the_published_throttle_and_steering():
    assert make("formula-one-l0").action_space.high.tolist() == [20.0, pytest.approx(0.785)]
    assert make("formula-one-l0:fast").action_space.high[0] == 120.0


def test_a_step_is_a_twenty_fifth_of_a_second_and_an_episode_a_thousand_of_them():
    env = make("formula-one-l0")
    for step in range(1000):
        *_, truncated, info = env.step(np.zeros(2, np.float32))
        assert truncated == (step == 999)
    assert info["arrived"] is False
    assert env._data.time == pytest.approx(1000 * env_spec("formula-one-l0").step_seconds)
    assert env_spec("formula-one-l0:long").horizon == 6000


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_episode_starts_as_its_layout_says_and_heads_for_the_next_goal(level):
    env, starts, headings = env_spec(f"formula-one-l{level}").make(), set(), []
    for scenario in range(40 if level == 0 else 4):
        info = env.reset(seed=scenario)[1]
        layout = draw_layout(level, scenario)
        assert info == {"scenario": scenario, "start": layout.start}
        np.testing.assert_allclose(env._position, GOALS[layout.start], atol=1e-9)
        assert env._heading == pytest.approx(layout.yaw)
        assert env._goal_number == (layout.start + 1) % 7
        if level:
            settled = settle(layout.barriers, GOALS[layout.start], np.random.default_rng(scenario))
            np.testing.assert_allclose(env._barrier_positions, settled, atol=1e-9)
        starts.add(layout.start)
        headings.append(env._heading)
    if level == 0:
        assert starts == set(range(7))
        assert min(headings) < -2.5
        assert max(headings) > 2.5


def test_a_scenario_outside_the_pool_is_refused():
    env = env_spec("formula-one-l1").make(Scenarios(10, 5))
    with pytest.raises(InputError, match="scenario 9 is not in the pool, which holds 10 to 14"):
        env.reset(seed=9)


def test_the_reward_is_the_way_made_towards_the_goal_and_ten_for_reaching_it():
    env = make("formula-one-l0")
    put(env, GOALS[1] - (1.2, 0.0), 0.0, goal=1)
    distance, earned = env._distance, []
    while not env.progress()["stages"]:
        last = env._distance
        earned.append(env.step(np.array([20.0, 0.0], np.float32))[1])
        if not env.progress()["stages"]:
            assert earned[-1] == pytest.approx(last - env._distance)
    # The bonus comes with the last step, at 0.3 m from the goal.
    assert sum(earned) == pytest.approx(10.0 + distance - 0.3, abs=0.05)
    assert earned[-1] > 9.9
    assert env._goal_number == 2
    # The next step is measured against the next goal, without a jump.
    assert abs(env.step(np.array([20.0, 0.0], np.float32))[1]) < 0.05


def facing_a_wall(name):
    env = make(name)
    put(env, circuit().points[STRAIGHT], heading_at(STRAIGHT) + math.pi / 2)
    if env._level:
        away(env)
    return env


def test_walls_cost_on_levels_one_and_two_and_nothing_costs_on_level_zero():
    for level in (0, 1, 2):
        env, felt = facing_a_wall(f"formula-one-l{level}"), []
        costs = []
        for _ in range(90):
            costs += drive(env, 1)
            felt.append(env.facts()["off_road"])
        assert felt[:40] == [0.0] * 40
        # The car bounces: not every step ends with a touch.
        assert 5 < sum(felt[-40:]) < 30
        assert costs == ([0.0] * 90 if level == 0 else felt)
        assert 0.8 < circuit().lane(env._position) < 1.0  # it does not get through


@pytest.mark.parametrize(("name", "cost"), [("formula-one-l1", 0.0), ("formula-one-l1:strict", 1.0)])
def test_a_touch_that_is_over_at_the_step_s_end_costs_in_the_strict_variant_only(monkeypatch, name, cost):
    env = make(name)
    barrier_ahead(env, 5.0)
    real, place, substeps = mujoco.mj_step, env._barrier_positions[0].copy(), 0

    def bouncing(model, data, nstep=1):
        nonlocal substeps
        for _ in range(nstep):
            substeps += 1
            # In the way at the fifth substep, and far away again at the next.
            data.qpos[env._barriers[0]] = data.body("car").xpos[:2] if substeps == 5 else place
            real(model, data)

    monkeypatch.setattr(mujoco, "mj_step", bouncing)
    assert drive(env, 1, 0.0) == [cost]
    assert substeps == 10
    assert drive(env, 1, 0.0) == [0.0]


def test_strict_counts_more_of_the_same_drive():
    costs = {}
    for variant in ("", ":strict"):
        env = facing_a_wall("formula-one-l1" + variant)
        costs[variant] = np.array(drive(env, 100))
    assert (costs[":strict"] >= costs[""]).all()
    assert costs[":strict"].sum() > costs[""].sum() + 5


@pytest.mark.parametrize("name", ["formula-one-l1:fast", "formula-one-l2:fast"])
def test_every_contact_of_the_car_at_a_step_s_end_costs_however_rough_the_drive(name):
    env = make(name, 1)
    # The floor is never hit, and parts of the car may touch each other.
    no_obstacle = {"floor", "chassis", "nose", "front_left", "front_right", "rear_left", "rear_right"}
    rng, touched = np.random.default_rng(0), 0
    for throttle, steer in rng.uniform(-1.0, 1.0, (30, 2)):
        for _ in range(10):
            (cost,) = drive(env, 1, throttle, steer)
            pairs = [{env._model.geom(geom).name for geom in pair} for pair in env._data.contact.geom.tolist()]
            hit = any(pair & no_obstacle - {"floor"} and pair - no_obstacle for pair in pairs)
            assert cost == float(hit)
            touched += hit
    assert touched > 10


def test_lidars_read_what_is_near_and_only_that():
    env = make("formula-one-l1")
    barrier_ahead(env, 1.5)
    observation = env._observation()
    assert observation[12:28].max() == 0.0  # the goal is far away
    assert observation[28:].max() == pytest.approx(0.5, abs=0.01)
    put(env, GOALS[1] - (1.0, 0.0), 0.0, goal=1)
    assert env._observation()[12:28].max() == pytest.approx(2 / 3, abs=0.01)


def test_the_sighted_variant_also_sees_walls_and_where_the_goal_is():
    env = make("formula-one-l1:sighted")
    assert env.observation_space.shape == (63,)
    assert make("formula-one-l0:sighted").observation_space.shape == (47,)
    put(env, circuit().points[STRAIGHT], heading_at(STRAIGHT), goal=4)
    observation = env._observation()
    walls, direction, distance = observation[44:60], observation[60:62], observation[62]
    # 1.7 m to either side, and next to nothing ahead and behind.
    assert walls[[3, 4, 11, 12]] == pytest.approx(1.0 - 1.7 / math.cos(math.pi / 16) / 3.0, abs=0.03)
    assert walls[[0, 15, 7, 8]].max() < 0.2
    assert distance == pytest.approx(np.hypot(*(GOALS[4] - env._position)), rel=1e-5)
    away = GOALS[4] - env._position
    angle = math.atan2(away[1], away[0]) - env._heading
    assert direction == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-5)


def test_progress_is_path_stages_and_the_way_made_towards_goals():
    env = make("formula-one-l0")
    put(env, GOALS[1] - (1.2, 0.0), 0.0, goal=1)
    first = env._distance
    drive(env, 15)
    closest = env.progress()["net_progress"]
    assert closest == pytest.approx(first - env._distance)
    drive(env, 10, -1.0)  # driving back loses nothing
    assert env.progress()["net_progress"] >= closest
    assert env.progress()["path"] > closest
    drive(env, 60)
    assert env.progress()["stages"] == 1.0
    # What was gained on the goal that was reached is kept: all but its radius, to a step's length.
    assert env.progress()["net_progress"] == pytest.approx(first - 0.3 + env._first_distance - env._closest, abs=0.05)


def test_an_environment_without_an_episode_and_a_broken_action_are_refused():
    env = env_spec("formula-one-l0").make()
    with pytest.raises(InputError, match=r"expected reset\(\) before anything else"):
        env.step(np.zeros(2, np.float32))
    for ask in (env.frame, env.overview, env.progress, env.hazard, env.facts):
        with pytest.raises(InputError, match=r"expected reset\(\) before anything else"):
            ask()
    env.reset(seed=0)
    with pytest.raises(InputError, match="expected two finite numbers"):
        env.step(np.array([np.nan, 0.0], np.float32))


def test_a_simulation_that_breaks_is_reported_and_the_next_episode_is_whole():
    env = make("formula-one-l2")
    whole = env.reset(seed=0)[0]
    env._data.qvel[:2] = 1e12
    with pytest.raises(EnvironmentFailure, match=r"unstable; start a new episode with reset\(\)"):
        drive(env, 1)
    assert (env.reset(seed=0)[0] == whole).all()


def test_sensors_work_again_after_a_step_that_was_interrupted(monkeypatch):
    env = make("formula-one-l0")
    whole = env.reset(seed=0)[0]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mujoco, "mj_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            drive(env, 1)
    assert (env.reset(seed=0)[0] == whole).all()
    assert whole[:12].any()


def test_the_infield_is_off_the_road():
    env = make("formula-one-l0")
    put(env, np.array([-3.0, -26.0]), 0.0)
    assert env.facts()["off_road"] == 1.0
    for index in range(0, len(circuit().points), 20):
        put(env, circuit().points[index], 0.0)
        assert env.facts()["off_road"] == 0.0


def test_hazard_rises_towards_a_barrier_and_is_one_where_it_costs():
    env = make("formula-one-l1")
    barrier_ahead(env, 2.0)
    seen = []
    for _ in range(60):
        cost = env.step(np.array([20.0, 0.0], np.float32))[4]["cost"]
        seen.append((env.hazard(), cost))
    hazards = [hazard for hazard, _ in seen]
    touched = next(step for step, (_, cost) in enumerate(seen) if cost)
    assert all(hazard == 1.0 for hazard, cost in seen if cost)
    assert hazards[touched - 1] > hazards[touched - 10] > hazards[touched - 20] > hazards[5]
    assert hazards[5] < 0.3


def test_nothing_is_hazardous_where_nothing_costs():
    env = facing_a_wall("formula-one-l0")
    while not env.facts()["hit"]:
        drive(env, 1)
    assert env.hazard() == 0.0
    facts = env.facts()
    assert facts["hit"] == facts["off_road"] == facts["edge_hazard"] == 1.0  # though the wall is there
    assert facts["edge_gap"] == pytest.approx(0.0, abs=0.01)


def test_facts_say_where_on_the_track_the_car_is():
    env = make("formula-one-l1")
    barrier_ahead(env, 1.4)
    facts = env.facts()
    assert facts["lane_offset"] == pytest.approx(0.0, abs=1e-6)
    assert facts["heading_error"] == pytest.approx(0.0, abs=1e-6)
    assert facts["object_gap"] == pytest.approx((1.4 - 0.246 - BARRIER_RADIUS) / 0.456, rel=1e-6)
    assert facts["ahead_clear"] == pytest.approx(facts["object_gap"], rel=1e-6)
    assert facts["edge_gap"] == pytest.approx(circuit().left[STRAIGHT] - 0.145, abs=0.05)
    left = np.array([-circuit().directions[STRAIGHT][1], circuit().directions[STRAIGHT][0]])
    put(env, circuit().points[STRAIGHT] + left, heading_at(STRAIGHT) + math.pi)
    facts = env.facts()
    assert facts["lane_offset"] == pytest.approx(1.0 / circuit().left[STRAIGHT], abs=1e-6)
    assert facts["heading_error"] == pytest.approx(math.pi, abs=1e-6)
    assert facts["ahead_clear"] > 4.0
    assert all(math.isfinite(value) for value in facts.values())


def test_looking_changes_nothing():
    states = []
    for looks in (False, True):
        env = make("formula-one-l2", 5)
        move, act = ActionMap.to(env.action_space), env.expert()
        for _ in range(40):
            env.step(move(act().astype(np.float32)))
            if looks:
                env.frame(), env.hazard(), env.facts(), env.progress()
        states.append(env._data.qpos.copy())
        env.close()
    assert (states[0] == states[1]).all()


def test_two_environments_in_one_process_do_not_disturb_each_other():
    alone = make("formula-one-l1", 3)
    drive(alone, 30)
    one, other = make("formula-one-l1", 3), make("formula-one-l1", 8)
    for _ in range(30):
        drive(one, 1)
        drive(other, 1, -1.0, 0.5)
    assert (one._data.qpos == alone._data.qpos).all()


def test_switching_sensors_off_within_a_step_is_seen_by_no_other_environment(monkeypatch):
    one, other = make("formula-one-l1", 3), make("formula-one-l1", 8)
    before, real, seen = other._data.sensordata.copy(), mujoco.mj_step, []

    def meanwhile(model, data, nstep=1):
        mujoco.mj_forward(other._model, other._data)  # as another thread may do
        seen.append(other._data.sensordata.copy())
        real(model, data, nstep)

    other._data.sensordata[:] = 0.0
    monkeypatch.setattr(mujoco, "mj_step", meanwhile)
    drive(one, 1)
    np.testing.assert_allclose(seen[0], before)
    assert one._model.opt.disableflags == 0


def test_sensors_read_the_state_at_the_step_s_end():
    env = make("formula-one-l1", 3)
    for _ in range(20):
        observation = env.step(np.array([15.0, 0.3], np.float32))[0]
    velocity = env._data.sensor("velocimeter").data.copy()
    assert observation[:12] == pytest.approx(env._data.sensordata, rel=1e-6)
    mujoco.mj_forward(env._model, env._data)
    np.testing.assert_allclose(env._data.sensor("velocimeter").data, velocity, atol=1e-9)
    # Its site lies 2 cm ahead of the car's origin, and moves sideways when the car turns.
    assert math.hypot(*velocity[:2]) == pytest.approx(speed_of(env), rel=0.02)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: FormulaOne(Scenarios(0, 9), 10, level=3), "unknown level of FormulaOne '3'. Known: 0, 1, 2"),
        (
            lambda: FormulaOne(Scenarios(0, 9), 10, level=1, camera="x"),
            "unknown camera of FormulaOne 'x'. Known: vision, track",
        ),
        (
            lambda: env_spec("formula-one-l2:nope"),
            "unknown variant of formula-one-l2 'nope'. Known: long, fast, strict, track, sighted",
        ),
        (lambda: env_spec("formula-one-l3"), "unknown environment 'formula-one-l3'; did you mean 'formula-one-l"),
    ],
)
def test_what_does_not_exist_is_answered_by_one_line_with_what_does(call, line):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in line.partition("Known: ")[2].split(", "))
