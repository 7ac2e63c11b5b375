"""One epoch's PPO-Lagrangian update: this package against OmniSafe 0.5.0 and against an eager PyTorch loop.

    python benchmarks/update.py [--passes 40]

All three do the same work on the same data in the same minibatch order (20,000 samples of 259 dimensions, minibatches
of 64, 40 passes, KL early stop off), one after another in one run, each on one thread. OmniSafe runs in a Python 3.10
environment of its own under .benchmarks/, which this script sets up from the package index on first use (about a
gigabyte); where Python 3.10 is missing that part is skipped with a message. Exit code 1 if a ratio falls short of its
promise or the results differ.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe.algorithms.advantages import Batch
from vlmsafe.algorithms.first_order import Learner
from vlmsafe.algorithms.networks import Stack
from vlmsafe.algorithms.ppo import PPOLagrangian
from vlmsafe.methods import METHODS

ROOT = Path(__file__).resolve().parent.parent
# torch 1.12.1 is the smallest download that OmniSafe runs on, and no slower here than newer ones.
PACKAGES = ["omnisafe==0.5.0", "torch==1.12.1", "numpy<2"]
PROMISE_OMNISAFE, PROMISE_EAGER = 6.0, 3.5
CHECK_PASSES, TOLERANCE = 3, 1e-4
MULTIPLIER = 0.3
_THEIR_NETWORKS = ("actor.mean", "reward_critic.critic_0", "cost_critic.critic_0")

Parameters = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


@dataclass(frozen=True)
class Options:
    """Time one epoch's update."""

    samples: int = 20_000
    """Samples of the epoch."""
    dimensions: int = 259
    """Size of an observation."""
    passes: int = 40
    """Passes over the samples."""
    omnisafe: bool = True
    """Whether OmniSafe takes part."""


def make_data(options: Options) -> Batch:
    """Samples as an epoch has them: actions drawn from the initial policy, advantages standardised."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal(shape, dtype=np.float32)

    n = options.samples
    actions = normal(n, 2)
    log_probs = (-0.5 * actions**2 - 0.5 * np.log(2 * np.pi)).sum(axis=1).astype(np.float32)
    return Batch(normal(n, options.dimensions), actions, log_probs, normal(n), normal(n), normal(2, n))


def new_learner(options: Options) -> Learner:
    config = dataclasses.replace(METHODS["ppo-lag"].learner, update_iters=options.passes, kl_early_stop=False)
    return PPOLagrangian(options.dimensions, 2, config, np.random.default_rng(1))


def their_parameters(networks: Stack) -> Parameters:
    """Our parameters under the names that OmniSafe's modules and the eager loop use."""
    renamed = {}
    for name, view in networks.named():
        network, *rest = name.split(".")
        prefix = _THEIR_NETWORKS[("policy", "reward_critic", "cost_critic").index(network)]
        key = "actor.log_std" if rest == ["log_std"] else f"{prefix}.{2 * int(rest[0])}.{rest[1]}"
        renamed[key] = view.copy()
    return renamed


def run_ours(options: Options, batch: Batch, order_seed: int) -> tuple[float, Parameters]:
    learner = new_learner(options)
    begun = time.perf_counter()
    learner.update(batch, MULTIPLIER, 0.0, np.random.default_rng(order_seed))
    return time.perf_counter() - begun, their_parameters(learner.networks)


