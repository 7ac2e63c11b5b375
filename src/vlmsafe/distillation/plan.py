"""The plan of a build: amounts of data and training, and the agents that drive in recordings or are tested."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace

from vlmsafe.errors import InputError

EPISODES_PER_FILE = 25


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
    """A policy for building the scorer: one that is there already, or a clone that is made for the build."""

    name: str
    env: str
    """The world in which it is tested, or in which it drives for recordings. A clone is made there."""
    policy: str = ""
    """A shipped driver, `driver:<name>`, or a run's folder, here or in the repository. Empty for a clone."""
    steps: int = 0
    """Steps that a clone records in each round."""
    rounds: int = 1
    """Rounds of a clone after the first."""
    seed: int = 1
    """Seed of a clone."""
    also: tuple[str, ...] = ()
    """Other worlds in which it drives for recordings. They must have the same observations."""
    choice: str = ""
    """How a tested agent was chosen. It goes into the card, next to the agent's figures."""

    def drives_in(self, env: str) -> bool:
        return env in (self.env, *self.also)


@dataclass(frozen=True)
class CandidatePlan:
    """Settings of one training of the model. The best candidate on the recordings for selection is kept."""

    seed: int = 0
    sets_weight: float = 1.0
    """Weight of the loss of whole prompt sets, next to that of single captions."""
    foresight: float = 0.5
    """What their negative prompts should tell: 1 for the contact to come, 0 for danger, or a mean of both."""
    shift: int = 3
    """Pixels by which views are moved at random."""
    caution: float = 0.5
    """Weight of dangerous scenes against safe ones, where whole prompt sets are to tell them apart."""
    pooled: bool = False
    """Whether the strongest responses of convolutions anywhere in the frame are used, next to those by position."""


_POLICIES = "benchmarks/drivers/policies"
_EASY, _DENSE = "metadrive-easy", "metadrive-easy:ends+mended+density-0.2"
_CROWDED = "metadrive-easy:density-0.35+mended"
_L1, _L2, _L1_FAST, _L2_FAST = (
    "formula-one-l1:sighted", "formula-one-l2:sighted", "formula-one-l1:fast+sighted", "formula-one-l2:fast+sighted",
)  # fmt: skip


