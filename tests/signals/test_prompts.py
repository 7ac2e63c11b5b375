"""Prompt sets say what they were given, and refuse what cannot be meant."""

import hashlib
from dataclasses import replace

import pytest

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet, load_prompts, parse_prompts, shipped_prompts


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("metadrive", (4, 4)), ("metadrive-v2", (1, 1)), ("metadrive-v3", (2, 2)), ("bullet", (4, 4)),
        ("bullet-v2", (1, 1)), ("bullet-v3", (2, 2)), ("formula-one", (4, 4)),
    ],
)  # fmt: skip
def test_every_set_of_the_paper_is_shipped(name, sizes):
    assert load_prompts(name).sizes == sizes


def test_every_shipped_set_is_valid_and_one_of_its_own():
    sets = {name: load_prompts(name) for name in shipped_prompts()}
    assert len(sets) == 7
    assert sets["metadrive-v2"] == sets["bullet-v2"], "the generic template names no environment"
    assert len({prompts.texts for prompts in sets.values()}) == 6


def test_prompts_are_the_papers_word_for_word():
    """One text of each group of each v1 set in full; all of them by their digest."""
    assert load_prompts("metadrive").positive[2] == "the car is navigating traffic safely with proper spacing"
    assert load_prompts("metadrive").negative[1] == "the car is drifting onto the sidewalk or off the road"
    assert load_prompts("bullet").positive[0] == "the car is driving directly toward the goal target"
    assert load_prompts("bullet").negative[3] == "the car is in a dangerous position near a barrier"
    assert load_prompts("formula-one").positive[2] == "the racecar is making progress along the racing line"
    assert load_prompts("formula-one").negative[0] == "the racecar is about to crash into the barrier"
    everything = "\n".join(text for name in shipped_prompts() for text in load_prompts(name).texts)
    assert hashlib.sha256(everything.encode()).hexdigest()[:16] == "5548f978416981e2"


def test_texts_are_positive_first():
    assert load_prompts("metadrive-v2").texts == ("the car is driving safely", "the car is in an unsafe situation")


def test_a_users_file_is_loaded_like_a_shipped_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("positive:\n- clear road\nnegative: [a crash, 'off: road']\ndescriptions:\n  negative: trouble\n")
    prompts = load_prompts(path)
    assert prompts == PromptSet(("clear road",), ("a crash", "off: road"), negative_description="trouble")
    assert load_prompts(str(path)) == prompts


def test_a_set_survives_being_written_and_read():
    from vlmsafe.config.yaml import to_yaml

    prompts = PromptSet(("yes", "3: x"), ("no # way",), "good: things", "- bad")
    assert parse_prompts(to_yaml(prompts.to_dict()), "written.yaml") == prompts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml is empty; expected a 'positive' and a 'negative' list"),
        ("- a", "x.yaml, line 1: expected the keys"),
        ("positive: [a]", "x.yaml: there is no 'negative' list"),
        ("positive:\n- a\nnegative: []", "x.yaml, line 3: the negative group is empty"),
        ("positive: a\nnegative: [b]", "x.yaml, line 1: 'positive' must be a list"),
        ("positive: [a]\nnegative:", "x.yaml, line 2: 'negative' must be a list"),
        (
            "positive:\n- a\n- b\n- A\nnegative: [c]",
            r"x.yaml, line 4: the prompt 'A' appears twice \(first: x.yaml, l.+2",
        ),
        ("positive: [a]\nnegative:\n- b\n- a", r"x.yaml, line 4: the prompt 'a' appears twice \(first: x.yaml, line 1"),
        ("positive: [yes]\nnegative: [b]", "x.yaml, line 1: a positive prompt must be a text, got yes; put it in quot"),
        ("positive: [a]\nnegative:\n- b: c", "x.yaml, line 3: a negative prompt must be a text"),
        ("positive: [' ']\nnegative: [b]", "x.yaml, line 1: a prompt is empty"),
        ("positive: [a]\nnegativ: [b]", "x.yaml, line 2: unknown key 'negativ'; did you mean 'negative'"),
        ("positive: [a]\npositive: [b]\nnegative: [c]", "x.yaml, line 2: 'positive' appears a second time"),
        ("positive: [a\nnegative: [b]", "x.yaml, line 2: not valid YAML"),
        ("positive: [a]\nnegative: [b]\ndescriptions: {positive: 3}", "line 3: the description of the positive group"),
    ],
)
def test_a_mistake_is_named_with_its_line(text, message):
    with pytest.raises(InputError, match=message):
        parse_prompts(text, "x.yaml")


def test_unknown_names_and_missing_files_are_told_apart(tmp_path):
    with pytest.raises(InputError, match=r"unknown prompt set 'metadrve'; did you mean 'metadrive'"):
        load_prompts("metadrve")
    with pytest.raises(InputError, match=r"cannot read prompts from .*none.yaml: No such file"):
        load_prompts(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        load_prompts(tmp_path / "bytes.yaml")


def test_a_set_made_in_python_is_checked_too():
    with pytest.raises(InputError, match="the negative group is empty"):
        PromptSet(("a",), ())
    with pytest.raises(InputError, match="expected a list of prompts"):
        PromptSet("a car", ("b",))
    with pytest.raises(InputError, match="appears twice"):
        PromptSet(("a",), ("a",))
    assert PromptSet(["a"], ["b"]).texts == ("a", "b")


def test_prompts_without_descriptions_have_none_and_are_not_asked_about():
    bare = PromptSet(("the kiln glows",), ("the glaze cracks",))
    assert "descriptions" not in bare.to_dict()
    with pytest.raises(InputError, match=r"'qwen2-vl' asks about each group .* the positive group has none"):
        bare.require_descriptions("qwen2-vl")
    for name in shipped_prompts():
        load_prompts(name).require_descriptions("qwen2-vl")


def test_prompts_that_a_run_recorded_with_the_former_descriptions_are_the_same():
    bare = PromptSet(("the kiln glows",), ("the glaze cracks",))
    former = replace(
        bare, positive_description="safe driving conditions",
        negative_description="driving danger or imminent collision",
    )  # fmt: skip
    assert bare.same_as(bare)
    assert bare.same_as(former)
    assert not bare.same_as(replace(former, positive_description="a kiln that fires safely"))
    assert not replace(bare, positive=("it glows",)).same_as(former)
