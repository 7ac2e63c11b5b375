"""How each kind of scorer is loaded, and looked up without its weights.

A model and its libraries are imported here, when a function is called, and not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlmsafe.signals.scorers.api import Precision, Scorer
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions

if TYPE_CHECKING:  # settings are read without prompts, which need YAML
    from vlmsafe.signals.prompts import PromptSet


@dataclass(frozen=True)
class Loading:
    """What a kind's loader may use; each takes what concerns it."""

    argument: str
    prompts: PromptSet
    device: str
    precision: Precision
    compile: bool
    batch: int
    observation: int
    seed: tuple[int, ...]
    frames: int = 1
    """Frames in a stack, for kinds that take any number."""
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    give_up: Callable[[], bool] = lambda: False

    @property
    def options(self) -> dict[str, Any]:
        """What every model of frames takes."""
        return {"device": self.device, "precision": self.precision, "batch": self.batch}


def load_embedded(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

    return EmbeddedScorer.load(loading.argument, loading.prompts, **loading.options)


def load_clip(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.clip import ClipScorer

    return ClipScorer.load(loading.argument, loading.prompts, compile=loading.compile, **loading.options)


def load_qwen2_vl(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.qwen2_vl import Qwen2VLScorer

    return Qwen2VLScorer.load(loading.argument, loading.prompts, frames=loading.frames, **loading.options)


def load_transformers(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.checkpoints.load import load

    return load(loading.argument, loading.prompts, frames=loading.frames, **loading.options)


def load_openai(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.endpoint.scorer import EndpointScorer

    return EndpointScorer.load(
        loading.argument, loading.prompts, loading.endpoint, frames=loading.frames, give_up=loading.give_up
    )


def load_rnd(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.rnd import RndScorer

    return RndScorer(loading.observation, loading.seed)


def load_constant(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.controls import ConstantScorer

    return ConstantScorer.parse(loading.argument)


def load_noise(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.controls import NoiseScorer

    return NoiseScorer()


def load_oracle(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.controls import OracleScorer

    return OracleScorer()


def load_shuffled(loading: Loading) -> Scorer:
    raise AssertionError("a run loads the scorer whose scores it shuffles")


def look_up_clip(loading: Loading) -> None:
    from vlmsafe.signals.scorers.clip import look_up

    look_up(loading.argument, loading.prompts)


def look_up_qwen2_vl(loading: Loading) -> None:
    from vlmsafe.signals.scorers.qwen2_vl import look_up

    look_up(loading.argument, loading.prompts)


def look_up_transformers(loading: Loading) -> type[Scorer]:
    from vlmsafe.signals.scorers.checkpoints.load import look_up

    return look_up(loading.argument, loading.prompts, loading.frames)


def narrow_transformers(argument: str) -> dict[str, Any] | None:
    from vlmsafe.signals.scorers.checkpoints.names import known_traits

    return known_traits(argument)


def fetch_transformers(argument: str) -> None:
    from vlmsafe.signals.scorers.checkpoints.load import fetch

    fetch(argument)


def look_up_openai(loading: Loading) -> None:
    from vlmsafe.signals.scorers.endpoint.scorer import look_up

    look_up(loading.argument, loading.prompts, loading.endpoint)


def look_up_python(loading: Loading) -> type[Scorer] | None:
    from vlmsafe.signals.scorers.user_code import look_up

    return look_up(loading.argument)


def load_python(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.user_code import make

    return make(loading.argument, loading.prompts)
