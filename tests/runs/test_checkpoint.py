"""Checkpoints are whole or refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.errors import RunError
from vlmsafe.runs.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    path_of,
    save_checkpoint,
    saved_epochs,
)


def example(epoch=3):
    arrays = {"networks": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array([7], np.int64)}
    return Checkpoint(epoch, arrays, {"multiplier": {"value": 0.1 + 0.2}, "trained": True})


def test_checkpoint_round_trip_is_exact(tmp_path):
    path = save_checkpoint(tmp_path, example(), keep=3)
    loaded = load_checkpoint(path)
    assert loaded.epoch == 3
    assert loaded.values == example().values
    for name, array in example().arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array)
        assert loaded.arrays[name].dtype == array.dtype


@settings(max_examples=40, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(tmp_path_factory, where, bit):
    folder = tmp_path_factory.mktemp("checkpoints")
    path = save_checkpoint(folder, example(), keep=3)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"damaged|format"):
        load_checkpoint(path)


def test_pickled_content_is_not_executed(tmp_path):
    import pickle

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a checkpoint was unpickled",))

    path_of(tmp_path, 1).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(RunError, match="damaged"):
        load_checkpoint(path_of(tmp_path, 1))


def test_newest_readable_checkpoint_is_found_and_damage_reported(tmp_path):
    for epoch in (1, 2, 3):
        save_checkpoint(tmp_path, example(epoch), keep=5)
    path_of(tmp_path, 3).write_bytes(b"")
    checkpoint, problems = newest_checkpoint(tmp_path)
    assert checkpoint.epoch == 2
    assert len(problems) == 1
    assert "epoch-00003" in problems[0]
    for epoch in (1, 2):
        path_of(tmp_path, epoch).write_bytes(b"")
    with pytest.raises(RunError, match=r"epoch-00003.*epoch-00002.*epoch-00001"):
        newest_checkpoint(tmp_path)


def test_oldest_checkpoints_are_dropped_and_strangers_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for epoch in range(5):
        save_checkpoint(tmp_path, example(epoch), keep=2)
    assert saved_epochs(tmp_path) == [3, 4]
    assert (tmp_path / "notes.txt").exists()
