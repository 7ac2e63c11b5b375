"""What is found out before a run is written: the environment can be made, the scorer can be loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.api import EnvSpec
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.errors import Interrupted
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import InputKind, Scorer
from vlmsafe.signals.scorers.registry import kind_of
from vlmsafe.signals.service.spec import GivenUp
from vlmsafe.training.collect import DescribeTask, Dimensions
from vlmsafe.training.score import load_scorer


@dataclass(frozen=True)
class Setup:
    """What a run needs to know of its environment, and its scorer."""

    spec: EnvSpec
    dimensions: Dimensions
    scorer: Scorer | None


def set_up(config: TrainConfig, prompts: PromptSet | None, seed: tuple[int, ...], stop: StopRequest) -> Setup:
    """Load what the configuration names; `seed` is for a scorer that begins at random."""
    if config.signal.scorer == "none":
        return Setup(*describe(config, "nothing", stop), None)
    if kind_of(config.signal.scorer).looks_at == "observation":  # its networks are as wide as an observation
        spec, dimensions = describe(config, "observation", stop)
        return Setup(spec, dimensions, load_scorer(config, prompts, dimensions.observation, seed))
    try:
        scorer = load_scorer(config, prompts, 0, seed, give_up=lambda: stop.requested)
    except GivenUp:
        raise _interrupted(stop) from None
    return Setup(*describe(config, scorer.looks_at, stop), scorer)


def describe(config: TrainConfig, looks_at: InputKind, stop: StopRequest) -> tuple[EnvSpec, Dimensions]:
    """A configuration's environment, and its sizes as found by making it once in a worker."""
    spec = dataclasses.replace(config.spec, frames=looks_at == "frame")
    spec.require()
    task = DescribeTask(looks_at, spec.training.start)
    with WorkerPool[Dimensions](EnvRecipe(spec, spec.training), size=1) as pool:
        answers = pool.run([task], should_stop=lambda: stop.requested)
    if answers is None:
        raise _interrupted(stop)
    return spec, answers[0]


def _interrupted(stop: StopRequest) -> Interrupted:
    return Interrupted(f"stopped by {stop.reason} before training began; nothing was changed")
