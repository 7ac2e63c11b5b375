"""The training loop: collect, price, improve, record, save, once per epoch."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from vlmsafe.algorithms.acting import Array, Normaliser
from vlmsafe.algorithms.advantages import Batch, rollout_gae, standardise
from vlmsafe.algorithms.first_order import Losses
from vlmsafe.algorithms.learners import LEARNERS
from vlmsafe.algorithms.multipliers import Bracket, make_multiplier
from vlmsafe.algorithms.rollout import Rollout
from vlmsafe.config import TrainConfig
from vlmsafe.envs import env_spec
from vlmsafe.envs.workers import EnvRecipe, WorkerCrash, WorkerError, WorkerPool
from vlmsafe.errors import Interrupted, RunError, VlmsafeError
from vlmsafe.methods import check_method, check_trainable, config_from
from vlmsafe.training.checkpoint import Checkpoint, saved_epochs
from vlmsafe.training.collection import CollectTask, DescribeTask, Dimensions, Share
from vlmsafe.training.display import Display, check_display, make_display
from vlmsafe.training.files import DirectoryLock, make_directory
from vlmsafe.training.run import Run, package_versions
from vlmsafe.training.signals import StopRequest, stop_on_signals

# Every random choice is drawn from a generator seeded by the run's seed, a purpose and its place in the run. There is
# no generator state to save: a resumed epoch draws what the uninterrupted one would have drawn.
_INITIAL, _SHUFFLE, _COLLECT = range(3)


def train(config: TrainConfig | None = None, *, quiet: bool = False, **settings: Any) -> Run:
    """Train a new run to its end and return it.

    >>> train(env="speeding", method="ppo-lag", total_steps=40_000)  # doctest: +SKIP
    """
    if config is not None and settings:
        raise TypeError("give either a TrainConfig or single settings, not both")
    chosen = (config or config_from(settings)).resolved()
    check_method(chosen)
    check_trainable(chosen)
    check_display(chosen)
    assert chosen.run_dir is not None
    with stop_on_signals() as stop:
        dimensions = describe(chosen, stop)  # before anything is written: what cannot be made leaves no run
        with DirectoryLock(make_directory(chosen.run_dir)):
            return _work_on(Run.create(chosen), dimensions, stop, quiet)


def resume(path: Path | str, *, quiet: bool = False) -> Run:
    """Continue a run exactly where its newest checkpoint left it."""
    run = Run.open(path)
    check_display(run.config)
    with stop_on_signals() as stop:
        dimensions = describe(run.config, stop)
        with DirectoryLock(run.path):
            return _work_on(run, dimensions, stop, quiet)


def describe(config: TrainConfig, stop: StopRequest) -> Dimensions:
    """Sizes of a configuration's environment, made once in a worker."""
    spec = env_spec(config.env)
    spec.require()
    with WorkerPool[Dimensions](EnvRecipe(spec, spec.training), size=1) as pool:
        answers = pool.run([DescribeTask()], should_stop=lambda: stop.requested)
    if answers is None:
        raise Interrupted(f"stopped by {stop.reason} before training began; nothing was changed")
    return answers[0]


def _work_on(run: Run, dimensions: Dimensions, stop: StopRequest, quiet: bool) -> Run:
    """Train, and leave a note of how it ended, whatever happens. The caller holds the run's lock."""
    with make_display(run, quiet) as display:
        try:
            Trainer(run, dimensions, display, stop).train()
        except Interrupted as error:
            run.event("interrupted", reason=str(error))
            raise
        except VlmsafeError as error:
            _note_failure(run, error)
            raise
    return run


def _note_failure(run: Run, error: VlmsafeError) -> None:
    details = {"traceback": error.details} if isinstance(error, WorkerError) else {}
    try:
        run.event("failed", reason=str(error), **details)
    except RunError:
        # The disk that made the run fail also refuses this note; the first error is the one to report.
        return


