"""The similarities are those of the reference implementation, however frames arrive, and errors are one line."""

import http.server
import json
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from small_models import MAX_TOKENS, PROMPTS, save_small_clip, save_small_siglip

from vlmsafe.errors import InputError, MissingDependencyError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.clip import ClipScorer, look_up
from vlmsafe.signals.scorers.images import Preprocessing

SAVE = {"clip": save_small_clip, "siglip": save_small_siglip}
KINDS = list(SAVE)
SMALL = PromptSet(*PROMPTS)
TOLERANCE = 1e-4
COMMIT = "0123456789abcdef0123456789abcdef01234567"
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Models that read 224 x 224 pixels, as most do."""
    root = tmp_path_factory.mktemp("models")
    for kind, save in SAVE.items():
        save(root / kind, image_size=224, patch_size=32)
    return {kind: root / kind for kind in SAVE}


@pytest.fixture
def tiny(tmp_path) -> Path:
    """A CLIP of 32 x 32 pixels to damage."""
    save_small_clip(tmp_path / "tiny")
    return tmp_path / "tiny"


def noise(*size: int, count: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def reference(folder: Path, frames: np.ndarray, prompts: PromptSet = SMALL) -> np.ndarray:
    """What transformers' own model, tokenizer and image processor give, the way its documentation uses them."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(list(frames), input_data_format="channels_last", return_tensors="pt")
    with torch.no_grad():
        if model.config.model_type == "siglip":  # trained on lower case and full length
            texts = [prompt.lower() for prompt in prompts.texts]
            tokens = tokenizer(texts, padding="max_length", max_length=MAX_TOKENS, return_tensors="pt")
            output = model(input_ids=tokens["input_ids"], **pixels)
        else:
            output = model(**tokenizer(list(prompts.texts), padding=True, return_tensors="pt"), **pixels)
        return (output.image_embeds @ output.text_embeds.T).numpy()


def one_line(call, *arguments, kind=InputError, **options) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Similarities


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(256, 256), (360, 480), (480, 360), (100, 37), (64, 64), (224, 224)])
def test_similarities_equal_the_references(folders, kind, size):
    frames = noise(*size)
    expected = reference(folders[kind], frames)
    similarities = ClipScorer.load(str(folders[kind]), SMALL, device="cpu").score(frames)
    assert similarities.dtype == np.float32
    np.testing.assert_allclose(similarities, expected, rtol=0, atol=TOLERANCE)
    assert expected.std(axis=0).mean() > 20 * TOLERANCE  # they do differ between frames, and between prompts
    assert expected.std(axis=1).mean() > 20 * TOLERANCE


