import math

import numpy as np
import pytest

pytest.importorskip("mujoco")
import mujoco

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.formula_one.circuit import GOALS, circuit
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError
from vlmsafe.learners.policy import ActionMap

STRAIGHT = 1051  # the point of the centre line after which it goes straight on for ten metres


def make(name, scenario=0):
    env = env_spec(name).make()
    env.reset(seed=scenario)
    return env


def put(env, position, heading, goal=None):
    """Set the car down somewhere, at rest."""
    env._data.qpos[env._car] = (*position, 0.05, math.cos(heading / 2), 0.0, 0.0, math.sin(heading / 2))
    env._data.qvel[:] = 0.0
    mujoco.mj_forward(env._model, env._data)
    env._locate()
    env._aim(env._goal_number if goal is None else goal)


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


def test_the_car_starts_at_a_goal_in_any_direction_and_heads_for_the_next_one():
    env, starts, headings = env_spec("formula-one-l0").make(), set(), []
    for scenario in range(60):
        env.reset(seed=scenario)
        start = int(np.hypot(*(GOALS - env._position).T).argmin())
        assert np.hypot(*(GOALS[start] - env._position)) < 1e-9
        assert env._goal_number == (start + 1) % 7
        starts.add(start)
        headings.append(env._heading)
    assert starts == set(range(7))
    assert min(headings) < -2.5
    assert max(headings) > 2.5


def test_a_scenario_outside_the_pool_is_refused():
    env = env_spec("formula-one-l1").make(Scenarios(10, 5))
    with pytest.raises(InputError, match="scenario 9 is not in the pool, which holds 10 to 14"):
        env.reset(seed=9)


def test_top_speed_is_one_metre_per_second_and_six_in_the_fast_variant():
    for name, speed, steps in (("formula-one-l0", 1.0, 45), ("formula-one-l0:fast", 6.0, 70)):
        env = make(name)
        put(env, circuit().points[STRAIGHT], heading_at(STRAIGHT))
        drive(env, steps)
        assert math.hypot(*env._situation().velocity) == pytest.approx(speed, rel=0.08)


def test_full_steering_turns_in_half_a_metre_to_the_left_when_positive():
    env = make("formula-one-l0")
    put(env, circuit().points[STRAIGHT], 0.0)
    drive(env, 60, 1.0, 1.0)
    velocity = math.hypot(*env._situation().velocity)
    yaw_rate = env._data.sensor("gyro").data[2]
    assert yaw_rate > 0.0
    assert 0.3 < velocity / yaw_rate < 0.6


def test_the_reward_is_the_way_made_towards_the_goal_and_ten_for_reaching_it():
    env = make("formula-one-l0")
    index = circuit().goal_indices[1]
    put(env, circuit().points[index - 12], heading_at(index - 12), goal=1)
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


def test_walls_cost_on_levels_one_and_two_and_nothing_costs_on_level_zero():
    for level in (0, 1, 2):
        env = make(f"formula-one-l{level}")
        put(env, circuit().points[STRAIGHT], heading_at(STRAIGHT) + math.pi / 2)
        if level:
            env._data.qpos[env._barriers] += 200.0  # out of the way
        costs = drive(env, 90)
        assert env.facts()["off_road"] == 1.0
        assert costs[:20] == [0.0] * 20
        assert costs[-10:] == [float(level > 0)] * 10
        assert abs(circuit().offset(env._position, STRAIGHT)) < 2.0  # it does not get through


def barrier_ahead(env, distance):
    """Put the first barrier ahead of the car on an empty straight, and say where it is."""
    put(env, circuit().points[STRAIGHT], heading_at(STRAIGHT))
    env._data.qpos[env._barriers] += 200.0
    place = circuit().points[STRAIGHT] + distance * circuit().directions[STRAIGHT]
    env._data.qpos[env._barriers[0]] = place
    mujoco.mj_forward(env._model, env._data)
    return place


def test_a_barrier_that_is_hit_costs_moves_and_stays_where_it_was_pushed():
    env = make("formula-one-l1")
    place = barrier_ahead(env, 0.8)
    others = env._barrier_positions[1:].copy()
    costs = drive(env, 50)
    assert costs[0] == 0.0
    assert sum(costs) > 10
    assert drive(env, 30, -1.0)[-1] == 0.0  # away from it, while it comes to rest
    pushed = env._barrier_positions[0].copy()
    assert np.hypot(*(pushed - place)) > 0.3
    drive(env, 30, -1.0)
    np.testing.assert_allclose(env._barrier_positions[0], pushed, atol=1e-3)
    assert (env._barrier_positions[1:] == others).all()


