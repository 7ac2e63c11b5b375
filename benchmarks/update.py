"""One epoch's update of each learner: this package against OmniSafe 0.5.0, eager PyTorch and Stable-Baselines3.

    python benchmarks/update.py [--passes 40] [--learners ppo-lag cpo ...]
    python benchmarks/update.py --learners ppo ppo-lag --hidden 128 128 --batch-size 256 --passes 4

All sides do the same work on the same data in the same minibatch order (20,000 samples of 259 dimensions, minibatches
of 64 and for CPO 128, KL early stop off), one after another in one run, each on one thread. PPO-Lagrangian makes 40
passes, the others 4, because OmniSafe's take long and the time per minibatch does not change; CPO's whole update, with
its policy step, is timed at its own 10 passes for the critics. OmniSafe runs in a Python 3.10 environment of its own
under .benchmarks/, which this script sets up from the package index on first use (about a gigabyte); where Python 3.10
is missing that part is skipped with a message. Eager PyTorch takes part in PPO-Lagrangian and Stable-Baselines3 in PPO,
the learner that it has (`sb3_update.py`). Times are CPU seconds. Ratios are promised for the paper's sizes only.

Soft actor-critic (`sac`) has no counterpart in the paper, and nothing is promised for it. It is timed with two hidden
layers of 128 and of 256 units (or those of `--hidden`) and minibatches of 256: as it ships, and with the settings of
Stable-Baselines3's SAC, which is timed in between on the same rows. Its ratios are to the second.
Exit code 1 if a ratio falls short of its promise or the results differ.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
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
from sb3_update import NAME as SB3
from sb3_update import run_sb3, run_sb3_sac

from vlmsafe.config.learning import LearnerConfig
from vlmsafe.config.methods import METHODS, OFF_POLICY_METHODS
from vlmsafe.learners.advantages import Batch, Rollout
from vlmsafe.learners.learner import Learner
from vlmsafe.learners.networks import Stack
from vlmsafe.learners.recollection import Recollection
from vlmsafe.learners.registry import LEARNERS
from vlmsafe.learners.sac import SAC
from vlmsafe.numerics.normaliser import Normaliser

ROOT = Path(__file__).resolve().parent.parent
# torch 1.12.1 is the smallest download that OmniSafe runs on, and no slower here than newer ones.
PACKAGES = ["omnisafe==0.5.0", "torch==1.12.1", "numpy<2"]
PROMISE_OMNISAFE, PROMISE_CPO, PROMISE_EAGER = 6.0, 2.0, 3.5
CHECK_PASSES, TOLERANCE = 3, 1e-4
MULTIPLIER, COST_GAP, BUDGET = 0.3, 5.0, 25.0
SAC_HIDDEN, SAC_WARMUP, SAC_EPISODE = ((128, 128), (256, 256)), 20, 500
OMNISAFE_NAMES = {
    "ppo": "PPO",
    "ppo-lag": "PPOLag",
    "cppo-pid": "CPPOPID",
    "focops": "FOCOPS",
    "cup": "CUP",
    "p3o": "P3O",
    "cpo": "CPO",
}
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
    """Passes over the samples for PPO-Lagrangian."""
    sac_updates: int = 100
    """Updates of soft actor-critic."""
    learners: tuple[str, ...] = (*OMNISAFE_NAMES, "sac")
    """Which learners to time."""
    hidden: tuple[int, ...] = LearnerConfig.hidden
    """Units of each hidden layer."""
    batch_size: int | None = None
    """Samples per minibatch; by default each learner's own."""
    omnisafe: bool = True
    """Whether OmniSafe takes part."""


