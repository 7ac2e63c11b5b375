"""A service and its clients on a Unix socket belong to one user; both sides check it."""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.service import sockets
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.server import Server
from vlmsafe.signals.service.sockets import check_client_user, check_service_user, listen, peer_user
from vlmsafe.signals.service.spec import ModelSpec, parse_address
from vlmsafe.signals.service.wire import Channel, Error, Open, Reason

PROMPTS = PromptSet(("a clear road",), ("danger",))
SPEC = ModelSpec("python:frame_scorer:FrameScorer", device="cpu", batch=8)
NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def pair():
    one, other = socket.socketpair(socket.AF_UNIX)
    yield one
    one.close()
    other.close()


def test_the_system_says_who_is_at_the_other_end(pair):
    assert peer_user(pair) == os.geteuid()
    check_client_user(pair)
    check_service_user(pair, parse_address("unix:/somewhere"))


def test_over_tcp_nobody_is_asked_who_they_are():
    with socket.socket() as connection:
        assert peer_user(connection) is None
        check_client_user(connection)


@pytest.mark.parametrize(
    ("own", "peer", "client_fits", "service_fits"),
    [(1000, 1000, True, True), (1000, 1001, False, False), (1000, 0, True, False), (0, 1000, False, False)],
)
def test_a_service_is_for_its_user_and_root_and_a_client_trusts_its_user_alone(
    pair, monkeypatch, own, peer, client_fits, service_fits
):
    """With a fake reader of credentials; the tests below have real ones."""
    monkeypatch.setattr(os, "geteuid", lambda: own)
    monkeypatch.setattr(sockets, "peer_user", lambda connection: peer)
    for fits, check, said in (
        (client_fits, lambda: check_client_user(pair), "scores for its own user"),
        (service_fits, lambda: check_service_user(pair, parse_address("unix:/somewhere")), "is run by another user"),
    ):
        if fits:
            check()
        else:
            with pytest.raises(InputError, match=said):
                check()


@pytest.fixture
def open_folder():
    """A folder in which every user can write."""
    folder = Path(tempfile.mkdtemp(prefix="vlmsafe-test-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_nobody(work: Callable[[int], None]) -> tuple[int, int]:
    """Fork a process of another user; its id, and a pipe that it writes to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work(writing)
    except BaseException as error:
        os.write(writing, f"failed: {error!r}".encode())
    finally:
        os._exit(0)


@root_only
@pytest.mark.slow
def test_a_service_refuses_a_client_of_another_user(open_folder):
    """The mode of the socket would keep it out; here somebody has changed it."""
    address = parse_address(f"unix:{open_folder / 'socket'}")
    listener, clean_up = listen(address)
    server = Server(listener)
    Path(address.place).chmod(0o666)

    def ask(writing: int) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60.0)
        connection.connect(address.place)
        channel = Channel(connection)
        channel.send(Open.of(SPEC, PROMPTS))
        message = channel.receive().message
        os.write(writing, f"{message.reason} {message.text}".encode() if isinstance(message, Error) else b"served")

    try:
        own = ServiceScorer(address, SPEC, PROMPTS, 10.0)
        child, reading = as_nobody(ask)
        said = os.read(reading, 4096).decode()
        os.waitpid(child, 0)
        os.close(reading)
        assert said.startswith(
            f"{Reason.INPUT.name} this service scores for its own user (uid 0) and not for uid 65534"
        )
        assert own.score(np.zeros((2, 8, 8, 3), np.uint8)).shape == (2, 2), "others do not notice"
        own.close()
    finally:
        server.stop()
        clean_up()


@root_only
@pytest.mark.slow
def test_a_client_refuses_a_service_of_another_user(open_folder):
    path = str(open_folder / "socket")

    def pretend(writing: int) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        os.write(writing, b"ready")
        signal.pause()

    child, reading = as_nobody(pretend)
    try:
        assert os.read(reading, 4096) == b"ready"
        with pytest.raises(InputError, match=r"is run by another user \(uid 65534, yours is 0\)"):
            ServiceScorer(parse_address(f"unix:{path}"), SPEC, PROMPTS, 10.0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
