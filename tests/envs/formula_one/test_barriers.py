from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")
from vlmsafe.envs.formula_one.barriers import BARRIER_RADIUS, BARRIERS, draw_layout, settle
from vlmsafe.envs.formula_one.circuit import GOALS, exits

ORIGINAL = np.load(Path(__file__).parents[3] / "benchmarks/original/formula_one.npz")


def apart(points, others):
    return np.hypot(*np.moveaxis(points[:, None] - others, -1, 0))


@pytest.mark.parametrize("level", [1, 2])
def test_a_seed_gives_the_original_s_layout(level):
    for seed, (barriers, (x, y, yaw)) in enumerate(
        zip(ORIGINAL[f"level{level}_barriers"], ORIGINAL[f"level{level}_start"], strict=True)
    ):
        layout = draw_layout(level, seed)
        np.testing.assert_allclose(layout.barriers, barriers, atol=1e-5)
        np.testing.assert_allclose(GOALS[layout.start], (x, y), atol=1e-5)
        assert layout.yaw == pytest.approx(yaw, abs=1e-5)


def test_level_zero_starts_like_the_original_and_has_no_barriers():
    starts = [(3, -2.224913), (2, 0.580181), (3, 2.075555), (3, -0.651610), (6, 1.357730), (1, -2.439485)]
    for seed, (start, yaw) in enumerate(starts):
        layout = draw_layout(0, seed)
        assert (layout.start, layout.barriers.shape) == (start, (0, 2))
        assert layout.yaw == pytest.approx(yaw, abs=1e-5)


def in_boxes(layout):
    """The share of barriers in the boxes of 3 m around goals."""
    return (np.abs(layout[:, None] - GOALS).max(axis=-1) < 1.5).any(axis=1).mean()


def test_level_one_spreads_and_level_two_crowds_around_goals():
    spread, crowded = (np.mean([in_boxes(draw_layout(level, seed).barriers) for seed in range(12)]) for level in (1, 2))
    assert spread < 0.05
    assert 0.06 < crowded < 0.20


@pytest.fixture(scope="module")
def layouts():
    """Twelve layouts of level 2, drawn and settled, and where the car stands."""
    drawn = [draw_layout(2, seed) for seed in range(12)]
    return [
        (layout.barriers, settle(layout.barriers, GOALS[layout.start], np.random.default_rng(seed)), layout.start)
        for seed, layout in enumerate(drawn)
    ]


def test_drawn_barriers_keep_a_metre_from_each_other_and_half_a_metre_from_the_car(layouts):
    for drawn, _, start in layouts:
        assert (apart(drawn, drawn) + 9.0 * np.eye(BARRIERS)).min() >= 1.0
        assert apart(drawn, GOALS[start : start + 1]).min() >= 0.5


def test_settled_barriers_stand_in_no_wall_touch_no_other_and_keep_away_from_the_car(layouts):
    for _, settled, start in layouts:
        assert settled.shape == (BARRIERS, 2)
        assert exits(settled)[0].min() >= BARRIER_RADIUS
        assert (apart(settled, settled) + 9.0 * np.eye(BARRIERS)).min() > 2 * BARRIER_RADIUS
        assert apart(settled, GOALS[start : start + 1]).min() >= 0.5


def test_barriers_that_overlap_no_wall_do_not_move_and_the_others_all_do(layouts):
    for drawn, settled, _ in layouts:
        free = exits(drawn)[0] >= BARRIER_RADIUS
        assert 0.75 < free.mean() < 0.97
        assert (settled[free] == drawn[free]).all()
        assert (settled[~free] != drawn[~free]).any(axis=1).all()


def test_walls_throw_barriers_out_on_the_nearest_side_or_away_for_good(layouts):
    moved, gone = [], 0
    for drawn, settled, _ in layouts:
        depths, ways = exits(drawn)
        hit = depths < BARRIER_RADIUS
        away = settled[:, 1] > 50.0
        gone += int(away.sum())
        assert not (away & ~hit).any()
        for number in np.flatnonzero(hit & ~away):
            step = settled[number] - drawn[number]
            moved.append(np.hypot(*step))
            assert step @ ways[number] == pytest.approx(moved[-1])  # straight out
    assert max(moved) < 3.0
    assert 0.03 < gone / (gone + len(moved)) < 0.30


def test_equal_seeds_settle_equally_and_others_do_not():
    layout = draw_layout(1, 3)
    one, same, other = (settle(layout.barriers, GOALS[layout.start], np.random.default_rng(k)) for k in (3, 3, 4))
    assert (one == same).all()
    assert (one != other).any()
    assert (layout.barriers == draw_layout(1, 3).barriers).all()  # what was drawn is left as it was


def test_a_barrier_that_finds_no_free_place_is_left_out():
    drawn = draw_layout(1, 0).barriers
    depths, ways = exits(drawn)
    chosen = int(np.flatnonzero((depths > 0.10) & (depths < 0.13))[0])  # these never fly
    way_out = drawn[chosen] + np.arange(0.2, 3.2, 0.15)[:, None] * ways[chosen]
    far = np.array([(99.0, 99.0)])
    for others, car, stays in ((far, far[0], True), (way_out, far[0], False), (far, drawn[chosen], False)):
        settled = settle(np.concatenate([drawn[[chosen]], others]), car, np.random.default_rng(0))
        assert (settled[0, 1] < 50.0) == stays
