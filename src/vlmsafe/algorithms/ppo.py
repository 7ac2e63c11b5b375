"""PPO and PPO-Lagrangian."""

from __future__ import annotations

import numpy as np

from vlmsafe.algorithms.acting import Array
from vlmsafe.algorithms.advantages import Batch
from vlmsafe.algorithms.first_order import FirstOrderLearner, Index, Losses


def clipped_surrogate(ratios: Array, advantages: Array, clip: float) -> tuple[float, Array]:
    """PPO's loss -mean(min(rho A, clip(rho, 1 -+ eps) A)) and its gradient with respect to each log-probability.

    The clipped branch is flat, so a sample whose ratio has left the range in the direction its advantage pushes
    contributes nothing.
    """
    gain = ratios * advantages
    bounded = np.minimum(np.maximum(ratios, np.float32(1.0 - clip)), np.float32(1.0 + clip)) * advantages
    loss = -float(np.minimum(gain, bounded).sum()) / len(ratios)
    # d rho / d log-probability = rho, so the unclipped gain is its own derivative.
    slope = np.where(bounded < gain, np.float32(0.0), gain)
    return loss, slope * np.float32(-1.0 / len(ratios))


def lagrangian_advantages(reward: Array, cost: Array, multiplier: float) -> Array:
    """(A_r - lambda A_c) / (1 + lambda): the division keeps the step size as the multiplier grows."""
    combined = (reward - np.float32(multiplier) * cost) / np.float32(1.0 + multiplier)
    return combined.astype(np.float32, copy=False)


class PPO(FirstOrderLearner):
    """Proximal policy optimisation; the multiplier prices cost into the advantage and is zero for plain PPO."""

    def update(self, batch: Batch, multiplier: float, rng: np.random.Generator) -> Losses:
        """Improve the policy on one epoch's samples, and fit the critics to them."""
        advantages = lagrangian_advantages(batch.reward_advantages, batch.cost_advantages, multiplier)

        def loss(log_probs: Array, ratios: Array, rows: Index) -> tuple[float, Array]:
            return clipped_surrogate(ratios, advantages[rows], self.config.clip_ratio)

        return self.minimise(batch, loss, rng)
