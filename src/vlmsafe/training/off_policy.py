"""The epoch of an off-policy learner: it acts and learns in turn, and keeps every step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlmsafe.config.learning import LearnerConfig
from vlmsafe.learners.advantages import Rollout
from vlmsafe.learners.learner import Losses
from vlmsafe.learners.recollection import Recollection, rollout_arrays, rollout_from
from vlmsafe.learners.sac import SAC
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.runs.experience import check_experience, load_experience, save_experience
from vlmsafe.training.collect import Dimensions
from vlmsafe.training.rounds import Round, RoundTask
from vlmsafe.training.setup import COLLECT, SHUFFLE
from vlmsafe.training.summaries import Row, finished_among

if TYPE_CHECKING:
    from vlmsafe.training.trainer import Trainer


class Rounds:
    """The replay of a run, and how an epoch adds to it."""

    def __init__(self, sizes: Dimensions, learner: LearnerConfig) -> None:
        self._replay = Recollection(sizes.observation, sizes.action, learner.gamma, learner.sac.return_steps)
        self._digest = ""  # of what the replay holds

    def state(self) -> dict[str, Any]:
        """What a checkpoint remembers of the replay; its steps are in files of their own."""
        return {"replay": self._digest}

    def load(self, run: Path, epochs: int, values: Mapping[str, Any]) -> None:
        """Read the steps of the first epochs."""
        for epoch in range(1, epochs + 1):
            kept, self._digest = load_experience(run, epoch, self._digest)
            self._replay.add(rollout_from(kept))
        check_experience(run, self._digest, values["replay"])

    def epoch(self, trainer: Trainer) -> tuple[list[Row], Losses]:
        """Act and learn in turn; the multiplier follows at the end.

        A run that is asked to stop in between goes back to the beginning of the epoch.
        """
        config, learner = trainer.config, trainer.learner
        assert isinstance(learner, SAC)
        start = None if trainer.saved_epoch == trainer.epoch else trainer.state()
        learner.set_learning_rates(trainer.epoch, config.epochs_planned(trainer.epoch))
        rng = np.random.default_rng(trainer.seed(SHUFFLE, trainer.epoch))
        rounds: list[Round] = []
        losses: list[Losses] = []
        done, owed = 0, 0.0
        while done < config.steps_per_epoch:
            if trainer.stop.requested:
                if start is not None:
                    trainer.run.save(start)
                raise trainer.interrupted(f"after epoch {trainer.epoch} of {config.epochs}")
            steps = min(config.learner.sac.round_steps, config.steps_per_epoch - done)
            rounds.append(self._act(trainer, done, steps))
            done += steps
            trainer.display.steps(trainer.epoch * config.steps_per_epoch + done)
            if len(self._replay) >= config.learner.sac.first_steps:
                owed += steps * config.learner.sac.updates_per_step
                updates, owed = int(owed), owed % 1.0
                if updates == 0:  # a short round, with less than one update for each step
                    continue
                standardise = trainer.normaliser.standardiser() if config.normalise_observations else np.asarray
                losses.append(learner.update(self._replay, standardise, trainer.constraints.total, updates, rng))
        trainer.end_workers()
        whole = Rollout.join([one.rollout for one in rounds])
        self._digest = save_experience(trainer.run.path, trainer.epoch + 1, rollout_arrays(whole), self._digest)
        episodes = [{"epoch": trainer.epoch + 1, "worker": 0, **row} for one in rounds for row in one.episodes]
        trainer.window.add(finished_among(episodes))
        trainer.update_multipliers(episodes)
        found = Losses.mean(losses)
        trainer.check_finite(found)
        return episodes, found

    def _act(self, trainer: Trainer, done: int, steps: int) -> Round:
        """One round with the present policy; it enters the replay and the statistics of observations."""
        policy, _ = trainer.acting()
        task = RoundTask(
            policy=policy,
            scenarios=trainer.spec.training,
            traffic=trainer.spec.traffic,
            metrics=trainer.spec.metrics,
            steps=steps,
            seed=trainer.seed(COLLECT, trainer.epoch, 0),
            first=done == 0,
            last=done + steps == trainer.config.steps_per_epoch,
        )
        answers = trainer.workers.run([task])
        assert answers is not None
        found: Round = answers[0]
        self._replay.add(found.rollout)
        trainer.normaliser.merge(Normaliser.of(found.rollout.observations))
        return found
