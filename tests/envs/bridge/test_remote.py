"""An environment in another interpreter is the same environment, and ends as a worker does."""

import dataclasses
import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from in_process import InProcess
from other_python import GYMNASIUM, MODULE, made_python, write_module

from vlmsafe import resume, train
from vlmsafe.envs.registry import env_spec
from vlmsafe.envs.vector.pool import EnvironmentDied, EnvRecipe, WorkerCrash, WorkerError, WorkerPool
from vlmsafe.errors import EXIT_BAD_INPUT, EnvironmentFailure, InputError, RunError
from vlmsafe.runs.checkpoint import saved_epochs
from vlmsafe.runs.versions import other_code
from vlmsafe.studies.execute import execute
from vlmsafe.studies.reuse import equal_run
from vlmsafe.studies.schema import parse_study
from vlmsafe.training.collect import CollectTask, RandomPolicy, Share, collect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def other(pytestconfig: pytest.Config) -> Path:
    return made_python(Path(pytestconfig.cache.mkdir("other-python")))


@pytest.fixture
def named(tmp_path, monkeypatch, other) -> Callable[..., str]:
    """The name of an environment of the module, there or in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    prefix = write_module(tmp_path)
    yield lambda name="Walk-v0", here=False: f"{prefix}{name}" + ("" if here else f"@{other}")
    for name in [name for name in gymnasium.registry if name.startswith("Walk")]:
        del gymnasium.registry[name]
    sys.modules.pop("walking", None)


def trajectory(env: Any) -> list[Any]:
    """Two episodes in numbers, with everything that may cross."""
    found: list[Any] = []
    for seed in (3, 4):
        observation, _ = env.reset(seed=seed)
        expert = env.expert()
        found.append(observation.tolist())
        for number in range(30):
            action = np.array([np.sin(number)], np.float32)
            observation, reward, terminated, truncated, info = env.step(action)
            found += [observation.tolist(), observation.dtype, reward, terminated, truncated]
            found += [info["cost"], info["arrived"], env.hazard(), env.frame().tolist(), expert().tolist()]
            found += [env.progress(), env.facts(), env.steering, env.step_seconds, env.departure()]
            if terminated or truncated:
                break
    return found


def test_it_has_the_numbers_of_this_process_and_the_gymnasium_of_the_other(named):
    there = env_spec(named()).make()
    here = env_spec(named(here=True)).make()
    assert gymnasium.__version__ != GYMNASIUM
    info = there.reset(seed=0)[1]
    assert (info["gymnasium"], info["scenario"]) == (GYMNASIUM, 0)
    assert "kept back" not in info
    assert there.action_space == here.action_space
    assert there.observation_space == here.observation_space
    assert trajectory(there) == trajectory(here)
    there.close()


def test_what_it_prints_goes_to_standard_error(named, capfd):
    env = env_spec(named()).make()
    env.reset(seed=0)
    env.step(np.zeros(1, np.float32))
    env.close()
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "printed at import" in printed.err
    assert "printed in step 1" in printed.err


def collect_task(steps: int = 12) -> CollectTask:
    spec = env_spec("gym:any")
    return CollectTask(RandomPolicy(1), None, spec.training, traffic=False, steps=steps, seed=(1,))


def test_an_exception_there_has_the_traceback_of_there(named):
    env = env_spec(named("Walkraise-v0")).make()
    with pytest.raises(WorkerError, match=r"Walkraise-v0@.* raised ValueError: the wheel came off") as caught:
        collect(env, collect_task())
    assert 'walking.py", line' in caught.value.details
    env.reset(seed=0)  # it lives on, as an environment in this process would
    env.close()


def test_the_end_of_its_process_is_said(named):
    env = env_spec(named("Walkdie-v0")).make()
    with pytest.raises(EnvironmentDied, match="died: exit code 7"):
        collect(env, collect_task())


def test_a_crash_there_is_a_crash_of_its_worker(named):
    spec = env_spec(named("Walkdie-v0"))
    crashes: list[WorkerCrash] = []
    pool = WorkerPool[Share](EnvRecipe(spec, spec.training), 1, max_restarts=1, on_crash=crashes.append)
    with pool, pytest.raises(EnvironmentFailure, match=r"died 2 times .*exit code 7.*gave up after 1 restarts"):
        pool.run([collect_task()])
    assert [crash.restart for crash in crashes] == [1]
    assert "exit code 7" in crashes[0].cause


def test_it_ends_with_a_worker_that_is_killed_in_the_middle_of_a_step(named, tmp_path):
    spec = env_spec(named("Walkhang-v0"))
    pool = WorkerPool[Share](EnvRecipe(spec, spec.training), 1)
    with pool:
        assert pool.run([collect_task()], should_stop=(tmp_path / "hanging").exists) is None
    for _ in range(1200):
        if not processes_of("adapter.py"):
            return
        signal.sigtimedwait([], 0.05)
    pytest.fail("the other interpreter outlived its worker")


def processes_of(word: str) -> list[int]:
    """Processes of this test's own session tree whose command line has a word and whose folder is this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found += [int(entry.name)] if Path(os.readlink(entry / "cwd")) == Path.cwd() else []
        except OSError:
            continue
    return found


def epochs(run: Any) -> list[Any]:
    return [json.loads(line) for line in (run.path / "epochs.jsonl").read_text().splitlines()]


