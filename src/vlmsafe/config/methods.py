"""The methods by name: every arm of the paper's study, as one readable table.

A method is a composition of five choices: the learner, the signal and its scoring rule, the gate, the term in the
multiplier, and the run settings in which published arms differ (passes, lambda_0, how often a frame is scored). Where
an entry does not say how often, it is the environment that does: the paper scores every fourth step on MetaDrive and
Bullet, and on FormulaOne every step unless an arm says otherwise. Two
methods that are compared should differ only in what the comparison is about; `differences` lists what they differ in.

Where the paper's arm has CLIP, the default scorer is `embedded`, which needs no download. `--scorer clip` gives the
paper's arm and its gate: 'auto' is prior-symmetric with CLIP and calibrated with `embedded`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmsafe.config.learning import OFF_POLICY, LearnerConfig, MultiplierConfig
from vlmsafe.config.names import full_names
from vlmsafe.config.recipes import recipe_settings, shipped_recipes
from vlmsafe.config.settings import PLACE, SignalConfig, TrainConfig, resolved_signal
from vlmsafe.config.yaml import flatten, from_dict, read_yaml, to_dict
from vlmsafe.envs.api import EnvSpec
from vlmsafe.envs.registry import ENVS
from vlmsafe.errors import InputError, unknown_name


@dataclass(frozen=True)
class Method:
    """One arm."""

    name: str
    paper: str
    """What the paper calls it."""
    summary: str
    learner: LearnerConfig
    multiplier: MultiplierConfig
    signal: SignalConfig = SignalConfig()  # noqa: RUF009 - frozen

    def composition(self) -> str:
        """Its five choices in words."""
        multiplier, signal = self.multiplier, self.signal
        learner = self.learner
        off_policy = learner.algorithm in OFF_POLICY
        work = f"{learner.sac.updates_per_step:g} updates a step" if off_policy else f"{learner.update_iters} passes"
        parts = [f"{learner.algorithm}, {work}"]
        if multiplier.kind != "none":
            term = f", eta_2 {multiplier.signal_weight:g}" if multiplier.signal_weight else ""
            parts.append(f"{multiplier.kind} from {multiplier.initial:g}{term}")
        if signal.scorer != "none":
            gate = "" if signal.gate == "off" else f", {signal.gate} gate"
            parts.append(f"{signal.scorer} {signal.rule}, {period_in_words(signal.every)}{gate}")
        return "; ".join(parts)


def period_in_words(every: int | None) -> str:
    """How often a method scores; None where the environment says it.

    >>> period_in_words(8), period_in_words(None)
    ('every 8', 'every 1 (4 on metadrive and bullet)')
    """
    if every is not None:
        return f"every {every}"
    others: dict[int, dict[str, None]] = {}
    for spec in ENVS.values():
        if spec.score_every != EnvSpec.score_every:
            others.setdefault(spec.score_every, {})[spec.name.partition("-")[0]] = None
    elsewhere = "; ".join(f"{period} on {' and '.join(worlds)}" for period, worlds in others.items())
    return f"every {EnvSpec.score_every} ({elsewhere})"


_NO_MULTIPLIER = MultiplierConfig(kind="none")
_MATCHED = MultiplierConfig(kind="adam", initial=0.001)
_ETA_2 = replace(_MATCHED, signal_weight=0.01, signal_reference=0.5)
_BOUNDED = MultiplierConfig(kind="adam", initial=0.0, upper_bound=2.0)

_PPO = LearnerConfig(algorithm="ppo", update_iters=10)
_PPO_LAG = LearnerConfig(algorithm="ppo-lag", update_iters=40)
_CPO = LearnerConfig(
    algorithm="cpo",
    update_iters=10,
    batch_size=128,
    target_kl=0.01,
    kl_early_stop=False,
    critic_lr=1e-3,
)

_DECOUPLED = SignalConfig(scorer="embedded", rule="decoupled", reward_weight=0.1)
_COUPLED = replace(_DECOUPLED, rule="coupled")
_CLG = replace(_DECOUPLED, rule="clg")
_CONF = replace(_DECOUPLED, gate="auto")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        # Without signals.
        Method("ppo", "PPO", "no constraint: cost is recorded and ignored", _PPO, _NO_MULTIPLIER),
        Method("cpo", "CPO", "trust region and linearised constraint", _CPO, _NO_MULTIPLIER),
        Method(
            "cpo-control",
            "CPO (two-seed control)",
            "the VLM-free control of the calibrated runs; the same settings, other seeds",
            _CPO,
            _NO_MULTIPLIER,
        ),
        Method("ppo-lag", "PPOLag (matched)", "differs from VLMPPOLag in the signal only", _PPO_LAG, _MATCHED),
        Method(
            "ppo-lag-unmatched",
            "PPOLag (unmatched)",
            "FormulaOne's baseline: fewer passes and another lambda_0 than the signal methods",
            replace(_PPO_LAG, update_iters=10),
            replace(_MATCHED, initial=0.0),
        ),
        Method(
            "cppo-pid",
            "CPPOPID",
            "PPO-Lagrangian with a PID controller for the multiplier",
            replace(_PPO_LAG, algorithm="cppo-pid"),
            MultiplierConfig(kind="pid", initial=0.001),
        ),
        Method(
            "focops",
            "FOCOPS",
            "first-order steps within a trust region per sample",
            LearnerConfig(algorithm="focops", update_iters=10),
            _BOUNDED,
        ),
        Method(
            "cup",
            "CUP",
            "improvement, then projection towards the constraint",
            LearnerConfig(algorithm="cup", update_iters=10, target_kl=0.01),
            _BOUNDED,
        ),
        Method(
            "p3o", "P3O", "PPO with an exact penalty", LearnerConfig(algorithm="p3o", update_iters=10), _NO_MULTIPLIER
        ),
        # Semantic reward, no signal in the multiplier.
        Method(
            "ppo-clg", "PPO-CLG", "PPO with the contrasting language goal as bonus",
            replace(_PPO, update_iters=40), _NO_MULTIPLIER, _CLG,
        ),
        Method("cpo-clg", "CPO-CLG", "CPO with the contrasting language goal as bonus", _CPO, _NO_MULTIPLIER, _CLG),
        Method("cpo-coupled", "CPO-Coupled", "CPO, joint softmax over all prompts", _CPO, _NO_MULTIPLIER, _COUPLED),
        Method("cpo-decoupled", "CPO-Decoupled", "CPO, separate prompt groups", _CPO, _NO_MULTIPLIER, _DECOUPLED),
        Method("cpo-decoupled-conf", "CPO-Decoupled+Conf", "the same with the gate", _CPO, _NO_MULTIPLIER, _CONF),
        Method("ppo-lag-decoupled", "PPOLag-Decoupled", "bonus only", _PPO_LAG, _MATCHED, _DECOUPLED),
        # The proposed method and its parts.
        Method("vlm-ppo-lag", "VLMPPOLag", "bonus and multiplier term, no gate", _PPO_LAG, _ETA_2, _DECOUPLED),
        Method(
            "vlm-ppo-lag-eta0", "VLMPPOLag (eta_2 = 0)", "bonus only, every fourth frame",
            _PPO_LAG, _MATCHED, replace(_DECOUPLED, every=4),
        ),
        Method(
            "vlm-ppo-lag-conf", "VLMPPOLag+Conf (prior-symmetric)",
            "the full method; every frame on FormulaOne, every fourth on MetaDrive and Bullet",
            _PPO_LAG, _ETA_2, _CONF,
        ),
        Method(
            "vlm-ppo-lag-conf-calibrated", "VLMPPOLag+Conf (calibrated)",
            "the full method with the calibrated gate, every fourth frame",
            _PPO_LAG, _ETA_2, replace(_CONF, gate="calibrated", every=4),
        ),
        # Substitutions of the signal.
        Method(
            "ppo-lag-rnd", "PPOLag-RND", "novelty in the multiplier, no bonus, no gate",
            _PPO_LAG, _ETA_2, SignalConfig(scorer="rnd", rule="novelty", every=1),
        ),
        Method(
            "qwen2-vl-conf", "Qwen2-VL+Conf", "Qwen2-VL's yes/no probabilities with their own gate, every eighth frame",
            _PPO_LAG, _ETA_2,
            SignalConfig(scorer="qwen2-vl", rule="yes-no", gate="probability", every=8, reward_weight=0.1),
        ),
    )
}  # fmt: skip


OFF_POLICY_METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "sac", "none", "soft actor-critic: learns from every step of the run; no constraint",
            LearnerConfig(
                algorithm="sac", hidden=(128, 128), batch_size=256, lr_decay=False, initial_std=0.4, output_gain=0.05,
            ),
            _NO_MULTIPLIER,
        ),
        Method(
            "sac-lag", "none", "the same with a multiplier on the cost, in units of the reward",
            LearnerConfig(
                algorithm="sac", hidden=(128, 128), batch_size=256, lr_decay=False, initial_std=0.4, output_gain=0.05,
            ),
            MultiplierConfig(kind="adam", initial=0.0, learning_rate=0.5, upper_bound=40.0),
        ),
    )
}  # fmt: skip
"""Methods that are no arms of the paper: they learn with fewer steps."""

CLONE = Method(
    "clone",
    "none",
    "a policy that imitates the environment's scripted driver: vlmsafe clone makes it",
    LearnerConfig(
        algorithm="clone", hidden=(128, 128), initial_std=0.15, update_iters=60, batch_size=256, actor_lr=1e-3,
        lr_schedule="cosine",
    ),
    _NO_MULTIPLIER,
)  # fmt: skip
"""The method that a clone's run records. It is no arm, because nothing is trained by it."""


