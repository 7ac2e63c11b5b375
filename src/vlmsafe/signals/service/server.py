"""The service process: it accepts connections, passes blocks of frames to the engine, and returns similarities.

Each client has two threads. One reads its messages; it waits while the client's queue is full, so back-pressure reaches
the client through its socket. The other writes answers in the order of the questions, so a client that stops reading
delays nobody else. A client on the same machine shares the memory of its frames. The server maps it read-only, and only
if it is sealed against shrinking, because reading beyond its end would kill the server.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import queue
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.signals.scorers.api import Scorer, failure_of
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.signals.service.client import describe_scorer
from vlmsafe.signals.service.engine import Engine
from vlmsafe.signals.service.sockets import listen
from vlmsafe.signals.service.spec import TOKEN, Address, NotShared, ServiceStopped, WrongToken
from vlmsafe.signals.service.wire import (
    F_GET_SEALS,
    F_SEAL_SHRINK,
    Channel,
    Kind,
    Layout,
    Malformed,
    Message,
    error_body,
    fields,
    frames_limit,
    kind_of_error,
    read_attach,
    read_frames,
    read_open,
    read_slot,
    scores_parts,
)

_ARENA_MAX = -8  # option of mallopt: the number of heaps
_FIRST_SECONDS = 10.0  # for the first message of a new client
_MESSAGE_SECONDS = 30.0  # for a message that has begun, or for a client to take an answer
_WAIT_SECONDS = 5.0  # between two WAIT messages to a waiting client
_PARTING_SECONDS = 1.0  # to read what is left before closing
_UNSENT = 64  # unread answers at which the server stops reading a client's messages

Answer = tuple[int, "Future[Any]", Callable[[Any], tuple[Kind, tuple[Any, ...]]]]


class Server:
    """Accepts clients until it is stopped. One engine serves all of them."""

    def __init__(
        self,
        listener: socket.socket,
        engine: Engine | None = None,
        *,
        clients: int = 256,
        python: bool = True,
        token: str = "",
    ) -> None:
        """`python` says whether clients may name a scorer of their own, whose code then runs in this process. Clients
        must show `token`, if there is one."""
        self.engine = engine or Engine()
        self._listener, self._most, self._python, self._token = listener, clients, python, token
        self._connections: set[_Connection] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        listener.settimeout(0.2)
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the queued work, refuse new work, and hang up after all answers are sent."""
        self._stopping.set()
        self._thread.join()
        self._listener.close()
        self.engine.stop()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.end()
        for connection in connections:
            connection.join()

    @property
    def clients(self) -> int:
        with self._lock:
            return len(self._connections)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # usually no descriptors are left; try again later
                print(f"cannot accept a client: {error}", file=sys.stderr, flush=True)
                self._stopping.wait(1.0)
                continue
            accepted.setblocking(True)
            with self._lock:
                full = len(self._connections) >= self._most
                if not full:
                    connection = _Connection(accepted, self.engine, self._python, self._token, self._forget)
                    self._connections.add(connection)
            if full:
                threading.Thread(target=self._turn_away, args=(accepted,), daemon=True).start()
            else:
                connection.start()

    def _turn_away(self, connection: socket.socket) -> None:
        busy = ServiceStopped(f"the service has {self._most} clients already")
        with suppress(OSError):
            Channel(connection).send_json(Kind.ERROR, 0, error_body("busy", busy))
        _part(connection)

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)


