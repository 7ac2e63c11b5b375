"""HTTP to an endpoint with the standard library: one connection per thread, kept open, and closed from outside."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

_LONGEST = 4 << 20  # bytes of an answer; one token with its alternatives takes a few thousand
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
        if kept is not None:
            before = self._hung_up
            try:
                return self._exchange(kept, method, path, body)
            except (ConnectionError, http.client.BadStatusLine):
                if self._hung_up != before:
                    raise  # ended from here, and not by the server while it was idle
        return self._exchange(self._connect(), method, path, body)

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

    def _connect(self) -> http.client.HTTPConnection:
        assert self._url.hostname is not None
        host, port = self._url.hostname, self._url.port
        encrypted = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if encrypted else http.client.HTTPConnection
        proxy = _proxy_for(self._url)
        if proxy is None:
            connection = kind(host, port, timeout=self._timeout)
        else:
            connection = kind(proxy.hostname or "", proxy.port, timeout=self._timeout)
            if encrypted:
                connection.set_tunnel(host, port or 443)
        with self._lock:
            self._open.add(connection)
        self._own.connection = connection
        return connection

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        self._own.connection = None
        connection.close()


def _proxy_for(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for a URL (http_proxy, https_proxy, no_proxy); None for none."""
    found = getproxies().get(url.scheme)
    if not found or proxy_bypass(url.hostname or ""):
        return None
    return urlsplit(found if "//" in found else f"//{found}")
