"""Kill the parts of a study on a cluster at random, and check that nothing is lost.

    python tools/chaos.py [--minutes 10] [--seed 0] [--folder DIR]

Makes a Ray cluster of three nodes on this machine, runs a small study on it whose runs share a scoring service, and
kills at random moments the service, a node, a node's worker, a run's own process, one of its simulators, or the study
itself. What a user or a cluster would start again is started again: a node comes back, `study run` is repeated. When
the study is done, it is done again in another folder, until the time is over; the last one is then left to finish.

At the end every run must be there, every file must open, and everything that was learned and measured must equal a
study that was left alone, with a model in every run. Exit code 1 if not.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import tyro
import yaml

from vlmsafe.io.files import read_rows
from vlmsafe.runs.checkpoint import load_checkpoint
from vlmsafe.studies.execute import execute
from vlmsafe.studies.journal import JOURNAL
from vlmsafe.studies.launch.local import LocalLauncher
from vlmsafe.studies.schema import parse_study
from vlmsafe.studies.study import Study

STUDY = """\
name: chaos
question: Do runs survive?
environments: [braking]
seeds: [{seeds}]
total_steps: {steps}
settings: {{steps_per_epoch: 400, learner.update_iters: 2, num_envs: 1}}
arms:
  ppo-lag: {{method: ppo-lag}}
  oracle: {{method: vlm-ppo-lag, settings: {{signal.scorer: oracle}}}}
  embedded:
    method: vlm-ppo-lag
    settings: {{signal.scorer: embedded, signal.prompts: metadrive, signal.every: 50}}
