"""The package's own model scores like any other: once embedded, batch by batch, with errors in one line."""

import hashlib
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from small_embedded import WORDS, save_small_embedded, small_embedded

from vlmsafe import resume, train
from vlmsafe.doctor import examine
from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.errors import InputError
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.signals.gate import Gate, OpenGate
from vlmsafe.signals.prompts import PromptSet, load_prompts
from vlmsafe.signals.scorers.embedded import SHIPPED, revision_of, trained_in
from vlmsafe.signals.scorers.embedded.network import Embedding, load
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.wrapper import SemanticSignals

PROMPTS = PromptSet(["the car drives safely", "a clear road"], ["about to hit", "the car leaves the lane", "danger"])
STRANGE = PromptSet(["the purple car drives safely"], ["danger, lorries and a purple road"])
SMALL = {"env": "speeding", "total_steps": 708, "steps_per_epoch": 354, "quiet": True, "learner": {"update_iters": 2}}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A model of a few words and random weights, as a file."""
    return save_small_embedded(tmp_path_factory.mktemp("embedded") / "small.safetensors")


def noise(*size: int, count: int = 3) -> np.ndarray:
    """Moments of two frames."""
    return np.random.default_rng(0).integers(0, 256, (count, *size, 6), dtype=np.uint8)


def scorer_of(weights: Path, prompts: PromptSet = PROMPTS, **options) -> EmbeddedScorer:
    return EmbeddedScorer.load(str(weights), prompts, **{"device": "cpu", **options})


# Similarities


@pytest.mark.parametrize("size", [(64, 64), (100, 37), (180, 320)])
def test_similarities_are_the_cosines_of_the_models_embeddings(weights, size):
    frames, scorer = noise(*size), scorer_of(weights)
    model = load(weights)
    tokens = torch.zeros((5, 5), dtype=torch.int64)
    for row, prompt in enumerate(PROMPTS.texts):
        for column, word in enumerate(prompt.split()):
            tokens[row, column] = 1 + WORDS.index(word)
    with torch.no_grad():
        expected = model.image(torch.from_numpy(frames)) @ model.text(tokens).T
    similarities = scorer.score(frames)
    assert similarities.dtype == np.float32
    np.testing.assert_allclose(similarities, expected.numpy(), rtol=0, atol=1e-5)
    assert np.abs(similarities).max() <= 1.0
    assert similarities.std(axis=0).min() > 1e-4, "frames differ"
    assert similarities.std(axis=1).min() > 1e-4, "prompts differ"


def test_groups_and_columns_follow_the_prompts(weights):
    frames, scorer = noise(40, 50), scorer_of(weights)
    swapped = scorer_of(weights, PromptSet(PROMPTS.negative, PROMPTS.positive))
    assert (scorer.groups, swapped.groups) == ((2, 3), (3, 2))
    there = scorer.score(frames)
    np.testing.assert_allclose(swapped.score(frames), np.hstack([there[:, 2:], there[:, :2]]), atol=1e-6)


def test_splitting_into_batches_changes_nothing(weights):
    frames = noise(48, 64, count=7)
    whole = scorer_of(weights).score(frames)
    for batch in (1, 2, 7):
        scorer = scorer_of(weights, batch=batch)
        np.testing.assert_allclose(scorer.score(frames), whole, rtol=0, atol=1e-6)
    assert scorer.score(frames[:0]).shape == (0, 5)


def test_frames_of_changing_sizes_and_layouts_are_scored_alike(weights):
    scorer, small, large = scorer_of(weights), noise(40, 40), noise(50, 60)
    first = scorer.score(small)
    np.testing.assert_array_equal(scorer.score(large), scorer_of(weights).score(large))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of read-only arrays
        frozen = small.copy()
        frozen.flags.writeable = False
        for other in (frozen, np.asfortranarray(small), small[:, :, ::-1].copy()[:, :, ::-1]):
            np.testing.assert_array_equal(scorer.score(other), first)


def test_prompts_are_embedded_once(weights, monkeypatch):
    ran, text = [], Embedding.text
    monkeypatch.setattr(Embedding, "text", lambda *arguments: (ran.append(1), text(*arguments))[1])
    scorer = scorer_of(weights, batch=2)
    scorer.score(noise(32, 32, count=5))
    assert len(ran) == 1


def test_bfloat16_is_close_to_float32(weights):
    frames = noise(64, 64, count=8)
    exact, half = scorer_of(weights).score(frames), scorer_of(weights, precision="bfloat16").score(frames)
    assert half.dtype == np.float32
    assert 0 < np.abs(half - exact).max() < 3e-2
    assert np.abs(half).max() <= 1.0


@needs_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bfloat16", 3e-2)])
def test_similarities_on_a_gpu_equal_those_on_the_cpu(weights, precision, tolerance):
    frames = noise(100, 37, count=11)
    scorer = scorer_of(weights, device="cuda", precision=precision, batch=4)
    np.testing.assert_allclose(scorer.score(frames), scorer_of(weights).score(frames), rtol=0, atol=tolerance)


def test_description_names_model_revision_device_precision_sizes_and_unknown_words(weights):
    model = load(weights)
    assert scorer_of(weights, STRANGE, precision="bfloat16").describe() == {
        "model": str(weights),
        "revision": hashlib.sha256(weights.read_bytes()).hexdigest()[:12],
        "device": "cpu",
        "precision": "bfloat16",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "image_size": model.architecture.size,
        "frames": 2,
        "unknown_words": ["purple", "lorries"],
    }


# Words


def test_words_the_model_does_not_know_are_left_out_and_named_once(weights):
    scorer = scorer_of(weights, STRANGE)
    assert [note.rpartition(": ")[2] for note in scorer.notes()] == ["purple, lorries"]
    plain = scorer_of(weights, PromptSet(["the car drives safely"], ["danger and a road"]))
    assert plain.notes() == []
    np.testing.assert_array_equal(scorer.score(noise(40, 40)), plain.score(noise(40, 40)))


def test_a_run_says_once_which_words_it_leaves_out_and_records_them(weights, tmp_path, capsys):
    prompts = tmp_path / "mine.yaml"
    prompts.write_text("positive: [the purple car drives safely]\nnegative: [danger]\n")
    signal = {"scorer": f"embedded:{weights}", "prompts": str(prompts), "every": 4}
    run = train(**{**SMALL, "quiet": False}, method="vlm-ppo-lag", run_dir=str(tmp_path / "run"), signal=signal)
    assert capsys.readouterr().err.count("leaves them out: purple") == 1
    assert run.events()[0]["scorer"]["unknown_words"] == ["purple"]


def test_an_environment_it_was_not_trained_on_is_named(weights):
    scorer = scorer_of(weights)
    assert scorer.notes("metadrive-easy") == scorer.notes() == []
    assert len(scorer.notes("safety-gymnasium:SafetyRacecarFormulaOne1-v0")) == 1
    assert [note.partition(";")[0] for note in scorer.notes("gym:my:Own-v0")] == [
        "the scorer 'embedded' was not trained on frames of 'gym:my:Own-v0'"
    ]


def test_a_world_that_has_changed_since_it_was_trained_is_named(weights):
    scorer = EmbeddedScorer(load(weights), PROMPTS, device="cpu", worlds={"bullet-car-reach": 1, "speeding": 1})
    assert [note.partition(", another world")[0] for note in scorer.notes("bullet-car-reach")] == [
        "the scorer 'embedded' was trained and measured in version 1 of bullet-car-reach, and this is version 2"
    ]
    for same in ("bullet-car-reach:four-steps", "bullet-car-reach:fork", "speeding", "metadrive-easy", None):
        assert scorer.notes(same) == []


def test_the_shipped_model_knows_in_which_worlds_it_was_trained(tmp_path):
    assert trained_in(SHIPPED) == {name: spec.version for name, spec in ENVS.items()}
    assert all(not scorer_of("", load_prompts(str(spec.prompts))).notes(name) for name, spec in ENVS.items())
    shutil.copy(SHIPPED, tmp_path)
    assert trained_in(tmp_path / SHIPPED.name) == {}


def test_the_wrapper_warns_of_words_it_leaves_out(weights):
    with pytest.warns(UserWarning, match="leaves them out: purple, lorries"):
        SemanticSignals(env_spec("speeding").make(), f"embedded:{weights}", STRANGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SemanticSignals(env_spec("speeding").make(), f"embedded:{weights}", PROMPTS)


def test_prompts_it_cannot_read_leave_no_run(weights, tmp_path):
    prompts = tmp_path / "mine.yaml"
    prompts.write_text("positive: [an elephant]\nnegative: [danger]\n")
    signal = {"scorer": f"embedded:{weights}", "prompts": str(prompts)}
    with pytest.raises(InputError, match="the prompt 'an elephant' has no word"):
        train(**SMALL, method="vlm-ppo-lag", run_dir=str(tmp_path / "run"), signal=signal)
    assert not (tmp_path / "run").exists()


# Wiring


def test_a_run_with_it_is_calibrated_recorded_in_full_and_resumes_exactly(weights, tmp_path, monkeypatch):
    monkeypatch.chdir(weights.parent)
    prompts = tmp_path / "mine.yaml"
    prompts.write_text("positive: [a clear road]\nnegative: [danger]\n")
    calibration = {"frames": 40}
    signal = {"scorer": f"embedded:{weights.name}", "prompts": str(prompts), "every": 4, "calibration": calibration}
    whole, cut = (
        train(**SMALL, method="vlm-ppo-lag-conf", num_envs=2, run_dir=str(tmp_path / name), signal=signal)
        for name in ("whole", "cut")
    )
    assert whole.config.signal.scorer == f"embedded:{weights}"
    settings = (whole.path / "config.yaml").read_text()
    assert "gate: calibrated" in settings
    assert "auto" not in settings.partition("signal:")[2].partition("device:")[0]
    path_of(cut.checkpoints, 2).unlink()
    monkeypatch.chdir(tmp_path)
    resume(cut.path, quiet=True)
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (whole.path / record).read_bytes() == (cut.path / record).read_bytes()
    assert all(row["bonus"] > 0.0 for row in whole.rows("epochs"))
    assert [event["event"] for event in cut.events()].count("calibrated") == 1


def test_the_wrappers_gate_is_open_until_it_is_calibrated(weights):
    env = SemanticSignals(env_spec("speeding").make(), f"embedded:{weights}", PROMPTS)
    assert env.gate == OpenGate()
    assert env.calibrate(frames=10).gate == env.gate != Gate()
    explicit = SemanticSignals(env_spec("speeding").make(), f"embedded:{weights}", PROMPTS, "prior-symmetric")
    assert explicit.gate == Gate()
    assert SemanticSignals(env_spec("speeding").make(), "oracle").gate == Gate()
    as_object = SemanticSignals(env_spec("speeding").make(), scorer_of(weights))
    assert as_object.gate == OpenGate()


@pytest.mark.parametrize(("text", "argument"), [("embedded", ""), ("embedded:", ""), ("embedded:a/b.st", "a/b.st")])
def test_its_name_takes_a_file_or_nothing(text, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = parse_scorer(text)
    assert (name.kind.name, name.argument) == ("embedded", argument)
    assert str(name.absolute) == (f"embedded:{tmp_path / argument}" if argument else "embedded")


def test_compiling_is_refused(weights):
    with pytest.raises(InputError, match="compile is for the scorer 'clip'; drop it for 'embedded'"):
        make_scorer(f"embedded:{weights}", PROMPTS, compile=True)


def test_importing_needs_no_library_of_models():
    absent = ("transformers", "huggingface_hub", "torchvision", "gymnasium", "polars", "metadrive")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import vlmsafe.signals.scorers.embedded.scorer"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600.0)


# Errors


def one_line(scorer: str) -> str:
    with pytest.raises(InputError) as caught:
        make_scorer(scorer, PROMPTS, device="cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    missing = tmp_path / "nothing.safetensors"
    assert f"there is no file {missing}" in one_line(f"embedded:{missing}")


def test_a_file_of_something_else_is_an_error(tmp_path, weights):
    text, other, cut = (tmp_path / name for name in ("text", "other.safetensors", "cut.safetensors"))
    text.write_text("hello")
    save_file({"weight": np.zeros(3, np.float32)}, other)
    cut.write_bytes(weights.read_bytes()[:-100])
    for path in (tmp_path, text, other, cut):
        assert str(path) in one_line(f"embedded:{path}")


def test_weights_that_do_not_fit_their_description_are_an_error(tmp_path, weights):
    with safe_open(weights, framework="np") as file:
        metadata = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    description = json.loads(metadata["description"])
    path = tmp_path / "damaged.safetensors"
    for damage in (
        {"description": json.dumps({**description, "words": description["words"][1:]})},
        {"description": json.dumps({"words": []})},
        {"description": "{"},
    ):
        save_file(arrays, path, metadata={**metadata, **damage})
        assert f"the model in {path} is damaged: " in one_line(f"embedded:{path}")


@pytest.mark.parametrize(
    ("frames", "came"),
    [
        (np.zeros((2, 32, 32, 6), np.float32), "float32 [2, 32, 32, 6]"),
        (np.zeros((2, 32, 32, 3), np.uint8), "uint8 [2, 32, 32, 3]"),
        (np.zeros((32, 32, 6), np.uint8), "uint8 [32, 32, 6]"),
        (np.zeros((2, 3, 32, 32), np.uint8), "uint8 [2, 3, 32, 32]"),
        ([[1]], "list"),
        (np.zeros((2, 0, 32, 6), np.uint8), "no pixels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_frames_of_a_wrong_type_or_shape_are_an_error(weights, frames, came):
    with pytest.raises(InputError) as caught:
        scorer_of(weights).score(frames)
    assert came in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cuda:99"}, "device 'cuda:99' does not exist"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"batch": 0}, "at least one frame"),
    ],
    ids=str,
)
def test_wrong_option_is_an_error(weights, options, named):
    with pytest.raises(InputError, match=named):
        scorer_of(weights, **options)


def test_lack_of_memory_is_an_error_that_names_the_batch(monkeypatch):
    def fail(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    scorer = EmbeddedScorer(small_embedded(), PROMPTS, device="cpu", batch=7)
    monkeypatch.setattr(Embedding, "image", fail)
    with pytest.raises(InputError, match="does not hold 7 frames at a time; lower the batch"):
        scorer.score(noise(32, 32))


# The shipped weights


def test_the_shipped_model_is_what_the_name_alone_gives():
    scorer = make_scorer("embedded", load_prompts("metadrive"), device="cpu")
    description = scorer.describe()
    assert (description["model"], description["revision"]) == ("embedded", revision_of(SHIPPED))
    similarities = scorer.score(noise(180, 320))
    assert similarities.shape == (3, 8)
    assert np.abs(similarities).max() <= 1.0


@pytest.mark.parametrize("name", sorted({spec.prompts for spec in ENVS.values() if spec.prompts}))
def test_the_shipped_model_knows_every_word_of_the_environments_own_prompts(name):
    assert make_scorer("embedded", load_prompts(name), device="cpu").describe()["unknown_words"] == []


def test_a_method_with_a_signal_runs_as_it_is_without_a_download(tmp_path):
    signal = {"every": 4, "calibration": {"frames": 40}}
    run = train(**SMALL, method="vlm-ppo-lag-conf", run_dir=str(tmp_path / "run"), signal=signal)
    assert run.config.signal.scorer == "embedded"
    assert run.status() == "finished"


def test_the_doctor_shows_size_parameters_and_revision_of_the_shipped_model():
    finding = next(finding for finding in examine() if finding.name == "embedded model")
    parameters = make_scorer("embedded", PROMPTS, device="cpu").describe()["parameters"]
    megabytes = SHIPPED.stat().st_size / 1e6
    assert finding.version == f"{megabytes:.1f} MB, {parameters:,} parameters, revision {revision_of(SHIPPED)}"
