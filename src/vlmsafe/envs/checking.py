"""`check_environment`: drive an environment in processes of its own, and say what training would meet.

`ExamineTask` measures inside a worker process. The main process watches what the worker is doing, so that it can end
one that hangs. `judge` turns the measurements into findings, each with what to do.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmsafe.envs.api import Env, EnvSpec, Frame, Observation
from vlmsafe.envs.examination import Examination, ExamineTask
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerCrash, WorkerError, WorkerPool
from vlmsafe.envs.wrappers import WrappedEnv
from vlmsafe.errors import EXIT_BAD_INPUT, EnvironmentFailure, VlmsafeError

Level = Literal["ok", "note", "warning", "error"]
LARGE_OBSERVATION = 10_000
"""Values of an observation beyond which training is slow and an epoch takes gigabytes."""
_SLOW = 100.0  # steps per second below which a million steps take hours
_CALLS = ("", "its import or __init__()", "reset()", "step()", "render()", "hazard()", "expert()", "progress()",
          "facts()")  # fmt: skip
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class EnvFinding:
    """One line of the answer."""

    part: str
    level: Level
    text: str
    """What was found and, if it is not in order, what to do."""
    details: str = ""
    """The traceback, where the environment raised an exception."""


class _Watched(WrappedEnv):
    """An environment that writes down each call before it is made, where another process reads it."""

    def __init__(self, env: Env, call: Any) -> None:
        super().__init__(env)
        self._call = call

    def _begin(self, name: str) -> None:
        sys.stdout.flush()  # what was printed must not be lost where this call ends the process
        # The count of calls, which tells two of the same name apart, and the name.
        self._call.value = (self._call.value // len(_CALLS) + 1) * len(_CALLS) + _CALLS.index(name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self._begin("reset()")
        return super().reset(seed=seed, options=options)

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._begin("step()")
        return super().step(action)

    def frame(self) -> Frame:
        self._begin("render()")
        return super().frame()

    def hazard(self) -> float:
        self._begin("hazard()")
        return super().hazard()

    def expert(self) -> Callable[[], NDArray[np.float64]] | None:
        self._begin("expert()")
        return super().expert()

    def progress(self) -> Mapping[str, float]:
        self._begin("progress()")
        return super().progress()

    def facts(self) -> Mapping[str, float]:
        self._begin("facts()")
        return super().facts()


@dataclass(frozen=True)
class _WatchedRecipe(EnvRecipe):
    """Makes the environment of a process that is watched, and keeps what it prints out of this command's output."""

    call: Any = None
    """A shared number: what `_Watched` writes."""
    output: Any = None
    """The pipe for standard output."""

    def make(self) -> Env:
        os.dup2(self.output.fileno(), 1)  # also for libraries that do not print through Python
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        self.call.value = _CALLS.index("its import or __init__()")
        return _Watched(super().make(), self.call)


