"""A client of scoring services that are actors of a Ray cluster.

A run asks for the address of the actor with the fewest clients. It then talks to the server there, through shared
memory on the same machine and over TCP from other machines. It asks again whenever the connection breaks, so it finds
a service that was restarted elsewhere. A separate process asks (`python -m vlmsafe.signals.service.ray_pool NAME`),
because Ray changes the process that uses it: it adds threads, signal handlers and a hundred megabytes.
`vlmsafe.studies.scorer.ray` starts the actors.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from vlmsafe.io import ray
from vlmsafe.signals.service.spec import Address, parse_address

_ASKING = 60.0  # seconds to ask Ray for an address
ANSWER = 10.0
"""Seconds for an actor to report its address and its clients; a restarting actor does not answer."""
_NOT_THERE = 3  # exit code


@dataclass(frozen=True)
class Place:
    """Where an actor listens, and how busy it is."""

    local: str
    """Its socket on its own machine."""
    tcp: str
    """Its TCP address for other machines; empty if it has none."""
    node: str
    clients: int
    token: str = field(default="", repr=False)
    """What it asks clients for over TCP."""


def actor_name(name: str, number: int) -> str:
    return f"scorer-{name}-{number}"


def find(name: str) -> Address | None:
    """The address of the actor with the fewest clients, or None. This process must be connected to Ray."""
    library = ray.import_ray()
    prefix = actor_name(name, 0)[:-1]
    listed = library.util.list_named_actors(all_namespaces=True)
    names = sorted(
        one["name"] for one in listed if one["namespace"] == ray.NAMESPACE and one["name"].startswith(prefix)
    )
    asked = []
    for one in names:
        with contextlib.suppress(ValueError):  # it has just died
            asked.append(library.get_actor(one, namespace=ray.NAMESPACE).place.remote())
    ready, _ = library.wait(asked, num_returns=len(asked), timeout=ANSWER) if asked else ([], [])
    places = []
    for answer in ready:
        with contextlib.suppress(library.exceptions.RayError):
            places.append(library.get(answer))
    here = library.util.get_node_ip_address()
    for place in sorted(places, key=lambda place: place.clients):
        if place.node == here and Path(parse_address(place.local).place).exists():
            return parse_address(place.local)
        if place.tcp:
            return replace(parse_address(place.tcp), token=place.token)
    return None


def ask(name: str) -> Address:
    """The same from any process; ConnectionError if there is no service now."""
    words = [sys.executable, "-m", "vlmsafe.signals.service.ray_pool", name]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=_ASKING, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"Ray does not say where the service '{name}' is") from None
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        reason = f"Ray has no service '{name}' now" if answer.returncode == _NOT_THERE else last
        raise ConnectionError(reason)
    place, _, token = answer.stdout.splitlines()[-1].rpartition(" ")  # a path may have spaces
    return replace(parse_address(place), token=token)


def main(name: str) -> int:
    ray.connect(os.environ.get("RAY_ADDRESS") or "auto")
    found, deadline = find(name), time.monotonic() + ANSWER
    while found is None and time.monotonic() < deadline:  # waiting is cheaper than connecting to Ray again
        time.sleep(0.5)
        found = find(name)
    if found is not None:
        print(found, found.token)
    return 0 if found is not None else _NOT_THERE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
