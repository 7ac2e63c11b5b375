"""Any chat model: its probabilities are those of whole passes, and of the fast path where there is one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_families import CHAT_FAMILIES, save_chat_model
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from vlmsafe.errors import InputError, MissingDependencyError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import check_scorer, score_checked
from vlmsafe.signals.scorers.checkpoints.chat import SHARE
from vlmsafe.signals.scorers.make import look_up_scorer, make_scorer
from vlmsafe.signals.scorers.processors import read_processor
from vlmsafe.signals.scorers.qwen2_vl import Qwen2VLScorer

TOLERANCE = 1e-5
"""Between the plain path and the fast one, and between either and whole passes of the model, in float32."""
SAFE, DANGER = "safe driving conditions", "driving danger or imminent collision"
PROMPTS = PromptSet(("a clear road",), ("a crash",), SAFE, DANGER)


class Folders(dict[str, Path]):
    """The folder of a model of each family, which is made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def __missing__(self, family: str) -> Path:
        try:
            save_chat_model(self._root / family, family)
        except ImportError:
            pytest.skip(f"the image processor of {family} needs torchvision in this version of transformers")
        self[family] = self._root / family
        return self[family]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Folders:
    return Folders(tmp_path_factory.mktemp("chat"))


def noise(count: int, height: int = 60, width: int = 90, frames: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3 * frames), np.uint8)


def load(folder: Path, prompts: PromptSet = PROMPTS, **options: Any) -> Any:
    given = {"device": "cpu", "precision": "float32", **options}
    return make_scorer(f"transformers:{folder}", prompts, **given)