class _Watch:
    """The main process's side: how long the current call has lasted, and whether anything was printed."""

    def __init__(self, spec: EnvSpec, patience: float) -> None:
        self._name, self._patience = spec.name, patience
        self._call = _CONTEXT.RawValue("q", 0)
        self._ours, self._theirs = _CONTEXT.Pipe(duplex=False)
        self.recipe = _WatchedRecipe(spec, spec.training, call=self._call, output=self._theirs)
        self._last, self._since = 0, 0.0
        self.printed = False
        self._reader = threading.Thread(target=self._forward, daemon=True)

    def run(self, task: ExamineTask) -> Examination:
        try:
            # One restart would be allowed, so that `_died` is called and can say more than the pool.
            with WorkerPool[Examination](self.recipe, 1, fresh=True, max_restarts=1, on_crash=self._died) as pool:
                pool.prepare()
                self._theirs.close()  # the worker has the other end now, and its death ends the reader
                self._reader.start()
                answers = pool.run([task], should_stop=self._hangs)
        finally:
            if self._reader.is_alive():
                self._reader.join(timeout=5.0)  # a process that the environment started may keep the pipe open
        if answers is None:
            raise EnvironmentFailure(
                f"environment '{self._name}' did not return from {self._doing} within {self._patience:,.0f} seconds; "
                "look for a loop or a wait without end there, or allow more time with a larger --seconds"
            )
        return answers[0]

    @property
    def _doing(self) -> str:
        return _CALLS[self._call.value % len(_CALLS)]

    def _hangs(self) -> bool:
        call, now = self._call.value, time.monotonic()
        if call != self._last or not call:  # 0: the process has not started yet
            self._last, self._since = call, now
        return now - self._since > self._patience

    def _died(self, crash: WorkerCrash) -> None:
        if "environment" in crash.cause:  # it ran in another interpreter, and the cause says so
            raise EnvironmentFailure(crash.cause)
        how = f"ended with {crash.cause}" if crash.cause.startswith("exit code") else f"was {crash.cause}"
        during = f" during {self._doing}" if self._doing else ""
        raise EnvironmentFailure(
            f"environment '{self._name}': its process {how}{during}; do the same in a Python program of your own to "
            "see why"
        )

    def _forward(self) -> None:
        """Pass on to standard error what the worker prints to standard output."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while printed := os.read(self._ours.fileno(), 1 << 16):
            self.printed = True
            with suppress(OSError, ValueError):  # nobody reads it any more
                sys.stderr.write(decoder.decode(printed))
                sys.stderr.flush()


def check_environment(
    spec: EnvSpec,
    *,
    steps: int = 2000,
    seconds: float = 20.0,
    steps_per_epoch: int = 20_000,
    patience: float | None = None,
) -> list[EnvFinding]:
    """Findings of an environment, from a number of steps or seconds, whichever ends first.

    `patience` is the number of seconds after which a call that does not return ends the check, by default three times
    `seconds` and 30 more. What the environment prints goes to standard error.
    """
    watches: list[_Watch] = []

    def examined(spec: EnvSpec, task: ExamineTask) -> Examination:
        spec.require()
        watches.append(_Watch(spec, 3.0 * seconds + 30.0 if patience is None else patience))
        return watches[-1].run(task)

    findings = _findings(spec, ExamineTask(spec.training.start, steps, seconds), examined, steps_per_epoch)
    if any(watch.printed for watch in watches):
        text = (
            "it prints to standard output, which was sent to standard error here; in training it mixes with other "
            "output, so leave the prints out, or use logging"
        )
        findings.append(EnvFinding("prints", "note", text))
    return findings


def _findings(
    spec: EnvSpec, task: ExamineTask, examined: Callable[[EnvSpec, ExamineTask], Examination], steps_per_epoch: int
) -> list[EnvFinding]:
    try:
        found = examined(spec, task)
        again = examined(spec, dataclasses.replace(task, once=True))
    except VlmsafeError as error:
        part = "start" if error.exit_code == EXIT_BAD_INPUT else "running"
        return [EnvFinding(part, "error", str(error), _raised(error))]
    try:
        frames = examined(dataclasses.replace(spec, frames=True), dataclasses.replace(task, frames=True))
    except VlmsafeError as error:
        rendering = _no_frames(found, error)
    else:
        rendering = _judge_frames(frames)
    return list(judge(spec, found, again, rendering, steps_per_epoch))


def _raised(error: VlmsafeError) -> str:
    """The traceback through the environment's own code; empty if it raised nothing."""
    return error.details if isinstance(error, WorkerError) and error.raised else ""


def judge(
    spec: EnvSpec, found: Examination, again: Examination, rendering: EnvFinding, steps_per_epoch: int
) -> Iterator[EnvFinding]:
    """What measurements mean. `again` is from a fresh process."""
    yield from _judge_numbers(found)
    yield _judge_size(found, steps_per_epoch)
    yield _judge_actions(found)
    yield _judge_end(spec, found)
    yield _judge_seeds(spec, found, again)
    yield rendering
    yield _judge_speed(found)
    known = ("hazard", "expert", "progress", "facts")
    yield from (EnvFinding(name, "error", found.problems[name]) for name in known if name in found.problems)
    if extras := [name for name in known if name in found.extras and name not in found.problems]:
        yield EnvFinding("extras", "ok", f"it has {', '.join(extras)}")


def _judge_numbers(found: Examination) -> Iterator[EnvFinding]:
    if problem := found.problems.get("cost"):
        yield EnvFinding("cost", "error", problem)
    elif not found.costly:
        yield EnvFinding(
            "cost", "note",
            f"no step of {found.steps:,} with random actions cost anything; if that is not what you expect, look at "
            "info['cost']",
        )  # fmt: skip
    elif found.costly == found.steps:
        yield EnvFinding(
            "cost", "warning",
            f"all of {found.steps:,} steps with random actions cost, so a budget cannot tell what is safe from what is "
            "not; report a cost only where something is unsafe",
        )  # fmt: skip
    else:
        share = 100 * found.costly / found.steps
        yield EnvFinding(
            "cost", "ok", f"{share:.1f} % of {found.steps:,} steps cost; a step costs up to {found.costs:g}"
        )
    for part in ("reward", "observation"):
        if problem := found.problems.get(part):
            yield EnvFinding(part, "error", problem)
    if found.departure:
        yield EnvFinding(
            "space", "warning",
            f"an observation {found.departure}; training converts it to float32 and uses it as it is, so only the "
            "declaration is wrong: correct observation_space",
        )  # fmt: skip


def _judge_size(found: Examination, steps_per_epoch: int) -> EnvFinding:
    text = f"{found.size:,} values per observation"
    if found.size <= LARGE_OBSERVATION:
        return EnvFinding("size", "ok", text)
    return EnvFinding("size", "warning", f"{text}: {size_advice(found.size, steps_per_epoch)}")


def size_advice(size: int, steps_per_epoch: int) -> str:
    """What to do about observations of very many values."""
    return (
        f"an epoch of {steps_per_epoch:,} steps holds {4e-9 * size * steps_per_epoch:.1f} GB, and the networks are "
        "fully connected, so training is slow. Observe a vector or a smaller picture, or lower --steps-per-epoch"
    )


