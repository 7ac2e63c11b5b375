"""The model that a run asks a scoring service for, and the service's address. Imports no model library."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Literal

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.signals.scorers.api import Precision

TOKEN = "VLMSAFE_SERVICE_TOKEN"
"""The environment variable with the token that a service on TCP asks for. It is never written to a file of a run."""
SOCKET_LIMIT = 100  # characters of a socket's path; the system allows only a few more


@dataclass(frozen=True)
class ModelSpec:
    """A model as a run asks for it. Runs with equal specifications share the model."""

    scorer: str
    """Its full name, with an absolute path if it has one, such as clip:openai/clip-vit-base-patch32."""
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    batch: int = 64
    frames: int | None = None
    """Frames in a stack, for a scorer that takes any number; None for its own."""


class ServiceStopped(VlmsafeError):
    """The service accepts no more work; another one may replace it."""


class WrongToken(VlmsafeError):
    """A client of a service on TCP has not the token that the service asks for."""


class GivenUp(VlmsafeError):
    """The client stopped waiting for the service."""


class NotShared(InputError):
    """The scorer does not look at frames, so it stays in the run's own process."""


@dataclass(frozen=True)
class Address:
    """The address of a service."""

    kind: Literal["unix", "tcp", "ray"]
    place: str
    """The path of a socket, a host, or the name of a pool of Ray actors."""
    port: int = 0
    token: str = field(default="", repr=False, compare=False)
    """What a service on TCP asks for, where it is not in the environment."""

    @property
    def absolute(self) -> Address:
        """The same address with the full path of a socket, so that a run can be resumed from another directory."""
        return replace(self, place=os.path.abspath(os.path.expanduser(self.place))) if self.kind == "unix" else self

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}" + (f":{self.port}" if self.kind == "tcp" else "")


def parse_address(text: str) -> Address:
    """Read an address: unix:/path/to/socket, tcp:host:port or ray:NAME.

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
        f"'{text}' is not an address of a scoring service; expected unix:<path>, tcp:<host>:<port> or ray:<name>"
    )
