"""Score a run's frames in batches while collection goes on, then turn similarities into scores and signals.

The policy never reads a score, so collection does not wait for scores. Workers hand over the frames that are due and
continue; one thread of the main process scores them block by block. Before the update every block has been scored. The
results equal those of scoring inside the step (`--scoring in-step`, where the worker waits for each frame's score).

`calibrate` scores a policy's frames before training, where a gate or a reference level is read from them.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vlmsafe.config.settings import CalibrationConfig, SignalConfig, TrainConfig
from vlmsafe.envs.api import EnvSpec
from vlmsafe.envs.vector.frames import Frames, Stream
from vlmsafe.envs.vector.pool import WorkerPool
from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.numerics.normaliser import Normaliser
from vlmsafe.signals.calibration import Calibration, run_gate
from vlmsafe.signals.frame_stack import stack_of, stack_shape
from vlmsafe.signals.gate import FITTED, AnyGate
from vlmsafe.signals.platt import HAZARDOUS, Danger, Mask, cost_ahead, in_words
from vlmsafe.signals.rules import Scores, apply_rule
from vlmsafe.signals.scorers.api import SAME_MODEL, Scorer, Similarities, score_named
from vlmsafe.signals.scorers.registry import kind_of
from vlmsafe.signals.shaping import Paths, Shaped, hold, shape
from vlmsafe.signals.shuffling import of_other_episodes
from vlmsafe.training.collect import ActionSource, CollectTask, Dimensions, Share, Watch


@functools.cache
def scoring_thread() -> ThreadPoolExecutor:
    """The one thread of the process that scores: blocks one after another, for every scorer."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="scorer")


