"""vlmsafe serve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlmsafe.cli.terminal import err, parse
from vlmsafe.errors import InputError

if TYPE_CHECKING:
    from vlmsafe.signals.service.spec import Address


@dataclass(frozen=True)
class ServeCommand:
    """Hold models in one process and score the frames of all runs that ask, until it is told to stop (Ctrl-C, SIGTERM).

    Runs name it with --signal.service. A model is loaded when the first run asks for it. Runs with different prompts
    share one copy of it.
    """

    socket: Path | None = None
    """Path of a Unix socket to listen at, which only its owner can use; runs say --signal.service unix:PATH. By default
    it is vlmsafe/scorer in $XDG_RUNTIME_DIR, or in a directory of yours for temporary files."""
    tcp: str | None = None
    """HOST:PORT to listen at instead; runs say --signal.service tcp:HOST:PORT. Clients show the
    token that the environment variable VLMSAFE_SERVICE_TOKEN has here and there."""
    anywhere: bool = False
    """Also listen where other machines can reach it."""
    threads: int | None = None
    """Cores for models that run on the processor; by default PyTorch's choice. A block is computed with as many as its
    run has, and as many blocks at a time as there are cores for."""
    idle_seconds: float = 600.0
    """How long a model stays in memory that no run uses."""
    memory_gib: float | None = None
    """Memory, of this process and of GPUs, above which models that no run uses are released earlier, the least recently
    used one first. While models in use take more, the service loads no further one, and its run waits."""
    clients: int = 256
    """How many runs may be connected at a time."""
    python_scorers: bool | None = None
    """Whether clients may name python: scorers, whose code then runs here; by default on a Unix socket alone."""
    metrics: str | None = None
    """PORT, or HOST:PORT, of a page /metrics for Prometheus; with a port alone, only this machine can read it."""


def serve_verb(argv: list[str]) -> None:
    command = parse(ServeCommand, argv, "serve")
    if command.socket is not None and command.tcp is not None:
        raise InputError("a service listens at one place: pass --socket PATH, or --tcp HOST:PORT")
    if not (math.isfinite(command.idle_seconds) and command.idle_seconds >= 0.0):
        raise InputError(f"idle_seconds is {command.idle_seconds}; it must be finite and 0 or greater")
    memory = command.memory_gib
    if memory is not None and not (math.isfinite(memory) and memory > 0.0):
        raise InputError(f"memory_gib is {memory}; it must be finite and greater than 0")
    for name in ("clients", "threads"):
        if (value := getattr(command, name)) is not None and value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")

    from vlmsafe.signals.service.sockets import user_directory
    from vlmsafe.signals.service.spec import parse_address

    path = user_directory() / "scorer" if command.socket is None and command.tcp is None else command.socket
    address = parse_address(f"tcp:{command.tcp}" if path is None else f"unix:{path}").absolute
    metrics = None if command.metrics is None else _metrics_address(command.metrics)

    from vlmsafe.signals.service.engine import Engine
    from vlmsafe.signals.service.server import serve

    limit = None if memory is None else int(memory * 2**30)
    serve(
        address,
        engine=Engine(cores=command.threads or 0, idle_seconds=command.idle_seconds, memory_limit=limit),
        anywhere=command.anywhere,
        python=command.python_scorers,
        clients=command.clients,
        metrics=metrics,
        ready=lambda: err.print(f"listening at {address}", markup=False, soft_wrap=True),
    )
    err.print("stopped")


def _metrics_address(text: str) -> Address:
    from vlmsafe.signals.service.spec import parse_address

    try:
        return parse_address(f"tcp:{text}" if ":" in text else f"tcp:127.0.0.1:{text}")
    except InputError:
        raise InputError(f"metrics is '{text}'; expected a port such as 9464, or HOST:PORT") from None
