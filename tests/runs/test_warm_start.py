"""A run that starts from another one begins with its policy, says so, and can be resumed and repeated exactly."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from in_process import call

from vlmsafe import resume, train, verify
from vlmsafe.config.methods import config_from_yaml
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import read_yaml
from vlmsafe.errors import InputError
from vlmsafe.learners.networks import Stack
from vlmsafe.runs.checkpoint import Checkpoint, load_checkpoint, path_of
from vlmsafe.runs.warm_start import describe_start, read_start

SMALL = {"env": "speeding", "total_steps": 800, "steps_per_epoch": 200, "quiet": True,
         "checkpoint": {"keep": 9}, "learner": {"update_iters": 2, "hidden": (8, 8)}}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run whose policy others start from."""
    return train(**SMALL, seed=7, run_dir=str(tmp_path_factory.mktemp("source") / "run"))


def state(run, epoch):
    return load_checkpoint(path_of(run.checkpoints, epoch))


def warm(source, folder, **settings):
    return train(**{**SMALL, "init_from": str(source.path), **settings}, run_dir=str(folder))


@pytest.mark.parametrize("critics", [False, True])
def test_a_run_begins_with_the_policy_the_normaliser_and_on_request_the_critics(source, tmp_path, critics):
    run = warm(source, tmp_path / "run", init_critics=critics)
    fresh = train(**SMALL, run_dir=str(tmp_path / "fresh"))
    theirs, start, new = state(source, 4).arrays, state(run, 0).arrays, state(fresh, 0).arrays
    np.testing.assert_array_equal(start["networks"][0], theirs["networks"][0])
    np.testing.assert_array_equal(start["networks"][1:], (theirs if critics else new)["networks"][1:])
    for name in ("normaliser.count", "normaliser.mean", "normaliser.m2"):
        np.testing.assert_array_equal(start[name], theirs[name])
    assert not start["adam.steps"].any()
    assert state(run, 0).values["multiplier"]["value"] == 0.001


def test_each_seed_may_start_from_a_run_of_its_own(source, tmp_path):
    shutil.copytree(source.path, tmp_path / "clones" / "seed-7")
    run = train(
        **{**SMALL, "seed": 7, "init_from": str(tmp_path / "clones" / "seed-{seed}")}, run_dir=str(tmp_path / "r")
    )
    assert run.config.init_from == str(tmp_path / "clones" / "seed-7")


def test_a_schedule_of_the_deviation_begins_where_the_start_does(source, tmp_path):
    annealed = {**SMALL["learner"], "final_std": 0.1}
    run = warm(source, tmp_path / "run", init_std=0.4, learner=annealed)
    assert np.exp(state(run, 1).arrays["networks"][0][-1]) == pytest.approx(0.4)
    assert np.exp(state(run, 4).arrays["networks"][0][-1]) == pytest.approx(0.1)
    with pytest.raises(InputError, match="final_std is set, but init_std is not"):
        warm(source, tmp_path / "other", learner=annealed)


def test_the_deviation_may_be_another(source, tmp_path):
    run = warm(source, tmp_path / "run", init_std=0.15)
    policy = state(run, 0).arrays["networks"][0]
    assert np.exp(policy[-1]) == pytest.approx(0.15)
    np.testing.assert_array_equal(policy[:-1], state(source, 4).arrays["networks"][0][:-1])


def test_the_mean_may_be_shifted(source, tmp_path):
    run = warm(source, tmp_path / "run", init_mean=-0.2)
    ours, theirs = (Stack(one.shape, one.arrays["networks"]).policy() for one in (state(run, 0), state(source, 4)))
    observation = np.ones(len(theirs.layers[0][0][0]), np.float32)
    np.testing.assert_allclose(ours.mean(observation), theirs.mean(observation) - 0.2, rtol=1e-5)
    with pytest.raises(InputError, match="init_mean has 3 values"):
        warm(source, tmp_path / "other", init_mean=(0.0, 0.0, 0.1))
    assert not (tmp_path / "other").exists()


def test_a_run_records_what_it_took_with_a_digest(source, tmp_path):
    run = warm(source, tmp_path / "run", init_critics=True)
    recorded = read_yaml(run.path / "config.yaml")["recorded"]["start"]
    assert recorded["source"] == str(source.path.absolute()) == run.config.init_from
    assert (recorded["epoch"], recorded["env"], recorded["method"]) == (4, "speeding", "ppo-lag")
    assert recorded["taken"] == ["policy", "reward_critic", "cost_critic", "normaliser"]
    theirs = state(source, 4).digest()
    assert recorded["digest"] == {part: theirs[part] for part in ("networks", "normaliser")}


