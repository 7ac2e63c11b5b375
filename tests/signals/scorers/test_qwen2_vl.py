"""Yes/no probabilities: the formula, batches, and every way in which a model may fail to load."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from small_hub import COMMIT, hub
from small_qwen import save_small_qwen, save_tokenizer

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.qwen2_vl import Qwen2VLScorer

SAFE, DANGER = "safe driving conditions", "driving danger or imminent collision"
PROMPTS = PromptSet(("a clear road",), ("a crash",), SAFE, DANGER)
SIZES = [(60, 90), (90, 60), (84, 84), (300, 200), (20, 110)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen2-vl")
    save_small_qwen(path)
    return path


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Qwen2VLScorer:
    return load(folder)


def load(folder: Path, prompts: PromptSet = PROMPTS, **options: Any) -> Qwen2VLScorer:
    return Qwen2VLScorer.load(str(folder), prompts, **{"device": "cpu", "precision": "float32", **options})


def frames(count: int, height: int = 60, width: int = 90, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)


def reference(folder: Path, model: Any, frame: np.ndarray, description: str) -> float:
    """One frame, one question, one whole pass of the library's own model; the probabilities added up by hand."""
    return whole_pass(folder, model, [frame], f"Does this image show {description}? Answer yes or no.")


def whole_pass(folder: Path, model: Any, images: list[np.ndarray], question: str) -> float:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.Qwen2VLImageProcessorPil.from_pretrained(folder)
    image = processor(images=[Image.fromarray(one) for one in images], return_tensors="pt")
    pads = ["<|image_pad|>" * (int(grid.prod()) // 4) for grid in image["image_grid_thw"]]
    pictures = "".join(f"<|vision_start|>{own}<|vision_end|>" for own in pads)
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{pictures}{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tokens = tokenizer(text, return_tensors="pt")["input_ids"]
    kinds = (tokens == model.config.image_token_id).int()
    with torch.no_grad():
        logits = model(input_ids=tokens, mm_token_type_ids=kinds, **image).logits[0, -1]
    probabilities = logits.double().softmax(0)
    yes, no = (
        sum(float(probabilities[tokenizer.convert_tokens_to_ids(token)]) for token in words)
        for words in (("yes", "Yes", "Ġyes", "ĠYes"), ("no", "No", "NO", "Ġno"))
    )
    return yes / (yes + no)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_probabilities_equal_those_of_whole_passes(tmp_path, kind):
    model = save_small_qwen(tmp_path, kind)
    scorer = load(tmp_path, batch=2)
    for height, width in SIZES:
        some = frames(3, height, width)
        expected = [[reference(tmp_path, model, frame, text) for text in (SAFE, DANGER)] for frame in some]
        got = scorer.score(some)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, atol=1e-5)
        assert np.ptp(expected, axis=0).min() > 1e-3  # frames and questions are told apart at all
        assert np.abs(np.diff(expected)).max() > 1e-3


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_clip_is_several_images_in_one_prompt_the_oldest_first(tmp_path, kind, count):
    model = save_small_qwen(tmp_path, kind)
    scorer = load(tmp_path, batch=2, frames=count)
    asked = "These images show one scene over time, the oldest first. Do they show {}? Answer yes or no."
    for height, width in SIZES[:3]:
        clips = np.concatenate([frames(3, height, width, seed=age) for age in range(count)], axis=-1)
        singles = [np.split(clip, count, axis=-1) for clip in clips]
        expected = [
            [whole_pass(tmp_path, model, one, asked.format(text)) for text in (SAFE, DANGER)] for one in singles
        ]
        got = scorer.score(clips)
        np.testing.assert_allclose(got, expected, atol=1e-5)
        turned = scorer.score(np.concatenate([np.concatenate(one[::-1], axis=-1)[None] for one in singles]))
        assert np.abs(got - turned).max() > 1e-3, "the order of the frames matters"
    assert scorer.describe()["frames"] == count
    assert scorer.with_prompts(PROMPTS).frames == count
    with pytest.raises(InputError, match=rf"\[N, height, width, {3 * count}\], got uint8 \[1, 60, 90, 3\]"):
        scorer.score(frames(1))


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_batches_do_not_change_results(folder, scorer, batch):
    some = frames(7)
    whole = scorer.score(some)
    np.testing.assert_allclose(load(folder, batch=batch).score(some), whole, atol=1e-5)
    order = np.random.default_rng(1).permutation(7)
    np.testing.assert_allclose(scorer.score(some[order]), whole[order], atol=1e-5)


def test_no_frames_give_no_probabilities(scorer):
    assert scorer.score(frames(0)).shape == (0, 2)


def test_columns_belong_to_the_descriptions(folder):
    some = frames(2)

    def columns(positive: str, negative: str) -> np.ndarray:
        return load(folder, PromptSet(("a",), ("b",), positive, negative)).score(some)

    there, back = columns("a clear road", "a crash"), columns("a crash", "a clear road")
    np.testing.assert_allclose(there, back[:, ::-1], atol=1e-5)
    same, beginning = columns("a crash", "a crash"), columns("a crash", "a crash?")
    np.testing.assert_allclose(same[:, 0], same[:, 1], atol=1e-5)
    np.testing.assert_allclose(same[:, 0], there[:, 1], atol=1e-5)
    np.testing.assert_allclose(beginning[:, 0], same[:, 0], atol=1e-5)


def test_only_single_tokens_count_as_an_answer(scorer):
    description = scorer.describe()
    assert description["yes"] == ["yes", "Yes", " yes", " Yes"]  # YES is three tokens in this tokenizer
    assert description["no"] == ["no", "No", "NO", " no"]


@pytest.mark.parametrize(("words", "missing"), [(("no",), "yes"), (("Yes",), "no")])
def test_tokenizer_without_an_answer_is_refused(tmp_path, words, missing):
    save_small_qwen(tmp_path, words=words)
    with pytest.raises(InputError, match=f"no single token for '{missing}'"):
        load(tmp_path)


def test_description_says_what_was_used(folder, scorer):
    description = scorer.describe()
    assert json.loads(json.dumps(description)) == description
    weights = load_file(folder / "model.safetensors")
    assert description["parameters"] == sum(weight.numel() for weight in weights.values())
    assert description["model"] == str(folder)
    assert description["revision"] is None
    assert (description["device"], description["precision"]) == ("cpu", "float32")
    assert description["questions"] == [f"Does this image show {text}? Answer yes or no." for text in (SAFE, DANGER)]


@pytest.mark.parametrize("precision", ["bfloat16"])
def test_half_precision_is_close(folder, scorer, precision):
    half = load(folder, precision=precision)
    assert half.describe()["precision"] == precision
    got, exact = half.score(frames(4)), scorer.score(frames(4))
    np.testing.assert_allclose(got, exact, atol=0.03)
    assert not np.array_equal(got, exact)


@pytest.mark.parametrize(
    "wrong",
    [
        frames(2).astype(np.float32),
        frames(1)[0],
        frames(2)[..., :1],
        frames(2).transpose(0, 3, 1, 2),
        np.zeros((1, 0, 8, 3), np.uint8),
    ],
)
def test_other_shapes_than_frames_are_refused(scorer, wrong):
    with pytest.raises(InputError, match=r"expected frames as a uint8 array|frames have no pixels"):
        scorer.score(wrong)


def test_running_out_of_memory_says_what_to_lower(folder, monkeypatch):
    def full(*args: Any, **options: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    scorer = load(folder, batch=3)
    monkeypatch.setattr(transformers.Qwen2VLModel, "forward", full)
    with pytest.raises(InputError, match="out of memory on cpu with 3 frames at a time; lower the batch"):
        scorer.score(frames(1))
    monkeypatch.setattr(transformers.PreTrainedModel, "to", full)
    with pytest.raises(InputError, match="does not fit into the memory of cpu; use a smaller model"):
        load(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "at least 1, got 0"),
        ({"precision": "float16"}, "unknown precision 'float16'; did you mean 'bfloat16'"),
        ({"device": "gpu"}, "unknown device 'gpu'; known: auto, cpu"),
        ({"device": "cuda:97"}, "device 'cuda:97' does not exist"),
        ({"prompts": PromptSet(("a",), ("b",), "<|image_pad|>", "a crash")}, "has 2 places for an image, expected one"),
    ],
)
def test_settings_that_cannot_be_used_are_named(folder, options, message):
    with pytest.raises(InputError, match=message) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)


