"""Runs that share a scoring service equal runs with their own scorers, even if the service fails in between."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_models import save_small_clip

from vlmsafe import resume, train
from vlmsafe.cli import main
from vlmsafe.errors import InputError, Interrupted, RunError
from vlmsafe.evaluation.trace.record import trace
from vlmsafe.runs.checkpoint import load_checkpoint, path_of
from vlmsafe.runs.run import Run
from vlmsafe.signals.service.server import Server
from vlmsafe.signals.service.sockets import listen
from vlmsafe.signals.service.spec import parse_address
from vlmsafe.training.collect import Share
from vlmsafe.training.score import Scoring, scoring_thread
from vlmsafe.training.trainer import Trainer

PROMPTS = """
positive: [a clear road ahead, the car keeps its lane]
negative: [about to hit something, the car leaves the road, Danger]
"""
OTHER_PROMPTS = """
positive: [the car drives slowly]
negative: [the car is too fast]
"""
SETTINGS = {
    "env": "speeding", "method": "vlm-ppo-lag-conf-calibrated", "total_steps": 600, "steps_per_epoch": 200,
    "num_envs": 2, "quiet": True, "learner": {"update_iters": 2},
}  # fmt: skip
SIGNAL = {"device": "cpu", "every": 2, "batch": 16, "calibration": {"frames": 40}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_small_clip(folder / "clip")
    (folder / "prompts.yaml").write_text(PROMPTS)
    (folder / "other.yaml").write_text(OTHER_PROMPTS)
    return folder


class Service:
    """`vlmsafe serve` in a process of its own."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self._command = [sys.executable, "-m", "vlmsafe", "serve", "--socket", str(path), "--threads", "1"]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert "listening" in self.process.stderr.readline()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(600.0)
        self.process.stderr.close()
        return code


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    found = Service(tmp_path_factory.mktemp("service") / "socket")
    found.start()
    yield found
    found.end(signal.SIGKILL)


def settings(model: Path, run_dir: Path, prompts: str = "prompts.yaml", **signal) -> dict:
    own = {"scorer": f"clip:{model / 'clip'}", "prompts": str(model / prompts), **SIGNAL, **signal}
    return {**SETTINGS, "run_dir": str(run_dir), "signal": own}


def assert_equal_runs(one: Run, other: Run) -> None:
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (one.path / record).read_bytes() == (other.path / record).read_bytes()
    a, b = (load_checkpoint(path_of(run.checkpoints, run.config.epochs)) for run in (one, other))
    assert a.values["multiplier"] == b.values["multiplier"]
    assert a.values["calibration"] == b.values["calibration"]
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name], err_msg=name)


def start_run(model: Path, run_dir: Path, address: str, prompts: str, *extra: str) -> subprocess.Popen[str]:
    values = {
        "env": "speeding", "method": SETTINGS["method"], "total-steps": 600, "steps-per-epoch": 200, "num-envs": 2,
        "learner.update-iters": 2, "run-dir": run_dir, "scorer": f"clip:{model / 'clip'}", "prompts": model / prompts,
        "scorer-device": "cpu", "signal.every": 2, "signal.batch": 16, "signal.calibration.frames": 40,
        "signal.service": address,
    }  # fmt: skip
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", "vlmsafe", "train", "--quiet", *words, *extra], stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def private(tmp_path_factory, model) -> Run:
    """The run as it is with a scorer of its own."""
    return train(**settings(model, tmp_path_factory.mktemp("private") / "run"))


