"""Run and time OmniSafe 0.5.0's own policy update on given data.

This is the reference half of the update benchmark. It runs in a separate Python 3.10 environment that holds
OmniSafe 0.5.0, and so imports nothing of vlmsafe; the two halves exchange NumPy archives only:

    python omnisafe_update.py INPUT.npz OUTPUT.npz --algo PPOLag --iters 4 --threads 1

INPUT.npz (N samples, observations of D and actions of A numbers; float32 unless said otherwise):
    obs [N, D], act [N, A], logp, adv_r, adv_c, target_value_r, target_value_c [N]: what OmniSafe's buffer
        returns, the reward advantage already standardised and the cost advantage already centred;
    before/actor.*, before/reward_critic.*, before/cost_critic.*: the initial parameters;
    multiplier: the Lagrange multiplier used throughout the update (ignored by algorithms that have none);
    orders [passes, N] (int64): the sample order of each pass over the data. Pass k of an update takes row
        k modulo the number of rows; a second stage (CUP) counts on, so it may have rows of its own;
    batch_size: the size of a minibatch;
    hidden (optional, 64 and 64 if absent): the units of each hidden layer;
    episode_cost, cost_limit (optional, both 25 if absent): read by P3O and CPO only.

OUTPUT.npz: after/* (the parameters, under the names of before/*), seconds, minibatches.

What is timed is the unmodified `_update` of the algorithm: its data loader, its logger calls, its critic and
actor steps. All settings keep OmniSafe's defaults, except that stopping early on the KL divergence is off, so
that the amount of work is fixed. The learning rate is that of the first epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import omnisafe
import torch
from gymnasium.spaces import Box
from omnisafe.envs.core import CMDP, env_register
from torch.utils.data import DataLoader, Dataset, Sampler

ALGORITHMS = ("PPO", "PPOLag", "CPPOPID", "FOCOPS", "CUP", "P3O", "CPO")
BATCH_KEYS = ("obs", "act", "logp", "adv_r", "adv_c", "target_value_r", "target_value_c")
ENV_ID = "GivenBatch-v0"


@env_register
class GivenBatchEnv(CMDP):  # type: ignore[misc]
    """An environment that only tells OmniSafe the sizes of observation and action; it is never stepped."""

    _support_envs: ClassVar[list[str]] = [ENV_ID]
    need_auto_reset_wrapper = False
    need_time_limit_wrapper = False
    obs_dim: ClassVar[int]
    act_dim: ClassVar[int]

    def __init__(self, env_id: str, num_envs: int = 1, **kwargs: Any) -> None:
        super().__init__(env_id)
        self._num_envs = num_envs
        self._observation_space = Box(-np.inf, np.inf, (self.obs_dim,), np.float32)
        self._action_space = Box(-1.0, 1.0, (self.act_dim,), np.float32)

    def set_seed(self, seed: int) -> None:
        """Do nothing: there is nothing random here."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Refuse: the batch is given, nothing is rolled out."""
        raise NotImplementedError

    def step(self, action: torch.Tensor) -> Any:
        """Refuse: the batch is given, nothing is rolled out."""
        raise NotImplementedError

    def render(self) -> Any:
        """Refuse: there is nothing to see."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class GivenOrder(Sampler[int]):
    """Yields the samples of each pass in the order of the next row of `orders`, and counts the passes."""

    def __init__(self, orders: np.ndarray) -> None:
        self.orders = orders
        self.passes = 0

    def __len__(self) -> int:
        return int(self.orders.shape[1])

    def __iter__(self) -> Iterator[int]:
        row = self.orders[self.passes % len(self.orders)]
        self.passes += 1
        # A list of Python integers, as torch's own random sampler makes one.
        yield from row.tolist()


def make_algorithm(name: str, data: Mapping[str, np.ndarray], iters: int, threads: int, log_dir: str) -> Any:
    """Build OmniSafe's algorithm object for the sizes of `data`, with the initial parameters loaded."""
    samples, GivenBatchEnv.obs_dim = data["obs"].shape
    GivenBatchEnv.act_dim = data["act"].shape[1]
    sizes = [int(size) for size in data["hidden"]] if "hidden" in data else [64, 64]
    custom = {
        "model_cfgs": {"actor": {"hidden_sizes": sizes}, "critic": {"hidden_sizes": sizes}},
        "train_cfgs": {"torch_threads": threads, "total_steps": samples},
        "algo_cfgs": {
            "steps_per_epoch": samples,
            "update_iters": iters,
            "batch_size": int(data["batch_size"]),
            "kl_early_stop": False,
        },
        "logger_cfgs": {"log_dir": log_dir, "use_wandb": False, "use_tensorboard": False},
    }
    algorithm = omnisafe.Agent(name, ENV_ID, custom_cfgs=custom).agent
    prefix = "before/"
    before = {key[len(prefix) :]: torch.tensor(data[key]) for key in data if key.startswith(prefix)}
    algorithm._actor_critic.load_state_dict(before)
    return algorithm


