"""Asks an endpoint until it answers: retries with growing pauses, rate limits, and when to stop.

Failures that may pass (no connection, a timeout, 429, 5xx) are retried for as long as some request has been answered
within the last `wait` seconds. Failures that do not pass (a refused token, an unknown model, no logprobs) stop at once.
Answers that do not follow the protocol are asked for again a few times. Every stop is a RunError, and a run that
stopped is resumed from its last checkpoint.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from vlmsafe.errors import RunError, VlmsafeError
from vlmsafe.signals.scorers.endpoint.chat import Answer, NoLogprobs, WrongAnswer, read_answer
from vlmsafe.signals.scorers.endpoint.http import Connections, Response
from vlmsafe.signals.scorers.endpoint.options import TOKENS, Endpoint, EndpointOptions
from vlmsafe.signals.service.spec import GivenUp

COMPLETIONS = "/chat/completions"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 20.0  # seconds between two attempts
_WRONG_ANSWERS = 5  # in a row to one question, after which the run stops
_SPEAK_SECONDS = 2.0  # of waiting before the user is told about it
_PASSING = (408, 409, 425, 429)  # and everything from 500 on
_LONGEST_TEXT = 200  # characters of an endpoint's own message
_NAMED = 20  # models in a message


class Refused(RunError):
    """The endpoint will not answer such a request, however often it is asked."""


class Silent(RunError):
    """The endpoint did not answer within the time that the run waits for it."""


@dataclass
class Tally:
    """What was sent and received; the basis of the bill."""

    requests: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0


class Asker:
    """Asks one endpoint; several threads use it at a time."""

    def __init__(self, endpoint: Endpoint, options: EndpointOptions, token: str) -> None:
        self.endpoint, self.tally = endpoint, Tally()
        self._options, self._token = options, token
        self._connections = Connections(endpoint.url, token, options.timeout)
        # A generator of its own: draws for pauses must not shift those of training.
        self._random = random.Random()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._heard = time.monotonic()  # when a request was last answered
        self._reached = False  # whether one ever was
        self._told = False  # whether the user knows of the present wait
        self._not_before = 0.0  # when the next request may be sent
        self._failure: RunError | None = None  # what ends the requests of all threads

    def open(self) -> None:
        """Undo `close`."""
        self._failure = None
        self._closed.clear()

    def close(self) -> None:
        """End every wait and request of every thread; they raise GivenUp."""
        self._closed.set()
        self._connections.hang_up()

    def ask(self, body: bytes) -> Answer:
        """The answer to one request, asked for as often as needed. After a failure no thread asks any more."""
        try:
            return self._asked(body)
        except RunError as error:
            with self._lock:
                self._failure = self._failure or error
            self._closed.set()
            raise

    def _asked(self, body: bytes) -> Answer:
        begun = time.monotonic()
        attempts = wrong = 0
        while True:
            self._await_turn()
            with self._lock:
                self.tally.requests += 1
                self.tally.retries += attempts > 0
            pause = 0.0
            try:
                response = self._connections.send("POST", COMPLETIONS, body)
                if response.status == 200:
                    return self._answered(read_answer(response.body))
                problem, pause = self._classified(response)
            except WrongAnswer as error:
                said, wrong = self._without_token(str(error)), wrong + 1
                problem = f"it answered with {said}"
                if wrong == _WRONG_ANSWERS:
                    raise self._stop(f"answered {wrong} times in a row with {said}, not with a completion") from None
            except NoLogprobs:
                raise Refused(
                    f"the endpoint at {self._where} gives no logprobs for the model '{self.endpoint.model}', so yes "
                    "and no have no probabilities; use a model or a server that gives top_logprobs, as vLLM does"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self._check_open()
                self._check_passing(error)
                problem = reason_of(error)
            attempts += 1
            self._wait_or_stop(begun, attempts, problem, pause)

    def look(self, path: str, body: bytes | None = None) -> Response:
        """The answer to one request that is sent once; OSError or HTTPException if there is none."""
        return self._connections.send("GET" if body is None else "POST", path, body)

    def refusal(self, response: Response) -> VlmsafeError:
        """The error for an answer that another attempt would not change."""
        status, said = response.status, self._message(response)
        if status in (401, 403):
            given = "refused the token" if self._token else "wants a token"
            return Refused(f"the endpoint at {self._where} {given} ({status}); set {TOKENS[0]} to one that it accepts")
        if status == 402 or "insufficient_quota" in said:
            return Refused(f"the account at {self._where} has no quota left ({status}): {said}; resume when it has")
        if 300 <= status < 400:
            to = response.headers.get("location", "somewhere else")
            return Refused(f"the endpoint at {self._where} redirects to {self._without_token(to)}; give that URL")
        if "logprobs" in said:
            return Refused(
                f"the endpoint at {self._where} refuses to give logprobs ({status}): {said}; lower "
                "--signal.endpoint.top-logprobs, or use a model that gives them"
            )
        hint = f"; it has {', '.join(models[:_NAMED])}" if (models := self.models()) and self._unlisted(models) else ""
        return Refused(
            f"the endpoint at {self._where} refuses requests for the model '{self.endpoint.model}' ({status}): "
            f"{said}{hint}"
        )

    def models(self) -> list[str]:
        """The names of the endpoint's models; empty where it does not list them."""
        try:
            found = json.loads(self.look("/models").body)
            return [str(entry["id"]) for entry in found["data"]]
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
            return []  # a list is only needed for a better message

    @property
    def _where(self) -> str:
        return self.endpoint.url

    def _unlisted(self, models: list[str]) -> bool:
        return self.endpoint.model not in models

    def _answered(self, answer: Answer) -> Answer:
        with self._lock:
            self.tally.tokens_in += answer.tokens_in
            self.tally.tokens_out += answer.tokens_out
            self._heard, self._reached, self._told = time.monotonic(), True, False
        return answer

    def _classified(self, response: Response) -> tuple[str, float]:
        """In words what went wrong, and the pause that the endpoint asks for; raises what will not pass."""
        said = self._message(response)
        if (response.status not in _PASSING and response.status < 500) or "insufficient_quota" in said:
            raise self.refusal(response)
        pause = _retry_after(response.headers.get("retry-after", ""))
        if pause > self._options.wait:
            raise self._stop(
                f"asks for a pause of {pause:.0f} seconds ({response.status}), longer than --signal.endpoint.wait, "
                f"{self._options.wait:g}"
            )
        return f"it answered {response.status}: {said}", pause

    def _wait_or_stop(self, begun: float, attempts: int, problem: str, pause: float) -> None:
        """Pause before the next attempt, or stop if the endpoint has been silent for too long."""
        now = time.monotonic()
        with self._lock:
            if pause:  # all threads keep away for that long
                self._not_before = max(self._not_before, now + pause)
            away = now - max(begun, self._heard)
            tell, self._told = not self._told and away > _SPEAK_SECONDS, self._told or away > _SPEAK_SECONDS
            growing = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (attempts - 1)) * self._random.uniform(0.5, 1.0)
        if away >= self._options.wait:
            raise self._gone(away, problem)
        if tell:
            print(f"waiting for the endpoint at {self._where} ({problem})", file=sys.stderr, flush=True)
        self._closed.wait(min(growing, self._options.wait - away))
        self._check_open()

    def _await_turn(self) -> None:
        """Wait until a request may be sent: after a pause that the endpoint asked for, and at the rate that is set."""
        with self._lock:
            turn = max(time.monotonic(), self._not_before)
            if self._options.per_minute is not None:
                self._not_before = turn + 60.0 / self._options.per_minute
        self._closed.wait(max(0.0, turn - time.monotonic()))
        self._check_open()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed.is_set():
            raise GivenUp("the endpoint is not waited for any longer")

    def _check_passing(self, error: Exception) -> None:
        """Raise where no connection will ever come about."""
        if isinstance(error, ssl.SSLCertVerificationError):
            raise Refused(f"the certificate of {self._where} is not trusted: {reason_of(error)}") from None
        if isinstance(error, socket.gaierror) and not self._reached:
            raise Refused(f"there is no host of the endpoint {self._where}: {reason_of(error)}") from None

    def _gone(self, away: float, problem: str) -> RunError:
        if not self._reached:
            return Silent(f"the endpoint at {self._where} does not answer ({problem}); start it, or correct the URL")
        return self._stop(f"has not answered for {away:.0f} seconds ({problem})", Silent)

    def _stop(self, what: str, kind: type[RunError] = RunError) -> RunError:
        return kind(
            f"the endpoint at {self._where} {what}; put it right and resume the run, with --signal.endpoint.url if it "
            "has moved"
        )

    def _message(self, response: Response) -> str:
        """What the endpoint says about an error, in one short line without the token."""
        try:
            found = json.loads(response.body)
            error = found.get("error", found)
            text = str(error.get("message", error)) if isinstance(error, dict) else str(error)
            text += f" ({error['code']})" if isinstance(error, dict) and isinstance(error.get("code"), str) else ""
        except (ValueError, AttributeError):
            text = response.body.decode(errors="replace")
        return self._without_token(" ".join(text.split()))[:_LONGEST_TEXT] or "no message"

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "***") if self._token else text


def reason_of(error: Exception) -> str:
    """Why there was no answer, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _retry_after(text: str, now: Callable[[], float] = time.time) -> float:
    """Seconds that a Retry-After header asks for, as a number or as a date; 0 if it says nothing.

    >>> _retry_after("1.5"), _retry_after("Thu, 01 Jan 1970 00:00:30 GMT", lambda: 10.0), _retry_after("soon")
    (1.5, 20.0, 0.0)
    """
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now())
    except ValueError:
        return 0.0