class Within:
    """A service in this process, which comes and goes faster."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._listener, self._clean_up = listen(parse_address(address))
        self._server = Server(self._listener)

    def kill(self) -> None:
        for session in list(self._server._sessions):
            session.hang_up()
        self._server.stop()
        self._clean_up()

    def kill_after_first_epoch(self, run_dir: Path, then: Callable[[], None] = lambda: None) -> threading.Thread:
        def watch() -> None:
            epochs = run_dir / "epochs.jsonl"
            while not epochs.exists() or not epochs.read_bytes():
                time.sleep(0.005)
            self.kill()
            then()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread


def test_runs_that_share_a_service_at_the_same_time_equal_private_ones(tmp_path, model, service, private):
    shared = [
        start_run(model, tmp_path / f"shared-{number}", service.address, prompts)
        for number, prompts in enumerate(("prompts.yaml", "other.yaml"))
    ]
    alone = (private, train(**settings(model, tmp_path / "private", "other.yaml")))
    for number in range(2):
        _, said = shared[number].communicate(timeout=600.0)
        assert shared[number].returncode == 0, said
        run = Run.open(tmp_path / f"shared-{number}")
        assert_equal_runs(run, alone[number])
        (begun,) = [event for event in run.events() if event["event"] == "started"]
        assert begun["scorer"]["service"] == service.address


def test_a_run_with_a_service_loads_no_model_library(tmp_path, model, service):
    """The point of sharing is memory; the library alone takes more than a small run."""
    given = settings(model, tmp_path / "run", service=service.address)
    script = (
        f"import sys\nfrom vlmsafe import train\ntrain(**{given | {'total_steps': 200}!r})\n"
        "print([name for name in ('transformers', 'tokenizers', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600.0)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_run_is_resumed_with_another_address_or_none_and_stays_the_same(tmp_path, model, service, private):
    moved = train(**settings(model, tmp_path / "moved", service=service.address))
    for address in ("", service.address):
        path_of(moved.checkpoints, 3).unlink()
        assert_equal_runs(resume(moved.path, quiet=True, service=address), private)


def test_where_the_scorer_is_may_be_said_when_resuming_and_nothing_else(tmp_path, model, service, private):
    moved = train(**settings(model, tmp_path / "moved", service=service.address))
    path_of(moved.checkpoints, 3).unlink()
    with pytest.raises(SystemExit) as refused:
        main(["train", "--quiet", "--resume", str(moved.path), "--signal.batch", "3"])
    assert refused.value.code == 2
    main(["train", "--quiet", "--resume", str(moved.path), "--signal.service", "", "--signal.service-wait=3"])
    assert_equal_runs(Run.open(moved.path), private)


def test_a_trace_may_ask_the_service(model, service, private):
    alone, shared = (trace(private, episodes=2, processes=1, device="cpu", service=s) for s in ("", service.address))
    assert alone.equals(shared)


def test_a_run_outlives_its_service_and_loses_nothing(tmp_path, model, private):
    service = Service(tmp_path / "socket")
    service.start()
    run = start_run(model, tmp_path / "shared", service.address, "prompts.yaml")
    try:
        epochs = tmp_path / "shared" / "epochs.jsonl"
        for wanted, number in ((0, signal.SIGKILL), (1, signal.SIGTERM)):
            while run.poll() is None and (not epochs.exists() or epochs.read_bytes().count(b"\n") < wanted):
                time.sleep(0.02)
            service.end(number)
            time.sleep(0.3)
            service.start()
        assert run.wait(600.0) == 0, run.stderr.read()
        assert_equal_runs(Run.open(tmp_path / "shared"), private)
    finally:
        run.kill()
        run.wait()
        run.stderr.close()
        service.end(signal.SIGKILL)


def test_a_service_that_stays_away_ends_the_run_with_what_was_saved(tmp_path, model, private):
    address, longer = f"unix:{tmp_path / 'socket'}", {"total_steps": 6000}
    watching = Within(address).kill_after_first_epoch(tmp_path / "run")
    with pytest.raises(RunError, match="has been away for 0 seconds"):
        train(**settings(model, tmp_path / "run", service=address, service_wait=0.3) | longer)
    watching.join()
    run = Run.open(tmp_path / "run")
    assert run.status() == "stopped early"
    assert run.events()[-1]["event"] == "failed"
    rows, expected = (one.path.joinpath("epochs.jsonl").read_bytes().splitlines() for one in (run, private))
    assert rows
    assert rows[0] == expected[0], "up to there it is what it would have been"


def test_no_service_at_the_start_leaves_no_run(tmp_path, model):
    nowhere = settings(model, tmp_path / "run", service=f"unix:{tmp_path / 'nowhere'}", service_wait=0.2)
    with pytest.raises(RunError, match="there is no scoring service at"):
        train(**nowhere)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="is not an address of a scoring service"):
        train(**settings(model, tmp_path / "run", service="somewhere"))


def test_controls_and_methods_without_a_signal_ignore_the_address(tmp_path):
    address = f"unix:{tmp_path / 'nowhere'}"
    small = {**SETTINGS, "total_steps": 200}
    for name, method, signal_ in (("a", "ppo-lag", {}), ("b", "vlm-ppo-lag", {"scorer": "oracle"})):
        run = train(**{**small, "method": method}, run_dir=str(tmp_path / name), signal={**signal_, "service": address})
        assert run.status() == "finished"


def test_interrupting_a_run_that_waits_for_its_service_ends_it_soon(tmp_path, model):
    address = f"unix:{tmp_path / 'socket'}"

    def interrupt() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    Within(address).kill_after_first_epoch(tmp_path / "run", then=interrupt)
    with pytest.raises(Interrupted):
        train(**settings(model, tmp_path / "run", service=address, service_wait=900.0) | {"total_steps": 200_000})
    scoring_thread().submit(int).result(600.0)  # nothing waits for the service any more


def test_a_signal_ends_the_wait_for_a_service_that_never_was(tmp_path, model):
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted, match="stopped by SIGINT before training began"):
        train(**settings(model, tmp_path / "run", service=f"unix:{tmp_path / 'nowhere'}", service_wait=900.0))
    assert not (tmp_path / "run").exists()


def test_a_signal_ends_the_wait_for_the_last_scores_of_an_epoch(tmp_path, model, private, monkeypatch):
    """When everything is collected, and nothing but the service is waited for."""
    address = f"unix:{tmp_path / 'socket'}"
    within, waiting = Within(address), threading.Event()
    results = Scoring.results

    def watched(scoring: Scoring, task: int) -> list[np.ndarray]:
        if (tmp_path / "run" / "epochs.jsonl").exists() and not waiting.is_set():
            waiting.set()
            within.kill()
            scoring._blocks[task].append(scoring_thread().submit(scoring.score, np.zeros((1, 64, 64, 3), np.uint8)))
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return results(scoring, task)

    monkeypatch.setattr(Scoring, "results", watched)
    with pytest.raises(
        Interrupted, match="stopped by SIGTERM after epoch 1 of 3; continue with: vlmsafe train --resume"
    ):
        train(**settings(model, tmp_path / "run", service=address, service_wait=900.0))
    monkeypatch.undo()
    assert_equal_runs(resume(tmp_path / "run", quiet=True, service=""), private)


def test_how_to_go_on_names_the_service_that_the_run_moved_to(tmp_path, model, service, private, monkeypatch):
    moved = train(**settings(model, tmp_path / "moved", service=service.address))
    path_of(moved.checkpoints, 3).unlink()
    collect = Trainer.collect

    def stopped(trainer: Trainer) -> list[Share]:
        trainer.stop.reason = "SIGTERM"
        return collect(trainer)

    monkeypatch.setattr(Trainer, "collect", stopped)
    with pytest.raises(Interrupted, match=r"--resume \S+moved --signal.service ''$"):
        resume(moved.path, quiet=True, service="")
    with pytest.raises(Interrupted, match=r"--resume \S+moved$"):
        resume(moved.path, quiet=True)
