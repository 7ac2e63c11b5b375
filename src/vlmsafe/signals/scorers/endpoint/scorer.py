"""A scorer that asks an OpenAI-compatible endpoint: P(yes) to one question for each group of prompts.

Every question about every frame is a request of its own. Several are under way at a time, and the answers are put in
the order of the frames, so results do not depend on which comes first. Frames leave this machine unless the endpoint
is on it.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from vlmsafe.errors import InputError, unknown_name
from vlmsafe.signals.scorers.api import YES_NO_RULES, Inputs, Scorer, Similarities, check_frames
from vlmsafe.signals.scorers.endpoint.asking import COMPLETIONS, Asker, Refused, reason_of
from vlmsafe.signals.scorers.endpoint.chat import Answer, data_url, request_body
from vlmsafe.signals.scorers.endpoint.options import Endpoint, EndpointOptions, parse_endpoint, token
from vlmsafe.signals.scorers.questions import questions
from vlmsafe.signals.service.spec import GivenUp

if TYPE_CHECKING:
    from vlmsafe.signals.prompts import PromptSet

_TICK = 0.2  # seconds between two looks at whether to give up
_UNDECIDED = 0.5  # P(yes) where no listed token spells yes or no
_LOOK_SECONDS = 10.0  # at most, for the check before a study
_TRIAL = 64  # pixels of the picture that an endpoint is tried with


class EndpointScorer(Scorer):
    """Two columns: P(yes) for the description of the positive group and of the negative group."""

    looks_at = "frame"
    rules = YES_NO_RULES
    bounds = (0.0, 1.0)
    gate = "probability"
    groups = (1, 1)

    def __init__(
        self,
        endpoint: Endpoint,
        prompts: PromptSet,
        options: EndpointOptions,
        *,
        frames: int = 1,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Waiting ends with GivenUp once `give_up` returns True."""
        for problem in options.problems():
            raise InputError(f"the option {problem} (signal.endpoint)")
        self.frames = frames
        self._endpoint, self._options, self._give_up = endpoint, options, give_up
        self._questions = questions(prompts, "openai", frames)
        self._asker = Asker(endpoint, options, token(endpoint.url))
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()
        self._scored, self._undecided, self._seconds = 0, 0, 0.0

    @classmethod
    def load(
        cls,
        argument: str,
        prompts: PromptSet,
        options: EndpointOptions | None = None,
        *,
        frames: int = 1,
        give_up: Callable[[], bool] = lambda: False,
    ) -> EndpointScorer:
        """Wait for the endpoint, and ask it about one picture: what cannot work is refused before a run begins."""
        options = options or EndpointOptions()
        scorer = cls(parse_endpoint(argument, options.url), prompts, options, frames=frames, give_up=give_up)
        try:
            scorer.check_answers()
        except Refused as error:
            scorer.close()
            raise InputError(str(error)) from None
        except BaseException:
            scorer.close()
            raise
        return scorer

    def check_answers(self) -> None:
        """Refuse an endpoint whose answers are neither yes nor no."""
        picture = np.full((1, _TRIAL, _TRIAL, 3 * self.frames), 128, np.uint8)
        answers = self._ask(picture)
        if all(answer.yes is None for answer in answers):
            first = ", ".join(repr(text) for text in answers[0].first[:5])
            raise Refused(
                f"the model '{self._endpoint.model}' at {self._endpoint.url} does not answer yes or no: its most "
                f"probable first tokens are {first}; if it thinks first, switch that off, for example with "
                """--signal.endpoint.extra '{"chat_template_kwargs": {"enable_thinking": false}}'"""
            )

    def score(self, inputs: Inputs) -> Similarities:
        check_frames(inputs, self.frames)
        begun = time.monotonic()
        try:
            answers = self._ask(inputs)
        finally:
            self._seconds += time.monotonic() - begun
        self._scored += len(inputs)
        self._undecided += sum(answer.yes is None for answer in answers)
        found = [_UNDECIDED if answer.yes is None else answer.yes for answer in answers]
        return np.array(found, np.float32).reshape(len(inputs), len(self._questions))

    def describe(self) -> dict[str, Any]:
        options = self._options
        return {
            "model": self._endpoint.model,
            "endpoint": self._endpoint.url,
            "questions": list(self._questions),
            "image": options.image,
            "top_logprobs": options.top_logprobs,
            **({"extra": options.fields} if options.extra else {}),
        }

    def notes(self, env: str | None = None) -> list[str]:
        found = []
        if not self._endpoint.is_local:
            found.append(f"frames are sent to {self._endpoint.url}")
        if token(self._endpoint.url) and not self._endpoint.is_local and not self._endpoint.is_encrypted:
            found.append(f"the token and the frames are sent to {self._endpoint.url} unencrypted; use https")
        return found

    def bill(self) -> dict[str, float]:
        tally = self._asker.tally
        return {
            "frames": self._scored,
            "requests": tally.requests,
            "retries": tally.retries,
            "tokens_in": tally.tokens_in,
            "tokens_out": tally.tokens_out,
            "undecided": self._undecided,
            "seconds": round(self._seconds, 3),
        }

    def close(self) -> None:
        self._asker.close()
        with self._pool_lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)  # what still waits in it ends at once, because the asker is closed

    def _ask(self, inputs: Inputs) -> list[Answer]:
        """The answers to all questions about each frame, frame by frame."""
        self._asker.open()
        with self._pool_lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="endpoint")
            pool = self._pool
        try:
            asked = [pool.submit(self._asker.ask, body) for bodies in pool.map(self._bodies, inputs) for body in bodies]
        except RuntimeError:  # another thread closed the scorer
            raise GivenUp("the endpoint is not waited for any longer") from None
        return self._collected(asked)

    def _bodies(self, stack: Inputs) -> list[bytes]:
        """The requests about one stack of frames."""
        options = self._options
        pictures = [data_url(stack[..., 3 * i : 3 * i + 3], options.image) for i in range(self.frames)]
        return [
            request_body(self._endpoint.model, pictures, question, options.top_logprobs, options.fields)
            for question in self._questions
        ]

    def _collected(self, asked: Sequence[Future[Answer]]) -> list[Answer]:
        """The answers in the order of the questions. After a failure the other requests end too."""
        pending: set[Future[Answer]] = set(asked)
        try:
            while pending:
                done, pending = wait(pending, _TICK, return_when="FIRST_EXCEPTION")
                if self._give_up():
                    raise GivenUp("the endpoint is not waited for any longer")
                for future in done:
                    future.result()
        except BaseException:
            self._asker.close()
            wait(pending)
            raise
        return [future.result() for future in asked]


def look_up(argument: str, prompts: PromptSet, options: EndpointOptions | None = None) -> None:
    """Check that an endpoint answers and has the model, without waiting for it."""
    options = options or EndpointOptions()
    questions(prompts, "openai")
    endpoint = parse_endpoint(argument, options.url)
    asker = Asker(endpoint, EndpointOptions(timeout=min(options.timeout, _LOOK_SECONDS)), token(endpoint.url))
    try:
        listing = asker.look("/models")
        if listing.status in (401, 403):
            raise InputError(str(asker.refusal(listing)))
        models = asker.models() if listing.status == 200 else []
        if endpoint.model in models:
            return
        # Some endpoints list no models, or not all: aliases, for example. So it is asked for a word.
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 1}
        answer = asker.look(COMPLETIONS, json.dumps(body).encode())
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"the endpoint at {endpoint.url} does not answer ({reason_of(error)}); start it, or correct the URL"
        ) from None
    finally:
        asker.close()
    if answer.status == 200:
        return
    if models and answer.status in (400, 404):
        raise unknown_name(f"model of the endpoint at {endpoint.url}", endpoint.model, models)
    raise InputError(str(asker.refusal(answer)))
