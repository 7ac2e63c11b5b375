"""The kinds of scorers: everything the package knows about a kind before a scorer of it is loaded.

To add a kind, write a module with a `Scorer` class, and add one `ScorerKind` to the list below. The rest of the
package asks the entry and compares no names. A scorer's name is the kind, then a colon and an argument where the kind
takes one:

embedded                        the small model in the package; embedded:<file> loads one that you trained
clip:<model id or folder>       any CLIP or SigLIP checkpoint; the default is the paper's ViT-B/32
qwen2-vl:<model id or folder>   yes/no probabilities; the default is the paper's 7B model
openai:<model>@<url>            the same from any OpenAI-compatible endpoint: vLLM, SGLang, TGI, a hosted one
rnd                             novelty of the observation
constant:<value>                a control; constant:<positive>,<negative> sets the two scores separately
noise                           a control: random scores
oracle                          a control: the simulator's own hazard
python:<module>:<name>          your own: a callable that takes the PromptSet and returns a Scorer

A model and its libraries are imported when a scorer is loaded, not before.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from vlmsafe.errors import InputError, VlmsafeError, unknown_name
from vlmsafe.io.source import SourceHash, hash_source, loaded_files, stale_files, unseen_files
from vlmsafe.signals.scorers.api import (
    ALL_RULES,
    COSINE_RULES,
    YES_NO_RULES,
    GateKind,
    InputKind,
    Precision,
    Rule,
    Scorer,
)
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
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    give_up: Callable[[], bool] = lambda: False

    @property
    def options(self) -> dict[str, Any]:
        """What every model of frames takes."""
        return {"device": self.device, "precision": self.precision, "batch": self.batch}


@dataclass(frozen=True)
class ScorerKind:
    """One kind of scorer. The class that it loads must agree with its entry; a test compares them."""

    name: str
    """What stands before the colon."""
    load: Callable[[Loading], Scorer]
    """Imports the scorer's module and makes the scorer."""
    look_up: Callable[[Loading], type[Scorer] | None] | None = None
    """Checks that a scorer can be had without loading its weights; returns its class where that is known. None where
    loading it is as quick."""
    argument: str | None = None
    """What follows the colon, for messages; None where nothing may follow."""
    default: str | None = None
    """The argument where none is given; None where one must be given."""
    path: Literal["file", "folder"] | None = None
    """Whether the argument names a file, or may name a folder; such a path is stored in full."""
    looks_at: InputKind | None = None
    """The scorer's input; None where only the loaded scorer can say."""
    compares: Literal["prompts", "descriptions", "unknown", "nothing"] = "nothing"
    """What it compares an input with: every prompt by itself, the description of each prompt group, something that
    only the loaded scorer knows, or no text."""
    rules: tuple[Rule, ...] | None = None
    """The scoring rules for its similarities; None where only the loaded scorer can say."""
    gate: GateKind = "prior-symmetric"
    """What the gate 'auto' of a run stands for."""
    precision: Precision = "float32"
    """Number format where the caller chooses none."""
    batch: int = 64
    """Frames at a time where the caller chooses no number."""
    compiles: bool = False
    """Whether torch can compile the model."""
    shared: bool = False
    """Whether a scoring service can hold it for several runs: it must look at frames."""
    learns: bool = False
    """Whether scoring changes the scorer."""
    user_code: bool = False
    """Whether it runs the user's code, which a service on a network refuses."""
    downloaded: bool = False
    """Whether its weights come from the Hugging Face hub."""
    cached: bool = False
    """Whether its scores are kept in a cache on disk unless the user says otherwise: its answers are slow or paid."""
    wants_gpu: bool = False
    """Whether its models are large enough to be worth a GPU; their sizes, and so their costs, differ by argument."""
    packages: tuple[str, ...] = ()
    """Optional Python packages that it needs."""
    large: str | None = None
    """A word in the names of large models, whose gates the paper calibrates on ten times as many frames."""

    @property
    def needs_prompts(self) -> bool:
        """Whether it cannot work without prompts."""
        return self.compares in ("prompts", "descriptions")

    @property
    def takes_prompts(self) -> bool:
        """Whether it may compare with prompts; the other kinds have no use for them."""
        return self.compares != "nothing"

    @property
    def may_look_at_frames(self) -> bool:
        """Whether frames, and what is drawn into them, can affect its scores."""
        return self.looks_at in ("frame", None)


