"""A client's connection to a scoring service: dialling, waiting for answers, and connecting again after a break.

When the connection breaks, `Connection.attempt` waits until a service is there again, connects, and repeats what it was
doing. What a client says on a new connection is up to the client (`service/client.py`).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.signals.scorers.api import ScorerFailure
from vlmsafe.signals.service.sockets import check_service_user
from vlmsafe.signals.service.spec import TOKEN, Address, GivenUp, NotShared, ServiceStopped
from vlmsafe.signals.service.wire import Channel, Error, Malformed, Message, Reason, Wait

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_TRY_SECONDS = 0.2  # between two attempts to connect
_SPEAK_SECONDS = 2.0  # of waiting before the user is told about it
_SILENCE_SECONDS = 20.0  # without a sign of life before a service counts as hanging
_LOSSES = 5  # connections in a row that may break before anything is answered


class Connection:
    """One thread uses it; `close` may be called by another."""

    def __init__(
        self,
        address: Address,
        locate: Callable[[], Address] | None,
        wait: float,
        give_up: Callable[[], bool],
        greet: Callable[[Channel], None],
    ) -> None:
        """`locate` says where the service is now, where that can change. `greet` is called with each new connection.

        A service may be away for `wait` seconds. Once `give_up` returns True, waiting ends with GivenUp.
        """
        self.address = address
        self.channel: Channel | None = None
        self._locate, self._wait, self._give_up, self._greet = locate, wait, give_up, greet
        self._heard = time.monotonic()  # when the service last gave a sign of life
        self._reached = False  # whether there has ever been a connection
        self._dialled = False  # whether there is a connection that has not been counted as lost
        self._losses = 0  # connections since the last answer that broke
        self._closed = threading.Event()

    def attempt(self, action: Callable[[Channel], T]) -> T:
        """Do something over the connection. If it breaks, wait for the service and do it again."""
        begun = time.monotonic()
        told = False
        while True:
            try:
                self._check_given_up()
                return action(self.channel if self.channel is not None else self._connect())
            except (OSError, UnicodeError, ServiceStopped) as error:
                self.hang_up()
                self._count_loss(error)
                away = time.monotonic() - max(begun, self._heard)
                if away > self._wait:
                    raise RunError(self._farewell(away, error)) from None
                if not told and away > _SPEAK_SECONDS:
                    told = True
                    print(f"waiting for the scoring service at {self.address}", file=sys.stderr, flush=True)
                self._closed.wait(min(_TRY_SECONDS, max(0.0, self._wait)))

    def receive(self, channel: Channel, kind: type[M], number: int = 0) -> M:
        """The next answer, which must be of a kind. Errors that the service sends are raised."""
        while True:
            self._await(channel)
            message = channel.receive().message
            if isinstance(message, Error):
                raise self._error(message)
            self._heard = time.monotonic()
            if isinstance(message, Wait):
                continue
            if not isinstance(message, kind) or message.number != number:
                came = f"{type(message).__name__} {message.number}"
                raise Malformed(f"the scoring service at {self.address} answered {came}, not {kind.__name__} {number}")
            return message

    def progressed(self) -> None:
        """Note that the service has answered for frames; losses are counted from here."""
        self._losses = 0

    def open_again(self) -> None:
        """Undo `close`: the next attempt connects again."""
        self._closed.clear()

    def close(self) -> None:
        """Hang up, and end the wait of the thread that uses the connection."""
        self._closed.set()
        channel = self.channel
        if channel is not None:
            with suppress(OSError):
                channel.socket.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Close the socket; the next attempt connects again."""
        if self.channel is not None:
            self.channel.socket.close()
            self.channel = None

    def _connect(self) -> Channel:
        if self._locate is not None:
            self.address = self._locate()
        self.channel = Channel(_dial(self.address))
        self._dialled = True
        try:
            self._greet(self.channel)
        except BaseException:
            self.hang_up()  # a connection that was greeted halfway is of no use later
            raise
        self._reached = True
        return self.channel

    def _count_loss(self, error: BaseException) -> None:
        """Give up on services that break off one after another; what they are asked may be what ends them."""
        if self._dialled and not isinstance(error, ServiceStopped):
            self._losses += 1
        self._dialled = False
        if self._losses < _LOSSES:
            return
        self._losses = 0
        then = ', then resume the run, or resume it with --signal.service "" to score by itself' * self._reached
        raise RunError(
            f"the scoring service at {self.address} went away {_LOSSES} times in a row before it had answered "
            f"({_reason(error)}), so the model or these frames may be what ends it; see its log{then}"
        )

    def _check_given_up(self) -> None:
        if self._closed.is_set() or self._give_up():
            raise GivenUp("the scoring service is not waited for any longer")

    def _await(self, channel: Channel) -> None:
        """Wait for a message. A working service sends one every five seconds; after a long silence it hangs."""
        poll = select.poll()
        poll.register(channel.socket, select.POLLIN)
        until = time.monotonic() + _SILENCE_SECONDS
        while not poll.poll(1e3 * _TRY_SECONDS):
            self._check_given_up()
            if time.monotonic() > until:
                raise TimeoutError("it does not answer")

    def _error(self, message: Error) -> VlmsafeError:
        match message.reason:
            case Reason.AGAIN.name:
                return ServiceStopped(message.text)
            case Reason.PRIVATE.name:
                return NotShared(message.text)
            case Reason.FAILURE.name:
                return ScorerFailure(message.text, message.details)
            case Reason.INPUT.name:
                return InputError(message.text)
            case Reason.TOKEN.name:
                return InputError(
                    f"the scoring service at {self.address} refused the token; set {TOKEN} to the one that it was "
                    "started with"
                )
        return RunError(f"the scoring service at {self.address} refused a message: {message.text}")

    def _farewell(self, away: float, error: BaseException) -> str:
        if not self._reached:
            return (
                f"there is no scoring service at {self.address} ({_reason(error)}); start one with `vlmsafe serve`, "
                'or score in the run itself with --signal.service ""'
            )
        return (
            f"the scoring service at {self.address} has been away for {away:.0f} seconds ({_reason(error)}); start "
            'one with `vlmsafe serve`, then resume the run, or resume it with --signal.service "" to score by itself'
        )


def _dial(address: Address) -> socket.socket:
    """A connection on which a message that has begun must go on."""
    if address.kind == "tcp":
        connection = socket.create_connection((address.place, address.port), timeout=10.0)
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(os.path.expanduser(address.place))
            check_service_user(connection, address)
        except BaseException:
            connection.close()
            raise
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(_SILENCE_SECONDS), 0))
    return connection


def _reason(error: BaseException) -> str:
    if isinstance(error, BlockingIOError):
        return "it does not answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