class _Connection:
    """One client's connection, with the threads that read and write."""

    def __init__(
        self,
        connection: socket.socket,
        engine: Engine,
        python: bool,
        token: str,
        forget: Callable[[_Connection], None],
    ) -> None:
        self._channel, self._engine, self._forget = Channel(connection), engine, forget
        self._python, self._token = python, token
        if not self._channel.local:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit(connection, socket.SO_SNDTIMEO, _MESSAGE_SECONDS)
        self._key: int | None = None
        self._name = ""
        self._scorer: Scorer
        self._layout: Layout | None = None
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

    # Reading.

    def _read(self) -> None:
        number = 0
        try:
            while True:
                message = self._next()
                number = message.number
                try:
                    self._take(message)
                finally:
                    if message.fd is not None:
                        os.close(message.fd)
        except BlockingIOError:
            self._refuse(number, "late", Malformed("a message did not come in time"))
        except OSError:  # the client is gone, so nobody needs its answers
            if self._key is not None:
                self._engine.close(self._key)
        except Malformed as error:
            self._refuse(number, "malformed", error)
        except ServiceStopped as error:
            self._refuse(number, "stopping", error)
        except NotShared as error:
            self._refuse(number, "private", error)
        except WrongToken as error:
            self._refuse(number, "token", error)
        except VlmsafeError as error:
            self._refuse(number, kind_of_error(error), error)
        except BaseException as error:  # from a user's scorer, such as notes that cannot be sent
            self._refuse(number, "failure", failure_of(self._name, error))
        finally:
            self._answers.put(None)

    def _next(self) -> Message:
        """The next message. A client may be silent for hours, but not within a message or before its first one."""
        connection = self._channel.socket
        _limit(connection, socket.SO_RCVTIMEO, _FIRST_SECONDS if self._key is None else 0.0)
        if not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("the client has closed the connection")
        _limit(connection, socket.SO_RCVTIMEO, _MESSAGE_SECONDS)
        return self._channel.receive()

    def _take(self, message: Message) -> None:
        if message.kind is Kind.OPEN and self._key is None:
            self._open(message)
        elif message.kind is Kind.NOTES and self._key is not None:
            env = fields(message.body, {"env": str | None})["env"]
            self._answer(message.number, Kind.NOTED, {"notes": self._scorer.notes(env)})
        elif message.kind is Kind.ATTACH and self._key is not None:
            self._attach(message)
        elif message.kind is Kind.SCORE and self._layout is not None:
            self._score(message, self._layout)
        else:
            raise Malformed(f"{message.kind.name} is not expected now")

    def _open(self, message: Message) -> None:
        spec, prompts, threads = read_open(message.body, self._token)
        self._name = spec.scorer
        if parse_scorer(spec.scorer).kind.user_code and not self._python:
            raise InputError(f"this service runs no code of its clients, such as '{spec.scorer}'; score without it")
        opening: Future[Any] = Future()
        self._answers.put((message.number, opening, lambda content: (Kind.OPENED, (content,))))
        try:
            opened = self._engine.open(spec, prompts, threads=threads)
            self._key, self._scorer = opened.key, opened.scorer
            content = json.dumps(describe_scorer(opened.scorer)).encode()
        except BaseException as error:  # from the model's libraries or the user's code
            opening.cancel()
            if isinstance(error, VlmsafeError):
                raise
            raise InputError(f"'{spec.scorer}' cannot be loaded: {type(error).__name__}: {error}") from error
        opening.set_result(content)

    def _attach(self, message: Message) -> None:
        layout, through_memory = read_attach(message.body)
        if through_memory != (message.fd is not None):
            raise Malformed("frames in memory come with its descriptor, others without one")
        self._memory = None if message.fd is None else _mapped(message.fd, layout, self._scorer)
        self._layout = layout
        self._channel.body_limit = max(self._channel.body_limit, 0 if through_memory else frames_limit(layout))
        self._answer(message.number, Kind.ATTACHED, {})

    def _score(self, message: Message, layout: Layout) -> None:
        if self._memory is None:
            frames = read_frames(message.body, layout)
        else:
            slot, count = read_slot(message.body, layout)
            frames = self._memory[slot, :count]
        assert self._key is not None
        found = self._engine.submit(self._key, frames)
        self._answers.put((message.number, found, lambda rows: (Kind.SCORES, scores_parts(rows))))

    def _answer(self, number: int, kind: Kind, content: Any) -> None:
        ready: Future[Any] = Future()
        ready.set_result(json.dumps(content).encode())
        self._answers.put((number, ready, lambda content: (kind, (content,))))

    def _refuse(self, number: int, kind: str, error: VlmsafeError) -> None:
        self._answer(number, Kind.ERROR, error_body(kind, error))

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
                    self._hang_up()
        finally:
            if self._key is not None:
                self._engine.close(self._key)
            _part(self._channel.socket)
            self._forget(self)

    def _send(self, number: int, future: Future[Any], message: Callable[[Any], tuple[Kind, tuple[Any, ...]]]) -> None:
        try:
            while True:
                try:
                    kind, parts = message(future.result(_WAIT_SECONDS))
                    break
                except TimeoutError:
                    self._channel.send(Kind.WAIT, number)
        except CancelledError:
            return
        except VlmsafeError as error:
            kind, parts = Kind.ERROR, (json.dumps(error_body(kind_of_error(error), error)).encode(),)
        self._channel.send(kind, number, *parts)

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)


def _mapped(fd: int, layout: Layout, scorer: Scorer) -> NDArray[np.uint8]:
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


def _part(connection: socket.socket) -> None:
    """Close a connection. Unread messages are read first; otherwise the system would drop the last answer."""
    with suppress(OSError), connection:
        connection.shutdown(socket.SHUT_WR)
        _limit(connection, socket.SO_RCVTIMEO, _PARTING_SECONDS)
        for _ in range(1024):
            if not connection.recv(65536):
                break


def _limit(connection: socket.socket, option: int, seconds: float) -> None:
    """Limit how long a call may take in one direction; Python's own timeouts apply to both."""
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def share_buffers() -> None:
    """Let all threads reuse freed buffers, if the C library is glibc.

    By default glibc keeps freed buffers per thread, so every thread would hold the memory that a block needs.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, 1)


def serve(
    address: Address,
    *,
    engine: Engine | None = None,
    anywhere: bool = False,
    python: bool | None = None,
    clients: int = 256,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Listen until SIGTERM or SIGINT, then finish the queued work. A second signal ends the process at once.

    On TCP, where no file mode keeps others out, clients must show the token that is in the environment.
    """
    token = os.environ.get(TOKEN, "") if address.kind == "tcp" else ""
    if address.kind == "tcp" and not token:
        raise InputError(
            f"a service on TCP asks its clients for a token; set the environment variable {TOKEN} here and for the "
            f"runs, for example: export {TOKEN}=$(openssl rand -hex 16)"
        )
    share_buffers()
    stopping = threading.Event()

    def stop(number: int, _: Any) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    listener, clean_up = listen(address, anywhere=anywhere)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        allowed = address.kind == "unix" if python is None else python
        server = Server(listener, engine, clients=clients, python=allowed, token=token)
        ready()
        told = False
        # Python handles a signal when this thread wakes, even if another thread received it.
        while not stopping.wait(0.5):
            if not told and address.kind == "unix" and not os.path.exists(os.path.expanduser(address.place)):
                told = True
                print(
                    f"{address.place} was removed: connected clients are still served, but new ones cannot find the "
                    "service; stop it and start another",
                    file=sys.stderr,
                    flush=True,
                )
        server.stop()
    finally:
        clean_up()
