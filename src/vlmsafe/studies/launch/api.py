"""The interface between a study and the place where its commands run.

A launcher takes a command when it has room for it. `launch` returns a handle, or None where there is no room; the
handle's `poll` says how the command ended, and `stop` ends it. A command needs nothing but the files that it names, so
a launcher may run it on another machine that sees those files. If that machine is lost, `poll` returns `Lost`: the
command is not at fault and may be launched again.
"""

from __future__ import annotations

import abc
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A command line and the resources it needs."""

    words: tuple[str, ...]
    log: Path
    """The file to which everything it prints is appended."""
    cores: int = 1
    memory: int = 0
    """The most bytes it will use, as far as known."""
    gpus: float = 0.0
    """A share of one GPU, or a number of GPUs; 0 if it needs none."""


@dataclass(frozen=True)
class Lost:
    """The result of a command whose machine died or can no longer be reached; the command no longer runs."""

    reason: str
    process: str = ""
    """The process as a lock names it, if known: see `DirectoryLock`."""


class Handle(abc.ABC):
    """A command that was launched."""

    @abc.abstractmethod
    def poll(self) -> int | Lost | None:
        """The exit code, negative if a signal ended the command; None while it runs."""

    def place(self) -> str | None:
        """The machine that the command runs on; None while it waits for one."""
        return socket.gethostname()

    @abc.abstractmethod
    def stop(self, now: bool = False) -> None:
        """Ask the command to save and exit, or kill it if `now`."""


class Launcher(abc.ABC):
    """Runs commands as far as there is room for them."""

    @abc.abstractmethod
    def launch(self, command: Command) -> Handle | None:
        """Start a command; None if there is no room until another command ends."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Where commands run and with which resources, in a few words."""

    def close(self) -> None:  # noqa: B027 - most launchers hold no connection
        """Close connections; called when no command is running any more."""
