"""Prometheus reads what a service does: frames, queues, latencies, models, clients, evictions."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from frame_scorer import FrameScorer
from waiting import wait_until

from vlmsafe.cli import main
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.engine import Engine
from vlmsafe.signals.service.metrics import SECONDS, Metrics, MetricsServer
from vlmsafe.signals.service.sockets import listen
from vlmsafe.signals.service.spec import ModelSpec, parse_address

PROMPTS = PromptSet(("a clear road",), ("danger",))
SPEC = ModelSpec("python:frame_scorer:FrameScorer", device="cpu", batch=8)
FRAMES = np.zeros((8, 8, 8, 3), np.uint8)
LABELS = 'scorer="python:frame_scorer:FrameScorer",device="cpu",precision="float32"'
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? (\S+)')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def parsed(text: str) -> dict[str, float]:
    """The samples of a page in Prometheus's grammar, in which each family is announced once and before its samples."""
    found: dict[str, float] = {}
    announced: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            announced.append(line.split()[2])
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert re.sub(r"_(bucket|sum|count)$", "", name) == announced[-1]
            key = name if labels is None else f"{name}{{{labels}}}"
            assert key not in found
            found[key] = float(value)
    assert text.endswith("\n")
    assert len(set(announced)) == len(announced)
    return found


class Slow(FrameScorer):
    """Scores when it is let."""

    def __init__(self, prompts: PromptSet) -> None:
        super().__init__(prompts)
        self.go = threading.Event()

    def score(self, inputs: np.ndarray) -> np.ndarray:
        assert self.go.wait(600.0)
        return super().score(inputs)


def test_a_page_shows_frames_queues_models_and_clients():
    scorer = Slow(PROMPTS)
    engine = Engine(make=lambda spec, prompts: scorer, cores=1)
    key = engine.open(SPEC, PROMPTS).key
    engine.open(SPEC, PROMPTS)
    blocks = [engine.submit(key, FRAMES) for _ in range(3)]
    wait_until(lambda: engine.describe()[0]["batches"] == 1)
    page = parsed(engine.expose())
    assert page[f"vlmsafe_queued_frames{{{LABELS}}}"] == 16
    assert page['vlmsafe_models{state="in use"}'] == 1
    assert page['vlmsafe_models{state="idle"}'] == 0
    assert page["vlmsafe_clients"] == 2
    assert page["vlmsafe_frames_total"] == 0, "none yet"
    assert page["vlmsafe_memory_bytes"] > 2**20
    scorer.go.set()
    for block in blocks:
        block.result(600.0)
    page = parsed(engine.expose())
    assert page[f"vlmsafe_queued_frames{{{LABELS}}}"] == 0
    assert page[f"vlmsafe_frames_total{{{LABELS}}}"] == 24
    assert page[f"vlmsafe_batches_total{{{LABELS}}}"] == 3
    assert page[f"vlmsafe_loads_total{{{LABELS}}}"] == 1
    assert page[f"vlmsafe_block_seconds_count{{{LABELS}}}"] == 3
    engine.stop()


def test_counters_do_not_fall_when_a_model_is_evicted():
    engine = Engine(make=lambda spec, prompts: FrameScorer(PROMPTS), idle_seconds=0.0)
    for number in (1, 2):
        key = engine.open(SPEC, PROMPTS).key
        engine.submit(key, FRAMES).result(600.0)
        engine.close(key)
        wait_until(lambda number=number: 'evictions_total{reason="idle"} ' + str(number) in engine.expose())
        page = parsed(engine.expose())
        assert page[f"vlmsafe_frames_total{{{LABELS}}}"] == 8 * number
        assert page[f"vlmsafe_loads_total{{{LABELS}}}"] == number
        assert page['vlmsafe_models{state="idle"}'] == 0
    engine.stop()


def test_a_scorer_that_fails_is_counted():
    class Failing(FrameScorer):
        def score(self, inputs: np.ndarray) -> np.ndarray:
            raise MemoryError

    engine = Engine(make=lambda spec, prompts: Failing(PROMPTS))
    assert engine.submit(engine.open(SPEC, PROMPTS).key, FRAMES).exception(600.0) is not None
    page = parsed(engine.expose())
    assert page[f"vlmsafe_failures_total{{{LABELS}}}"] == 1
    assert f"vlmsafe_frames_total{{{LABELS}}}" not in page
    engine.stop()


def test_latencies_are_in_the_buckets_that_they_fit():
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.0011, 0.3, 61.0):
        metrics.observe(seconds)
    page = parsed(metrics.expose({}))
    for end, expected in ((0.001, 2), (0.0025, 3), (0.25, 3), (0.5, 4), (60.0, 4)):
        assert page[f'vlmsafe_block_seconds_bucket{{le="{end}"}}'] == expected
    assert page['vlmsafe_block_seconds_bucket{le="+Inf"}'] == page["vlmsafe_block_seconds_count"] == 5
    assert page["vlmsafe_block_seconds_sum"] == pytest.approx(61.3026)
    assert list(SECONDS) == sorted(set(SECONDS))


def test_a_name_with_quotes_does_not_break_the_page():
    metrics = Metrics()
    metrics.count("frames", 3, (("scorer", 'clip:/a "b"\\c\nd'),))
    page = parsed(metrics.expose({}))
    assert page['vlmsafe_frames_total{scorer="clip:/a \\"b\\"\\\\c\\nd"}'] == 3


def test_only_the_page_of_metrics_is_served_and_a_silent_visitor_holds_up_nobody():
    listener, _ = listen(parse_address(f"tcp:127.0.0.1:{free_port()}"))
    host, port = listener.getsockname()
    metrics = Metrics()
    server = MetricsServer(listener, lambda: metrics.expose({}))
    with socket.create_connection((host, port)):  # says nothing
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60.0) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parsed(answer.read().decode())["vlmsafe_frames_total"] == 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{host}:{port}/", timeout=60.0)
    server.stop()
    with pytest.raises(OSError):  # noqa: PT011 - nobody listens there
        socket.create_connection((host, port))


@pytest.mark.slow
def test_the_command_shows_metrics_on_request(tmp_path):
    port, path = free_port(), tmp_path / "socket"
    support = Path(__file__).parents[2] / "support"
    paths = ":".join(filter(None, [os.environ.get("PYTHONPATH", ""), str(support)]))
    process = subprocess.Popen(
        [sys.executable, "-m", "vlmsafe", "serve", "--socket", str(path), "--metrics", str(port)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "listening" in process.stderr.readline()
        client = ServiceScorer(parse_address(f"unix:{path}"), SPEC, PROMPTS, 60.0)
        client.score(FRAMES)
        with socket.socket(socket.AF_UNIX) as stray:
            stray.connect(str(path))
            stray.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"not a message of a scoring service" in stray.recv(4096)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60.0) as answer:
            page = parsed(answer.read().decode())
        assert page[f"vlmsafe_frames_total{{{LABELS}}}"] == 8
        assert page["vlmsafe_clients"] == 1
        assert page['vlmsafe_refusals_total{reason="malformed"}'] == 1
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(600.0) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("port", "metrics is 'port'; expected a port such as 9464"),
        ("99999", "metrics is '99999'; expected a port"),
        ("0.0.0.0:9464", "can be reached from other machines"),
    ],
)
def test_metrics_are_for_this_machine_alone_unless_told_otherwise(tmp_path, wrong, said, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--socket", str(tmp_path / "socket"), "--metrics", wrong])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "socket").exists()
