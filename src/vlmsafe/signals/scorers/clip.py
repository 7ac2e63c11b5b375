"""Scoring of frames with a frozen CLIP or SigLIP: cosine similarities of a frame's embedding to those of the prompts.

The prompts are embedded once, when a model is loaded, and its text tower is dropped. What is left per frame is the
resizing, the vision tower and one small product for each set of prompts. On a GPU all of it happens there, on batches
that arrive through two pinned buffers while the batch before is computed. `benchmarks/scoring.py` measures what that
gains.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import huggingface_hub
import numpy as np
import torch
import transformers
from huggingface_hub.errors import EntryNotFoundError
from torch import Tensor, nn
from torch.nn import functional

from vlmsafe.errors import InputError, MissingDependencyError
from vlmsafe.signals.scorers.api import (
    COSINE_RULES,
    InputKind,
    Inputs,
    Precision,
    Rule,
    Scorer,
    Similarities,
    check_frames,
    check_options,
)
from vlmsafe.signals.scorers.batches import (
    Part,
    Pipeline,
    alone,
    overlapped,
    together,
)
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.hub import (
    find,
    find_file,
    first_line,
    in_one_line,
    quiet,
    revision_of,
)
from vlmsafe.signals.scorers.images import (
    PatchProduct,
    Preparation,
    Preprocessing,
    Size,
)

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet

_KINDS = ("clip", "siglip")
_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",), ("tokenizer.model",))

# Half typed, both of them; what comes from them is Any.
_models: Any = transformers
_hub: Any = huggingface_hub


class ClipScorer(Scorer):
    """Similarities to the prompts, L2-normalised and without the model's logit scale."""

    looks_at: ClassVar[InputKind] = "frame"
    rules: ClassVar[tuple[Rule, ...]] = COSINE_RULES

    def __init__(
        self,
        model: nn.Module,
        texts: Tensor,
        groups: tuple[int, int],
        preprocessing: Preprocessing,
        *,
        device: str = "auto",
        precision: Precision = "float32",
        compile: bool = False,
        batch: int = 64,
        name: str = "",
        revision: str | None = None,
        stamp: object = None,
    ) -> None:
        """Take over the vision tower of a CLIPModel or SiglipModel; `texts` are the prompts' embeddings [P + Q, D]."""
        check_options(batch, precision)
        self.groups = groups
        self.batch = batch
        self._device = find_device(device)
        self._precision = precision
        self._compile = compile
        self._stamp = stamp
        self._preprocessing = preprocessing
        config: Any = model.config
        self._image = _pair(config.vision_config.image_size)
        self._description = {
            "model": name,
            "revision": revision,
            "device": str(self._device),
            "precision": precision,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "image_size": self._image[0],
        }
        self._texts = functional.normalize(texts.detach().float(), dim=-1).T.contiguous().to(self._device)
        self._tower = _Tower(model).to(self._device).eval().requires_grad_(False)
        self.whole = self._compile or self._device.type == "cuda"
        self.reentrant = not self.whole
        if self._device.type == "cuda":
            # On the CPU the convolution is as fast, and what the reference computes to the last digit.
            self._tower.use_patch_product()
        self._tower.convert(getattr(torch, precision))
        self._programs: dict[Size, Callable[[Sequence[Part]], Callable[[], list[Similarities]]]] = {}

    @classmethod
    def load(
        cls,
        model: str,
        prompts: PromptSet,
        *,
        device: str = "auto",
        precision: Precision = "float32",
        compile: bool = False,
        batch: int = 64,
    ) -> ClipScorer:
        """A scorer from a folder, the user's Hugging Face cache or, failing these, the hub.

        `compile` has torch generate code for full batches of one size of frames, at the first call of `score`.
        """
        find_device(device)  # a wrong one is reported before anything is loaded
        with quiet():
            checkpoint = find(model, lambda source, local: _read(source, model, local), "clip")
            texts = _embed(checkpoint, prompts.texts, model)
        return cls(
            checkpoint.model,
            texts,
            prompts.sizes,
            checkpoint.preprocessing,
            device=device,
            precision=precision,
            compile=compile,
            batch=batch,
            name=model,
            revision=checkpoint.revision,
            stamp=checkpoint.stamp,
        )

    def score(self, inputs: Inputs) -> Similarities:
        """Frames uint8 [N, height, width, 3] to similarities [N, P + Q]."""
        check_frames(inputs)
        parts = (inputs[start : start + self.batch] for start in range(0, len(inputs), self.batch))
        found = [part for (part,) in overlapped(self.begin([(self, frames)]) for frames in parts)]
        return np.concatenate([np.empty((0, sum(self.groups)), np.float32), *found])

    def begin(self, parts: Sequence[tuple[Scorer, Inputs]]) -> Callable[[], list[Similarities]]:
        frames = parts[0][1]
        given: list[Part] = []
        for scorer, inputs in parts:
            assert isinstance(scorer, ClipScorer)
            given.append((inputs, scorer._texts))
        try:
            return self._program((frames.shape[1], frames.shape[2]))(given)
        except torch.cuda.OutOfMemoryError as error:
            raise InputError(
                f"the memory of {self._device} does not hold {self.batch} frames at a time; lower the batch, or take a "
                "smaller model"
            ) from error

    def with_prompts(self, prompts: PromptSet) -> ClipScorer:
        """The same tower for other prompts; the text tower, which was dropped, is read again for a moment."""
        model = str(self._description["model"])
        with quiet():
            checkpoint = find(model, lambda source, local: _read(source, model, local), "clip")
            if checkpoint.stamp != self._stamp:  # its texts would be compared with another model's images
                raise InputError(
                    f"the files of the model '{model}' have changed since it was loaded; start the service again"
                )
            texts = _embed(checkpoint, prompts.texts, model)
        other = copy.copy(self)
        other.groups = prompts.sizes
        other._texts = functional.normalize(texts.float(), dim=-1).T.contiguous().to(self._device)
        return other

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def _program(self, size: Size) -> Callable[[Sequence[Part]], Callable[[], list[Similarities]]]:
        """What begins a batch of frames of a size; made ready once, for sizes seldom change."""
        if size not in self._programs:
            self._programs[size] = self._ready(size)
        return self._programs[size]

    def _ready(self, size: Size) -> Callable[[Sequence[Part]], Callable[[], list[Similarities]]]:
        if (output := self._preprocessing.output(size)) != self._image:
            raise InputError(
                f"the model's preprocessor makes {output[0]} x {output[1]} pixels of frames of {size[0]} x {size[1]}, "
                f"but the model reads {self._image[0]} x {self._image[1]}"
            )
        on_gpu = self._device.type == "cuda"
        products = (torch.float32 if self._precision == "float32" else torch.float16) if on_gpu else None
        preparation = Preparation(
            self._preprocessing, size, pixels=getattr(torch, self._precision), products=products
        ).to(self._device)
        module = nn.Sequential(preparation, self._tower)
        embed: Callable[[Tensor], Tensor] = compiled(module) if self._compile else module
        pipeline = Pipeline(self._device, self.batch, (*size, 3), record=self._compile) if on_gpu else None

        @torch.inference_mode()
        def begin(parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
            if pipeline is not None:
                return pipeline.begin(embed, parts)
            found = together(embed, parts, self.batch) if self._compile else alone(embed, parts)
            return lambda: found

        if self._compile:
            self._warm_up(begin, size, 2 if on_gpu else 1)
        return begin

    def _warm_up(
        self, begin: Callable[[Sequence[Part]], Callable[[], list[Similarities]]], size: Size, times: int
    ) -> None:
        """Have the code generated and, on a GPU, recorded for both of its buffers."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(times):
                    begin([(np.zeros((self.batch, *size, 3), np.uint8), self._texts)])()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # for want of a compiler, mostly
            raise InputError(f"torch cannot compile the model ({first_line(error)}); leave compile off") from error


def compiled(program: nn.Module) -> Callable[[Tensor], Tensor]:
    """A program with code generated for one shape."""
    found: Callable[[Tensor], Tensor] = torch.compile(program, dynamic=False)
    return found


class _Tower(nn.Module):
    """Pixels to unit vectors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision: Any = model.vision_model
        self.projection: nn.Module = getattr(model, "visual_projection", nn.Identity())  # SigLIP has none

    def use_patch_product(self) -> None:
        self.vision.embeddings.patch_embedding = PatchProduct(self.vision.embeddings.patch_embedding)

    def convert(self, precision: torch.dtype) -> None:
        """Change the weights' type; the prompts' embeddings and the product with them stay in float32."""
        self.vision.to(precision)
        self.projection.to(precision)

    def forward(self, pixels: Tensor) -> Tensor:
        embeddings = self.projection(self.vision(pixel_values=pixels).pooler_output)
        return functional.normalize(embeddings.float(), dim=-1)


@dataclass(frozen=True)
class _Checkpoint:
    kind: str
    model: Any
    tokenizer: Any
    preprocessing: Preprocessing
    revision: str | None
    stamp: object
    """Tells whether the files are still those that were read."""


def _read(source: str, model: str, local: bool) -> _Checkpoint:
    """Everything of a checkpoint; `Unreadable` where something is missing, InputError where it is of another kind."""
    with in_one_line("configuration"):
        config = _models.PreTrainedConfig.get_config_dict(source, local_files_only=local)[0]
    if (kind := config.get("model_type")) not in _KINDS:
        hint = "; of SigLIP 2 take one of fixed resolution, such as google/siglip2-base-patch16-224"
        raise InputError(
            f"the model '{model}' is of the kind '{kind}'; supported are {' and '.join(_KINDS)}"
            f"{hint if kind == 'siglip2' else ''}"
        )
    with in_one_line("tokenizer"):
        try:
            tokenizer: Any = _models.AutoTokenizer.from_pretrained(source, local_files_only=local)
        except ImportError as error:
            raise MissingDependencyError(
                f"the tokenizer of '{model}' needs the Python packages sentencepiece and protobuf; "
                "install them with: pip install sentencepiece protobuf"
            ) from error
        # Without its vocabulary a tokenizer loads all the same, and takes every word for unknown.
        if not any(all(find_file(source, name) for name in names) for names in _VOCABULARIES):
            raise FileNotFoundError("there is no vocabulary")
    stamp = _stamp(source)
    with in_one_line("weights"):
        network, report = _models.AutoModel.from_pretrained(
            source, dtype=torch.float32, local_files_only=local, output_loading_info=True
        )
        if missing := sorted(report["missing_keys"]):  # they were drawn at random
            raise ValueError(f"{len(missing)} of them are missing, such as {missing[0]}")
    size = _pair(network.config.vision_config.image_size)[0]
    default = Preprocessing.clip(size) if kind == "clip" else Preprocessing.siglip(size)
    with in_one_line("preprocessor"):
        preprocessing = Preprocessing.read(_preprocessor_settings(source, local), default)
    return _Checkpoint(kind, network, tokenizer, preprocessing, revision_of(source), stamp)


def _stamp(source: str) -> object:
    """Name, size and time of every file of a folder, or the revision of a model in the cache, where files stay."""
    if not Path(source).is_dir():
        return revision_of(source)
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(Path(source).iterdir())]


