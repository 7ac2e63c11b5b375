"""Words are found in the forms the vocabulary has, and those that are not there are named."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.embedded.tokenizer import STOP_WORDS, Tokenizer, split

WORDS = ("the", "car", "is", "drives", "safely", "center", "of", "lane", "about", "to", "hit", "not", "road", "close")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The CAR is Safe.", ["the", "car", "is", "safe"]),
        ("the road's edge", ["the", "road", "edge"]),
        ("the road\u2019s edge, the cars' lane", ["the", "road", "edge", "the", "cars", "lane"]),
        ("ego-centred view; off_road", ["ego", "centred", "view", "off", "road"]),
        ("it isn't, can't, cannot and won't", ["it", "is", "not", "can", "not", "can", "not", "and", "will", "not"]),
        ("we're 3 m away (nearly)!", ["we", "3", "m", "away", "nearly"]),
        ("caf\u00e9 'quoted'", ["caf\u00e9", "quoted"]),
        (" \u2014 ?! ", []),
    ],
)
def test_texts_are_split_into_plain_words(text, words):
    assert list(split(text)) == words


@pytest.mark.parametrize(
    ("word", "vocabulary", "found"),
    [
        ("cars", "car", "car"),
        ("car", "cars", "cars"),
        ("crashes", "crash", "crash"),
        ("vehicles", "vehicle", "vehicle"),
        ("boundaries", "boundary", "boundary"),
        ("drive", "driving", "driving"),
        ("drives", "driving", "driving"),
        ("drivers", "driving", "driving"),
        ("hitting", "hit", "hit"),
        ("passing", "passes", "passes"),
        ("stopped", "stop", "stop"),
        ("markings", "mark", "mark"),
        ("safely", "safe", "safe"),
        ("safe", "safely", "safely"),
        ("gently", "gentle", "gentle"),
        ("steadily", "steady", "steady"),
        ("closest", "close", "close"),
        ("bigger", "big", "big"),
        ("centre", "center", "center"),
        ("center", "centre", "centre"),
        ("centred", "centered", "centered"),
        ("centering", "centred", "centred"),
        ("coloured", "color", "color"),
        ("neighboring", "neighbour", "neighbour"),
        ("traveling", "travelled", "travelled"),
        ("stabilised", "stabilize", "stabilize"),
        ("kerbs", "curb", "curb"),
        ("gray", "grey", "grey"),
        ("towards", "toward", "toward"),
    ],
)
def test_other_forms_and_spellings_of_a_word_are_found(word, vocabulary, found):
    assert Tokenizer([vocabulary]).find(word) == found


@pytest.mark.parametrize(
    ("word", "vocabulary"),
    [
        ("unsafe", "safe"),
        ("safe", "unsafe"),
        ("careless", "care"),
        ("staring", "star"),
        ("caring", "car"),
        ("only", "on"),
        ("red", "r"),
        ("bus", "bu"),
        ("across", "acros"),
        ("centered", "cent"),
        ("fares", "far"),
        ("seed", "see"),
        ("being", "be"),
        ("thing", "the"),
        ("\u00fcber", "uber"),
    ],
)
def test_a_word_is_not_taken_for_another(word, vocabulary):
    assert Tokenizer([vocabulary]).find(word) is None


def test_the_word_itself_comes_first_and_a_spelling_before_a_form():
    assert Tokenizer(["drive", "driving", "drives"]).find("driving") == "driving"
    assert Tokenizer(["centered", "center"]).find("centre") == "center"


@given(st.sampled_from(WORDS))
def test_every_word_of_the_vocabulary_is_itself(word):
    assert Tokenizer(WORDS).find(word) == word


@given(st.text(max_size=30))
def test_any_text_is_encoded_or_refused(text):
    tokenizer = Tokenizer(WORDS, 20)
    try:
        tokens, unknown = tokenizer.encode([text])
    except InputError:
        return
    assert tokens.min() > 0
    assert tokens.max() <= len(WORDS)
    assert not STOP_WORDS & set(unknown[0])


def test_tokens_are_numbered_from_one_and_padded_with_zeros():
    tokens, unknown = Tokenizer(WORDS).encode(["The car is driving safely", "close to the road"])
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[1, 2, 3, 4, 5], [14, 10, 1, 13, 0]]
    assert unknown == [[], []]


def test_unknown_words_are_left_out_and_reported_prompt_by_prompt():
    tokens, unknown = Tokenizer(WORDS).encode(["the purple car is safe", "a car of the Lorries' lane", "the road"])
    assert unknown == [["purple"], ["lorries"], []], "stop words say nothing, so nothing is lost with them"
    assert tokens.tolist() == [[1, 2, 3, 5], [2, 7, 1, 8], [1, 13, 0, 0]]


@pytest.mark.parametrize("prompt", ["the purple elephant", "is it of the", "42", "?!", "purple"])
def test_a_prompt_without_a_known_word_is_an_error_with_examples(prompt):
    with pytest.raises(InputError) as caught:
        Tokenizer(WORDS).encode(["the car", prompt])
    message = str(caught.value)
    assert f"the prompt '{prompt}' has no word that the scorer 'embedded' knows" in message
    assert "14 words such as car, drives, safely" in message
    assert "--scorer clip" in message


def test_a_prompt_with_too_many_words_is_an_error_that_says_how_many():
    tokenizer = Tokenizer(WORDS, 4)
    tokenizer.encode(["the purple car is close"])
    with pytest.raises(
        InputError, match=r"'the car is close to' has 5 words, and the scorer 'embedded' reads at most 4"
    ):
        tokenizer.encode(["the car is close to"])


@pytest.mark.parametrize(
    ("word", "vocabulary", "found"),
    [
        ("lorry", ("truck",), "truck"), ("lorries", ("truck",), "truck"), ("motorway", ("road",), "road"),
        ("never", ("not",), "not"), ("smashing", ("crashes",), "crashes"), ("lorry", ("lorry", "truck"), "lorry"),
        ("lorry", ("road",), None),
    ],
)  # fmt: skip
def test_a_word_of_the_same_meaning_stands_in_for_an_unknown_one(word, vocabulary, found):
    assert Tokenizer(vocabulary).find(word) == found
