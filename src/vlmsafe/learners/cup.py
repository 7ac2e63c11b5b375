"""CUP: improve the reward first, then project back towards the constraint."""

from __future__ import annotations

import dataclasses

import numpy as np

from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.learner import Learner, Losses, Samples, Slope
from vlmsafe.learners.networks import POLICY
from vlmsafe.learners.policy import mean_kl, reverse_kl
from vlmsafe.learners.ppo import clipped_surrogate
from vlmsafe.numerics.normaliser import Array


def projection_slope(
    samples: Samples, cost_advantages: Array, stage_mean: Array, stage_log_std: Array, weight: float
) -> Slope:
    """mean(weight * rho A_c) + mean KL(new || stage-one policy) and its derivatives."""
    count = np.float32(len(samples.ratios))
    divergence, d_mean, d_log_std = reverse_kl(samples.mean, samples.log_std, stage_mean, stage_log_std)
    weighted = np.float32(weight) * samples.ratios * cost_advantages
    return Slope(float(weighted.mean() + divergence.mean()), weighted / count, d_mean / count, d_log_std)


class CUP(Learner):
    """Constrained update projection."""

    def _update(self, batch: Batch, multiplier: float, cost_gap: float, rng: np.random.Generator) -> Losses:
        config = self.config
        start_mean, start_log_std = self.policy_mean(batch.observations), self.networks.log_std.copy()

        def improve(samples: Samples) -> Slope:
            advantages = batch.reward_advantages[samples.rows]
            return Slope(*clipped_surrogate(samples.ratios, advantages, config.clip_ratio))

        improved = self.minimise(batch, improve, rng)
        stage_mean, stage_log_std = self.policy_mean(batch.observations), self.networks.log_std.copy()
        # Ratios are still relative to the policy that collected the samples: they use its stored log-probabilities.
        weight = multiplier * (1.0 - config.gamma * config.gae_lambda) / (1.0 - config.gamma)

        def project(samples: Samples) -> Slope:
            rows = samples.rows
            return projection_slope(samples, batch.cost_advantages[rows], stage_mean[rows], stage_log_std, weight)

        projected = self.minimise(batch, project, rng, networks=range(POLICY, POLICY + 1))
        kl = mean_kl(start_mean, start_log_std, self.policy_mean(batch.observations), self.networks.log_std)
        return dataclasses.replace(
            improved, kl=kl, passes=improved.passes + projected.passes, entropy=projected.entropy
        )
