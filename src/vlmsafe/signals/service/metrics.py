"""What a service counts, in the text format that Prometheus reads, and a small web server that shows it on request.

Counters outlive the models that they count for, because a counter that falls would be read as a restart.
"""

from __future__ import annotations

import bisect
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Labels = tuple[tuple[str, str], ...]
"""Names and values, such as (("scorer", "clip:openai/clip-vit-base-patch32"),)."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the histogram's buckets; slower blocks are in a last one."""
COUNTERS = {
    "frames": "Frames that were scored",
    "batches": "Batches that were computed",
    "failures": "Batches in which a scorer failed",
    "loads": "Models that were loaded",
    "evictions": "Idle models that were released",
    "refusals": "Messages and connections that were refused",
}
GAUGES = {
    "models": "Models by state",
    "clients": "Clients that have a model open",
    "queued_frames": "Frames that wait for their turn",
    "memory_bytes": "Memory of this process, and of GPUs that it has reserved",
}
_LATENCY = "vlmsafe_block_seconds"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HTTP_SECONDS = 10.0  # for a request


class Metrics:
    """Counters, and a histogram of how long blocks take from their arrival to their scores. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Labels]] = Counter()
        self._buckets: dict[Labels, list[int]] = {}
        self._seconds: dict[Labels, float] = {}

    def count(self, name: str, by: int, labels: Labels = ()) -> None:
        with self._lock:
            self._counts[name, labels] += by

    def observe(self, seconds: float, labels: Labels = ()) -> None:
        """Note how long a block took."""
        with self._lock:
            buckets = self._buckets.setdefault(labels, [0] * (len(SECONDS) + 1))
            buckets[bisect.bisect_left(SECONDS, seconds)] += 1
            self._seconds[labels] = self._seconds.get(labels, 0.0) + seconds

    def expose(self, gauges: Mapping[str, Mapping[Labels, float]]) -> str:
        """Everything in Prometheus's text format, with the gauges of this moment."""
        with self._lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
            buckets = {labels: list(found) for labels, found in self._buckets.items()}
        lines: list[str] = []
        for name, text in COUNTERS.items():
            found: dict[Labels, float] = {labels: value for (own, labels), value in counts.items() if own == name}
            if not found:
                found[()] = 0
            lines += _family(f"vlmsafe_{name}_total", "counter", text, found)
        for name, text in GAUGES.items():
            lines += _family(f"vlmsafe_{name}", "gauge", text, gauges.get(name, {}))
        lines += [f"# HELP {_LATENCY} Seconds from a block's arrival to its scores", f"# TYPE {_LATENCY} histogram"]
        for labels, found_buckets in sorted(buckets.items()):
            total = 0
            for end, number in zip((*map(str, SECONDS), "+Inf"), found_buckets, strict=True):
                total += number
                lines.append(_sample(f"{_LATENCY}_bucket", (*labels, ("le", end)), total))
            lines.append(_sample(f"{_LATENCY}_sum", labels, seconds[labels]))
            lines.append(_sample(f"{_LATENCY}_count", labels, total))
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, found: Mapping[Labels, float]) -> Iterable[str]:
    samples = [_sample(name, labels, value) for labels, value in sorted(found.items())]
    return (f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples)


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class MetricsServer:
    """Answers GET /metrics at a socket that listens already."""

    def __init__(self, listener: socket.socket, expose: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _HTTP_SECONDS

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "there is only /metrics")
                    return
                body = expose().encode()
                self.send_response(200)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                """Say nothing: a request every few seconds would fill the service's log."""

        self._http = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
        self._http.socket.close()
        self._http.socket = listener
        self._thread = threading.Thread(target=self._http.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