def without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Any:
    def halve(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return halve


def another_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "clip"}))


def lose_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def another_tokenizer(folder: Path) -> None:
    save_tokenizer(folder, ("yes", "no"))  # fewer words: every special token has another number


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("config.json"), "holds no model: there is no config.json in it"),
        (without("model.safetensors"), "cannot load the model in the folder .*: its weights: "),
        (without("preprocessor_config.json"), "cannot load the model in the folder .*: its preprocessor: "),
        (cut("config.json"), "cannot load the model in the folder .*: its configuration: "),
        (cut("model.safetensors"), "cannot load the model in the folder .*: its weights: "),
        (cut("tokenizer.json"), "cannot load the model in the folder .*: its tokenizer: "),
        (another_kind, "is a model of kind 'clip'; the scorer 'qwen2-vl' needs one of qwen2_vl, qwen2_5_vl"),
        (lose_a_weight, "its weights: 1 of them are missing, such as lm_head.weight"),
        (another_tokenizer, "has 0 places for an image, expected one"),
    ],
)
def test_damaged_folder_is_one_clear_line(folder, tmp_path, damage, message):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    damage(copy)
    with pytest.raises(InputError, match=message) as caught:
        load(copy)
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)


SESSION = """
import json, sys
import numpy as np
from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.qwen2_vl import Qwen2VLScorer

frames = np.random.default_rng(0).integers(0, 256, (2, 60, 90, 3), np.uint8)
for name in sys.argv[1:]:
    try:
        prompts = PromptSet(("a",), ("b",), "safe driving conditions", "driving danger or imminent collision")
        scorer = Qwen2VLScorer.load(name, prompts, device="cpu", precision="float32")
    except InputError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    else:
        print(json.dumps({"scores": scorer.score(frames).tolist(), **scorer.describe()}), flush=True)
"""


