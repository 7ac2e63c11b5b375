"""Simulators in processes: crashes are survived and named, nothing is left behind, equal runs see equal processes.

The tasks below are at the module's top level because worker processes import them from here. Keep torch out of this
file's imports: one of the tests looks whether workers have loaded it.
"""

import ast
import gc
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.registry import env_spec
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerCrash, WorkerError, WorkerPool
from vlmsafe.errors import EXIT_BAD_INPUT, EXIT_FAILED, EnvironmentFailure

SPEC = env_spec("speeding")
RECIPE = EnvRecipe(SPEC, SPEC.training)
Tick = Callable[[int], None]


@dataclass(frozen=True)
class Echo:
    """Wait a little, then say who answered."""

    value: int
    seconds: float = 0.0

    def run(self, env: Any, tick: Tick) -> tuple[int, int]:
        time.sleep(self.seconds)
        tick(self.value)
        return self.value, os.getpid()


@dataclass(frozen=True)
class Look:
    """What the process knows."""

    def run(self, env: Any, tick: Tick) -> dict[str, Any]:
        return {
            "modules": set(sys.modules),
            "hashes": [hash("vlmsafe"), hash("speeding"), hash(("a", "b"))],
            "order": list({"lane", "car", "road", "sign"}),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "environment": id(env),
        }


@dataclass(frozen=True)
class Draw:
    """The scenarios of some unseeded resets, to see which pool the environment was made with."""

    def run(self, env: Any, tick: Tick) -> set[int]:
        return {env.reset()[1]["scenario"] for _ in range(40)}


@dataclass(frozen=True)
class Die:
    """Die in the given way as long as fewer than `times` deaths are on record in the folder."""

    how: str
    folder: str
    times: int = 10**6

    def run(self, env: Any, tick: Tick) -> str:
        tick(5)
        deaths = len(os.listdir(self.folder))
        if deaths >= self.times:
            return "survived"
        (Path(self.folder) / str(deaths)).touch()
        if self.how == "exit":
            os._exit(7)
        if self.how == "sys.exit":
            sys.exit(3)
        if self.how == "half an answer":
            self._send_part_of_an_answer()
            os._exit(7)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), getattr(signal, self.how))
        time.sleep(10)
        return "unreachable"

    def _send_part_of_an_answer(self) -> None:
        """As a process does that is killed while a large result is on its way."""
        for pipe in [item for item in gc.get_objects() if isinstance(item, Connection) and not item.closed]:
            os.write(pipe.fileno(), struct.pack("!i", 1000) + b"x" * 10)


@dataclass(frozen=True)
class Fail:
    """Raise as a simulator does."""

    text: str = "the map\n  has no lanes"
    kind: type[Exception] = ValueError

    def run(self, env: Any, tick: Tick) -> None:
        raise self.kind(self.text)


@dataclass(frozen=True)
class Unsendable:
    """A result that cannot leave the process."""

    def run(self, env: Any, tick: Tick) -> Any:
        return lambda: None


@dataclass(frozen=True)
class Unreadable:
    """A task that cannot arrive."""

    def __reduce__(self) -> Any:
        return int, ("not a task",)

    def run(self, env: Any, tick: Tick) -> None: ...


@dataclass(frozen=True)
class Linger:
    """Work until killed, ticking as collection does; a file of the process's name says that it has begun."""

    folder: str

    def run(self, env: Any, tick: Tick) -> None:
        (Path(self.folder) / str(os.getpid())).touch()
        for step in range(10**6):
            tick(step)
            time.sleep(0.02)


@dataclass
class Crashes:
    seen: list[WorkerCrash] = field(default_factory=list)

    def __call__(self, crash: WorkerCrash) -> None:
        self.seen.append(crash)