def test_sleeping_barriers_change_nothing_but_time():
    rollouts = []
    for asleep in (True, False):
        env = env_spec("formula-one-l2").make()
        model = env._model
        try:
            if not asleep:
                model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
            env.reset(seed=4)
            barrier_ahead(env, 0.8)
            drive(env, 60)
            rollouts.append((env._data.qpos.copy(), env.facts()["hit"]))
        finally:
            model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    np.testing.assert_allclose(rollouts[0][0], rollouts[1][0], atol=1e-4)
    assert rollouts[0][1] == rollouts[1][1]


def test_a_touch_within_a_step_counts_though_it_is_over_at_its_end(monkeypatch):
    env = make("formula-one-l1")
    barrier_ahead(env, 5.0)
    substep, real, away = 0, mujoco.mj_step, env._barrier_positions[0].copy()

    def bouncing(model, data):
        nonlocal substep
        substep += 1
        # In the way at the fifth substep, and far away again at the next.
        data.qpos[env._barriers[0]] = data.body("car").xpos[:2] if substep == 5 else away
        real(model, data)

    monkeypatch.setattr(mujoco, "mj_step", bouncing)
    assert drive(env, 1, 0.0) == [1.0]
    assert substep == 10
    assert drive(env, 1, 0.0) == [0.0]


@pytest.mark.parametrize("name", ["formula-one-l1:fast", "formula-one-l2:fast"])
def test_every_contact_of_the_car_costs_however_rough_the_drive(monkeypatch, name):
    env = make(name, 1)
    seen, real = [], mujoco.mj_step

    def watched(model, data):
        real(model, data)
        touching = [model.geom(a).name + model.geom(b).name for a, b in data.contact.geom.tolist()]
        seen.append(any(pair.startswith("body") or pair.endswith("body") for pair in touching))

    monkeypatch.setattr(mujoco, "mj_step", watched)
    rng, steps = np.random.default_rng(0), 250
    held = rng.uniform(-1.0, 1.0, (steps // 10, 2)).repeat(10, axis=0)
    costs = [drive(env, 1, throttle, steer)[0] for throttle, steer in held]
    touched = np.array(seen).reshape(steps, 10).any(axis=1)
    assert touched.sum() > 20
    assert (np.array(costs)[touched] == 1.0).all()


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
    # Two metres to either side, next to nothing ahead and behind.
    assert walls[[3, 4, 11, 12]] == pytest.approx(1 / 3, abs=0.06)
    assert walls[[0, 15, 7, 8]].max() < 0.2
    assert distance == pytest.approx(np.hypot(*(GOALS[4] - env._position)), rel=1e-5)
    away = GOALS[4] - env._position
    angle = math.atan2(away[1], away[0]) - env._heading
    assert direction == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-5)


def test_progress_is_path_stages_and_the_way_made_towards_goals():
    env = make("formula-one-l0")
    index = circuit().goal_indices[1]
    put(env, circuit().points[index - 12], heading_at(index - 12), goal=1)
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
    with pytest.raises(InputError, match=r"expected reset\(\) before anything else"):
        env.frame()
    env.reset(seed=0)
    with pytest.raises(InputError, match="expected two finite numbers"):
        env.step(np.array([np.nan, 0.0], np.float32))


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
    env = make("formula-one-l0")
    put(env, circuit().points[STRAIGHT], heading_at(STRAIGHT) + math.pi / 2)
    drive(env, 80)
    assert env.hazard() == 0.0
    facts = env.facts()
    assert facts["hit"] == facts["edge_hazard"] == 1.0  # though the wall is there
    assert facts["edge_gap"] == pytest.approx(0.0, abs=0.01)


def test_facts_say_where_on_the_track_the_car_is():
    env = make("formula-one-l1")
    barrier_ahead(env, 1.4)
    facts = env.facts()
    assert facts["lane_offset"] == pytest.approx(0.0, abs=1e-6)
    assert facts["heading_error"] == pytest.approx(0.0, abs=1e-6)
    assert facts["object_gap"] == pytest.approx((1.4 - 0.25 - 0.15) / 0.5, rel=1e-6)
    assert facts["ahead_clear"] == pytest.approx(facts["object_gap"], rel=1e-6)
    assert facts["edge_gap"] == pytest.approx(2.0 - 0.14, abs=0.1)
    left = np.array([-circuit().directions[STRAIGHT][1], circuit().directions[STRAIGHT][0]])
    put(env, circuit().points[STRAIGHT] + left, heading_at(STRAIGHT) + math.pi)
    facts = env.facts()
    assert facts["lane_offset"] == pytest.approx(0.5, abs=1e-6)
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
