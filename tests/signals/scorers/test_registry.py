"""The registry of scorers: every entry says what its scorer is, and the rest of the package asks the entry."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai_server import Server
from small_models import save_small_clip, save_small_siglip2
from small_qwen import save_small_qwen

import vlmsafe
from vlmsafe.config.settings import SignalConfig
from vlmsafe.errors import InputError
from vlmsafe.signals.frame_stack import stack_of
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Scorer, check_scorer
from vlmsafe.signals.scorers.make import make_scorer, stack_for
from vlmsafe.signals.scorers.registry import KINDS, kind_of, parse_scorer

PROMPTS = PromptSet(("a clear road ahead",), ("the car leaves the road",), "safe driving", "danger")
ARGUMENTS = {"constant": "0.5", "python": "frame_scorer:FrameScorer"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> Iterator[dict[str, Scorer]]:
    """One scorer of every kind; models are tiny."""
    folder = tmp_path_factory.mktemp("models")
    save_small_clip(folder / "clip")
    save_small_qwen(folder / "qwen2-vl")
    save_small_siglip2(folder / "transformers")
    server = Server()
    arguments = {**ARGUMENTS, "openai": server.scorer.partition(":")[2]}
    found = {}
    for name, kind in KINDS.items():
        if kind.shuffles:
            continue  # it loads another one
        argument = str(folder / name) if kind.downloaded else arguments.get(name, "")
        found[name] = make_scorer(f"{name}:{argument}", PROMPTS, device="cpu", observation=3, cache="off")
    yield found
    for scorer in found.values():
        scorer.close()
    server.kill()


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.shuffles])
def test_an_entry_agrees_with_the_scorer_that_it_loads(loaded, name):
    scorer = loaded[name]
    kind = KINDS[name]
    if not kind.settled:  # what it says depends on the model
        kind = parse_scorer(f"{name}:{scorer.describe()['model']}").kind
    assert kind.settled
    check_scorer(scorer)
    assert kind.looks_at in (None, scorer.looks_at)
    assert kind.rules in (None, scorer.rules)
    assert kind.frames in (None, "any", scorer.frames)
    assert scorer.gate == kind.gate
    assert kind.learns == bool(scorer.state())
    assert kind.shared == (scorer.looks_at == "frame" and not kind.cached), "an endpoint is shared already"
    if kind.compares == "prompts":
        assert scorer.groups == PROMPTS.sizes


@pytest.mark.parametrize(
    ("name", "precision"), [("embedded", "float32"), ("clip", "float32"), ("qwen2-vl", "bfloat16")]
)
def test_a_model_is_loaded_with_the_precision_of_its_entry(loaded, name, precision):
    assert KINDS[name].precision == loaded[name].describe()["precision"] == precision


def test_a_name_without_a_model_stands_for_the_papers():
    assert str(parse_scorer("clip")) == "clip:openai/clip-vit-base-patch32"
    assert str(parse_scorer("qwen2-vl")) == "qwen2-vl:Qwen/Qwen2-VL-7B-Instruct"
    assert str(parse_scorer("embedded")) == "embedded"


def test_the_entry_of_a_shuffled_scorer_is_that_of_the_scorer_it_names(tmp_path, monkeypatch):
    assert str(parse_scorer("shuffled")) == "shuffled:embedded"
    monkeypatch.chdir(tmp_path)
    for inner in ("embedded", "embedded:own.safetensors", "clip", "oracle", "python:frame_scorer:FrameScorer"):
        name = parse_scorer(f"shuffled:{inner}")
        assert name.kind.shuffles
        assert name.unshuffled == parse_scorer(inner)
        for trait in ("looks_at", "compares", "rules", "frames", "gate", "batch", "shared", "user_code", "downloaded"):
            assert getattr(name.kind, trait) == getattr(parse_scorer(inner).kind, trait)
        assert str(name.absolute) == f"shuffled:{parse_scorer(inner).absolute}"
    with pytest.raises(InputError, match="a scorer that looks"):
        parse_scorer("shuffled:shuffled")


def test_a_shuffled_scorer_is_refused_outside_of_training():
    with pytest.raises(InputError, match=r"for training runs.*use 'embedded'"):
        make_scorer("shuffled", PROMPTS)


def test_large_models_are_calibrated_on_ten_times_the_frames():
    names = ("clip", "clip:openai/clip-vit-large-patch14", "embedded:large", "rnd")
    assert [parse_scorer(name).calibration_frames for name in names] == [500, 5000, 500, 500]


def test_only_the_models_own_name_says_that_it_is_large(tmp_path, monkeypatch):
    cached = tmp_path / "models--openai--clip-vit-large-patch14" / "snapshots" / "0123"
    here = tmp_path / "clip-vit-large-patch14"
    for folder in (cached, here):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    frames = {
        "clip:large-models/clip-vit-base-patch32": 500,
        "clip:/data/large/clip-vit-base-patch32": 500,
        "clip:someone/clip-enlarged": 500,
        "clip:/data/base/CLIP-ViT-Large-patch14/": 5000,
        f"clip:{cached}": 5000,
        "clip:.": 5000,
    }
    assert {name: parse_scorer(name).calibration_frames for name in frames} == frames


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("klip", "unknown scorer 'klip'.*clip"),
        ("none", "unknown scorer 'none'"),
        ("rnd:3", "'rnd' takes nothing after it, got '3'"),
        ("constant", "needs something after it: constant:<value>"),
        ("python", "needs something after it: python:<module>:<name>"),
    ],
)
def test_a_name_that_cannot_be_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_scorer(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("constant:2", r"one score in \[0, 1\], or two with a comma, got '2'"),
        ("constant:a,b", "got 'a,b'"),
        ("python:no_such_module:Scorer", "cannot import the scorer 'python:no_such_module:Scorer'"),
        ("python:frame_scorer:PromptSet", "raised TypeError"),
        ("python:builtins:str", "gave a str; expected a vlmsafe.Scorer"),
    ],
)
def test_a_scorer_that_cannot_be_made_is_one_clear_line(text, message):
    with pytest.raises(InputError, match=message):
        make_scorer(text, PROMPTS)


def test_a_kind_of_any_number_of_frames_gets_the_number_and_the_distance_that_were_chosen(tmp_path):
    save_small_qwen(tmp_path)
    name = f"qwen2-vl:{tmp_path}"
    plain, clip = (make_scorer(name, PROMPTS, device="cpu", **stack) for stack in ({}, {"frames": 3}))
    assert [(one.frames, one.frame_distance) for one in (plain, clip)] == [(1, 4), (3, 4)]
    far = make_scorer(name, PROMPTS, device="cpu", frames=2, frame_distance=10)
    assert stack_of(far) == (10, 0)
    assert stack_of(far.with_prompts(PROMPTS)) == (10, 0)


@pytest.mark.parametrize(
    ("name", "stack", "message"),
    [
        (
            "clip:no/model",
            {"frames": 2},
            "'clip' looks at 1 frame at a time, and frames is 2; drop frames, or use 'qwen2",
        ),
        ("clip:no/model", {"frame_distance": 2}, "frame_distance is 2, but the scorer 'clip' gets 1 frame at a time"),
        ("qwen2-vl:no/model", {"frame_distance": 2}, "set frames to 2 or more"),
        ("qwen2-vl:no/model", {"frames": 17}, "frames is 17; a scorer gets from 1 to 16"),
        ("qwen2-vl:no/model", {"frames": 0}, "frames is 0"),
        ("qwen2-vl:no/model", {"frames": 2, "frame_distance": 0}, "frame_distance is 0"),
        ("embedded", {"frames": 3}, "'embedded' looks at 2 frames at a time, 4 steps apart, and frames is 3"),
        ("embedded", {"frame_distance": 2}, "4 steps apart, and frames is 2, frame_distance 2"),
        (
            "python:frame_scorer:MotionScorer",
            {"frames": 4},
            "looks at 2 frames at a time, 4 steps apart, and frames is 4",
        ),
        ("rnd", {"frames": 1}, "'rnd' looks at no frames"),
    ],
)
def test_a_stack_that_a_scorer_does_not_look_at_is_refused_in_one_line(name, stack, message):
    with pytest.raises(InputError, match=message) as caught:
        make_scorer(name, PROMPTS, device="cpu", **stack)
    assert "\n" not in str(caught.value)


def test_a_scorers_own_stack_may_be_named(tmp_path):
    assert make_scorer("embedded", PROMPTS, device="cpu", frames=2, frame_distance=4).frames == 2
    assert make_scorer("python:frame_scorer:MotionScorer", PROMPTS, frames=2).frames == 2


def test_of_several_scorers_only_those_of_any_number_get_the_chosen_stack():
    fixed, free = parse_scorer("clip"), parse_scorer("qwen2-vl")
    assert stack_for(free, 2, (3, None), (None, None)) == (3, None)
    assert stack_for(fixed, 2, (3, None), (None, None)) == (None, None)
    assert stack_for(fixed, 1, (3, None), (None, None)) == (3, None), "a single one refuses it"
    assert stack_for(free, 1, (None, None), (4, 2)) == (4, 2)


def test_a_model_without_prompts_is_refused():
    with pytest.raises(InputError, match="'embedded' compares frames with prompts"):
        make_scorer("embedded", None)


def test_a_method_without_a_signal_has_a_kind_that_needs_nothing():
    none = kind_of("none")
    assert not any([none.takes_prompts, none.shared, none.wants_gpu, none.downloaded, none.may_look_at_frames])


def test_the_help_of_the_setting_names_every_kind():
    source = Path(vlmsafe.__file__).parent / "config" / "settings.py"
    help_text = source.read_text().partition("What scores:")[2].partition('"""')[0]
    assert not [name for name in KINDS if name not in help_text]
    assert SignalConfig().scorer == kind_of("none").name


def test_no_module_compares_a_scorers_kind_with_a_name():
    """What differs between kinds is a field of the entry; a new kind must not need edits elsewhere."""
    package, found = Path(vlmsafe.__file__).parent, []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare) or not re.search("kind|scorer", ast.unparse(node.left)):
                continue
            literals = {entry.value for part in node.comparators for entry in ast.walk(part) if _is_text(entry)}
            if literals & set(KINDS):
                found.append(f"{path.relative_to(package)}: {ast.unparse(node)}")
    assert sorted(found) == [
        "paper/values.py: signal.scorer == 'embedded'",  # the paper has CLIP where methods here have the small model
        "signals/scorers/clip.py: kind == 'clip'",  # the kind of a checkpoint
    ]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_importing_the_registry_loads_no_model_library():
    code = "import sys, vlmsafe.signals.scorers.registry; sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