def pids() -> set[int]:
    """Worker processes of this one that are alive."""
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _environment() -> dict[str, str]:
    """Variables for a Python process that can import this file."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    yield
    assert pids() == set()


# --- results


@pytest.mark.parametrize("fresh", [False, True])
def test_results_come_in_the_order_of_the_tasks(fresh):
    tasks = [Echo(value, 0.1 if value % 3 == 0 else 0.0) for value in range(7)]
    with WorkerPool(RECIPE, 2, fresh=fresh) as pool:
        results = pool.run(tasks)
    assert results is not None
    assert [value for value, _ in results] == list(range(7))


def test_no_tasks_give_no_results():
    with WorkerPool(RECIPE, 2) as pool:
        assert pool.run([]) == []


def test_a_fresh_process_serves_one_task_only():
    with WorkerPool(RECIPE, 2, fresh=True) as pool:
        results = [*(pool.run([Echo(0)] * 3) or []), *(pool.run([Echo(0)] * 2) or [])]
    assert len({pid for _, pid in results}) == 5


def test_a_process_that_is_not_fresh_serves_on_with_the_same_environment():
    with WorkerPool(RECIPE, 1) as pool:
        results = [*(pool.run([Echo(0)] * 3) or []), *(pool.run([Echo(0)] * 2) or [])]
        first, second = pool.run([Look()] * 2) or []
    assert len({pid for _, pid in results}) == 1
    assert first["environment"] == second["environment"]


def test_no_more_processes_than_asked_for():
    counts: list[int] = []
    with WorkerPool(RECIPE, 2) as pool:
        pool.run([Echo(i, 0.05) for i in range(6)], on_result=lambda task, result: counts.append(len(pids())))
    assert max(counts) == 2


def test_progress_counts_the_steps_of_all_tasks():
    steps: list[int] = []
    done: list[int] = []
    with WorkerPool(RECIPE, 2) as pool:
        pool.run([Echo(10), Echo(20), Echo(30)], on_progress=steps.append, on_result=lambda *pair: done.append(pair))
    assert steps[-1] == 60
    assert sorted(task for task, _ in done) == [0, 1, 2]


def test_the_environment_is_made_with_the_given_pool():
    with WorkerPool(EnvRecipe(SPEC, Scenarios(20, 2)), 1) as pool:
        assert pool.run([Draw()]) == [{20, 21}]


# --- processes


def test_preparing_starts_the_processes_that_then_work():
    with WorkerPool(RECIPE, 2, fresh=True) as pool:
        pool.prepare()
        prepared = pids()
        assert len(prepared) == 2
        pool.prepare()
        assert pids() == prepared, "once is enough"
        results = pool.run([Echo(0, 0.1), Echo(1, 0.1)])
        assert results is not None
        assert {pid for _, pid in results} == prepared
        assert pids() == set()
        pool.prepare()
        assert len(pids()) == 2
        assert not pids() & prepared


def test_a_prepared_process_that_died_waiting_is_replaced():
    crashes = Crashes()
    with WorkerPool(RECIPE, 1, on_crash=crashes) as pool:
        pool.prepare()
        (pid,) = pids()
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not alive(pid))
        results = pool.run([Echo(4)])
    assert results is not None
    assert results[0][0] == 4


def look_from_a_new_process() -> dict[str, Any]:
    """What a worker sees whose server was not started by another test before."""
    code = "from test_pool import *; print(WorkerPool(RECIPE, 1).run([Look()])[0])"
    answer = subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, timeout=600.0, check=True
    )
    seen: dict[str, Any] = ast.literal_eval(answer.stdout)
    return seen


def test_workers_do_not_load_torch():
    """Nor anything else that only the main process needs: they are many and should be small."""
    seen = look_from_a_new_process()
    loaded = {name.partition(".")[0] for name in seen["modules"]}
    assert "vlmsafe" in loaded
    assert not loaded & {"torch", "polars", "safetensors", "scipy"}
    assert seen["threads"] == "1"
    assert seen["interrupt"], "Ctrl-C is the main process's to handle"


def test_strings_hash_the_same_in_every_process_of_every_run():
    first, second = look_from_a_new_process(), look_from_a_new_process()
    assert first["hashes"] == second["hashes"]
    assert first["order"] == second["order"]
    code = "print([hash('vlmsafe'), hash('speeding'), hash(('a', 'b'))])"
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    fixed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert str(first["hashes"]) == fixed.stdout.strip()


def test_starting_workers_leaves_the_environment_variables_as_they_were(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with WorkerPool(RECIPE, 1) as pool:
        pool.run([Echo(0)])
        assert dict(os.environ) == before


def test_a_script_without_a_guard_runs_once(tmp_path):
    """Most scripts call `train` at their top level; workers must not import, and so repeat, the script."""
    script, log = tmp_path / "unguarded.py", tmp_path / "log"
    script.write_text(
        f"open({str(log)!r}, 'a').write('run\\n')\n"
        "from test_pool import Echo, RECIPE, WorkerPool\n"
        "with WorkerPool(RECIPE, 2) as pool:\n"
        "    print([value for value, _ in pool.run([Echo(1), Echo(2), Echo(3)])])\n"
    )
    result = subprocess.run([sys.executable, script], env=_environment(), capture_output=True, text=True, timeout=600)
    assert (result.stdout, result.stderr) == ("[1, 2, 3]\n", "")
    assert log.read_text() == "run\n"


# --- crashes


@pytest.mark.parametrize(
    ("how", "cause"),
    [("SIGSEGV", "killed by SIGSEGV"), ("SIGKILL", "killed by SIGKILL"), ("exit", "exit code 7")],
)
def test_a_worker_that_dies_is_replaced_and_its_task_repeated(tmp_path, how, cause):
    crashes = Crashes()
    with WorkerPool[Any](RECIPE, 2, on_crash=crashes) as pool:
        results = pool.run([Echo(0), Die(how, str(tmp_path), times=1), Echo(2)])
    assert results is not None
    assert [results[0][0], results[1], results[2][0]] == [0, "survived", 2]
    assert crashes.seen == [WorkerCrash(task=1, cause=cause, restart=1)]


def test_a_worker_that_dies_while_it_answers_is_replaced_too(tmp_path):
    crashes = Crashes()
    with WorkerPool[Any](RECIPE, 1, on_crash=crashes) as pool:
        assert pool.run([Die("half an answer", str(tmp_path), times=1)]) == ["survived"]
    assert len(crashes.seen) == 1


@pytest.mark.parametrize("restarts", [0, 2])
def test_one_that_always_dies_is_given_up_with_its_cause(tmp_path, restarts):
    crashes = Crashes()
    pool = WorkerPool[Any](RECIPE, 1, max_restarts=restarts, on_crash=crashes)
    with pytest.raises(EnvironmentFailure) as caught:
        pool.run([Die("exit", str(tmp_path))])
    message = str(caught.value)
    assert "environment 'speeding'" in message
    assert f"died {restarts + 1} times (exit code 7)" in message
    assert f"gave up after {restarts} restarts" in message
    assert len(os.listdir(tmp_path)) == restarts + 1
    assert [crash.restart for crash in crashes.seen] == list(range(1, restarts + 1))
    assert pids() == set(), "giving up leaves no process"


def test_restarts_are_counted_anew_for_each_run(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    with WorkerPool[Any](RECIPE, 1, max_restarts=1) as pool:
        for folder in folders:
            folder.mkdir()
            assert pool.run([Die("exit", str(folder), times=1)]) == ["survived"]


def test_a_simulator_that_calls_sys_exit_is_not_said_to_have_exited_with_zero(tmp_path):
    with pytest.raises(EnvironmentFailure) as caught:
        WorkerPool[Any](RECIPE, 1, max_restarts=0).run([Die("sys.exit", str(tmp_path))])
    assert "exit code 0" not in str(caught.value)
    assert "3" in str(caught.value)


# --- exceptions


def test_an_exception_becomes_one_line_with_the_traceback_aside():
    with pytest.raises(WorkerError) as caught:
        WorkerPool[Any](RECIPE, 2).run([Echo(0, 0.05), Fail()])
    assert isinstance(caught.value, EnvironmentFailure)
    message, _, place = str(caught.value).partition(" (")
    assert message == "environment 'speeding' raised ValueError: the map has no lanes"
    assert place.startswith(__file__), "the innermost place in the user's code"
    assert place.endswith("in run)")
    assert caught.value.exit_code == EXIT_FAILED
    assert "Traceback" in caught.value.details
    assert "in run" in caught.value.details
    assert pids() == set()


def test_an_exception_without_a_message_still_says_its_kind():
    with pytest.raises(WorkerError, match="raised ValueError: no message"):
        WorkerPool[Any](RECIPE, 1).run([Fail("")])


@pytest.mark.parametrize("kind", [EOFError, ConnectionResetError, BrokenPipeError, OSError, MemoryError])
def test_exceptions_that_the_pipe_could_raise_too_are_the_environments(kind):
    """A simulator behind a socket, or one that reads a damaged map, raises these; they are no crash of the worker."""
    crashes = Crashes()
    with pytest.raises(WorkerError, match=f"raised {kind.__name__}: the map has no lanes"):
        WorkerPool[Any](RECIPE, 1, on_crash=crashes).run([Fail(kind=kind)])
    assert crashes.seen == []


def test_an_environment_that_cannot_be_made_keeps_its_own_message():
    spec = env_spec("gym:CartPole-v1")
    with pytest.raises(WorkerError, match=r"^environment 'gym:CartPole-v1' has the action space Discrete") as caught:
        WorkerPool[Any](EnvRecipe(spec, spec.training), 1).run([Echo(0)])
    assert caught.value.exit_code == EXIT_BAD_INPUT


@pytest.mark.parametrize("task", [Unsendable(), Unreadable()], ids=["result", "task"])
def test_what_cannot_travel_is_an_error_with_its_reason_not_a_crash(task):
    """Repeating the work would only fail again, and an exit code says nothing."""
    crashes = Crashes()
    with pytest.raises(EnvironmentFailure) as caught:
        WorkerPool[Any](RECIPE, 1, on_crash=crashes).run([task])
    assert crashes.seen == []
    assert "died" not in str(caught.value)


def test_a_pool_can_be_used_again_after_a_failure():
    with WorkerPool[Any](RECIPE, 1) as pool:
        with pytest.raises(WorkerError):
            pool.run([Fail()])
        assert (pool.run([Echo(3)]) or [()])[0][0] == 3


# --- stopping


@pytest.mark.parametrize("fresh", [False, True])
def test_a_stop_returns_nothing_and_leaves_no_process(tmp_path, fresh):
    working: set[int] = set()

    def should_stop() -> bool:
        working.update(pids())
        return len(os.listdir(tmp_path)) == 2

    pool = WorkerPool[Any](RECIPE, 2, fresh=fresh)
    assert pool.run([Linger(str(tmp_path))] * 3, should_stop=should_stop) is None
    assert len(working) == 2
    assert not any(alive(pid) for pid in working)


def test_an_error_of_a_callback_leaves_no_process(tmp_path):
    def on_progress(steps: int) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        WorkerPool[Any](RECIPE, 2).run([Linger(str(tmp_path))] * 2, on_progress=on_progress)
    assert pids() == set()


@pytest.mark.parametrize("before", ["", "import tempfile; folder = tempfile.TemporaryDirectory(); "])
def test_a_pool_that_was_never_closed_does_not_hold_up_the_end_of_the_process(before):
    """Whatever else is to be cleaned up at the end, and in whichever order that was registered."""
    code = "from test_pool import *; pool = WorkerPool(RECIPE, 2); pool.prepare(); print(pool.run([Echo(1)])[0][0])"
    code = before + code
    result = subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, timeout=600.0
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


MAIN = """
import multiprocessing, signal, sys
from test_pool import Crashes, Linger, RECIPE, WorkerPool

