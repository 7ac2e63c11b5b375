"""The scorer transformers:<model>: what is known of a model before it is loaded, where it comes from, bad input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_families import save_chat_model
from small_hub import COMMIT, hub
from small_models import PROMPTS, save_small_clip, save_small_siglip2

from vlmsafe.config.settings import SignalConfig, resolved_signal
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.checkpoints.names import family_of, split_revision
from vlmsafe.signals.scorers.make import look_up_scorer, make_scorer
from vlmsafe.signals.scorers.registry import KINDS, parse_scorer
from vlmsafe.signals.service.engine import Engine
from vlmsafe.signals.service.spec import ModelSpec

SMALL = PromptSet(*PROMPTS, "safe driving", "danger")


@pytest.fixture(scope="module")
def dual(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dual")
    save_small_siglip2(folder)
    return folder


@pytest.fixture(scope="module")
def chat(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    save_chat_model(folder, "llava")
    return folder


def frames(count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 60, 90, 3), np.uint8)


# What is known before a model is loaded


def test_a_configuration_says_what_the_entry_does_not(dual, chat):
    cosine, answer = (parse_scorer(f"transformers:{folder}").kind for folder in (dual, chat))
    assert (cosine.compares, cosine.gate, cosine.precision, cosine.batch) == (
        "prompts", "prior-symmetric", "float32", 64,
    )  # fmt: skip
    assert (answer.compares, answer.gate, answer.precision, answer.batch) == (
        "descriptions", "probability", "bfloat16", 16,
    )  # fmt: skip
    assert (cosine.frames, answer.frames) == (1, "any")
    assert cosine.rules == KINDS["clip"].rules
    assert answer.rules == KINDS["qwen2-vl"].rules


def test_a_run_gets_the_gate_precision_and_batch_of_its_model(dual, chat):
    spec = env_spec("braking")
    for folder, gate, precision in ((dual, "prior-symmetric", "float32"), (chat, "probability", "bfloat16")):
        given = SignalConfig(scorer=f"transformers:{folder}", prompts="metadrive", gate="auto")
        signal = resolved_signal(given, spec)
        assert (signal.gate, signal.precision) == (gate, precision)
        assert signal.scorer == f"transformers:{folder}"


def test_a_model_that_is_not_here_is_settled_only_where_something_is_left_open(monkeypatch):
    fetched = []
    monkeypatch.setattr("vlmsafe.signals.scorers.checkpoints.load.fetch", lambda model: fetched.append(model))
    spec = env_spec("braking")
    whole = SignalConfig(scorer="transformers:no/model", prompts="metadrive", precision="float32", batch=8, gate="off")
    assert resolved_signal(whole, spec).scorer == "transformers:no/model"
    assert not fetched
    resolved_signal(SignalConfig(scorer="transformers:no/model", prompts="metadrive"), spec)
    assert fetched == ["no/model"]


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (["Siglip2Model"], "dual"),
        (["BlipForImageTextRetrieval"], "dual"),
        (["Qwen3VLForConditionalGeneration"], "chat"),
        (["Phi3ForCausalLM"], "chat"),
        ([], None),
        (None, None),
        ("CLIPModel", None),
    ],
)
def test_the_architecture_names_the_family(names, family):
    assert family_of({"architectures": names}) == family


def test_a_revision_follows_the_last_at(tmp_path):
    assert split_revision("org/model") == ("org/model", None)
    assert split_revision(f"org/model@{COMMIT}") == ("org/model", COMMIT)
    odd = tmp_path / "a@b"
    odd.mkdir()
    assert split_revision(str(odd)) == (str(odd), None)
    with pytest.raises(InputError, match="is a folder, which has no revisions; drop '@main'"):
        split_revision(f"{tmp_path}@main")
    for text in ("@main", "org/model@"):
        with pytest.raises(InputError, match="empty model or revision"):
            split_revision(text)


def test_large_dual_encoders_are_calibrated_on_ten_times_the_frames(tmp_path):
    save_small_clip(tmp_path / "clip-vit-large-patch14")
    name = parse_scorer(f"transformers:{tmp_path / 'clip-vit-large-patch14'}")
    assert name.calibration_frames == 5000


# Sharing


@pytest.mark.parametrize("family", ["dual", "chat"])
def test_a_service_holds_the_model_once_for_several_prompts(dual, chat, family):
    folder = dual if family == "dual" else chat
    other = PromptSet(SMALL.negative[:1], SMALL.positive, "danger", "safe driving")
    own = make_scorer(f"transformers:{folder}", SMALL, device="cpu", precision="float32")
    engine = Engine()
    try:
        spec = ModelSpec(f"transformers:{folder}", "cpu", "float32", batch=own.batch if family == "dual" else 16)
        first, second = engine.open(spec, SMALL), engine.open(spec, other)
        assert first.scorer._model is second.scorer._model
        found = [engine.submit(one.key, frames()).result(60.0) for one in (first, second)]
    finally:
        engine.stop()
    np.testing.assert_allclose(found[0], own.score(frames()), atol=1e-5)
    np.testing.assert_allclose(found[1], own.with_prompts(other).score(frames()), atol=1e-5)


# Where a model comes from

SESSION = """
import json, sys
import numpy as np
from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.make import look_up_scorer, make_scorer
from vlmsafe.signals.scorers.registry import parse_scorer

