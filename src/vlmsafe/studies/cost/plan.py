"""The cost of a study: runs, steps, hours and memory, estimated from measured speeds.

If there are runs with the same environment, workers, learner and scorer, the speed is theirs: the seconds per stage in
timing.jsonl. Otherwise it is computed from `speeds.csv`. That table has the seconds of one core for a step of the
simulator, a frame, a score, and a pass of the learner over a sample; `benchmarks/speeds.py` measures it. Every row of a
plan says which of the two it is based on.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import VlmsafeError
from vlmsafe.evaluation.gated_scorers import default_scorers
from vlmsafe.runs.run import Run
from vlmsafe.signals.scorers.registry import NO_SCORER, kind_of, parse_scorer
from vlmsafe.studies.progress import RunProgress, run_progress
from vlmsafe.studies.scorer.shared import shares
from vlmsafe.studies.steps import steps_after_training
from vlmsafe.studies.study import EpisodeRequest, RunSpec, cells

_GUESS = 2**30  # bytes of a run whose memory was never measured
_HORIZON = 1000  # steps of an episode whose length only the environment knows
_PLACES = ("*", "*/*", "*/*/seed-*", "*/*/*/seed-*")
"""Where runs are looked for under a folder: single ones, those of a comparison, and those of studies."""
_FROM_RUNS, _FROM_TABLE, _UNKNOWN = "runs", "table", "not measured"

Key = tuple[str, int, int, str, int, tuple[int, ...], int, str, int]


@dataclass(frozen=True)
class Speeds:
    """Measured speeds: of parts, and of whole runs under a folder."""

    parts: dict[tuple[str, str], float]
    """(name, quantity) -> value, such as ("metadrive-easy", "step"); seconds of one core, or bytes."""
    root: Path | None = None

    @classmethod
    def of(cls, root: Path | None) -> Speeds:
        """The shipped table, and the runs under a folder: single ones, and those of studies."""
        return cls(shipped_speeds(), root)

    @cached_property
    def _runs(self) -> dict[Key, float]:
        """Seconds of one core per step, for every kind of run under the folder."""
        found: dict[Key, tuple[float, int]] = {}
        root = self.root
        for path in sorted(path for place in _PLACES for path in root.glob(f"{place}/timing.jsonl")) if root else ():
            try:
                run = Run.open(path.parent)
                rows = run.rows("timing")
            except VlmsafeError:
                continue  # a damaged run has no speed; `study run` reports it
            seconds = sum(value for row in rows for name, value in row.items() if name != "epoch")
            before = found.get(_key(run.config), (0.0, 0))
            found[_key(run.config)] = (before[0] + seconds, before[1] + len(rows) * run.config.steps_per_epoch)
        return {key: key[1] * seconds / steps for key, (seconds, steps) in found.items() if steps}

    def training(self, config: TrainConfig) -> tuple[float | None, str]:
        """Seconds of one core for a whole run, and what they are based on."""
        if (measured := self._runs.get(_key(config))) is not None:
            return measured * config.total_steps, _FROM_RUNS
        step, passed = self._env(config.env, "step"), self.parts.get((config.learner.algorithm, "pass"))
        scored = self._scoring(config.env, [config.signal.scorer], config.signal.period)
        if step is None or passed is None or scored is None:
            return None, _UNKNOWN
        spec = config.spec
        starts = config.epochs * config.num_envs if spec.fresh_process else config.num_envs
        begin = starts * (self._env(config.env, "start") or 0.0)
        # The critics are fitted in every pass; stopping early by the divergence only makes it shorter.
        per_step = config.action_repeat * step + scored + config.learner.update_iters * passed
        return config.total_steps * per_step + begin, _FROM_TABLE

    def without_model(self, config: TrainConfig) -> float | None:
        """Seconds of one core for a whole run without its model, from the table alone; None if not measured."""
        step, passed = self._env(config.env, "step"), self.parts.get((config.learner.algorithm, "pass"))
        scorer, frame = config.signal.scorer, self._env(config.env, "frame")
        scored = frame if kind_of(scorer).wants_gpu else self._scoring(config.env, [scorer], 1)
        if step is None or passed is None or scored is None:
            return None
        starts = config.epochs * config.num_envs if config.spec.fresh_process else config.num_envs
        per_step = config.action_repeat * step + scored / config.signal.period + config.learner.update_iters * passed
        return config.total_steps * per_step + starts * (self._env(config.env, "start") or 0.0)

    def episodes(self, spec: RunSpec, request: EpisodeRequest, *, trace: bool) -> float | None:
        """Seconds of one core for an evaluation or a trace of a run, with episodes of full length."""
        step = self._env(spec.env, "step")
        scorers = (list(request.scorers) or default_scorers(spec.config, request.prompts)) if trace else []
        scored = self._scoring(spec.env, scorers, request.every)
        if step is None and (measured := self._runs.get(_key(spec.config))) is not None:
            # A step of training also learns, so this is rather too long. It contains the run's own scorer.
            step, scored = measured, 0.0 if scorers in ([], [spec.config.signal.scorer]) else scored
        if step is None or scored is None:
            return None
        length = env_spec(spec.env).horizon or _HORIZON
        return request.count * (length * (step + scored) + (self._env(spec.env, "start") or 0.0))

    def memory(self, spec: RunSpec, *, shared: bool = False) -> int:
        """Bytes of a run: the main process, its workers, and the model unless it is shared."""
        config = spec.config
        elsewhere = shared and shares(config.signal.scorer)
        worker = self._env(config.env, "memory")
        model = 0.0 if elsewhere else self._scorer(config.signal.scorer, "memory")
        main = self.parts.get(("main", "memory"))
        if worker is None or model is None or main is None:
            return _GUESS
        return int(main + config.num_envs * worker + model)

    def _env(self, env: str, quantity: str) -> float | None:
        """A quantity of an environment; a variant that was not measured counts as the environment itself."""
        found = self.parts.get((env, quantity))
        return self.parts.get((env.partition(":")[0], quantity)) if found is None else found

    def _scorer(self, name: str, quantity: str) -> float | None:
        if name == NO_SCORER:
            return 0.0
        scorer = parse_scorer(name).unshuffled
        found = self.parts.get((str(scorer), quantity))
        # Models of one kind differ in size. For other scorers, the part after the colon does not matter.
        return self.parts.get((scorer.kind.name, quantity)) if found is None and not scorer.kind.wants_gpu else found

    def _scoring(self, env: str, scorers: Iterable[str], every: int) -> float | None:
        """Seconds per step for frames and scores."""
        total = 0.0
        for name in scorers:
            score = self._scorer(name, "score")
            frame = self._env(env, "frame") if kind_of(name).takes_prompts else 0.0
            if score is None or frame is None:
                return None
            total += (score + frame) / every
        return total


def gpu_share(spec: RunSpec, share: float) -> float:
    """The GPU share of a run: `share` if its own process holds a large model, else 0."""
    signal = spec.config.signal
    return share if kind_of(signal.scorer).wants_gpu and signal.device != "cpu" else 0.0


def shipped_speeds() -> dict[tuple[str, str], float]:
    """The table in the package."""
    text = (resources.files("vlmsafe.studies.cost") / "speeds.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {(row["name"], row["quantity"]): float(row["value"]) for row in rows}


def measured_on() -> str:
    """The machine on which the shipped table was measured."""
    text = (resources.files("vlmsafe.studies.cost") / "speeds.csv").read_text(encoding="utf-8")
    return text.splitlines()[0].removeprefix("#").strip()


def _key(config: TrainConfig) -> Key:
    """The settings that decide how long a step takes."""
    signal = config.signal
    return (
        config.env, config.num_envs, config.action_repeat, config.learner.algorithm, config.learner.update_iters,
        config.learner.hidden, config.learner.batch_size, signal.scorer,
        signal.period if signal.scorer != "none" else 0,
    )  # fmt: skip


@dataclass(frozen=True)
class PlanRow:
    """One arm in one environment."""

    env: str
    arm: str
    runs: int
    done: int
    steps: int
    run_hours: float | None
    """Hours of one run with its workers in parallel; None if nothing like it was measured."""
    core_hours_left: float | None
    """Of all that is left, as far as it was measured; None if none of it was."""
    incomplete: bool
    """Whether a part of what is left was not measured."""
    memory: int
    source: str


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study, with totals."""

    rows: tuple[PlanRow, ...]
    at_a_time: int
    """Cores that the runs can use together, within cores and memory."""
    cores: int

    @property
    def runs(self) -> int:
        return sum(row.runs for row in self.rows)

    @property
    def done(self) -> int:
        return sum(row.done for row in self.rows)

    @property
    def steps(self) -> int:
        return sum(row.steps for row in self.rows)

    @property
    def incomplete(self) -> bool:
        return any(row.incomplete for row in self.rows)

    @property
    def core_hours(self) -> float | None:
        """Of all that is left, as far as it was measured; None if none of it was."""
        known = [row.core_hours_left for row in self.rows if row.core_hours_left is not None]
        return None if self.incomplete and not sum(known) else sum(known)

    @property
    def hours(self) -> float | None:
        """Hours until the end, with as many runs at a time as there is room for."""
        return None if self.core_hours is None else self.core_hours / max(1, min(self.cores, self.at_a_time))

    @property
    def notes(self) -> list[str]:
        sources = {row.source for row in self.rows}
        found = []
        if _FROM_RUNS in sources:
            found.append("'runs': speeds of runs of the same kind in this folder")
        if _FROM_TABLE in sources:
            found.append(f"'table': {measured_on()}")
        if self.incomplete:
            found.append("the hours leave out what was not measured; a run of a few epochs measures it")
        return found


