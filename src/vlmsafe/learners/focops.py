"""FOCOPS: first-order steps towards the optimal constrained policy, within a trust region per sample."""

from __future__ import annotations

import numpy as np

from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.learner import Learner, Losses, Samples, Slope
from vlmsafe.learners.policy import reverse_kl
from vlmsafe.learners.ppo import lagrangian_advantages
from vlmsafe.numerics.normaliser import Array


def focops_slope(
    samples: Samples,
    advantages: Array,
    old_mean: Array,
    old_log_std: Array,
    eta: float,
    temperature: float,
    select: bool,
) -> Slope:
    """mean((KL(new || old) - rho A / temperature) * 1{KL <= eta}) and its derivatives.

    With `select` the mask picks samples, as published. Without it the result is that of the engine, where KL [n, 1]
    and rho A [n] broadcast to [n, n]: the mask picks divergences and only rescales the mean advantage.
    """
    count = np.float32(len(samples.ratios))
    divergence, d_mean, d_log_std = reverse_kl(samples.mean, samples.log_std, old_mean, old_log_std)
    inside = (divergence <= eta).astype(np.float32)
    gain = samples.ratios * advantages / np.float32(temperature)
    kept = inside if select else np.full_like(inside, inside.mean())
    return Slope(
        loss=float((divergence * inside).mean() - (gain * kept).mean()),
        log_probs=-gain * kept / count,
        mean=d_mean * (inside / count)[:, None],
        log_std=d_log_std * inside.mean(),
    )


class FOCOPS(Learner):
    """First-order constrained optimisation in policy space."""

    def _update(self, batch: Batch, multiplier: float, cost_gap: float, rng: np.random.Generator) -> Losses:
        config = self.config
        published = config.variant == "published"
        if published:  # without the engine's division by 1 + lambda
            advantages = batch.reward_advantages - np.float32(multiplier) * batch.cost_advantages
        else:
            advantages = lagrangian_advantages(batch.reward_advantages, batch.cost_advantages, multiplier)
        old_mean, old_log_std = self.policy_mean(batch.observations), self.networks.log_std.copy()

        def loss(samples: Samples) -> Slope:
            return focops_slope(
                samples, advantages[samples.rows], old_mean[samples.rows], old_log_std,
                config.focops_eta, config.focops_temperature, select=published,
            )  # fmt: skip

        return self.minimise(batch, loss, rng)
