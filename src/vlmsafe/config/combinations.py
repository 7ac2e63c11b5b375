"""What is wrong with a configuration: values out of bounds, and values that do not fit together.

Each check yields sentences for the user; `TrainConfig.resolved` raises one error with all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vlmsafe.config.bounds import out_of_bounds
from vlmsafe.config.learning import OFF_POLICY, OFF_POLICY_STD
from vlmsafe.signals.gate import ONE_SIDED

if TYPE_CHECKING:  # settings call these checks
    from vlmsafe.config.settings import SignalConfig, TrainConfig

_SHORTEST_EPOCH = 20
"""The least number of steps in an epoch that an error message proposes."""


def problems_of(config: TrainConfig) -> Iterator[str]:
    """All problems of a configuration."""
    yield from out_of_bounds(config)
    yield from (f"signal.endpoint.{problem}" for problem in config.signal.endpoint.problems())
    yield from _of_learner(config)
    yield from _of_multipliers(config)
    yield from _of_start(config)
    yield from _of_signal(config.signal)
    yield from _of_steps(config)


def _of_learner(config: TrainConfig) -> Iterator[str]:
    learner = config.learner
    if learner.algorithm == "cup" and learner.gamma == 1.0:
        yield "learner.gamma is 1; CUP divides by 1 - gamma, so it must be less"
    if learner.algorithm not in OFF_POLICY:
        return
    unused = {
        "learner.final_std": learner.final_std, "learner.scale_rewards": learner.scale_rewards,
        "init_critics": config.init_critics, "init_std": config.init_std,
        "signal.scorer": config.signal.scorer != "none",
    }  # fmt: skip
    if config.num_envs > 1:
        yield f"num_envs is {config.num_envs}; the learner '{learner.algorithm}' acts in one process: drop it"
    for name in (name for name, value in unused.items() if value):
        yield f"{name} is set, but the learner '{learner.algorithm}' has no use for it; drop it"
    low, high = OFF_POLICY_STD
    given = learner.initial_std if isinstance(learner.initial_std, tuple) else (learner.initial_std,)
    if not all(low <= std <= high for std in given):
        yield (
            f"learner.initial_std is {learner.initial_std}; the learner '{learner.algorithm}' takes values from "
            f"{low:g} to {high:g}"
        )


def _of_multipliers(config: TrainConfig) -> Iterator[str]:
    for name, part in (("multiplier", config.multiplier), ("signal.multiplier", config.signal.multiplier)):
        if part.upper_bound is not None and not part.upper_bound >= part.initial:
            yield f"{name}.upper_bound is {part.upper_bound}; it must be at least {name}.initial, {part.initial}"


def _of_start(config: TrainConfig) -> Iterator[str]:
    if config.init_from is None:
        changes = {"init_critics": config.init_critics, "init_std": config.init_std, "init_mean": config.init_mean}
        for name in (name for name, value in changes.items() if value):
            yield f"{name} is set, but init_from is not; name a run to start from"
    elif config.learner.final_std is not None and config.init_std is None:
        yield "learner.final_std is set, but init_std is not; name the standard deviation from which it falls"


def _of_signal(signal: SignalConfig) -> Iterator[str]:
    if signal.scorer != "none" and signal.gate in ONE_SIDED and signal.cost_weight > 0.0:
        yield (
            f"signal.gate is '{signal.gate}' and signal.cost_weight {signal.cost_weight}; this gate closes on frames "
            "that look dangerous, so it would hide them from the cost: use another gate, or another route for the "
            "negative score (--multiplier.signal-weight, --signal.multiplier.kind)"
        )
    if signal.cost_form != "level" and signal.cost_weight == 0.0:
        yield f"signal.cost_form is '{signal.cost_form}', but signal.cost_weight is 0; set a weight, or drop it"
    frames, episodes = signal.calibration.frames, signal.calibration.episodes
    if frames is not None and frames < max(4, episodes):
        yield (
            f"signal.calibration.frames is {frames}; it must be at least 4, for quartiles, and at least the number of "
            f"episodes, {episodes}"
        )


def _of_steps(config: TrainConfig) -> Iterator[str]:
    if config.num_envs <= 0 or config.steps_per_epoch <= 0:
        return  # out of bounds, which is said already
    if config.steps_per_epoch % config.num_envs:
        yield (
            f"num_envs is {config.num_envs}, which does not divide steps_per_epoch {config.steps_per_epoch}; "
            f"choose a divisor such as {_nearest_divisor(config.steps_per_epoch, config.num_envs)}"
        )
    if config.total_steps < config.steps_per_epoch or config.total_steps % config.steps_per_epoch:
        yield (
            f"total_steps is {config.total_steps}; it must be a positive multiple of steps_per_epoch "
            f"{config.steps_per_epoch}; {_fitting_steps(config)}"
        )


def _fitting_steps(config: TrainConfig) -> str:
    """Which setting to change, and to what, where the steps of a run are no whole number of epochs.

    >>> from vlmsafe.config.settings import TrainConfig
    >>> _fitting_steps(TrainConfig(total_steps=1000))
    'pass --steps-per-epoch 500, or --total-steps 20000'
    """
    total, epoch, workers = config.total_steps, config.steps_per_epoch, config.num_envs
    # At least two epochs, because one leaves nothing to compare.
    fitting = [n for n in range(workers, min(epoch, total // 2) + 1, workers) if total % n == 0]
    rounded = max(1, round(total / epoch)) * epoch
    shorter = f"--steps-per-epoch {max(fitting)}, or " if fitting and max(fitting) >= _SHORTEST_EPOCH else ""
    return f"pass {shorter}--total-steps {rounded}"


def _nearest_divisor(number: int, near: int) -> int:
    """The divisor of `number` nearest to `near`, the smaller one of two equally near.

    >>> _nearest_divisor(20_000, 3)
    2
    """
    below = next(n for n in range(min(near, number), 0, -1) if number % n == 0)
    above = next(n for n in range(near, number + 1) if number % n == 0) if near <= number else number
    return below if near - below <= above - near else above