def method(name: str) -> Method:
    """The method of that name."""
    if name == CLONE.name:
        return CLONE
    known = METHODS | OFF_POLICY_METHODS
    if name not in known:
        raise unknown_name("method", name, known)
    return known[name]


def method_defaults(name: str, base: TrainConfig | None = None) -> TrainConfig:
    """A run configuration with the settings of a method in place."""
    chosen = method(name)
    return replace(
        base or TrainConfig(),
        method=name,
        learner=chosen.learner,
        multiplier=chosen.multiplier,
        signal=chosen.signal,
    )


def config_from(settings: Mapping[str, Any], source: str = "settings", method_name: str | None = None) -> TrainConfig:
    """A run configuration from plain values: the method's defaults first, then a recipe, then the values themselves.

    Values may be nested, or stand under dotted names or those of the command line. `method_name` names the method where
    the values do not. Where both name one they must agree, because a file of settings holds the defaults of its method.
    The method of a recipe is used where nothing else names one.
    """
    settings = full_names(settings, source)
    recipe = settings.get("recipe")
    shared = recipe_settings(str(recipe)) if recipe is not None else {}
    name = settings.get("method", method_name or shared.get("method", TrainConfig.method))
    if not isinstance(name, str):
        raise InputError(f"{source}: method must be a name, got {type(name).__name__}")
    if method_name not in (None, name):
        raise InputError(f"{source} holds settings of the method '{name}', not of '{method_name}'; drop one of the two")
    base = from_dict({**shared, "method": name}, method_defaults(name), f"{recipe}.yaml")
    return from_dict({**settings, "method": name}, base, source)


