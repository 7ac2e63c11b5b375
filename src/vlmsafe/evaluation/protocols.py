"""Which scenarios an evaluation uses, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass

from vlmsafe.envs.api import EnvSpec, Scenarios
from vlmsafe.errors import InputError, unknown_name

_PAPER_INDEX = 10_000  # the paper's evaluation indices start here


@dataclass(frozen=True)
class Protocol:
    """One way to evaluate a policy. Actions are deterministic: the mean of the policy."""

    name: str
    summary: str
    episodes: int
    """Default number of episodes."""
    pool: Scenarios | None = None
    """Scenarios the simulator is made with; None takes the environment's held-out ones."""
    first_index: int | None = None
    """Index of the first episode, mapped into the pool by its remainder; None starts at the pool's start."""
    randomise: bool = False
    """Whether traffic is drawn anew each episode, instead of being fixed by the scenario."""
    shared_simulator: bool = False
    """Whether all episodes run one after another in one simulator, each depending on those before."""
    environments: tuple[str, ...] = ()
    """Prefixes of the environments it is defined for; empty means all."""

    def scenarios(self, spec: EnvSpec) -> Scenarios:
        """The pool for an environment."""
        if self.environments and not spec.name.startswith(self.environments):
            raise InputError(
                f"protocol '{self.name}' is not defined for '{spec.name}'; use "
                f"{' or '.join(name for name, p in PROTOCOLS.items() if not p.environments)}"
            )
        return self.pool or spec.held_out

    def scenario(self, episode: int, spec: EnvSpec) -> int:
        """Scenario of the `episode`-th episode, from 0."""
        pool = self.scenarios(spec)
        offset = 0 if self.first_index is None else self.first_index - pool.start
        return pool.start + (offset + episode) % pool.size


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "held-out",
            "scenarios that training never draws, fixed traffic, a fresh simulator per episode",
            episodes=50,
        ),
        Protocol(
            "paper",
            "the paper's 50 episodes: indices 10000 to 10049, which fall on scenarios 0 to 49 of the training pool; "
            "fixed traffic, a fresh simulator per episode",
            episodes=50,
            pool=Scenarios(0, 10_000),
            first_index=_PAPER_INDEX,
            environments=("metadrive-",),
        ),
        Protocol(
            "paper-early",
            "the paper's earlier 20 episodes: a pool of 100 training scenarios, random traffic, one shared simulator; "
            "kept to show what it hides",
            episodes=20,
            pool=Scenarios(0, 100),
            first_index=_PAPER_INDEX,
            randomise=True,
            shared_simulator=True,
            environments=("metadrive-",),
        ),
    )
}


def protocol(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
