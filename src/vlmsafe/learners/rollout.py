"""The arrays of one epoch: what workers hand in, joined in worker order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.numerics.normaliser import Array


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
    rewards: NDArray[np.float64]
    """[N]."""
    costs: NDArray[np.float64]
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
        """Several workers' shares as one rollout."""
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
