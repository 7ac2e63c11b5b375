"""Bad input gets one clear line and a non-zero exit code, and loses nothing."""

import dataclasses
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import call
from processes import COMMAND, vlmsafe

from vlmsafe.errors import EXIT_BAD_INPUT, EXIT_FAILED
from vlmsafe.runs.run import Run

HERE = Path(__file__).parent
SMALL = ("--total-steps", "400", "--steps-per-epoch", "200", "--learner.update-iters", "1", "--quiet")


def assert_one_line(answer, code, *words):
    lines = answer.stderr.strip().splitlines()
    assert answer.returncode == code, answer.stderr
    assert len(lines) == 1, answer.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def train(tmp_path, *arguments):
    return call("train", *arguments, "--run-dir", tmp_path / "run")


@pytest.fixture
def broken_envs(monkeypatch):
    """Makes environments that misbehave importable, as `gym:broken_envs:<id>`, here and in worker processes."""
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture
def run(tmp_path):
    """A finished run."""
    assert train(tmp_path, "--env", "speeding", *SMALL).returncode == 0
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--env", "metadrive-hrad"), ("environment 'metadrive-hrad'", "did you mean 'metadrive-hard'?", "speeding")),
        (("--env", "speeding", "--method", "ppolag"), ("unknown method 'ppolag'", "did you mean 'ppo-lag'?")),
        (("--env", "speeding", "--budget", "-1"), ("budget is -1.0", "finite and 0 or greater")),
        (("--env", "speeding", "--num-envs", "3"), ("num_envs is 3", "does not divide", "20000", "such as 2")),
        (("--env", "speeding", "--total-steps", "30000"), ("total_steps is 30000", "multiple of")),
        (("--env", "speeding", "--learner.algorithm", "ppo"), ("learner.algorithm", "another --method")),
        (("--env", "gym:NoSuchThing-v0"), ("unknown Gymnasium environment 'NoSuchThing-v0'",)),
        (("--env", "gym:no_such_module:X-v0"), ("no_such_module",)),
        (("--env", "gym:CartPole-v1"), ("Discrete(2)", "Box")),
        (("--config", "missing.yaml"), ("cannot read missing.yaml",)),
        (("--config", "drivr"), ("unknown recipe 'drivr'", "did you mean 'driver'?", "driver-warm", "a path")),
        (("--resume", "nowhere"), ("nowhere is not a run directory",)),
        (("--resume", "nowhere", "--seed", "1"), ("drop --seed",)),
    ],
)  # fmt: skip
def test_bad_request_is_one_line_and_starts_nothing(tmp_path, arguments, words):
    answer = call("train", *arguments, *(() if "--resume" in arguments else ("--run-dir", tmp_path / "run")))
    assert_one_line(answer, EXIT_BAD_INPUT, *words)
    assert not (tmp_path / "run").exists()


def test_unknown_command_and_option_exit_with_the_usage_code(tmp_path):
    assert_one_line(vlmsafe("trian"), EXIT_BAD_INPUT, "unknown command 'trian'", "did you mean 'train'?")
    answer = vlmsafe("train", "--no-such-option", "1")
    assert answer.returncode == EXIT_BAD_INPUT
    assert "no-such-option" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_option_without_its_value_exits_with_the_usage_code():
    for option in ("--resume", "--method", "--seed"):
        answer = call("train", option)
        assert answer.returncode == EXIT_BAD_INPUT, option
        assert "Traceback" not in answer.stderr


def test_yaml_with_an_unknown_setting_names_the_nearest(tmp_path):
    (tmp_path / "c.yaml").write_text("env: speeding\nlearner:\n  updat_iters: 3\n")
    answer = call("train", "--config", tmp_path / "c.yaml")
    assert_one_line(answer, EXIT_BAD_INPUT, "learner.updat_iters", "did you mean 'learner.update_iters'?")


