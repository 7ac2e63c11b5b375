"""Requests and answers of a chat completion: lossless pictures, and the probability of yes."""

import base64
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlmsafe.signals.scorers.endpoint.chat import NoLogprobs, WrongAnswer, data_url, read_answer, request_body


def answer(tokens: dict[str, float], **more) -> bytes:
    """The body of an answer that lists these logarithms."""
    top = [{"token": token, "logprob": value} for token, value in tokens.items()]
    return json.dumps({"choices": [{"logprobs": {"content": [{**top[0], "top_logprobs": top}]}}], **more}).encode()


def logs(**probabilities: float) -> dict[str, float]:
    return {token: math.log(value) for token, value in probabilities.items()}


def picture(url: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


def test_a_png_holds_every_pixel_and_a_jpeg_nearly():
    frame = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    assert data_url(frame, "png").startswith("data:image/png;base64,")
    np.testing.assert_array_equal(picture(data_url(frame, "png")), frame)
    smooth = np.broadcast_to(np.arange(0, 240, 6, dtype=np.uint8)[None, :, None], (24, 40, 3))
    there = picture(data_url(smooth, "jpeg")).astype(int)
    assert data_url(smooth, "jpeg").startswith("data:image/jpeg;base64,")
    assert 0 < np.abs(there - smooth).max() <= 8


def test_pictures_come_before_the_question_so_that_a_server_can_keep_them():
    body = json.loads(request_body("m", ["data:one", "data:two"], "Is it?", 5, {"seed": 3}))
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert [part["image_url"]["url"] for part in content[:2]] == ["data:one", "data:two"]
    assert (body["model"], body["max_tokens"], body["logprobs"], body["top_logprobs"]) == ("m", 1, True, 5)
    assert (body["temperature"], body["seed"]) == (0, 3)


def test_every_spelling_of_yes_and_no_counts_and_other_words_do_not():
    tokens = {"Yes": 0.3, " yes": 0.1, "\u2581YES": 0.1, "\u0120no": 0.2, "No": 0.05, "yesterday": 0.2, "yEs": 0.05}
    found = read_answer(answer({token: math.log(value) for token, value in tokens.items()}))
    assert found.yes == pytest.approx(0.5 / 0.75)
    assert found.first[0] == "Yes"


@given(st.floats(1e-6, 1.0 - 1e-6), st.floats(0.01, 1.0))
def test_the_probability_is_normalised_over_yes_and_no(yes, mass):
    assert read_answer(answer(logs(yes=mass * yes, no=mass * (1.0 - yes)))).yes == pytest.approx(yes, rel=1e-9)


def test_a_spelling_that_is_not_listed_is_improbable():
    assert read_answer(answer(logs(Yes=0.9, Maybe=0.1))).yes == 1.0
    assert read_answer(answer(logs(No=0.9, Maybe=0.1))).yes == 0.0
    assert read_answer(answer({"no": -9999.0, "Maybe": -0.1})).yes is None
    assert read_answer(answer(logs(Maybe=0.9, Well=0.1))).yes is None


def test_tokens_are_counted_where_the_endpoint_counts_them():
    usage = {"prompt_tokens": 320, "completion_tokens": 1}
    found = read_answer(answer(logs(yes=0.5, no=0.5), usage=usage))
    assert (found.tokens_in, found.tokens_out) == (320, 1)
    for usage in (None, {}, {"prompt_tokens": "many"}):
        assert read_answer(answer(logs(yes=0.5, no=0.5), usage=usage)).tokens_in == 0


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [3]}',
        b'{"choices": [{"logprobs": {"content": []}}]}',
        b'{"choices": [{"logprobs": {"content": [{"token": "a", "logprob": 0, "top_logprobs": [{}]}]}}]}',
        answer({"yes": math.nan, "no": -1.0}),
        answer({"yes": 0.7, "no": -1.0}),
    ],
)
def test_an_answer_against_the_protocol_is_wrong(body):
    with pytest.raises(WrongAnswer):
        read_answer(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [{"message": {"content": "yes"}}]}',
        b'{"choices": [{"logprobs": null}]}',
        b'{"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": -0.1, "top_logprobs": []}]}}]}',
    ],
)
def test_an_answer_without_the_alternatives_has_no_probabilities(body):
    with pytest.raises(NoLogprobs):
        read_answer(body)
