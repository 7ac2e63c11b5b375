"""A small server that speaks the protocol of OpenAI's chat completions, in a process of its own.

It has no model. P(yes) is computed from the pixels of the pictures, so answers differ between frames and are the same
every time. It can be told to be slow, limited, broken or wrong, for all requests or for some of them.

    python openai_server.py PORT [TOKEN]
"""

import base64
import io
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

MODEL = "toy/brightness@1"
SLOW_SECONDS = 1.5
"""How long a slow answer takes; clients in tests have a shorter timeout."""


def probability(pictures: list[np.ndarray], question: str) -> float:
    """P(yes): how bright the upper part of the newest picture is; the other way round for questions about danger."""
    newest = pictures[-1].astype(np.float64)
    rows = np.linspace(1.0, 0.0, len(newest))
    light = float((newest.mean(axis=(1, 2)) * rows).sum() / rows.sum()) / 255.0
    odds = 12.0 * (light - 0.65) * (-1.0 if "danger" in question else 1.0) + 0.5 * (len(pictures) - 1)
    return 1.0 / (1.0 + math.exp(-odds))


def completion(body: dict) -> dict:
    """The answer to a request, with four spellings of yes and no."""
    *images, text = body["messages"][0]["content"]
    data = [base64.b64decode(image["image_url"]["url"].partition(",")[2]) for image in images]
    pictures = [np.asarray(Image.open(io.BytesIO(one)).convert("RGB")) for one in data]
    yes = 0.9 * probability(pictures, text["text"])
    listed = {"Yes": 0.75 * yes, " yes": 0.25 * yes, "No": 0.6 * (0.9 - yes), "\u2581no": 0.4 * (0.9 - yes), "The": 0.1}
    top = [{"token": token, "logprob": math.log(max(p, 1e-30))} for token, p in listed.items()]
    top = sorted(top, key=lambda entry: -entry["logprob"])[: body["top_logprobs"]]
    logprobs = {"content": [{**top[0], "top_logprobs": top}]}
    usage = {"prompt_tokens": 100 * len(pictures) + 17, "completion_tokens": 1}
    return {"choices": [{"message": {"content": top[0]["token"]}, "logprobs": logprobs}], "usage": usage}


class Trouble:
    """What goes wrong, from which request on, and how many requests are between two troubled ones (1 for all)."""

    def __init__(self, kinds: list[str], every: int = 1, after: int = 0) -> None:
        self._kinds, self._every, self._after = kinds, every, after
        self._count = itertools.count(1)
        self._turn = itertools.count()

    def next(self) -> str:
        number = next(self._count)
        if not self._kinds or number <= self._after or number % self._every:
            return ""
        return self._kinds[next(self._turn) % len(self._kinds)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    trouble = Trouble([])
    token = ""
    lists_models = True
    asked: list[dict] = []  # noqa: RUF012 - one server per process

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/asked":
            self.reply(200, {"count": len(self.asked), "last": self.asked[-1] if self.asked else None})
        elif not self.allowed():
            self.reply(401, {"error": {"message": f"bad token {self.headers.get('Authorization')}"}})
        elif path == "/v1/models" and self.lists_models:
            self.reply(200, {"data": [{"id": MODEL}, {"id": "toy/other"}]})
        else:
            self.reply(404, {"error": {"message": "there is nothing"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/trouble":
            Handler.trouble = Trouble(body["kinds"], body["every"], body["after"])
            Handler.token, Handler.lists_models = body.get("token", self.token), body.get("lists_models", True)
            self.reply(200, {})
            return
        self.asked.append(body)
        if not self.allowed():
            self.reply(401, {"error": {"message": f"bad token {self.headers.get('Authorization')}"}})
        elif body["model"] != MODEL:
            self.reply(404, {"error": {"message": f"the model {body['model']} does not exist", "code": "no_model"}})
        elif not self.troubled(body, self.trouble.next()):
            self.reply(200, completion(body) if "logprobs" in body else {"choices": [{}]})

    def troubled(self, body: dict, kind: str) -> bool:
        """Answer as the trouble wants; False if there is none."""
        if kind == "slow":
            time.sleep(SLOW_SECONDS)
            return False
        if kind == "dropped":
            self.close_connection = True
        elif kind == "limited":
            self.reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.05"})
        elif kind == "limited for long":
            self.reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "3600"})
        elif kind == "quota":
            self.reply(429, {"error": {"message": "no money", "code": "insufficient_quota"}})
        elif kind == "failing":
            self.reply(503, {"error": "overloaded"})
        elif kind == "too many logprobs":
            self.reply(400, {"error": {"message": "top_logprobs must be at most 5"}})
        elif kind == "refusing":
            self.reply(401, {"error": {"message": "the token has expired"}})
        elif kind == "no JSON":
            self.reply(200, b"<html>bad gateway</html>")
        elif kind == "no choices":
            self.reply(200, {"detail": "hello"})
        elif kind == "NaN":
            answer = completion(body)
            answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] = math.nan
            self.reply(200, answer)
        elif kind == "no logprobs":
            self.reply(200, {"choices": [{"message": {"content": "Yes"}, "logprobs": None}]})
        elif kind == "thinking":
            top = [{"token": token, "logprob": -1.0} for token in ("<think>", "Well")]
            self.reply(200, {"choices": [{"logprobs": {"content": [{**top[0], "top_logprobs": top}]}}]})
        elif kind == "redirecting":
            self.reply(307, {}, {"Location": "https://elsewhere/v1"})
        elif kind == "inverted":  # another model under the same name
            body["messages"][0]["content"][-1]["text"] += " danger"
            return False
        else:
            return False
        return True

    def allowed(self) -> bool:
        return not self.token or self.headers.get("Authorization") == f"Bearer {self.token}"

    def reply(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that hung up


class Server:
    """The server in a process of its own, for tests."""

    def __init__(self, token: str = "") -> None:
        self._token, self.port = token, 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def scorer(self) -> str:
        return f"openai:{MODEL}@{self.url}"

    def start(self) -> None:
        """Start it, at the same port as before."""
        command = [sys.executable, __file__, str(self.port), self._token]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def tell(self, *kinds: str, every: int = 1, after: int = 0, **more: object) -> None:
        """What goes wrong with every so many requests, after so many from now on; nothing without kinds."""
        self._request("/trouble", {"kinds": kinds, "every": every, "after": after, **more})

    def asked(self) -> dict:
        """How many completions were asked for, and the last request."""
        return self._request("/asked")

    def _request(self, path: str, body: dict | None = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}{path}", data, timeout=60.0) as answer:
            return json.loads(answer.read())


def main() -> None:
    Handler.token = sys.argv[2] if len(sys.argv) > 2 else ""
    server = Quiet(("127.0.0.1", int(sys.argv[1])), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.pause()


if __name__ == "__main__":
    main()