def test_missing_simulator_is_one_line_with_the_command_that_installs_it(tmp_path):
    code = "import sys; sys.modules['metadrive'] = None; from vlmsafe.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", code, "train", "--env", "metadrive-easy", "--run-dir", str(tmp_path / "run")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert_one_line(answer, EXIT_BAD_INPUT, "metadrive", "pip install 'metadrive-simulator")
    assert not (tmp_path / "run").exists()


def test_existing_run_is_not_overwritten(tmp_path, run):
    before = (run / "epochs.jsonl").read_bytes()
    answer = train(tmp_path, "--env", "speeding", *SMALL)
    assert_one_line(answer, EXIT_BAD_INPUT, "already holds a run (epoch 2 of 2)", "--resume")
    assert (run / "epochs.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("NanReward-v0", ("reward nan", "step 7")),
        ("NoCost-v0", ("info['cost'] is missing",)),
        ("Raises-v0", ("RuntimeError", "the physics engine diverged")),
        ("CrashAlways-v0", ("died 3 times", "exit code 3", "2 restarts")),
    ],
)
def test_an_environment_that_fails_at_once_is_one_line_and_leaves_nothing(tmp_path, broken_envs, env, words):
    answer = train(tmp_path, "--env", f"gym:broken_envs:{env}", "--max-worker-restarts", "2", *SMALL)
    if env == "Raises-v0":  # a traceback through the user's own code comes first
        assert answer.stderr.startswith("Traceback")
        answer = dataclasses.replace(answer, stderr=answer.stderr.splitlines()[-1])
    assert_one_line(answer, EXIT_FAILED, *words)
    assert not (tmp_path / "run").exists()


def test_numbers_that_diverge_at_once_are_one_line_and_the_run_can_be_resumed(tmp_path, broken_envs):
    words = ("NaN or infinite in epoch 1", "extreme size")
    assert_one_line(train(tmp_path, "--env", "gym:broken_envs:HugeReward-v0", *SMALL), EXIT_FAILED, *words)
    run = Run.open(tmp_path / "run")
    assert run.status() == "untrained"
    assert run.events()[-1]["event"] == "failed"
    assert_one_line(call("train", "--resume", run.path, "--quiet"), EXIT_FAILED, *words)


def test_crashed_worker_is_restarted_and_the_log_says_so(tmp_path):
    arguments = ("--env", "gym:broken_envs:CrashOnce-v0", *SMALL)
    path = {"PYTHONPATH": str(HERE), "CRASH_FLAG": str(tmp_path / "flag")}
    answer = vlmsafe("train", *arguments, "--run-dir", tmp_path / "run", env=path)
    assert answer.returncode == 0, answer.stderr
    crashes = [event for event in Run.open(tmp_path / "run").events() if event["event"] == "worker crashed"]
    assert len(crashes) == 1
    assert crashes[0]["cause"] == "killed by SIGSEGV"
    # The share was collected again from its beginning, so the crash left no trace in what was learned.
    calm = vlmsafe("train", *arguments, "--run-dir", tmp_path / "calm", env=path)
    assert calm.returncode == 0
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (tmp_path / "run" / record).read_bytes() == (tmp_path / "calm" / record).read_bytes()


def test_epoch_without_a_finished_episode_is_reported_and_leaves_the_multiplier(tmp_path, broken_envs):
    answer = train(tmp_path, "--env", "gym:broken_envs:Endless-v0", *SMALL[:-1])
    assert answer.returncode == 0, answer.stderr
    assert "no episode finished" in answer.stderr
    rows = Run.open(tmp_path / "run").rows("epochs")
    assert [row["episodes"] for row in rows] == [0, 0]
    assert [row["multiplier"] for row in rows] == [0.001, 0.001]
    assert rows[0]["episode_cost"] is None