@dataclass(frozen=True)
class Work:
    """One learner's update."""

    learner: str
    samples: int
    dimensions: int
    passes: int
    hidden: tuple[int, ...] = LearnerConfig.hidden
    batch_size: int | None = None

    @property
    def config(self) -> LearnerConfig:
        config = METHODS[self.learner].learner
        return dataclasses.replace(
            config, update_iters=self.passes, kl_early_stop=False, hidden=self.hidden,
            batch_size=self.batch_size or config.batch_size,
        )  # fmt: skip

    @property
    def usual(self) -> bool:
        """Whether the sizes are those of the paper, for which ratios are promised."""
        return self.hidden == LearnerConfig.hidden and self.batch_size is None

    @property
    def minibatches(self) -> int:
        stages = 2 if self.learner == "cup" else 1
        return stages * self.passes * -(-self.samples // self.config.batch_size)


def make_data(options: Options) -> Batch:
    """Samples as an epoch has them: actions drawn from the initial policy, advantages standardised."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal(shape, dtype=np.float32)

    n = options.samples
    actions = normal(n, 2)
    log_probs = (-0.5 * actions**2 - 0.5 * np.log(2 * np.pi)).sum(axis=1).astype(np.float32)
    return Batch(normal(n, options.dimensions), actions, log_probs, normal(n), normal(n), normal(2, n))


def new_learner(work: Work) -> Learner:
    kind = LEARNERS[work.config.algorithm]
    return kind(work.dimensions, 2, work.config, np.random.default_rng(1))


def their_parameters(networks: Stack) -> Parameters:
    """Our parameters under the names that OmniSafe's modules and the eager loop use."""
    renamed = {}
    for name, view in networks.named():
        network, *rest = name.split(".")
        prefix = _THEIR_NETWORKS[("policy", "reward_critic", "cost_critic").index(network)]
        key = "actor.log_std" if rest == ["log_std"] else f"{prefix}.{2 * int(rest[0])}.{rest[1]}"
        renamed[key] = view.copy()
    return renamed


def run_ours(work: Work, batch: Batch, order_seed: int) -> tuple[float, Parameters]:
    learner = new_learner(work)
    batch = dataclasses.replace(batch, targets=batch.targets[: learner.critics])
    begun = time.process_time()
    price = 0.0 if METHODS[work.learner].multiplier.kind == "none" else MULTIPLIER
    learner.update(batch, price, COST_GAP, np.random.default_rng(order_seed))
    return time.process_time() - begun, their_parameters(learner.networks)


def run_eager(work: Work, batch: Batch, orders: list[Any]) -> tuple[float, Parameters]:
    """The same update as one would first write it in PyTorch: modules, autograd, one optimiser per network."""
    start, config = their_parameters(new_learner(work).networks), work.config
    networks = []
    for prefix in _THEIR_NETWORKS:
        sizes = [work.dimensions, *work.hidden, len(start[f"{prefix}.{2 * len(work.hidden)}.bias"])]
        layers = [torch.nn.Linear(inner, outer) for inner, outer in itertools.pairwise(sizes)]
        module = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.Tanh())][:-1])
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
    begun = time.process_time()
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
    seconds = time.process_time() - begun
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


def run_omnisafe(python: Path, work: Work, batch: Batch, orders: list[Any]) -> tuple[float, Parameters]:
    """OmniSafe's own update in its own process; see `omnisafe_update.py`."""
    with tempfile.TemporaryDirectory() as folder:
        given, got = Path(folder) / "input.npz", Path(folder) / "output.npz"
        # Learners without a cost critic still carry one there; it starts as the policy's neighbour would.
        before = their_parameters(new_learner(dataclasses.replace(work, learner="ppo-lag")).networks)
        arrays: dict[str, Any] = {f"before/{key}": value for key, value in before.items()}
        arrays |= {
            "obs": batch.observations, "act": batch.actions, "logp": batch.log_probs,
            "adv_r": batch.reward_advantages, "adv_c": batch.cost_advantages,
            "target_value_r": batch.targets[0], "target_value_c": batch.targets[1],
            "multiplier": MULTIPLIER, "orders": np.stack(orders), "batch_size": work.config.batch_size,
            "hidden": np.array(work.hidden),
            "episode_cost": BUDGET + COST_GAP, "cost_limit": BUDGET,
        }  # fmt: skip
        np.savez(given, **arrays)
        command = [str(python), str(Path(__file__).with_name("omnisafe_update.py")), str(given), str(got)]
        algorithm = ["--algo", OMNISAFE_NAMES[work.learner], "--iters", str(work.passes), "--threads", "1"]
        subprocess.run([*command, *algorithm], check=True, stdout=subprocess.DEVNULL)
        with np.load(got) as answer:
            after = {key.removeprefix("after/"): answer[key] for key in answer.files if key.startswith("after/")}
            return float(answer["seconds"]), after


