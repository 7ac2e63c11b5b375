"""What a run asks a scoring service for, and where it finds one. Imports no library of models."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.signals.scorers.api import Precision

SOCKET_LIMIT = 100  # characters of a socket's path; the system takes few more


@dataclass(frozen=True)
class ModelSpec:
    """A model as a run asks for it. Two runs that ask for equal ones share it."""

    scorer: str
    """As parsed and made absolute, such as clip:openai/clip-vit-base-patch32."""
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    batch: int = 64


class ServiceStopped(VlmsafeError):
    """The service takes no more work; another one may take its place."""


class GivenUp(VlmsafeError):
    """Whoever waited for the service does so no longer."""


class NotShared(InputError):
    """A scorer that does not look at frames: it stays in the run's own process."""


@dataclass(frozen=True)
class Address:
    """Where a service is."""

    kind: Literal["unix", "tcp", "ray"]
    place: str
    """Path of a socket, host, or the name of a pool of Ray actors."""
    port: int = 0

    @property
    def absolute(self) -> Address:
        """The same place with a socket's path in full: a run may be resumed from another directory."""
        return replace(self, place=os.path.abspath(os.path.expanduser(self.place))) if self.kind == "unix" else self

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}" + (f":{self.port}" if self.kind == "tcp" else "")


def parse_address(text: str) -> Address:
    """unix:/path/to/socket, tcp:host:port or ray:NAME.

    >>> parse_address("tcp:localhost:7000")
    Address(kind='tcp', place='localhost', port=7000)
    """
    kind, _, place = text.partition(":")
    if kind == "unix" and ("\0" in place or len(os.fsencode(os.path.expanduser(place))) > SOCKET_LIMIT):
        raise InputError(
            f"the path {place!r} is too long for a socket; choose one of at most {SOCKET_LIMIT} characters"
        )
    if kind in ("unix", "ray") and place:
        return Address("unix" if kind == "unix" else "ray", place)
    host, _, port = place.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and 0 < int(port) < 65536:
        return Address("tcp", host.strip("[]"), int(port))
    raise InputError(
        f"'{text}' is no address of a scoring service; expected unix:<path>, tcp:<host>:<port> or ray:<name>"
    )
