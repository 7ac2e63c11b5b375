"""The training loop: collect, price, improve, record, save, once per epoch."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from vlmsafe.config.methods import check_method, config_from
from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.vector.pool import (
    EnvRecipe,
    WorkerCrash,
    WorkerError,
    WorkerPool,
)
from vlmsafe.errors import (
    InputError,
    Interrupted,
    RunError,
    VlmsafeError,
)
from vlmsafe.io.disk import make_directory
from vlmsafe.io.interrupts import StopRequest, stop_on_signals
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.learners.advantages import Batch, Rollout, rollout_gae, standardise
from vlmsafe.learners.learner import Losses
from vlmsafe.learners.registry import LEARNERS
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.runs.checkpoint import Checkpoint, saved_epochs
from vlmsafe.runs.run import Run
from vlmsafe.runs.surroundings import package_versions
from vlmsafe.runs.versions import Code, code_of
from vlmsafe.signals.calibration import Calibration
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.service.spec import GivenUp
from vlmsafe.signals.shaping import Shaped
from vlmsafe.training.calibrate import calibrate
from vlmsafe.training.collect import CollectTask, Share
from vlmsafe.training.constraints import Pricing
from vlmsafe.training.display import Display, check_display, make_display
from vlmsafe.training.score import ScorerFailure, Scoring
from vlmsafe.training.setup import Setup, set_up
from vlmsafe.training.summaries import Clock, mean_of, signal_figures

# Every random choice is drawn from a generator seeded by the run's seed, a purpose and its place in the run. There is
# no generator state to save: a resumed epoch draws what the uninterrupted one would have drawn.
_INITIAL, _SHUFFLE, _COLLECT, _SCORER, _CALIBRATE = range(5)

_WINDOW = ("return", "cost", "length", "bonus")
"""What is kept of the newest finished episodes."""


def train(config: TrainConfig | None = None, *, quiet: bool = False, **settings: Any) -> Run:
    """Train a new run to its end and return it.

    >>> train(env="speeding", method="ppo-lag", total_steps=40_000)  # doctest: +SKIP
    """
    if config is not None and settings:
        raise TypeError("give either a TrainConfig or single settings, not both")
    chosen = (config or config_from(settings)).resolved()
    check_method(chosen)
    check_display(chosen)
    assert chosen.run_dir is not None
    prompts = load_prompts(chosen.signal.prompts) if chosen.signal.prompts else None
    with stop_on_signals() as stop:
        # Before anything is written: what cannot be made or loaded leaves no run.
        setup = set_up(chosen, prompts, (chosen.seed, _SCORER), stop)
        with DirectoryLock(make_directory(chosen.run_dir)):
            return _work_on(Run.create(chosen, prompts), setup, stop, quiet)


def resume(
    path: Path | str, *, quiet: bool = False, service: str | None = None, service_wait: float | None = None
) -> Run:
    """Continue a run exactly where its newest checkpoint left it.

    Its scorer may be elsewhere now: `service` is the address of a scoring service, and "" the run's own process.
    """
    run = Run.open(path)
    signal = run.config.signal
    moved = dataclasses.replace(
        signal,
        service=signal.service if service is None else service,
        service_wait=signal.service_wait if service_wait is None else service_wait,
    )
    moved_to = service if service != signal.service else None
    run = Run(run.path, dataclasses.replace(run.config, signal=moved).resolved(), moved_to)
    check_display(run.config)
    with stop_on_signals() as stop:
        setup = set_up(run.config, run.prompts(), (run.config.seed, _SCORER), stop)
        with DirectoryLock(run.path):
            return _work_on(run, setup, stop, quiet)


def _work_on(run: Run, setup: Setup, stop: StopRequest, quiet: bool) -> Run:
    """Train, and leave a note of how it ended, whatever happens. The caller holds the run's lock."""
    with make_display(run, quiet) as display:
        try:
            Trainer(run, setup, display, stop).train()
        except Interrupted as error:
            run.event("interrupted", reason=str(error))
            raise
        except VlmsafeError as error:
            if isinstance(error, InputError) and not saved_epochs(run.checkpoints):
                run.discard()  # the request was wrong, as calibrating the scorer showed; nothing was started
            else:
                _note_failure(run, error)
            raise
    return run


def _note_failure(run: Run, error: VlmsafeError) -> None:
    details = {"traceback": error.details} if isinstance(error, WorkerError | ScorerFailure) else {}
    try:
        run.event("failed", reason=str(error), **details)
    except RunError:
        # The disk that made the run fail also refuses this note; the first error is the one to report.
        return