def run_eager(options: Options, batch: Batch, orders: list[Any]) -> tuple[float, Parameters]:
    """The same update as one would first write it in PyTorch: modules, autograd, one optimiser per network."""
    start, config = their_parameters(new_learner(options).networks), new_learner(options).config
    networks = []
    for prefix in _THEIR_NETWORKS:
        outputs = len(start[f"{prefix}.4.bias"])
        module = torch.nn.Sequential(
            torch.nn.Linear(options.dimensions, 64), torch.nn.Tanh(),
            torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, outputs),
        )  # fmt: skip
        module.load_state_dict({k.removeprefix(f"{prefix}."): torch.tensor(v) for k, v in start.items() if prefix in k})
        networks.append(module)
    actor, *critics = networks
    log_std = torch.nn.Parameter(torch.tensor(start["actor.log_std"]))
    optimisers = [torch.optim.Adam(module.parameters(), lr=3e-4) for module in critics]
    actor_parameters = [*actor.parameters(), log_std]
    actor_optimiser = torch.optim.Adam(actor_parameters, lr=3e-4)
    observations, actions, log_probs = (
        torch.from_numpy(array) for array in (batch.observations, batch.actions, batch.log_probs)
    )
    combined = (batch.reward_advantages - MULTIPLIER * batch.cost_advantages) / (1 + MULTIPLIER)
    advantages, targets = torch.from_numpy(combined.astype(np.float32)), torch.from_numpy(batch.targets)
    begun = time.perf_counter()
    for order in orders:
        for rows in torch.from_numpy(order).split(config.batch_size):
            x = observations[rows]
            for critic, optimiser, target in zip(critics, optimisers, targets, strict=True):
                loss = torch.nn.functional.mse_loss(critic(x).squeeze(-1), target[rows])
                loss = loss + config.critic_penalty * sum(p.pow(2).sum() for p in critic.parameters())
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(critic.parameters(), config.max_grad_norm)
                optimiser.step()
            density = torch.distributions.Normal(actor(x), log_std.exp())
            ratio = torch.exp(density.log_prob(actions[rows]).sum(-1) - log_probs[rows])
            clipped = torch.clamp(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
            loss = -torch.min(ratio * advantages[rows], clipped * advantages[rows]).mean()
            actor_optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(actor_parameters, config.max_grad_norm)
            actor_optimiser.step()
    seconds = time.perf_counter() - begun
    after = {
        f"{prefix}.{key}": value.numpy()
        for prefix, module in zip(_THEIR_NETWORKS, networks, strict=True)
        for key, value in module.state_dict().items()
    }
    return seconds, after | {"actor.log_std": log_std.detach().numpy()}


def find_python310() -> str | None:
    """A Python 3.10 that really starts."""
    versions = os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions", "3.10*")
    for candidate in ["python3.10", *sorted(glob.glob(os.path.join(versions, "bin", "python")))]:
        path = shutil.which(candidate)
        if path is not None:
            answer = subprocess.run([path, "--version"], capture_output=True, text=True)
            if answer.returncode == 0 and "3.10" in answer.stdout:
                return path
    return None


def omnisafe_python(console: Console) -> Path | None:
    """Python of the environment with OmniSafe, set up on first use; None with a message where it cannot be."""
    folder = ROOT / ".benchmarks" / "omnisafe"
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    base = find_python310()
    if base is None:
        console.print("skipped: OmniSafe 0.5.0 needs Python 3.10, and none was found")
        return None
    console.print("setting up OmniSafe 0.5.0 in .benchmarks/omnisafe (about 1 GB, once)")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    install = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if install.returncode != 0:
        console.print(f"skipped: OmniSafe 0.5.0 could not be installed: {install.stderr.strip().splitlines()[-1]}")
        return None
    ready.touch()
    return python


def run_omnisafe(python: Path, options: Options, batch: Batch, orders: list[Any]) -> tuple[float, Parameters]:
    """OmniSafe's own update in its own process; see `omnisafe_update.py`."""
    with tempfile.TemporaryDirectory() as folder:
        given, got = Path(folder) / "input.npz", Path(folder) / "output.npz"
        before = {f"before/{key}": value for key, value in their_parameters(new_learner(options).networks).items()}
        np.savez(
            given, obs=batch.observations, act=batch.actions, logp=batch.log_probs, adv_r=batch.reward_advantages,
            adv_c=batch.cost_advantages, target_value_r=batch.targets[0], target_value_c=batch.targets[1],
            multiplier=MULTIPLIER, orders=np.stack(orders), batch_size=64, **before,  # type: ignore[arg-type]
        )  # fmt: skip
        script = Path(__file__).with_name("omnisafe_update.py")
        subprocess.run(
            [str(python), str(script), str(given), str(got), "--algo", "PPOLag", "--threads", "1"], check=True
        )
        with np.load(got) as arrays:
            after = {key.removeprefix("after/"): arrays[key] for key in arrays.files if key.startswith("after/")}
            return float(arrays["seconds"]), after


def largest_difference(one: Parameters, other: Parameters) -> float:
    return max(float(np.abs(one[key] - other[key]).max()) for key in one)


def main() -> int:
    options = tyro.cli(Options)
    console = Console(highlight=False)
    torch.set_num_threads(1)
    batch, order_seed = make_data(options), 2
    rng = np.random.default_rng(order_seed)
    orders = [rng.permutation(options.samples) for _ in range(options.passes)]
    python = omnisafe_python(console) if options.omnisafe else None

    def run_all(passes: int) -> dict[str, tuple[float, Parameters]]:
        chosen = dataclasses.replace(options, passes=passes)
        results = {"vlmsafe": run_ours(chosen, batch, order_seed)}
        results["eager PyTorch"] = run_eager(chosen, batch, orders[:passes])
        if python is not None:
            results["OmniSafe 0.5.0"] = run_omnisafe(python, chosen, batch, orders[:passes])
        return results

    # The same result is checked early: rounding grows from step to step, between any two implementations.
    early, results = run_all(min(CHECK_PASSES, options.passes)), run_all(options.passes)
    # Ours again at the end: both of its timings show how steady the machine was.
    again, _ = run_ours(options, batch, order_seed)
    first = results["vlmsafe"][0]
    seconds = (first + again) / 2
    start = their_parameters(new_learner(options).networks)
    minibatches = options.passes * -(-options.samples // 64)

    title = f"one update: {options.samples:,} samples, {options.dimensions} dimensions, {options.passes} passes"
    table = Table(title=title)
    headings = (
        "",
        "seconds",
        "ms per minibatch",
        "times vlmsafe",
        f"difference after {CHECK_PASSES} passes",
        "at the end",
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    failed = False
    for name, (theirs, _) in results.items():
        took = seconds if name == "vlmsafe" else theirs
        differences = [largest_difference(given[name][1], given["vlmsafe"][1]) for given in (early, results)]
        row = [f"{took:.2f}", f"{1e3 * took / minibatches:.3f}", f"{took / seconds:.2f}"]
        table.add_row(name, *row, *(f"{difference:.1e}" for difference in differences))
        promise = {"OmniSafe 0.5.0": PROMISE_OMNISAFE, "eager PyTorch": PROMISE_EAGER}.get(name, 0.0)
        failed |= took / seconds < promise or differences[0] > TOLERANCE
    console.print(table)
    moved = [largest_difference(given["vlmsafe"][1], start) for given in (early, results)]
    console.print(f"parameters moved by up to {moved[0]:.3f} in {CHECK_PASSES} passes and {moved[1]:.3f} in all")
    if python is not None:
        apart = largest_difference(results["eager PyTorch"][1], results["OmniSafe 0.5.0"][1])
        console.print(f"for comparison, eager PyTorch and OmniSafe differ by {apart:.1e} at the end")
    console.print(f"vlmsafe took {first:.2f} s, and at the end {again:.2f} s")
    verdict = "MISSED" if failed else "kept"
    console.print(f"promised: {PROMISE_OMNISAFE:g} times OmniSafe, {PROMISE_EAGER:g} times eager PyTorch: {verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
