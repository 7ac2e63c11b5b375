"""Any dual encoder: its cosines are those of transformers' own model, and of the fast path where there is one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_families import DUAL_FAMILIES, save_dual_encoder
from small_models import MAX_TOKENS, PROMPTS, save_small_clip, save_small_siglip
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import check_scorer, score_checked
from vlmsafe.signals.scorers.clip import ClipScorer
from vlmsafe.signals.scorers.make import look_up_scorer, make_scorer

TOLERANCE = 1e-4
"""Between the plain path and the fast one, and between either and the model called by hand, in float32."""
SIZES = [(60, 90), (100, 37)]
SMALL = PromptSet(*PROMPTS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dual")
    for family in DUAL_FAMILIES:
        save_dual_encoder(root / family, family)
    return {family: root / family for family in DUAL_FAMILIES}


def noise(*size: int, count: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def load(folder: Path, prompts: PromptSet = SMALL, **options: Any) -> Any:
    return make_scorer(f"transformers:{folder}", prompts, device="cpu", **options)


def by_hand(folder: Path, family: str, frames: np.ndarray) -> np.ndarray:
    """The model as its documentation calls it, one frame at a time, on texts and images together."""
    kind = transformers.BlipForImageTextRetrieval if family == "blip" else transformers.AutoModel
    model = kind.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    if family.startswith("siglip"):  # trained on lower case and full length
        texts = [prompt.lower() for prompt in SMALL.texts]
        tokens = {
            "input_ids": tokenizer(texts, padding="max_length", max_length=MAX_TOKENS, padding_side="right").input_ids
        }
        tokens["input_ids"] = torch.tensor(tokens["input_ids"])
    else:
        tokens = dict(tokenizer(list(SMALL.texts), padding=True, return_tensors="pt"))
        tokens.pop("token_type_ids", None)
    rows = []
    with torch.no_grad():
        for frame in frames:
            pixels = processor([frame], input_data_format="channels_last", return_tensors="pt")
            if family == "blip":
                rows.append(model(**tokens, **pixels, use_itm_head=False).itm_score)
            else:
                output = model(**tokens, **pixels)
                rows.append(output.image_embeds @ output.text_embeds.T)
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("family", DUAL_FAMILIES)
def test_similarities_equal_those_of_the_model_called_by_hand(folders, family):
    scorer = load(folders[family], batch=2)
    check_scorer(scorer)
    for size in SIZES:
        frames = noise(*size)
        got = score_checked(scorer, frames)
        expected = by_hand(folders[family], family, frames)
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
        assert expected.std(axis=0).mean() > 5 * TOLERANCE  # frames and prompts are told apart
        assert expected.std(axis=1).mean() > 5 * TOLERANCE


@pytest.mark.parametrize("save", [save_small_clip, save_small_siglip])
def test_the_fast_path_and_the_plain_path_agree(tmp_path, save):
    save(tmp_path, image_size=224, patch_size=32)  # rounding of pixels matters more in smaller images
    fast, plain = ClipScorer.load(str(tmp_path), SMALL, device="cpu"), load(tmp_path)
    for size in [*SIZES, (256, 256)]:
        frames = noise(*size, seed=1)
        np.testing.assert_allclose(plain.score(frames), fast.score(frames), rtol=0, atol=TOLERANCE)


def test_native_resolution_keeps_the_proportions_of_frames(folders):
    """Of a flat frame, one of fixed resolution sees the same square whatever its shape; native resolution does not."""
    spread = {}
    for family in ("siglip", "siglip2"):
        scorer = load(folders[family])
        found = [scorer.score(np.full((1, *size, 3), 200, np.uint8)) for size in ((64, 64), (32, 128))]
        spread[family] = float(np.abs(found[0] - found[1]).max())
    assert spread["siglip"] < 1e-6 < 1e-4 < spread["siglip2"]


def test_other_prompts_and_batches_share_the_model(folders):
    scorer, frames = load(folders["siglip2"]), noise(60, 90)
    other = PromptSet(SMALL.negative[:1], SMALL.positive)
    shared = scorer.with_prompts(other)
    assert shared._model is scorer._model
    assert (shared.groups, scorer.groups) == ((1, 2), (2, 3))
    expected = scorer.score(frames)[:, [2, 0, 1]]
    np.testing.assert_allclose(shared.score(frames), expected, atol=1e-5)
    np.testing.assert_allclose(scorer.with_batch(3).score(frames), scorer.score(frames), atol=1e-5)


def test_it_says_what_was_used(folders):
    found = load(folders["siglip2"]).describe()
    expected = {"model": str(folders["siglip2"]), "revision": None, "architecture": "Siglip2Model", "device": "cpu"}
    assert expected.items() <= found.items()
    assert found["precision"] == "float32"
    assert found["parameters"] > 1000


def test_bfloat16_is_close(folders):
    half, exact = (load(folders["clip"], precision=one).score(noise(60, 90)) for one in ("bfloat16", "float32"))
    np.testing.assert_allclose(half, exact, atol=0.03)
    assert not np.array_equal(half, exact)


def test_looking_it_up_reads_no_weights_and_refuses_a_prompt_that_is_too_long(folders, monkeypatch):
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", None)
    name = f"transformers:{folders['siglip2']}"
    assert look_up_scorer(name, SMALL) == ("frame", ("decoupled", "coupled", "clg"))
    with pytest.raises(InputError, match="reads at most 48; shorten it"):
        look_up_scorer(name, PromptSet(("a" * 60,), ("b",)))


def test_several_frames_are_refused(folders):
    with pytest.raises(InputError, match="looks at 1 frame at a time, and frames is 2"):
        load(folders["clip"], frames=2)