@pytest.mark.parametrize("name", ["speeding", "metadrive-easy"])
def test_similarities_of_rendered_frames_equal_the_references(folders, name):
    if name.startswith("metadrive"):
        pytest.importorskip("metadrive")
    from vlmsafe.envs.registry import env_spec

    env = env_spec(name).make()
    try:
        rendered = []
        for scenario in (1, 2):
            env.reset(seed=scenario)
            rendered.append(env.frame())
            for _ in range(10):
                env.step(env.action_space.high)
            rendered.append(env.frame())
    finally:
        env.close()
    frames = np.stack(rendered)
    for folder in folders.values():
        similarities = ClipScorer.load(str(folder), SMALL, device="cpu").score(frames)
        np.testing.assert_allclose(similarities, reference(folder, frames), rtol=0, atol=TOLERANCE)
        assert similarities.std(axis=0).mean() > 2 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_groups_and_columns_follow_the_prompts(folders, kind):
    scorer = ClipScorer.load(str(folders[kind]), SMALL, device="cpu")
    assert scorer.groups == (2, 3)
    frames = noise(40, 50)
    swapped = ClipScorer.load(str(folders[kind]), PromptSet(SMALL.negative, SMALL.positive), device="cpu")
    assert swapped.groups == (3, 2)
    there, here = scorer.score(frames), swapped.score(frames)
    np.testing.assert_allclose(here, np.hstack([there[:, 2:], there[:, :2]]), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_lie_between_minus_one_and_one(tmp_path, kind):
    """Also where the embeddings are parallel, which rounding could take beyond one."""
    model = SAVE[kind](tmp_path)
    frames = noise(32, 32, count=20)
    pixels = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(
        list(frames), input_data_format="channels_last", return_tensors="pt"
    )
    with torch.no_grad():
        same = model.get_image_features(**pixels).pooler_output
    default = Preprocessing.clip(32) if kind == "clip" else Preprocessing.siglip(32)
    scorer = ClipScorer(model, torch.cat([same, -same]), (20, 20), default, device="cpu")
    similarities = scorer.score(frames)
    assert np.abs(similarities).max() <= 1.0
    np.testing.assert_allclose(np.diag(similarities), 1.0, atol=1e-5)
    np.testing.assert_allclose(np.diag(similarities[:, 20:]), -1.0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_splitting_into_batches_changes_nothing(folders, kind):
    frames = noise(48, 64, count=7)
    whole = ClipScorer.load(str(folders[kind]), SMALL, device="cpu", batch=64).score(frames)
    for batch in (1, 2, 7):
        scorer = ClipScorer.load(str(folders[kind]), SMALL, device="cpu", batch=batch)
        np.testing.assert_allclose(scorer.score(frames), whole, rtol=0, atol=1e-6)
    assert scorer.score(frames[:0]).shape == (0, 5)


def test_frames_of_changing_sizes_and_layouts_are_scored_alike(folders):
    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu")
    small, large = noise(40, 40), noise(50, 60)
    first = scorer.score(small)
    fresh = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu").score(large)
    np.testing.assert_array_equal(scorer.score(large), fresh)
    np.testing.assert_array_equal(scorer.score(small), first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of read-only arrays
        frozen = small.copy()
        frozen.flags.writeable = False
        np.testing.assert_array_equal(scorer.score(frozen), first)
        np.testing.assert_array_equal(scorer.score(np.asfortranarray(small)), first)
        np.testing.assert_array_equal(scorer.score(small[:, :, ::-1].copy()[:, :, ::-1]), first)


def test_prompts_are_embedded_once(folders, monkeypatch):
    ran = []
    forward = transformers.CLIPTextModel.forward
    monkeypatch.setattr(transformers.CLIPTextModel, "forward", lambda *a, **k: (ran.append(1), forward(*a, **k))[1])
    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu", batch=2)
    assert len(ran) == 1
    scorer.score(noise(32, 32, count=5))
    assert len(ran) == 1


def test_the_model_is_frozen_and_its_text_tower_is_dropped(folders):
    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu")
    modules = list(scorer._tower.modules())
    assert not any(isinstance(module, transformers.CLIPTextModel) for module in modules)
    assert any(isinstance(module, transformers.CLIPVisionModel) for module in modules)
    assert not any(module.training for module in modules)
    assert not any(parameter.requires_grad for parameter in scorer._tower.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_close_to_float32(folders, kind):
    frames = noise(256, 256)
    exact = ClipScorer.load(str(folders[kind]), SMALL, device="cpu").score(frames)
    half = ClipScorer.load(str(folders[kind]), SMALL, device="cpu", precision="bfloat16")
    assert next(half._tower.vision.parameters()).dtype == torch.bfloat16
    similarities = half.score(frames)
    assert similarities.dtype == np.float32
    assert 0 < np.abs(similarities - exact).max() < 2e-2


def test_compiled_scoring_equals_the_other_and_fills_batches(folders, monkeypatch):
    """The compiler itself is torch's; `eager` leaves out only its code generation, which takes a minute."""
    shapes = []
    compile = torch.compile

    def watched(module, **options):
        compiled = compile(module, backend="eager", **options)
        return lambda frames: (shapes.append(tuple(frames.shape)), compiled(frames))[1]

    frames = noise(40, 50, count=5)
    expected = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu", batch=2).score(frames)
    monkeypatch.setattr(torch, "compile", watched)
    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu", batch=2, compile=True)
    np.testing.assert_allclose(scorer.score(frames), expected, rtol=0, atol=1e-6)
    assert shapes == [(2, 40, 50, 3)] * (1 + 3)  # the first to warm up


def test_failing_compiler_is_an_error(folders, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("\nno compiler\nat all")

    monkeypatch.setattr(torch, "compile", lambda module, **_: fail)
    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu", compile=True)
    assert "cannot compile the model (no compiler); leave compile off" in one_line(scorer.score, noise(40, 50))


def test_lack_of_memory_is_an_error_that_names_the_batch(folders, monkeypatch):
    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu", batch=7)
    monkeypatch.setattr(transformers.CLIPVisionModel, "forward", fail)
    assert "does not hold 7 frames at a time; lower the batch" in one_line(scorer.score, noise(40, 50))


def test_description_names_model_revision_device_precision_and_sizes(folders):
    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu", precision="bfloat16")
    model = transformers.AutoModel.from_pretrained(folders["clip"])
    assert scorer.describe() == {
        "model": str(folders["clip"]),
        "revision": None,
        "device": "cpu",
        "precision": "bfloat16",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "image_size": 224,
    }


# Loading


def test_a_model_without_preprocessor_settings_gets_its_kinds(tmp_path):
    for kind, save in SAVE.items():
        folder = tmp_path / kind
        save(folder)
        frames = noise(50, 60)
        expected = ClipScorer.load(str(folder), SMALL, device="cpu").score(frames)
        (folder / "preprocessor_config.json").unlink()
        np.testing.assert_array_equal(ClipScorer.load(str(folder), SMALL, device="cpu").score(frames), expected)


def test_preprocessor_settings_are_read_from_either_file(tiny):
    settings = json.loads((tiny / "preprocessor_config.json").read_text())
    settings["image_mean"] = [0.1, 0.2, 0.3]
    frames = noise(50, 60)
    usual = ClipScorer.load(str(tiny), SMALL, device="cpu").score(frames)
    (tiny / "preprocessor_config.json").write_text(json.dumps(settings))
    changed = ClipScorer.load(str(tiny), SMALL, device="cpu").score(frames)
    assert np.abs(changed - usual).max() > TOLERANCE
    (tiny / "preprocessor_config.json").unlink()
    (tiny / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    np.testing.assert_array_equal(ClipScorer.load(str(tiny), SMALL, device="cpu").score(frames), changed)


def test_siglip_reads_prompts_in_lower_case(folders):
    frames = noise(32, 32)
    upper = PromptSet([prompt.upper() for prompt in SMALL.positive], [prompt.upper() for prompt in SMALL.negative])
    scores = [
        ClipScorer.load(str(folders["siglip"]), prompts, device="cpu").score(frames) for prompts in (SMALL, upper)
    ]
    np.testing.assert_array_equal(*scores)


def test_loading_and_scoring_print_nothing_and_change_no_settings(tiny, capfd, caplog):
    model = transformers.CLIPModel.from_pretrained(tiny)
    model.save_pretrained(tiny, state_dict={**model.state_dict(), "something.else": torch.ones(1)})

    def said() -> tuple[str, str]:
        """On the terminal and in the log since the last time."""
        printed, logged = "".join(capfd.readouterr()), caplog.text
        caplog.clear()
        return printed, logged

    def load_plainly() -> tuple[bool, bool]:
        transformers.AutoModel.from_pretrained(tiny)
        printed, logged = said()
        return "Loading weights" in printed, "something.else" in logged

    said()
    assert load_plainly() == (True, True)
    ClipScorer.load(str(tiny), SMALL, device="cpu").score(noise(32, 32))
    assert said() == ("", "")
    assert load_plainly() == (True, True)


class Hub(http.server.ThreadingHTTPServer):
    """A small Hugging Face hub on this machine, with one model, that remembers what it was asked."""

    def __init__(self, model: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.model, self.folder = model, folder
        self.asked: list[str] = []


class HubHandler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        if path == f"/api/models/{self.server.model}":
            files = [{"rfilename": file.name} for file in self.server.folder.iterdir()]
            about = {"id": self.server.model, "modelId": self.server.model, "sha": COMMIT, "siblings": files}
            self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
        elif self.server.model not in path:
            self.answer(404, X_Error_Code="RepoNotFound")
        elif "/resolve/" in path and (file := self.server.folder / path.rpartition("/")[2]).is_file():
            self.answer(200, file.read_bytes(), ETag=f'"{file.name}"')
        else:
            self.answer(404, X_Error_Code="EntryNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch, tiny) -> Iterator[Hub]:
    """The hub, and an empty cache."""
    server = Hub("someone/tiny", tiny)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    use_hub(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "cache")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def use_hub(monkeypatch, address: str, cache: Path) -> None:
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)


@pytest.fixture
def no_hub(tmp_path, monkeypatch) -> Path:
    """Nobody listens at the hub's address; gives the cache's folder."""
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    return tmp_path / "cache"


def fill_cache(cache: Path, model: str, folder: Path) -> Path:
    """Lay a model down as a download does."""
    entry = cache / f"models--{model.replace('/', '--')}"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(COMMIT)
    shutil.copytree(folder, entry / "snapshots" / COMMIT)
    return entry / "snapshots" / COMMIT


def test_a_model_is_fetched_from_the_hub_once(hub, tiny):
    frames = noise(40, 40)
    expected = ClipScorer.load(str(tiny), SMALL, device="cpu").score(frames)
    assert not hub.asked
    fetched = ClipScorer.load("someone/tiny", SMALL, device="cpu")
    np.testing.assert_array_equal(fetched.score(frames), expected)
    assert fetched.describe()["model"] == "someone/tiny"
    assert fetched.describe()["revision"] == COMMIT
    assert hub.asked
    hub.asked.clear()
    again = ClipScorer.load("someone/tiny", SMALL, device="cpu")
    assert hub.asked == []
    np.testing.assert_array_equal(again.score(frames), expected)


def test_a_cached_model_needs_no_hub(no_hub, tiny):
    snapshot = fill_cache(no_hub, "someone/tiny", tiny)
    frames = noise(40, 40)
    cached = ClipScorer.load("someone/tiny", SMALL, device="cpu")
    np.testing.assert_array_equal(cached.score(frames), ClipScorer.load(str(tiny), SMALL, device="cpu").score(frames))
    assert cached.describe()["revision"] == COMMIT
    assert ClipScorer.load(str(snapshot), SMALL, device="cpu").describe()["revision"] == COMMIT


# Errors


def test_absent_model_without_internet_says_how_to_get_it(no_hub):
    message = one_line(ClipScorer.load, "someone/tiny", SMALL, device="cpu")
    assert message == (
        "the model 'someone/tiny' is neither a folder nor in the Hugging Face cache, and the hub cannot be reached; "
        "get it on a machine with internet with: hf download someone/tiny, or pass clip:<folder>"
    )


@pytest.mark.parametrize(
    ("file", "named"),
    [("model.safetensors", "weights"), ("tokenizer.json", "vocabulary"), ("preprocessor_config.json", "preprocessor")],
)
def test_incomplete_cache_without_internet_names_what_is_missing(no_hub, tiny, file, named):
    (fill_cache(no_hub, "someone/tiny", tiny) / file).unlink()
    message = one_line(ClipScorer.load, "someone/tiny", SMALL, device="cpu")
    assert "not complete in the Hugging Face cache" in message
    assert named in message
    assert "hf download someone/tiny" in message


def test_model_that_the_hub_does_not_have_is_an_error(hub):
    message = one_line(ClipScorer.load, "someone/else", SMALL, device="cpu")
    assert "'someone/else' is neither a folder nor on the Hugging Face hub" in message


@pytest.mark.parametrize("path", ["/no/such/folder", "./nowhere", "a/b/c", "with space", ""])
def test_path_that_cannot_be_a_models_name_is_an_error(no_hub, path):
    assert "there is no folder" in one_line(ClipScorer.load, path, SMALL, device="cpu")


def test_folder_without_config_is_an_error(tmp_path):
    message = one_line(ClipScorer.load, str(tmp_path), SMALL, device="cpu")
    assert message == f"the folder {tmp_path} holds no model: there is no config.json in it"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"config.json": "{"}, "configuration"),
        ({"model.safetensors": None}, "weights"),
        ({"model.safetensors": "?"}, "weights"),
        ({"tokenizer.json": None}, "tokenizer: there is no vocabulary"),
        ({"tokenizer.json": None, "tokenizer_config.json": None}, "tokenizer: there is no vocabulary"),
        ({"tokenizer.json": "{"}, "tokenizer"),
        ({"preprocessor_config.json": "{"}, "preprocessor"),
    ],
    ids=str,
)
def test_damaged_folder_is_an_error_that_names_the_part(tiny, damage, named):
    for file, content in damage.items():
        (tiny / file).unlink()
        if content is not None:
            (tiny / file).write_text(content)
    message = one_line(ClipScorer.load, str(tiny), SMALL, device="cpu")
    assert message.startswith(f"cannot load the model in the folder {tiny}: its ")
    assert named in message


def test_weights_that_lack_a_part_of_the_model_are_an_error(tiny):
    """transformers would go on with random ones."""
    model = transformers.CLIPModel.from_pretrained(tiny)
    kept = {name: weight for name, weight in model.state_dict().items() if "visual_projection" not in name}
    model.save_pretrained(tiny, state_dict=kept)
    message = one_line(ClipScorer.load, str(tiny), SMALL, device="cpu")
    assert "1 of them are missing, such as visual_projection.weight" in message


@pytest.mark.parametrize("kind", ["bert", "siglip2"])
def test_model_of_another_kind_is_an_error(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    message = one_line(ClipScorer.load, str(tmp_path), SMALL, device="cpu")
    assert f"is of the kind '{kind}'; the scorer 'clip' supports clip and siglip, and transformers:" in message


def test_tokenizer_that_needs_sentencepiece_says_so(tmp_path):
    if transformers.utils.is_sentencepiece_available():
        pytest.skip("sentencepiece is installed")
    save_small_siglip(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "SiglipTokenizer"}))
    message = one_line(ClipScorer.load, str(tmp_path), SMALL, device="cpu", kind=MissingDependencyError)
    assert "pip install sentencepiece protobuf" in message


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_longer_than_the_model_reads_is_an_error(folders, kind):
    """A letter is a token here; CLIP adds one at each end, SigLIP one at the end."""
    added = 2 if kind == "clip" else 1
    fits = "a" * (MAX_TOKENS - added)
    ClipScorer.load(str(folders[kind]), PromptSet([fits], ["b"]), device="cpu")
    message = one_line(ClipScorer.load, str(folders[kind]), PromptSet(["b"], [f"{fits}c"]), device="cpu")
    assert f"the prompt '{fits}c' has {MAX_TOKENS + 1} tokens" in message
    assert f"reads at most {MAX_TOKENS}" in message


@pytest.mark.parametrize(
    ("frames", "came"),
    [
        (np.zeros((2, 32, 32, 3), np.float32), "float32 [2, 32, 32, 3]"),
        (np.zeros((32, 32, 3), np.uint8), "uint8 [32, 32, 3]"),
        (np.zeros((2, 3, 32, 32), np.uint8), "uint8 [2, 3, 32, 32]"),
        (np.zeros((2, 32, 32, 4), np.uint8), "uint8 [2, 32, 32, 4]"),
        ([[1]], "list"),
        (np.zeros((2, 0, 32, 3), np.uint8), "no pixels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_frames_of_a_wrong_type_or_shape_are_an_error(folders, frames, came):
    scorer = ClipScorer.load(str(folders["clip"]), SMALL, device="cpu")
    assert came in one_line(scorer.score, frames)


def test_preprocessor_that_does_not_fit_the_model_is_an_error(tiny):
    settings = json.loads((tiny / "preprocessor_config.json").read_text())
    (tiny / "preprocessor_config.json").write_text(json.dumps({**settings, "crop_size": 48}))
    message = one_line(ClipScorer.load(str(tiny), SMALL, device="cpu").score, noise(50, 60))
    assert "makes 48 x 48 pixels of frames of 50 x 60, but the model reads 32 x 32" in message


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"device": "cuda:99"}, "device 'cuda:99' does not exist"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"batch": 0}, "at least one frame"),
    ],
    ids=str,
)
def test_wrong_option_is_an_error(folders, options, named):
    assert named in one_line(ClipScorer.load, str(folders["clip"]), SMALL, **{"device": "cpu", **options})


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error(folders):
    assert ClipScorer.load(str(folders["clip"]), SMALL).describe()["device"] == "cpu"
    assert "PyTorch sees 0 GPUs" in one_line(ClipScorer.load, str(folders["clip"]), SMALL, device="cuda")


