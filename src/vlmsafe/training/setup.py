"""Before a run is written: make its environment once, and load its scorer. What fails here leaves no run behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.api import EnvSpec
from vlmsafe.envs.checking import size_advice
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.errors import InputError, Interrupted
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.io.memory import free_memory
from vlmsafe.io.source import SourceHash, unseen_files
from vlmsafe.signals.gate import FITTED, AnyGate, UserGate, load_gate
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import InputKind, Scorer, check_scorer
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import kind_of, parse_scorer
from vlmsafe.signals.service.spec import GivenUp
from vlmsafe.training.collect import DescribeTask, Dimensions

# Every random choice is drawn from a generator seeded by the run's seed, a purpose and its place in the run. There is
# no generator state to save: a resumed epoch draws what the uninterrupted one would have drawn.
INITIAL, SHUFFLE, COLLECT, SCORER, CALIBRATE, REPEAT, OTHER_EPISODES = range(7)


@dataclass(frozen=True)
class Setup:
    """A run's environment and scorer, as found before training."""

    spec: EnvSpec
    dimensions: Dimensions
    scorer: Scorer | None
    gate: AnyGate | None = None
    """The gate of the signal, if it need not be fitted."""
    source: Mapping[str, SourceHash] = field(default_factory=dict)
    """Of the user's own environment, scorer and gate."""


def set_up(config: TrainConfig, prompts: PromptSet | None, stop: StopRequest) -> Setup:
    """Load what the configuration names."""
    signal = config.signal
    gate = None if signal.scorer == "none" or signal.gate in FITTED else load_gate(signal.gate)
    environment = config.spec.source_hash(revision=True)
    setup = _loaded(config, prompts, stop, environment)
    if environment is not None and (unseen := unseen_files(setup.dimensions.made_of, environment)):
        unknown = f"it is made of {', '.join(unseen)}, which the module on its id does not import"
        environment = dataclasses.replace(environment, unknown=unknown)
    scorer = setup.scorer.source if setup.scorer is not None else None
    parts = {"environment": environment, "scorer": scorer, "gate": gate.source if isinstance(gate, UserGate) else None}
    return dataclasses.replace(setup, gate=gate, source={part: own for part, own in parts.items() if own is not None})


def _loaded(config: TrainConfig, prompts: PromptSet | None, stop: StopRequest, source: SourceHash | None) -> Setup:
    if config.signal.scorer == "none":
        return Setup(*describe(config, "nothing", stop, source), None)
    if kind_of(config.signal.scorer).looks_at == "observation":  # its networks are as wide as an observation
        spec, dimensions = describe(config, "observation", stop, source)
        return Setup(spec, dimensions, load_scorer(config, prompts, dimensions.observation))
    try:
        scorer = load_scorer(config, prompts, 0, give_up=lambda: stop.requested)
    except GivenUp:
        raise _interrupted(stop) from None
    return Setup(*describe(config, scorer.looks_at, stop, source), scorer)


def describe(
    config: TrainConfig, looks_at: InputKind, stop: StopRequest, source: SourceHash | None = None
) -> tuple[EnvSpec, Dimensions]:
    """A configuration's environment, and its sizes, found by making it once in a worker.

    It is made only of `source` if that is given, and so are all environments of the spec that is returned.
    """
    spec = dataclasses.replace(config.spec.made_only_of(source), frames=looks_at == "frame")
    spec.require()
    task = DescribeTask(looks_at, spec.training.start, try_steps=spec.version is None)
    restarts = config.max_worker_restarts
    with WorkerPool[Dimensions](EnvRecipe(spec, spec.training), size=1, max_restarts=restarts) as pool:
        answers = pool.run([task], should_stop=lambda: stop.requested)
    if answers is None:
        raise _interrupted(stop)
    _check_per_action(config, answers[0].action)
    _check_memory(config, answers[0].observation)
    return spec, answers[0]


def _check_memory(config: TrainConfig, size: int) -> None:
    """Refuse observations of which an epoch does not fit into memory, with what the workers send and what is joined."""
    needed, free = 2 * 4 * size * config.steps_per_epoch, free_memory()
    if needed > free:
        raise InputError(
            f"'{config.env}' has {size:,} values per observation, and {free / 1e9:.1f} GB of memory are free: "
            f"{size_advice(size, config.steps_per_epoch)} to at most {free // (8 * size):,}"
        )


def _check_per_action(config: TrainConfig, actions: int) -> None:
    """Refuse a setting that names a value for each action, but not for as many as there are."""
    learner = config.learner
    given = {
        "learner.initial_std": learner.initial_std,
        "learner.initial_mean": learner.initial_mean,
        "learner.final_std": learner.final_std,
        "init_std": config.init_std,
        "init_mean": config.init_mean,
    }
    for name, value in given.items():
        if isinstance(value, tuple) and len(value) not in (1, actions):
            raise InputError(
                f"{name} has {len(value)} values, but '{config.env}' has {actions} actions; expected one value for "
                "all, or one for each"
            )


def _interrupted(stop: StopRequest) -> Interrupted:
    return Interrupted(f"stopped by {stop.reason} before training began; nothing was changed")


def load_scorer(
    config: TrainConfig,
    prompts: PromptSet | None,
    observation: int,
    give_up: Callable[[], bool] = lambda: False,
) -> Scorer:
    """The scorer that a run asks for, checked to fit its rule; `observation` is the length of an observation.

    Waits for a scoring service until `give_up` returns true.
    """
    signal = config.signal
    name = parse_scorer(signal.scorer).unshuffled
    if name.kind.rules is not None:
        check_rule(config, name.kind.rules)  # before a model is loaded, or fetched
    scorer = make_scorer(
        name,
        prompts,
        device=signal.device,
        precision=signal.precision,
        compile=signal.compile,
        batch=signal.batch,
        observation=observation,
        seed=(config.seed, SCORER),  # for a scorer that begins at random
        service=signal.service,
        service_wait=signal.service_wait,
        give_up=give_up,
        endpoint=signal.endpoint,
        cache=signal.cache,
        cache_mb=signal.cache_mb,
        frames=signal.frames,
        frame_distance=signal.frame_distance,
    )
    check_scorer(scorer)
    check_rule(config, scorer.rules)
    return scorer


def check_rule(config: TrainConfig, rules: tuple[str, ...]) -> None:
    """Refuse a scorer whose similarities do not suit the rule of the method."""
    if config.signal.rule not in rules:
        raise InputError(
            f"the scorer '{config.signal.scorer}' cannot be used with the rule '{config.signal.rule}' of the method "
            f"'{config.method}'; it gives {' or '.join(rules)}"
        )
