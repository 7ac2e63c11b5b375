"""Filling the calibration buffer: a random policy drives, the run's own scorer looks on."""

from __future__ import annotations

import math
from collections.abc import Callable

from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.api import EnvSpec
from vlmsafe.envs.vector.pool import WorkerPool
from vlmsafe.errors import InputError
from vlmsafe.signals.calibration import Calibration
from vlmsafe.signals.rules import Scores
from vlmsafe.training.collect import CollectTask, RandomPolicy, Share
from vlmsafe.training.score import Scoring


def calibrate(
    config: TrainConfig,
    spec: EnvSpec,
    scoring: Scoring,
    workers: WorkerPool[Share],
    action: int,
    seed: tuple[int, ...],
    should_stop: Callable[[], bool],
) -> Calibration | None:
    """Levels of the scorer on a random policy's frames, or None when `should_stop` became true.

    Frames are those that training would score, every k-th, from scenarios of the training pool. No episode gives more
    than its share of the buffer, so that it holds at least as many episodes as asked for. Rounds of equal tasks follow
    each other until the buffer is full; the first `frames` in the order of rounds and workers make it up.
    """
    signal, wanted = config.signal, config.signal.calibration
    assert wanted.frames is not None
    # One stream is one worker's; several episodes may be of several.
    streams = 1 if wanted.episodes == 1 else config.num_envs
    limit = None if wanted.episodes == 1 else wanted.frames // wanted.episodes * signal.every
    steps = math.ceil(wanted.frames / streams) * signal.every
    buffer: list[Scores] = []
    held, episodes = 0, 0
    while held < wanted.frames:
        tasks = [
            CollectTask(
                policy=RandomPolicy(action),
                normaliser=None,
                scenarios=spec.training,
                traffic=spec.traffic,
                steps=steps,
                seed=(*seed, len(buffer), worker),
                watch=scoring.watch,
                episode_limit=limit,
            )
            for worker in range(streams)
        ]
        reader = scoring if scoring.stream is not None else None
        shares = workers.run(tasks, should_stop=should_stop, reader=reader)
        if shares is None:
            return None
        scores = scoring.read(shares)
        if not len(scores.margin):
            raise InputError(
                f"no frame could be taken for the calibration: no episode of '{config.env}' lasts {signal.every} "
                "steps; lower --signal.every"
            )
        episodes += _episodes_within(shares, wanted.frames - held)
        held += len(scores.margin)
        buffer.append(scores)
    target = wanted.target if signal.gate == "calibrated" else None
    return Calibration.of(Scores.join(buffer, wanted.frames), episodes, gate_target=target, reference=signal.reference)


def _episodes_within(shares: list[Share], frames: int) -> int:
    """How many episodes the first `frames` scored frames come from."""
    count = 0
    for share in shares:
        start = 0
        for end in share.rollout.path_ends:
            taken = int(share.scored[start:end].sum())
            if frames <= 0:
                return count
            count += taken > 0
            frames -= taken
            start = end
    return count
