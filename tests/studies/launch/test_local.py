"""The pool of processes: room, logs, exit codes, and what becomes of commands when the study dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vlmsafe.errors import InputError
from vlmsafe.io.memory import free_memory
from vlmsafe.studies.launch.api import Command
from vlmsafe.studies.launch.local import LocalLauncher, usable_cores

SLEEP = (sys.executable, "-c", "import time; time.sleep(1200)")


def command(tmp_path: Path, *words: str, **needs) -> Command:
    return Command(words or SLEEP, tmp_path / "logs" / "a.log", **needs)


def ended(handle, seconds: float = 600.0) -> int:
    deadline = time.monotonic() + seconds
    while (code := handle.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return code


def launch(launcher: LocalLauncher, wanted: Command, handles: list):
    handle = launcher.launch(wanted)
    if handle is not None:
        handles.append(handle)
    return handle


@pytest.fixture
def handles():
    """Whatever a test started is ended with it."""
    started: list = []
    yield started
    for handle in started:
        handle.stop(now=True)
        ended(handle)


@pytest.mark.parametrize(
    ("limits", "needs"),
    [
        ({"cores": 4, "memory": 100}, {"cores": 2}),
        ({"cores": 100, "memory": 10}, {"memory": 5}),
        ({"cores": 100, "memory": 100, "jobs": 2}, {}),
    ],
)
def test_no_more_runs_at_a_time_than_cores_memory_and_jobs_allow(tmp_path, handles, limits, needs):
    launcher = LocalLauncher(**limits)
    wanted = command(tmp_path, **needs)
    first = launch(launcher, wanted, handles)
    assert launch(launcher, wanted, handles) is not None
    assert launch(launcher, wanted, handles) is None
    first.stop()
    ended(first)
    assert launch(launcher, wanted, handles) is not None


def test_one_command_runs_however_much_it_needs(tmp_path, handles):
    launcher = LocalLauncher(cores=1, memory=1)
    assert launch(launcher, command(tmp_path, cores=8, memory=10**12), handles) is not None
    assert launch(launcher, command(tmp_path), handles) is None


def test_exit_codes_and_signals_are_told_and_output_is_added_to_the_log(tmp_path):
    launcher = LocalLauncher(cores=8)
    say = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    for _ in range(2):
        assert ended(launcher.launch(command(tmp_path, sys.executable, "-c", say))) == 3
    assert sorted((tmp_path / "logs" / "a.log").read_text().split()) == ["err", "err", "out", "out"]
    sleeping = launcher.launch(command(tmp_path))
    sleeping.stop(now=True)
    assert ended(sleeping) == -signal.SIGKILL
    sleeping.stop()  # of what has ended already, nothing comes


def test_stopping_asks_first_and_ends_children_too_when_it_must(tmp_path):
    code = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1200)'])\n"
        "signal.signal(signal.SIGTERM, lambda *a: print('asked', flush=True))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1200); time.sleep(1200)"
    )
    handle = LocalLauncher(cores=1).launch(command(tmp_path, sys.executable, "-c", code))
    log = tmp_path / "logs" / "a.log"
    while not log.read_text().strip():
        time.sleep(0.02)
    handle.stop()
    while "asked" not in log.read_text():
        time.sleep(0.02)
    assert handle.poll() is None
    handle.stop(now=True)
    assert ended(handle) == -signal.SIGKILL
    assert gone(int(log.read_text().split()[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children of their parent's death on Linux only")
def test_commands_are_asked_to_save_when_the_study_is_killed(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from vlmsafe.studies.launch.api import Command\n"
        "from vlmsafe.studies.launch.local import LocalLauncher\n"
        "child = 'import os, signal, sys, time\\n'"
        "'signal.signal(signal.SIGTERM, lambda *a: (print(\"saved\", flush=True), sys.exit(0)))\\n'"
        "'print(os.getpid(), flush=True)\\ntime.sleep(1200)'\n"
        f"LocalLauncher(cores=1).launch(Command((sys.executable, '-c', child), Path({str(tmp_path / 'log')!r})))\n"
        "time.sleep(1200)"
    )
    study = subprocess.Popen([sys.executable, "-c", code])
    log = tmp_path / "log"
    while not (log.exists() and log.read_text().strip()):
        assert study.poll() is None
        time.sleep(0.02)
    study.kill()
    study.wait()
    pid = int(log.read_text().split()[0])
    assert gone(pid)
    assert "saved" in log.read_text()


def gone(pid: int, seconds: float = 600.0) -> bool:
    """Whether a process ends soon; one that is dead and not yet waited for counts as gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if sys.platform == "linux" and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_what_the_machine_has_is_known_and_nonsense_refused():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert free_memory() > 10**8
    with pytest.raises(InputError, match="jobs is 0; it must be greater than 0"):
        LocalLauncher(jobs=0)
    assert LocalLauncher(cores=3, memory=2**31, jobs=2).describe() == (
        "this machine: 3 cores, 2.0 GiB of memory to use, at most 2 at a time"
    )
