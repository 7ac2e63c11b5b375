"""Simulators in separate processes: start them, give them tasks, restart them when they crash.

A `Task` is a piece of work on one environment (an epoch's share of steps, an evaluation episode). `WorkerPool.run`
spreads tasks over at most `size` processes. Each process owns one environment; with `fresh=True` it ends after one
task, because some simulators carry state from one episode into the next.

Processes are forked from a server that has imported the simulator and done nothing else, so a new one costs tens of
milliseconds instead of seconds and still starts from a clean state. Python's string hashing is fixed in that server, so
that a simulator that iterates over sets uses the same order in every process of every run.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from vlmsafe.envs.api import Env, EnvSpec, Scenarios
from vlmsafe.envs.bridge.adapter import raised
from vlmsafe.envs.vector.frames import Reader, Receiver, Sender, Stream
from vlmsafe.errors import EXIT_FAILED, EnvironmentFailure, VlmsafeError
from vlmsafe.io.output import outlive_reader

Result = TypeVar("Result", covariant=True)
R = TypeVar("R")

_POLL_SECONDS = 0.1
_CONTEXT = multiprocessing.get_context("forkserver")
WORKER_VARIABLES = {
    "PYTHONHASHSEED": "0",
    # One BLAS thread per worker: the policy's products are tiny, and the workers already fill the cores.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Environment variables of processes with environments."""


class Task(Protocol[Result]):
    """Work on one environment. Instances travel to a worker process, results travel back."""

    def run(self, env: Env, tick: Callable[[int], None], /, *sender: Any) -> Result:
        """Do the work; call `tick(steps)` now and then with the environment steps done so far.

        In a pool with a stream a third argument follows, the `Sender` for its frames.
        """


@dataclass(frozen=True)
class EnvRecipe:
    """How a worker makes its environment."""

    spec: EnvSpec
    scenarios: Scenarios
    randomise: bool = True

    def make(self) -> Env:
        return self.spec.make(self.scenarios, randomise=self.randomise)


@dataclass(frozen=True)
class WorkerCrash:
    """A worker process that died in the middle of a task, for the run's log."""

    task: int
    cause: str
    restart: int


class WorkerError(EnvironmentFailure):
    """An exception inside a worker, with its traceback for the log."""

    def __init__(self, message: str, details: str, exit_code: int, raised: bool = False) -> None:
        """`raised` says that the environment's own code raised it, so that its traceback matters to the user."""
        super().__init__(message)
        self.details = details
        self.exit_code = exit_code
        self.raised = raised
        self.recorded = False

    def shown_traceback(self) -> str:
        return self.details if self.raised and not self.recorded else ""


class EnvironmentDied(EnvironmentFailure):
    """The process of an environment in another interpreter ended. It is the death of the worker that uses it."""


def _serve(
    recipe: EnvRecipe,
    pipe: connection.Connection,
    steps: Any,
    stream: tuple[Stream, Any, connection.Connection] | None,
) -> None:
    """The main function of a worker: make the environment, run tasks until the pipe closes."""
    # Ctrl-C reaches the whole process group, a scheduler's SIGTERM may too; the main process decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    outlive_reader()  # an environment may print
    env: Env | None = None
    checked = time.monotonic()
    senders = [Sender(*stream)] if stream else []
    # The environment is made before the first task, so that a worker that is started early is ready for it. If that
    # fails, the first task tries again and reports the error.
    with suppress(Exception, SystemExit):
        env = recipe.make()

    def tick(done: int) -> None:
        nonlocal checked
        steps.value = done
        if time.monotonic() - checked > _POLL_SECONDS:
            checked = time.monotonic()
            # Nothing is sent to a busy worker, so a readable pipe means that the other end is gone.
            if pipe.poll():
                os._exit(1)

    while True:
        try:
            message = pipe.recv_bytes()  # unpickled below, to keep errors of the pipe and of the task apart
        except (EOFError, ConnectionResetError):
            break
        try:
            task: Task[Any] = pickle.loads(message)
            env = env or recipe.make()
            answer: tuple[Any, ...] = ("done", task.run(env, tick, *senders))
        except EnvironmentDied as error:
            env = None
            answer = "died", str(error)
        except (Exception, SystemExit) as error:
            answer = _failure(recipe, error)
        try:
            pipe.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            break
        except Exception as error:  # a result that cannot be pickled; repeating the task would not help
            pipe.send(_failure(recipe, error))
    # No env.close(): simulators' clean-up is slow and can hang, and the process ends here anyway.
    os._exit(0)


