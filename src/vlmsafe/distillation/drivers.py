"""The drivers of recordings: random actions, the environment's scripted expert with faults, and trained agents.

Contacts are scarce in recordings, and good drivers make none. Most drivers therefore have a fault that begins after a
while: their hands shake, the steering pulls to one side, they stop looking ahead, they let go, they act late, they
swerve. The seconds before a contact look different for each fault, and a scorer should learn more than one kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, Observation
from vlmsafe.learners.policy import Policy
from vlmsafe.learners.squashed import SquashedPolicy
from vlmsafe.numerics.normaliser import Normaliser

Action = NDArray[np.float64]
Kind = Literal[
    "dice", "straight", "expert", "shaking", "pulling", "blind", "let-go", "late", "swerving", "agent", "shaking-agent"
]

KINDS: tuple[Kind, ...] = get_args(Kind)

WEIGHTS: dict[Kind, float] = {"agent": 3.0, "shaking-agent": 2.0}
"""How often a kind drives in recordings, next to 1 of every other kind. Their mistakes are those of agents in use."""


def draw_kind(rng: np.random.Generator) -> Kind:
    """A kind of driver for an episode."""
    weights = np.array([WEIGHTS.get(kind, 1.0) for kind in KINDS])
    return KINDS[int(rng.choice(len(KINDS), p=weights / weights.sum()))]


@dataclass(frozen=True)
class Agent:
    """A trained policy as it was at a checkpoint."""

    name: str
    policy: Policy | SquashedPolicy
    normaliser: Normaliser | None
    repeat: int = 1
    """Steps for which it keeps an action."""

    def action(self, observation: Observation) -> Action:
        state = self.normaliser.normalise(observation) if self.normaliser is not None else observation
        return self.policy.mean(state).astype(np.float64)

    def drive(self) -> Callable[[Observation], Action]:
        """Its actions in one episode, step by step."""
        kept, left = np.empty(0), 0

        def act(observation: Observation) -> Action:
            nonlocal kept, left
            if left == 0:
                kept, left = self.action(observation), self.repeat
            left -= 1
            return kept

        return act


def driver(
    kind: Kind,
    env: Env,
    agents: Sequence[Agent],
    rng: np.random.Generator,
    lead_steps: int = 0,
    step_seconds: float = 0.1,
) -> tuple[Kind, Callable[[Observation], Action]]:
    """A driver for one episode, from observations to actions in [-1, 1], and which kind it became.

    Its fault begins `lead_steps` later than it would otherwise. Without agents, an agent is replaced by the expert.
    Without an expert, all kinds except 'straight' and agents are replaced by random actions.
    """
    expert = env.expert()
    if kind in ("agent", "shaking-agent") and not agents:
        kind = "expert" if kind == "agent" else "shaking"
    if expert is None and kind not in ("straight", "agent", "shaking-agent"):
        kind = "dice"
    if kind == "dice":
        return kind, _dice(env, rng)
    if kind == "straight":
        return kind, _Faulty(kind, _steady(env, rng), env, rng, lead_steps, step_seconds)
    if kind in ("agent", "shaking-agent"):
        agent = agents[int(rng.integers(len(agents)))]
        return kind, _Faulty(kind, agent.drive(), env, rng, lead_steps, step_seconds)
    assert expert is not None
    drive = expert
    return kind, _Faulty(kind, lambda observation: drive(), env, rng, lead_steps, step_seconds)


def _size(env: Env) -> int:
    assert env.action_space.shape is not None
    return env.action_space.shape[0]


def _dice(env: Env, rng: np.random.Generator) -> Callable[[Observation], Action]:
    """Uniform actions around a random level, each held for a while, like an agent at the start of its training."""
    size, hold = _size(env), int(rng.integers(1, 12))
    level = rng.uniform(-0.3, 0.6, size)
    level[env.steering] = rng.normal(0.0, 0.1)
    width = rng.uniform(0.2, 1.0)
    held, left = level, 0

    def act(observation: Observation) -> Action:
        nonlocal held, left
        if left == 0:
            held, left = np.clip(level + width * rng.uniform(-1.0, 1.0, size), -1.0, 1.0), hold
        left -= 1
        return held

    return act


def _steady(env: Env, rng: np.random.Generator) -> Callable[[Observation], Action]:
    action = np.full(_size(env), rng.uniform(0.1, 0.8))
    if len(action) > 1:
        action[env.steering] = rng.normal(0.0, 0.03)
    return lambda observation: action


class _Faulty:
    """Another driver's actions, with a fault that begins after a while."""

    def __init__(
        self,
        kind: Kind,
        lead: Callable[[Observation], Action],
        env: Env,
        rng: np.random.Generator,
        lead_steps: int = 0,
        step_seconds: float = 0.1,
    ) -> None:
        self._kind, self._lead, self._rng = kind, lead, rng
        self._steering, self._driving = env.steering, env.pedal
        self._bound = 1.0 if env.clips else np.inf  # elsewhere larger actions ask for more
        self._left = lead_steps + int(rng.integers(0, 45))  # steps until the fault
        self._shake = np.zeros(_size(env))
        self._strength = rng.uniform(0.05, 0.35) if "agent" in kind else rng.uniform(0.05, 0.5)
        self._pull = rng.choice([-1.0, 1.0]) * rng.uniform(0.01, 0.15)
        self._throttle = rng.uniform(0.2, 1.0)
        self._held: Action | None = None
        self._late = max(1, round(rng.uniform(0.8, 3.0) / step_seconds))  # steps
        self._memory = 0.9 ** (step_seconds / 0.1)  # how much of a shake stays until the next step
        self._past: deque[Action] = deque(maxlen=self._late + 1)

    def __call__(self, observation: Observation) -> Action:
        action = np.clip(np.array(self._lead(observation), np.float64), -self._bound, self._bound)
        self._past.append(action)
        self._left -= 1
        if self._left >= 0:
            return action
        if self._kind in ("shaking", "shaking-agent", "straight"):
            fresh = self._strength * np.sqrt(1.0 - self._memory**2) * self._rng.standard_normal(len(action))
            self._shake = self._memory * self._shake + fresh
            action = action + self._shake
        elif self._kind == "pulling":
            action[self._steering] += self._pull
        elif self._kind == "blind":
            action[self._driving] = self._throttle
        elif self._kind == "let-go":
            self._held = action if self._held is None else self._held
            action = self._held
        elif self._kind == "late":
            action = self._past[0]
        elif self._kind == "swerving":
            action[self._steering] = 4.0 * self._pull
            action[self._driving] = self._throttle
        return np.clip(action, -self._bound, self._bound)