class Trainer:
    """What a run holds in memory between two epochs, and how an epoch changes it."""

    def __init__(self, run: Run, dimensions: Dimensions, display: Display, stop: StopRequest) -> None:
        self.run, self.config, self.display, self.stop = run, run.config, display, stop
        self.dimensions, self.spec = dimensions, env_spec(self.config.env)
        assert self.config.budget is not None
        self.budget = self.config.budget
        fresh = {"auto": self.spec.fresh_process, "always": True, "never": False}[self.config.fresh_workers]
        self.workers: WorkerPool[Share] = WorkerPool(
            EnvRecipe(self.spec, self.spec.training),
            size=self.config.num_envs,
            fresh=fresh,
            max_restarts=self.config.max_worker_restarts,
            on_crash=self._note_crash,
        )

    def train(self) -> None:
        """Every epoch that is still to do."""
        with self.workers:
            self._start_or_continue()
            while self.epoch < self.config.epochs:
                self.stop_if_asked()
                clock = Clock()
                shares = self.collect()
                clock.lap("collect")
                rollout = Rollout.join([share.rollout for share in shares])
                episodes = self.take_in(shares)
                bracket = self.price_cost(episodes)
                batch = self.estimate_advantages(rollout)
                clock.lap("advantages")
                losses = self.improve_policy(batch, bracket)
                clock.lap("update")
                self.epoch += 1
                self.record(episodes, losses, bracket)
                clock.lap("record")
                self.run.append("timing", [{"epoch": self.epoch, **clock.seconds}])
                self.save_if_due()  # last, because a checkpoint remembers how far the row files have grown
            self.run.event("finished", epoch=self.epoch)

    def collect(self) -> list[Share]:
        """One share of experience per worker, with the policy and statistics of the epoch's beginning."""
        policy = self.learner.policy()
        normaliser = self.normaliser if self.config.normalise_observations else None
        tasks = [
            CollectTask(
                policy=policy,
                normaliser=normaliser,
                scenarios=self.spec.training,
                traffic=self.spec.traffic,
                steps=self.config.steps_per_worker,
                seed=(self.config.seed, _COLLECT, self.epoch, worker),
            )
            for worker in range(self.config.num_envs)
        ]
        done = self.epoch * self.config.steps_per_epoch
        shares = self.workers.run(tasks, lambda steps: self.display.steps(done + steps), lambda: self.stop.requested)
        if shares is None:
            self.stop_if_asked()
        assert shares is not None
        self.workers.prepare()  # the next epoch's simulators start while this one is learned from
        return shares

    def take_in(self, shares: list[Share]) -> list[dict[str, Any]]:
        """Merge the workers' statistics in worker order; the epoch's episodes, which also enter the window."""
        for share in shares:
            self.normaliser.merge(share.seen)
        episodes = [
            {"epoch": self.epoch + 1, "worker": worker, **episode}
            for worker, share in enumerate(shares)
            for episode in share.episodes
        ]
        if self.config.cost_window == "epoch":
            self.window.clear()
        self.window.extend((row["return"], row["cost"], row["length"]) for row in episodes if row["finished"])
        return episodes

    def price_cost(self, episodes: list[dict[str, Any]]) -> Bracket | None:
        """Update the multiplier from J_C (Eq. 7); the terms that moved it, or None where no episode finished."""
        episode_cost = self._window_mean(1)
        if episode_cost is None or not any(row["finished"] for row in episodes):
            return None
        if self.multiplier is None:
            return Bracket(episode_cost - self.budget)
        bracket = self.multiplier.bracket(episode_cost, self.budget)
        self.multiplier.update(bracket, episode_cost)
        return bracket

    def estimate_advantages(self, rollout: Rollout) -> Batch:
        """Advantages and value targets for rewards and, for a learner that uses them, costs."""
        learner = self.config.learner
        values, last_values = self.learner.values(rollout.observations), self.learner.values(rollout.last)
        advantages, targets = rollout_gae(
            rollout, rollout.rewards, values[0], last_values[0], learner.gamma, learner.gae_lambda
        )
        reward_advantages = standardise(advantages, divide=True)
        cost_advantages: Array = np.zeros_like(reward_advantages)
        all_targets = [targets]
        if len(values) > 1:
            advantages, targets = rollout_gae(
                rollout, rollout.costs, values[1], last_values[1], learner.gamma, learner.cost_gae_lambda
            )
            cost_advantages = standardise(advantages, divide=learner.standardise_cost_advantage)
            all_targets.append(targets)
        return Batch(
            rollout.observations, rollout.actions, rollout.log_probs,
            reward_advantages, cost_advantages, np.stack(all_targets),
        )  # fmt: skip

    def improve_policy(self, batch: Batch, bracket: Bracket | None) -> Losses:
        """The learner's own update, with the multiplier as it stands after this epoch's costs.

        Without a finished episode nothing is known of the gap; learners that read it then take the budget as just met.
        """
        self.learner.set_actor_lr(self.epoch, self.config.epochs)
        rng = np.random.default_rng((self.config.seed, _SHUFFLE, self.epoch))
        price = self.multiplier.value if self.multiplier else 0.0
        losses = self.learner.update(batch, price, bracket.cost_gap if bracket else 0.0, rng)
        figures = [losses.policy_loss, *losses.critic_losses, losses.kl]
        if not (np.isfinite(figures).all() and np.isfinite(self.learner.networks.block).all()):
            raise RunError(
                f"the losses or networks became NaN or infinite in epoch {self.epoch + 1}; the last checkpoint is "
                "unharmed. Rewards or costs of extreme size and large learning rates are the usual causes"
            )
        return losses

    def record(self, episodes: list[dict[str, Any]], losses: Losses, bracket: Bracket | None) -> None:
        """One row for the epoch, one per episode."""
        finished = [row for row in episodes if row["finished"]]
        row = {
            "epoch": self.epoch,
            "steps": self.epoch * self.config.steps_per_epoch,
            "episodes": len(finished),
            "env_return": self._window_mean(0),
            "episode_cost": self._window_mean(1),
            "episode_length": self._window_mean(2),
            "epoch_cost": float(np.mean([row["cost"] for row in finished])) if finished else None,
            "budget": self.budget,
            "cost_gap": bracket.cost_gap if bracket else None,
            "signal_term": bracket.signal_term if bracket else None,
            "bracket": bracket.value if bracket else None,
            "multiplier": self.multiplier.value if self.multiplier else None,
            "policy_loss": losses.policy_loss,
            "reward_critic_loss": losses.critic_losses[0],
            "cost_critic_loss": losses.critic_losses[1] if len(losses.critic_losses) > 1 else None,
            "kl": losses.kl,
            "passes": losses.passes,
            "entropy": losses.entropy,
        }
        self.run.append("episodes", list(episodes))
        self.run.append("epochs", [row])
        self.display.epoch(row)
        if not finished:
            consequence = ", so the multiplier is unchanged" if self.multiplier else ""
            self.display.note(
                f"epoch {self.epoch}: no episode finished{consequence}; "
                "a larger steps_per_epoch or fewer num_envs gives episodes time to end"
            )

    def save_if_due(self) -> None:
        if self.epoch % self.config.checkpoint.every == 0 or self.epoch == self.config.epochs:
            self.save()

    def save(self) -> None:
        """A checkpoint from which training continues exactly."""
        self.run.save(
            Checkpoint(
                epoch=self.epoch,
                arrays={
                    **self.learner.state(),
                    **self.normaliser.arrays(),
                    "window": np.array(self.window, np.float64).reshape(-1, 3),
                },
                values={
                    "trained": self.epoch > 0,
                    "shape": dataclasses.asdict(self.learner.shape),
                    "multiplier": self.multiplier.state() if self.multiplier else None,
                },
            )
        )
        self._saved_epoch = self.epoch

    def stop_if_asked(self) -> None:
        """Save and leave when a signal came; what was collected of an unfinished epoch is collected again later."""
        if not self.stop.requested:
            return
        if self._saved_epoch != self.epoch:
            self.save()
        raise Interrupted(
            f"stopped by {self.stop.reason} after epoch {self.epoch} of {self.config.epochs}; "
            f"continue with: {self.run.resume_command}"
        )

    def _start_or_continue(self) -> None:
        """Build everything at its initial value, then put the newest checkpoint's state in place."""
        sizes, learner = self.dimensions, self.config.learner
        rng = np.random.default_rng((self.config.seed, _INITIAL))
        self.learner = LEARNERS[learner.algorithm](sizes.observation, sizes.action, learner, rng)
        self.normaliser = Normaliser.empty(sizes.observation)
        self.multiplier = make_multiplier(self.config.multiplier)
        size = None if self.config.cost_window == "epoch" else self.config.cost_window
        self.window: deque[tuple[float, float, float]] = deque(maxlen=size)
        self.epoch, self._saved_epoch = 0, -1
        if saved_epochs(self.run.checkpoints):
            self._continue()
        else:
            self.run.start_over()
            self.run.event("started")
            self.save()
        self.display.start(self.epoch)

    def _continue(self) -> None:
        checkpoint, problems = self.run.restore()
        for problem in problems:
            self.display.note(f"{problem}; going back to epoch {checkpoint.epoch}")
        damaged = {"damaged": problems} if problems else {}
        self.run.event("resumed", epoch=checkpoint.epoch, packages=package_versions(), **damaged)
        values, arrays = checkpoint.values, checkpoint.arrays
        self.epoch = self._saved_epoch = checkpoint.epoch
        self.learner.load_state(arrays)
        self.normaliser = Normaliser.from_arrays(arrays)
        self.window.extend(tuple(row) for row in arrays["window"].tolist())
        if self.multiplier is not None:
            self.multiplier.load_state(values["multiplier"])

    def _window_mean(self, column: int) -> float | None:
        return float(np.mean([row[column] for row in self.window])) if self.window else None

    def _note_crash(self, crash: WorkerCrash) -> None:
        self.display.note(
            f"worker {crash.task} died ({crash.cause}); restart {crash.restart}, collecting its share again"
        )
        self.run.event(
            "worker crashed", epoch=self.epoch + 1, worker=crash.task, cause=crash.cause, restart=crash.restart
        )


class Clock:
    """Seconds spent in each stage of an epoch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._since, 4)
        self._since = now
