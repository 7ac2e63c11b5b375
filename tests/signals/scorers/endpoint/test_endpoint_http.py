"""Connections to an endpoint that never comes about: whoever waits for them can be told to stop."""

import socket
import threading
import time

import pytest

from vlmsafe.signals.scorers.endpoint.http import Connections

TIMEOUT = 60.0


@pytest.fixture
def full():
    """A port at which nobody is let in any more: the system drops further attempts, as a firewall would."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for one in waiting:
            one.close()


@pytest.fixture
def mute():
    """A port that lets clients in and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def ended_after_hanging_up(url: str) -> tuple[float, BaseException | None]:
    """The seconds from hanging up until the request ended, and its error."""
    connections, problems = Connections(url, "", TIMEOUT), []

    def send() -> None:
        try:
            connections.send("GET", "/models")
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    time.sleep(0.5)  # it is connecting now
    assert thread.is_alive()
    begun = time.monotonic()
    connections.hang_up()
    thread.join(TIMEOUT / 2)
    return time.monotonic() - begun, problems[0] if problems else None


def test_a_connection_that_does_not_come_about_ends_with_hanging_up(full):
    seconds, problem = ended_after_hanging_up(f"http://127.0.0.1:{full}/v1")
    assert isinstance(problem, ConnectionError)
    assert seconds < TIMEOUT / 4


def test_agreeing_on_the_encryption_ends_with_hanging_up(mute):
    seconds, problem = ended_after_hanging_up(f"https://127.0.0.1:{mute}/v1")
    assert isinstance(problem, OSError)
    assert seconds < TIMEOUT / 4


def test_a_connection_that_does_not_come_about_ends_with_the_timeout(full):
    with pytest.raises(TimeoutError):
        Connections(f"http://127.0.0.1:{full}/v1", "", 0.3).send("GET", "/models")


def test_a_refused_connection_says_so():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        Connections(f"http://127.0.0.1:{port}/v1", "", TIMEOUT).send("GET", "/models")
