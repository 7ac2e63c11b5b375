"""HTTP to an endpoint with the standard library: one connection per thread, kept open, and closed from outside."""

from __future__ import annotations

import errno
import functools
import http.client
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

_LONGEST = 4 << 20  # bytes of an answer; one token with its alternatives takes a few thousand
_TICK = 0.1  # seconds between two looks at whether to stop connecting
_JSON = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "vlmsafe"}


@dataclass(frozen=True)
class Response:
    """What came back for a request."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes


class Connections:
    """The connections to one endpoint. Any thread may send; `hang_up` ends the requests of all threads."""

    def __init__(self, url: str, token: str, timeout: float) -> None:
        self._url, self._timeout = urlsplit(url), timeout
        self._headers = _JSON | ({"Authorization": f"Bearer {token}"} if token else {})
        self._own = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._hung_up = 0  # how often

    def send(self, method: str, path: str, body: bytes | None = None) -> Response:
        """Send a request and read its answer; OSError or HTTPException if there is none.

        A server may have closed a connection that was kept open. The request is then sent again over a new one, once.
        """
        kept: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        before = self._hung_up
        if kept is not None:
            try:
                return self._exchange(kept, method, path, body)
            except (ConnectionError, http.client.BadStatusLine):
                if self._hung_up != before:
                    raise  # ended from here, and not by the server while it was idle
        return self._exchange(self._connection(before), method, path, body)

    def hang_up(self) -> None:
        """End every request under way; its thread gets an OSError."""
        with self._lock:
            self._hung_up += 1
            for connection in self._open:
                # Closing alone would not wake a thread that reads.
                with suppress(OSError, AttributeError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _exchange(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None) -> Response:
        try:
            connection.request(method, self._target(path), body, self._headers)
            answer = connection.getresponse()
            data = answer.read(_LONGEST + 1)
            if len(data) > _LONGEST:
                raise http.client.HTTPException(f"an answer of more than {_LONGEST >> 20} MB")
            if answer.will_close:
                self._drop(connection)
            return Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, data)
        except BaseException:
            self._drop(connection)
            raise

    def _target(self, path: str) -> str:
        where = f"{self._url.path}{path}"
        plain = self._url.scheme == "http" and _proxy_for(self._url) is not None
        return f"{self._url.scheme}://{self._url.netloc}{where}" if plain else where

    def _connection(self, before: int) -> http.client.HTTPConnection:
        """A new connection, which is made by the first request over it; `before` says how often was hung up."""
        assert self._url.hostname is not None
        host, port = self._url.hostname, self._url.port
        encrypted = self._url.scheme == "https"
        kind = _Encrypted if encrypted else http.client.HTTPConnection
        proxy = _proxy_for(self._url)
        if proxy is None:
            connection = kind(host, port, timeout=self._timeout)
        else:
            connection = kind(proxy.hostname or "", proxy.port, timeout=self._timeout)
            if encrypted:
                connection.set_tunnel(host, port or 443)
        connection._create_connection = functools.partial(self._dial, before)  # type: ignore[attr-defined]
        with self._lock:
            self._open.add(connection)
        self._own.connection = connection
        return connection

    def _dial(self, before: int, address: tuple[str, int], timeout: float, source: Any = None) -> socket.socket:
        """As socket.create_connection, which nobody could end before its timeout."""
        problem: OSError = ConnectionError(f"{address[0]} has no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            connecting = socket.socket(family, kind, protocol)
            try:
                self._reach(before, connecting, place, time.monotonic() + timeout)
                connecting.settimeout(timeout)
                return connecting
            except OSError as error:
                connecting.close()
                problem = error
                if self._hung_up != before:
                    break
        raise problem

    def _reach(self, before: int, connecting: socket.socket, place: Any, until: float) -> None:
        connecting.setblocking(False)
        code = connecting.connect_ex(place)
        poll = select.poll()
        poll.register(connecting, select.POLLOUT)
        while code == errno.EINPROGRESS:
            if self._hung_up != before:
                raise ConnectionAbortedError("ended from here")
            if time.monotonic() >= until:
                raise TimeoutError("no connection in time")
            if poll.poll(1000.0 * _TICK):
                code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        self._own.connection = None
        connection.close()


class _Encrypted(http.client.HTTPSConnection):
    """Its socket is known while both sides agree on the encryption, so that this can be ended from outside too."""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        host = self._tunnel_host or self.host  # type: ignore[attr-defined]
        encrypted: ssl.SSLSocket = self._context.wrap_socket(  # type: ignore[attr-defined]
            self.sock, server_hostname=host, do_handshake_on_connect=False
        )
        self.sock = encrypted
        encrypted.do_handshake()


def _proxy_for(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for a URL (http_proxy, https_proxy, no_proxy); None for none."""
    found = getproxies().get(url.scheme)
    if not found or proxy_bypass(url.hostname or ""):
        return None
    return urlsplit(found if "//" in found else f"//{found}")