def test_it_resumes_exactly_and_can_be_verified_and_repeated_when_its_source_is_gone(source, tmp_path):
    gone = shutil.copytree(source.path, tmp_path / "gone")
    settings = {**SMALL, "init_from": str(gone)}
    whole, cut = (train(**settings, run_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    shutil.rmtree(gone)
    for epoch in (1, 2, 3, 4):
        path_of(cut.checkpoints, epoch).unlink()
    resume(cut.path, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (whole.path / record).read_bytes() == (cut.path / record).read_bytes()
    result = verify(whole, epochs=2)
    assert not result.differences
    assert result.obstacle is None


def test_a_checkpoint_file_is_a_start_too(source, tmp_path):
    run = train(**{**SMALL, "init_from": str(path_of(source.checkpoints, 2))}, run_dir=str(tmp_path / "run"))
    np.testing.assert_array_equal(state(run, 0).arrays["networks"][0], state(source, 2).arrays["networks"][0])


def test_a_policy_of_another_method_gives_the_critics_that_both_have(source, tmp_path):
    run = warm(source, tmp_path / "run", method="ppo", init_critics=True, learner={"update_iters": 1, "hidden": (8, 8)})
    np.testing.assert_array_equal(state(run, 0).arrays["networks"], state(source, 4).arrays["networks"][:2])


def test_the_settings_of_a_run_start_an_equal_run(source, tmp_path):
    run = warm(source, tmp_path / "run")
    again = train(config_from_yaml(run.path / "config.yaml").__class__(
        **{**vars(config_from_yaml(run.path / "config.yaml")), "run_dir": tmp_path / "again"}), quiet=True)  # fmt: skip
    assert (run.path / "epochs.jsonl").read_bytes() == (again.path / "epochs.jsonl").read_bytes()


def test_another_level_or_variant_is_a_start_and_is_recorded_and_another_world_is_refused(source, tmp_path):
    found = state(source, 4)
    settings = {**found.values["config"], "env": "metadrive-easy:ends"}
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(Checkpoint(4, found.arrays, {**found.values, "config": settings}).to_bytes())
    start = read_start(TrainConfig(env="metadrive-medium", init_from=str(file)))
    assert start.values["origin"]["env"] == "metadrive-easy:ends"
    assert "trained on metadrive-easy:ends, and this run is on metadrive-medium" in describe_start(start)
    assert "world" not in read_start(TrainConfig(env="metadrive-easy:ends", init_from=str(file))).values["origin"]
    with pytest.raises(InputError, match="'metadrive-easy:ends', which is another world than 'bullet-car-reach'"):
        read_start(TrainConfig(env="bullet-car-reach", init_from=str(file)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--learner.hidden", "16", "8"), "hidden layers of 8 8; this run on 'speeding' has 16 8; pass --learner.hid"),
        (("--env", "gym:broken_envs:Walk-v0", "--learner.hidden", "8", "8"), "a policy with observations of length 2"),
        (("--no-normalise-observations", "--learner.hidden", "8", "8"), "normalise_observations is True; expected"),
    ],
)  # fmt: skip
def test_a_start_that_does_not_fit_is_one_line_and_writes_nothing(source, tmp_path, monkeypatch, words, message):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")
    small = ("--total-steps", "400", "--steps-per-epoch", "200", "--env", "speeding", "--run-dir", tmp_path / "run")
    answer = call("train", "--init-from", source.path, *small, *words)
    assert answer.returncode == 2
    assert len(answer.stderr.strip().splitlines()) == 1
    assert message in answer.stderr
    assert not (tmp_path / "run").exists()


def test_a_source_that_is_no_trained_run_is_refused(source, tmp_path):
    untrained = shutil.copytree(source.path, tmp_path / "untrained")
    for epoch in (1, 2, 3, 4):
        path_of(untrained / "checkpoints", epoch).unlink()
    with pytest.raises(InputError, match="holds only an untrained start"):
        train(**{**SMALL, "init_from": str(untrained)}, run_dir=str(tmp_path / "run"))
    with pytest.raises(InputError, match="is not a run directory"):
        train(**{**SMALL, "init_from": str(tmp_path / "nowhere")}, run_dir=str(tmp_path / "run"))
    for lonely in ({"init_critics": True}, {"init_std": 0.1}, {"init_mean": 0.1}):
        with pytest.raises(InputError, match="is set, but init_from is not"):
            train(**{**SMALL, **lonely}, run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
