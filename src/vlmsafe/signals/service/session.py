"""One client's connection to a service.

Each client has two threads. One reads its messages; it waits while the client's queue is full, so back-pressure reaches
the client through its socket. The other writes answers in the order of the questions, so a client that stops reading
delays nobody else. A client on the same machine shares the memory of its frames. The service maps it read-only, and
only if it is sealed against shrinking, because reading beyond its end would kill the service.
"""

from __future__ import annotations

import fcntl
import hmac
import math
import mmap
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.signals.scorers.api import Scorer, failure_of
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.signals.service.client import describe_scorer
from vlmsafe.signals.service.engine import Engine
from vlmsafe.signals.service.spec import ServiceStopped, WrongToken
from vlmsafe.signals.service.wire import (
    BODY_LIMIT,
    F_GET_SEALS,
    F_SEAL_SHRINK,
    REQUESTS,
    AskNotes,
    Attach,
    Attached,
    Channel,
    Error,
    Layout,
    Malformed,
    Message,
    Noted,
    Open,
    Received,
    Score,
    Scored,
    ScoreFrames,
    Wait,
    encode,
)

_FIRST_SECONDS = 10.0  # for the first message of a new client, to begin and to be whole
_MESSAGE_SECONDS = 30.0  # for a message that has begun, or for a client to take an answer
_WAIT_SECONDS = 5.0  # between two Wait messages to a waiting client
_PARTING_SECONDS = 1.0  # to read what is left before closing
_UNSENT = 64  # unread answers at which the service stops reading a client's messages

Answer = tuple[int, "Future[Any]", Callable[[Any], Message]]
"""The number of a question, its result, and a function that makes a message of the result."""


class Stage(Enum):
    """How far a client has come."""

    NEW = "new"
    OPEN = "open"
    ATTACHED = "attached"


_EXPECTED: dict[Stage, tuple[type[Message], ...]] = {
    Stage.NEW: (Open,),
    Stage.OPEN: (AskNotes, Attach),
    Stage.ATTACHED: (AskNotes, Attach, Score, ScoreFrames),
}
"""The messages that a client may send at each stage."""


