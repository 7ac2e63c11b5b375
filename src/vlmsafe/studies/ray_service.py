"""The scoring service as actors of a Ray cluster: one per GPU, wherever Ray finds them.

An actor hosts the same server as `vlmsafe serve`; Ray places it, starts it again when it dies, and knows it by name.
Frames do not go through Ray: a run asks for the address of the actor that has the fewest clients, then talks to the
server there, through shared memory on the same machine and over TCP from others. It asks again whenever the connection
breaks, so it finds a service that came back elsewhere. Asking is left to a process of its own, because Ray changes the
process that it is used in: threads, handlers of signals, and a hundred megabytes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vlmsafe.errors import RunError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Scorer
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.spec import Address, ModelSpec, parse_address
from vlmsafe.signals.service.wire import Channel
from vlmsafe.studies.launchers import usable_cores
from vlmsafe.studies.ray_keeper import import_ray
from vlmsafe.studies.ray_launcher import NAMESPACE
from vlmsafe.studies.shared_scorer import remove_left_behind, socket_name

_ASKING = 60.0  # seconds that it may take to ask Ray where a service is
_ANSWER = 10.0  # seconds for an actor to say where it is and how busy; one that is starting again does not
_NOT_THERE = 3  # exit code
_STARTING = 120.0


@dataclass(frozen=True)
class Place:
    """Where an actor listens."""

    local: str
    """Its socket on its own machine."""
    tcp: str
    """For other machines; empty where it listens to none."""
    node: str
    clients: int


class ServiceActor:
    """Hosts a server; an actor of Ray."""

    def __init__(self, socket: str, anywhere: bool) -> None:
        # Before PyTorch is loaded: threads that wait actively take the cores from the runs that they wait for.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from vlmsafe.signals.service.engine import Engine
        from vlmsafe.signals.service.server import Server, share_buffers
        from vlmsafe.signals.service.sockets import listen

        share_buffers()
        ray = import_ray()
        self._node = ray.util.get_node_ip_address()
        engine = Engine(cores=usable_cores())  # Ray leaves torch one, and nothing else here computes
        remove_left_behind()
        # One name for all its lives, so that nothing is left behind by each.
        self._local = Address("unix", os.path.join(tempfile.gettempdir(), socket))
        listener, self._clean_up = listen(self._local)
        self._servers = [Server(listener, engine)]
        self._tcp = ""
        if anywhere:
            listener, _ = listen(Address("tcp", self._node, 0), anywhere=True)
            self._tcp = str(Address("tcp", self._node, listener.getsockname()[1]))
            # Whoever reaches the network reaches this, so no code is run that a client names.
            self._servers.append(Server(listener, engine, python=False))

    def place(self) -> Place:
        return Place(str(self._local), self._tcp, self._node, sum(server.clients for server in self._servers))

    def process(self) -> int:
        return os.getpid()

    def close(self) -> None:
        """Take no more clients, finish what is queued, and leave nothing behind."""
        for server in self._servers:
            server.stop()
        self._clean_up()
        # The name was made for this service alone, so nobody waits for its lock.
        Path(f"{self._local.place}.lock").unlink(missing_ok=True)


class RayService:
    """A pool of actors that lives as long as the study that started it."""

    def __init__(self, name: str, *, replicas: int | None = None, anywhere: bool = True) -> None:
        """`anywhere` is whether runs on other machines reach it; this process is connected to Ray."""
        self.name, self._ray = name, import_ray()
        ray = self._ray
        gpus = int(ray.cluster_resources().get("GPU", 0))
        # No core is asked for: on a small machine a run would wait for it for ever.
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=4, num_cpus=0, num_gpus=min(1, gpus))
        made = kind(ServiceActor)
        self.actors = [
            made.options(name=_actor_name(name, number)).remote(socket_name(name, number), anywhere)
            for number in range(replicas or gpus or 1)
        ]
        try:
            ray.get([actor.place.remote() for actor in self.actors], timeout=_STARTING)
        except ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0]
            raise RunError(f"the scoring service could not be started on the cluster: {first}") from None

    @property
    def address(self) -> str:
        return f"ray:{self.name}"

    def look(self) -> None:
        """Nothing to do: Ray itself starts again what dies."""

    def close(self) -> None:
        closing = [actor.close.remote() for actor in self.actors]
        self._ray.wait(closing, num_returns=len(closing), timeout=_ANSWER)
        for actor in self.actors:
            self._ray.kill(actor)


def _actor_name(name: str, number: int) -> str:
    return f"scorer-{name}-{number}"


def find(name: str) -> Address | None:
    """The actor of a pool with the fewest clients; this process is connected to Ray. None: there is none now."""
    ray = import_ray()
    prefix = _actor_name(name, 0)[:-1]
    listed = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(one["name"] for one in listed if one["namespace"] == NAMESPACE and one["name"].startswith(prefix))
    asked = []
    for one in names:
        with contextlib.suppress(ValueError):  # it died in this moment
            asked.append(ray.get_actor(one, namespace=NAMESPACE).place.remote())
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER) if asked else ([], [])
    places = []
    for answer in ready:
        with contextlib.suppress(ray.exceptions.RayError):
            places.append(ray.get(answer))
    here = ray.util.get_node_ip_address()
    for place in sorted(places, key=lambda place: place.clients):
        if place.node == here and Path(parse_address(place.local).place).exists():
            return parse_address(place.local)
        if place.tcp:
            return parse_address(place.tcp)
    return None


def ask(name: str) -> Address:
    """The same from any process. ConnectionError: there is none now."""
    words = [sys.executable, "-m", "vlmsafe.studies.ray_service", name]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=_ASKING, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"Ray does not say where the service '{name}' is") from None
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        reason = f"Ray has no service '{name}' now" if answer.returncode == _NOT_THERE else last
        raise ConnectionError(reason)
    return parse_address(answer.stdout.split()[-1])


class PoolScorer(ServiceScorer):
    """A client of a pool: it asks for an address whenever it needs a connection."""

    def __init__(
        self, name: str, spec: ModelSpec, prompts: PromptSet | None, wait: float, give_up: Callable[[], bool]
    ) -> None:
        self._pool = name
        super().__init__(Address("ray", name), spec, prompts, wait, give_up=give_up)

    def _connect(self) -> Channel:
        self._address = ask(self._pool)
        return super()._connect()


def connect(name: str, spec: ModelSpec, prompts: PromptSet | None, wait: float, give_up: Callable[[], bool]) -> Scorer:
    """A scorer that asks the pool of that name."""
    return PoolScorer(name, spec, prompts, wait, give_up)


def main(name: str) -> int:
    from vlmsafe.studies.ray_launcher import connect as connect_to_ray

    connect_to_ray(os.environ.get("RAY_ADDRESS") or "auto")
    found, deadline = find(name), time.monotonic() + _ANSWER
    while found is None and time.monotonic() < deadline:  # cheaper than to connect to Ray again
        time.sleep(0.5)
        found = find(name)
    if found is not None:
        print(found)
    return 0 if found is not None else _NOT_THERE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