class Trainer:
    """What a run holds in memory between two epochs, and how an epoch changes it."""

    def __init__(self, run: Run, setup: Setup, display: Display, stop: StopRequest) -> None:
        self.run, self.config, self.display, self.stop = run, run.config, display, stop
        self.spec, self.dimensions = setup.spec, setup.dimensions
        self.scoring = Scoring(setup.scorer, self.config.signal, setup.dimensions) if setup.scorer else None
        fresh = {"auto": self.spec.fresh_process, "always": True, "never": False}[self.config.fresh_workers]
        self.workers: WorkerPool[Share] = WorkerPool(
            EnvRecipe(self.spec, self.spec.training),
            size=self.config.num_envs,
            fresh=fresh,
            max_restarts=self.config.max_worker_restarts,
            on_crash=self._note_crash,
            stream=self.scoring.stream if self.scoring else None,
        )

    def train(self) -> None:
        """Every epoch that is still to do."""
        with self.workers, self.scoring or nullcontext(), self._service_not_waited_for():
            self._start_or_continue()
            while self.epoch < self.config.epochs:
                self.stop_if_asked()
                clock = Clock()
                shares = self.collect()
                clock.lap("collect")
                rollout = Rollout.join([share.rollout for share in shares])
                shaped = self.scoring.shape(shares, rollout.path_ends) if self.scoring else None
                clock.lap("score")
                episodes = self.take_in(shares, rollout, shaped)
                self.set_prices(episodes)
                batch = self.estimate_advantages(rollout, shaped)
                clock.lap("advantages")
                losses = self.improve_policy(batch)
                clock.lap("update")
                self.epoch += 1
                self.record(episodes, losses)
                clock.lap("record")
                self.run.append("timing", [{"epoch": self.epoch, **clock.seconds}])
                self.save_if_due()  # last, because a checkpoint remembers how far the row files have grown
            self.run.event("finished", epoch=self.epoch)

    def collect(self) -> list[Share]:
        """One share of experience per worker, with the policy and statistics of the epoch's beginning.

        Frames that are due go to the scorer meanwhile.
        """
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
                watch=self.scoring.watch if self.scoring else None,
            )
            for worker in range(self.config.num_envs)
        ]
        done = self.epoch * self.config.steps_per_epoch
        shares = self.workers.run(
            tasks,
            on_progress=lambda steps: self.display.steps(done + steps),
            should_stop=lambda: self.stop.requested,
            reader=self.scoring if self.workers.stream else None,
        )
        if shares is None:
            self.stop_if_asked()
        assert shares is not None
        self.workers.prepare()  # the next epoch's simulators start while this one is learned from
        return shares

    def take_in(self, shares: list[Share], rollout: Rollout, shaped: Shaped | None) -> list[dict[str, Any]]:
        """Merge the workers' statistics in worker order; the epoch's episodes, which also enter the window."""
        for share in shares:
            self.normaliser.merge(share.seen)
        episodes = [
            {"epoch": self.epoch + 1, "worker": worker, **episode}
            for worker, share in enumerate(shares)
            for episode in share.episodes
        ]
        if shaped is not None:
            figures = signal_figures(shaped, rollout.path_ends)
            episodes = [episode | more for episode, more in zip(episodes, figures, strict=True)]
        if self.config.cost_window == "epoch":
            self.window.clear()
        self.window.extend(
            (row["return"], row["cost"], row["length"], row.get("bonus", 0.0)) for row in episodes if row["finished"]
        )
        return episodes

    def set_prices(self, episodes: list[dict[str, Any]]) -> None:
        """Update the multiplier from J_C and the mean negative score (Eq. 7), and the signal's own, if it has one."""
        finished = [row for row in episodes if row["finished"]]
        budget = self.scoring.excess_budget if self.scoring else None
        self.pricing.update(self._window_mean("cost"), finished, budget)

    def estimate_advantages(self, rollout: Rollout, shaped: Shaped | None) -> Batch:
        """Advantages and value targets of the shaped reward (Eq. 4), the cost and, for its own critic, the signal.

        What the cost critic learns may contain the signal; the cost that is reported and constrained never does.
        """
        config = self.config.learner
        rewards = rollout.rewards + (shaped.bonus if shaped else 0.0)
        costs = rollout.costs + (shaped.cost_bonus if shaped else 0.0)
        quantities = [(rewards, config.gae_lambda, True)]
        quantities += [(costs, config.cost_gae_lambda, config.standardise_cost_advantage)]
        if shaped is not None and shaped.excess is not None:
            # Divided by its deviation: the scale of a similarity has no meaning beside that of a reward.
            quantities += [(shaped.excess, config.cost_gae_lambda, True)]
        values, last_values = self.learner.values(rollout.observations), self.learner.values(rollout.last)
        advantages, targets = [], []
        for critic, (quantity, lam, divide) in enumerate(quantities[: len(values)]):
            estimate, target = rollout_gae(rollout, quantity, values[critic], last_values[critic], config.gamma, lam)
            advantages.append(standardise(estimate, divide=divide))
            targets.append(target)
        reward, *others = advantages
        cost = others[0] if others else np.zeros_like(reward)
        priced = self.pricing.combine(cost, others[1] if len(others) > 1 else None)
        return Batch(rollout.observations, rollout.actions, rollout.log_probs, reward, priced, np.stack(targets))

    def improve_policy(self, batch: Batch) -> Losses:
        """The learner's own update, with the multipliers as they stand after this epoch's costs.

        Without a finished episode nothing is known of the gap; learners that read it then take the budget as just met.
        """
        self.learner.set_actor_lr(self.epoch, self.config.epochs)
        rng = np.random.default_rng((self.config.seed, _SHUFFLE, self.epoch))
        losses = self.learner.update(batch, self.pricing.price, self.pricing.cost_gap, rng)
        figures = [losses.policy_loss, *losses.critic_losses, losses.kl]
        if not (np.isfinite(figures).all() and np.isfinite(self.learner.networks.block).all()):
            raise RunError(
                f"the losses or networks became NaN or infinite in epoch {self.epoch + 1}; the last checkpoint is "
                "unharmed. Rewards or costs of extreme size and large learning rates are the usual causes"
            )
        return losses

    def record(self, episodes: list[dict[str, Any]], losses: Losses) -> None:
        """One row for the epoch, one per episode."""
        finished = [row for row in episodes if row["finished"]]
        env_return, bonus = self._window_mean("return"), self._window_mean("bonus") if self.scoring else None
        row = {
            "epoch": self.epoch,
            "steps": self.epoch * self.config.steps_per_epoch,
            "episodes": len(finished),
            "env_return": env_return,
            "bonus": bonus,
            "shaped_return": None if env_return is None or bonus is None else env_return + bonus,
            "episode_cost": self._window_mean("cost"),
            "episode_length": self._window_mean("length"),
            "epoch_cost": mean_of(finished, "cost"),
            **self.pricing.figures(),
            **{name: mean_of(finished, name) for name in ("positive_score", "negative_score", "signal_excess")},
            **{name: mean_of(episodes, name, weight="scored") for name in ("kappa", "margin")},
            "policy_loss": losses.policy_loss,
            "reward_critic_loss": losses.critic_losses[0],
            "cost_critic_loss": losses.critic_losses[1] if len(losses.critic_losses) > 1 else None,
            "signal_critic_loss": losses.critic_losses[2] if len(losses.critic_losses) > 2 else None,
            "kl": losses.kl,
            "passes": losses.passes,
            "entropy": losses.entropy,
        }
        self.run.append("episodes", list(episodes))
        self.run.append("epochs", [row])
        self.display.epoch(row)
        if self.scoring is not None and not any(row["scored"] for row in episodes):
            self.display.note(
                f"epoch {self.epoch}: nothing was scored; no episode lasts the {self.config.signal.every} steps "
                "between two looks (--signal.every)"
            )
        if not finished:
            consequence = ", so the multiplier is unchanged" if self.pricing.multiplier else ""
            self.display.note(
                f"epoch {self.epoch}: no episode finished{consequence}; "
                "a larger steps_per_epoch or fewer num_envs gives episodes time to end"
            )

    def save_if_due(self) -> None:
        if self.epoch % self.config.checkpoint.every == 0 or self.epoch == self.config.epochs:
            self.save()

    def save(self) -> None:
        """A checkpoint from which training continues exactly."""
        calibration = self.scoring.calibration if self.scoring else None
        self.run.save(
            Checkpoint(
                epoch=self.epoch,
                arrays={
                    **self.learner.state(),
                    **self.normaliser.arrays(),
                    "window": np.array(self.window, np.float64).reshape(-1, len(_WINDOW)),
                    **(self.scoring.state() if self.scoring else {}),
                },
                values={
                    "trained": self.epoch > 0,
                    "shape": dataclasses.asdict(self.learner.shape),
                    **self.pricing.state(),
                    "calibration": calibration.to_dict() if calibration else None,
                    "probe": self.probe,
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

    @contextmanager
    def _service_not_waited_for(self) -> Iterator[None]:
        """A signal that came while a scoring service was waited for; the epoch under way has changed nothing yet."""
        try:
            yield
        except GivenUp:
            if self._saved_epoch < 0:
                raise Interrupted(
                    f"stopped by {self.stop.reason} before the first epoch; continue with: {self.run.resume_command}"
                ) from None
            self.stop_if_asked()
            raise

    def _start_or_continue(self) -> None:
        """Build everything at its initial value, then put the newest checkpoint's state in place."""
        sizes, learner = self.dimensions, self.config.learner
        rng = np.random.default_rng((self.config.seed, _INITIAL))
        self.pricing = Pricing(self.config)
        more_critics = 1 if self.pricing.signal_multiplier else 0
        self.learner = LEARNERS[learner.algorithm](sizes.observation, sizes.action, learner, rng, more_critics)
        self.normaliser = Normaliser.empty(sizes.observation)
        size = None if self.config.cost_window == "epoch" else self.config.cost_window
        self.window: deque[tuple[float, ...]] = deque(maxlen=size)
        self.epoch, self._saved_epoch = 0, -1
        self.probe: list[float] | None = None
        if saved_epochs(self.run.checkpoints):
            self._continue()
        else:
            self.run.start_over()
            self.run.event("started", **self._scorer_details())
            for note in self.scoring.scorer.notes(self.config.env) if self.scoring else []:
                self.display.note(note)
            if self.config.frame_indicators and self.spec.frames:
                self.display.note("frames show the simulator's cost indicators: scores of them partly read the cost")
            self._calibrate_if_needed()
            self.probe = self.scoring.probe() if self.scoring else None
            self.save()
        self.display.start(self.epoch)

    def _continue(self) -> None:
        checkpoint, problems = self.run.restore()
        for problem in problems:
            self.display.note(f"{problem}; going back to epoch {checkpoint.epoch}")
        damaged = {"damaged": problems} if problems else {}
        if other := code_of(self.run)[-1].unlike(Code.now(self.spec), self.config.env):
            self.run.event("code changed", epoch=checkpoint.epoch, reason=other)
            self.display.note(f"resuming a run of other code: {other}; its epochs so far are kept")
        self.run.event(
            "resumed", epoch=checkpoint.epoch, packages=package_versions(), env_version=self.spec.version,
            **self._scorer_details(), **damaged,
        )  # fmt: skip
        values, arrays = checkpoint.values, checkpoint.arrays
        self.epoch = self._saved_epoch = checkpoint.epoch
        self.learner.load_state(arrays)
        self.normaliser = Normaliser.from_arrays(arrays)
        self.window.extend(tuple(row) for row in arrays["window"].tolist())
        self.pricing.load_state(values)
        if self.scoring is not None:
            self.scoring.check_probe(values["probe"])
            self.probe = values["probe"]
            self.scoring.load_state(arrays)
            if values["calibration"] is not None:
                self.scoring.calibration = Calibration.from_dict(values["calibration"])

    def _calibrate_if_needed(self) -> None:
        """Read the gate and the reference level from a random policy's frames, where the run leaves them open."""
        if self.scoring is None or not self.config.signal.needs_calibration:
            return
        self.display.note("calibrating the scorer on a random policy's frames")
        calibration = calibrate(
            self.config, self.spec, self.scoring, self.workers, self.dimensions.action,
            (self.config.seed, _CALIBRATE), lambda: self.stop.requested,
        )  # fmt: skip
        if calibration is None:
            raise Interrupted(
                f"stopped by {self.stop.reason} while the scorer was calibrated; "
                f"continue with: {self.run.resume_command}"
            )
        self.scoring.calibration = calibration
        self.run.event("calibrated", **calibration.to_dict())

    def _scorer_details(self) -> dict[str, Any]:
        return {"scorer": {"name": self.config.signal.scorer, **self.scoring.scorer.describe()}} if self.scoring else {}

    def _window_mean(self, column: str) -> float | None:
        place = _WINDOW.index(column)
        return float(np.mean([row[place] for row in self.window])) if self.window else None

    def _note_crash(self, crash: WorkerCrash) -> None:
        self.display.note(
            f"worker {crash.task} died ({crash.cause}); restart {crash.restart}, collecting its share again"
        )
        self.run.event(
            "worker crashed", epoch=self.epoch + 1, worker=crash.task, cause=crash.cause, restart=crash.restart
        )
