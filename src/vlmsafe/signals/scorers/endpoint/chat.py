"""One yes/no question about a frame as a chat completion, and the probability of "yes" in the answer. Pure functions.

The probability comes from the first token of the answer, as it does for a model in this process
(`vlmsafe.signals.scorers.qwen2_vl`). With p the probabilities that the endpoint lists, and Y and N the tokens that
spell yes and no,

    P(yes | frame, question) = sum of p over Y / (sum of p over Y + sum of p over N)

An endpoint lists only its most probable tokens. A spelling that is not among them counts as improbable.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlmsafe.signals.scorers.questions import NO, YES

_JPEG_QUALITY = 90
_SPACES = "\u0120\u2581 "  # how tokenizers write the space before a word; some servers pass it on
_YES, _NO = frozenset(map(str.strip, YES)), frozenset(map(str.strip, NO))
_ROUNDING = 1e-3  # a logarithm of a probability may be this far above zero


class WrongAnswer(Exception):
    """An answer that does not follow the protocol; the next one may."""


class NoLogprobs(Exception):
    """An answer without the probabilities of its tokens: the endpoint, or this model of it, does not give them."""


@dataclass(frozen=True)
class Answer:
    """What an endpoint answered to one question."""

    yes: float | None
    """P(yes); None if none of the most probable tokens spells yes or no."""
    first: tuple[str, ...]
    """The most probable first tokens, for messages."""
    tokens_in: int
    tokens_out: int


def data_url(frame: NDArray[np.uint8], kind: Literal["png", "jpeg"]) -> str:
    """A frame [height, width, 3] as the URL of a picture that holds the picture itself."""
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(frame))
    if kind == "png":
        image.save(buffer, format="PNG", compress_level=1)  # time matters more than size
    else:
        image.save(buffer, format="JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def request_body(model: str, pictures: Sequence[str], question: str, top: int, extra: Mapping[str, Any]) -> bytes:
    """The body of a request. Pictures come first, so that a server can keep them for the next question."""
    images = [{"type": "image_url", "image_url": {"url": picture}} for picture in pictures]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": [*images, {"type": "text", "text": question}]}],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": top,
        **extra,
    }
    return json.dumps(body).encode()


def read_answer(data: bytes) -> Answer:
    """The probability of "yes" in the body of an answer."""
    try:
        found = json.loads(data)
    except ValueError:
        raise WrongAnswer(f"no JSON, but {data[:60].decode(errors='replace')!r}") from None
    try:
        logprobs = found["choices"][0].get("logprobs")
    except (TypeError, KeyError, IndexError, AttributeError):
        raise WrongAnswer("JSON without choices") from None
    if not logprobs:
        raise NoLogprobs
    try:
        chosen = logprobs["content"][0]
        if not chosen.get("top_logprobs"):  # the chosen token alone says yes or no, and not how probably
            raise NoLogprobs
        listed = [chosen, *chosen["top_logprobs"]]
        tokens = {str(entry["token"]): float(entry["logprob"]) for entry in listed}
    except (TypeError, KeyError, IndexError, AttributeError, ValueError):
        raise WrongAnswer("logprobs without the tokens of the answer") from None
    if not all(value <= _ROUNDING for value in tokens.values()):  # NaN too
        raise WrongAnswer(f"logprobs that are no logarithms of probabilities: {sorted(tokens.values())[-3:]}")
    usage = found.get("usage") or {}
    first = sorted(tokens, key=tokens.__getitem__, reverse=True)
    return Answer(_yes(tokens), tuple(first), _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))


def _yes(tokens: Mapping[str, float]) -> float | None:
    yes, no = (
        math.fsum(math.exp(value) for token, value in tokens.items() if token.strip(_SPACES) in words)
        for words in (_YES, _NO)
    )
    return yes / (yes + no) if yes + no > 0.0 else None


def _count(usage: Any, name: str) -> int:
    """A number of tokens; 0 where the endpoint does not count."""
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and value > 0 else 0
