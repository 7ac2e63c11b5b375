"""A service and its clients: the same similarities by either way, and lives that end at the wrong moment."""

import dataclasses
import fcntl
import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import frame_scorer
import numpy as np
import pytest
from frame_scorer import FrameScorer
from small_embedded import save_small_embedded
from small_models import PROMPTS, save_small_clip
from small_qwen import save_small_qwen
from waiting import wait_until

from vlmsafe.cli import main
from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.io.source import SourceHash
from vlmsafe.signals.frame_stack import stack_of
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Scorer, ScorerFailure, score_checked
from vlmsafe.signals.scorers.batches import overlapped
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import scorer_source
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.engine import Engine
from vlmsafe.signals.service.server import Server
from vlmsafe.signals.service.session import mapped
from vlmsafe.signals.service.sockets import listen, user_directory
from vlmsafe.signals.service.spec import TOKEN, Address, GivenUp, ModelSpec, parse_address
from vlmsafe.signals.service.wire import (
    F_ADD_SEALS,
    F_SEAL_SHRINK,
    Attach,
    Channel,
    Layout,
    Message,
    Open,
    Score,
    ScoreFrames,
    encode,
)

ONE = PromptSet(*PROMPTS)
OTHER = PromptSet(("the car drives safely",), ("danger", "the car leaves the road"))
SPEC = ModelSpec("python:frame_scorer:FrameScorer", device="cpu", batch=8)


