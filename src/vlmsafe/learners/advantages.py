"""From the rollout of an epoch to the batch a learner reads: generalised advantage estimation, per path and critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.numerics.normaliser import Array

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Rollout:
    """N steps of one or several workers, cut into paths.

    A path ends where an episode ends or where a worker's share does. Its last state is kept apart in `last`, because
    a path that was cut, by a time limit or by the end of the share, is continued by the critics' value of that state.
    """

    observations: Array
    """[N, D], normalised as they were when the policy acted on them."""
    actions: Array
    """[N, A], as sampled, before they were mapped to the environment's bounds."""
    log_probs: Array
    """[N]."""
    rewards: Float64
    """[N]."""
    costs: Float64
    """[N]."""
    path_ends: NDArray[np.int64]
    """[P], index one past each path's last step, increasing up to N."""
    last: Array
    """[P, D], the normalised observation after each path's last step."""
    terminated: NDArray[np.bool_]
    """[P], whether the path ended in a terminal state, whose value is zero."""

    def __len__(self) -> int:
        return len(self.rewards)

    @classmethod
    def join(cls, parts: Sequence[Rollout]) -> Rollout:
        """The shares of several workers as one rollout, in worker order."""
        offsets = np.cumsum([0, *(len(part) for part in parts[:-1])])
        return cls(
            observations=np.concatenate([part.observations for part in parts]),
            actions=np.concatenate([part.actions for part in parts]),
            log_probs=np.concatenate([part.log_probs for part in parts]),
            rewards=np.concatenate([part.rewards for part in parts]),
            costs=np.concatenate([part.costs for part in parts]),
            path_ends=np.concatenate([part.path_ends + offset for part, offset in zip(parts, offsets, strict=True)]),
            last=np.concatenate([part.last for part in parts]),
            terminated=np.concatenate([part.terminated for part in parts]),
        )


@dataclass(frozen=True)
class Quantity:
    """A quantity per step whose discounted sum a critic predicts: the reward, the cost or the excess of the signal."""

    values: Float64
    """[N]."""
    gae_lambda: float
    divide: bool
    """Whether its advantages are divided by their deviation; they are centred in any case."""


@dataclass(frozen=True)
class Estimate:
    """What a critic's values say of its quantity."""

    advantages: Array
    """[N], centred or standardised."""
    targets: Array
    """[N], what the critic should have predicted."""


@dataclass(frozen=True)
class Batch:
    """What a learner's update reads: one row per step of the epoch."""

    observations: Array
    actions: Array
    log_probs: Array
    reward_advantages: Array
    """Standardised."""
    cost_advantages: Array
    """Centred."""
    targets: Array
    """[critics, N]: value targets of the reward critic and, where there are any, of the critics of cost and signal."""
    values: Array | None = None
    """[critics, N]: what the critics gave when the targets were computed, for a learner that clips values."""

    def __len__(self) -> int:
        return len(self.log_probs)


def discounted_sums(values: Float64, factor: float) -> Float64:
    """y_t = x_t + factor * y_{t+1}, from the last entry backwards."""
    sums, total = [], 0.0
    for value in reversed(values.tolist()):
        total = value + factor * total
        sums.append(total)
    return np.array(sums[::-1])


def gae(rewards: Float64, values: Array, bootstrap: float, gamma: float, lam: float) -> tuple[Array, Array]:
    """Advantages and value targets of one path.

    delta_t = r_t + gamma V_{t+1} - V_t, A = discounted sum of delta with gamma * lam, target = A + V; `bootstrap` is
    V after the last step. Computed in float64, returned in float32.
    """
    now = values.astype(np.float64)
    following = np.append(now[1:], bootstrap)
    advantages = discounted_sums(rewards + gamma * following - now, gamma * lam)
    return advantages.astype(np.float32), (advantages + now).astype(np.float32)


def rollout_gae(
    rollout: Rollout, rewards: Float64, values: Array, last_values: Array, gamma: float, lam: float
) -> tuple[Array, Array]:
    """`gae` over every path of a rollout; `rewards` may be any quantity per step."""
    advantages, targets = np.empty(len(rollout), np.float32), np.empty(len(rollout), np.float32)
    start = 0
    for end, last_value, terminated in zip(rollout.path_ends, last_values, rollout.terminated, strict=True):
        path = slice(start, end)
        bootstrap = 0.0 if terminated else float(last_value)
        advantages[path], targets[path] = gae(rewards[path], values[path], bootstrap, gamma, lam)
        start = end
    return advantages, targets


def standardise(advantages: Array, *, divide: bool) -> Array:
    """Advantages with mean zero and, with `divide`, population deviation one."""
    exact = advantages.astype(np.float64)  # in float32 the mean of equal numbers is not that number
    centred = exact - exact.mean()
    return (centred / (exact.std() + 1e-8) if divide else centred).astype(np.float32)


def estimate(rollout: Rollout, quantity: Quantity, values: Array, last_values: Array, gamma: float) -> Estimate:
    """Advantages and targets of one quantity, from its critic's values at every step and after every path."""
    advantages, targets = rollout_gae(rollout, quantity.values, values, last_values, gamma, quantity.gae_lambda)
    return Estimate(standardise(advantages, divide=quantity.divide), targets)


def combine_costs(cost: Array, multiplier: float, signal: Array, signal_multiplier: float) -> Array:
    """One cost advantage that, at the multiplier lambda + mu, stands for two advantages at lambda and at mu.

    A learner forms (A_r - p A) / (1 + p). With p = lambda + mu and A = (lambda A_c + mu A_s) / p that is
    (A_r - lambda A_c - mu A_s) / (1 + lambda + mu), so both multipliers normalise in every learner.
    """
    if signal_multiplier == 0.0:
        return cost
    total = multiplier + signal_multiplier
    return (np.float32(multiplier / total) * cost + np.float32(signal_multiplier / total) * signal).astype(np.float32)
