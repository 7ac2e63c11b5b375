"""A Gymnasium wrapper that adds the bonus to the reward and reports the scores, for use with other trainers.

    env = SemanticSignals(gymnasium.make("CarRacing-v3", render_mode="rgb_array"), "clip", "my-prompts.yaml")

The reward becomes r + lambda_r kappa r_vlm. `info` holds the environment's own reward, the bonus and the
scores. With `cost_weight` it also has a cost to which the negative score is added, for trainers with a constraint.
Unlike `vlmsafe train`, which scores in batches, a wrapper scores within each step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from vlmsafe.envs.api import as_frame
from vlmsafe.errors import InputError
from vlmsafe.signals.calibration import Calibration
from vlmsafe.signals.frame_stack import FrameStack, stack_of
from vlmsafe.signals.gate import FITTED, GATES, ONE_SIDED, AnyGate, gate_name, load_gate
from vlmsafe.signals.platt import HAZARDOUS, Danger, DangerLabel, cost_ahead, in_words
from vlmsafe.signals.prompts import PromptSet, load_prompts
from vlmsafe.signals.rules import ClgWeights, Scores, apply_rule
from vlmsafe.signals.scorers.api import GateKind, Precision, Rule, Scorer, check_scorer, score_checked
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.signals.shaping import due

__all__ = ["SemanticSignals"]


class SemanticSignals(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Scores every `every`-th state of an episode and adds a bonus to the reward.

    Each step's `info` gains `env_reward` and `bonus`, whose sum is the reward, the newest `positive_score`,
    `negative_score` and `kappa`, and `scored`, which says whether this step was scored. Before an episode's first score
    the three are (0, 0, 1). From the first score on there is also `margin`. The last step's `info["signal_episode"]`
    has the episode's sums and means.

    With `cost_weight`, `info` also gains `cost_bonus` and `shaped_cost`, which is the environment's `info["cost"]` plus
    cost_weight kappa (c_vlm - reference)+. `info["cost"]` itself is never changed: report that one.

    >>> env = SemanticSignals(gymnasium.make("CartPole-v1"), "constant:1,0", every=1)
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> reward, info["env_reward"], info["bonus"]
    (1.1, 1.0, 0.1)
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        scorer: Scorer | str = "embedded",
        prompts: PromptSet | str | Path | None = None,
        gate: AnyGate | str = "auto",
        every: int = 4,
        *,
        reward_weight: float = 0.1,
        cost_weight: float = 0.0,
        reference: float | None = None,
        rule: Rule = "decoupled",
        clg_weights: ClgWeights = "half",
        device: str = "auto",
        precision: Precision | None = None,
        service: str = "",
        service_wait: float = 120.0,
        frames: int | None = None,
        frame_distance: int | None = None,
        endpoint: EndpointOptions | None = None,
        seed: int = 0,
    ) -> None:
        """`scorer` and `prompts` are names as on the command line, or objects; several wrappers may share a scorer
        object. `precision` is by default the scorer's own, and `seed` is for scorers that use random numbers.

        `gate` is "off", "prior-symmetric", "probability", "signed", "python:<module>:<name>", a gate object, or "auto",
        which is the scorer's own: prior-symmetric, or "probability" for "qwen2-vl". For the scorer "embedded"
        it is off until `calibrate` sets it. `reference` is the level above which the negative score counts; without it
        `calibrate` must be called before an episode with a `cost_weight`. `service` is the address of a scoring service
        (`vlmsafe serve`) that holds a scorer of frames; it may be away for `service_wait` seconds.
        `frames` is how many frames a scorer by name gets at a time, where it takes any number, and `frame_distance` how
        many steps lie between two of them; by default one, and 4. `endpoint` says how a scorer "openai:..." is asked.
        """
        RecordConstructorArgs.__init__(
            self, _disable_deepcopy=True, scorer=scorer, prompts=prompts, gate=gate, every=every,
            reward_weight=reward_weight, cost_weight=cost_weight, reference=reference, rule=rule,
            clg_weights=clg_weights, device=device, precision=precision, service=service, service_wait=service_wait,
            frames=frames, frame_distance=frame_distance, endpoint=endpoint, seed=seed,
        )  # fmt: skip
        self._saved_kwargs = _Shared(self._saved_kwargs)
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(every, int) or every < 1:
            raise InputError(f"every is {every}; it must be a whole number of at least 1")
        for name, weight in (("reward_weight", reward_weight), ("cost_weight", cost_weight)):
            if not (math.isfinite(weight) and weight >= 0.0):
                raise InputError(f"{name} is {weight}; it must be finite and 0 or greater")
        if reference is not None and not 0.0 <= reference <= 1.0:
            raise InputError(f"reference is {reference}; it must lie between 0 and 1")
        named = isinstance(gate, str) and (gate in ("auto", *GATES) or gate.startswith("python:"))
        if not named and not isinstance(gate, AnyGate):
            raise InputError(
                f"gate is {gate!r}; expected {', '.join(GATES)}, auto, python:<module>:<name>, or a Gate; for a "
                "calibrated one call calibrate()"
            )
        if not isinstance(scorer, Scorer | str):
            raise InputError(f"scorer is {scorer!r}; expected a scorer's name or a Scorer")
        if service and isinstance(scorer, Scorer):
            raise InputError("service is for a scorer by name; a scorer object is already loaded here, so drop service")
        if isinstance(scorer, Scorer) and not frames is frame_distance is None:
            raise InputError(
                "frames and frame_distance are for a scorer by name; a scorer object has its own, so set them there"
            )
        if isinstance(scorer, Scorer) and endpoint is not None:
            raise InputError("endpoint is for a scorer by name; a scorer object asks as it was made, so drop endpoint")
        self.every, self.reward_weight, self.cost_weight = every, reward_weight, cost_weight
        self.rule, self.clg_weights, self.reference = rule, clg_weights, reference
        self._calibrates_reference = reference is None
        self._owns_scorer = isinstance(scorer, str)
        if isinstance(scorer, str):
            options: dict[str, Any] = {"device": device, "precision": precision}
            options |= {"service": service, "service_wait": service_wait}
            options |= {"frames": frames, "frame_distance": frame_distance, "endpoint": endpoint}
            scorer = self._load(scorer, prompts, seed, options)
        self.scorer = scorer
        check_scorer(self.scorer)
        self.gate: AnyGate = _gate(gate, self.scorer.gate) if isinstance(gate, str) else gate
        self._refuse_hidden_cost(gate_name(self.gate))
        for note in self.scorer.notes():
            warnings.warn(note, stacklevel=2)
        if rule not in self.scorer.rules:
            raise InputError(f"this scorer cannot be used with the rule '{rule}'; it gives {self.scorer.rules}")
        if self.scorer.looks_at == "hazard" and not env.has_wrapper_attr("hazard"):
            raise InputError("the oracle calls the environment's hazard(), and this environment has none; define it")
        if self.scorer.looks_at == "frame" and _frame_of(env) is None and env.render_mode != "rgb_array":
            raise InputError(
                f"the environment's render_mode is {env.render_mode!r}; scoring frames needs "
                "gymnasium.make(..., render_mode='rgb_array')"
            )
        self._random = np.random.default_rng((seed, 1))
        self._stack = FrameStack(self._frame, stack_of(self.scorer), every)
        self._begin_episode()

    def _load(self, name: str, prompts: PromptSet | str | Path | None, seed: int, options: dict[str, Any]) -> Scorer:
        chosen = prompts if isinstance(prompts, PromptSet) else load_prompts(prompts) if prompts else None
        parsed = parse_scorer(name)
        observed = parsed.kind.looks_at == "observation"
        length = gymnasium.spaces.utils.flatdim(self.env.observation_space) if observed else 0
        return make_scorer(parsed, chosen, observation=length, seed=(seed,), **options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._begin_episode()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, env_reward, terminated, truncated, info = self._env_step(action)
        self._steps += 1
        inputs = self._input(observation, self._steps)
        if inputs is not None:
            self._refresh(inputs)
        reward = float(env_reward)
        bonus = self.reward_weight * self._now["kappa"] * self._now["positive_score"]
        self._count(reward, bonus, inputs is not None)
        info = {**info, **self._now, "env_reward": reward, "bonus": bonus, "scored": inputs is not None}
        if self.cost_weight > 0.0:
            info |= self._costs(info)
        if terminated or truncated:
            info["signal_episode"] = self._episode()
        return observation, reward + bonus, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, and the connection to a scoring service."""
        if self._owns_scorer:
            self.scorer.close()
        super().close()

    def _env_step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        found: tuple[Any, ...] = self.env.step(action)
        if len(found) != 5:
            six = "; for one of Safety-Gymnasium use its wrapper SafetyGymnasium2Gymnasium first" * (len(found) == 6)
            raise InputError(
                f"the environment's step() gave {len(found)} values; expected the five of Gymnasium: observation, "
                f"reward, terminated, truncated and info, with the cost as info['cost']{six}"
            )
        return found

    def calibrate(
        self,
        frames: int = 500,
        episodes: int = 5,
        *,
        gate: Literal["calibrated", "signed-calibrated", "platt"] = "calibrated",
        target: float = 0.5,
        label: DangerLabel = "cost-ahead",
        horizon: int = 20,
        seed: int = 0,
    ) -> Calibration:
        """Set the gate, and the reference unless one was given, from frames of a random policy.

        The gate "platt" is fitted on danger: by `label`, cost within `horizon` steps, cost in the step, or the
        environment's hazard(). Costs are `info["cost"]`. Reset the environment before using it again.
        """
        if gate not in FITTED:
            raise InputError(f"gate is {gate!r}; calibrate() fits one of {', '.join(FITTED)}")
        if label not in get_args(DangerLabel) or horizon < 1:
            labels = ", ".join(get_args(DangerLabel))
            raise InputError(f"label is {label!r} and horizon {horizon}; expected one of {labels}, and at least 1 step")
        self._refuse_hidden_cost(gate)
        ahead = _Labels(label, horizon if label == "cost-ahead" else 0) if gate == "platt" else None
        if episodes < 1 or frames < max(4, episodes):
            raise InputError(
                f"frames is {frames} and episodes {episodes}; calibration needs at least 4 frames, and one per episode"
            )
        per_episode = frames // episodes
        self.env.action_space.seed(seed)
        parts: list[Scores] = []
        episode_count, without_frame = 0, 0
        while sum(len(part.margin) for part in parts) < frames:
            before = len(parts)
            self.env.reset(
                seed=None if episode_count + without_frame else seed
            )  # the first seed determines the later episodes
            step, finished = 0, False
            while not finished and (len(parts) - before < per_episode or episodes == 1):
                observation, _, terminated, truncated, info = self._env_step(self.env.action_space.sample())
                step, finished = step + 1, bool(terminated or truncated)
                if (inputs := self._input(observation, step)) is not None:
                    parts.append(self._score(inputs))
                if ahead is not None:
                    ahead.after(info, self.env, inputs is not None)
            if ahead is not None:
                ahead.end(finished)
            episode_count += len(parts) > before
            without_frame = 0 if len(parts) > before else without_frame + 1
            if without_frame == 20:
                raise InputError(f"20 episodes ended before step {self.every}, so no frame was taken; lower `every`")
        calibration = Calibration.of(
            Scores.join(parts, frames),
            episode_count,
            gate_target=None if gate == "platt" else target,
            danger=None if ahead is None else ahead.danger(frames),
        )
        self.gate = calibration.fitted(gate)
        if calibration.warning is not None:
            warnings.warn(calibration.warning, stacklevel=2)
        if self._calibrates_reference:
            self.reference = calibration.negative_median
        return calibration

    def _refuse_hidden_cost(self, gate: str) -> None:
        if self.cost_weight > 0.0 and gate in ONE_SIDED:
            raise InputError(
                f"the gate '{gate}' closes on frames that look dangerous, so it would hide them from the cost; use "
                "another gate, or drop cost_weight"
            )

    def _input(self, observation: Any, step: int) -> NDArray[Any] | None:
        """The scorer's input after a step that is scored, as a batch of one; None after other steps."""
        looks_at = self.scorer.looks_at
        if looks_at == "frame":
            frames = self._stack.after(step)
            return None if frames is None else frames[None]
        if not due(step, self.every):
            return None
        if looks_at == "observation":
            flat = gymnasium.spaces.utils.flatten(self.env.observation_space, observation)
            return np.asarray(flat, np.float32)[None]
        if looks_at == "hazard":
            return np.array([self.env.get_wrapper_attr("hazard")()])
        return self._random.random((1, 2)) if looks_at == "noise" else np.zeros(1)

    def _frame(self) -> NDArray[np.uint8]:
        own = _frame_of(self.env)
        return as_frame(own() if own is not None else self.env.render(), "the environment")

    def _score(self, inputs: NDArray[Any]) -> Scores:
        similarities = score_checked(self.scorer, inputs)
        return apply_rule(self.rule, similarities, self.scorer.groups, self.scorer.bounds, self.clg_weights)

    def _refresh(self, inputs: NDArray[Any]) -> None:
        scores = self._score(inputs)
        self._now = {
            "positive_score": float(scores.positive[0]),
            "negative_score": float(scores.negative[0]),
            "margin": float(scores.margin[0]),
            "kappa": float(self.gate(scores)[0]),
        }

    def _costs(self, info: dict[str, Any]) -> dict[str, float]:
        """What the negative score adds to the cost of this step, as in training, and the sum."""
        if self.reference is None:
            raise InputError(
                "cost_weight needs a level of the negative score: pass reference, or call calibrate() first"
            )
        if "cost" not in info:
            raise InputError("cost_weight adds to info['cost'], and this environment's info has none; drop cost_weight")
        excess = max(0.0, self._now["negative_score"] - self.reference) if "margin" in self._now else 0.0
        bonus = self.cost_weight * self._now["kappa"] * excess
        self._sums["cost_bonus"] += bonus
        return {"cost_bonus": bonus, "shaped_cost": float(info["cost"]) + bonus}

    def _begin_episode(self) -> None:
        self._steps = 0
        self._now = {"positive_score": 0.0, "negative_score": 0.0, "kappa": 1.0}
        names = ("env_return", "bonus", "cost_bonus", "positive_score", "negative_score", "kappa", "scored")
        self._sums = dict.fromkeys(names, 0.0)

    def _count(self, reward: float, bonus: float, scored: bool) -> None:
        self._sums["env_return"] += reward
        self._sums["bonus"] += bonus
        for name in ("positive_score", "negative_score"):
            self._sums[name] += self._now[name]
        if scored:
            self._sums["kappa"] += self._now["kappa"]
            self._sums["scored"] += 1

    def _episode(self) -> dict[str, float | None]:
        """Return and bonuses; means of the scores over all steps, and of kappa over scored steps, if any."""
        sums = self._sums
        return {
            "env_return": sums["env_return"],
            "bonus": sums["bonus"],
            "cost_bonus": sums["cost_bonus"],
            "positive_score": sums["positive_score"] / self._steps,
            "negative_score": sums["negative_score"] / self._steps,
            "kappa": sums["kappa"] / sums["scored"] if sums["scored"] else None,
        }


