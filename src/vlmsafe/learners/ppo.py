"""PPO and PPO-Lagrangian, for every rule that moves the multiplier."""

from __future__ import annotations

import numpy as np

from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.learner import Learner, Losses, Samples, Slope
from vlmsafe.numerics.normaliser import Array


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


class PPOLagrangian(Learner):
    """Proximal policy optimisation on the reward advantage less lambda times the cost advantage."""

    def _update(self, batch: Batch, multiplier: float, cost_gap: float, rng: np.random.Generator) -> Losses:
        advantages = lagrangian_advantages(batch.reward_advantages, batch.cost_advantages, multiplier)

        def loss(samples: Samples) -> Slope:
            return Slope(*clipped_surrogate(samples.ratios, advantages[samples.rows], self.config.clip_ratio))

        return self.minimise(batch, loss, rng)


class PPO(PPOLagrangian):
    """Without a constraint: no cost critic, and a multiplier that is always zero."""

    critics = 1
