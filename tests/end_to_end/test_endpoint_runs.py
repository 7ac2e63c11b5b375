"""Runs whose scorer is an endpoint: a server in another process that is killed, slow, limited and wrong in turn.

Every run here ends with the digests of the run that was left alone, or stops in one line and then, resumed, does.
"""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from openai_server import Server
from processes import COMMAND

from vlmsafe import resume, trace, train
from vlmsafe.errors import InputError, Interrupted, RunError
from vlmsafe.runs.run import Run
from vlmsafe.signals.scorers.endpoint.options import TOKENS
from vlmsafe.training.score import scoring_thread

pytestmark = pytest.mark.slow

PROMPTS = """
positive: [the road is free]
negative: [the car is too fast for the bump]
descriptions: {positive: a free road, negative: danger ahead}
"""
SETTINGS = {
    "env": "braking", "method": "vlm-ppo-lag-conf", "total_steps": 1200, "steps_per_epoch": 400, "num_envs": 2,
    "learner": {"update_iters": 2}, "quiet": True,
}  # fmt: skip
TROUBLES = ("slow", "limited", "no JSON", "failing", "dropped", "NaN")


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """No token and no cache of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in TOKENS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def process():
    server = Server()
    yield server
    server.kill()


@pytest.fixture
def server(process):
    process.tell(token="")
    return process


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.yaml"
    path.write_text(PROMPTS)
    return path


def settings(server: Server, prompts: Path, run_dir: Path, cache: str = "off", **endpoint) -> dict:
    options = {"timeout": 0.75, "wait": 60.0, **endpoint}
    own = {"scorer": server.scorer, "prompts": str(prompts), "every": 8, "batch": 16, "cache": cache}
    return {**SETTINGS, "run_dir": str(run_dir), "signal": {**own, "endpoint": options}}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, process, prompts) -> Run:
    """The run that was left alone."""
    process.tell(token="")
    return train(**settings(process, prompts, tmp_path_factory.mktemp("alone") / "run"))


def assert_equal(run: Run, alone: Run) -> None:
    for name in ("epochs.jsonl", "episodes.jsonl"):
        assert (run.path / name).read_bytes() == (alone.path / name).read_bytes()
    assert [row["digest"] for row in run.rows("epochs")] == [row["digest"] for row in alone.rows("epochs")]
    assert len(alone.rows("epochs")) == 3


def epochs(run_dir: Path) -> int:
    path = run_dir / "epochs.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(given: dict, run_dir: Path) -> "subprocess.Popen[str]":
    """The same run as a command of its own."""
    signal_, learner = given["signal"], given["learner"]
    values = {name: given[name] for name in ("env", "method", "total_steps", "steps_per_epoch", "num_envs")}
    values |= {f"signal.{name}": value for name, value in signal_.items() if name != "endpoint"}
    values |= {f"signal.endpoint.{name}": value for name, value in signal_["endpoint"].items()}
    values |= {f"learner.{name}": value for name, value in learner.items()} | {"run_dir": run_dir}
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return subprocess.Popen([*COMMAND, "train", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_scores_depend_on_the_frames(alone):
    scores = {row["negative_score"] for row in alone.rows("episodes")}
    assert len(scores) > 1


def test_a_run_whose_endpoint_is_slow_limited_and_wrong_equals_one_left_alone(tmp_path, server, prompts, alone):
    server.tell(*TROUBLES, every=9)
    run = train(**settings(server, prompts, tmp_path / "run"))
    assert_equal(run, alone)
    assert run.bill()["retries"] > 10
    assert run.bill()["frames"] == alone.bill()["frames"] > 100


def test_a_run_whose_endpoint_is_killed_twice_equals_one_left_alone(tmp_path, server, prompts, alone):
    run = start(settings(server, prompts, tmp_path / "run"), tmp_path / "run")
    try:
        for wanted in (0, 1):
            before = server.asked()["count"]
            while run.poll() is None and (epochs(tmp_path / "run") < wanted or server.asked()["count"] < before + 10):
                time.sleep(0.01)
            assert run.poll() is None, run.stdout.read()
            server.kill()
            time.sleep(0.3)
            server.start()
        said, _ = run.communicate(timeout=600.0)
        assert run.returncode == 0, said
        assert_equal(Run.open(tmp_path / "run"), alone)
        assert "scoring cost" in said
    finally:
        run.kill()
        run.wait()
        run.stdout.close()


@pytest.mark.parametrize(
    ("trouble", "wait", "message"),
    [
        ("failing", 0.8, r"has not answered for \d+ seconds \(it answered 503: overloaded\).*resume the run"),
        ("slow", 0.8, r"has not answered for \d+ seconds \(no answer in time\).*resume the run"),
        ("no JSON", 60.0, "answered 5 times in a row with no JSON.*resume the run"),
        ("no logprobs", 60.0, "gives no logprobs"),
        ("limited for long", 60.0, "asks for a pause of 3600 seconds.*resume the run"),
        ("refusing", 60.0, r"wants a token \(401\); set VLMSAFE_OPENAI_TOKEN"),
    ],
)
def test_a_run_whose_endpoint_fails_for_good_stops_resumably(tmp_path, server, prompts, alone, trouble, wait, message):
    server.tell(trouble, after=int(0.6 * alone.bill()["requests"]))  # in the second of three epochs
    with pytest.raises(RunError, match=message) as stopped:
        train(**settings(server, prompts, tmp_path / "run", wait=wait))
    assert "\n" not in str(stopped.value)
    assert stopped.value.exit_code == 1
    run = Run.open(tmp_path / "run")
    assert (run.status(), run.epochs_done(), run.events()[-1]["event"]) == ("stopped early", 1, "failed")
    server.tell()
    resumed = resume(run.path, quiet=True)
    assert [row["digest"] for row in resumed.rows("epochs")] == [row["digest"] for row in alone.rows("epochs")]
    assert_equal(resumed, alone)


def test_a_command_stops_in_one_line_and_is_resumed_at_another_address(tmp_path, server, prompts, alone):
    second = Server()
    second.tell("failing", after=int(0.6 * alone.bill()["requests"]))  # the run must not end before the server does
    run = start(settings(second, prompts, tmp_path / "run", wait=5.0), tmp_path / "run")
    while run.poll() is None and epochs(tmp_path / "run") < 1:
        time.sleep(0.005)
    second.kill()
    said, _ = run.communicate(timeout=600.0)
    last = said.strip().splitlines()[-1]
    assert run.returncode == 1, said
    assert "has not answered for" in last
    assert "--signal.endpoint.url" in last
    command = [*COMMAND, "train", "--quiet", "--resume", str(tmp_path / "run"), "--signal.endpoint.url", server.url]
    assert subprocess.run(command, timeout=600.0).returncode == 0
    resumed = Run.open(tmp_path / "run")
    assert [row["digest"] for row in resumed.rows("epochs")] == [row["digest"] for row in alone.rows("epochs")]


def test_a_second_run_is_answered_from_the_cache_and_equal(tmp_path, server, prompts, alone):
    first, second = (train(**settings(server, prompts, tmp_path / str(i), cache="auto")) for i in range(2))
    for run in (first, second):
        assert_equal(run, alone)
    assert 10 < first.bill()["frames"] < alone.bill()["frames"], "many frames of this world are the same"
    assert second.bill()["frames"] <= 2, "only the fixed picture, by which another model would be noticed"
    assert second.bill()["cached"] == alone.bill()["frames"] - 1, "the run's own fixed picture is always asked about"
    assert (tmp_path / "cache" / "vlmsafe" / "scores.sqlite").exists()


def test_another_model_at_the_same_address_is_noticed_in_spite_of_the_cache(tmp_path, server, prompts):
    run = train(**settings(server, prompts, tmp_path / "run", cache=str(tmp_path / "scores")))
    (run.checkpoints / "epoch-00003.safetensors").unlink()
    server.tell("inverted")
    with pytest.raises(RunError, match="is not the one this run began with"):
        resume(run.path, quiet=True)


def test_a_damaged_cache_is_one_line_and_the_run_goes_on_without_it(tmp_path, server, prompts, alone):
    cache = tmp_path / "scores"
    run = train(**settings(server, prompts, tmp_path / "run", cache=str(cache)))
    (run.checkpoints / "epoch-00003.safetensors").unlink()
    cache.write_bytes(b"no database " * 1000)
    with pytest.raises(InputError, match="scores is no cache of scores, or a damaged one"):
        resume(run.path, quiet=True)
    assert_equal(resume(run.path, quiet=True, place={"signal.cache": "off"}), alone)
    with pytest.raises(InputError, match=r"continues with its own signal\.every"):
        resume(run.path, place={"signal.every": 3})


def test_interrupting_a_run_that_waits_for_its_endpoint_ends_it_soon(tmp_path, server, prompts):
    first = server.asked()["count"]
    server.tell("failing", after=200)

    def interrupt() -> None:
        while server.asked()["count"] < first + 210:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match=r"after epoch [12] of 3; continue with: vlmsafe train --resume"):
        train(**settings(server, prompts, tmp_path / "run", wait=900.0, timeout=900.0))
    scoring_thread().submit(int).result(600.0)  # nothing waits for the endpoint any more


def test_an_endpoint_that_refuses_leaves_no_run(tmp_path, server, prompts):
    server.tell("no logprobs")
    with pytest.raises(InputError, match="gives no logprobs"):
        train(**settings(server, prompts, tmp_path / "run"))
    server.tell(token="needed")
    with pytest.raises(InputError, match="wants a token"):
        train(**settings(server, prompts, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_token_is_in_no_file_of_the_run(tmp_path, server, prompts, alone, monkeypatch):
    server.tell(token="tok-9876")
    monkeypatch.setenv("VLMSAFE_OPENAI_TOKEN", "tok-9876")
    run = train(**settings(server, prompts, tmp_path / "run"))
    assert_equal(run, alone)
    for path in run.path.rglob("*"):
        assert path.is_dir() or b"tok-9876" not in path.read_bytes()


def test_the_run_records_its_scorer_and_its_bill(alone):
    (begun,) = [event for event in alone.events() if event["event"] == "started"]
    assert begun["scorer"]["model"] == "toy/brightness@1"
    assert begun["scorer"]["questions"][1] == "Does this image show danger ahead? Answer yes or no."
    bills = [event for event in alone.events() if event["event"] == "bill"]
    assert [bill["epoch"] for bill in bills] == [1, 2, 3]
    assert alone.bill()["tokens_in"] == 117 * alone.bill()["requests"]


def test_a_trace_asks_the_endpoint_and_says_what_it_cost(alone, server):
    notes = []
    table = trace(alone, episodes=1, processes=1, every=20, on_note=notes.append)
    assert table.filter("scored")["negative"].n_unique() > 1
    assert any("scoring cost" in note and "requests" in note for note in notes)
