"""The training loop. Each epoch collects, scores, updates multipliers, improves the policy, records and saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from vlmsafe.config.learning import OFF_POLICY
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerCrash, WorkerPool
from vlmsafe.errors import Divergence, Interrupted, RunError
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.learners.advantages import Batch, Quantity, Rollout, estimate
from vlmsafe.learners.learner import Losses
from vlmsafe.learners.registry import LEARNERS
from vlmsafe.learners.sac import SAC
from vlmsafe.learners.schedules import annealed_std
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.numerics.return_scale import ReturnScale
from vlmsafe.runs.checkpoint import Checkpoint
from vlmsafe.runs.digest import COLUMN, record_digest
from vlmsafe.runs.run import Run
from vlmsafe.signals.scorers.bill import Bill, in_words, since
from vlmsafe.signals.service.spec import GivenUp
from vlmsafe.signals.shaping import Paths, Shaped
from vlmsafe.training.begin import begin_or_continue
from vlmsafe.training.collect import ActionSource, CollectTask, Share
from vlmsafe.training.constraints import Constraints
from vlmsafe.training.display import Display
from vlmsafe.training.off_policy import Rounds
from vlmsafe.training.score import Scoring
from vlmsafe.training.setup import COLLECT, INITIAL, OTHER_EPISODES, REPEAT, SHUFFLE, Setup
from vlmsafe.training.summaries import Clock, EpisodeWindow, Row, episode_rows, epoch_notes, epoch_row, finished_among


class Trainer:
    """What a run holds in memory between two epochs, and how an epoch changes it."""

    def __init__(
        self,
        run: Run,
        setup: Setup,
        display: Display,
        stop: StopRequest,
        attempts: Mapping[int, int] | None = None,
    ) -> None:
        """`attempts` says how often each epoch failed before, by its number from 1; None if no epoch did."""
        self.attempts = attempts or {}
        self.run, self.config, self.display, self.stop = run, run.config, display, stop
        self.spec, self.dimensions, self.source = setup.spec, setup.dimensions, setup.source
        signal = self.config.signal
        self.scoring = Scoring(setup.scorer, signal, setup.dimensions, setup.gate) if setup.scorer else None
        fresh = {"auto": self.spec.fresh_process, "always": True, "never": False}[self.config.fresh_workers]
        off_policy = self.config.learner.algorithm in OFF_POLICY
        self.fresh = fresh
        self.workers: WorkerPool[Any] = WorkerPool(
            EnvRecipe(self.spec, self.spec.training),
            size=self.config.num_envs,
            fresh=fresh and not off_policy,  # the rounds of an epoch share a process, which `end_workers` ends
            max_restarts=0 if off_policy else self.config.max_worker_restarts,
            on_crash=self._note_crash,
            stream=self.scoring.stream if self.scoring else None,
        )
        # The state between two epochs, at its initial value; a checkpoint replaces it.
        self.epoch = 0
        self.saved_epoch: int | None = None
        self.constraints = Constraints(self.config)
        sizes, learner, rng = self.dimensions, self.config.learner, np.random.default_rng((self.config.seed, INITIAL))
        more_critics = 1 if self.constraints.signal_multiplier else 0
        self.learner = LEARNERS[learner.algorithm](sizes.observation, sizes.action, learner, rng, more_critics)
        self.rounds = Rounds(sizes, learner) if learner.algorithm in OFF_POLICY else None
        self.normaliser = Normaliser.empty(
            sizes.observation, self.config.observation_clip, self.config.observation_floor
        )
        self.return_scale = ReturnScale(learner.gamma) if learner.scale_rewards else None
        self.window = EpisodeWindow(self.config.cost_window)
        self.probe: list[float] | None = None
        self._billed: Bill = {}  # what is on record of the scorer's bill

    def train(self) -> None:
        """Train every epoch that is still to do."""
        with self.workers, self.scoring or nullcontext(), self._bill_shown(), self._service_not_waited_for():
            begin_or_continue(self)
            while self.epoch < self.config.epochs:
                self.stop_if_asked()
                if self.attempt:
                    self.display.note(
                        f"epoch {self.epoch + 1} failed before; attempt {self.attempt + 1} has other draws"
                    )
                clock = Clock()
                episodes, losses = self._epoch(clock) if self.rounds is None else self.rounds.epoch(self)
                clock.lap("update")
                attempt = self.attempt
                self.epoch += 1
                self.record(episodes, losses, attempt)
                clock.lap("record")
                self.run.append("timing", [{"epoch": self.epoch, **clock.seconds}])
                self._record_bill()
                self.save_if_due()  # last, because a checkpoint remembers how far the row files have grown
            self.run.event("finished", epoch=self.epoch)

    def _epoch(self, clock: Clock) -> tuple[list[Row], Losses]:
        """Collect with one policy, then improve it."""
        shares = self.collect()
        clock.lap("collect")
        rollout = Rollout.join([share.rollout for share in shares])
        shaped = self.shape(shares, rollout)
        clock.lap("score")
        episodes = self.add_statistics(shares, rollout, shaped)
        self.update_multipliers(episodes)
        batch = self.estimate_advantages(rollout, shaped)
        clock.lap("advantages")
        return episodes, self.improve_policy(batch)

    def collect(self) -> list[Share]:
        """One share of experience per worker, with the policy and statistics of the epoch's beginning.

        Frames that are due go to the scorer at the same time.
        """
        self._set_std()
        policy, normaliser = self.acting()
        tasks = [
            CollectTask(
                policy=policy,
                normaliser=normaliser,
                scenarios=self.spec.training,
                traffic=self.spec.traffic,
                steps=self.config.steps_per_worker,
                seed=self.seed(COLLECT, self.epoch, worker),
                watch=self.scoring.watch if self.scoring else None,
                metrics=self.spec.metrics,
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

    def shape(self, shares: list[Share], rollout: Rollout) -> Shaped | None:
        """What the scores of the epoch add to reward and cost; None without a signal."""
        if self.scoring is None:
            return None
        rng = np.random.default_rng(self.seed(OTHER_EPISODES, self.epoch))
        paths = Paths(rollout.path_ends, rollout.terminated, self.config.learner.gamma)
        return self.scoring.shape(shares, paths, rng)

    def end_workers(self) -> None:
        """After an epoch in rounds: end their process, if the next epoch needs a new one, and start that one."""
        if self.fresh:
            self.workers.close()
            self.workers.prepare()

    def acting(self) -> tuple[ActionSource, Normaliser | None]:
        """Who acts, and the statistics for what it observes.

        A replay holds observations as they are, so an off-policy learner's policy standardises them itself.
        """
        normaliser = self.normaliser if self.config.normalise_observations else None
        if isinstance(self.learner, SAC):
            own = None if normaliser is None else normaliser.copy()
            return dataclasses.replace(self.learner.policy(), normaliser=own), None
        return self.learner.policy(), normaliser

    def _set_std(self) -> None:
        """Give the actions the standard deviation of this epoch, where a schedule says it."""
        last = self.config.learner.final_std
        if last is not None:
            first = self.config.learner.initial_std if self.config.init_std is None else self.config.init_std
            self.learner.set_std(annealed_std(first, last, self.epoch, self.config.epochs_planned(self.epoch)))

    def add_statistics(self, shares: list[Share], rollout: Rollout, shaped: Shaped | None) -> list[Row]:
        """Add the epoch to the observation statistics, in worker order, and to the window; its rows of episodes."""
        for share in shares:
            self.normaliser.merge(share.seen)
        episodes = episode_rows(self.epoch + 1, shares, shaped, rollout.path_ends)
        self.window.add(finished_among(episodes))
        return episodes

    def update_multipliers(self, episodes: list[Row]) -> None:
        """Move the multiplier by J_C and the mean negative score, and the signal's own multiplier, if there is one."""
        budget = self.scoring.excess_budget if self.scoring else None
        held = self.epoch < self.config.multiplier.warmup_epochs
        self.constraints.update(self.window.mean("cost"), finished_among(episodes), budget, held=held)

    def estimate_advantages(self, rollout: Rollout, shaped: Shaped | None) -> Batch:
        """Advantages and value targets of the shaped reward, the cost and, for its own critic, the signal.

        The cost that a critic learns may contain the signal; the cost that is reported and constrained never does.
        """
        assert not isinstance(self.learner, SAC)
        config = self.config.learner
        rewards = rollout.rewards + (shaped.bonus if shaped else 0.0)
        if self.return_scale is not None:
            rewards = self.return_scale.scaled(rewards, rollout.path_ends)
        costs = rollout.costs + (shaped.cost_bonus if shaped else 0.0)
        quantities = [
            Quantity(rewards, config.gae_lambda, divide=True),
            Quantity(costs, config.cost_gae_lambda, divide=config.standardise_cost_advantage),
        ]
        if shaped is not None and shaped.excess is not None:
            # Divided by its deviation, because the scale of a similarity means nothing next to that of a reward.
            quantities.append(Quantity(shaped.excess, config.cost_gae_lambda, divide=True))
        values, last_values = self.learner.values(rollout.observations), self.learner.values(rollout.last)
        reward, *others = (
            estimate(rollout, quantity, now, last, config.gamma)
            for quantity, now, last in zip(quantities[: len(values)], values, last_values, strict=True)
        )
        cost = others[0].advantages if others else np.zeros_like(reward.advantages)
        signal = others[1].advantages if len(others) > 1 else None
        return Batch(
            rollout.observations,
            rollout.actions,
            rollout.log_probs,
            reward_advantages=reward.advantages,
            cost_advantages=self.constraints.combine(cost, signal),
            targets=np.stack([reward.targets, *(other.targets for other in others)]),
            values=values,
        )

    def improve_policy(self, batch: Batch) -> Losses:
        """The learner's own update, with the multipliers as they stand after this epoch's costs.

        Without a finished episode the gap is unknown; learners that read it then take the budget as just met.
        """
        assert not isinstance(self.learner, SAC)
        self.learner.set_learning_rates(self.epoch, self.config.epochs_planned(self.epoch))
        rng = np.random.default_rng(self.seed(SHUFFLE, self.epoch))
        if self.epoch < self.config.learner.critic_warmup_epochs:
            losses = self.learner.fit_critics(batch, rng)
        else:
            losses = self.learner.update(batch, self.constraints.total, self.constraints.cost_gap, rng)
        self.check_finite(losses)
        return losses

    def check_finite(self, losses: Losses) -> None:
        """Stop a run whose numbers overflow."""
        figures = [losses.policy_loss, *losses.critic_losses, losses.kl]
        if not (np.isfinite(figures).all() and np.isfinite(self.learner.networks.block).all()):
            raise Divergence(
                f"the losses or networks became NaN or infinite in epoch {self.epoch + 1}; the last checkpoint is "
                "unharmed. Rewards or costs of extreme size and large learning rates are the usual causes"
            )

    @property
    def attempt(self) -> int:
        """How often the epoch that is being trained failed before."""
        return self.attempts.get(self.epoch + 1, 0)

    def seed(self, purpose: int, *place: int) -> tuple[int, ...]:
        """The seed of some draws. An epoch that failed is repeated with other ones: the same would fail again."""
        again = (REPEAT, self.attempt) if self.attempt else ()
        return (self.config.seed, *again, purpose, *place)

    def record(self, episodes: list[Row], losses: Losses, attempt: int) -> None:
        """Write one row for the epoch, with a digest of the state after it, and one per episode."""
        steps = self.epoch * self.config.steps_per_epoch
        figures, scored = self.constraints.figures(), self.scoring is not None
        row = epoch_row(
            self.epoch, steps, episodes, self.window, figures, losses, scored, self.spec.passive_below
        )  # fmt: skip
        if attempt:
            row["attempt"] = attempt
        row[COLUMN] = record_digest(row, episodes) | self.state().digest()
        self.run.append("episodes", list(episodes))
        self.run.append("epochs", [row])
        self.display.epoch(row)
        for note in epoch_notes(
            self.epoch, episodes, self.config.signal.period, self.constraints.multiplier is not None
        ):
            self.display.note(note)

    def save_if_due(self) -> None:
        if self.epoch % self.config.checkpoint.every == 0 or self.epoch == self.config.epochs:
            self.save()

    def save(self) -> None:
        """Write a checkpoint from which training continues exactly."""
        self.run.save(self.state())
        self.saved_epoch = self.epoch

    def state(self) -> Checkpoint:
        """Everything that decides how the run continues."""
        calibration = self.scoring.calibration if self.scoring else None
        arrays = {
            **self.learner.state(),
            **{name: array.copy() for name, array in self.normaliser.arrays().items()},
            "window": self.window.array(),
            **(self.return_scale.arrays() if self.return_scale else {}),
            **(self.scoring.state() if self.scoring else {}),
        }
        values = {
            "trained": self.epoch > 0,
            "shape": dataclasses.asdict(self.learner.shape),
            **self.constraints.state(),
            "calibration": calibration.to_dict() if calibration else None,
            "probe": self.probe,
            **(self.rounds.state() if self.rounds else {}),
        }
        return Checkpoint(self.epoch, arrays, values)

    def stop_if_asked(self) -> None:
        """Save and leave when a signal came; a resumed run collects the unfinished epoch again."""
        if not self.stop.requested:
            return
        if self.saved_epoch != self.epoch:
            self.save()
        raise self.interrupted(f"after epoch {self.epoch} of {self.config.epochs}")

    @contextmanager
    def _service_not_waited_for(self) -> Iterator[None]:
        """Stop where a signal came while the run waited for a scoring service; the epoch has changed nothing yet."""
        try:
            yield
        except GivenUp:
            if self.saved_epoch is None:
                raise self.interrupted("before the first epoch") from None
            self.stop_if_asked()
            raise

    def _record_bill(self) -> None:
        """Note what scoring has cost since the last note. It stands among the events: it is no part of the results."""
        bill = self.scoring.scorer.bill() if self.scoring else {}
        if added := since(bill, self._billed):
            self.run.event("bill", epoch=self.epoch, **added)
            self._billed = bill

    @contextmanager
    def _bill_shown(self) -> Iterator[None]:
        """Show what scoring has cost in the whole run, however it ends."""
        try:
            yield
            self._record_bill()
        except BaseException:
            with suppress(RunError):  # a disk that made the run fail refuses this note too
                self._record_bill()
            raise
        finally:
            with suppress(RunError):  # the journal is damaged, which is no reason to fail at the end
                if bill := self.run.bill():
                    self.display.note(f"scoring cost {in_words(bill)}")

    def interrupted(self, when: str) -> Interrupted:
        """What a run raises that stops and can be continued."""
        return Interrupted(f"stopped by {self.stop.reason} {when}; continue with: {self.run.resume_command}")

    def scorer_details(self) -> dict[str, Any]:
        """What the journal notes of the scorer."""
        return {"scorer": {"name": self.config.signal.scorer, **self.scoring.scorer.describe()}} if self.scoring else {}

    def _note_crash(self, crash: WorkerCrash) -> None:
        details = {"worker": crash.task, "cause": crash.cause, "restart": crash.restart}
        self.run.event("worker crashed", epoch=self.epoch + 1, **details)
        note = f"worker {crash.task} died ({crash.cause}); restart {crash.restart}, collecting its share again"
        self.display.note(note)