def test_importing_needs_torch_transformers_and_numpy_alone():
    """A machine with a GPU may have nothing else."""
    absent = ("gymnasium", "polars", "msgspec", "tyro", "rich", "threadpoolctl", "metadrive", "torchvision")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import vlmsafe.signals.scorers.clip"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600.0)


# On a GPU


def test_other_prompts_are_not_read_by_a_model_that_took_the_place_of_the_first(tmp_path):
    save_small_clip(tmp_path / "clip")
    scorer = ClipScorer.load(str(tmp_path / "clip"), SMALL, device="cpu")
    other = PromptSet(("an open road",), ("a wall",))
    assert scorer.with_prompts(other).groups == (1, 1)
    save_small_clip(tmp_path / "clip")
    with pytest.raises(InputError, match="have changed since it was loaded; start the service again"):
        scorer.with_prompts(other)


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(256, 256), (100, 37), (224, 224)])
def test_similarities_on_a_gpu_equal_those_on_the_cpu(folders, kind, size):
    frames = noise(*size, count=11)
    on_cpu = ClipScorer.load(str(folders[kind]), SMALL, device="cpu").score(frames)
    for batch in (3, 64):
        scorer = ClipScorer.load(str(folders[kind]), SMALL, device="cuda", batch=batch)
        for _ in range(2):  # the buffers of the call before are used again
            np.testing.assert_allclose(scorer.score(frames), on_cpu, rtol=0, atol=1e-3)


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_bfloat16_on_a_gpu_is_close_to_float32_on_the_cpu(folders, kind):
    frames = noise(256, 256, count=11)
    on_cpu = ClipScorer.load(str(folders[kind]), SMALL, device="cpu").score(frames)
    scorer = ClipScorer.load(str(folders[kind]), SMALL, device="cuda", precision="bfloat16", compile=True, batch=4)
    np.testing.assert_allclose(scorer.score(frames), on_cpu, rtol=0, atol=2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_looked_up_without_its_weights(folders, kind, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("weights were read")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", refuse)
    look_up(str(folders[kind]), SMALL)
    message = one_line(look_up, str(folders[kind]), PromptSet(("road " * 200,), ("wall",)))
    assert f"reads at most {MAX_TOKENS}" in message


def test_a_model_without_weights_is_found_out_when_it_is_looked_up(tiny):
    for path in tiny.glob("*.safetensors"):
        path.unlink()
    assert "its weights: there are none" in one_line(look_up, str(tiny), SMALL)
