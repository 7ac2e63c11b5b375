"""The kinds of scorers: everything the package knows about a kind before a scorer of it is loaded.

To add a kind, write a module with a `Scorer` class, a function in `loaders`, and one `ScorerKind` in the list below.
The rest of the package asks the entry and compares no names. A scorer's name is the kind, then a colon and an argument
where the kind takes one:

embedded                        the small model in the package; embedded:<file> loads one that you trained
clip:<model id or folder>       any CLIP or SigLIP checkpoint; the default is the paper's ViT-B/32
qwen2-vl:<model id or folder>   yes/no probabilities; the default is the paper's 7B model
transformers:<model>[@revision] any dual encoder, or yes/no probabilities of any chat model; an id or a folder
openai:<model>@<url>            the same from any OpenAI-compatible endpoint: vLLM, SGLang, TGI, a hosted one
rnd                             novelty of the observation
constant:<value>                a control; constant:<positive>,<negative> sets the two scores separately
noise                           a control: random scores
oracle                          a control: the simulator's own hazard
shuffled[:<scorer>]             a control: scores of another episode, of `embedded` or of the scorer that is named
python:<module>:<name>          your own: a callable that takes the PromptSet and returns a Scorer

A model and its libraries are imported when a scorer is loaded, not before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import Any, Literal

from vlmsafe.errors import InputError, unknown_name
from vlmsafe.io.source import SourceHash, hash_source
from vlmsafe.signals.scorers import loaders
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
from vlmsafe.signals.scorers.endpoint.options import parse_endpoint
from vlmsafe.signals.scorers.loaders import Loading


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
    check: Callable[[str], object] | None = None
    """Refuses an argument that cannot be used, or must not be written to files of a run."""
    narrow: Callable[[str], dict[str, Any] | None] | None = None
    """What an argument says about the fields below, from files on this machine; None if that is not known yet. Only for
    kinds whose models differ in them."""
    fetch: Callable[[str], None] | None = None
    """Gets from the hub what `narrow` needs."""
    settled: bool = True
    """Whether the fields below are those of the model; False before `narrow` has found it."""
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
    frames: int | Literal["any"] | None = None
    """How many frames it looks at: a fixed number, any number, which the user chooses, or None where only the loaded
    scorer can say."""
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
    shuffles: bool = False
    """Whether a run gives each episode the scores of another one (`vlmsafe.signals.shuffling`). The argument is the
    scorer whose scores they are, and the other fields are those of its kind."""
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
        if self.kind.shuffles:
            return ScorerName(self.kind, str(self.unshuffled.absolute))
        if self.kind.path == "file" and self.argument:
            return ScorerName(self.kind, os.path.abspath(os.path.expanduser(self.argument)))
        if self.kind.path == "folder" and os.path.isdir(self.argument):
            return ScorerName(self.kind, os.path.abspath(self.argument))
        return self

    @property
    def unshuffled(self) -> ScorerName:
        """The scorer that looks: the one whose scores are shuffled, else this one itself."""
        return parse_scorer(self.argument) if self.kind.shuffles else self

    def settle(self) -> ScorerName:
        """The same scorer with an entry that says what its model is; asks the hub if its files are not here."""
        if self.kind.settled:
            return self
        if self.kind.shuffles:
            self.unshuffled.settle()
        elif self.kind.fetch is None:
            return self
        else:
            self.kind.fetch(self.argument)
        return parse_scorer(str(self))

    @property
    def calibration_frames(self) -> int:
        """How many frames the gate is calibrated on by default."""
        words = re.split("[^a-z]+", self._model.lower())
        return 5000 if self.kind.large in words else 500

    @property
    def _model(self) -> str:
        """The name of the model itself, without the organisation or the folders in which it lies."""
        named = self.absolute.argument
        path = PurePath(named if os.path.isdir(named) else named.rpartition("@")[0] or named)
        if path.parent.name == "snapshots":  # the cache of the hub: models--<organisation>--<name>/snapshots/<commit>
            return path.parent.parent.name.rpartition("--")[2]
        return path.name


def scorer_source(scorer: str) -> SourceHash | None:
    """The present source of a scorer of the user's, see `vlmsafe.io.source`; None for those of this package."""
    if not kind_of(scorer).user_code:
        return None
    return hash_source([parse_scorer(scorer).unshuffled.argument.partition(":")[0]])


