"""Loads the scorer `transformers:<model>`: a dual encoder or a chat model, by the checkpoint's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import transformers

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.api import Precision, Scorer, check_options
from vlmsafe.signals.scorers.checkpoints.chat import ChatReader, ChatScorer
from vlmsafe.signals.scorers.checkpoints.dual import AnyDualEncoder
from vlmsafe.signals.scorers.checkpoints.files import Files, check_family, check_weights, find_files
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.hub import in_one_line, quiet
from vlmsafe.signals.scorers.processors import read_image_processor, read_tokenizer
from vlmsafe.signals.scorers.questions import questions
from vlmsafe.signals.scorers.texts import longest_text, readable

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet


def load(
    model: str, prompts: PromptSet, *, device: str, precision: Precision, batch: int, frames: int = 1
) -> AnyDualEncoder | ChatScorer:
    """Load a model from a folder, the Hugging Face cache, or the hub; `model` may end with @ and a revision."""
    check_options(batch, precision)
    place = find_device(device)

    def read(files: Files) -> AnyDualEncoder | ChatScorer:
        if check_family(files) == "chat":
            return ChatScorer(files, prompts, device=place, precision=precision, batch=batch, frames=frames)
        _check_frames(files, frames)
        return AnyDualEncoder(files, prompts, device=place, precision=precision, batch=batch)

    with quiet():
        return find_files(model, read)


def look_up(model: str, prompts: PromptSet, frames: int = 1) -> type[Scorer]:
    """Check that a model can be had and reads the prompts, without loading its weights; gives its scorer's class."""

    def read(files: Files) -> type[Scorer]:
        family = check_family(files)
        if files.complete:
            check_weights(files)
        if family == "chat":
            reader = ChatReader(files)
            for question in questions(prompts, "transformers", frames):
                reader.write(question, frames)
            return ChatScorer
        _check_frames(files, frames)
        tokenizer = read_tokenizer(files.folder, files.name)
        read_image_processor(files.folder, files.name)
        with in_one_line("configuration"):
            config = transformers.AutoConfig.from_pretrained(files.folder, local_files_only=True)
        readable(prompts.texts, files.kind, tokenizer, longest_text(config, tokenizer), files.name)
        return AnyDualEncoder

    with quiet():
        return find_files(model, read, weights=False)


def fetch(model: str) -> None:
    """Get the configuration of a model, if it is not on this machine, and check that it can be used."""
    with quiet():
        find_files(model, check_family, weights=False)


def _check_frames(files: Files, frames: int) -> None:
    if frames != 1:
        raise InputError(
            f"the model '{files.name}' embeds one image at a time and cannot look at {frames} frames; use a chat model"
        )