def _preprocessor_settings(source: str, local: bool) -> dict[str, Any]:
    """What the image processor's configuration says, in either of its two files; empty where a model has none."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if not local:
            with suppress(EntryNotFoundError):  # which the cache remembers
                _hub.hf_hub_download(source, name)
        if path := find_file(source, name):
            settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if name == "preprocessor_config.json":
                return settings
            if "image_processor" in settings:
                nested: dict[str, Any] = settings["image_processor"]
                return nested
    if not Path(source).is_dir() and _hub.try_to_load_from_cache(source, "preprocessor_config.json") is None:
        raise FileNotFoundError("it was not downloaded")
    return {}


def _embed(checkpoint: _Checkpoint, prompts: tuple[str, ...], model: str) -> Tensor:
    """The prompts' embeddings [P + Q, D], as each kind of model was trained."""
    network, tokenizer = checkpoint.model.eval(), checkpoint.tokenizer
    longest: int = network.config.text_config.max_position_embeddings
    siglip = checkpoint.kind == "siglip"
    # SigLIP was trained on lower case, which the tokenizer of SigLIP 2 leaves to its caller.
    texts = [prompt.lower() if siglip else prompt for prompt in prompts]
    for prompt, text in zip(prompts, texts, strict=True):
        if (count := len(tokenizer(text)["input_ids"])) > longest:  # cut off, it would be another prompt
            raise InputError(
                f"the prompt '{prompt}' has {count} tokens, and the model '{model}' reads at most {longest}; shorten it"
            )
    with torch.inference_mode():
        if siglip:  # trained on texts padded at the end to the full length, with attention to the padding
            tokens = tokenizer(
                texts, padding="max_length", max_length=longest, padding_side="right", return_tensors="pt"
            )
            embeddings: Tensor = network.text_model(input_ids=tokens["input_ids"]).pooler_output
        else:
            tokens = tokenizer(texts, padding=True, return_tensors="pt")
            embeddings = network.text_projection(
                network.text_model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).pooler_output
            )
    return embeddings


def _pair(size: Any) -> Size:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