def largest_difference(one: Parameters | None, other: Parameters | None) -> float | None:
    """Between parameters of the same names; None where one side has others."""
    if one is None or other is None:
        return None
    return max(float(np.abs(one[key] - other[key]).max()) for key in one)


def compare(work: Work, batch: Batch, python: Path | None, table: Table) -> bool:
    """Time one learner on all sides and add their rows; whether every promise was kept."""
    order_seed = 2
    rng = np.random.default_rng(order_seed)
    orders = [rng.permutation(work.samples) for _ in range(2 * work.passes)]  # CUP makes two stages of passes

    def run_all(passes: int) -> dict[str, tuple[float, Parameters | None]]:
        chosen = dataclasses.replace(work, passes=passes)
        results: dict[str, tuple[float, Parameters | None]] = {"vlmsafe": run_ours(chosen, batch, order_seed)}
        if work.learner == "ppo-lag":
            results["eager PyTorch"] = run_eager(chosen, batch, orders[:passes])
        if work.learner == "ppo":
            config = chosen.config
            seconds = run_sb3(batch, config.hidden, config.batch_size, config.update_iters, config.actor_lr)
            results[SB3] = seconds, None
        if python is not None:
            results["OmniSafe 0.5.0"] = run_omnisafe(python, chosen, batch, orders)
        return results

    # The same result is checked early: rounding grows from step to step, between any two implementations.
    early, results = run_all(min(CHECK_PASSES, work.passes)), run_all(work.passes)
    # Ours again at the end, so that a machine that slowed down in between is seen and averaged.
    again, _ = run_ours(work, batch, order_seed)
    seconds, kept = (results["vlmsafe"][0] + again) / 2, True
    promises = (
        {}
        if not work.usual
        else {
            "OmniSafe 0.5.0": PROMISE_CPO if work.learner == "cpo" else PROMISE_OMNISAFE,
            "eager PyTorch": PROMISE_EAGER,
        }
    )
    for name, (theirs, _) in results.items():
        took = seconds if name == "vlmsafe" else theirs
        differences = [largest_difference(given["vlmsafe"][1], given[name][1]) for given in (early, results)]
        row = [f"{took:.2f}", f"{1e3 * took / work.minibatches:.3f}", f"{took / seconds:.2f}"]
        table.add_row(work.learner, name, *row, *("-" if one is None else f"{one:.1e}" for one in differences))
        kept &= took / seconds >= promises.get(name, 0.0) and (differences[0] or 0.0) <= TOLERANCE
    return kept


def make_replay(batch: Batch) -> Recollection:
    """The samples as episodes of equal length, half of which end."""
    samples, dimensions = batch.observations.shape
    ends = np.append(np.arange(SAC_EPISODE, samples, SAC_EPISODE), samples)
    replay = Recollection(dimensions, batch.actions.shape[1], LearnerConfig.gamma, LearnerConfig().sac.return_steps)
    rewards, costs = (array.astype(np.float64) for array in (batch.reward_advantages, np.abs(batch.cost_advantages)))
    last = batch.observations[ends - 1]
    ended = np.arange(len(ends)) % 2 == 0
    replay.add(Rollout(batch.observations, np.tanh(batch.actions), batch.log_probs, rewards, costs, ends, last, ended))
    return replay


