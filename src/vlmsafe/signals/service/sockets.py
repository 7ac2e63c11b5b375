"""Where a service listens: a Unix socket that only its owner can use, or TCP, by default for this machine only."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from vlmsafe.errors import InputError, RunError
from vlmsafe.signals.service.spec import SOCKET_LIMIT, Address


def user_directory() -> Path:
    """A directory for sockets that only its owner can use: in $XDG_RUNTIME_DIR, or else in that for temporary files.

    Where everybody can write, somebody else could put a socket in place of one's own.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = Path(runtime) if runtime and os.access(runtime, os.W_OK) else None
    path = parent / "vlmsafe" if parent else Path(tempfile.gettempdir()) / f"vlmsafe-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise InputError(
            f"cannot make the directory {path} for sockets: {error.strerror}; set XDG_RUNTIME_DIR"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InputError(
            f"{path} must be a directory that is yours alone (mode 0700), for sockets; move it away, or set "
            "XDG_RUNTIME_DIR to another directory"
        )
    return path


_CREDENTIALS = struct.Struct("3i")  # process, user and group of the other end of a Unix socket


def peer_user(connection: socket.socket) -> int | None:
    """The user at the other end of a Unix socket. None if the system does not say: over TCP, or without SO_PEERCRED."""
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def check_service_user(connection: socket.socket, address: Address) -> None:
    """Refuse a service of another user, who could have put a socket where one's own used to be."""
    user = peer_user(connection)
    if user not in (None, os.geteuid()):
        raise InputError(
            f"the service at {address} is run by another user (uid {user}, yours is {os.geteuid()}), who would see "
            "your frames and choose your scores; start one of your own with `vlmsafe serve`"
        )


def check_client_user(connection: socket.socket) -> None:
    """Refuse a client of another user, which the mode of the socket should have kept out; root may use any service."""
    user = peer_user(connection)
    if user not in (None, os.geteuid(), 0):
        raise InputError(
            f"this service scores for its own user (uid {os.geteuid()}) and not for uid {user}; start one of your own "
            "with `vlmsafe serve`"
        )


def listen(address: Address, *, anywhere: bool = False) -> tuple[socket.socket, Callable[[], None]]:
    """A socket that listens at an address, and a function that cleans up after it."""
    if address.kind == "unix":
        return _listen_unix(Path(address.place).expanduser())
    if address.kind != "tcp":
        raise InputError(f"a service cannot listen at '{address}'; expected unix:<path> or tcp:<host>:<port>")
    try:
        found = socket.getaddrinfo(address.place, address.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"cannot find the host '{address.place}': {error.strerror}") from None
    if not anywhere and not ipaddress.ip_address(found[4][0]).is_loopback:
        raise InputError(
            f"{address.place} can be reached from other machines, and frames and the token are sent unencrypted; "
            "use 127.0.0.1, or pass --anywhere if you trust the network"
        )
    listener = socket.socket(found[0], socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(found[4])
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise RunError(f"cannot listen at {address}: {error.strerror}; is another service there?") from None
    return listener, lambda: None


def _listen_unix(path: Path) -> tuple[socket.socket, Callable[[], None]]:
    """A socket that only its owner can use. A lock file shows whether a running service holds it."""
    if len(os.fsencode(path)) > SOCKET_LIMIT:
        raise InputError(f"the path {path} is too long for a socket; choose one of at most {SOCKET_LIMIT} characters")
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"cannot write {path}.lock: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise RunError(f"another service listens at {path}; stop it first, or choose another path") from None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # nobody else can use the socket, from its creation on
    try:
        if path.is_symlink() or path.exists():
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise InputError(f"{path} exists and is not a socket; choose another path")
            path.unlink()
        listener.bind(os.fspath(path))
        listener.listen(128)
    except OSError as error:
        listener.close()
        os.close(lock)
        raise InputError(f"cannot listen at {path}: {error.strerror}") from None
    except BaseException:
        listener.close()
        os.close(lock)
        raise
    finally:
        os.umask(before)

    def clean_up() -> None:
        path.unlink(missing_ok=True)
        os.close(lock)  # the lock file stays: without it, two services could lock two files of the same name

    return listener, clean_up