def config_from_yaml(
    path: Path, method_name: str | None = None, before: Mapping[str, Any] | None = None
) -> TrainConfig:
    """A run configuration from a YAML file, such as a run's own config.yaml; `before` has values it may leave out."""
    settings = {**(before or {}), **read_yaml(path)}
    # A run's own config.yaml also records its versions and its directory, which are not settings. It has every setting,
    # so the recipe is a record too: the one of that name may have changed since.
    if settings.pop("recorded", None) is not None:
        settings.pop("run_dir", None)
        recipe = settings.pop("recipe", None)
        return replace(config_from(settings, str(path), method_name), recipe=recipe)
    return config_from(settings, str(path), method_name)


def check_method(config: TrainConfig) -> None:
    """Refuse a run whose parts are not those of its method, or do not fit together."""
    chosen = method(config.method)
    if chosen is CLONE:
        raise InputError(
            f"the method '{CLONE.name}' is not trained: make one with vlmsafe clone {config.env}, and train it on with "
            "--init-from and another --method"
        )
    parts = (
        ("learner.algorithm", config.learner.algorithm, chosen.learner.algorithm),
        ("multiplier.kind", config.multiplier.kind, chosen.multiplier.kind),
        ("signal.rule", config.signal.rule, chosen.signal.rule),
    )
    # The published FOCOPS and CUP move their multiplier by plain gradient steps. No other change of kind is allowed.
    published = config.learner.variant == "published" and config.multiplier.kind == "gradient"
    for name, given, expected in parts:
        if given != expected and not (name == "multiplier.kind" and published and expected == "adam"):
            raise InputError(
                f"{name} is '{given}', but the method '{config.method}' has '{expected}'; "
                "choose another --method instead"
            )
    _check_signal(config, chosen)
    _check_shares(config)


