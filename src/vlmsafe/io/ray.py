"""Connecting to Ray, which only those who ask for it need installed."""

from __future__ import annotations

import importlib
import os
import re
import socket
from typing import Any

from vlmsafe.errors import InputError, MissingDependencyError, RunError

NAMESPACE = "vlmsafe"
"""Of every actor that this package names."""
_STARTS = 3  # a busy machine may not start Ray within the half minute that Ray allows
_REACHED = 5.0  # seconds within which a cluster's head answers
_OBJECTS = 256 * 2**20  # bytes of shared memory of a local Ray, through which frames to be scored go
_ADDRESSES = "--address is host:port of a cluster's head, 'auto' for the cluster of this machine, or 'local'"


def import_ray() -> Any:
    """Ray, or one line that says how to get it. Importing it takes most of a second, so it is imported on first use."""
    # Ray reports its use to its makers unless told otherwise, and nobody asked the user.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingDependencyError('Ray is not installed; get it with: pip install "vlmsafe[ray]"') from None


def chosen_address(address: str | None) -> str:
    """Where to find Ray: what the user says, what the machine says, or nowhere yet."""
    return address or os.environ.get("RAY_ADDRESS") or "local"


def connect(address: str | None, cores: int | None = None) -> Any:
    """Ray, connected to a cluster, or to one started here for as long as this process lives."""
    ray, wanted = import_ray(), chosen_address(address)
    if cores is not None and wanted != "local":
        raise InputError(f"--cores is for a Ray that is started here; that of {wanted} knows its own")
    _check_reachable(wanted)
    options = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if wanted == "local":
        options |= {"include_dashboard": False, "num_cpus": cores, "object_store_memory": _OBJECTS}
    if ray.is_initialized():
        raise RunError("this process is connected to a Ray already; close that launcher first")
    left = _STARTS if wanted == "local" else 1
    while not ray.is_initialized():
        left -= 1
        try:
            ray.init(address=wanted, **options)
        except Exception as error:  # some of Ray's own are of no narrower kind, such as that of a slow start
            ray.shutdown()
            if left:
                continue
            reason = first_line(error)
            if wanted == "local":
                raise RunError(f"Ray could not be started on this machine: {reason}") from error
            raise InputError(
                f"cannot connect to Ray at '{wanted}': {reason}; {_ADDRESSES}. A cluster with a token wants "
                "RAY_AUTH_MODE=token and the token here too (docs: Use a cluster)"
            ) from None
    return ray


def _check_reachable(address: str) -> None:
    """Whether anything listens at host:port; Ray itself tries for minutes, and then says little."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # 'auto' or 'local'
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"nothing listens at '{address}': {error}; {_ADDRESSES}") from None


def first_line(error: Exception) -> str:
    """Ray's reason, without its advice; of two versions that differ, both."""
    lines = reason_lines(error)
    if lines[0].startswith("Version mismatch"):
        return " ".join(lines)
    return lines[0]


def reason_lines(error: Exception) -> list[str]:
    """What an error says, without empty lines and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
