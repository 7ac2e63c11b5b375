"""Every setting of a training run, as frozen dataclasses; the sentence under a field is its help text.

The defaults are those of the paper's hyper-parameter table for PPO-Lagrangian. A method (`vlmsafe.config.methods`)
replaces some of them, then a YAML file, then the command line. The bounds of a number are part of its type.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vlmsafe.config.bounds import (
    Bounds,
    Finite,
    NonNegative,
    NonNegativeInt,
    OpenShare,
    Pattern,
    Positive,
    PositiveInt,
    Share,
)
from vlmsafe.config.combinations import problems_of
from vlmsafe.config.learning import LearnerConfig, MultiplierConfig
from vlmsafe.envs.api import EnvSpec
from vlmsafe.envs.registry import env_spec, world_name
from vlmsafe.errors import InputError
from vlmsafe.kernels import Kernels
from vlmsafe.numerics.normaliser import CLIP, STD_FLOOR
from vlmsafe.signals.gate import FITTED, GATES
from vlmsafe.signals.platt import DangerLabel
from vlmsafe.signals.prompts import shipped_prompts
from vlmsafe.signals.scorers.api import Precision, Scorer
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.signals.scorers.make import MOST_FRAMES, check_stack
from vlmsafe.signals.scorers.registry import kind_of, parse_scorer
from vlmsafe.signals.service.spec import parse_address
from vlmsafe.signals.shaping import CostForm

PLACE = frozenset(
    {
        "signal.service", "signal.service_wait", "signal.cache", "signal.cache_mb", "signal.endpoint.url",
        "signal.endpoint.concurrency", "signal.endpoint.per_minute", "signal.endpoint.timeout", "signal.endpoint.wait",
    }
)  # fmt: skip
"""Settings that say where the scorer runs and how it is reached. They do not affect results: a run may be resumed with
other values."""

DRIVER = "driver:"
"""The prefix of a shipped driver's name, wherever a run can be given."""