def _check_shares(config: TrainConfig) -> None:
    """Refuse so many workers that no episode of full length fits into one worker's share of an epoch.

    The end of a share cuts the episode under way, and J_C counts whole episodes only. It would be the cost of short
    episodes. Fewer workers prevent this where an epoch is long enough for one episode; where it is not, a short trial
    is meant, and the run says so.
    """
    longest, steps, share = config.spec.longest, config.steps_per_epoch, config.steps_per_worker
    if longest is None or steps < longest or share >= longest:
        return
    fewer = max(count for count in range(1, steps // longest + 1) if steps % count == 0)
    raise InputError(
        f"num_envs is {config.num_envs}, so a worker's share of an epoch is {share:,} steps, but an episode of "
        f"{config.env} has up to {longest:,}: longer episodes would never count in the episode cost; use at most "
        f"{fewer} workers, or at least {config.num_envs * longest:,} steps per epoch"
    )


def _check_signal(config: TrainConfig, chosen: Method) -> None:
    """A method with a signal takes any scorer in place of its own; one without takes none."""
    signal, learner = config.signal, config.learner.algorithm
    if chosen.signal.scorer == "none":
        # A run's own configuration names what was left open.
        plain = [flatten(to_dict(one)) for one in (SignalConfig(), resolved_signal(SignalConfig(), config.spec))]
        given = flatten(to_dict(signal)).items()
        used = [f"signal.{name}" for name, value in given if all(value != one[name] for one in plain)]
        used = [name for name in used if name not in PLACE]
        used += ["multiplier.signal_weight"] if config.multiplier.signal_weight > 0.0 else []
        if used:
            with_signal = ", ".join(name for name, m in METHODS.items() if m.signal.scorer != "none")
            raise InputError(
                f"{used[0]} is set, but the method '{config.method}' has no signal; choose one of {with_signal}"
            )
        return
    if signal.scorer == "none":
        raise InputError(f"signal.scorer is 'none', but the method '{config.method}' has a signal; choose a scorer")
    if signal.cost_weight > 0.0 and learner == "ppo":
        raise InputError("vlm_cost_weight adds to what the cost critic sees, and PPO has none; choose another --method")
    if signal.clg_weights != "half" and signal.rule != "clg":
        raise InputError(
            f"signal.clg_weights is set, but the method '{config.method}' has the rule '{signal.rule}'; drop it, or "
            "choose a method with the rule 'clg'"
        )
    if signal.rule == "novelty" and signal.reward_weight > 0.0:
        raise InputError("signal.reward_weight is set, but novelty has no positive score for a bonus; drop it")
    if config.multiplier.signal_weight > 0.0 and config.multiplier.kind == "none":
        raise InputError(
            f"multiplier.signal_weight is set, but the method '{config.method}' has no multiplier; drop it, or choose "
            "another --method"
        )
    if signal.multiplier.kind != "none" and config.multiplier.kind == "none":
        raise InputError(
            f"signal.multiplier is '{signal.multiplier.kind}', but the method '{config.method}' has no multiplier "
            "to which the signal's could be added; choose another --method"
        )


def differences(one: str, other: str) -> dict[str, tuple[Any, Any]]:
    """The settings in which two methods or recipes differ, by their dotted names.

    A recipe that names no method is shown with the other's.
    """
    a, b = (flatten(to_dict(_named(name, beside))) for name, beside in ((one, other), (other, one)))
    return {key: (a[key], b[key]) for key in a if key not in ("method", "recipe") and a[key] != b[key]}


def _named(name: str, beside: str) -> TrainConfig:
    """The settings of a method, or of a recipe with the method that it names, else with the one beside it."""
    known = METHODS | OFF_POLICY_METHODS
    if name in known:
        return method_defaults(name)
    if name not in (recipes := shipped_recipes()):
        raise unknown_name("method or recipe", name, [*known, *recipes])
    own = "method" in recipe_settings(name)
    return config_from({"recipe": name}, name, beside if beside in known and not own else None)
