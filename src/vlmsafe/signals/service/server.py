"""The service process: it accepts connections until it is told to stop. `session.py` talks to each client."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.signals.service.engine import Engine
from vlmsafe.signals.service.metrics import MetricsServer
from vlmsafe.signals.service.session import Session, part, refusal
from vlmsafe.signals.service.sockets import check_client_user, listen
from vlmsafe.signals.service.spec import TOKEN, Address, ServiceStopped
from vlmsafe.signals.service.wire import Channel

_ARENA_MAX = -8  # option of mallopt: the number of heaps


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
        self._sessions: set[Session] = set()
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
            sessions = list(self._sessions)
        for session in sessions:
            session.end()
        for session in sessions:
            session.join()

    @property
    def clients(self) -> int:
        with self._lock:
            return len(self._sessions)

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
            try:
                self._admit(accepted)
            except (OSError, RuntimeError) as error:  # no thread can be started, or the client is gone already
                print(f"cannot serve a client: {error}", file=sys.stderr, flush=True)
                part(accepted)
            except VlmsafeError as error:
                threading.Thread(target=self._turn_away, args=(accepted, error), daemon=True).start()

    def _admit(self, accepted: socket.socket) -> None:
        check_client_user(accepted)
        with self._lock:
            if len(self._sessions) >= self._most:
                raise ServiceStopped(f"the service has {self._most} clients already")
            session = Session(accepted, self.engine, self._python, self._token, self._forget)
            self._sessions.add(session)
        try:
            session.start()
        except BaseException:
            self._forget(session)
            raise

    def _turn_away(self, connection: socket.socket, error: VlmsafeError) -> None:
        with suppress(OSError):
            Channel(connection).send(refusal(self.engine, error))
        part(connection)

    def _forget(self, session: Session) -> None:
        with self._lock:
            self._sessions.discard(session)


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
    metrics: Address | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Listen until SIGTERM or SIGINT, then finish the queued work. A second signal ends the process at once.

    On TCP, where no file mode keeps others out, clients must show the token that is in the environment. `metrics` is
    a TCP address at which Prometheus can ask what the service does.
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

    shown = listen(metrics, anywhere=anywhere)[0] if metrics is not None else None
    listener, clean_up = listen(address, anywhere=anywhere)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        allowed = address.kind == "unix" if python is None else python
        server = Server(listener, engine, clients=clients, python=allowed, token=token)
        page = MetricsServer(shown, server.engine.expose) if shown is not None else None
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
        if page is not None:
            page.stop()
    finally:
        clean_up()