class FrameScoring(abc.ABC):
    """Scores the frames of a pool's tasks, as its `vlmsafe.envs.vector.frames.Reader`. Use it as a context."""

    def __init__(self) -> None:
        self._failure: VlmsafeError | None = None
        self._blocks: dict[int, list[Future[Similarities]]] = {}

    @abc.abstractmethod
    def score(self, inputs: NDArray[np.generic], /) -> Similarities:
        """The similarities of one block of frames; called by the scoring thread."""

    def begin(self, task: int) -> None:
        self._blocks[task] = []

    def take(self, task: int, frames: Frames, give_back: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure  # before more frames are collected that cannot be scored
        self._blocks[task].append(scoring_thread().submit(self._score, frames, give_back))

    def _score(self, frames: Frames, give_back: Callable[[], None]) -> Similarities:
        try:
            if self._failure is not None:
                raise self._failure  # the next block would wait in vain for the same thing
            return self.score(frames)
        except VlmsafeError as error:
            self._failure = error
            raise
        finally:
            give_back()

    def scored(self, task: int) -> bool:
        """Whether every block of a task that has come so far is scored, so that `results` does not wait."""
        return all(block.done() and block.exception() is None for block in self._blocks.get(task, ()))

    def results(self, task: int) -> list[Similarities]:
        """The similarities of each block of a task, in order. Waits for blocks that are being scored."""
        return [block.result() for block in self._blocks.pop(task)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for blocks in self._blocks.values():
            for block in blocks:
                block.cancel()


class Scoring(FrameScoring):
    """A run's scorer with its rule and gate."""

    def __init__(
        self, scorer: Scorer, config: SignalConfig, dimensions: Dimensions, gate: AnyGate | None = None
    ) -> None:
        """`gate` is the run's, if it is loaded already; otherwise it is loaded, or read from the calibration."""
        super().__init__()
        self._gate = gate
        self.scorer, self.config = scorer, config
        self.calibration: Calibration | None = None
        self.watch = Watch(scorer.looks_at, config.period, stack_of(scorer))
        self.stream: Stream | None = None
        if scorer.looks_at == "frame":
            assert dimensions.frame is not None
            assert config.batch is not None
            in_step = config.scoring == "in-step"
            shape = stack_shape(dimensions.frame, scorer.frames)
            self.stream = Stream(shape, block=1 if in_step else config.batch, wait=in_step)

    def score(self, inputs: NDArray[np.generic]) -> Similarities:
        return score_named(self.scorer, self.config.scorer, inputs)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        self.scorer.close()  # a thread that waits for a service would keep the process alive

    def similarities(self, shares: Sequence[Share]) -> list[Similarities]:
        """The similarities of each worker's scored steps. A scorer that learns sees the workers one after another."""
        if self.stream is None:
            return [self.score(share.inputs) if len(share.inputs) else self._none() for share in shares]
        return [np.concatenate(self.results(task) or [self._none()]) for task in range(len(shares))]

    def read(self, shares: Sequence[Share]) -> Scores:
        """The scores of all scored steps, in the order of the workers."""
        joined = np.concatenate(self.similarities(shares))
        rule = self.config.rule
        assert rule != "none"
        return apply_rule(rule, joined, self.scorer.groups, self.scorer.bounds, self.config.clg_weights)

    def shape(self, shares: Sequence[Share], paths: Paths, rng: np.random.Generator) -> Shaped:
        """The signals of every step and what they add to reward and cost, once the epoch is collected.

        `rng` is for a scorer whose scores go to other episodes.
        """
        scores, config = self.read(shares), self.config
        scored = np.concatenate([share.scored for share in shares])
        if kind_of(config.scorer).shuffles:
            scores = of_other_episodes(scores, scored, paths.ends, rng)
        signals = hold(scores, self.gate(scores), scored, paths.ends)
        reference = self.reference if config.needs_reference else None
        return shape(signals, config.reward_weight, config.cost_weight, reference, config.cost_form, paths)

    @property
    def gate(self) -> AnyGate:
        if self._gate is None:
            self._gate = run_gate(self.config.gate, self.calibration)
        return self._gate

    @property
    def reference(self) -> float:
        """Level above which the negative score counts as excess."""
        if self.config.reference is not None:
            return self.config.reference
        assert self.calibration is not None
        return self.calibration.negative_median

    @property
    def excess_budget(self) -> float | None:
        """Mean excess per step that the signal's own multiplier allows; None without such a multiplier."""
        if self.config.multiplier.kind == "none" or self.config.multiplier.budget is not None:
            return self.config.multiplier.budget
        assert self.calibration is not None
        return self.calibration.negative_excess

    def state(self) -> dict[str, NDArray[Any]]:
        """The state of a scorer that learns, as named arrays for a checkpoint."""
        return {f"scorer.{name}": array for name, array in self.scorer.state().items()}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state`, among the other arrays of a checkpoint."""
        own = {name: array for name, array in arrays.items() if name.startswith("scorer.")}
        self.scorer.load_state({name.removeprefix("scorer."): array for name, array in own.items()})

    def probe(self) -> list[float] | None:
        """The similarities of a fixed picture, by which a resumed run notices another model."""
        if self.stream is None:
            return None
        frame = np.random.default_rng(0).integers(0, 256, (1, *self.stream.frame), np.uint8)
        asked = scoring_thread().submit(score_named, self.scorer.uncached, self.config.scorer, frame)
        similarities: list[float] = asked.result()[0].tolist()
        return similarities

    def check_probe(self, then: list[float] | None) -> None:
        """Refuse a model that scores the fixed picture differently, beyond rounding on another device."""
        now, tolerance = self.probe(), SAME_MODEL[self.config.precision or "float32"]
        if now is not None and then is not None and not np.allclose(now, then, rtol=0.0, atol=tolerance):
            difference = float(np.abs(np.subtract(now, then)).max())
            raise RunError(
                f"the scorer '{self.config.scorer}' is not the one this run began with: similarities of the same "
                f"picture differ by {difference:.3g}. Put the model back, or start a new run"
            )

    def _none(self) -> Similarities:
        return np.empty((0, sum(self.scorer.groups)), np.float32)


def calibrate(
    scoring: Scoring,
    config: TrainConfig,
    spec: EnvSpec,
    workers: WorkerPool[Share],
    policy: ActionSource,
    normaliser: Normaliser | None,
    seed: tuple[int, ...],
    should_stop: Callable[[], bool],
) -> Calibration | None:
    """Levels of the scorer on the frames of a policy, or None when `should_stop` became true.

    The frames are those that training would score, every k-th, from scenarios of the training pool. No episode gives
    more than its share of the buffer, so that the buffer holds at least as many episodes as asked for. Rounds of equal
    tasks follow each other until there are enough frames; the first ones, by round and worker, form the buffer.
    """
    signal, wanted = config.signal, config.signal.calibration
    assert wanted.frames is not None
    # One stream comes from one worker; several episodes may come from several workers.
    streams = 1 if wanted.episodes == 1 else config.num_envs
    limit = None if wanted.episodes == 1 else wanted.frames // wanted.episodes * signal.period
    steps = math.ceil(wanted.frames / streams) * signal.period
    buffer: list[Scores] = []
    labels: list[tuple[Mask, Mask]] = []  # of each round, see `_danger`
    held, episodes = 0, 0
    while held < wanted.frames:
        tasks = [
            CollectTask(
                policy=policy,
                normaliser=normaliser,
                scenarios=spec.training,
                traffic=spec.traffic,
                steps=steps,
                seed=(*seed, len(buffer), worker),
                watch=scoring.watch,
                episode_limit=limit,
                hazards=signal.gate == "platt" and wanted.label == "hazard",
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
                f"no frame could be taken for the calibration: no episode of '{config.env}' lasts {signal.period} "
                "steps; lower --signal.every"
            )
        episodes += _episodes_within(shares, wanted.frames - held)
        held += len(scores.margin)
        buffer.append(scores)
        labels += [_danger(share, wanted) for share in shares] if signal.gate == "platt" else []
    target = wanted.target if signal.gate in FITTED and signal.gate != "platt" else None
    danger = None
    if labels:
        dangerous, known = (np.concatenate(parts)[: wanted.frames] for parts in zip(*labels, strict=True))
        danger = Danger(dangerous, known, in_words(wanted.label, wanted.horizon))
    scores = Scores.join(buffer, wanted.frames)
    return Calibration.of(scores, episodes, gate_target=target, reference=signal.reference, danger=danger)


def _danger(share: Share, wanted: CalibrationConfig) -> tuple[Mask, Mask]:
    """Which scored steps of a share are dangerous, and of which it is known."""
    if share.hazards is not None:
        return share.hazards >= HAZARDOUS, np.ones(len(share.hazards), np.bool_)
    finished = np.array([bool(episode["finished"]) for episode in share.episodes])
    horizon = wanted.horizon if wanted.label == "cost-ahead" else 0
    labels = cost_ahead(share.rollout.costs, share.rollout.path_ends, finished, horizon)
    return labels[0][share.scored], labels[1][share.scored]


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