def run_sac(config: LearnerConfig, replay: Recollection, updates: int, normaliser: Normaliser | None) -> float:
    """CPU seconds of some updates of soft actor-critic, after a few that do not count."""
    rows = replay.at(np.arange(1))
    learner = SAC(rows.observations.shape[1], rows.actions.shape[1], config, np.random.default_rng(1))
    standardise, rng = normaliser.standardiser() if normaliser else np.asarray, np.random.default_rng(2)
    learner.update(replay, standardise, MULTIPLIER, SAC_WARMUP, rng)
    begun = time.process_time()
    learner.update(replay, standardise, MULTIPLIER, updates, rng)
    return time.process_time() - begun


def compare_sac(options: Options, hidden: tuple[int, ...], replay: Recollection, table: Table) -> None:
    """Time soft actor-critic as it ships, and with the settings of Stable-Baselines3's against that one."""
    shipped = OFF_POLICY_METHODS["sac"].learner
    shipped = dataclasses.replace(shipped, hidden=hidden, batch_size=options.batch_size or shipped.batch_size)
    plain = dataclasses.replace(shipped, sac=dataclasses.replace(shipped.sac, policy_delay=1, layer_norm=False))
    rows, updates = replay.at(np.arange(len(replay))), options.sac_updates
    sides = {"vlmsafe as it ships": (shipped, Normaliser.of(rows.observations)), "vlmsafe as in SB3": (plain, None)}
    seconds = {name: run_sac(config, replay, updates, normaliser) for name, (config, normaliser) in sides.items()}
    theirs = run_sb3_sac(rows, hidden, shipped.batch_size, SAC_WARMUP, updates)
    for name, (config, normaliser) in sides.items():  # again, so that a machine that slowed down is averaged
        seconds[name] = (seconds[name] + run_sac(config, replay, updates, normaliser)) / 2
    for name, took in (seconds | {SB3: theirs}).items():
        row = [f"{took:.2f}", f"{1e3 * took / updates:.3f}", f"{took / seconds['vlmsafe as in SB3']:.2f}"]
        table.add_row(f"sac {'x'.join(map(str, hidden))}", name, *row, "-", "-")


def main() -> int:
    options = tyro.cli(Options)
    console = Console(highlight=False, width=120)
    torch.set_num_threads(1)
    batch = make_data(options)
    python = omnisafe_python(console) if options.omnisafe and {*options.learners} - {"sac"} else None
    table = Table(title=f"one update: {options.samples:,} samples, {options.dimensions} dimensions")
    early = f"difference after {CHECK_PASSES} passes"
    for heading in ("learner", "", "seconds", "ms per minibatch", "times vlmsafe", early, "at the end"):
        table.add_column(heading, justify="left" if heading in ("learner", "") else "right")
    missed = []
    for learner in (name for name in options.learners if name != "sac"):
        passes = {"ppo-lag": options.passes, "cpo": 10}.get(learner, min(4, options.passes))
        work = Work(learner, options.samples, options.dimensions, passes, options.hidden, options.batch_size)
        if not compare(work, batch, python, table):
            missed.append(learner)
    if "sac" in options.learners:
        replay = make_replay(batch)
        for hidden in SAC_HIDDEN if options.hidden == LearnerConfig.hidden else (options.hidden,):
            compare_sac(options, hidden, replay, table)
    console.print(table)
    if options.learners == ("sac",) or options.hidden != LearnerConfig.hidden or options.batch_size is not None:
        return int(bool(missed))
    promised = f"{PROMISE_OMNISAFE:g} times OmniSafe ({PROMISE_CPO:g} for CPO), {PROMISE_EAGER:g} times eager PyTorch"
    console.print(f"promised: {promised}: {'MISSED by ' + ', '.join(missed) if missed else 'kept'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
