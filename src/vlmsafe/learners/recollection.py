"""The replay: every step of a run, from which an off-policy learner draws its minibatches.

Steps are kept as the simulator gave them. Observations are standardised when they are drawn, because the statistics
change while a run goes on. A row is a step together with the rewards and costs of the next few, and the state after
them, whose value continues the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmsafe.learners.advantages import Rollout
from vlmsafe.numerics.normaliser import Array

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Minibatch:
    """Rows that were drawn."""

    observations: Array
    actions: Array
    rewards: Array
    """Discounted sums over the steps of a row."""
    costs: Array
    discounts: Array
    """Of the value of the state after them; 0 where the episode has ended."""
    following: Array
    """The state after them."""


class Recollection:
    """Steps in the order in which they were made, in arrays that double when they are full."""

    def __init__(self, observation: int, action: int, gamma: float, steps: int) -> None:
        self._gamma, self._steps = gamma, steps
        self._count = 0  # states
        self._states = np.empty((1024, observation), np.float32)
        self._rows = 0
        self._start, self._end = np.empty(1024, np.int64), np.empty(1024, np.int64)
        self._actions = np.empty((1024, action), np.float32)
        self._figures = np.empty((1024, 3), np.float32)

    def __len__(self) -> int:
        return self._rows

    def add(self, rollout: Rollout) -> None:
        """Add steps, whose observations are not standardised."""
        begin = 0
        for end, last, terminated in zip(rollout.path_ends.tolist(), rollout.last, rollout.terminated, strict=True):
            path = slice(begin, end)
            self._add_path(
                rollout.observations[path],
                last,
                rollout.actions[path],
                rollout.rewards[path],
                rollout.costs[path],
                bool(terminated),
            )
            begin = end

    def _add_path(
        self,
        observations: Array,
        last: Array,
        actions: Array,
        rewards: NDArray[np.float64],
        costs: NDArray[np.float64],
        terminated: bool,
    ) -> None:
        n = len(rewards)
        first, rows = self._count, slice(self._rows, self._rows + n)
        self._count, self._rows = first + n + 1, self._rows + n
        self._states = _grown(self._states, self._count)
        self._states[first : first + n], self._states[first + n] = observations, last
        self._start, self._end = _grown(self._start, self._rows), _grown(self._end, self._rows)
        self._actions, self._figures = _grown(self._actions, self._rows), _grown(self._figures, self._rows)
        ahead = np.minimum(np.arange(n) + self._steps, n)  # the state after a row's last step
        self._start[rows], self._end[rows] = first + np.arange(n), first + ahead
        self._actions[rows] = actions
        self._figures[rows, 0] = few_step_sums(rewards, self._gamma, self._steps)
        self._figures[rows, 1] = few_step_sums(costs, self._gamma, self._steps)
        discounts = self._gamma ** (ahead - np.arange(n))
        self._figures[rows, 2] = np.where(terminated & (ahead == n), 0.0, discounts)

    def draw(self, rng: np.random.Generator, size: int) -> Minibatch:
        """Rows at random, each with equal chances."""
        return self.at(rng.integers(self._rows, size=size))

    def at(self, rows: NDArray[np.int64]) -> Minibatch:
        """Certain rows, in the order of their steps."""
        rewards, costs, discounts = self._figures[rows].T
        return Minibatch(
            self._states[self._start[rows]], self._actions[rows], rewards, costs, discounts,
            self._states[self._end[rows]],
        )  # fmt: skip


def few_step_sums(values: NDArray[np.float64], gamma: float, steps: int) -> NDArray[np.float64]:
    """The discounted sum of each value and of those after it, `steps` of them or as many as there are.

    >>> few_step_sums(np.array([1.0, 2.0, 4.0]), 0.5, 2).tolist()
    [2.0, 4.0, 4.0]
    """
    sums = np.zeros(len(values))
    for step in range(min(steps, len(values))):
        sums[: len(values) - step] += gamma**step * values[step:]
    return sums


def rollout_arrays(rollout: Rollout) -> Arrays:
    """What `Recollection.add` gets, for a file."""
    return {
        "observations": rollout.observations, "actions": rollout.actions, "rewards": rollout.rewards,
        "costs": rollout.costs, "path_ends": rollout.path_ends, "last": rollout.last,
        "terminated": rollout.terminated.astype(np.uint8),
    }  # fmt: skip


def rollout_from(arrays: Mapping[str, NDArray[Any]]) -> Rollout:
    """The reverse of `rollout_arrays`."""
    return Rollout(
        arrays["observations"], arrays["actions"], np.zeros(len(arrays["rewards"]), np.float32), arrays["rewards"],
        arrays["costs"], arrays["path_ends"], arrays["last"], arrays["terminated"].astype(np.bool_),
    )  # fmt: skip


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    if len(array) >= size:
        return array
    larger = np.empty((max(size, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
