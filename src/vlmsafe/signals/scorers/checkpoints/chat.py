"""Scores frames with any chat model of transformers that reads images: P(yes) to one question per group of prompts.

The processor of the checkpoint writes the question in the chat format and puts the tokens of the image into it. In the
families of `SHARE` the frame and the words before the two questions differ go through the model once, and each question
then adds its own words to the attention cache. In other families every question is asked by itself, which takes about
twice as long: their caches or positions may need more than that. Frames of a batch have one size, so their sequences
have one length and nothing is padded. Qwen2-VL has a fast path, `vlmsafe.signals.scorers.qwen2_vl`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import Tensor

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import Inputs, Precision
from vlmsafe.signals.scorers.checkpoints.files import Files, read_weights
from vlmsafe.signals.scorers.hub import first_line
from vlmsafe.signals.scorers.processors import for_model, read_image_processor, read_processor, read_tokenizer
from vlmsafe.signals.scorers.questions import questions
from vlmsafe.signals.scorers.yes_no import Answers, YesNoScorer, split_shared

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet

SHARE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "idefics3", "llava")
"""The kinds whose answers were compared with those of whole passes; see tests/signals/scorers/checkpoints."""

_PER_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_models: Any = transformers  # only partly typed, so what comes from it is Any


class ChatReader:
    """Writes questions about frames as a model reads them: its processor, tokenizer and chat template."""

    def __init__(self, files: Files) -> None:
        self._name = files.name
        self.tokenizer = read_tokenizer(files.folder, files.name)
        image_processor = read_image_processor(files.folder, files.name)
        self.processor = read_processor(files.folder, files.name, files.kind, self.tokenizer, image_processor)
        self._template = self.processor.chat_template or self.tokenizer.chat_template
        if self._template is None:
            raise InputError(f"the model '{files.name}' has no chat template, so it cannot be asked a question")
        self.answers = Answers.of(self.tokenizer, files.name)

    def write(self, question: str, frames: int) -> str:
        """A question about so many images in the chat format."""
        content = [*[{"type": "image"}] * frames, {"type": "text", "text": question}]
        try:
            text: str = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,  # the answer is the next token; templates that do not know it ignore it
            )
        except Exception as error:  # templates are programs of the checkpoint
            raise InputError(f"the chat template of '{self._name}' fails: {first_line(error)}") from error
        if (places := self.places(text)) != frames:
            raise InputError(
                f"the question '{question}' has {places} places for an image in the chat format of '{self._name}', "
                f"expected {frames}: its template must place images, and no description may hold "
                f"{self.processor.image_token}"
            )
        return text

    def places(self, text: str) -> int:
        """How many images a text has places for."""
        return text.count(self.processor.image_token)

    def read(self, text: str, stacks: Inputs) -> dict[str, Tensor]:
        """What the model gets for one text about every stack of frames [N, height, width, 3 frames]."""
        images = [np.split(stack, stack.shape[-1] // 3, axis=-1) for stack in stacks]
        beginning = self.tokenizer.bos_token
        # A template that begins with this token must not get it a second time.
        special = {"add_special_tokens": False} if beginning and text.startswith(beginning) else {}
        found: dict[str, Tensor] = self.processor(
            text=[text] * len(stacks), images=images, input_data_format="channels_last", return_tensors="pt", **special
        )
        return dict(found)


class ChatScorer(YesNoScorer):
    """Two columns: P(yes) for the description of the positive group and of the negative group."""

    def __init__(
        self,
        files: Files,
        prompts: PromptSet,
        *,
        device: torch.device,
        precision: Precision,
        batch: int,
        frames: int = 1,
    ) -> None:
        """Read the model and its processors; `frames` is how many frames a question is about."""
        self._reader = ChatReader(files)
        self.frames = frames
        self._files = files
        self._ask(prompts)
        dtype: torch.dtype = getattr(torch, precision)
        model = read_weights(files, _models.AutoModelForImageTextToText, dtype)
        super().__init__(model, self._reader.answers, kind="transformers", name=files.name, device=device, batch=batch)
        # Without it, a model computes the logits of every token: with a large vocabulary that takes much memory.
        last = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._last: dict[str, int] = {"logits_to_keep": 1} if last else {}

    def _ask(self, prompts: PromptSet) -> None:
        self._questions = questions(prompts, "transformers", self.frames)
        self._texts = [self._reader.write(question, self.frames) for question in self._questions]
        self._splits: dict[tuple[int, ...], tuple[list[int], list[list[int]]]] = {}
        # A template may put images after the question; then there is nothing to share.
        before = [text.partition(question) for text, question in zip(self._texts, self._questions, strict=True)]
        images_first = all(found and self._reader.places(text) == self.frames for text, found, _ in before)
        self._shares = images_first and self._files.kind in SHARE

    def _probabilities(self, frames: Inputs) -> Tensor:
        if self._shares:
            return self._sharing(frames)
        answers = []
        for text in self._texts:
            inputs = for_model(self._reader.read(text, frames), self._model)
            logits = self._model(**inputs, use_cache=False, **self._last).logits[:, -1]
            answers.append(self._answers.probability(logits))
        return torch.stack(answers, dim=1)

    def _sharing(self, frames: Inputs) -> Tensor:
        """The beginning that both questions share, then the rest of each."""
        inputs = for_model(self._reader.read(self._texts[0], frames), self._model)
        shared, endings = self._split(frames)
        for name in _PER_TOKEN:
            if name in inputs:
                inputs[name] = inputs[name][:, : len(shared)]
        cache = self._model(**inputs, use_cache=True, **self._last).past_key_values
        answers = []
        for ending in endings:
            # Without a mask, every model attends to all that is in the cache, and continues its positions.
            tokens = self._repeat(ending, len(frames))
            logits = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, **self._last).logits[:, -1]
            cache.crop(-len(ending))  # the other question must not see this one
            answers.append(self._answers.probability(logits))
        return torch.stack(answers, dim=1)

    def _split(self, frames: Inputs) -> tuple[list[int], list[list[int]]]:
        """The tokens of both questions about a frame of a size, split where they begin to differ."""
        size = frames.shape[1:]
        if size not in self._splits:
            texts = [self._reader.read(text, frames[:1])["input_ids"][0].tolist() for text in self._texts]
            self._splits[size] = split_shared(texts)
        return self._splits[size]

    def describe(self) -> dict[str, Any]:
        return {**self._files.describe(), **super().describe(), "chat": self._texts[0]}
