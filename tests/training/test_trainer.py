"""The training loop keeps its promises from one epoch to the next."""

import json
from pathlib import Path

import numpy as np
import pytest

from vlmsafe import TrainConfig, resume, train
from vlmsafe.analysis.multiplier_replay import rebuild
from vlmsafe.config.methods import METHODS
from vlmsafe.errors import InputError, RunError
from vlmsafe.runs.checkpoint import load_checkpoint, path_of
from vlmsafe.runs.run import Run

SMALL = {"env": "speeding", "total_steps": 1600, "steps_per_epoch": 400, "learner": {"update_iters": 2}, "quiet": True}


def final(run):
    return load_checkpoint(path_of(run.checkpoints, run.config.epochs))


def test_equal_seeds_give_equal_runs_and_other_seeds_other_ones(tmp_path):
    runs = {name: train(**SMALL, seed=seed, run_dir=str(tmp_path / name)) for name, seed in
            {"one": 1, "same": 1, "other": 2}.items()}  # fmt: skip
    networks = {name: final(run).arrays["networks"] for name, run in runs.items()}
    np.testing.assert_array_equal(networks["one"], networks["same"])
    assert not np.array_equal(networks["one"], networks["other"])


@pytest.mark.parametrize("settings", [{"num_envs": 2}, {"fresh_workers": "always"}, {"cost_window": "epoch"},
                                      {"method": "ppo"}, {"normalise_observations": False}, {"action_repeat": 3},
                                      {"observe_changes": 2},
                                      {"observation_clip": 2.0, "multiplier": {"warmup_epochs": 3}},
                                      {"observation_floor": 0.3},
                                      {"learner": {"update_iters": 2, "critic_warmup_epochs": 3, "std_floor": 0.9,
                                                   "scale_rewards": True, "value_clip": 0.2, "output_gain": 0.01,
                                                   "lr_schedule": "cosine", "lr_floor": 0.1, "critic_lr_decay": True,
                                                   "initial_mean": 0.5, "initial_std": 0.8}},
                                      {"learner": {"initial_std": 0.9, "final_std": 0.3}}])  # fmt: skip