class _Labels:
    """Which calibration frames are dangerous, collected step by step."""

    def __init__(self, label: DangerLabel, horizon: int) -> None:
        self._label, self._horizon = label, horizon
        self._costs: list[float] = []
        self._hazardous: list[bool] = []
        self._scored: list[bool] = []
        self._ends: list[int] = []
        self._finished: list[bool] = []

    def after(self, info: dict[str, Any], env: gymnasium.Env[Any, Any], scored: bool) -> None:
        if self._label == "hazard":
            if not env.has_wrapper_attr("hazard"):
                raise InputError("label 'hazard' calls the environment's hazard(), and this environment has none")
            self._hazardous.append(env.get_wrapper_attr("hazard")() >= HAZARDOUS)
        elif "cost" not in info:
            raise InputError(f"label '{self._label}' reads info['cost'], and this environment's info has none")
        self._costs.append(float(info.get("cost", 0.0)))
        self._scored.append(scored)

    def end(self, finished: bool) -> None:
        if self._costs and self._ends[-1:] != [len(self._costs)]:
            self._ends.append(len(self._costs))
            self._finished.append(finished)

    def danger(self, frames: int) -> Danger:
        """Of the first `frames` scored steps."""
        scored = np.array(self._scored)
        if self._label == "hazard":
            dangerous, known = np.array(self._hazardous), np.ones(len(scored), np.bool_)
        else:
            ends, finished = np.array(self._ends), np.array(self._finished)
            dangerous, known = cost_ahead(np.array(self._costs), ends, finished, self._horizon)
        what = in_words(self._label, self._horizon)
        return Danger(dangerous[scored][:frames], known[scored][:frames], what)


class _Shared(dict[str, Any]):
    """The arguments of a wrapper. Gymnasium copies them with an environment's spec, but a model must not be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return _Shared(self)


def _gate(name: str, own: GateKind) -> AnyGate:
    """A gate by name. A wrapper does not calibrate by itself, because that would run whole episodes."""
    if name != "auto":
        return load_gate(name)
    return GATES["off" if own == "calibrated" else own]


def _frame_of(env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """The environment's method `frame`, if it has one; its frames have no indicators of cost."""
    frame = getattr(env.unwrapped, "frame", None)
    return frame if callable(frame) else None