def _as_unshuffled(argument: str) -> dict[str, Any]:
    """The fields of a kind that shuffles: those of the scorer that it names, but for what makes a kind."""
    inner = parse_scorer(argument).kind
    if inner.shuffles:
        raise InputError(f"the scorer 'shuffled' takes the name of a scorer that looks, got '{argument}'")
    own = {"name", "load", "look_up", "narrow", "fetch", "argument", "default", "path", "shuffles"}
    return {one.name: getattr(inner, one.name) for one in fields(ScorerKind) if one.name not in own}


KINDS = {
    kind.name: kind
    for kind in (
        ScorerKind(
            "embedded",
            loaders.load_embedded,
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
            loaders.load_clip,
            look_up=loaders.look_up_clip,
            argument="<model id or folder>",
            default="openai/clip-vit-base-patch32",
            path="folder",
            looks_at="frame",
            compares="prompts",
            rules=COSINE_RULES,
            frames=1,
            compiles=True,
            shared=True,
            downloaded=True,
            wants_gpu=True,
            packages=("torch", "transformers"),
            large="large",
        ),
        ScorerKind(
            "qwen2-vl",
            loaders.load_qwen2_vl,
            look_up=loaders.look_up_qwen2_vl,
            argument="<model id or folder>",
            default="Qwen/Qwen2-VL-7B-Instruct",
            path="folder",
            looks_at="frame",
            compares="descriptions",
            rules=YES_NO_RULES,
            frames="any",
            gate="probability",  # differences of probabilities are far larger than CLIP's margins
            precision="bfloat16",  # in float32 the 7B model takes 33 GB
            batch=16,
            shared=True,
            downloaded=True,
            wants_gpu=True,
            packages=("torch", "transformers"),
        ),
        ScorerKind(
            "transformers",
            loaders.load_transformers,
            look_up=loaders.look_up_transformers,
            narrow=loaders.narrow_transformers,
            fetch=loaders.fetch_transformers,
            settled=False,
            argument="<model id or folder>[@revision]",
            path="folder",
            looks_at="frame",
            compares="unknown",
            shared=True,
            downloaded=True,
            wants_gpu=True,
            packages=("torch", "transformers"),
        ),
        ScorerKind(
            "openai",
            loaders.load_openai,
            look_up=loaders.look_up_openai,
            check=parse_endpoint,
            argument="<model>@<url>",
            looks_at="frame",
            compares="descriptions",
            rules=YES_NO_RULES,
            gate="probability",
            frames="any",
            precision="bfloat16",  # what servers compute in; answers to one picture may differ as much
            cached=True,
        ),
        ScorerKind("rnd", loaders.load_rnd, looks_at="observation", rules=("novelty",), learns=True),
        ScorerKind("constant", loaders.load_constant, argument="<value>", looks_at="nothing", rules=ALL_RULES),
        ScorerKind("noise", loaders.load_noise, looks_at="noise", rules=ALL_RULES),
        ScorerKind("oracle", loaders.load_oracle, looks_at="hazard", rules=ALL_RULES),
        ScorerKind(
            "shuffled",
            loaders.load_shuffled,
            narrow=_as_unshuffled,
            argument="<scorer>",
            default="embedded",
            shuffles=True,
        ),
        ScorerKind(
            "python",
            loaders.load_python,
            look_up=loaders.look_up_python,
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
    argument = argument or kind.default or ""
    if kind.check is not None:
        kind.check(argument)
    known = None if kind.narrow is None else kind.narrow(argument)
    return ScorerName(kind if known is None else replace(kind, **known), argument)