def by_hand(folder: Path, family: str, stack: np.ndarray, question: str) -> float:
    """One stack, one question, one whole pass of transformers' own model; the probabilities added up here."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    processor = read_processor(str(folder), "tiny", family, tokenizer, image_processor)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    images = np.split(stack, stack.shape[-1] // 3, axis=-1)
    content = [{"type": "image"} for _ in images] + [{"type": "text", "text": question}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    inputs = processor(text=[text], images=[images], return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**inputs).logits[0, -1].double().softmax(0)
    yes, no = (
        sum(float(probabilities[tokenizer.convert_tokens_to_ids(token)]) for token in words)
        for words in (("yes", "Yes", "Ġyes", "ĠYes"), ("no", "No", "NO", "Ġno"))
    )
    return yes / (yes + no)


@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_probabilities_equal_those_of_whole_passes(folders, family):
    scorer = load(folders[family], batch=2)
    check_scorer(scorer)
    some = noise(3)
    asked = [f"Does this image show {text}? Answer yes or no." for text in (SAFE, DANGER)]
    expected = [[by_hand(folders[family], family, frame, question) for question in asked] for frame in some]
    got = score_checked(scorer, some)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)
    assert np.ptp(expected, axis=0).min() > 100 * TOLERANCE  # frames and questions are told apart at all
    assert np.abs(np.diff(expected)).max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_a_clip_is_several_images_the_oldest_first(folders, family):
    scorer = load(folders[family], frames=2)
    assert scorer.frames == 2
    clip = noise(1, frames=2)
    form = "These images show one scene over time, the oldest first. Do they show {}? Answer yes or no."
    expected = [[by_hand(folders[family], family, clip[0], form.format(text)) for text in (SAFE, DANGER)]]
    np.testing.assert_allclose(scorer.score(clip), expected, atol=TOLERANCE)
    back = np.concatenate([clip[..., 3:], clip[..., :3]], axis=-1)
    assert np.abs(scorer.score(back) - expected).max() > 10 * TOLERANCE


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("frames", [1, 3])
def test_the_fast_path_and_the_plain_path_agree(folders, family, frames):
    fast = Qwen2VLScorer.load(str(folders[family]), PROMPTS, device="cpu", precision="float32", frames=frames)
    plain = load(folders[family], frames=frames)
    assert plain.describe()["questions"] == fast.describe()["questions"]
    for size in [(60, 90), (90, 60), (20, 110)]:
        stacks = noise(3, *size, frames=frames, seed=1)
        np.testing.assert_allclose(plain.score(stacks), fast.score(stacks), atol=TOLERANCE)


@pytest.mark.parametrize("family", SHARE)
def test_the_beginning_of_the_questions_is_read_once(folders, family, monkeypatch):
    scorer = load(folders[family])
    scorer.score(noise(1))  # from now on the questions of this size are known
    passes = []
    plain = type(scorer._model).forward

    def seen(self: Any, *args: Any, **options: Any) -> Any:
        passes.append("pixel_values" in options)
        return plain(self, *args, **options)

    monkeypatch.setattr(type(scorer._model), "forward", seen)
    scorer.score(noise(2))
    assert passes == [True, False, False], "frame and chat format first, then the end of each question"


def test_images_after_the_question_are_not_shared(tmp_path):
    save_chat_model(tmp_path, "llava")
    template = (tmp_path / "chat_template.jinja").read_text()
    parts = "message['content']"
    (tmp_path / "chat_template.jinja").write_text(template.replace(parts, f"{parts} | reverse"))
    scorer, some = load(tmp_path), noise(2)
    asked = [f"Does this image show {text}? Answer yes or no." for text in (SAFE, DANGER)]
    expected = [[by_hand(tmp_path, "llava", frame, question) for question in asked] for frame in some]
    np.testing.assert_allclose(scorer.score(some), expected, atol=TOLERANCE)


def test_other_prompts_and_batches_share_the_model(folders):
    scorer, some = load(folders["internvl"]), noise(3)
    turned = scorer.with_prompts(PromptSet(("a",), ("b",), DANGER, SAFE))
    assert turned._model is scorer._model
    np.testing.assert_allclose(turned.score(some), scorer.score(some)[:, ::-1], atol=TOLERANCE)
    np.testing.assert_allclose(scorer.with_batch(1).score(some), scorer.score(some), atol=TOLERANCE)


def test_it_says_what_was_used_and_asked(folders):
    found = load(folders["internvl"], precision=None).describe()
    assert found["precision"] == "bfloat16", "most chat models are large"
    assert found["architecture"] == "InternVLForConditionalGeneration"
    assert (found["model"], found["revision"], found["frames"]) == (str(folders["internvl"]), None, 1)
    assert found["questions"][1] == f"Does this image show {DANGER}? Answer yes or no."
    assert found["chat"].endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert found["yes"] == ["yes", "Yes", " yes", " Yes"]


def test_looking_it_up_reads_no_weights(folders, monkeypatch):
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", None)
    assert look_up_scorer(f"transformers:{folders['llava']}", PROMPTS) == ("frame", ("yes-no", "decoupled"))


@pytest.mark.parametrize(("words", "missing"), [(("no",), "yes"), (("Yes",), "no")])
def test_a_tokenizer_without_an_answer_is_refused_before_weights_are_read(tmp_path, words, missing):
    save_chat_model(tmp_path, "llava", words=words)
    for call in (load, lambda folder: look_up_scorer(f"transformers:{folder}", PROMPTS)):
        with pytest.raises(InputError, match=f"no single token for '{missing}' in any spelling"):
            call(tmp_path)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template, so it cannot be asked"),
        ("{{ messages[0]['content'] + 'x' }}", "the chat template of '.*' fails: "),
        ("{{ messages[0]['role'] }}", "has 0 places for an image in the chat format of"),
    ],
)
def test_a_chat_format_that_cannot_ask_is_one_clear_line(tmp_path, template, message):
    save_chat_model(tmp_path, "llava")
    path = tmp_path / "chat_template.jinja"
    path.unlink() if template is None else path.write_text(template)
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_description_that_holds_an_image_is_refused(folders):
    with pytest.raises(InputError, match="has 2 places for an image"):
        load(folders["llava"], PromptSet(("a",), ("b",), "<image>", "a crash"))


def test_prompts_without_descriptions_are_refused(folders):
    with pytest.raises(InputError, match="'transformers' asks about each group of prompts by its description"):
        load(folders["llava"], PromptSet(("a",), ("b",)))


@pytest.mark.skipif(transformers.utils.is_torchvision_available(), reason="torchvision is installed")
def test_a_family_that_needs_torchvision_says_so(folders, tmp_path):
    save_chat_model(tmp_path, "llava")
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Llama4ImageProcessor"}')
    with pytest.raises(MissingDependencyError, match=r"needs the Python package torchvision.*pip install torchvision"):
        load(tmp_path)
