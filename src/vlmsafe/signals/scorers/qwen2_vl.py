"""Scores frames with Qwen2-VL: the probability of "yes" to one question for each group of prompts.

The modules `questions` and `yes_no` have the questions and the formula. The two questions about a frame differ only in
their last words. Everything before, including the frame, goes through the model once; each question then adds its own
words to the attention cache. Frames of a batch have one size, so their sequences have one length and nothing is padded.
With several frames in a stack, the prompt has several images, the oldest first, and the question is about all of them.

Any Qwen2-VL or Qwen2.5-VL checkpoint works. It is the fast path for them: `transformers:<model>` asks any chat model
the same questions, by the processor and the chat template of its checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

from vlmsafe.errors import InputError, unknown_name
from vlmsafe.signals.scorers.api import Inputs, Precision
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.hub import find, in_one_line, quiet, require_weights, revision_of
from vlmsafe.signals.scorers.processors import read_image_processor, refuse_missing
from vlmsafe.signals.scorers.questions import questions
from vlmsafe.signals.scorers.yes_no import Answers, YesNoScorer, encode, split_shared

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet

KINDS = ("qwen2_vl", "qwen2_5_vl")
"""The values of `model_type` in the config of a supported checkpoint."""

IMAGE = "<|image_pad|>"
PICTURE = f"<|vision_start|>{IMAGE}<|vision_end|>"
# The result of the checkpoints' own chat templates for some images and one question. It is written out because a
# template comes with the checkpoint, so two copies of one model could be asked differently.
CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{pictures}{question}<|im_end|>\n"
    "<|im_start|>assistant\n"
)

_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}

_models: Any = transformers  # only partly typed, so what comes from it is Any


@dataclass(frozen=True)
class Checkpoint:
    """A model with its tokenizer and image processor."""

    model: Any
    tokenizer: Any
    processor: Any
    revision: str | None
    """Commit on the hub; None for a folder."""


class Qwen2VLScorer(YesNoScorer):
    """Two columns: P(yes) for the description of the positive group and of the negative group."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prompts: PromptSet,
        *,
        name: str,
        device: torch.device,
        batch: int = 16,
        frames: int = 1,
    ) -> None:
        answers = Answers.of(checkpoint.tokenizer, name)
        super().__init__(checkpoint.model, answers, kind="qwen2-vl", name=name, device=device, batch=batch)
        self.frames = frames
        self._revision = checkpoint.revision
        self._processor = processor = checkpoint.processor
        self._scale = float(processor.rescale_factor) if processor.do_rescale else 1.0
        mean, deviation = (processor.image_mean, processor.image_std) if processor.do_normalize else ((0.0,), (1.0,))
        self._mean, self._deviation = (
            torch.tensor(values, dtype=torch.float32, device=device)[:, None] for values in (mean, deviation)
        )
        self._image = int(self._model.config.image_token_id)
        self._merge = int(self._model.config.vision_config.spatial_merge_size)
        self._tokenizer = checkpoint.tokenizer
        self._ask(prompts)

    def _ask(self, prompts: PromptSet) -> None:
        self._questions = questions(prompts, "qwen2-vl", self.frames)
        chats = [CHAT.format(pictures=PICTURE * self.frames, question=question) for question in self._questions]
        texts = [encode(self._tokenizer, chat) for chat in chats]
        for tokens, question in zip(texts, self._questions, strict=True):
            if (places := tokens.count(self._image)) != self.frames:
                raise InputError(
                    f"the question '{question}' has {places} places for an image, expected "
                    f"{'one' if self.frames == 1 else self.frames}: "
                    f"{IMAGE} must be the image token of {self._name}, and no part of a description"
                )
        self._shared, self._endings = split_shared(texts)

    @classmethod
    def load(
        cls,
        model: str,
        prompts: PromptSet,
        *,
        device: str = "auto",
        precision: Precision = "bfloat16",
        batch: int = 16,
        frames: int = 1,
    ) -> Qwen2VLScorer:
        """Load a model from a folder, the Hugging Face cache, or the hub."""
        if precision not in _DTYPES:
            raise unknown_name("precision", precision, _DTYPES)
        place = find_device(device)
        with quiet():
            checkpoint = find(model, lambda source, local: _read(source, model, _DTYPES[precision], local), "qwen2-vl")
            return cls(checkpoint, prompts, name=model, device=place, batch=batch, frames=frames)

    def _probabilities(self, frames: Inputs) -> torch.Tensor:
        pixels, grids = self._patches(frames)
        rows, columns = (int(size) // self._merge for size in grids[0, 1:])
        shared = [token for one in self._shared for token in [one] * (rows * columns if one == self._image else 1)]
        longest = max(self._endings, key=len)
        positions = _positions([token == self._image for token in (*self._shared, *longest)], rows, columns)
        cache = self._model.model(
            input_ids=self._repeat(shared, len(frames)),
            position_ids=self._spread(positions[:, : len(shared)], len(frames)),
            pixel_values=pixels,
            image_grid_thw=grids.to(self._device),
            use_cache=True,
        ).past_key_values
        answers: list[torch.Tensor] = []
        for ending in self._endings:
            places = positions[:, len(shared) : len(shared) + len(ending)]
            logits = self._model(
                input_ids=self._repeat(ending, len(frames)),
                position_ids=self._spread(places, len(frames)),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            cache.crop(-len(ending))  # the other question must not see this one
            answers.append(self._answers.probability(logits))
        return torch.stack(answers, dim=1)

    def _patches(self, frames: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """The patches of all frames, stack by stack, and the grid of patches of each frame.

        The checkpoint's processor resizes and cuts. Standardisation happens here, on the model's device, which leaves
        more of the CPU to the simulators.
        """
        singles = frames.reshape(*frames.shape[:3], -1, 3).transpose(0, 3, 1, 2, 4).reshape(-1, *frames.shape[1:3], 3)
        images = self._processor(
            images=list(singles),
            input_data_format="channels_last",  # otherwise it guesses from the shape
            do_rescale=False,
            do_normalize=False,
            return_tensors="pt",
        )
        patches = images["pixel_values"].to(self._device)
        patches.unflatten(1, (3, -1)).mul_(self._scale).sub_(self._mean).div_(self._deviation)
        return patches, images["image_grid_thw"]

    def _spread(self, positions: torch.Tensor, count: int) -> torch.Tensor:
        return positions.to(self._device)[:, None].expand(-1, count, -1)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "revision": self._revision}


def _positions(images: Sequence[bool], rows: int, columns: int) -> torch.Tensor:
    """Time, row and column of every token, [3, tokens]: the model's rotary positions of text and images of one size.

    `images` says for each token whether an image stands in its place. For text all three increase together. Tokens of
    an image share one time and have their own row and column. What follows an image continues from its longer side.
    """
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    image, word = torch.stack([torch.zeros_like(row), row, column]).reshape(3, -1), torch.zeros(3, 1, dtype=torch.int64)
    parts, start = [], 0
    for is_image in images:
        parts.append((image if is_image else word) + start)
        start += max(rows, columns) if is_image else 1
    return torch.cat(parts, dim=1)


def look_up(model: str, prompts: PromptSet) -> None:
    """Check that a model can be had and has something to ask, without loading its weights."""
    prompts.require_descriptions("qwen2-vl")

    def read(source: str, local: bool) -> None:
        _check_kind(source, model, local)
        if local:
            with in_one_line("weights"):
                require_weights(source)

    with quiet():
        find(model, read, "qwen2-vl")


def _check_kind(source: str, name: str, local: bool) -> None:
    with in_one_line("configuration"):
        config, _ = _models.PreTrainedConfig.get_config_dict(source, local_files_only=local)
        if (kind := config.get("model_type")) is None:
            raise FileNotFoundError("it is missing, or names no kind of model")
    if kind not in KINDS:
        raise InputError(f"{name} is a model of kind '{kind}'; the scorer 'qwen2-vl' needs one of {', '.join(KINDS)}")


def _read(source: str, name: str, dtype: torch.dtype, local: bool) -> Checkpoint:
    """Read model, tokenizer and image processor. The combined processor would need torchvision for videos."""
    _check_kind(source, name, local)
    with in_one_line("weights"):
        model, report = _models.AutoModelForImageTextToText.from_pretrained(
            source, dtype=dtype, local_files_only=local, output_loading_info=True
        )
        refuse_missing(report)
    with in_one_line("tokenizer"):
        tokenizer = _models.AutoTokenizer.from_pretrained(source, local_files_only=local)
    processor = read_image_processor(source, name, local)
    return Checkpoint(model, tokenizer, processor, revision_of(source))