def _judge_actions(found: Examination) -> EnvFinding:
    if found.whole:
        return EnvFinding(
            "actions", "warning",
            f"they are whole numbers ({found.whole}), and the learners need a one-dimensional Box of continuous "
            "actions, which are cut to whole numbers here; declare dtype=np.float32, and round in step()",
        )  # fmt: skip
    if found.fixed:
        return EnvFinding(
            "actions", "warning",
            f"low equals high for action {', '.join(map(str, found.fixed))}, so there is nothing to choose; leave it "
            "out of action_space",
        )  # fmt: skip
    if not found.unbounded:
        return EnvFinding("actions", "ok", "bounded; the policy's -1 to 1 is stretched to the bounds")
    return EnvFinding(
        "actions", "note",
        f"{found.unbounded} of the actions have no finite bounds; the policy's -1 to 1 is passed on as it is",
    )  # fmt: skip


def _judge_end(spec: EnvSpec, found: Examination) -> EnvFinding:
    limit = spec.longest
    if len(found.ends) > 1 and max(found.ends) == 1:
        return EnvFinding(
            "end", "warning",
            f"each of {len(found.ends):,} episodes ended with its first step, so no action has consequences; look at "
            "terminated and truncated in what step() returns, and at max_episode_steps",
        )  # fmt: skip
    if found.ends:
        mean = sum(found.ends) / len(found.ends)
        text = f"{len(found.ends)} episodes ended, after {mean:,.0f} steps on average"
        if found.step_limit is None:
            return EnvFinding("end", "ok", text)
        return EnvFinding(
            "end", "note",
            f"{text}; no time limit is registered, so a policy may find an episode without end, which evaluations cut "
            f"after {found.step_limit:,} steps: register it with max_episode_steps",
        )  # fmt: skip
    if found.step_limit is None:
        known = f" of up to {limit:,}" if limit else ""
        return EnvFinding("end", "ok", f"this check left the longest episode{known} after {found.longest:,} steps")
    return EnvFinding(
        "end", "error",
        f"no episode ended within {found.longest:,} steps, and no time limit is registered: no episode would count in "
        f"the episode cost, and evaluations cut after {found.step_limit:,} steps. Register it with max_episode_steps",
    )  # fmt: skip


def _judge_seeds(spec: EnvSpec, found: Examination, again: Examination) -> EnvFinding:
    one, *others = found.digests[:3]
    if not _agree(one, again.digests[0]):
        return EnvFinding(
            "seeds", "error",
            "the same seed and actions gave other numbers in a new process, so runs do not resume exactly and "
            "evaluations cannot be paired: call super().reset(seed=seed), draw from self.np_random only, and use no "
            "clock",
        )  # fmt: skip
    if len(others) < 2:
        return EnvFinding(
            "seeds", "note", "the time did not suffice to repeat a seed in the same process; use a larger --seconds"
        )
    if not _agree(one, others[0]):
        if spec.fresh_process:
            return EnvFinding("seeds", "ok", "the same seed and actions repeat exactly in a new process, which it gets")
        return EnvFinding(
            "seeds", "warning",
            "an episode depends on the one before it: in a new process the same seed repeats, in the same process it "
            "does not. Reset everything in reset(), or train with --fresh-workers always",
        )  # fmt: skip
    if _agree(one, others[1]):
        return EnvFinding(
            "seeds", "note", "two seeds gave the same numbers for the actions of one of them, or hardly any numbers"
        )
    return EnvFinding("seeds", "ok", "the same seed and actions repeat exactly, in this process and in a new one")


def _agree(one: list[bytes], other: list[bytes]) -> bool:
    """Whether two rollouts are the same as far as both went: time may have cut one of them."""
    return all(mine == yours for mine, yours in zip(one, other, strict=False))


def _no_frames(found: Examination, error: VlmsafeError) -> EnvFinding:
    text = f"no frames, so scorers that look at frames cannot be used: {error}"
    if not found.renders:
        return EnvFinding(
            "rendering", "note",
            f"{text}. To have them, put 'rgb_array' into metadata['render_modes'] and return RGB from render()",
        )  # fmt: skip
    advice = ". Correct render(), or take 'rgb_array' out of metadata['render_modes']" if _raised(error) else ""
    return EnvFinding("rendering", "warning", text + advice, _raised(error))


def _judge_frames(seen: Examination) -> EnvFinding:
    if problem := seen.problems.get("rendering"):
        return EnvFinding("rendering", "warning", problem)
    assert seen.frame is not None
    height, width = seen.frame[:2]
    return EnvFinding("rendering", "ok", f"frames of {height} x {width}, {1000 * seen.frame_seconds:.1f} ms each")


def _judge_speed(found: Examination) -> EnvFinding:
    speed = found.steps / max(found.step_seconds, 1e-9)
    text = f"{speed:,.0f} steps/s in one process; a reset takes up to {1000 * found.reset_seconds:,.1f} ms"
    if speed >= _SLOW:
        return EnvFinding("speed", "ok", text)
    hours = 1e6 / speed / 3600
    return EnvFinding(
        "speed", "warning",
        f"{text}: a million steps take {hours:,.0f} hours in one process. Use more with --num-envs, or fewer steps",
    )  # fmt: skip
