"""Scores frames with a frozen CLIP or SigLIP: cosine similarities of frame embeddings to prompt embeddings.

The prompts are embedded once, when a model is loaded, and the text tower is dropped. Each frame then needs resizing,
the vision tower and one small product for each set of prompts. On a GPU all of it happens there. Batches arrive through
two pinned buffers while the previous batch is computed; `benchmarks/scoring.py` measures the gain.

It is the fast path for these two kinds: `transformers:<model>` takes any dual encoder, with the image processor of its
checkpoint.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import numpy as np
import torch
import transformers
from huggingface_hub.errors import EntryNotFoundError
from torch import Tensor, nn
from torch.nn import functional

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import Precision, Similarities
from vlmsafe.signals.scorers.batches import DualEncoder, Part, Pipeline, alone, together
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.hub import find, find_file, first_line, in_one_line, quiet, require_weights, revision_of
from vlmsafe.signals.scorers.images import PatchProduct, Preparation, Preprocessing, Size
from vlmsafe.signals.scorers.processors import read_tokenizer, refuse_missing
from vlmsafe.signals.scorers.texts import embed_texts, longest_text, readable

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet

_KINDS = ("clip", "siglip")

# Both libraries are only partly typed, so what comes from them is Any.
_models: Any = transformers
_hub: Any = huggingface_hub


class ClipScorer(DualEncoder):
    """Cosine similarities to the prompts, without the model's logit scale."""

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
        """Use the vision tower of a CLIPModel or SiglipModel; `texts` are the prompt embeddings [P + Q, D]."""
        super().__init__(model, groups, device, precision, batch, model=name, revision=revision)
        self._compile = compile
        self._stamp = stamp
        self._preprocessing = preprocessing
        config: Any = model.config
        self._image = _pair(config.vision_config.image_size)
        self._description["image_size"] = self._image[0]
        self._texts = functional.normalize(texts.detach().float(), dim=-1).T.contiguous().to(self._device)
        self._tower = _Tower(model).to(self._device).eval().requires_grad_(False)
        self.whole = self._compile or self._device.type == "cuda"
        self.reentrant = not self.whole
        if self._device.type == "cuda":
            # On the CPU the convolution is as fast, and equals the reference to the last digit.
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
        """Load a model from a folder, the Hugging Face cache, or the hub.

        With `compile`, torch generates code for full batches of one frame size, at the first call of `score`.
        """
        find_device(device)  # report a wrong device before anything is loaded
        with quiet():
            checkpoint = find(model, lambda source, local: _read(source, model, local), "clip")
            texts = embed_texts(checkpoint.model, checkpoint.tokenizer, prompts.texts, model)
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

    def _begin(self, parts: Sequence[Part]) -> Callable[[], list[Similarities]]:
        frames = parts[0][0]
        return self._program((frames.shape[1], frames.shape[2]))(parts)

    def with_prompts(self, prompts: PromptSet) -> ClipScorer:
        """The same vision tower with other prompts. The text tower was dropped, so it is read again for this call."""
        model = str(self._description["model"])
        with quiet():
            checkpoint = find(model, lambda source, local: _read(source, model, local), "clip")
            if checkpoint.stamp != self._stamp:  # texts and images would be embedded by different models
                raise InputError(
                    f"the files of the model '{model}' have changed since it was loaded; start the service again"
                )
            texts = embed_texts(checkpoint.model, checkpoint.tokenizer, prompts.texts, model)
        other = copy.copy(self)
        other.groups = prompts.sizes
        other._texts = functional.normalize(texts.float(), dim=-1).T.contiguous().to(self._device)
        return other

    def with_batch(self, batch: int) -> ClipScorer:
        other = copy.copy(self)
        other.batch, other._programs = batch, {}  # programs are prepared for batches of one size
        return other

    def _program(self, size: Size) -> Callable[[Sequence[Part]], Callable[[], list[Similarities]]]:
        """The function that begins a batch of frames of a size. It is prepared once per size."""
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
        """Generate the code and, on a GPU, record it for both buffers."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(times):
                    begin([(np.zeros((self.batch, *size, 3), np.uint8), self._texts)])()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # usually there is no compiler
            raise InputError(f"torch cannot compile the model ({first_line(error)}); leave compile off") from error


def compiled(program: nn.Module) -> Callable[[Tensor], Tensor]:
    """A program compiled for one shape."""
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
        """Change the type of the weights. Prompt embeddings and their products stay in float32."""
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
    """Changes when the files change."""


def look_up(model: str, prompts: PromptSet) -> None:
    """Check that a model can be had and reads the prompts, without loading its weights."""

    def read(source: str, local: bool) -> tuple[str, Any, int]:
        kind, tokenizer = _read_tokenizer(source, model, local)
        if local:
            with in_one_line("weights"):
                require_weights(source)
        with in_one_line("configuration"):
            config: Any = _models.AutoConfig.from_pretrained(source, local_files_only=local)
        return kind, tokenizer, longest_text(config, tokenizer)

    with quiet():
        kind, tokenizer, longest = find(model, read, "clip")
    readable(prompts.texts, kind, tokenizer, longest, model)


def _read_tokenizer(source: str, model: str, local: bool) -> tuple[str, Any]:
    """The kind of a model and its tokenizer."""
    with in_one_line("configuration"):
        config = _models.PreTrainedConfig.get_config_dict(source, local_files_only=local)[0]
    if (kind := config.get("model_type")) not in _KINDS:
        raise InputError(
            f"the model '{model}' is of the kind '{kind}'; the scorer 'clip' supports {' and '.join(_KINDS)}, and "
            f"transformers:{model} any dual encoder or chat model"
        )
    return kind, read_tokenizer(source, model, local)


def _read(source: str, model: str, local: bool) -> _Checkpoint:
    """Read a checkpoint; `Unreadable` if something is missing, InputError for an unsupported kind of model."""
    kind, tokenizer = _read_tokenizer(source, model, local)
    stamp = _stamp(source)
    with in_one_line("weights"):
        network, report = _models.AutoModel.from_pretrained(
            source, dtype=torch.float32, local_files_only=local, output_loading_info=True
        )
        refuse_missing(report)
    size = _pair(network.config.vision_config.image_size)[0]
    default = Preprocessing.clip(size) if kind == "clip" else Preprocessing.siglip(size)
    with in_one_line("preprocessor"):
        preprocessing = Preprocessing.read(_preprocessor_settings(source, local), default)
    return _Checkpoint(kind, network, tokenizer, preprocessing, revision_of(source), stamp)


def _stamp(source: str) -> object:
    """Name, size and time of every file in a folder; for a model in the cache, its revision."""
    if not Path(source).is_dir():
        return revision_of(source)
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(Path(source).iterdir())]


def _preprocessor_settings(source: str, local: bool) -> dict[str, Any]:
    """The configuration of the image processor, from either of its two files; empty if the model has none."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if not local:
            with suppress(EntryNotFoundError):  # the cache remembers that it is missing
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


def _pair(size: Any) -> Size:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