@dataclass(frozen=True)
class BuildPlan:
    """Amounts of data and training. The defaults take some hours on two cores, most of them for training."""

    recorded: tuple[AgentPlan, ...] = (
        AgentPlan(
            "easy-from-scratch-seed-2", _EASY, f"{_POLICIES}/easy-from-scratch-seed-2",
            also=(_DENSE, _CROWDED, "metadrive-medium", "metadrive-hard"),
        ),
        AgentPlan(
            "easy-rough-clone", _DENSE, steps=12_000, seed=11,
            also=(_EASY, _CROWDED, "metadrive-medium", "metadrive-hard"),
        ),
        AgentPlan(
            "easy-rougher-clone", _EASY, steps=5_000, seed=12,
            also=(_DENSE, _CROWDED, "metadrive-medium", "metadrive-hard"),
        ),
        AgentPlan("bullet-rough-clone", "bullet-car-reach", steps=12_000, seed=11),
        AgentPlan("bullet-rougher-clone", "bullet-car-reach", steps=5_000, seed=12),
        AgentPlan("bullet-longer-clone", "bullet-car-reach", steps=25_000, seed=13),
        AgentPlan("fast-rough-clone", _L2_FAST, steps=8_000, seed=11, also=(_L1, _L2, _L1_FAST)),
        AgentPlan("fast-rougher-clone", _L2_FAST, steps=4_000, seed=12, also=(_L1, _L2, _L1_FAST)),
    )  # fmt: skip
    """Agents that drive in recordings. Clones of few steps make the mistakes of a driver that almost drives well."""
    tested: tuple[AgentPlan, ...] = (
        AgentPlan(
            "metadrive-easy-clone", _EASY, "driver:metadrive-easy",
            choice="The driver that ships for this world, here where nothing ends an episode and ramps are not mended, "
            "so that there are\ncontacts. It was named before any recording was made.",
        ),
        AgentPlan(
            "easy-from-scratch-seed-1", _EASY, f"{_POLICIES}/easy-from-scratch-seed-1",
            choice="An agent that learned from scratch, named before any recording was made. It decides every second "
            "step, so K counts twice\nas many steps of the simulator, and the two frames of a stack are twice as far "
            "apart.",
        ),
        AgentPlan(
            "formula-one-l2-sighted-seed-1", _L2, f"{_POLICIES}/formula-one-l2-sighted-seed-1",
            choice="An agent that learned from scratch, named before any recording was made. It also observes walls "
            "and the goal's\ndirection; the frames are those of the plain world.",
        ),
        AgentPlan(
            "formula-one-l2-fast-clone", _L2_FAST, "driver:formula-one-l2-fast",
            choice="The driver that ships for this world, named before any recording was made.",
        ),
        AgentPlan(
            "bullet-car-reach-clone", "bullet-car-reach", "driver:bullet-car-reach",
            choice="The driver that ships for this world, named before any recording was made.",
        ),
    )  # fmt: skip
    """Agents for the test of anticipation. They drive in no recording."""
    training_files: tuple[tuple[str, int], ...] = (
        (_EASY, 17), (_DENSE, 6), (_CROWDED, 2), ("metadrive-medium", 2), ("metadrive-hard", 1),
        ("formula-one-l0:sighted", 1), (_L1, 1), (_L2, 12), (_L1_FAST, 1), (_L2_FAST, 7),
        ("bullet-car-reach", 20), ("braking", 6), ("speeding", 3),
    )  # fmt: skip
    """Files of 25 episodes each, per environment, on scenarios of the training pool without its last tenth."""
    selection_files: tuple[tuple[str, int], ...] = (
        (_EASY, 2), (_DENSE, 1), (_L2, 2), (_L2_FAST, 1), ("bullet-car-reach", 2),
    )  # fmt: skip
    """The same on the last tenth of the training pool, for choosing among candidates."""
    held_out_files: tuple[tuple[str, int], ...] = (
        (_EASY, 4), (_DENSE, 2), ("metadrive-medium", 2), ("metadrive-hard", 1),
        ("formula-one-l0:sighted", 1), (_L1, 2), (_L2, 4), (_L2_FAST, 2),
        ("bullet-car-reach", 4), ("braking", 2), ("speeding", 2),
    )  # fmt: skip
    candidates: tuple[CandidatePlan, ...] = (
        CandidatePlan(0, shift=6, caution=0.6, pooled=True), CandidatePlan(1, shift=6, caution=0.6),
        CandidatePlan(2, shift=4, caution=0.65, pooled=True), CandidatePlan(3, 2.0, 0.7, 6, 0.65, pooled=True),
    )  # fmt: skip
    """Models that are trained. One of them is kept."""
    steps: int = 6000
    """Steps of training the model."""
    stacks_per_step: int = 512
    """Frame stacks in each of them."""
    wordings: int = 3000
    """Captions drawn per fact."""
    ceiling_steps: int = 3000
    """Steps of training the network on observations."""
    test_episodes: int = 20
    """Episodes of each tested agent. The paper has 60 per seed; intervals of fewer are wider."""

    def scaled(self, share: float) -> BuildPlan:
        """A smaller or larger build of the same kind; nothing becomes less than one."""
        if not share > 0.0:
            raise InputError(f"scale is {share}; it must be greater than 0")

        def some(count: int) -> int:
            return max(1, round(count * share))

        def files(of: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple((env, some(count)) for env, count in of)

        return replace(
            self,
            recorded=tuple(replace(agent, steps=some(agent.steps) if agent.steps else 0) for agent in self.recorded),
            training_files=files(self.training_files),
            selection_files=files(self.selection_files),
            held_out_files=files(self.held_out_files),
            steps=some(self.steps),
            wordings=some(self.wordings),
            ceiling_steps=some(self.ceiling_steps),
            test_episodes=some(self.test_episodes),
        )