def session(home: Path, endpoint: str, *names: str) -> tuple[list[dict[str, Any]], str]:
    """Load and score each model in a fresh process; its answers, and whatever it said beside them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, *names], env=environment, capture_output=True, text=True, timeout=600.0
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_model_comes_from_the_hub_once_and_then_from_the_cache(folder, scorer, tmp_path):
    with hub(folder) as (endpoint, asked):
        names = ("tiny/qwen", "tiny/nothing", "a/b/c", "tiny/locked", "tiny/qwen", str(folder))
        (fetched, nothing, no_name, locked, again, local), said = session(tmp_path, endpoint, *names)
    assert fetched["revision"] == COMMIT
    expected = scorer.score(frames(2))
    np.testing.assert_allclose(fetched["scores"], expected, atol=1e-5)
    np.testing.assert_allclose(local["scores"], expected, atol=1e-5)
    assert again == fetched
    assert any(path.endswith("/model.safetensors") for path in asked)
    assert asked[-1].startswith("/api/models/tiny/locked")  # neither the cached model nor the folder asked for more
    assert "'tiny/nothing' is neither a folder nor on the Hugging Face hub" in nothing["error"]
    assert "ask for access to 'tiny/locked'" in locked["error"]
    assert "there is no folder 'a/b/c', and it cannot be the name of a model" in no_name["error"]
    assert said == "downloading the model 'tiny/qwen' from the Hugging Face hub\n"  # no warning, no progress bar


def test_absent_model_without_the_hub_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(InputError) as caught:
        load(Path("nobody/nothing"))
    line = str(caught.value)
    assert line == (
        "the model 'nobody/nothing' is neither a folder nor in the Hugging Face cache, and the hub cannot be reached; "
        "get it on a machine with internet with: hf download nobody/nothing, or pass qwen2-vl:<folder>"
    )
    assert "\n" not in line


def test_loading_leaves_the_libraries_as_talkative_as_they_were(folder):
    from transformers.utils import logging

    logging.set_verbosity_info()
    try:
        load(folder)
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()


def test_model_is_frozen(scorer):
    parameters = list(scorer._model.parameters())
    assert not any(parameter.requires_grad for parameter in parameters)
    assert not scorer._model.training
