"""Generalised advantage estimation, for rewards and for costs alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.learners.rollout import Rollout
from vlmsafe.numerics.normaliser import Array

Float64 = NDArray[np.float64]


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
    rollout: Rollout, signal: Float64, values: Array, last_values: Array, gamma: float, lam: float
) -> tuple[Array, Array]:
    """`gae` over every path of a rollout; `signal` is its rewards or its costs."""
    advantages, targets = np.empty(len(rollout), np.float32), np.empty(len(rollout), np.float32)
    start = 0
    for end, last_value, terminated in zip(rollout.path_ends, last_values, rollout.terminated, strict=True):
        path = slice(start, end)
        bootstrap = 0.0 if terminated else float(last_value)
        advantages[path], targets[path] = gae(signal[path], values[path], bootstrap, gamma, lam)
        start = end
    return advantages, targets


def standardise(advantages: Array, *, divide: bool) -> Array:
    """Advantages with mean zero and, with `divide`, population deviation one."""
    exact = advantages.astype(np.float64)  # in float32 the mean of equal numbers is not that number
    centred = exact - exact.mean()
    return (centred / (exact.std() + 1e-8) if divide else centred).astype(np.float32)


def price_together(cost: Array, price: float, signal: Array, signal_price: float) -> Array:
    """One cost advantage that, at the price lambda + mu, stands for two advantages at lambda and at mu.

    A learner forms (A_r - p A) / (1 + p). With p = lambda + mu and A = (lambda A_c + mu A_s) / p that is
    (A_r - lambda A_c - mu A_s) / (1 + lambda + mu): both multipliers normalise, whatever the learner.
    """
    if signal_price == 0.0:
        return cost
    total = price + signal_price
    return (np.float32(price / total) * cost + np.float32(signal_price / total) * signal).astype(np.float32)


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

    def __len__(self) -> int:
        return len(self.log_probs)