def test_resumed_run_equals_uninterrupted_run(tmp_path, settings):
    settings = SMALL | settings
    whole, cut = (train(**settings, run_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    for epoch in (3, 4):  # as if the run had been killed in its third epoch, the rows of later ones half written
        path_of(cut.checkpoints, epoch).unlink()
    resume(cut.path, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (whole.path / record).read_bytes() == (cut.path / record).read_bytes()
    a, b = final(whole), final(cut)
    assert {k: v for k, v in a.values.items() if k != "row_files"} == {
        k: v for k, v in b.values.items() if k != "row_files"
    }
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)


def test_a_damaged_journal_does_not_keep_a_run_from_resuming(tmp_path, capsys):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    path_of(run.checkpoints, run.config.epochs).unlink()
    with (run.path / "events.jsonl").open("a") as file:
        file.write("not a row\n")
    assert resume(run.path).status() == "finished"
    shown = capsys.readouterr()
    assert "not known which code computed the run" in shown.out + shown.err


def small_signal(method):
    """The method's own signal with a small deterministic scorer in place of a model."""
    scorer = METHODS[method].signal.scorer
    if scorer in ("none", "rnd"):
        return {}
    return {"scorer": "python:frame_scorer:FrameScorer", "prompts": "metadrive", "calibration": {"frames": 40}}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_resumes_exactly(tmp_path, method):
    settings = {**SMALL, "total_steps": 800, "method": method, "learner": {}, "signal": small_signal(method)}
    whole, cut = (train(**settings, run_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    path_of(cut.checkpoints, 2).unlink()
    resume(cut.path, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (whole.path / record).read_bytes() == (cut.path / record).read_bytes()
    a, b = final(whole), final(cut)
    assert a.values == {**b.values, "row_files": a.values["row_files"]}
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)
    start = load_checkpoint(path_of(whole.checkpoints, 0)).arrays["networks"]
    assert (a.arrays["networks"] != start).any(axis=1).all(), "every network has learnt"


@pytest.mark.parametrize(
    "method", ["cpo", "focops", "cppo-pid", "vlm-ppo-lag-conf-calibrated", "cpo-clg", "qwen2-vl-conf"]
)
def test_methods_of_every_kind_train_and_resume_exactly_on_metadrive(tmp_path, method):
    pytest.importorskip("metadrive")
    settings = {"env": "metadrive-easy", "total_steps": 200, "steps_per_epoch": 100, "method": method, "quiet": True,
                "signal": small_signal(method)}  # fmt: skip
    whole, cut = (train(**settings, run_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    path_of(cut.checkpoints, 2).unlink()
    resume(cut.path, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (whole.path / record).read_bytes() == (cut.path / record).read_bytes()
    a, b = final(whole), final(cut)
    assert a.values["calibration"] == b.values["calibration"]
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)


def test_multiplier_is_updated_before_the_policy_from_the_windowed_episode_cost(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"), cost_window=30)
    episodes = [row for row in run.rows("episodes") if row["finished"]]
    for row in run.rows("epochs"):
        so_far = [episode["cost"] for episode in episodes if episode["epoch"] <= row["epoch"]]
        assert row["episode_cost"] == pytest.approx(np.mean(so_far[-30:]))
        assert row["cost_gap"] == pytest.approx(row["episode_cost"] - row["budget"])
    # Adam's first step is its learning rate, upwards because the cost exceeds the budget.
    assert run.rows("epochs")[0]["multiplier"] == pytest.approx(0.001 + 0.035, abs=1e-6)


def test_multiplier_keeps_its_value_while_it_warms_up(tmp_path):
    plain = train(**SMALL, run_dir=str(tmp_path / "plain"))
    held = train(**SMALL, multiplier={"warmup_epochs": 2}, run_dir=str(tmp_path / "held"))
    assert [row["multiplier"] for row in held.rows("epochs")[:2]] == [0.001, 0.001]
    assert held.rows("epochs")[0]["cost_gap"] == plain.rows("epochs")[0]["cost_gap"]
    # Its first move is as large as that of a multiplier that moves at once: the moments have waited too.
    for row in (held.rows("epochs")[2], plain.rows("epochs")[0]):
        assert row["multiplier"] == pytest.approx(0.036, abs=1e-9)
    rebuilt = rebuild(held.rows("epochs"), held.config.multiplier)
    np.testing.assert_allclose(rebuilt, [row["multiplier"] for row in held.rows("epochs")])


def test_the_policy_stays_while_the_critics_are_fitted(tmp_path):
    learner = {"update_iters": 2, "critic_warmup_epochs": 2}
    run = train(**SMALL | {"learner": learner, "checkpoint": {"keep": 9}}, run_dir=str(tmp_path / "run"))
    start, *later = (load_checkpoint(path_of(run.checkpoints, epoch)).arrays["networks"] for epoch in (0, 1, 2, 3))
    assert [np.array_equal(one[0], start[0]) for one in later] == [True, True, False]
    assert all((one[1:] != start[1:]).any(axis=1).all() for one in later)
    assert [row["kl"] > 0.0 for row in run.rows("epochs")] == [False, False, True, True]


def test_scaled_rewards_reach_the_critic_and_no_record(tmp_path):
    plain, scaled = (
        train(**SMALL | {"learner": {"update_iters": 2, "scale_rewards": on}}, run_dir=str(tmp_path / str(on)))
        for on in (False, True)
    )
    first, other = plain.rows("epochs")[0], scaled.rows("epochs")[0]
    assert first["env_return"] == other["env_return"]
    assert other["reward_critic_loss"] < first["reward_critic_loss"]
    assert other["cost_critic_loss"] == pytest.approx(first["cost_critic_loss"], rel=0.1)


def test_the_deviation_falls_in_a_straight_line_to_its_last_epoch(tmp_path):
    learner = {"update_iters": 1, "initial_std": 0.8, "final_std": 0.2}
    run = train(**SMALL | {"learner": learner}, run_dir=str(tmp_path / "run"))
    entropies = [row["entropy"] for row in run.rows("epochs")]
    stds = np.exp(np.array(entropies) - 0.5 - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(stds, [0.8, 0.6, 0.4, 0.2], rtol=1e-6)


def test_values_per_action_must_be_as_many_as_there_are_actions(tmp_path):
    with pytest.raises(InputError, match=r"learner.initial_std has 3 values, but 'speeding' has 1 actions"):
        train(**SMALL | {"learner": {"initial_std": (0.1, 0.2, 0.3)}}, run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_epoch_window_counts_only_the_epochs_own_episodes(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"), cost_window="epoch")
    for row in run.rows("epochs"):
        assert row["episode_cost"] == pytest.approx(row["epoch_cost"])


def test_every_episode_is_recorded_with_its_scenario(tmp_path):
    run = train(**{**SMALL, "steps_per_epoch": 200, "num_envs": 2}, run_dir=str(tmp_path / "run"))
    episodes = run.rows("episodes")
    assert sum(row["length"] for row in episodes) == 1600
    assert {row["worker"] for row in episodes} == {0, 1}
    assert all(0 <= row["scenario"] < 10_000 for row in episodes)
    assert len({row["scenario"] for row in episodes}) > 60


def test_ppo_has_no_multiplier_and_no_cost_critic(tmp_path):
    run = train(**SMALL, method="ppo", run_dir=str(tmp_path / "run"))
    row = run.rows("epochs")[-1]
    assert row["multiplier"] is None
    assert row["cost_critic_loss"] is None
    assert row["episode_cost"] is not None
    assert final(run).arrays["networks"].shape[0] == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_on_an_environment_without_cost_ppo_lagrangian_equals_ppo_seed_by_seed(tmp_path, monkeypatch, seed):
    """With lambda_0 = 0 and no cost the multiplier stays zero, and nothing else tells the two methods apart."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")
    settings = {**SMALL, "env": "gym:broken_envs:Walk-v0", "seed": seed}
    ppo = train(**settings, method="ppo", run_dir=str(tmp_path / "ppo"))
    lagrangian = train(**settings, method="ppo-lag-unmatched", run_dir=str(tmp_path / "lag"))
    a, b = final(ppo).arrays["networks"], final(lagrangian).arrays["networks"]
    np.testing.assert_array_equal(a, b[:2])
    assert final(lagrangian).values["multiplier"]["value"] == 0.0


@pytest.mark.parametrize("seed", [0, 1])
def test_on_an_environment_without_cost_the_multiplier_term_changes_nothing(tmp_path, monkeypatch, seed):
    """PPOLag-Decoupled equals VLMPPOLag seed by seed: both multipliers are at zero after the first epoch and stay."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")
    settings = {**SMALL, "env": "gym:broken_envs:Walk-v0", "seed": seed}
    runs = {
        method: train(**settings, method=method, signal=small_signal(method), run_dir=str(tmp_path / method))
        for method in ("ppo-lag-decoupled", "vlm-ppo-lag")
    }
    a, b = (final(run).arrays for run in runs.values())
    np.testing.assert_array_equal(a["networks"], b["networks"])
    terms = [row["signal_term"] for row in runs["vlm-ppo-lag"].rows("epochs")]
    assert all(term != 0.0 for term in terms), "the term was there and did nothing"
    assert [row["bonus"] for row in runs["vlm-ppo-lag"].rows("epochs")] != [0.0] * 4


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"), checkpoint={"every": 1, "keep": 2})
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "epoch-00003.safetensors",
        "epoch-00004.safetensors",
    ]


def test_config_of_a_run_starts_an_equal_run(tmp_path):
    from vlmsafe.config.methods import config_from_yaml

    first = train(**SMALL, seed=5, run_dir=str(tmp_path / "first"))
    config = config_from_yaml(first.path / "config.yaml")
    assert config.run_dir is None
    second = train(TrainConfig(**{**vars(config), "run_dir": tmp_path / "second"}), quiet=True)
    np.testing.assert_array_equal(final(first).arrays["networks"], final(second).arrays["networks"])


def test_run_directory_can_be_moved(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "here"))
    path_of(run.checkpoints, 4).unlink()
    run.path.rename(tmp_path / "there")
    assert resume(tmp_path / "there", quiet=True).status() == "finished"
    assert not (tmp_path / "here").exists()


def test_recorded_surroundings_name_versions_and_hardware(tmp_path):
    import yaml

    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    recorded = yaml.safe_load((run.path / "config.yaml").read_text())["recorded"]
    assert recorded["packages"]["numpy"] == np.__version__
    assert recorded["cores"] >= 1
    assert Run.open(run.path).config == run.config


def test_row_file_shorter_than_its_checkpoint_says_is_an_error(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    (run.path / "epochs.jsonl").write_text("")
    path_of(run.checkpoints, 4).unlink()
    with pytest.raises(RunError, match="was damaged"):
        resume(run.path, quiet=True)


def test_tensorboard_events_are_written_and_hold_the_epochs(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(**SMALL, run_dir=str(tmp_path / "run"), tensorboard=True)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("train/episode_cost")]
    assert logged == pytest.approx([row["episode_cost"] for row in run.rows("epochs")], rel=1e-6)


def test_progress_is_in_the_rows_on_the_display_and_in_tensorboard(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = SMALL | {"env": "braking", "quiet": False}
    run = train(**settings, run_dir=str(tmp_path / "run"), tensorboard=True)
    rows, episodes = run.rows("epochs"), run.rows("episodes")
    distances = [row["progress"]["distance"] for row in rows]
    for row, distance in zip(rows, distances, strict=True):
        own = [one for one in episodes if one["epoch"] == row["epoch"] and one["finished"]]
        assert distance == pytest.approx(np.mean([one["progress"]["distance"] for one in own]))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert all(f"  distance {distance:.2f}  " in line for distance, line in zip(distances, lines, strict=True))
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("progress/distance")] == pytest.approx(distances, rel=1e-6)


def test_config_and_settings_together_are_refused():
    with pytest.raises(TypeError):
        train(TrainConfig(), env="speeding")
    with pytest.raises(InputError, match="budget"):
        train(env="speeding", budget=-1)


def test_rows_are_plain_json(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    for name in ("epochs", "episodes", "timing", "events"):
        for line in (run.path / f"{name}.jsonl").read_text().splitlines():
            json.loads(line)
