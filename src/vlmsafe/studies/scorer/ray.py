"""The scoring service on a Ray cluster: one actor per GPU.

An actor hosts the same server as `vlmsafe serve`. Ray places it on a node, restarts it if it dies, and finds it by
name. Frames do not go through Ray. A run asks Ray for the address of the actor with the fewest clients and connects to
the server there: through shared memory on the same machine, over TCP from other machines. It asks again whenever the
connection breaks, so it finds a service that was restarted elsewhere. A separate process asks Ray, because Ray adds
threads, signal handlers and a hundred megabytes to the process that uses it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from vlmsafe import kernels
from vlmsafe.errors import RunError
from vlmsafe.io.ray import import_ray
from vlmsafe.signals.service.ray_pool import ANSWER, Place, actor_name
from vlmsafe.signals.service.spec import Address
from vlmsafe.studies.launch.local import usable_cores
from vlmsafe.studies.scorer.shared import remove_left_behind, socket_name

_STARTING = 120.0


class ServiceActor:
    """Hosts a server; an actor of Ray."""

    def __init__(self, socket: str, token: str, anywhere: bool, chosen: kernels.Kernels) -> None:
        kernels.choose(chosen)  # a cluster that a pinned process started has that process's variables
        # Before PyTorch is loaded: busy-waiting threads would take the cores from the runs.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from vlmsafe.signals.service.engine import Engine
        from vlmsafe.signals.service.server import Server, share_buffers
        from vlmsafe.signals.service.sockets import listen, user_directory

        share_buffers()
        ray = import_ray()
        self._node = ray.util.get_node_ip_address()
        engine = Engine(cores=usable_cores())  # Ray limits torch to one, but nothing else in this process computes
        remove_left_behind()
        # The name stays the same when Ray restarts the actor, so restarts leave no files behind.
        self._local = Address("unix", str(user_directory() / socket))
        listener, self._clean_up = listen(self._local)
        self._servers = [Server(listener, engine)]
        self._tcp = ""
        if anywhere:
            listener, _ = listen(Address("tcp", self._node, 0), anywhere=True)
            self._tcp = str(Address("tcp", self._node, listener.getsockname()[1]))
            # Everyone on the network can connect, so it asks for a token, and runs no code that a client names.
            self._servers.append(Server(listener, engine, python=False, token=token))
        self._token = token

    def place(self) -> Place:
        clients = sum(server.clients for server in self._servers)
        return Place(str(self._local), self._tcp, self._node, clients, self._token)

    def process(self) -> int:
        return os.getpid()

    def computes_with(self) -> kernels.Kernels:
        return kernels.in_effect()

    def close(self) -> None:
        """Take no more clients, finish queued requests, and remove all files."""
        for server in self._servers:
            server.stop()
        self._clean_up()
        # The name is unique to this service, so nothing waits for its lock.
        Path(f"{self._local.place}.lock").unlink(missing_ok=True)


class RayService:
    """A pool of actors that lives as long as the study."""

    def __init__(
        self, name: str, *, replicas: int | None = None, anywhere: bool = True, chosen: kernels.Kernels = "baseline"
    ) -> None:
        """Start the actors; this process is connected to Ray. `anywhere`: whether other machines can connect."""
        self.name, self._ray = name, import_ray()
        ray = self._ray
        gpus = int(ray.cluster_resources().get("GPU", 0))
        # It asks for no core: on a small machine a run would then wait for ever.
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=4, num_cpus=0, num_gpus=min(1, gpus))
        made = kind(ServiceActor)
        # Ray may load numpy before it makes the actor, so its process must be started with these variables.
        token = secrets.token_hex(16)  # Ray gives it to the clients with the address
        started_with = {"env_vars": kernels.variables(chosen)}
        self.actors = [
            made.options(name=actor_name(name, number), runtime_env=started_with).remote(
                socket_name(name, number), token, anywhere, chosen
            )
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

    def restart_if_dead(self) -> None:
        """Nothing to do: Ray restarts actors itself."""

    def close(self) -> None:
        closing = [actor.close.remote() for actor in self.actors]
        self._ray.wait(closing, num_returns=len(closing), timeout=ANSWER)
        for actor in self.actors:
            self._ray.kill(actor)