protocols: [{{protocol: held-out, episodes: 4}}]
"""
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
TARGETS = ("service", "node", "worker", "run", "simulator", "study")


@dataclass(frozen=True)
class Options:
    """Kill parts of a running study at random."""

    minutes: float = 10.0
    """For how long."""
    seed: int = 0
    """Of the moments and the choice."""
    pause: float = 12.0
    """Seconds between two kills, on average."""
    seeds: int = 2
    """Runs per arm, of which there are three."""
    steps: int = 40_000
    """Steps of each run."""
    folder: Path | None = None
    """Where the studies are made; by default a temporary folder."""


class Chaos:
    def __init__(self, options: Options, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.options, self.folder, self.random = options, folder, random.Random(options.seed)
        text = STUDY.format(seeds=", ".join(map(str, range(1, options.seeds + 1))), steps=options.steps)
        self.file = folder / "chaos.yaml"
        self.file.write_text(text)
        self.study: Study = parse_study(text, str(self.file))
        self.killed: Counter[str] = Counter()
        self.begun = self.rounds = 0
        self.returning: list[float] = []  # when nodes come back
        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]
        self.process: subprocess.Popen[bytes] | None = None

    def round_folder(self) -> Path:
        return self.folder / f"round-{self.rounds}" / "chaos"

    def start(self) -> None:
        """`study run`, as a user would type it, the first time and whenever it has ended early."""
        words = [sys.executable, "-m", "vlmsafe", "study", "run", str(self.file)]
        words += ["--dir", str(self.round_folder()), "--root", str(self.folder), "--launcher", "ray"]
        words += ["--address", self.cluster.address, "--share-scorer", "--patience", "6"]
        with (self.folder / "study.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        self.begun += 1

    def run(self) -> None:
        until = time.monotonic() + 60 * self.options.minutes
        due = time.monotonic() + self._pause()
        self.rounds = 1
        self.start()
        while True:
            assert self.process is not None
            time.sleep(0.1)
            now = time.monotonic()
            if self.returning and now > self.returning[0]:
                self.returning.pop(0)
                self.bring_back_node()
            code = self.process.poll()
            if code == 0 and now > until:
                return
            if code is not None:
                if code == 0:
                    print(f"{_clock()} round {self.rounds} is done; another one begins", flush=True)
                    self.rounds += 1
                time.sleep(1.0)
                self.start()
            if due < now < until:
                self.kill(self.random.choice(TARGETS))
                due = now + self._pause()

    def bring_back_node(self) -> None:
        try:
            self.nodes.append(self.cluster.add_node(**NODE))
        except Exception as error:  # Ray's own kind: a busy machine takes longer than it allows a node to start
            print(f"{_clock()} a node did not come back, and is tried again: {error}", flush=True)
            self.returning.append(time.monotonic() + 10.0)

    def _pause(self) -> float:
        return self.random.uniform(0.2, 1.8) * self.options.pause

    def kill(self, target: str) -> None:
        """End something at once, if there is one now."""
        if target == "node":
            if len(self.nodes) < 2:
                return
            self.cluster.remove_node(self.nodes.pop(self.random.randrange(len(self.nodes))), allow_graceful=False)
            self.returning.append(time.monotonic() + self.random.uniform(5.0, 20.0))
        else:
            found = [process for process in descendants(os.getpid()) if process.kind == target]
            if not found:
                return
            try:
                os.kill(self.random.choice(found).pid, signal.SIGKILL)
            except ProcessLookupError:
                return
        self.killed[target] += 1
        print(f"{_clock()} killed: {target}", flush=True)

    def close(self) -> None:
        import ray

        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        ray.shutdown()
        self.cluster.shutdown()


@dataclass(frozen=True)
class Process:
    pid: int
    kind: str


def descendants(root: int) -> Iterator[Process]:
    """Processes that were started by one, or by those it started, with what each of them is; others are not touched."""
    parents: dict[int, int] = {}
    words: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            words[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            parents[int(path.name)] = int(parent)
    for pid in parents:
        line = [pid]
        while line[-1] in parents and line[-1] != root:
            line.append(parents[line[-1]])
        if line[-1] == root and len(line) > 1:
            yield Process(pid, _kind([words.get(one, "") for one in line[:-1]]))


def _kind(line: list[str]) -> str:
    """What a process is, from its command and those of its ancestors, itself first."""
    own = line[0]
    if "vlmsafe study run" in own:
        return "study"
    if "ray::" in own:
        return "service" if "ServiceActor" in own else "worker" if "CommandActor" in own else "other"
    if "vlmsafe train" in own or "vlmsafe evaluate" in own:
        return "run"
    if any("vlmsafe train" in words or "vlmsafe evaluate" in words for words in line[1:]):
        return "simulator"
    return "other"


def problems(study: Study, folder: Path, reference: Path) -> Iterator[str]:
    """What is wrong with a study that was disturbed: runs that are missing or differ, files that do not open."""
    for spec, other in zip(study.expand(folder), study.expand(reference), strict=True):
        rows = read_rows(spec.path / "epochs.jsonl")
        if [row["epoch"] for row in rows] != list(range(1, spec.config.epochs + 1)):
            yield f"{spec.path}: not every epoch is there once"
            continue
        for name in ("epochs.jsonl", "episodes.jsonl"):
            if (spec.path / name).read_bytes() != (other.path / name).read_bytes():
                yield f"{spec.path}: {name} is not that of the undisturbed run"
        events = Counter(row["event"] for row in read_rows(spec.path / "events.jsonl"))
        if events["finished"] != 1:
            yield f"{spec.path}: finished {events['finished']} times"
        arrays = [load_checkpoint(max((path / "checkpoints").iterdir())).arrays for path in (spec.path, other.path)]
        if not all((array == arrays[1][name]).all() for name, array in arrays[0].items()):
            yield f"{spec.path}: the last checkpoint is not that of the undisturbed run"
        tables = [pl.read_parquet(path / "evaluations" / "held-out.parquet") for path in (spec.path, other.path)]
        if not tables[0].equals(tables[1]):
            yield f"{spec.path}: the evaluation is not that of the undisturbed run"
    for path in folder.rglob("*"):
        try:
            check_file(path)
        except Exception as error:  # whatever a reader makes of a damaged file
            yield f"{path}: {type(error).__name__}: {error}"


def check_file(path: Path) -> None:
    """Read a file whole, by what it is; raises what its reader raises."""
    readers: dict[str, Any] = {
        ".parquet": pl.read_parquet,
        ".yaml": lambda path: yaml.safe_load(path.read_text()),
        ".safetensors": load_checkpoint,
        ".jsonl": read_rows,
    }
    if path.suffix in readers and not path.name.startswith("."):
        readers[path.suffix](path)
    if path.suffix == ".jsonl" and not path.read_bytes().endswith(b"\n"):
        raise ValueError("the last row is not whole")


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def main(options: Options) -> int:
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chaos = Chaos(options, folder)
    try:
        reference = folder / "undisturbed" / "chaos"
        outcome = execute(chaos.study, reference, LocalLauncher())
        assert not outcome.failed, outcome.failed
        print(f"{_clock()} left alone, {len(outcome.done)} runs are done; now {options.minutes:g} minutes of chaos")
        chaos.run()
    finally:
        chaos.close()
    wrong, losses, resumed = [], 0, 0
    for number in range(1, chaos.rounds + 1):
        done = folder / f"round-{number}" / "chaos"
        wrong += problems(chaos.study, done, reference)
        losses += sum(row["what"] == "lost" for row in read_rows(done / JOURNAL))
        events = [row for path in done.rglob("events.jsonl") for row in read_rows(path)]
        resumed += sum(row["event"] == "resumed" for row in events)
    runs = chaos.rounds * len(chaos.study.expand(folder))
    kills = ", ".join(f"{target} {count}" for target, count in sorted(chaos.killed.items()))
    print(f"killed {sum(chaos.killed.values())} times: {kills or 'nothing'}")
    print(
        f"{runs} runs in {chaos.rounds} rounds; study started {chaos.begun} times; runs lost with a node or worker and"
    )
    print(f"started again {losses} times, resumed from a checkpoint {resumed} times")
    for problem in wrong:
        print(f"WRONG: {problem}")
    print("every run equals the undisturbed one, and every file opens" if not wrong else f"{len(wrong)} problems")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
