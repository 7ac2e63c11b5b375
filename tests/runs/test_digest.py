"""The digest of a run's state changes with each part of the state, and with nothing else."""

import json

import numpy as np
import pytest

from vlmsafe import train
from vlmsafe.runs.checkpoint import Checkpoint, load_checkpoint, path_of, save_checkpoint, saved_epochs
from vlmsafe.runs.digest import record_digest, state_digest

ARRAYS = {
    "networks": np.arange(6, dtype=np.float32).reshape(2, 3),
    "adam.mean": np.full((2, 3), 0.1, np.float32),
    "adam.steps": np.array([7, 7]),
    "normaliser.mean": np.array([0.5, -0.5]),
    "window": np.zeros((0, 4)),
    "scorer.rate": np.array([3.0]),
}
VALUES = {
    "trained": True, "shape": {"action": 1}, "row_files": {"epochs": 3}, "config": {"seed": 1}, "prompts": None,
    "multiplier": {"value": 0.1 + 0.2, "steps": 3}, "signal_multiplier": None, "calibration": None, "probe": [0.25],
}  # fmt: skip
PARTS = {"networks", "optimiser", "normaliser", "window", "multipliers", "signal"}


def changed(arrays=None, values=None):
    """The parts in which a changed state differs."""
    before, after = state_digest(ARRAYS, VALUES), state_digest(ARRAYS | (arrays or {}), VALUES | (values or {}))
    return {part for part in before.keys() | after.keys() if before.get(part) != after.get(part)}


def next_number(array):
    array = array.copy()
    array.flat[-1] = np.nextafter(array.flat[-1], np.inf, dtype=array.dtype)
    return array


def test_the_digest_has_one_entry_for_each_part_of_the_state():
    assert set(state_digest(ARRAYS, VALUES)) == PARTS


@pytest.mark.parametrize(
    ("name", "part"),
    [("networks", "networks"), ("adam.mean", "optimiser"), ("scorer.rate", "signal")],
)
def test_the_smallest_change_of_an_array_shows_in_its_part_alone(name, part):
    assert changed({name: next_number(ARRAYS[name])}) == {part}


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"adam.steps": np.array([7, 8])}, "optimiser"),
        ({"window": np.zeros((1, 4))}, "window"),
        ({"networks": ARRAYS["networks"].reshape(3, 2)}, "networks"),
        ({"networks": ARRAYS["networks"].astype(np.float64)}, "networks"),
    ],
)
def test_another_count_shape_or_type_shows(arrays, part):
    assert changed(arrays) == {part}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"multiplier": {"value": 0.3, "steps": 3}}, "multipliers"),
        ({"signal_multiplier": {"value": 0.0}}, "multipliers"),
        ({"calibration": {"median": 0.5}}, "signal"),
        ({"probe": [0.5]}, "signal"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_a_changed_value_shows_in_its_part_alone(values, part):
    assert changed(values=values) == {part}


def test_what_is_not_state_does_not_show():
    assert not changed(values={"row_files": {"epochs": 9}, "config": {"seed": 2}, "shape": {}, "trained": False})
    assert not changed(values={"a_setting_of_a_later_version": None})


def test_the_digest_does_not_depend_on_order_layout_or_byte_order_and_survives_a_file(tmp_path):
    arrays = {name: ARRAYS[name] for name in reversed(ARRAYS)}
    arrays["networks"] = np.asfortranarray(arrays["networks"])
    arrays["normaliser.mean"] = arrays["normaliser.mean"].astype(">f8")
    values = {name: VALUES[name] for name in reversed(VALUES)} | {"multiplier": {"steps": 3, "value": 0.1 + 0.2}}
    assert state_digest(arrays, values) == state_digest(ARRAYS, VALUES)
    loaded = load_checkpoint(save_checkpoint(tmp_path, Checkpoint(3, ARRAYS, VALUES), keep=1))
    assert loaded.digest() == state_digest(ARRAYS, VALUES)


def test_the_digest_of_this_state_is_the_same_on_every_machine_and_in_every_version():
    assert state_digest(ARRAYS, VALUES)["networks"] == "b7a76c156b1eee75"
    assert state_digest(ARRAYS, VALUES)["multipliers"] == "2866b77cd2aeed81"


def test_a_row_and_its_episodes_have_digests_of_their_own():
    row, episodes = {"epoch": 1, "episode_cost": 3.1, "digest": {}}, [{"epoch": 1, "cost": 0.1 + 0.2}]
    before = record_digest(row, episodes)
    assert record_digest(json.loads(json.dumps(row)), json.loads(json.dumps(episodes))) == before
    assert record_digest(row | {"digest": {"row": "1"}}, episodes) == before
    after = record_digest(row | {"episode_cost": 3.0}, episodes)
    assert (after["row"] != before["row"], after["episodes"]) == (True, before["episodes"])
    after = record_digest(row, [{"epoch": 1, "cost": 0.3}])
    assert (after["row"], after["episodes"] != before["episodes"]) == (before["row"], True)


def test_progress_has_a_digest_of_its_own_and_leaves_the_others_as_they_are_without_it():
    row, episodes = {"epoch": 1, "episode_cost": 3.1}, [{"epoch": 1, "cost": 0.3}]
    before = record_digest(row, episodes)
    with_progress = [{"epoch": 1, "cost": 0.3, "progress": {"distance": 2.0}}]
    after = record_digest(row | {"progress": {"distance": 2.0}}, with_progress)
    assert after == before | {"progress": after["progress"]}
    changed = record_digest(row | {"progress": {"distance": 2.5}}, with_progress)
    assert {part for part in after if after[part] != changed[part]} == {"progress"}


@pytest.mark.parametrize("settings", [{}, {"method": "ppo-lag-rnd", "learner": {"update_iters": 1}}])
def test_each_row_of_a_run_holds_the_digest_of_the_state_in_its_checkpoint(tmp_path, settings):
    run = train(env="speeding", total_steps=600, steps_per_epoch=200, quiet=True, run_dir=tmp_path / "run", **settings)
    rows = run.rows("epochs")
    for epoch in saved_epochs(run.checkpoints):
        state = load_checkpoint(path_of(run.checkpoints, epoch)).digest()
        episodes = [episode for episode in run.rows("episodes") if episode["epoch"] == epoch]
        assert rows[epoch - 1]["digest"] == record_digest(rows[epoch - 1], episodes) | state
        assert ("signal" in state) == bool(settings)
    assert len({row["digest"]["networks"] for row in rows}) == 3