def give_data(algorithm: Any, data: Mapping[str, np.ndarray]) -> GivenOrder:
    """Put the given batch, multiplier and sample order in place of the ones OmniSafe would compute."""
    # The buffer's `get` is patched: it returns the given batch instead of a collected one.
    batch = {key: torch.tensor(data[key], dtype=torch.float32) for key in BATCH_KEYS}
    algorithm._buf.get = lambda: dict(batch)

    # The multiplier is set and its own update replaced by nothing, so that it stays at the given value.
    lagrange: Any = getattr(algorithm, "_lagrange", None)
    if hasattr(lagrange, "pid_update"):
        lagrange._cost_penalty = float(data["multiplier"])
        lagrange.pid_update = lambda episode_cost: None
    elif lagrange is not None:
        lagrange.lagrangian_multiplier.data.fill_(float(data["multiplier"]))
        lagrange.update_lagrange_multiplier = lambda episode_cost: None

    # With the multiplier fixed, these two matter in P3O and CPO only; PPOLag asserts that there is a cost.
    algorithm.logger.store({"Metrics/EpCost": float(data.get("episode_cost", 25.0))})
    algorithm._cfgs.algo_cfgs.cost_limit = float(data.get("cost_limit", 25.0))

    # The name `DataLoader` in OmniSafe's modules is replaced by a factory that makes the genuine loader, with
    # a sampler of the given order where OmniSafe asks for shuffling. The cost is the same.
    order = GivenOrder(data["orders"])

    def ordered_loader(dataset: Dataset[Any], batch_size: int, shuffle: bool) -> DataLoader[Any]:
        if not shuffle or len(dataset) != len(order):  # type: ignore[arg-type]
            raise ValueError("expected a shuffling loader over as many samples as `orders` has columns")
        return DataLoader(dataset=dataset, batch_size=batch_size, sampler=order)

    for cls in type(algorithm).__mro__:
        module = sys.modules[cls.__module__]
        if module.__name__.startswith("omnisafe.") and hasattr(module, "DataLoader"):
            module.DataLoader = ordered_loader  # type: ignore[attr-defined]
    return order


def main() -> None:
    """Read the input, run the update, write the output, and print one line."""
    parser = argparse.ArgumentParser(description="Run and time OmniSafe's policy update on given data.")
    parser.add_argument("input", help="archive of the batch, the parameters and the sample orders")
    parser.add_argument("output", help="archive to write the updated parameters and the time to")
    parser.add_argument("--algo", choices=ALGORITHMS, default="PPOLag")
    parser.add_argument("--iters", type=int, help="passes over the data (default: the rows of `orders`)")
    parser.add_argument("--threads", type=int, default=1, help="threads used by torch")
    args = parser.parse_args()

    with np.load(args.input) as archive:
        data = dict(archive)
    iters = len(data["orders"]) if args.iters is None else args.iters
    if iters > len(data["orders"]):
        parser.error(f"--iters {iters}, but `orders` has {len(data['orders'])} rows")

    # OmniSafe prints its configuration and a progress bar, and its logger wants a directory.
    with (
        tempfile.TemporaryDirectory() as log_dir,
        open(os.devnull, "w", encoding="utf-8") as sink,
        contextlib.redirect_stdout(sink),
    ):
        algorithm = make_algorithm(args.algo, data, iters, args.threads, log_dir)
        order = give_data(algorithm, data)
        start = time.process_time()
        algorithm._update()
        seconds = time.process_time() - start
        algorithm.logger.close()

    minibatches = order.passes * math.ceil(len(order) / int(data["batch_size"]))
    after = {f"after/{key}": value.numpy() for key, value in algorithm._actor_critic.state_dict().items()}
    np.savez(args.output, seconds=seconds, minibatches=minibatches, **after)
    each = 1e3 * seconds / minibatches
    version = omnisafe.__version__
    print(f"OmniSafe {version} {args.algo}: {minibatches} minibatches, {seconds:.2f} s, {each:.2f} ms each")


if __name__ == "__main__":
    main()
