"""P3O: PPO with an exact penalty on the cost surrogate, no multiplier."""

from __future__ import annotations

import numpy as np

from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.learner import Learner, Losses, Samples, Slope
from vlmsafe.learners.ppo import clipped_surrogate
from vlmsafe.numerics.normaliser import Array


def cost_penalty(
    ratios: Array, cost_advantages: Array, excess: float, weight: float, clip: float | None
) -> tuple[float, Array]:
    """weight * max(0, mean(rho A_c) + excess) and its gradient with respect to each log-probability.

    With `clip` the surrogate is the pessimistic max(rho A_c, clip(rho) A_c), as published.
    """
    surrogate = ratios * cost_advantages
    slope = surrogate
    if clip is not None:
        bounded = np.clip(ratios, 1.0 - clip, 1.0 + clip) * cost_advantages
        slope = np.where(bounded > surrogate, np.float32(0.0), surrogate)
        surrogate = np.maximum(surrogate, bounded)
    penalty = float(surrogate.mean()) + excess
    if penalty <= 0.0:
        return 0.0, np.zeros_like(ratios)
    return weight * penalty, slope * np.float32(weight / len(ratios))


class P3O(Learner):
    """Penalised proximal policy optimisation."""

    def _update(self, batch: Batch, multiplier: float, cost_gap: float, rng: np.random.Generator) -> Losses:
        config = self.config
        published = config.variant == "published"
        # The published form scales the gap to the per-step advantages it is added to, and clips the cost surrogate.
        excess = cost_gap * (1.0 - config.gamma) if published else cost_gap
        clip = config.clip_ratio if published else None

        def loss(samples: Samples) -> Slope:
            rows = samples.rows
            reward, reward_slope = clipped_surrogate(samples.ratios, batch.reward_advantages[rows], config.clip_ratio)
            cost, cost_slope = cost_penalty(
                samples.ratios, batch.cost_advantages[rows], excess, config.p3o_penalty, clip
            )
            return Slope(reward + cost, reward_slope + cost_slope)

        return self.minimise(batch, loss, rng)