def _limit_file_size(size):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_refused_write_is_one_line_and_the_run_can_be_resumed(tmp_path):
    """A disk that takes no more bytes: the kernel refuses writes beyond a limit, as a full disk would."""
    run = tmp_path / "run"
    arguments = ["--env", "speeding", "--total-steps", "8000", "--steps-per-epoch", "400", "--quiet",
                 "--learner.update-iters", "1"]  # fmt: skip
    answer = subprocess.run(
        [*COMMAND, "train", *arguments, "--run-dir", str(run)],
        capture_output=True, text=True, preexec_fn=_limit_file_size(130_000), timeout=600.0,
    )  # fmt: skip
    assert_one_line(answer, EXIT_FAILED, "cannot write", "File too large", "free some space")
    assert not list((run / "checkpoints").glob(".*")), "a half-written file was left"
    assert call("train", "--resume", run, "--quiet").returncode == 0
    assert call("train", *arguments, "--run-dir", tmp_path / "whole").returncode == 0
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (run / record).read_bytes() == (tmp_path / "whole" / record).read_bytes()


def test_full_disk_is_one_line_and_the_run_can_be_resumed(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("mounting a small disk needs privileges that are missing here")
    try:
        run = disk / "run"
        answer = vlmsafe("train", "--env", "speeding", "--total-steps", "40000", "--steps-per-epoch", "400",
                         "--learner.update-iters", "1", "--quiet", "--run-dir", run)  # fmt: skip
        assert_one_line(answer, EXIT_FAILED, "cannot write", "No space left on device", "free some space")
        done = len(Run.open(run).rows("epochs"))
        assert 0 < done < 100
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert call("train", "--resume", run, "--quiet").returncode == 0
        assert [row["epoch"] for row in Run.open(run).rows("epochs")] == list(range(1, 101))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_untrained_checkpoint_is_marked_and_not_evaluated_by_accident(tmp_path, broken_envs):
    run = tmp_path / "run"
    train(tmp_path, "--env", "gym:broken_envs:HugeReward-v0", *SMALL)
    refused = call("evaluate", run)
    assert_one_line(refused, EXIT_BAD_INPUT, "untrained start", "--allow-untrained")
    assert "untrained" in call("runs", tmp_path).stdout
    assert Run.open(run).checkpoint()[0].trained is False


def test_edited_configuration_cannot_be_resumed(run):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("gamma: 0.99", "gamma: 0.5").replace("steps: 400", "steps: 4000"))
    answer = call("train", "--resume", run)
    assert_one_line(answer, EXIT_FAILED, "was changed", "learner.gamma was 0.99, is 0.5", "total_steps was 400")


def test_damaged_run_does_not_hide_the_others(tmp_path, run, monkeypatch):
    for name in ("good", "bad"):
        shutil.copytree(run, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path / "runs")
    with Path("bad/epochs.jsonl").open("a") as file:
        file.write("not a row\n")
    Path("good/checkpoints/epoch-00001-backup.safetensors").write_text("a stranger")
    answer = call("runs", ".")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("finished") == 2
    assert "expected a row of JSON in line 3" in answer.stderr


def test_environment_in_the_current_directory_is_found_by_the_installed_command(tmp_path):
    (tmp_path / "my_envs.py").write_text((HERE / "broken_envs.py").read_text())
    command = Path(sys.executable).with_name("vlmsafe")
    answer = subprocess.run(
        [command, "train", "--env", "gym:my_envs:Walk-v0", *SMALL, "--run-dir", "run"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr


def test_closing_the_output_silences_a_command_and_never_stops_it(tmp_path):
    def unread(*words):
        command = " ".join(map(str, [*COMMAND, *words]))
        shell = ["bash", "-o", "pipefail", "-c", f"{command} 2>&1 | true"]
        subprocess.run(shell, check=True, capture_output=True, cwd=HERE)

    unread("train", "--env", "gym:broken_envs:Chatty-v0", *SMALL[:-1], "--run-dir", tmp_path / "run")
    unread("evaluate", tmp_path / "run", "--episodes", 2)
    run = Run.open(tmp_path / "run")
    assert run.status() == "finished"
    assert run.evaluation_path("held-out").is_file()


@pytest.mark.parametrize(("option", "value"), [("--episodes", "0"), ("--processes", "-1"), ("--protocol", "paper")])
def test_evaluation_that_cannot_be_done_is_one_line(run, option, value):
    assert_one_line(call("evaluate", run, option, value), EXIT_BAD_INPUT)