def plan(specs: Sequence[RunSpec], root: Path, cores: int, memory: int, speeds: Speeds | None = None) -> StudyPlan:
    """What remains to be done in a study, and how long that takes with the given cores and memory."""
    speeds = speeds or Speeds.of(root)
    rows = tuple(_row(own, speeds) for own in cells(specs).values())
    widest = max(spec.config.num_envs for spec in specs)
    largest = max(row.memory for row in rows)
    return StudyPlan(rows, max(1, min(cores // widest, memory // largest)) * widest, cores)


def _episodes_left(spec: RunSpec, seen: RunProgress) -> list[tuple[EpisodeRequest, bool]]:
    """The evaluations and traces (true) that a run lacks, by the rule of `study run`."""
    if seen.status == "trained":
        with suppress(VlmsafeError):  # a run that cannot be read is made again
            steps = steps_after_training(Run.open(spec.path), spec)
            return [(step.request, step.kind == "trace") for step in steps if step.request is not None]
    return [*((request, False) for request in spec.evaluations), *((request, True) for request in spec.traces)]


def _row(own: Sequence[RunSpec], speeds: Speeds) -> PlanRow:
    """The row of a cell. Its runs train alike, but a trace may be wanted for some seeds only."""
    first = own[0]
    training, source = speeds.training(first.config)
    done, known = 0, []
    incomplete = False
    for spec in own:
        seen = run_progress(spec)
        left = [(training, max(0, spec.config.epochs - seen.epochs) / spec.config.epochs)]
        left += [(speeds.episodes(spec, request, trace=trace), 1.0) for request, trace in _episodes_left(spec, seen)]
        wanted = [(seconds, share) for seconds, share in left if share]
        done += not wanted
        known += [seconds * share for seconds, share in wanted if seconds is not None]
        incomplete |= any(seconds is None for seconds, _ in wanted)
    whole = None
    if training is not None:
        episodes = [speeds.episodes(first, request, trace=False) for request in first.evaluations]
        episodes += [speeds.episodes(first, request, trace=True) for request in first.traces]
        whole = training + sum(seconds or 0.0 for seconds in episodes)
    return PlanRow(
        first.env, first.arm, len(own), done, sum(spec.config.total_steps for spec in own),
        run_hours=None if whole is None else whole / 3600.0 / first.config.num_envs,
        core_hours_left=None if incomplete and not known else sum(known) / 3600.0,
        incomplete=incomplete, memory=speeds.memory(first), source=source,
    )  # fmt: skip
