"""Every setting of the paper trains with the signal that ships, and resumes exactly."""

import importlib.util
import shutil

import numpy as np
import pytest

from vlmsafe import resume, train
from vlmsafe.envs.registry import ENVS
from vlmsafe.runs.checkpoint import load_checkpoint, path_of

SETTINGS = [name for name, spec in ENVS.items() if spec.package is not None]


def test_the_settings_are_the_seven_of_the_paper():
    assert SETTINGS == [
        "metadrive-easy", "metadrive-medium", "metadrive-hard", "bullet-car-reach",
        "formula-one-l0", "formula-one-l1", "formula-one-l2",
    ]  # fmt: skip


@pytest.mark.parametrize("env", SETTINGS)
def test_the_gated_method_trains_with_the_embedded_scorer_and_resumes_exactly(tmp_path, env):
    if importlib.util.find_spec(str(ENVS[env].package)) is None:
        pytest.skip(f"{ENVS[env].package} is not installed")
    signal = {"every": 4, "calibration": {"frames": 8, "episodes": 1}}
    whole = train(
        env=env, method="vlm-ppo-lag-conf", total_steps=120, steps_per_epoch=60, run_dir=str(tmp_path / "whole"),
        learner={"update_iters": 2}, signal=signal, quiet=True,
    )  # fmt: skip
    assert whole.config.signal.scorer == "embedded"
    rows = whole.rows("epochs")
    assert len(rows) == 2
    assert all(0.0 < row["kappa"] < 1.0 and row["margin"] != 0.0 for row in rows)
    cut = tmp_path / "cut"
    shutil.copytree(whole.path, cut)
    path_of(cut / "checkpoints", 2).unlink()  # as if it had been killed in its second epoch
    resumed = resume(cut, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (whole.path / record).read_bytes() == (cut / record).read_bytes()
    a, b = (load_checkpoint(path_of(run.checkpoints, 2)) for run in (whole, resumed))
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)