@dataclass(frozen=True)
class ScorerName:
    """A scorer as the user names it: the kind and its argument."""

    kind: ScorerKind
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.argument}" if self.argument else self.kind.name

    @property
    def absolute(self) -> ScorerName:
        """The same scorer with the full path of its file or folder, so that a run can be resumed elsewhere."""
        if self.kind.path == "file" and self.argument:
            return ScorerName(self.kind, os.path.abspath(os.path.expanduser(self.argument)))
        if self.kind.path == "folder" and os.path.isdir(self.argument):
            return ScorerName(self.kind, os.path.abspath(self.argument))
        return self

    @property
    def calibration_frames(self) -> int:
        """How many frames the gate is calibrated on by default."""
        words = re.split("[^a-z]+", self._model.lower())
        return 5000 if self.kind.large in words else 500

    @property
    def _model(self) -> str:
        """The name of the model itself, without the organisation or the folders in which it lies."""
        path = PurePath(self.absolute.argument)
        if path.parent.name == "snapshots":  # the cache of the hub: models--<organisation>--<name>/snapshots/<commit>
            return path.parent.parent.name.rpartition("--")[2]
        return path.name


def _embedded(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

    return EmbeddedScorer.load(loading.argument, loading.prompts, **loading.options)


def _clip(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.clip import ClipScorer

    return ClipScorer.load(loading.argument, loading.prompts, compile=loading.compile, **loading.options)


def _qwen2_vl(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.qwen2_vl import Qwen2VLScorer

    return Qwen2VLScorer.load(loading.argument, loading.prompts, **loading.options)


def _openai(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.endpoint.scorer import EndpointScorer

    return EndpointScorer.load(loading.argument, loading.prompts, loading.endpoint, give_up=loading.give_up)


def _rnd(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.rnd import RndScorer

    return RndScorer(loading.observation, loading.seed)


def _constant(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.controls import ConstantScorer

    return ConstantScorer.parse(loading.argument)


def _noise(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.controls import NoiseScorer

    return NoiseScorer()


def _oracle(loading: Loading) -> Scorer:
    from vlmsafe.signals.scorers.controls import OracleScorer

    return OracleScorer()


def _look_up_clip(loading: Loading) -> None:
    from vlmsafe.signals.scorers.clip import look_up

    look_up(loading.argument, loading.prompts)


def _look_up_qwen2_vl(loading: Loading) -> None:
    from vlmsafe.signals.scorers.qwen2_vl import look_up

    look_up(loading.argument, loading.prompts)


def _look_up_openai(loading: Loading) -> None:
    from vlmsafe.signals.scorers.endpoint.scorer import look_up

    look_up(loading.argument, loading.prompts, loading.endpoint)


def _look_up_python(loading: Loading) -> type[Scorer] | None:
    maker = _maker(loading.argument)
    return maker if isinstance(maker, type) and issubclass(maker, Scorer) else None


def _maker(argument: str) -> Callable[[PromptSet], Any]:
    """The user's callable that makes a scorer."""
    module, _, name = argument.partition(":")
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"cannot import the scorer 'python:{argument}': {error}; put the folder of its module on PYTHONPATH, or "
            "install it"
        ) from None
    except Exception as error:  # the user's module may raise anything
        raise InputError(f"cannot import the scorer 'python:{argument}': {type(error).__name__}: {error}") from error
    if (maker := getattr(found, name, None)) is None:
        own = [one for one, value in vars(found).items() if isinstance(value, type) and issubclass(value, Scorer)]
        unknown = unknown_name(f"scorer of {module}", name, own)
        raise InputError(f"cannot import the scorer 'python:{argument}': {unknown}")
    if not callable(maker):
        raise InputError(f"'python:{argument}' is a {type(maker).__name__}; expected a class or a function")
    return maker


def _python(loading: Loading) -> Scorer:
    text, before = f"python:{loading.argument}", frozenset(sys.modules)
    maker = _maker(loading.argument)
    try:
        scorer = maker(loading.prompts)
    except VlmsafeError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise InputError(f"'{text}' raised {type(error).__name__}: {error}") from error
    if not isinstance(scorer, Scorer):
        raise InputError(f"'{text}' gave a {type(scorer).__name__}; expected a vlmsafe.Scorer")
    scorer.source = _loaded_source(loading.argument.partition(":")[0], scorer, before)
    return scorer


_LOADED: dict[str, tuple[Any, SourceHash]] = {}
"""The user's modules that this process loaded scorers from: the import, which a reload replaces, and the source."""


def _loaded_source(module: str, scorer: Scorer, before: frozenset[str]) -> SourceHash:
    """The source that a scorer was loaded from. Python imports a module once, so a later change is not loaded.

    `before` are the names of the modules that were loaded before. For one of them the present file may not be what was
    imported.
    """
    now, imported = hash_source([module], revision=True), sys.modules[module].__spec__
    if module not in _LOADED or _LOADED[module][0] is not imported:
        if module in before and (stale := stale_files(now)):
            now = replace(now, unknown=f"{', '.join(stale)} may have been changed after this process imported it")
        _LOADED[module] = imported, now
    then = _LOADED[module][1]
    if changes := then.changes(now):
        raise InputError(
            f"the source of 'python:{module}' was changed after this process had loaded it ({changes}); start Python, "
            "or the scoring service, again"
        )
    unseen = unseen_files(loaded_files(before.difference(kind.__module__ for kind in type(scorer).__mro__)), now)
    if unseen and not then.unknown:
        return replace(now, unknown=f"it is made of {', '.join(unseen)}, which '{module}' does not import")
    return replace(now, unknown=then.unknown)


def scorer_source(scorer: str) -> SourceHash | None:
    """The present source of a scorer of the user's, see `vlmsafe.io.source`; None for those of this package."""
    if not kind_of(scorer).user_code:
        return None
    return hash_source([parse_scorer(scorer).argument.partition(":")[0]])


KINDS = {
    kind.name: kind
    for kind in (
        ScorerKind(
            "embedded",
            _embedded,
            argument="<file>",
            default="",
            path="file",
            looks_at="frame",
            compares="prompts",
            rules=COSINE_RULES,
            gate="calibrated",  # the prior-symmetric gate was chosen for CLIP's margins, which are smaller
            shared=True,
            packages=("torch",),
        ),
        ScorerKind(
            "clip",
            _clip,
            look_up=_look_up_clip,
            argument="<model id or folder>",
            default="openai/clip-vit-base-patch32",
            path="folder",
            looks_at="frame",
            compares="prompts",
            rules=COSINE_RULES,
            compiles=True,
            shared=True,
            downloaded=True,
            wants_gpu=True,
            packages=("torch", "transformers"),
            large="large",
        ),
        ScorerKind(
            "qwen2-vl",
            _qwen2_vl,
            look_up=_look_up_qwen2_vl,
            argument="<model id or folder>",
            default="Qwen/Qwen2-VL-7B-Instruct",
            path="folder",
            looks_at="frame",
            compares="descriptions",
            rules=YES_NO_RULES,
            gate="probability",  # differences of probabilities are far larger than CLIP's margins
            precision="bfloat16",  # in float32 the 7B model takes 33 GB
            batch=16,
            shared=True,
            downloaded=True,
            wants_gpu=True,
            packages=("torch", "transformers"),
        ),
        ScorerKind(
            "openai",
            _openai,
            look_up=_look_up_openai,
            argument="<model>@<url>",
            looks_at="frame",
            compares="descriptions",
            rules=YES_NO_RULES,
            gate="probability",
            precision="bfloat16",  # what servers compute in; answers to one picture may differ as much
            cached=True,
        ),
        ScorerKind("rnd", _rnd, looks_at="observation", rules=("novelty",), learns=True),
        ScorerKind("constant", _constant, argument="<value>", looks_at="nothing", rules=ALL_RULES),
        ScorerKind("noise", _noise, looks_at="noise", rules=ALL_RULES),
        ScorerKind("oracle", _oracle, looks_at="hazard", rules=ALL_RULES),
        ScorerKind(
            "python",
            _python,
            look_up=_look_up_python,
            argument="<module>:<name>",
            compares="unknown",
            shared=True,
            user_code=True,
        ),
    )
}
"""All kinds, by name."""

DEFAULT_SCORER = "embedded"
"""What traces and prompt benches use for a run that has no scorer of its own."""

NO_SCORER = "none"
"""The scorer of a method without a signal."""


def _refuse(loading: Loading) -> Scorer:
    raise AssertionError("a method without a signal loads no scorer")


_NONE = ScorerKind(NO_SCORER, _refuse, looks_at="nothing")


def kind_of(scorer: str) -> ScorerKind:
    """The kind of a scorer in a configuration, where 'none' may stand too."""
    return _NONE if scorer == NO_SCORER else parse_scorer(scorer).kind


def parse_scorer(text: str) -> ScorerName:
    """Split a scorer's name into its kind and argument, and fill in the default model.

    >>> str(parse_scorer("clip"))
    'clip:openai/clip-vit-base-patch32'
    """
    name, _, argument = text.partition(":")
    if name not in KINDS:
        raise unknown_name("scorer", name, KINDS)
    kind = KINDS[name]
    if kind.argument is None and argument:
        raise InputError(f"the scorer '{name}' takes nothing after it, got '{argument}'")
    if kind.argument is not None and not argument and kind.default is None:
        raise InputError(f"the scorer '{name}' needs something after it: {name}:{kind.argument}")
    return ScorerName(kind, argument or kind.default or "")


def make_scorer(
    name: ScorerName | str,
    prompts: PromptSet | None,
    *,
    device: str = "auto",
    precision: Precision | None = None,
    compile: bool = False,
    batch: int | None = None,
    observation: int = 0,
    seed: tuple[int, ...] = (0,),
    service: str = "",
    service_wait: float = 120.0,
    give_up: Callable[[], bool] = lambda: False,
    endpoint: EndpointOptions | None = None,
    cache: str = "auto",
    cache_mb: int | None = None,
) -> Scorer:
    """Load a scorer. `observation` is the length of the vectors that a scorer of observations will see.

    `precision` and `batch` are by default the kind's own. With the address of a scoring service, a scorer of frames
    asks that service; other scorers stay in this process. A service, and an endpoint, which is asked as `endpoint`
    says, are waited for until `give_up` returns True. `cache` is 'auto', 'off' or the file in which scores of frames
    are kept, up to `cache_mb` megabytes.
    """
    name = parse_scorer(name) if isinstance(name, str) else name
    kind = name.kind
    precision = kind.precision if precision is None else precision
    batch = kind.batch if batch is None else batch
    prompts = _some_prompts(name, prompts)
    endpoint = endpoint or EndpointOptions()
    loading = Loading(name.argument, prompts, device, precision, compile, batch, observation, seed, endpoint, give_up)
    scorer = _loaded(name, loading, service, service_wait)
    if scorer.looks_at != "frame" or cache == "off" or (cache == "auto" and not kind.cached):
        return scorer
    from vlmsafe.signals.scorers.cache import with_cache

    return with_cache(scorer, name, loading, cache, cache_mb)


def _loaded(name: ScorerName, loading: Loading, service: str, service_wait: float) -> Scorer:
    """A scorer of a service, or of this process."""
    kind, compile = name.kind, loading.compile
    if compile and kind.needs_prompts and not kind.compiles:
        able = " and ".join(f"'{one.name}'" for one in KINDS.values() if one.compiles)
        raise InputError(f"compile is for the scorer {able}; drop it for '{kind.name}'")
    if service and kind.shared:
        from vlmsafe.signals.service.client import connect
        from vlmsafe.signals.service.spec import ModelSpec, NotShared

        with suppress(NotShared):  # a scorer of the user's that looks at something else
            spec = ModelSpec(str(name.absolute), loading.device, loading.precision, compile, loading.batch)
            return connect(service, spec, loading.prompts, service_wait, loading.give_up)
    return kind.load(loading)


def look_up_scorer(
    name: str, prompts: PromptSet | None, endpoint: EndpointOptions | None = None
) -> tuple[InputKind | None, tuple[Rule, ...] | None]:
    """Check that a scorer can be had, without loading a large model.

    Returns what it looks at and its rules; None where only the loaded scorer can say.
    """
    named = parse_scorer(name)
    kind = named.kind
    chosen = _some_prompts(named, prompts)
    loading = Loading(
        named.argument, chosen, "cpu", kind.precision, False, kind.batch, observation=1, seed=(0,),
        endpoint=endpoint or EndpointOptions(),
    )  # fmt: skip
    if kind.look_up is None:
        kind.load(loading).close()
        return kind.looks_at, kind.rules
    found = kind.look_up(loading)
    if found is None:
        return kind.looks_at, kind.rules
    return getattr(found, "looks_at", None), getattr(found, "rules", None)  # some set them when they are made


def _some_prompts(name: ScorerName, prompts: PromptSet | None) -> PromptSet:
    from vlmsafe.signals.prompts import PromptSet

    if prompts is None and name.kind.needs_prompts:
        raise InputError(f"the scorer '{name}' compares frames with prompts; pass a prompt set's name or a file")
    # One column per group, for scorers without text.
    return PromptSet(("positive",), ("negative",)) if prompts is None else prompts