if __name__ == "__main__":
    stop, crashes = [], Crashes()
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    pool = WorkerPool(RECIPE, 6, on_crash=crashes)
    pool.prepare()
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    result = pool.run([Linger(sys.argv[1])] * int(sys.argv[2]), should_stop=lambda: bool(stop))
    print(result, len(crashes.seen), flush=True)
    pool.close()
"""


@pytest.fixture
def main_process(tmp_path) -> Iterator[Callable[[int], tuple[subprocess.Popen[str], list[int], Path]]]:
    """Starts a process with six workers, some of them busy."""
    started: list[subprocess.Popen[str]] = []

    def start(tasks: int) -> tuple[subprocess.Popen[str], list[int], Path]:
        script, folder = tmp_path / "main.py", tmp_path / "begun"
        script.write_text(textwrap.dedent(MAIN))
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder), str(tasks)],
            env=_environment(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 6
        assert wait_until(lambda: len(os.listdir(folder)) == tasks)
        return process, workers, folder

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_workers_end_soon_after_the_main_process_is_killed(main_process):
    process, workers, folder = main_process(3)
    assert all(alive(pid) for pid in workers)
    busy = {int(name) for name in os.listdir(folder)}
    assert len(busy) == 3
    assert busy < set(workers), "some work and some wait, and all should go"
    process.kill()
    process.wait()
    try:
        assert wait_until(lambda: not any(alive(pid) for pid in workers), 5)
    finally:
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)


def test_a_signal_to_the_whole_group_is_the_main_processs_to_answer(main_process):
    """Schedulers send SIGTERM to every process of a job; that is a request to stop, not six crashes."""
    process, workers, _ = main_process(6)
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=600.0)
    assert output.split() == ["None", "0"], "stopped as asked, with no crash reported"
    assert process.returncode == 0
    assert wait_until(lambda: not any(alive(pid) for pid in workers), 5)
