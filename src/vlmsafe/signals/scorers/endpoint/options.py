"""The name of an endpoint's model, how the endpoint is asked, and the token, which comes from the environment only."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from vlmsafe.errors import InputError

TOKENS = ("VLMSAFE_OPENAI_TOKEN", "OPENAI_API_KEY")
"""Environment variables that may hold the token of an endpoint. The first that is set wins; the second is for https."""

_OWN = frozenset({"model", "messages", "max_tokens", "temperature", "logprobs", "top_logprobs", "stream", "n"})


@dataclass(frozen=True)
class EndpointOptions:
    """How an endpoint (`openai:<model>@<url>`) is asked; other scorers do not use it."""

    url: str = ""
    """Where the endpoint is now, if it has moved since the run began; by default the URL in the scorer's name."""
    concurrency: int = 8
    """Requests under way at a time."""
    per_minute: float | None = None
    """Requests per minute at most; by default as many as the endpoint takes."""
    timeout: float = 60.0
    """Seconds to wait for one answer before the request is sent again."""
    wait: float = 300.0
    """Seconds without any answer after which the run stops, to be resumed later."""
    image: Literal["png", "jpeg"] = "png"
    """How frames are sent: png is lossless; jpeg is smaller and changes scores."""
    top_logprobs: int = 20
    """Most probable first tokens of an answer that are asked for: OpenAI allows 20, some endpoints fewer or more."""
    extra: str = ""
    """Further fields of every request as JSON, such as '{"chat_template_kwargs": {"enable_thinking": false}}'."""

    @property
    def fields(self) -> dict[str, Any]:
        """The further fields of every request."""
        return dict(json.loads(self.extra)) if self.extra else {}

    def problems(self) -> Iterator[str]:
        """One message for each option that cannot be used."""
        if self.url:
            try:
                parse_url(self.url)
            except InputError as error:
                yield f"url: {error}"
        if self.concurrency < 1:
            yield f"concurrency is {self.concurrency}; it must be 1 or greater"
        if self.per_minute is not None and not 0.0 < self.per_minute < math.inf:
            yield f"per_minute is {self.per_minute}; it must be finite and greater than 0"
        if not 0.0 < self.timeout < math.inf:
            yield f"timeout is {self.timeout}; it must be finite and greater than 0"
        if not 0.0 <= self.wait < math.inf:
            yield f"wait is {self.wait}; it must be finite and 0 or greater"
        if self.top_logprobs < 2:
            yield f"top_logprobs is {self.top_logprobs}; it must be 2 or greater, for a yes and a no"
        if self.extra:
            yield from _problems_of_fields(self.extra)


def _problems_of_fields(text: str) -> Iterator[str]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        yield f"extra is not JSON ({error}); expected an object such as '{{\"detail\": 1}}'"
        return
    if not isinstance(fields, dict):
        yield f"extra is a {type(fields).__name__}; expected a JSON object of further fields"
    elif own := sorted(_OWN.intersection(fields)):
        yield f"extra has '{own[0]}', which the scorer sets itself; drop it"


@dataclass(frozen=True)
class Endpoint:
    """A model and the address under which it is asked."""

    model: str
    url: str
    """The base of its addresses, such as http://localhost:8000/v1."""

    @property
    def is_local(self) -> bool:
        """Whether frames stay on this machine."""
        return urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https:")


def parse_endpoint(argument: str, moved_to: str = "") -> Endpoint:
    """Split `<model>@<url>`; `moved_to` is where the endpoint is now, if not there.

    >>> parse_endpoint("Qwen/Qwen3-VL-8B-Instruct@http://localhost:8000")
    Endpoint(model='Qwen/Qwen3-VL-8B-Instruct', url='http://localhost:8000/v1')
    """
    # The names of some hosted models have an @ too.
    found = re.fullmatch(r"(.+?)@(https?://.*)", argument, re.DOTALL)
    if found is None:
        raise InputError(
            "the scorer 'openai' needs a model and the URL of its endpoint, openai:<model>@<url>, such as "
            "openai:Qwen/Qwen3-VL-8B-Instruct@http://localhost:8000/v1"
        )
    model, url = found.groups()
    return Endpoint(model, parse_url(moved_to or url))


def parse_url(text: str) -> str:
    """The base of an endpoint's addresses. Messages do not repeat what may be a secret."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"the URL of the endpoint cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"'{text}' is not the URL of an endpoint; expected one such as http://localhost:8000/v1")
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError(
            f"the URL of the endpoint at {host} has a user, a query or a fragment, which the run would write to its "
            f"files; expected only host and path, and a token in the environment variable {TOKENS[0]}"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def token(url: str) -> str:
    """The token for an endpoint; empty if none is set. It goes into requests and nowhere else.

    OPENAI_API_KEY may be set for other programs, so it is never sent unencrypted.
    """
    for name in TOKENS if url.startswith("https:") else TOKENS[:1]:
        if value := os.environ.get(name, "").strip():
            if not (value.isascii() and value.isprintable()) or " " in value:
                raise InputError(
                    f"the token in the environment variable {name} has a space, a line break or a letter that cannot "
                    "be sent; set it to the token alone"
                )
            return value
    return ""