def _failure(recipe: EnvRecipe, error: BaseException) -> tuple[Any, ...]:
    """The answer instead of a result: the arguments of a `WorkerError`."""
    if isinstance(error, WorkerError):
        return "failed", str(error), error.details, error.exit_code, error.raised
    if isinstance(error, VlmsafeError):
        return "failed", str(error), traceback.format_exc(), error.exit_code
    message = f"environment '{recipe.spec.name}' raised {raised(error)}"
    return "failed", message, traceback.format_exc(), EXIT_FAILED, True


@dataclass
class _Worker:
    process: BaseProcess
    pipe: connection.Connection
    steps: Any
    receiver: Receiver | None = None
    task: int | None = None

    def stop(self) -> None:
        self.pipe.close()
        if self.receiver is not None:
            self.receiver.close()
        self.process.kill()
        self.process.join()


@dataclass
class WorkerPool(Generic[R]):
    """Runs tasks on environments in separate processes."""

    recipe: EnvRecipe
    size: int
    fresh: bool = False
    max_restarts: int = 3
    on_crash: Callable[[WorkerCrash], None] = lambda crash: None
    stream: Stream | None = None
    """How frames travel, where tasks send any."""
    _idle: list[_Worker] = field(default_factory=list)
    _busy: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Closes a pool that was not closed when it is dropped or the interpreter ends. multiprocessing would then send
        # SIGTERM, which workers ignore, and wait forever.
        util.Finalize(self, _stop_all, (self._idle, self._busy), exitpriority=10)

    def run(
        self,
        tasks: Sequence[Task[R]],
        on_progress: Callable[[int], None] = lambda steps: None,
        should_stop: Callable[[], bool] = lambda: False,
        on_result: Callable[[int, R], None] = lambda task, result: None,
        reader: Reader | None = None,
    ) -> list[R] | None:
        """The results in the order of the tasks, or None when `should_stop` became true.

        `on_progress` gets the environment steps of all tasks together, a few times a second. `on_result` gets the
        number and the result of each task as soon as it is finished. `reader` gets the frames of a pool with a stream,
        all of them before this returns.
        """
        assert (self.stream is None) == (reader is None)
        waiting = deque(range(len(tasks)))
        results: dict[int, R] = {}
        finished_steps = 0
        restarts = 0
        try:
            while len(results) < len(tasks):
                if should_stop():
                    return None
                while waiting and len(self._busy) < self.size:
                    index = waiting.popleft()
                    if reader is not None:
                        reader.begin(index)
                    self._submit(tasks, index)
                pipes = [worker.pipe for worker in self._busy]
                pipes += [worker.receiver.pipe for worker in self._busy if worker.receiver is not None]
                ready = connection.wait(pipes, timeout=_POLL_SECONDS)
                for worker in list(self._busy):
                    assert worker.task is not None
                    if reader is not None:
                        _pass_on(worker, reader)  # first, because frames were sent before the answer
                    if worker.pipe not in ready:
                        continue
                    answer = self._receive(worker)
                    if answer is None or answer[0] == "died":
                        restarts += 1
                        self._restart_or_give_up(worker, restarts, answer[1] if answer else None)
                        waiting.appendleft(worker.task)
                        continue
                    kind, *rest = answer
                    if kind == "failed":
                        raise WorkerError(*rest)
                    results[worker.task] = rest[0]
                    finished_steps += worker.steps.value
                    done = worker.task
                    self._release(worker)
                    on_result(done, rest[0])
                on_progress(finished_steps + sum(worker.steps.value for worker in self._busy))
        except BaseException:
            self.close()
            raise
        finally:
            if self._busy:
                self.close()
        return [results[index] for index in range(len(tasks))]

    def prepare(self) -> None:
        """Start processes before the next tasks come, so that their start overlaps with other work."""
        while len(self._idle) + len(self._busy) < self.size:
            self._idle.append(self._start())

    def _submit(self, tasks: Sequence[Task[R]], index: int) -> None:
        worker = self._idle.pop(0) if self._idle else self._start()
        worker.task = index
        worker.steps.value = 0
        self._busy.append(worker)
        # It may have died while idle; `run` notices the closed pipe when it waits for the answer.
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send(tasks[index])

    def _receive(self, worker: _Worker) -> tuple[Any, ...] | None:
        """The worker's answer, or None where it died first."""
        try:
            answer: tuple[Any, ...] = worker.pipe.recv()
        except (EOFError, OSError):  # closed before or in the middle of an answer
            worker.process.join()
            return None
        return answer

    def _restart_or_give_up(self, worker: _Worker, restarts: int, cause: str | None) -> None:
        assert worker.task is not None
        cause = cause or describe_exit(worker.process.exitcode)
        self._busy.remove(worker)
        worker.stop()
        if restarts > self.max_restarts:
            raise EnvironmentFailure(
                f"environment '{self.recipe.spec.name}': a worker process died {restarts} times "
                f"({cause}); gave up after {self.max_restarts} restarts"
            )
        self.on_crash(WorkerCrash(worker.task, cause, restarts))

    def _release(self, worker: _Worker) -> None:
        self._busy.remove(worker)
        worker.task = None
        if self.fresh:
            worker.stop()
        else:
            self._idle.append(worker)

    def _start(self) -> _Worker:
        with _worker_server(self.recipe.spec.module):
            ours, theirs = _CONTEXT.Pipe()
            steps = _CONTEXT.RawValue("q", 0)
            stream, receiver = None, None
            if self.stream is not None:
                # Memory of multiprocessing, because it has no name that a killed process could leave behind.
                memory = _CONTEXT.RawArray("B", self.stream.size)
                inner, outer = _CONTEXT.Pipe()
                stream, receiver = (self.stream, memory, outer), Receiver(self.stream, memory, inner)
            process = _CONTEXT.Process(target=_serve, args=(self.recipe, theirs, steps, stream), daemon=True)
            process.start()
        theirs.close()
        if stream is not None:
            stream[2].close()
        return _Worker(process, ours, steps, receiver)

    def close(self) -> None:
        """End all processes, busy or idle."""
        _stop_all(self._idle, self._busy)

    def __enter__(self) -> WorkerPool[R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _pass_on(worker: _Worker, reader: Reader) -> None:
    """Give the reader every block that a worker has sent so far."""
    assert worker.receiver is not None
    assert worker.task is not None
    while worker.receiver.waiting():
        block = worker.receiver.receive()
        if block is None:
            return  # it died, as its other pipe will show
        reader.take(worker.task, *block)


def _stop_all(*groups: list[_Worker]) -> None:
    for group in groups:
        while group:
            group.pop().stop()


def describe_exit(code: int | None) -> str:
    """How a process ended, from its exit code."""
    if code is None or code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


@contextmanager
def _worker_server(module: str) -> Iterator[None]:
    """The environment variables and preloads with which a worker, and if needed the server of workers, is started."""
    _CONTEXT.set_forkserver_preload([__name__, module])
    before = {name: os.environ.get(name) for name in WORKER_VARIABLES}
    os.environ.update(WORKER_VARIABLES)
    # multiprocessing makes every new process import the main script again. That costs its imports, and trains again in
    # a script without a guard. Workers need nothing from it.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
