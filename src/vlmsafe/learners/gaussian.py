"""Divergences of diagonal Gaussian policies whose standard deviation is the same in every state."""

from __future__ import annotations

import numpy as np

from vlmsafe.numerics.normaliser import Array


def kl_per_action(mean: Array, log_std: Array, new_mean: Array, new_log_std: Array) -> Array:
    """[N, actions]: KL(old || new) of each action's distribution in each state."""
    ratio = np.exp(2.0 * (log_std - new_log_std))
    shift = ((mean - new_mean) * np.exp(-new_log_std)) ** 2
    return 0.5 * (ratio + shift - 1.0) + new_log_std - log_std


def mean_kl(mean: Array, log_std: Array, new_mean: Array, new_log_std: Array) -> float:
    """KL(old || new) summed over actions, mean over states."""
    return float(np.mean(kl_per_action(mean, log_std, new_mean, new_log_std).sum(axis=1), dtype=np.float64))


def reverse_kl(mean: Array, log_std: Array, old_mean: Array, old_log_std: Array) -> tuple[Array, Array, Array]:
    """KL(new || old) per state, summed over actions, with its derivatives.

    `mean` and `log_std` are the new policy's: returns [N], [N, actions] with respect to the mean, and [actions] with
    respect to the log standard deviation, which is the same for every state.
    """
    divergence = kl_per_action(mean, log_std, old_mean, old_log_std).sum(axis=1)
    inverse_variance = np.exp(-2.0 * old_log_std)
    return divergence, (mean - old_mean) * inverse_variance, np.exp(2.0 * (log_std - old_log_std)) - np.float32(1.0)