_DEVICES = Pattern(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or a certain GPU such as cuda:1")
_GATES = Pattern(
    "|".join([*GATES, *FITTED, "auto", r"python:[\w.]+:\w+"]),
    f"{', '.join(['auto', *GATES, *FITTED])}, or python:<module>:<name>",
)


@dataclass(frozen=True)
class CalibrationConfig:
    """The buffer of frames from which a gate and a reference level are read, before training."""

    policy: Literal["random", "initial"] = "random"
    """Whose frames they are: those of random actions, or those of the policy that the run begins with."""
    frames: int | None = None
    """Scored frames in the buffer; by default 500, and 5,000 for a large CLIP."""
    episodes: PositiveInt = 5
    """Episodes over which they are spread, at least; 1 is one stream, cut only where an episode ends."""
    target: OpenShare = 0.5
    """Gate value one interquartile range from the median margin, kappa*."""
    label: DangerLabel = "cost-ahead"
    """What the gate 'platt' takes for danger: cost within the horizon, cost in the step, or a hazard of 0.5 or more."""
    horizon: PositiveInt = 20
    """Steps within which cost counts as ahead, for the label 'cost-ahead'."""


@dataclass(frozen=True)
class SignalMultiplierConfig:
    """A multiplier for the signal alone: the mean excess of the negative score as a constraint with its own critic."""

    kind: Literal["none", "adam", "gradient"] = "none"
    """Rule that moves it; 'none' leaves the signal to the other routes."""
    budget: Share | None = None
    """Mean excess per step that is allowed; by default that of the calibration buffer."""
    initial: NonNegative = 0.0
    """Its value before the first epoch."""
    learning_rate: Positive = 0.035
    """Its learning rate."""
    upper_bound: Positive = 2.0
    """Its largest value: a score that cannot fall below its reference would raise it without end."""


@dataclass(frozen=True)
class SignalConfig:
    """The vision-language signal of a method: what scores frames and how the scores are used."""

    scorer: Annotated[str, tyro.conf.arg(aliases=("--scorer",))] = "none"
    """What scores: embedded, clip[:<model>], qwen2-vl[:<model>], transformers:<model>, openai:<model>@<url>, rnd,
    constant:<value>, noise, oracle, shuffled[:<scorer>], python:<module>:<name>."""
    prompts: Annotated[str | None, tyro.conf.arg(aliases=("--prompts",))] = None
    """Prompt set: a name shipped with the package or a YAML file; by default the environment's own."""
    rule: Literal["none", "decoupled", "coupled", "clg", "yes-no", "novelty"] = "none"
    """How similarities become a positive and a negative score."""
    gate: Annotated[str, _GATES] = "off"
    """Confidence gate kappa on the reward bonus: off, auto, prior-symmetric, calibrated, probability, signed,
    signed-calibrated, platt or python:<module>:<name>; 'auto' is the scorer's own: calibrated for embedded,
    probability for chat models, else prior-symmetric."""
    every: PositiveInt | None = None
    """Steps between two scored frames, k_clip; by default the paper's: 4 on MetaDrive and Bullet, else 1."""
    clg_weights: Literal["half", "full"] = "half"
    """Weights of both similarities in the rule clg: one half each, or one each, which is the other reading."""
    reward_weight: NonNegative = 0.0
    """Weight of the gated positive score in the reward, lambda_r."""
    cost_weight: Annotated[NonNegative, tyro.conf.arg(aliases=("--vlm-cost-weight",))] = 0.0
    """Weight of the gated negative score's excess in the cost that the critic sees, lambda_c."""
    cost_form: CostForm = "level"
    """What is added to this cost: the excess in every step, or its change from step to step, which adds nothing to the
    total of an episode."""
    reference: Share | None = None
    """Level above which the negative score counts as excess; by default the median of the calibration buffer."""
    scoring: Annotated[Literal["deferred", "in-step"], tyro.conf.arg(aliases=("--scoring",))] = "deferred"
    """Whether frames are scored in batches while collection goes on, or each before the next step."""
    device: Annotated[str, _DEVICES, tyro.conf.arg(aliases=("--scorer-device",))] = "auto"
    """Where the model runs: cpu, cuda, cuda:1, ...; 'auto' takes a GPU where there is one."""
    precision: Precision | None = None
    """Number format of the model; by default the scorer's own: bfloat16 for chat models, else float32. For openai
    it only says how much answers to one picture may differ."""
    compile: bool = False
    """Whether the model is compiled first: slow to start, faster on a GPU."""
    batch: PositiveInt | None = None
    """Frames scored at a time; by default the scorer's own number: 16 for chat models, else 64."""
    frames: Annotated[int | None, Bounds(1, MOST_FRAMES), tyro.conf.arg(aliases=("--scorer-frames",))] = None
    """Frames that the scorer gets at a time, for one that takes any number (chat models); by default its own number."""
    frame_distance: Annotated[PositiveInt | None, tyro.conf.arg(aliases=("--frame-distance",))] = None
    """Steps between two of these frames; by default the scorer's own, 4."""
    service: str = ""
    """Address of a scoring service (`vlmsafe serve`) that holds the model; by default the run loads it."""
    service_wait: NonNegative = 120.0
    """Seconds to wait for a service that is away before the run stops, to be resumed later."""
    cache: str = "auto"
    """File in which scores of frames are kept for later runs, or off; auto is on for openai, in the user's cache."""
    cache_mb: PositiveInt | None = None
    """Largest size of the cache in megabytes; by default 256. Scores that were not used for longest go first."""
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    multiplier: SignalMultiplierConfig = field(default_factory=SignalMultiplierConfig)

    @property
    def period(self) -> int:
        """Steps between two scored frames, of settings that are resolved."""
        assert self.every is not None
        return self.every

    @property
    def needs_reference(self) -> bool:
        """Whether a route uses the negative score's excess over a reference level."""
        return self.cost_weight > 0.0 or self.multiplier.kind != "none"

    @property
    def needs_calibration(self) -> bool:
        """Whether the gate, the reference or a budget must be read from frames before training."""
        level = self.needs_reference and self.reference is None
        budget = self.multiplier.kind != "none" and self.multiplier.budget is None
        return self.gate in FITTED or level or budget


@dataclass(frozen=True)
class CheckpointConfig:
    """When a run is saved."""

    every: PositiveInt = 1
    """Epochs between checkpoints; the last epoch is always saved."""
    keep: PositiveInt = 3
    """How many of the newest checkpoints are kept."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run: every setting of `vlmsafe train`. `vlmsafe.train` also takes single settings.

    >>> import vlmsafe
    >>> config = vlmsafe.TrainConfig(env="speeding", total_steps=400, steps_per_epoch=200, run_dir="runs/first")
    >>> vlmsafe.train(config, quiet=True).config.epochs
    2
    """

    env: str = "metadrive-easy"
    """Environment: a name from `vlmsafe envs`, a variant as <name>:<variant>, or gym:<id> or safety-gymnasium:<id>,
    which @<python> runs in another interpreter."""
    method: str = "ppo-lag"
    """Method: a name from `vlmsafe methods`; it sets the defaults of the learner and the multiplier."""
    recipe: Annotated[str | None, tyro.conf.Suppress] = None
    """Recipe whose settings the run has, unless others were set; the command line takes it as --config."""
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    total_steps: int = 1_000_000
    """Environment steps of the whole run. With --resume a larger number extends a run."""
    extended_from: Annotated[tuple[tuple[int, int], ...], tyro.conf.Suppress] = ()
    """Earlier lengths of an extended run: the epochs done when it was extended, and total_steps until then."""
    steps_per_epoch: PositiveInt = 20_000
    """Environment steps between two updates, over all workers together."""
    num_envs: PositiveInt = 1
    """Worker processes, each with a simulator of its own."""
    run_dir: Path | None = None
    """Directory of the run; by default runs/<env>/<method>/seed-<seed>, with the recipe after the method."""
    init_from: str | None = None
    """Run, checkpoint file or driver:<name> whose policy and normaliser the run begins with; {seed} is the run's."""
    init_critics: bool = False
    """Whether the run also begins with the critics of init_from, as far as both have them."""
    init_std: Positive | tuple[Positive, ...] | None = None
    """Standard deviation of the actions of init_from's policy, one for all or one per action; by default its own."""
    init_mean: Finite | tuple[Finite, ...] = 0.0
    """What is added to the mean of the actions of init_from's policy, one for all or one per action."""
    budget: NonNegative | None = None
    """Cost budget d per episode; by default the environment's own."""
    cost_window: PositiveInt | Literal["epoch"] = 100
    """Finished episodes whose mean is the episode cost J_C, or 'epoch' for those of the epoch alone."""
    normalise_observations: bool = True
    """Whether observations are standardised by their running mean and deviation."""
    observation_clip: Positive = CLIP
    """Deviations from the mean at which standardised observations are cut."""
    observation_floor: Positive = STD_FLOOR
    """Least deviation by which they are divided. A value that is nearly always the same has a small one, and all its
    rare values are then cut to the same number."""
    action_repeat: PositiveInt = 1
    """Simulator steps for which an action is kept. Together they are one step of the run, with their summed cost."""
    observe_changes: NonNegativeInt = 0
    """Steps over which the policy also observes by how much each value has changed; 0 for none."""
    frame_indicators: bool = False
    """Whether frames show the simulator's own cost indicators; they tell a scorer the answer."""
    fresh_workers: Literal["auto", "always", "never"] = "auto"
    """Whether workers start anew each epoch: 'auto' does so where the simulator needs it for exact repeats."""
    max_worker_restarts: NonNegativeInt = 3
    """How often a crashed worker is restarted within one epoch before the run gives up."""
    kernels: Kernels = "baseline"
    """Machine code that computes: 'baseline' gives the same numbers on every x86-64 with AVX2, 'native' is faster."""
    tensorboard: bool = False
    """Whether epochs are also written as TensorBoard events, under tensorboard/ in the run directory."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    multiplier: MultiplierConfig = field(default_factory=MultiplierConfig)
    signal: SignalConfig = field(default_factory=SignalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        if self.run_dir is not None:
            object.__setattr__(self, "run_dir", Path(self.run_dir))  # users may give a text

    @property
    def epochs(self) -> int:
        """Number of updates of the whole run."""
        return self.total_steps // self.steps_per_epoch

    def epochs_planned(self, epoch: int) -> int:
        """Number of updates that the whole run was to have when it trained epoch `epoch`, counted from 0."""
        steps = next((before for done, before in self.extended_from if epoch < done), self.total_steps)
        return steps // self.steps_per_epoch

    def extended(self, total_steps: int, done: int) -> TrainConfig:
        """The same run with more steps, after `done` epochs."""
        lengths = (*self.extended_from, (done, self.total_steps))
        return dataclasses.replace(self, total_steps=total_steps, extended_from=lengths).resolved()

    def as_of(self, extensions: int) -> TrainConfig:
        """The configuration when the run had been extended so often."""
        if extensions >= len(self.extended_from):
            return self
        steps = self.extended_from[extensions][1]
        return dataclasses.replace(self, total_steps=steps, extended_from=self.extended_from[:extensions])

    @property
    def steps_per_worker(self) -> int:
        """Each worker's share of an epoch."""
        return self.steps_per_epoch // self.num_envs

    @property
    def spec(self) -> EnvSpec:
        """The environment, with frames and the length of a step as this run wants them.

        A run of another version of its environment may have had indicators that frames no longer show.
        """
        spec = env_spec(self.env)
        drawn = spec.indicators if spec.indicators is None else spec.indicators or self.frame_indicators
        return dataclasses.replace(spec, indicators=drawn, repeat=self.action_repeat, changes=self.observe_changes)

    @property
    def assumptions(self) -> list[str]:
        """What nobody has said and this package only supposes, in sentences for the user."""
        if self.budget is not None or self.spec.version is not None:
            return []  # the environments of this package have budgets of their own
        return [
            f"NO BUDGET WAS GIVEN for '{self.env}': a cost of {self.spec.budget:g} per episode is assumed, and all "
            "that is called safe depends on it; pass --budget (in a study, 'budget' under 'settings')"
        ]

    def _source(self, text: str) -> str:
        place = text.replace("{seed}", str(self.seed))
        return place if place.startswith(DRIVER) else os.path.abspath(place)

    def resolved(self, *, recorded: bool = False) -> TrainConfig:
        """The same run, checked, with every default filled in that depends on another setting.

        `recorded` is for runs that exist: their world may be of another version, with other cost indicators.
        """
        spec = self.spec
        if self.frame_indicators and not recorded:
            env_spec(self.env, indicators=True)  # an InputError where no frame would show them
        config = dataclasses.replace(
            self,
            budget=spec.budget if self.budget is None else self.budget,
            frame_indicators=bool(spec.indicators) or self.frame_indicators,
            run_dir=self.run_dir or default_run_dir(self),
            init_from=None if self.init_from is None else self._source(self.init_from),
            signal=resolved_signal(self.signal, spec),
        )
        problems = list(problems_of(config))
        if problems:
            raise InputError("; ".join(problems))
        return config


def resolved_signal(signal: SignalConfig, spec: EnvSpec) -> SignalConfig:
    """The signal with its model, its prompts, its gate, its period and the size of its calibration buffer named."""
    kind = kind_of(signal.scorer)
    if signal.gate == "auto" or signal.frames or signal.precision is None or signal.batch is None:
        kind = kind if kind.settled else parse_scorer(signal.scorer).settle().kind
    signal = dataclasses.replace(
        signal,
        every=_default_period(signal, spec) if signal.every is None else signal.every,
        precision=signal.precision or kind.precision,
        batch=kind.batch if signal.batch is None else signal.batch,
    )
    if signal.scorer == "none":
        return signal
    scorer = parse_scorer(signal.scorer)
    check_stack(scorer, signal.frames, signal.frame_distance)
    if scorer.kind.frames == "any":  # runs of one frame are alike whether it was set or not
        clip = None if signal.frames == 1 else signal.frames
        distance = None if clip is None else signal.frame_distance or Scorer.frame_distance
        signal = dataclasses.replace(signal, frames=clip, frame_distance=distance)
    frames = signal.calibration.frames
    if frames is None:
        frames = scorer.calibration_frames
    prompts = signal.prompts or (spec.prompts if scorer.kind.takes_prompts else None)
    if prompts is None and scorer.kind.needs_prompts:
        raise InputError(
            f"environment '{spec.name}' has no prompts of its own; pass --prompts with a YAML file or one of "
            f"{', '.join(shipped_prompts())}"
        )
    return dataclasses.replace(
        signal,
        scorer=str(scorer.absolute),
        prompts=prompts,
        gate=scorer.kind.gate if signal.gate == "auto" else signal.gate,
        service=str(parse_address(signal.service).absolute) if signal.service else "",
        cache=_cache_path(signal.cache),
        calibration=dataclasses.replace(signal.calibration, frames=frames),
    )


def _cache_path(text: str) -> str:
    """The setting 'cache' with the full path of its file, so that a run can be resumed elsewhere."""
    if not text:
        raise InputError("signal.cache is empty; expected auto, off or a file")
    return text if text in ("auto", "off") else os.path.abspath(os.path.expanduser(text))


def _default_period(signal: SignalConfig, spec: EnvSpec) -> int:
    return 1 if signal.scorer == "none" else spec.score_every


def default_run_dir(config: TrainConfig) -> Path:
    """The directory of a run when none is given. Runs of a recipe are an arm of their own."""
    shown = "-indicators" if config.frame_indicators else ""
    env = world_name(config.env).replace(":", "-").replace("/", "-") + shown
    arm = config.method if config.recipe is None else f"{config.method}-{config.recipe}"
    return Path("runs") / env / arm / f"seed-{config.seed}"