frames = np.random.default_rng(0).integers(0, 256, (3, 60, 90, 3), np.uint8)
prompts = PromptSet(("a clear road ahead",), ("about to hit something",))
for step in sys.argv[1:]:
    verb, _, name = step.partition(":")
    try:
        settled = parse_scorer(f"transformers:{name}").kind.settled
        if verb == "look":
            found = {"rules": look_up_scorer(f"transformers:{name}", prompts)[1]}
        else:
            scorer = make_scorer(f"transformers:{name}", prompts, device="cpu")
            found = {"scores": scorer.score(frames).tolist(), **scorer.describe()}
    except InputError as error:
        found = {"error": str(error)}
    print(json.dumps({"settled": settled, **found}), flush=True)
"""


def session(home: Path, endpoint: str, *steps: str) -> tuple[list[dict[str, Any]], str]:
    """Look up or load models in a fresh process; its answers, and what it wrote to the terminal."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, *steps], env=environment, capture_output=True, text=True, timeout=600.0
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.slow
def test_a_revision_comes_from_the_hub_once_and_then_from_the_cache(dual, tmp_path):
    with hub(dual, "tiny/model") as (endpoint, asked):
        (looked, fetched, wrong, nothing), said = session(
            tmp_path, endpoint, "look:tiny/model@main", "load:tiny/model@main", "load:tiny/model@v9", "load:tiny/no"
        )
        weights = [path for path in asked if path.endswith("/model.safetensors")]
    assert looked == {"settled": False, "rules": ["decoupled", "coupled", "clg"]}
    assert fetched["settled"], "looking it up has fetched the configuration"
    assert fetched["revision"] == COMMIT
    assert weights
    assert said == "downloading the model 'tiny/model@main' from the Hugging Face hub\n"  # no warning, no progress bar
    assert wrong["error"] == "the model 'tiny/model' has no revision 'v9' on the Hugging Face hub"
    assert "'tiny/no' is neither a folder nor on the Hugging Face hub" in nothing["error"]
    prompts = PromptSet(("a clear road ahead",), ("about to hit something",))
    expected = make_scorer(f"transformers:{dual}", prompts, device="cpu").score(frames())
    np.testing.assert_allclose(fetched["scores"], expected, atol=1e-5)

    gone = "http://127.0.0.1:9"  # nobody answers
    (named, plain, absent), said = session(
        tmp_path, gone, f"load:tiny/model@{COMMIT}", "load:tiny/model", "load:tiny/model@v9"
    )
    assert (named["revision"], plain["revision"]) == (COMMIT, COMMIT)
    assert named["scores"] == plain["scores"] == fetched["scores"]
    assert said == ""
    assert absent["error"] == (
        "the model 'tiny/model' is not in the Hugging Face cache with the revision 'v9', and the hub cannot be "
        "reached; get it on a machine with internet with: hf download tiny/model --revision v9, or pass "
        "transformers:<folder>"
    )


# Bad input


def without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def config(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def open_clip_alone(folder: Path) -> None:
    (folder / "config.json").rename(folder / "open_clip_config.json")


@pytest.mark.parametrize(
    ("family", "damage", "message"),
    [
        ("dual", without("config.json"), "its configuration: there is no config.json"),
        ("dual", without("model.safetensors"), "its weights: there are none"),
        ("chat", without("model.safetensors"), "its weights: there are none"),
        ("dual", without("tokenizer.json"), "its tokenizer: "),
        ("chat", without("tokenizer.json"), "its tokenizer: "),
        ("dual", without("preprocessor_config.json"), "its preprocessor: "),
        ("dual", config(architectures=None), "config.json names no architecture"),
        ("dual", open_clip_alone, "holds a model of open_clip alone; expected one exported for transformers"),
        (
            "chat",
            config(architectures=["Qwen2ForCausalLM"], model_type="qwen2"),
            r"\(Qwen2ForCausalLM\) reads no images; expected a dual encoder, such as CLIP or SigLIP 2, or a chat model",
        ),
        (
            "dual",
            config(architectures=["BertModel"], model_type="bert"),
            r"\(BertModel\) embeds no images and texts; expected a dual encoder",
        ),
        (
            "chat",
            config(architectures=["NewForConditionalGeneration"], model_type="new_vl"),
            "is of the kind 'new_vl', which transformers [0-9.]+ does not know; a newer version may know it",
        ),
        ("chat", config(is_encoder_decoder=True), "has an encoder for texts of its own"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_clear_line_and_nothing_is_written(
    dual, chat, tmp_path, family, damage, message
):
    folder = tmp_path / "model"
    shutil.copytree(dual if family == "dual" else chat, folder)
    damage(folder)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for call in (lambda name: make_scorer(name, SMALL, device="cpu"), lambda name: look_up_scorer(name, SMALL)):
        with pytest.raises(InputError, match=message) as caught:
            call(f"transformers:{folder}")
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_damaged_configuration_is_unknown_until_it_is_read(dual, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(dual, folder)
    (folder / "config.json").write_text("{")
    name = parse_scorer(f"transformers:{folder}")
    assert not name.kind.settled
    with pytest.raises(InputError, match="its configuration: "):
        name.settle()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "at least one frame, got 0"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"compile": True}, "compile is for the scorer 'clip'"),
    ],
)
def test_settings_that_cannot_be_used_are_named(dual, options, message):
    with pytest.raises(InputError, match=message):
        make_scorer(f"transformers:{dual}", SMALL, **{"device": "cpu", **options})