class Session:
    """One client's connection, with the threads that read and write."""

    def __init__(
        self,
        connection: socket.socket,
        engine: Engine,
        python: bool,
        token: str,
        forget: Callable[[Session], None],
    ) -> None:
        """`python` and `token` are the server's. `forget` is called when the connection is closed."""
        self._channel, self._engine, self._forget = Channel(connection, REQUESTS), engine, forget
        self._python, self._token = python, token
        if not self._channel.local:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A client whose machine is gone would keep its model in memory for ever.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _limit(connection, socket.SO_SNDTIMEO, _MESSAGE_SECONDS)
        self._stage = Stage.NEW
        self._key: int | None = None
        self._name = ""
        self._scorer: Scorer
        self._layout: Layout
        self._memory: NDArray[np.uint8] | None = None
        self._answers: queue.Queue[Answer | None] = queue.Queue(_UNSENT)
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="writer", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._writer.start()

    def end(self) -> None:
        """Accept no more messages; questions that came before are still answered."""
        with suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RD)

    def join(self) -> None:
        self._reader.join(_MESSAGE_SECONDS)
        self._writer.join(_MESSAGE_SECONDS)

    def hang_up(self) -> None:
        with suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)

    # Reading.

    def _read(self) -> None:
        number = 0
        try:
            while True:
                received = self._next()
                number = received.message.number
                try:
                    self._take(received)
                finally:
                    if received.fd is not None:
                        os.close(received.fd)
        except BlockingIOError:
            self._refuse(number, ServiceStopped("a message did not come in time"))
        except OSError:  # the client is gone, so nobody needs its answers
            if self._key is not None:
                self._engine.close(self._key)
        except VlmsafeError as error:
            self._refuse(number, error)
        except BaseException as error:  # from a user's scorer, such as notes that cannot be sent
            self._refuse(number, failure_of(self._name, error))
        finally:
            self._answers.put(None)

    def _next(self) -> Received:
        """The next message. A client may be silent for hours, but not within a message or before its first one."""
        connection, new = self._channel.socket, self._stage is Stage.NEW
        # Whoever has not shown a token yet holds a place among the clients, and must not do so byte by byte.
        self._channel.until = time.monotonic() + _FIRST_SECONDS if new else math.inf
        _limit(connection, socket.SO_RCVTIMEO, _FIRST_SECONDS if new else 0.0)
        if not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("the client has closed the connection")
        if not new:
            _limit(connection, socket.SO_RCVTIMEO, _MESSAGE_SECONDS)
        return self._channel.receive()

    def _take(self, received: Received) -> None:
        message = received.message
        if not isinstance(message, _EXPECTED[self._stage]):
            raise Malformed(f"{type(message).__name__} is not expected from a client that is {self._stage.value}")
        match message:
            case Open():
                self._open(message)
            case AskNotes():
                self._answer(Noted(number=message.number, notes=_texts(self._scorer.notes(message.env))))
            case Attach():
                self._attach(message, received.fd)
            case Score() | ScoreFrames():
                self._score(message)

    def _open(self, message: Open) -> None:
        if self._token and not hmac.compare_digest(message.token.encode(), self._token.encode()):
            raise WrongToken("the token is another one, or there is none")
        spec, prompts = message.model(), message.prompt_set()
        self._name = spec.scorer
        if parse_scorer(spec.scorer).kind.user_code and not self._python:
            raise InputError(f"this service runs no code of its clients, such as '{spec.scorer}'; score without it")
        opening: Future[Message] = Future()  # loading may take long, and the client is told to wait
        self._answers.put((message.number, opening, lambda answer: answer))
        try:
            opened = self._engine.open(spec, prompts, threads=message.threads)
            self._key, self._scorer = opened.key, opened.scorer
            about = describe_scorer(opened.scorer, message.number)
            encode(about)  # a user's scorer may describe itself by what cannot be sent
        except BaseException as error:  # from the model's libraries or the user's code
            opening.cancel()
            if isinstance(error, VlmsafeError):
                raise
            raise InputError(f"'{spec.scorer}' cannot be loaded: {type(error).__name__}: {error}") from error
        self._stage = Stage.OPEN
        opening.set_result(about)

    def _attach(self, message: Attach, fd: int | None) -> None:
        layout = message.layout
        if message.memory != (fd is not None):
            raise Malformed("frames in memory come with its descriptor, others without one")
        self._memory = None if fd is None else mapped(fd, layout, self._scorer)
        self._layout = layout
        self._channel.body_limit = BODY_LIMIT + (0 if message.memory else layout.block_bytes)
        self._stage = Stage.ATTACHED
        self._answer(Attached(number=message.number))

    def _score(self, message: Score | ScoreFrames) -> None:
        layout = self._layout
        if isinstance(message, ScoreFrames):
            frames = message.array(layout)
        elif self._memory is None or message.slot >= layout.slots or message.count > layout.block:
            slots = 0 if self._memory is None else layout.slots
            raise Malformed(
                f"there is no slot {message.slot} with {message.count} frames; {slots} hold {layout.block} each"
            )
        else:
            frames = self._memory[message.slot, : message.count]
        assert self._key is not None
        found, number = self._engine.submit(self._key, frames), message.number
        self._answers.put((number, found, lambda rows: Scored.of(rows, number)))

    def _answer(self, message: Message) -> None:
        ready: Future[Message] = Future()
        ready.set_result(message)
        self._answers.put((message.number, ready, lambda answer: answer))

    def _refuse(self, number: int, error: VlmsafeError) -> None:
        self._answer(refusal(self._engine, error, number))

    # Writing.

    def _write(self) -> None:
        broken = False
        try:
            while (answer := self._answers.get()) is not None:
                if broken:
                    continue  # empty the queue, so that the reader does not wait for room
                try:
                    self._send(*answer)
                except OSError:
                    broken = True
                    self.hang_up()
        finally:
            if self._key is not None:
                self._engine.close(self._key)
            part(self._channel.socket)
            self._forget(self)

    def _send(self, number: int, future: Future[Any], make: Callable[[Any], Message]) -> None:
        try:
            while True:
                try:
                    message = make(future.result(_WAIT_SECONDS))
                    break
                except TimeoutError:
                    self._channel.send(Wait(number=number))
        except CancelledError:
            return
        except VlmsafeError as error:
            message = Error.of(error, number)
        self._channel.send(message)


def refusal(engine: Engine, error: VlmsafeError, number: int = 0) -> Error:
    """An error for a client, which is counted."""
    message = Error.of(error, number)
    engine.metrics.count("refusals", 1, (("reason", message.reason.lower()),))
    return message


def mapped(fd: int, layout: Layout, scorer: Scorer) -> NDArray[np.uint8]:
    """A client's memory as a read-only array [slots, block, height, width, channels]."""
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError:
        raise Malformed("the descriptor is not one of shared memory") from None
    if not seals & F_SEAL_SHRINK:
        raise Malformed("the memory may still shrink; it must be sealed against it")
    if os.fstat(fd).st_size != layout.size:
        raise Malformed(f"the memory has {os.fstat(fd).st_size} bytes, and the frames need {layout.size}")
    memory = mmap.mmap(fd, layout.size, mmap.MAP_SHARED, mmap.PROT_READ)
    frames = np.frombuffer(memory, np.uint8)
    if str(scorer.describe().get("device", "")).startswith("cuda"):
        from vlmsafe.signals.scorers.batches import pin  # imported late: only models need torch

        pin(frames, memory)  # if this fails, frames are copied once more
    return frames.reshape(layout.slots, layout.block, *layout.shape)


def _texts(notes: Any) -> list[str]:
    """A user's scorer may give anything; a client would refuse what is no text."""
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise TypeError("notes must be a list of texts")
    return notes


def part(connection: socket.socket) -> None:
    """Close a connection. Unread messages are read first; otherwise the system would drop the last answer."""
    with suppress(OSError), connection:
        connection.shutdown(socket.SHUT_WR)
        _limit(connection, socket.SO_RCVTIMEO, _PARTING_SECONDS)
        until = time.monotonic() + _PARTING_SECONDS
        while connection.recv(65536) and time.monotonic() < until:
            pass


def _limit(connection: socket.socket, option: int, seconds: float) -> None:
    """Limit how long a call may take in one direction; Python's own timeouts apply to both."""
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
