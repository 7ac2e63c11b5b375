"""One simulated run for the benchmarks of the scoring service: a process that sends frames as a run does.

    python benchmarks/service_client.py '{"address": "unix:/tmp/s", "spec": {...}, "block": 64, ...}'

It connects, has one block scored while nobody else does, says so, and then reads orders from its standard input, one
JSON object a line: {"mode": "closed", "seconds": 10} keeps a number of blocks under way; {"mode": "open", "rate": 5.0,
"seconds": 10} sends blocks at random moments, so many a second on average, whether or not the service keeps up. Each
order is answered by a line with the frames scored, the latency of every block, and how many blocks came back otherwise
than the first time. Like a run with a service, it imports neither torch nor a library of models.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.api import Similarities
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.spec import ModelSpec, parse_address

SLOTS = 8


class Load:
    def __init__(self, given: dict[str, Any]) -> None:
        spec = ModelSpec(**given["spec"])
        self.scorer = ServiceScorer(
            parse_address(given["address"]), spec, load_prompts(given["prompts"]), 900.0, slots=SLOTS
        )
        dice = np.random.default_rng(given["seed"])
        self.dice = dice
        # Several blocks, so that the frames do not all lie in the processor's cache; a simulator's would not either.
        shape = (given["block"], *given["frame"])
        self.blocks = [dice.integers(0, 256, shape, np.uint8) for _ in range(given["blocks"])]
        self.expected: list[Similarities] = []
        self.latencies: list[float] = []
        self.wrong = self.frames = self.number = 0

    def calm(self) -> None:
        """What each block gets while nobody else asks."""
        self.expected = [self.scorer.score(block) for block in self.blocks]

    def send(self, due: float) -> Callable[[], None]:
        number = self.number % len(self.blocks)
        self.number += 1
        finish = self.scorer.begin([(self.scorer, self.blocks[number])])

        def take() -> None:
            (found,) = finish()
            self.latencies.append(time.perf_counter() - due)
            self.frames += len(found)
            self.wrong += not np.array_equal(found, self.expected[number])

        return take

    def closed(self, seconds: float, window: int) -> None:
        end = time.perf_counter() + seconds
        under_way: deque[Callable[[], None]] = deque()
        while time.perf_counter() < end:
            while len(under_way) < window:
                under_way.append(self.send(time.perf_counter()))
            under_way.popleft()()
        while under_way:
            under_way.popleft()()

    def open(self, seconds: float, rate: float) -> None:
        now = time.perf_counter()
        end, due = now + seconds, now + self.dice.exponential(1 / rate)
        under_way: deque[Callable[[], None]] = deque()
        while due < end or under_way:
            now = time.perf_counter()
            if due < end and now >= due and len(under_way) < SLOTS:
                under_way.append(self.send(due))
                due += self.dice.exponential(1 / rate)
                continue
            if not under_way:
                time.sleep(max(0.0, due - now))
                continue
            channel = self.scorer._connection.channel
            assert channel is not None
            rest = max(0.0, due - now) if due < end and len(under_way) < SLOTS else None
            if select.select([channel.socket], [], [], rest)[0]:
                under_way.popleft()()

    def report(self) -> dict[str, Any]:
        found = {"frames": self.frames, "latencies": self.latencies, "wrong": self.wrong}
        self.frames, self.latencies, self.wrong = 0, [], 0
        return found


def main() -> None:
    load = Load(json.loads(sys.argv[1]))
    load.calm()
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["mode"] == "closed":
            load.closed(order["seconds"], order["window"])
        elif order["mode"] == "open":
            load.open(order["seconds"], order["rate"])
        else:
            load.calm()
        print(json.dumps(load.report()), flush=True)
    load.scorer.close()


if __name__ == "__main__":
    main()
