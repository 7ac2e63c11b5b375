"""Time Stable-Baselines3's own updates of PPO and SAC on given data, for the update benchmark.

SB3 has no cost critic, so it is compared with `ppo`: a policy and one value network. What is timed is the unmodified
`PPO.train`. It draws its own minibatch order, standardises advantages in each minibatch and has one optimiser for both
networks, so its parameters are not comparable with ours; the number of minibatches and their sizes are equal.

Its SAC is the unmodified `SAC.train`: critics without layer normalisation, and an update of the policy after each one
of the critics. It draws its own rows and noise.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger

from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.recollection import Minibatch

NAME = f"SB3 {stable_baselines3.__version__}"


class _Sizes(gymnasium.Env[Any, Any]):
    """Only tells the sizes of observation and action; it is never stepped."""

    def __init__(self, observation: int, action: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observation,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (action,), np.float32)


def run_sb3(batch: Batch, hidden: tuple[int, ...], batch_size: int, passes: int, learning_rate: float) -> float:
    """CPU seconds of one update of PPO."""
    samples, dimensions = batch.observations.shape
    # The last minibatch of a pass is smaller, as it is in ours.
    warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
    model = stable_baselines3.PPO(
        "MlpPolicy", _Sizes(dimensions, batch.actions.shape[1]), learning_rate=learning_rate, n_steps=samples,
        batch_size=batch_size, n_epochs=passes, device="cpu",
        policy_kwargs={"net_arch": {"pi": list(hidden), "vf": list(hidden)}, "activation_fn": torch.nn.Tanh},
    )  # fmt: skip
    model.set_logger(Logger(None, []))
    buffer = model.rollout_buffer
    buffer.observations[:, 0], buffer.actions[:, 0] = batch.observations, batch.actions
    buffer.log_probs[:, 0], buffer.advantages[:, 0] = batch.log_probs, batch.reward_advantages
    buffer.returns[:, 0] = batch.targets[0]
    buffer.full = True
    begun = time.process_time()
    model.train()
    return time.process_time() - begun


def run_sb3_sac(rows: Minibatch, hidden: tuple[int, ...], batch_size: int, warmup: int, updates: int) -> float:
    """CPU seconds of some updates of SAC, after a few that do not count."""
    samples, dimensions = rows.observations.shape
    model = stable_baselines3.SAC(
        "MlpPolicy", _Sizes(dimensions, rows.actions.shape[1]), buffer_size=samples, batch_size=batch_size,
        device="cpu", policy_kwargs={"net_arch": list(hidden)},
    )  # fmt: skip
    model.set_logger(Logger(None, []))
    buffer = model.replay_buffer
    assert buffer is not None
    buffer.observations[:, 0], buffer.next_observations[:, 0] = rows.observations, rows.following
    buffer.actions[:, 0], buffer.rewards[:, 0] = rows.actions, rows.rewards
    buffer.dones[:, 0] = rows.discounts == 0.0
    buffer.full = True
    model.train(warmup, batch_size)
    begun = time.process_time()
    model.train(updates, batch_size)
    return time.process_time() - begun
