"""The plan of a build: amounts of data and training, and the agents that are trained for it."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace

from vlmsafe.errors import InputError

EPISODES_PER_FILE = 25
EPOCH = 4000  # steps of an epoch in an agent's training


def file_name(env: str) -> str:
    """The name of an environment as part of a file name. Different environments have different ones.

    >>> file_name("formula-one-l2:sighted"), file_name("gym:Pkg/Name-v0")
    ('formula-one-l2-sighted', 'gym-Pkg-Name-v0-61168213')
    """
    plain = re.sub(r"[^\w-]+", "-", env, flags=re.ASCII)
    # One colon alone needs no digits: no name with a hyphen in its place is that of another environment.
    return plain if plain == env.replace(":", "-", 1) else f"{plain}-{zlib.crc32(env.encode()):08x}"


@dataclass(frozen=True)
class AgentPlan:
    """A policy that is trained for building the scorer."""

    env: str
    method: str
    seed: int
    steps: int = 240_000
    initial_std: float = 1.0
    also: tuple[str, ...] = ()
    """Other environments that it drives in for recordings. They must have the same observations."""
    choice: str = ""
    """How a tested agent and the settings were chosen. It goes into the card, next to the agent's figures."""

    @property
    def name(self) -> str:
        return f"{file_name(self.env)}-{self.method}-{self.seed}"

    def drives_in(self, env: str) -> bool:
        return env in (self.env, *self.also)


_METADRIVE = ("metadrive-medium", "metadrive-hard")


@dataclass(frozen=True)
class BuildPlan:
    """Amounts of data and training. The defaults take some hours on two cores."""

    recorded: tuple[AgentPlan, ...] = (
        AgentPlan("metadrive-easy", "ppo", 1, also=_METADRIVE),
        AgentPlan("metadrive-easy", "ppo-lag", 3, also=_METADRIVE),
        AgentPlan("metadrive-easy", "ppo-lag", 5, initial_std=0.3, also=_METADRIVE),
        AgentPlan("formula-one-l2", "ppo", 1, also=("formula-one-l1",)),
        AgentPlan("formula-one-l2", "ppo-lag", 2, also=("formula-one-l1",)),
        AgentPlan("bullet-car-reach", "ppo", 1, steps=160_000),
    )
    """Agents that drive in recordings."""
    tested: tuple[AgentPlan, ...] = (
        AgentPlan(
            "metadrive-easy", "ppo-lag", 2,
            choice="The agent is one of five that were trained, chosen because it drives: the others hardly move. When "
            '"about to" is\ntrue was settled on other episodes of the same agent, on scenarios of the training pool '
            "that no recording holds.",
        ),
        AgentPlan(
            "formula-one-l2", "ppo", 2,
            choice="The agent has no constraint: PPO-Lagrangian was to be tested, but its agent (seed 2, who is in\n"
            'recordings instead) stands still and touches nothing. When "about to" is true was settled before, on\n'
            "another agent in MetaDrive.",
        ),
        AgentPlan(
            "formula-one-l2:sighted", "ppo", 2,
            choice="This agent was added when the one above had been tested: it also observes walls and the goal's "
            "direction, and gets\nabout. The frames are the same.",
        ),
        AgentPlan(
            "bullet-car-reach", "ppo-lag", 2, steps=160_000,
            choice='The agent was named before any was trained. When "about to" is true was settled before, on another '
            "agent in\nMetaDrive.",
        ),
    )  # fmt: skip
    """Agents for the test of anticipation. They drive in no recording."""
    training_files: tuple[tuple[str, int], ...] = (
        ("metadrive-easy", 65), ("metadrive-medium", 26), ("metadrive-hard", 4),
        ("formula-one-l0", 5), ("formula-one-l1", 16), ("formula-one-l2", 32),
        ("bullet-car-reach", 36), ("braking", 8), ("speeding", 4),
    )  # fmt: skip
    """Files of 25 episodes each, per environment, on scenarios of the training pool."""
    held_out_files: tuple[tuple[str, int], ...] = (
        ("metadrive-easy", 6), ("metadrive-medium", 3), ("metadrive-hard", 1),
        ("formula-one-l0", 2), ("formula-one-l1", 3), ("formula-one-l2", 5),
        ("bullet-car-reach", 6), ("braking", 2), ("speeding", 2),
    )  # fmt: skip
    steps: int = 9000
    """Steps of training the model."""
    stacks_per_step: int = 512
    """Frame stacks in each of them."""
    wordings: int = 3000
    """Captions drawn per fact."""
    ceiling_steps: int = 3000
    """Steps of training the network on observations."""
    test_episodes: int = 60
    """Episodes of each tested agent. The paper has as many per seed."""

    def scaled(self, share: float) -> BuildPlan:
        """A smaller or larger build of the same kind; nothing becomes less than one."""
        if not share > 0.0:
            raise InputError(f"scale is {share}; it must be greater than 0")

        def some(count: int, unit: int = 1) -> int:
            return max(1, round(count * share / unit)) * unit

        def agent(plan: AgentPlan) -> AgentPlan:
            # Whole epochs, except that a run shorter than an epoch is one short epoch.
            steps = some(plan.steps, EPOCH) if plan.steps * share >= EPOCH else some(plan.steps)
            # The texts on how agents were chosen hold for the default build only.
            return replace(plan, steps=steps, choice=plan.choice if share == 1.0 else "")

        return BuildPlan(
            tuple(agent(plan) for plan in self.recorded),
            tuple(agent(plan) for plan in self.tested),
            tuple((env, some(files)) for env, files in self.training_files),
            tuple((env, some(files)) for env, files in self.held_out_files),
            some(self.steps),
            self.stacks_per_step,
            some(self.wordings),
            some(self.ceiling_steps),
            some(self.test_episodes),
        )
