"""What a run does before it trains: begin anew, or go on from its newest checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vlmsafe import kernels
from vlmsafe.envs.checking import LARGE_OBSERVATION, size_advice
from vlmsafe.errors import RunError
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.runs.checkpoint import saved_epochs
from vlmsafe.runs.surroundings import code_and_machine, source_record
from vlmsafe.runs.versions import Code, code_of, kernels_of, other_source
from vlmsafe.runs.warm_start import describe_start
from vlmsafe.signals.calibration import Calibration
from vlmsafe.training.collect import ActionSource, RandomPolicy
from vlmsafe.training.score import calibrate
from vlmsafe.training.setup import CALIBRATE

if TYPE_CHECKING:
    from vlmsafe.training.trainer import Trainer


def begin_or_continue(trainer: Trainer) -> None:
    """Continue from the newest checkpoint; without one, calibrate the scorer and save the untrained start."""
    if saved_epochs(trainer.run.checkpoints):
        _continue(trainer)
    else:
        _begin(trainer)
    trainer.display.start(trainer.epoch)


def _begin(trainer: Trainer) -> None:
    trainer.run.start_over()
    trainer.run.event("started", **trainer.scorer_details())
    for note in _notes(trainer):
        trainer.display.note(note)
    _take_over(trainer)
    _calibrate_if_needed(trainer)
    trainer.probe = trainer.scoring.probe() if trainer.scoring else None
    trainer.save()


def _notes(trainer: Trainer) -> Iterator[str]:
    """What a user should know of a run from the start."""
    config, size = trainer.config, trainer.dimensions.observation
    for part, own in trainer.source.items():
        if own.unknown:
            yield f"no study will copy this run: the source of its {part} is not known: {own.unknown}"
    if kernels.in_effect() != config.kernels:
        yield kernels.unavailable() or kernels.REFUSED
    if trainer.scoring is not None:
        yield from trainer.scoring.scorer.notes(config.env)
    if config.steps_per_epoch < (longest := trainer.spec.longest or 0):
        yield (
            f"an epoch has {config.steps_per_epoch:,} steps and an episode up to {longest:,}, "
            "so only episodes that end early count in the episode cost"
        )
    if size > LARGE_OBSERVATION:
        yield f"{size:,} values per observation: {size_advice(size, config.steps_per_epoch)}"
    if config.frame_indicators and trainer.spec.frames:
        yield "frames show the simulator's cost indicators: scores of them partly read the cost"


def _take_over(trainer: Trainer) -> None:
    """Begin with the policy, the normaliser and the critics of another run, where the run asks for it."""
    start, config, learner = trainer.run.start(), trainer.config, trainer.learner
    if start is None:
        return
    learner.take_over(start.arrays["networks"])
    if config.init_std is not None:
        learner.set_std(config.init_std)
    learner.shift_mean(config.init_mean)
    if config.normalise_observations:
        trainer.normaliser = Normaliser.from_arrays(start.arrays)
        trainer.normaliser.clip = config.observation_clip
        trainer.normaliser.floor = config.observation_floor
    trainer.display.note(describe_start(start))


def _calibrate_if_needed(trainer: Trainer) -> None:
    """Read the gate and the reference level from frames, where the run leaves them open."""
    scoring, config = trainer.scoring, trainer.config
    if scoring is None or not config.signal.needs_calibration:
        return
    policy: ActionSource = RandomPolicy(trainer.dimensions.action)
    normaliser = None
    if config.signal.calibration.policy == "initial":
        policy, normaliser = trainer.acting()
    whose = "a random policy" if isinstance(policy, RandomPolicy) else "the initial policy"
    trainer.display.note(f"calibrating the scorer on {whose}'s frames")
    calibration = calibrate(
        scoring, config, trainer.spec, trainer.workers, policy, normaliser, (config.seed, CALIBRATE),
        lambda: trainer.stop.requested,
    )  # fmt: skip
    if calibration is None:
        raise trainer.interrupted("while the scorer was calibrated")
    scoring.calibration = calibration
    trainer.run.event("calibrated", **calibration.to_dict())
    if calibration.warning is not None:
        trainer.display.note(calibration.warning)


def _continue(trainer: Trainer) -> None:
    """Restore what `Trainer.save` wrote."""
    checkpoint, problems = trainer.run.restore()
    for problem in problems:
        trainer.display.note(f"{problem}; going back to epoch {checkpoint.epoch}")
    damaged = {"damaged": problems} if problems else {}
    _note_other_code(trainer, checkpoint.epoch)
    trainer.run.event(
        "resumed", epoch=checkpoint.epoch, **code_and_machine(), env_version=trainer.spec.version,
        **source_record(trainer.source), **trainer.scorer_details(), **damaged,
    )  # fmt: skip
    values, arrays, scoring = checkpoint.values, checkpoint.arrays, trainer.scoring
    trainer.epoch = trainer.saved_epoch = checkpoint.epoch
    trainer.learner.load_state(arrays)
    trainer.normaliser = Normaliser.from_arrays(arrays)
    trainer.window.load(arrays["window"])
    if trainer.return_scale is not None:
        trainer.return_scale.load(arrays)
    trainer.constraints.load_state(values)
    if trainer.rounds is not None:
        trainer.rounds.load(trainer.run.path, trainer.epoch, values)
    if scoring is not None:
        scoring.check_probe(values["probe"])
        trainer.probe = values["probe"]
        scoring.load_state(arrays)
        if values["calibration"] is not None:
            scoring.calibration = Calibration.from_dict(values["calibration"])


def _note_other_code(trainer: Trainer, epoch: int) -> None:
    """Say if another version of the package or of the environment, or other code, computed the run so far."""
    run, config, display = trainer.run, trainer.config, trainer.display
    try:
        before, code = code_of(run)[-1], dataclasses.replace(Code.now(config), source=trainer.source)
        other = before.unlike(code, config.env)
    except RunError as error:  # the journal is damaged, which is no reason not to continue
        display.note(f"it is not known which code computed the run so far: {error}")
        return
    if other:
        # Changed source got here only by --accept-changed-code.
        accepted = {"accepted": True} if other_source(before.source, code.source) else {}
        run.event("code changed", epoch=epoch, reason=other, **accepted)
        display.note(f"resuming a run of other code: {other}; its epochs so far are kept")
    if (then := kernels_of(run)) != (now := kernels.in_effect()):
        display.note(
            f"resuming with {now} kernels a run that was computed with {then} kernels; its numbers may differ from "
            f"those of an uninterrupted run. {kernels.unavailable() or kernels.REFUSED}"
        )