def frames(count: int, seed: int = 0, size: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Place:
    """An address at which services come and go."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.server: Server | None = None

    def start(self, engine: Engine | None = None, **options) -> Server:
        listener, self._clean_up = listen(self.address)
        self.server = Server(listener, engine, **options)
        return self.server

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self._clean_up()
            self.server = None

    def client(self, spec: ModelSpec = SPEC, prompts: PromptSet = ONE, wait: float = 10.0, **options) -> ServiceScorer:
        return ServiceScorer(self.address, spec, prompts, wait, **options)


@pytest.fixture(params=["unix", "tcp"])
def place(request, tmp_path):
    address = f"unix:{tmp_path / 'socket'}" if request.param == "unix" else f"tcp:127.0.0.1:{free_port()}"
    found = Place(parse_address(address))
    yield found
    found.stop()


@pytest.fixture
def local(tmp_path):
    found = Place(parse_address(f"unix:{tmp_path / 'socket'}"))
    yield found
    found.stop()


class Patient(Scorer):
    """Scores when it is let."""

    looks_at = "frame"
    rules = ("decoupled",)
    groups = (1, 1)

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.seen = 0

    def score(self, inputs: np.ndarray) -> np.ndarray:
        self.begun.set()
        assert self.go.wait(600.0)
        self.seen += len(inputs)
        return (inputs[:, 0, 0, :2] / 255.0).astype(np.float32)


@pytest.mark.parametrize("kind", ["clip", "embedded"])
def test_a_service_gives_what_a_private_scorer_gives_bit_for_bit(tmp_path, place, kind):
    if kind == "clip":
        save_small_clip(tmp_path / "clip")
        name = f"clip:{tmp_path / 'clip'}"
    else:
        name = f"embedded:{save_small_embedded(tmp_path / 'weights.safetensors')}"
    place.start()
    settings = {"device": "cpu", "batch": 16}
    for prompts in (ONE, OTHER):
        private = make_scorer(name, prompts, **settings)
        shared = make_scorer(name, prompts, **settings, service=str(place.address))
        assert isinstance(shared, ServiceScorer)
        for attribute in ("looks_at", "rules", "bounds", "gate", "frames", "groups"):
            assert getattr(shared, attribute) == getattr(private, attribute), attribute
        assert shared.describe() == {**private.describe(), "service": str(place.address)}
        assert shared.notes("gym:Other-v0") == private.notes("gym:Other-v0")
        for count in (1, 16, 0, 5, 67):
            block = np.concatenate([frames(count, count)] * private.frames, axis=-1)
            np.testing.assert_array_equal(score_checked(shared, block), score_checked(private, block))
        shared.close()
    assert len(place.server.engine.describe()) == 1


def test_clients_that_want_other_clips_of_one_model_get_them(tmp_path, place):
    save_small_qwen(tmp_path)
    prompts = PromptSet(("a",), ("b",), "safe driving", "danger")
    place.start()
    settings = {"device": "cpu", "batch": 4, "precision": "float32"}
    for stack in ({}, {"frames": 3, "frame_distance": 2}):
        private = make_scorer(f"qwen2-vl:{tmp_path}", prompts, **settings, **stack)
        shared = make_scorer(f"qwen2-vl:{tmp_path}", prompts, **settings, **stack, service=str(place.address))
        assert isinstance(shared, ServiceScorer)
        assert stack_of(shared) == stack_of(private)
        block = np.concatenate([frames(5, age) for age in range(private.frames)], axis=-1)
        np.testing.assert_array_equal(score_checked(shared, block), score_checked(private, block))
        shared.close()


def test_a_stack_that_the_services_scorer_does_not_look_at_is_refused(place):
    place.start()
    with pytest.raises(InputError, match="looks at 1 frame at a time, and frames is 2"):
        make_scorer("python:frame_scorer:FrameScorer", ONE, service=str(place.address), frames=2)


def test_many_clients_at_once_get_their_own_answers(place):
    place.start()

    def work(seed: int) -> bool:
        scorer, expected = place.client(), FrameScorer(ONE)
        blocks = [frames(1 + (7 * seed + n) % 20, 100 * seed + n) for n in range(12)]
        found = overlapped(scorer.begin([(scorer, block)]) for block in blocks)
        scorer.close()
        return all(np.array_equal(rows, expected.score(block)) for (rows,), block in zip(found, blocks, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    wait_until(lambda: place.server.clients == 0)


def test_several_blocks_may_be_under_way(local):
    scorer = Patient()
    local.start(Engine(make=lambda spec, prompts: scorer))
    client = local.client()
    first, second = (client.begin([(client, frames(8, seed))]) for seed in (1, 2))
    assert scorer.begun.wait(600.0)
    scorer.go.set()
    np.testing.assert_allclose(second()[0], frames(8, 2)[:, 0, 0, :2] / 255.0, rtol=1e-6)
    np.testing.assert_allclose(first()[0], frames(8, 1)[:, 0, 0, :2] / 255.0, rtol=1e-6)
    client.close()


def test_frames_of_another_size_are_scored_too(place):
    place.start()
    client, expected = place.client(), FrameScorer(ONE)
    for size in (24, 32, 24):
        np.testing.assert_array_equal(client.score(frames(9, size=size)), expected.score(frames(9, size=size)))
    client.close()


def test_a_view_of_frames_is_scored_like_a_copy(local):
    local.start()
    client, block = local.client(), frames(10)
    np.testing.assert_array_equal(client.score(block[::-2]), FrameScorer(ONE).score(block[::-2].copy()))
    client.close()


def test_errors_of_a_scorer_reach_the_run_that_caused_them_and_no_other(local, monkeypatch):
    local.start()
    failing = local.client(ModelSpec("python:frame_scorer:FailingScorer", device="cpu", batch=8))
    fine = local.client()
    for _ in range(2):
        failing.score(frames(3))
    with pytest.raises(ScorerFailure, match=r"'python:frame_scorer:FailingScorer' raised MemoryError: out of") as error:
        failing.score(frames(3))
    assert "in score" in error.value.details
    loud = local.client(ModelSpec("python:frame_scorer:LoudScorer", device="cpu"))
    with pytest.raises(InputError, match="the scorer LoudScorer gave similarities from"):
        loud.score(frames(2))
    assert fine.score(frames(2)).shape == (2, 5)
    for client in (failing, fine, loud):
        client.close()


def test_a_model_that_is_not_there_is_the_users_error(place):
    place.start()
    with pytest.raises(InputError, match="there is no file"):
        place.client(ModelSpec("embedded:/nowhere/weights.safetensors", device="cpu"))
    with pytest.raises(InputError, match="device 'cuda:7' does not exist"):
        place.client(ModelSpec("embedded", device="cuda:7"))


def test_scorers_of_anything_but_frames_stay_in_the_run(local):
    local.start()
    for name in ("oracle", "noise", "constant:0.5", "rnd"):
        assert not isinstance(make_scorer(name, None, observation=3, service=str(local.address)), ServiceScorer)
    assert make_scorer("python:own_scorers:Blind", ONE, service=str(local.address)).looks_at == "observation"


# A service that goes away.


def test_a_client_waits_for_a_service_to_start(place):
    threading.Timer(0.5, place.start).start()
    client = place.client()
    assert client.score(frames(3)).shape == (3, 5)
    client.close()


def test_a_client_whose_service_does_not_start_says_so_in_time(place):
    begun = time.monotonic()
    with pytest.raises(RunError, match=r"there is no scoring service at .*vlmsafe serve"):
        place.client(wait=0.5)
    assert time.monotonic() - begun >= 0.5


def test_what_was_not_answered_is_asked_again_when_the_service_comes_back(place):
    first, expected = Patient(), FrameScorer(ONE)
    place.start()
    client = place.client(slots=3)
    np.testing.assert_array_equal(client.score(frames(5, 9)), expected.score(frames(5, 9)))
    blocks = [frames(8, seed) for seed in range(3)]
    place.server._stopping.set()
    finish = [client.begin([(client, block)]) for block in blocks]
    for connection in list(place.server._sessions):  # as when the process is killed
        connection.hang_up()
    place.stop()
    threading.Timer(0.5, place.start).start()
    for block, done in zip(blocks, finish, strict=True):
        np.testing.assert_array_equal(done()[0], expected.score(block))
    client.close()
    assert not first.seen


def test_a_service_that_comes_back_with_another_model_is_refused(place, monkeypatch):
    place.start()
    client = place.client()
    client.score(frames(2))
    place.stop()
    monkeypatch.setattr(frame_scorer.FrameScorer, "__init__", _otherwise(frame_scorer.FrameScorer.__init__))
    place.start()
    with pytest.raises(RunError, match="came back with another model: similarities of the same pictures differ by"):
        client.score(frames(2))
    client.close()


class Rounding(Scorer):
    """Rounds by the size of its batch, as bfloat16 does; `shift` makes it another model."""

    looks_at = "frame"
    rules = ("decoupled",)
    groups = (1, 1)

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift

    def score(self, inputs: np.ndarray) -> np.ndarray:
        return (inputs[:, 0, 0, :2] / 510.0 + 0.01 * len(inputs) + self.shift).astype(np.float32)


@pytest.mark.parametrize(
    ("precision", "shift", "refused"),
    [("float32", 0.0, False), ("float32", 0.01, True), ("bfloat16", 0.01, False), ("bfloat16", 0.05, True)],
)
def test_a_service_that_comes_back_is_known_by_equal_batches_and_by_its_precision(local, precision, shift, refused):
    spec = dataclasses.replace(SPEC, precision=precision)
    local.start(Engine(make=lambda spec, prompts: Rounding()))
    client = local.client(spec)
    blocks = [frames(8, seed) for seed in range(3)]
    for block in blocks:
        client.score(block)
    local.stop()
    local.start(Engine(make=lambda spec, prompts: Rounding(shift)))
    with pytest.raises(RunError, match="another model") if refused else nullcontext():
        np.testing.assert_array_equal(client.score(blocks[1]), Rounding(shift).score(blocks[1]))
    client.close()


def test_services_that_end_on_the_same_frames_each_time_end_the_run_resumably(place, monkeypatch):
    """The connection breaks as when the process dies, and the next service is there at once, as if supervised."""
    died, deadline = [], time.monotonic() + 60.0

    def die(session, message):
        died.append(message)
        raise ConnectionResetError

    place.start()
    client = place.client(wait=600.0, give_up=lambda: time.monotonic() > deadline)
    client.score(frames(3))
    with monkeypatch.context() as patched:
        patched.setattr("vlmsafe.signals.service.session.Session._score", die)
        with pytest.raises(RunError, match=r"went away 5 times in a row before it had answered .*resume the run"):
            client.score(frames(2, 1))
    assert len(died) == 5
    client.close()


def test_a_service_that_is_lost_now_and_then_may_be_lost_for_ever(local, monkeypatch):
    local.start()
    client = local.client(wait=600.0)
    for seed in range(7):
        for connection in list(local.server._sessions):  # as when the process is killed
            connection.hang_up()
        np.testing.assert_array_equal(client.score(frames(2, seed)), FrameScorer(ONE).score(frames(2, seed)))
    client.close()


def _otherwise(init: Callable[..., None]) -> Callable[..., None]:
    def made(self: FrameScorer, prompts: PromptSet) -> None:
        init(self, prompts)
        self._weights = -self._weights

    return made


def test_a_run_that_is_given_up_does_not_wait_for_its_service(place):
    place.start()
    client = place.client(wait=60.0)
    client.score(frames(2))
    place.stop()
    with ThreadPoolExecutor(1) as pool:
        scoring = pool.submit(client.score, frames(2))
        time.sleep(0.3)
        client.close()
        with pytest.raises(GivenUp):
            scoring.result(600.0)
    place.start()
    assert client.score(frames(2)).shape == (2, 5), "a closed client connects again"
    client.close()


def test_stopping_answers_what_is_queued_and_sends_the_others_away(place):
    scorer = Patient()
    server = place.start(Engine(make=lambda spec, prompts: scorer))
    client = place.client()
    waiting = [client.begin([(client, frames(8, seed))]) for seed in range(3)]
    assert scorer.begun.wait(600.0)
    stopping = threading.Thread(target=place.stop)
    stopping.start()
    wait_until(lambda: server.engine._stopping)
    scorer.go.set()
    for seed, finish in enumerate(waiting):
        np.testing.assert_allclose(finish()[0], frames(8, seed)[:, 0, 0, :2] / 255.0, rtol=1e-6)
    stopping.join(600.0)
    assert not stopping.is_alive()
    client._connection._wait = 0.3
    with pytest.raises(RunError, match="has been away"):
        client.score(frames(1))


def test_a_service_that_is_away_later_is_waited_for_as_long_as_was_said(place):
    place.start()
    client = place.client(wait=1.0)
    client.score(frames(1))
    place.stop()
    begun = time.monotonic()
    with pytest.raises(RunError, match=r"has been away for 1 seconds .*resume it with --signal.service"):
        client.score(frames(1))
    assert time.monotonic() - begun >= 1.0


def test_a_slow_model_is_waited_for_and_a_silent_service_is_not(local, monkeypatch):
    monkeypatch.setattr("vlmsafe.signals.service.session._WAIT_SECONDS", 0.1)
    monkeypatch.setattr("vlmsafe.signals.service.connection._SILENCE_SECONDS", 0.5)
    scorer = Patient()
    local.start(Engine(make=lambda spec, prompts: scorer))
    client = local.client(wait=0.2)
    threading.Timer(1.2, scorer.go.set).start()
    assert client.score(frames(2)).shape == (2, 2), "it said every moment that all is well"
    monkeypatch.setattr("vlmsafe.signals.service.session._WAIT_SECONDS", 60.0)
    scorer.go.clear()
    with pytest.raises(RunError, match=r"has been away for .* \(it does not answer\)"):
        client.score(frames(2))
    scorer.go.set()


def test_a_service_that_comes_back_with_another_number_format_is_refused(local, monkeypatch):
    local.start()
    client = local.client()
    client.score(frames(2))
    local.stop()
    monkeypatch.setattr(frame_scorer.FrameScorer, "describe", lambda self: {"precision": "float8"})
    local.start()
    for _ in range(2):  # and whoever asks again hears the same
        with pytest.raises(RunError, match=r"came back with another model: .*float8"):
            client.score(frames(2))


def test_a_client_knows_the_source_of_a_users_scorer_and_refuses_another_one(local, monkeypatch):
    local.start()
    client = local.client()
    now = scorer_source(SPEC.scorer)
    assert client.source is not None
    assert now is not None
    assert client.source.digest == now.digest is not None
    assert "source" not in client.describe()
    client.score(frames(2))
    for files, problem in ((now.files, None), ({"frame_scorer.py": "other"}, "came back with another model")):
        local.stop()
        other = SourceHash(files, revision="another one, which does not matter")
        monkeypatch.setattr("vlmsafe.signals.scorers.user_code.hash_source", lambda modules, revision: other)  # noqa: B023
        monkeypatch.setattr("vlmsafe.signals.scorers.user_code._LOADED", {})
        local.start()
        with nullcontext() if problem is None else pytest.raises(RunError, match=problem):
            client.score(frames(2))


@pytest.mark.parametrize("stuck", ["connecting", "scoring"])
def test_whoever_waits_is_asked_whether_to_go_on(local, stuck):
    over = threading.Event()
    scorer = Patient()
    if stuck == "scoring":
        local.start(Engine(make=lambda spec, prompts: scorer))
    threading.Timer(0.5, over.set).start()
    with pytest.raises(GivenUp):
        local.client(wait=600.0, give_up=over.is_set).score(frames(2))
    scorer.go.set()


def test_a_message_that_stalls_is_sent_again(place, monkeypatch):
    """As over a network that hangs for a while in the midst of a block."""
    monkeypatch.setattr("vlmsafe.signals.service.session._MESSAGE_SECONDS", 0.2)
    place.start()
    client = place.client()
    client.score(frames(1))
    send, stalled = Channel.send, []

    def stall(channel: Channel, message: Message, fd: int | None = None) -> None:
        if isinstance(message, Score | ScoreFrames) and not stalled:
            stalled.append(message)
            channel.socket.sendall(encode(message)[:20])
            return
        send(channel, message, fd)

    monkeypatch.setattr(Channel, "send", stall)
    np.testing.assert_array_equal(client.score(frames(3)), FrameScorer(ONE).score(frames(3)))
    assert stalled
    client.close()


def test_a_batch_that_no_service_takes_is_refused_before_it_is_sent(local):
    local.start()
    client = local.client(spec=dataclasses.replace(SPEC, batch=4096))
    with pytest.raises(
        InputError, match="a service takes at most 2730 frames of 256 x 256 at a time, and the batch is"
    ):
        client.score(frames(1, size=256))
    client.close()


# Scorers that are at fault.


class Odd(Patient):
    """Says of itself, or gives, what cannot be sent."""

    def __init__(self, **odd) -> None:
        super().__init__()
        self.go.set()
        self.odd = odd

    def describe(self) -> dict:
        return self.odd.get("description", {})

    def notes(self, env: str | None = None) -> list[str]:
        return self.odd.get("notes", [])

    def score(self, inputs: np.ndarray) -> np.ndarray:
        if "raised" in self.odd:
            raise self.odd["raised"]
        return self.odd.get("found", super().score(inputs))


@pytest.mark.parametrize(
    "odd", [{"found": [[1.0], [1.0, 2.0]]}, {"raised": KeyboardInterrupt()}, {"notes": [object()]}]
)
def test_whatever_a_scorer_does_is_answered_and_the_service_goes_on(local, odd):
    scorer = Odd(**odd)
    server = local.start(Engine(make=lambda spec, prompts: scorer))
    client = local.client()
    with pytest.raises(VlmsafeError, match=r"raised (ValueError|KeyboardInterrupt|TypeError)"):
        client.score(frames(2)) if "notes" not in odd else client.notes("speeding")
    scorer.odd = {}
    assert client.score(frames(2)).shape == (2, 2)
    client.close()
    wait_until(lambda: server.clients == 0)


def test_a_scorer_that_cannot_be_described_is_the_users_error(local):
    server = local.start(Engine(make=lambda spec, prompts: Odd(description={"scale": np.float32(0.5)})))
    with pytest.raises(InputError, match="cannot be loaded: TypeError"):
        local.client()
    wait_until(lambda: server.clients == 0)


# Clients that go away.


def test_a_client_that_dies_while_waiting_is_forgotten(local):
    scorer = Patient()
    server = local.start(Engine(make=lambda spec, prompts: scorer))
    dying, there = local.client(), local.client()
    held = dying.begin([(dying, frames(8, 1))])
    assert scorer.begun.wait(600.0)
    left = [dying.begin([(dying, frames(8, seed))]) for seed in range(2)]
    wait_until(lambda: server.engine.describe()[0]["queued"] == 16)
    dying._connection.channel.socket.close()
    wait_until(lambda: len(server.engine._clients) == 1)
    scorer.go.set()
    assert there.score(frames(1)).shape == (1, 2)
    wait_until(lambda: server.clients == 1)
    assert scorer.seen == 9, "what it left in the queue was not scored"
    assert held
    assert left
    there.close()


def test_a_client_that_stops_reading_holds_up_nobody(local):
    local.start()
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(local.address.place)
    channel = Channel(raw)
    channel.send(Open.of(SPEC, ONE))
    layout = Layout((8, 8, 3), 8, 1)
    fd = os.memfd_create("frames", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, layout.size)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    channel.send(Attach(layout=layout, memory=True), fd)
    raw.settimeout(0.5)

    def ask_on_and_on() -> None:
        for number in range(200_000):
            channel.send(Score(number=number, slot=0, count=8))

    with pytest.raises(TimeoutError):  # the service no longer listens to it
        ask_on_and_on()
    client = local.client()
    assert client.score(frames(20)).shape == (20, 5)
    client.close()
    raw.close()
    os.close(fd)
    wait_until(lambda: local.server.clients == 0)


def test_there_is_an_end_to_clients(local):
    local.start(clients=1)
    first = local.client()
    with pytest.raises(RunError, match="has 1 clients already"):
        local.client(wait=0.3)
    first.close()
    wait_until(lambda: local.server.clients == 0)
    local.client().close()


# The process.


def serve(*arguments: str) -> subprocess.Popen[str]:
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2] / "support")]
    process = subprocess.Popen(
        [sys.executable, "-m", "vlmsafe", "serve", *arguments],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths))},
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    if "listening" not in line:
        raise RunError(line + process.communicate(timeout=600.0)[1])
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    process.stderr.close()


def test_the_command_serves_refuses_a_second_and_replaces_a_killed_one(tmp_path):
    path = tmp_path / "socket"
    first = serve("--socket", str(path))
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client = ServiceScorer(parse_address(f"unix:{path}"), SPEC, ONE, 30.0)
        expected = FrameScorer(ONE).score(frames(5))
        np.testing.assert_array_equal(client.score(frames(5)), expected)
        with pytest.raises(RunError, match="another service listens at"):
            serve("--socket", str(path))
        end(first)
        assert path.exists(), "it left its socket behind"
        second = serve("--socket", str(path))
        try:
            np.testing.assert_array_equal(client.score(frames(5)), expected)
            second.send_signal(signal.SIGTERM)
            assert second.wait(600.0) == 0
            assert not path.exists()
        finally:
            end(second)
        client.close()
    finally:
        end(first)


def test_it_listens_to_this_machine_alone_unless_told_otherwise(tmp_path):
    with pytest.raises(InputError, match="can be reached from other machines"):
        listen(parse_address("tcp:0.0.0.0:7711"))
    listener, _ = listen(parse_address(f"tcp:0.0.0.0:{free_port()}"), anywhere=True)
    listener.close()
    (tmp_path / "file").write_text("a user's own")
    with pytest.raises(InputError, match="is not a socket"):
        listen(parse_address(f"unix:{tmp_path / 'file'}"))
    assert (tmp_path / "file").read_text() == "a user's own"
    with pytest.raises(InputError, match="too long for a socket"):
        listen(parse_address(f"unix:{tmp_path / ('x' * 100)}"))
    with pytest.raises(InputError, match=r"cannot write .*\.lock"):
        listen(parse_address(f"unix:{tmp_path / 'nowhere' / 'socket'}"))


def test_a_service_on_tcp_asks_for_a_token_and_tells_who_has_none(monkeypatch):
    place = Place(parse_address(f"tcp:127.0.0.1:{free_port()}"))
    place.start(token="right")
    try:
        for token in (None, "wrong", "rightly"):
            if token is not None:
                monkeypatch.setenv(TOKEN, token)
            with pytest.raises(InputError, match=f"refused the token; set {TOKEN}"):
                place.client()
        assert place.server.engine.describe() == [], "nothing was loaded for them"
        monkeypatch.setenv(TOKEN, "right")
        client = place.client()
        np.testing.assert_array_equal(client.score(frames(3)), FrameScorer(ONE).score(frames(3)))
        assert "right" not in str(client.describe())
        client.close()
        monkeypatch.delenv(TOKEN)
        given = ServiceScorer(dataclasses.replace(place.address, token="right"), SPEC, ONE)
        assert "right" not in f"{given._connection.address} {given._connection.address!r}"
        given.close()
    finally:
        place.stop()


def test_the_command_does_not_serve_tcp_without_a_token(monkeypatch, capsys):
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(SystemExit):
        main(["serve", "--tcp", f"127.0.0.1:{free_port()}"])
    assert f"asks its clients for a token; set the environment variable {TOKEN}" in capsys.readouterr().err


def test_the_command_listens_in_the_users_directory_unless_it_is_told_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    served = []
    monkeypatch.setattr("vlmsafe.signals.service.server.serve", lambda address, **options: served.append(str(address)))
    main(["serve"])
    main(["serve", "--socket", str(tmp_path / "mine")])
    assert served == [f"unix:{tmp_path / 'vlmsafe' / 'scorer'}", f"unix:{tmp_path / 'mine'}"]
    with pytest.raises(SystemExit):
        main(["serve", "--socket", "a", "--tcp", "127.0.0.1:7000"])
    assert "a service listens at one place" in capsys.readouterr().err


def test_a_socket_of_another_user_is_refused(local, monkeypatch):
    local.start()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InputError, match=r"is run by another user \(uid \d+, yours is \d+\)"):
        local.client()


def test_sockets_have_a_directory_that_is_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert user_directory() == user_directory() == tmp_path / "vlmsafe"
    assert stat.S_IMODE((tmp_path / "vlmsafe").stat().st_mode) == 0o700
    for unusable in ("", str(tmp_path / "nowhere")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert user_directory() == tmp_path / f"vlmsafe-{os.geteuid()}"
    user_directory().chmod(0o755)
    with pytest.raises(InputError, match="must be a directory that is yours alone"):
        user_directory()
    user_directory_path = tmp_path / f"vlmsafe-{os.geteuid()}"
    user_directory_path.rmdir()
    user_directory_path.symlink_to(tmp_path / "vlmsafe")
    with pytest.raises(InputError, match="must be a directory that is yours alone"):
        user_directory()


class FakeRuntime:
    """Stands for the CUDA runtime: it checks that what is registered and unregistered is mapped at that time."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - as in CUDA
        self.calls.append(("register", is_mapped(address)))
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", is_mapped(address)))
        return 0


def is_mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def test_memory_that_a_gpu_has_registered_is_unregistered_before_it_is_unmapped(monkeypatch):
    """With a fake of the runtime's calls; on a GPU the same code runs with the real one."""
    torch = pytest.importorskip("torch")
    runtime, layout = FakeRuntime(), Layout((512, 512, 3), 8, 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    fd = os.memfd_create("frames", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, layout.size)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    scorer = Patient()
    scorer.describe = lambda: {"device": "cuda:0"}
    memory = mapped(fd, layout, scorer)
    os.close(fd)
    view = memory[1, :3]
    address = memory.ctypes.data
    del memory
    gc.collect()
    assert runtime.calls == [("register", True)], "a view is still in use"
    assert int(view.sum()) == 0
    del view
    gc.collect()
    assert runtime.calls == [("register", True), ("unregister", True)]
    assert not is_mapped(address)


def test_code_of_clients_runs_only_where_that_is_allowed(local):
    local.start(python=False)
    with pytest.raises(InputError, match="runs no code of its clients"):
        local.client()


@pytest.mark.parametrize("wrong", ["", "unix:", "tcp:host", "tcp:host:99999", "tcp::80", "http://host", "/tmp/socket"])
def test_addresses_that_are_none_are_refused(wrong):
    with pytest.raises(InputError, match="is not an address of a scoring service"):
        parse_address(wrong)


def test_a_client_needs_no_torch_and_a_service_no_simulator():
    """A run on a small machine asks one on a machine that has a GPU and little else."""
    absent = ("gymnasium", "polars", "tyro", "rich", "threadpoolctl", "metadrive", "torchvision")
    for module, without in (("client", ("torch", "transformers", *absent)), ("server", ("transformers", *absent))):
        code = f"import sys; sys.modules.update(dict.fromkeys({without})); import vlmsafe.signals.service.{module}"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=600.0)