def test_training_there_equals_training_here_through_a_crash_and_a_resume(named, tmp_path):
    settings = {"method": "ppo-lag", "budget": 5.0, "total_steps": 180, "steps_per_epoch": 60, "num_envs": 2}
    whole = train(env=named(here=True), run_dir=tmp_path / "whole", quiet=True, **settings)
    parts = train(env=named("Walkonce-v0"), run_dir=tmp_path / "parts", quiet=True, **settings)
    [crash] = [event for event in parts.events() if event["event"] == "worker crashed"]
    assert "exit code 7" in crash["cause"]
    assert epochs(parts) == epochs(whole)
    max((parts.path / "checkpoints").iterdir()).unlink()
    assert saved_epochs(parts.path / "checkpoints")[-1] == 2
    assert epochs(resume(parts.path, quiet=True)) == epochs(whole)
    (tmp_path / "walking.py").write_text(f"{MODULE}# changed\n")
    with pytest.raises(RunError, match=r"the source of its environment has changed: walking\.py"):
        resume(parts.path, quiet=True)


def test_a_run_of_one_interpreter_is_not_that_of_another(named, tmp_path):
    settings = {"total_steps": 40, "steps_per_epoch": 40, "learner": {"update_iters": 1}}
    run = train(env=named(), budget=1.0, **settings, run_dir=str(tmp_path / "run"), quiet=True)
    assert other_code(run) is None
    elsewhere = dataclasses.replace(run.config, env=f"{run.config.env.partition('@')[0]}@{sys.executable}")
    assert "the source of its environment has changed: version of" in (other_code(run, elsewhere) or "")


def test_a_study_does_not_copy_a_run_of_another_interpreter(named, tmp_path):
    def study(name, env):
        text = f"""
            name: {name}
            question: Is it copied?
            environments: ["{env}"]
            seeds: [1]
            total_steps: 40
            settings: {{steps_per_epoch: 40, learner.update_iters: 1, budget: 1.0}}
            arms: {{ppo-lag: {{method: ppo-lag}}}}
        """
        return parse_study(textwrap.dedent(text), f"{name}.yaml")

    root = tmp_path / "runs"
    execute(study("one", named()), root / "one", InProcess())
    elsewhere = f"{named().partition('@')[0]}@{sys.executable}"
    found, refused = {}, []
    for env in (named(), elsewhere):
        (spec,) = study("two", env).expand(root / "two")
        found[env] = equal_run(spec, root, refused.append)
    assert found[named()] is not None
    assert found[elsewhere] is None
    assert "version of" in refused[0]


def test_a_module_with_a_computed_name_is_noticed_there_too(named, other, tmp_path):
    (tmp_path / "tide.py").write_text("")
    write_module(tmp_path, "coast", f"{MODULE}\nimport importlib\nimportlib.import_module('ti' + 'de')\n")
    env = env_spec(f"gym:coast:Walk-v0@{other}").make()
    try:
        assert [Path(file).name for file in env.made_of()] == ["coast.py", "tide.py"]
    finally:
        env.close()


def test_the_source_and_the_versions_there_are_the_identity_and_the_path_is_a_place(named, other, tmp_path):
    before = env_spec(named()).source_hash()
    assert set(before.files) >= {"walking.py", "version of python", "version of numpy"}
    assert before.files["version of gymnasium"] == GYMNASIUM
    (tmp_path / "moved").symlink_to(other.parents[1])
    assert env_spec(f"gym:walking:Walk-v0@{tmp_path / 'moved'}").source_hash().digest == before.digest
    (tmp_path / "walking.py").write_text(f"{MODULE}# changed\n")
    assert before.changes(env_spec(named()).source_hash()) == "walking.py"
    assert env_spec(f"gym:Pendulum-v1@{other}").source_hash().digest is not None
    assert "there is no interpreter" in env_spec("gym:Pendulum-v1@/no/python").source_hash().unknown


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gym:walking:Wlk-v0@{python}", "did you mean 'Walk-v0'"),
        ("gym:no_such_module:Walk-v0@{python}", "no_such_module"),
        ("gym:broken:Walk-v0@{python}", "'broken', which cannot be imported: ZeroDivisionError"),
        ("gym:walking:Walk-v0@/no/such/python", "there is no interpreter at '/no/such/python'"),
        ("gym:walking:Walk-v0@/bin/cat", "cannot run an environment"),
        ("gym:walking:Walk-v0@{bare}", "No module named 'numpy'.*-m pip install gymnasium"),
        ("gym:walking:Walk-v0@", "expected gym:<id>@<python>"),
        ("speeding@{python}", "expected gym:<id>@<python>"),
        ("safety-gymnasium:SafetyCarGoal1-v0@{python}", "'safety_gymnasium', which cannot be imported"),
    ],
)
def test_what_cannot_be_started_says_why_in_one_line(named, other, tmp_path, capfd, name, reason):
    named()
    (tmp_path / "broken.py").write_text("1 / 0")
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(InputError, match=reason) as caught:
        env_spec(name.format(python=other, bare=bare)).make()
    assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err
    assert caught.value.exit_code == EXIT_BAD_INPUT


def test_a_process_that_ends_while_the_environment_is_made_is_named(named, other, tmp_path):
    named()
    (tmp_path / "leaving.py").write_text("import os; os._exit(5)")
    with pytest.raises(EnvironmentDied, match=r"died while the environment was made; import its .*: exit code 5"):
        env_spec(f"gym:leaving:Walk-v0@{other}").make()
