"""Protocols: which scenarios an evaluation uses, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass

from vlmsafe.envs.api import EnvSpec, Scenarios
from vlmsafe.errors import InputError, unknown_name

_PAPER_INDEX, _TASK_INDEX = 10_000, 30_000  # the paper's evaluation indices start here
_SELECTION_INDEX = 15_000
_METADRIVE, _BULLET, _FORMULA_ONE = "metadrive-", "bullet-", "formula-one-"


@dataclass(frozen=True)
class Protocol:
    """One way to evaluate a policy."""

    name: str
    summary: str
    episodes: int
    """Default number of episodes."""
    pool: Scenarios | None = None
    """Scenarios the simulator is made with; None takes the environment's held-out ones."""
    first_index: int | None = None
    """Index of the first episode, mapped into the pool by its remainder; None starts at the pool's start."""
    stochastic: bool = False
    """Whether actions are drawn from the policy, as in training, instead of being its mean."""
    randomise: bool = False
    """Whether traffic is drawn anew in each episode instead of being fixed by the scenario."""
    shared_simulator: bool = False
    """Whether all episodes run one after another in one simulator, so that each depends on earlier ones."""
    environments: tuple[str, ...] = ()
    """Prefixes of the environments that it is defined for; empty means all."""

    def defined_for(self, env: str) -> bool:
        return not self.environments or env.startswith(self.environments)

    def scenarios(self, spec: EnvSpec) -> Scenarios:
        """The pool for an environment."""
        if not self.defined_for(spec.name):
            raise InputError(
                f"protocol '{self.name}' is not defined for '{spec.name}'; use {' or '.join(protocols_of(spec.name))}"
            )
        return self.pool or spec.held_out

    def scenario(self, episode: int, spec: EnvSpec) -> int:
        """The scenario of an episode, counted from 0."""
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
            "selection",
            "held-out scenarios from index 15000 on, which 'held-out' does not use; for choosing among runs whose "
            "'held-out' result is reported",
            episodes=50,
            first_index=_SELECTION_INDEX,
        ),
        Protocol(
            "paper",
            "the paper's 50 episodes: indices 10000 to 10049, which fall on scenarios 0 to 49 of the training pool; "
            "fixed traffic, a fresh simulator per episode",
            episodes=50,
            pool=Scenarios(0, 10_000),
            first_index=_PAPER_INDEX,
            environments=(_METADRIVE,),
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
            environments=(_METADRIVE,),
        ),
        Protocol(
            "paper-screening",
            "the 10 episodes with which the paper looks over its FormulaOne runs, 10000 to 10009",
            episodes=10,
            first_index=_PAPER_INDEX,
            environments=(_FORMULA_ONE,),
        ),
        Protocol(
            "paper-20",
            "the paper's 20 deterministic episodes, 10000 to 10019",
            episodes=20,
            first_index=_PAPER_INDEX,
            environments=(_FORMULA_ONE, _BULLET),
        ),
        Protocol(
            "paper-20-stochastic",
            "the same 20 scenarios with actions drawn from the policy",
            episodes=20,
            first_index=_PAPER_INDEX,
            stochastic=True,
            environments=(_FORMULA_ONE,),
        ),
        Protocol(
            "paper-environment-only",
            "the paper's 50 episodes for return and cost, 10000 to 10049",
            episodes=50,
            first_index=_PAPER_INDEX,
            environments=(_FORMULA_ONE,),
        ),
        Protocol(
            "paper-task-metrics",
            "the paper's 50 episodes for stages, path and net progress, 30000 to 30049",
            episodes=50,
            first_index=_TASK_INDEX,
            environments=(_FORMULA_ONE,),
        ),
        Protocol(
            "paper-gate-roc",
            "25 episodes with actions drawn from the policy, for the gate against cost in the same step",
            episodes=25,
            first_index=_PAPER_INDEX,
            stochastic=True,
            environments=(_FORMULA_ONE,),
        ),
        Protocol(
            "paper-lead-time",
            "60 deterministic episodes per run, for scores before contact",
            episodes=60,
            first_index=_PAPER_INDEX,
            environments=(_FORMULA_ONE,),
        ),
        Protocol(
            "paper-200",
            "the paper's 200 episodes on Bullet, 10000 to 10199",
            episodes=200,
            first_index=_PAPER_INDEX,
            environments=(_BULLET,),
        ),
    )
}


def protocol(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def protocols_of(env: str) -> list[str]:
    """Names of the protocols that are defined for an environment."""
    return [name for name, protocol in PROTOCOLS.items() if protocol.defined_for(env)]
