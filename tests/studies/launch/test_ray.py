"""Studies on Ray: two real nodes on this machine, one of which dies; and what becomes of a single command."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from in_process import InProcess

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'vlmsafe[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 - only where there is Ray

from vlmsafe.errors import EXIT_FAILED, EXIT_INTERRUPTED, InputError, RunError  # noqa: E402
from vlmsafe.io.files import read_rows  # noqa: E402
from vlmsafe.runs.checkpoint import load_checkpoint, path_of  # noqa: E402
from vlmsafe.studies.execute import execute  # noqa: E402
from vlmsafe.studies.journal import JOURNAL  # noqa: E402
from vlmsafe.studies.launch import ray as ray_launcher  # noqa: E402
from vlmsafe.studies.launch.api import Command, Lost  # noqa: E402
from vlmsafe.studies.launch.ray import RayLauncher, connect  # noqa: E402
from vlmsafe.studies.progress import run_progress  # noqa: E402
from vlmsafe.studies.schema import parse_study  # noqa: E402

STUDY = """\
name: speeding
question: Does the oracle lower the cost?
environments: [speeding]
seeds: [1, 2, 3]
total_steps: 16000
settings: {steps_per_epoch: 400, learner.update_iters: 2, checkpoint.every: 5}
arms:
  ppo-lag: {method: ppo-lag}
  oracle: {method: vlm-ppo-lag, settings: {signal.scorer: oracle}}
protocols: [{protocol: held-out, episodes: 4, seeds: [2, 3]}]
"""
EPOCHS = 40
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SLEEP = (sys.executable, "-c", "import time; print('began', flush=True); time.sleep(1200)")


def patiently(start, tries: int = 3):
    """Ray gives a node half a minute to start, which on a busy machine may be too little."""
    while True:
        tries -= 1
        try:
            return start()
        except Exception:
            if not tries:
                raise


@pytest.fixture
def cluster():
    made = patiently(lambda: Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False}))
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.soak  # two nodes, one of which is lost, and twelve runs
def test_a_study_that_loses_one_of_two_nodes_half_way_equals_one_that_was_left_alone(tmp_path, cluster):
    study = parse_study(STUDY, "speeding.yaml")
    whole, disturbed = tmp_path / "whole" / "speeding", tmp_path / "runs" / "speeding"
    assert len(execute(study, whole, InProcess()).done) == 6
    second = patiently(lambda: cluster.add_node(**NODE))
    specs, killed = study.expand(disturbed), []

    def kill_half_way() -> None:
        if killed or sum(run_progress(spec).epochs for spec in specs) < 3 * EPOCHS:
            return
        running = now_on(disturbed, second.node_id)
        if running:
            killed.extend(running)
            cluster.remove_node(second, allow_graceful=False)

    launcher = RayLauncher(cluster.address, patience=10.0)
    assert "2 nodes, 2 cores" in launcher.describe()
    try:
        outcome = execute(study, disturbed, launcher, on_turn=kill_half_way)
    finally:
        launcher.close()
    assert killed
    assert not outcome.failed
    assert len(outcome.done) == 6
    rows = read_rows(disturbed / JOURNAL)
    assert {row["run"] for row in rows if row["what"] == "lost"} == set(killed)
    assert len({row["node"] for row in rows if row["what"] == "began"}) == 2
    for spec, reference in zip(specs, study.expand(whole), strict=True):
        same_run(spec.path, reference.path)
        assert (disturbed / "logs" / f"{spec.name}.log").stat().st_size > 0
    assert len(list(disturbed.rglob("held-out.parquet"))) == 4


def now_on(folder: Path, node: str) -> list[str]:
    """Runs that are trained on a node now, well after a checkpoint, by the study's journal."""
    last = {row["run"]: row for row in read_rows(folder / JOURNAL)}
    return [
        run
        for run, row in last.items()
        if row["what"] == "began"
        and row["step"] == "train"
        and row["node"].endswith(node[:6])
        and 6 < len(read_rows(folder / run / "epochs.jsonl")) < 36
    ]


def same_run(one: Path, other: Path) -> None:
    """Every epoch once, and everything that was learned and measured equal to the last bit."""
    assert [row["epoch"] for row in read_rows(one / "epochs.jsonl")] == list(range(1, EPOCHS + 1))
    for record in ("epochs.jsonl", "episodes.jsonl"):
        assert (one / record).read_bytes() == (other / record).read_bytes(), (one, record)
    states = [load_checkpoint(path_of(path / "checkpoints", EPOCHS)) for path in (one, other)]
    assert all((array == states[1].arrays[name]).all() for name, array in states[0].arrays.items())
    tables = [sorted((path / "evaluations").iterdir()) for path in (one, other)]
    assert [path.name for path in tables[0]] == [path.name for path in tables[1]]
    assert all(pl.read_parquet(first).equals(pl.read_parquet(second)) for first, second in zip(*tables, strict=True))
    events = Counter(row["event"] for row in read_rows(one / "events.jsonl"))
    assert (events["started"], events["finished"]) == (1, 1)


# -- one command --


@pytest.fixture(scope="module")
def local():
    launcher = RayLauncher("local", cores=2, patience=3.0)
    yield launcher
    launcher.close()


def wait_for(condition, seconds: float = 600.0):
    deadline = time.monotonic() + seconds
    while (found := condition()) is None or found is False:
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.05)
    return found


def printed(handle, log: Path) -> bool:
    assert handle.poll() is None
    return log.exists() and bool(log.read_text().strip())


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ray_worker_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_exit_codes_are_told_and_everything_printed_comes_to_the_log(local, tmp_path):
    log = tmp_path / "logs" / "a.log"
    say = "import os, sys; print('x' * 3_000_000); print(os.environ['RAY_ADDRESS'], file=sys.stderr); sys.exit(3)"
    for _ in range(2):
        handle = local.launch(Command((sys.executable, "-c", say), log))
        assert wait_for(handle.poll) == 3
        assert handle.place().startswith(f"{os.uname().nodename}:")
    text = log.read_text()
    assert len(text) > 6_000_000
    assert text.count(local.address) == 2


def test_no_more_commands_at_a_time_than_jobs(local, tmp_path):
    local.jobs = 1
    try:
        handle = local.launch(Command(SLEEP, tmp_path / "a.log"))
        assert local.launch(Command(SLEEP, tmp_path / "b.log")) is None
        handle.stop()
        wait_for(handle.poll)
        other = local.launch(Command((sys.executable, "-c", ""), tmp_path / "b.log"))
        assert wait_for(other.poll) == 0
    finally:
        local.jobs = None


def test_a_command_that_needs_more_than_any_node_has_gets_all_of_one(local, tmp_path):
    handle = local.launch(Command((sys.executable, "-c", ""), tmp_path / "a.log", cores=64, memory=10**14))
    assert wait_for(handle.poll) == 0


def test_stopping_asks_first_and_ends_children_too_when_it_must(local, tmp_path):
    code = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1200)'])\n"
        "signal.signal(signal.SIGTERM, lambda *a: print('asked', flush=True))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1200); time.sleep(1200)"
    )
    log = tmp_path / "a.log"
    handle = local.launch(Command((sys.executable, "-c", code), log))
    wait_for(lambda: printed(handle, log))
    handle.stop()
    wait_for(lambda: handle.poll() is None and "asked" in log.read_text())
    handle.stop(now=True)
    assert wait_for(handle.poll) == -signal.SIGKILL
    wait_for(lambda: gone(int(log.read_text().split()[0])))


def test_a_command_whose_worker_is_killed_is_lost_and_dies_with_it(local, tmp_path):
    log = tmp_path / "a.log"
    code = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        f"signal.signal(signal.SIGTERM, lambda *a: (Path({str(tmp_path / 'saved')!r}).touch(), sys.exit(0)))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(1200)"
    )
    handle = local.launch(Command((sys.executable, "-c", code), log))
    wait_for(lambda: printed(handle, log))
    pid = int(log.read_text())
    began = time.monotonic()
    os.kill(ray_worker_of(pid), signal.SIGKILL)
    lost = wait_for(handle.poll)
    assert isinstance(lost, Lost)
    assert lost.process == f"{pid} {os.uname().nodename}"
    assert time.monotonic() > began + local.patience - 2.0  # not before nobody could be at work any more
    assert (tmp_path / "saved").exists()
    assert gone(pid)


def test_a_command_that_hears_nothing_any_more_is_asked_to_save_and_then_ended(local, tmp_path, monkeypatch):
    """A node that is believed dead because the network is cut, or whose study is stopped, must not go on training."""
    log, asked = tmp_path / "a.log", tmp_path / "asked"
    code = (
        "import os, signal, time\n"
        "from pathlib import Path\n"
        f"signal.signal(signal.SIGTERM, lambda *a: Path({str(asked)!r}).touch())\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(1200)"
    )
    handle = local.launch(Command((sys.executable, "-c", code), log))
    wait_for(lambda: printed(handle, log))
    pid = int(log.read_text())
    began = time.monotonic()
    monkeypatch.setattr(handle, "beat", lambda: None)
    wait_for(asked.exists)
    assert time.monotonic() > began + local.patience - 1.5  # something was heard until a moment ago
    wait_for(lambda: gone(pid))
    lost = wait_for(handle.poll)
    assert isinstance(lost, Lost)  # nothing is wrong with the command
    assert "heard nothing for 3 s" in lost.reason


def test_commands_live_on_while_their_study_is_busy_for_longer_than_they_are_patient(local, tmp_path):
    log = tmp_path / "a.log"
    handle = local.launch(Command(SLEEP, log))
    time.sleep(2.0 * local.patience)  # with a slow store, for example; not even its first answer was taken in
    wait_for(lambda: printed(handle, log))
    time.sleep(local.patience + 1.0)
    assert handle.poll() is None
    handle.stop()
    assert wait_for(handle.poll) == -signal.SIGTERM


def test_runs_of_a_study_that_is_killed_save_and_leave(local, tmp_path):
    """Not at the end of their patience, and not without being asked."""
    child = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        f"saved = Path({str(tmp_path / 'saved')!r})\n"
        "signal.signal(signal.SIGTERM, lambda *a: (time.sleep(1.0), saved.touch(), sys.exit(75)))\n"
        "print('began', flush=True)\n"
        "time.sleep(1200)"
    )
    study = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from vlmsafe.studies.launch.api import Command\n"
        "from vlmsafe.studies.launch.ray import RayLauncher\n"
        f"launcher = RayLauncher({local.address!r}, patience=60.0)\n"
        f"handle = launcher.launch(Command((sys.executable, '-c', {child!r}), Path({str(tmp_path / 'a.log')!r})))\n"
        "while handle.poll() is None: time.sleep(0.1)"
    )
    process = subprocess.Popen([sys.executable, "-c", study])
    try:
        wait_for(lambda: process.poll() is None and (tmp_path / "a.log").exists())
    finally:
        process.kill()
    wait_for(lambda: (tmp_path / "saved").exists())


@pytest.mark.parametrize("words", [("/nonexistent/program",), (sys.executable, "-c", "a\0b")])
def test_a_command_that_cannot_be_started_fails_and_says_why(local, tmp_path, words):
    log = tmp_path / "a.log"
    handle = local.launch(Command(words, log))
    assert wait_for(handle.poll) == EXIT_FAILED
    assert f"error: cannot start {words[0]}: " in log.read_text()


def test_a_command_does_not_take_itself_for_a_worker_of_ray(local, tmp_path):
    log = tmp_path / "a.log"
    say = "import os; print([name for name in os.environ if name.upper().startswith('RAY_')])"
    assert wait_for(local.launch(Command((sys.executable, "-c", say), log)).poll) == 0
    assert "RAY_ADDRESS" in log.read_text()
    for name in ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_kill_child_processes_on_worker_exit"):
        assert name not in log.read_text()


def test_a_node_with_another_version_fails_a_command_with_a_reason(local, tmp_path, monkeypatch):
    """It is not lost: there it could be started as often as one likes."""
    log, own = tmp_path / "a.log", ray_launcher.package_version()
    monkeypatch.setattr(ray_launcher, "package_version", lambda: "0.0.1")
    handle = local.launch(Command((sys.executable, "-c", ""), log))
    assert wait_for(handle.poll) == EXIT_FAILED
    (line,) = log.read_text().splitlines()
    assert line.startswith("error: it cannot start on ")
    assert line.endswith(f" has vlmsafe {own}, and the study 0.0.1; install that")


# -- what nodes have --

LARGE = {"CPU": 8.0, "memory": 2.0**33}
WITH_GPU = {"CPU": 2.0, "memory": 2.0**34, "GPU": 2.0}


def test_needs_are_cut_to_what_one_node_has_and_not_to_the_best_of_several(local, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_nodes", lambda: [LARGE, WITH_GPU])
    log = tmp_path / "a.log"

    def fitting(**needs) -> tuple[int, int, float]:
        found = local._fitting(Command(("x",), log, **needs))
        return found.cores, found.memory, found.gpus

    assert fitting(cores=4, memory=2**33) == (4, 2**33, 0.0)
    assert fitting(cores=4, memory=2**33, gpus=1.0) == (2, 2**33, 1.0)
    assert fitting(cores=16, memory=2**34) == (8, 2**33, 0.0)
    assert fitting(cores=2, memory=2**34) == (2, 2**34, 0.0)
    with pytest.raises(RunError, match="a run needs 4 GPU, and no node of the cluster has that many"):
        fitting(gpus=4.0)


def test_a_gpu_that_is_away_for_a_moment_is_waited_for_and_who_waits_is_told(local, tmp_path, monkeypatch):
    alive, said = [LARGE, WITH_GPU], []
    monkeypatch.setattr(local, "_tell", said.append)
    monkeypatch.setattr(local, "_most_gpus", 0.0)
    fake = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": node} for node in alive])
    with monkeypatch.context() as patch:
        patch.setattr(local, "_ray", fake)
        assert local.has_gpus()
        alive.remove(WITH_GPU)
        assert [local.launch(Command(("x",), tmp_path / "a.log", gpus=1.0)) for _ in range(3)] == [None] * 3
        with pytest.raises(RunError, match="4 GPU"):
            local.launch(Command(("x",), tmp_path / "a.log", gpus=4.0))
    assert said == ["the node with 1 GPU is gone; commands that need it wait"]


def test_commands_that_wait_for_a_gpu_are_in_nobody_elses_way_and_it_is_said(local, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(local, "_tell", said.append)
    monkeypatch.setattr(local, "_nodes", lambda: [LARGE, WITH_GPU])  # Ray itself has none, and finds no node
    waiting = [local.launch(Command(SLEEP, tmp_path / f"{number}.log", gpus=1.0)) for number in range(3)]
    assert waiting[2] is None
    plain = local.launch(Command(SLEEP, tmp_path / "plain.log", cores=1))
    assert plain is not None
    wait_for(lambda: printed(plain, tmp_path / "plain.log"))
    assert said == []
    monkeypatch.setattr(ray_launcher, "_LONG", 0.0)
    assert [handle.poll() for handle in waiting[:2]] == [None, None]
    assert said == ["no node had 1 cores, 0.0 GiB of memory and 1 GPU free for 0 s; commands that need them wait"]
    plain.stop(now=True)
    for handle in waiting[:2]:
        handle.stop()
        assert handle.poll() == EXIT_INTERRUPTED
    wait_for(plain.poll)


class NoGpus(InProcess):
    """Has a GPU only after two commands, or when nothing else comes."""

    refused = 0

    def launch(self, command):
        if command.gpus and len(self.launched) < 2 and self.refused < 5:
            self.refused += 1
            return None
        return super().launch(command)


def test_runs_that_wait_for_a_gpu_let_the_others_of_a_study_begin(tmp_path):
    study, launcher = parse_study(STUDY.replace("16000", "800").replace("[1, 2, 3]", "[1, 2]"), ""), NoGpus()
    outcome = execute(study, tmp_path / "speeding", launcher, gpus=lambda spec: float(spec.arm == "ppo-lag"))
    assert len(outcome.done) == 4
    trained = [words[words.index("--run-dir") + 1] for words in launcher.launched if words[0] == "train"]
    assert ["oracle" in path for path in trained] == [True, True, False, False]


# -- where Ray is --


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "no.such.host.invalid:6379", "ray://[::1]:1"])
def test_an_address_at_which_nothing_listens_is_told_at_once(address):
    began = time.monotonic()
    with pytest.raises(InputError, match=r"nothing listens at .*--address is host:port of a cluster's head"):
        connect(address)
    assert time.monotonic() < began + 30.0


def test_a_cluster_with_another_ray_is_told_with_both_versions():
    said = "Version mismatch: The cluster was started with:\n  Ray: 2.60.0\nThis process was:\n    Ray: 2.41.0\n"
    found = ray_launcher.first_line(RuntimeError(said))
    assert "\n" not in found
    assert "2.60.0" in found
    assert "2.41.0" in found


@pytest.mark.parametrize("patience", [2.9, -1.0, float("nan"), float("inf")])
def test_patience_must_be_a_time(patience):
    with pytest.raises(InputError, match=f"patience is {patience:g} s; expected at least 3"):
        RayLauncher("local", patience=patience)


# -- the command line --


def test_ctrl_c_saves_what_is_running_on_a_local_ray_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "speeding.yaml").write_text(STUDY.replace("16000", "400000").replace("[1, 2, 3]", "[1, 2]"))
    words = [sys.executable, "-m", "vlmsafe", "study", "run", "speeding.yaml", "--launcher", "ray", "--cores", "2"]
    specs = parse_study((tmp_path / "speeding.yaml").read_text(), "").expand(tmp_path / "runs" / "speeding")
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: process.poll() is not None or any(run_progress(spec).epochs > 2 for spec in specs))
        status = [sys.executable, "-m", "vlmsafe", "study", "status", "runs/speeding", "--runs"]
        table = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True, timeout=600.0).stdout
        process.send_signal(signal.SIGINT)
        said, message = process.communicate(timeout=600.0)
    finally:
        process.kill()  # where it has not ended, so that a failed test leaves nothing running
    assert process.returncode == 75, (said, message)
    assert "the same command continues it" in message
    assert "Traceback" not in message
    assert len(message.splitlines()) == 1  # Ray itself says nothing
    assert "on Ray at" in said
    begun = [spec for spec in specs if run_progress(spec).begun]
    assert begun
    for spec in begun:
        assert run_progress(spec).status == "stopped"
        assert read_rows(spec.path / "events.jsonl")[-1]["event"] == "interrupted"
    running = [line for line in table.splitlines() if f"{os.uname().nodename}:" in line]
    assert running
    assert all(" running " in line for line in running)


def test_without_ray_one_line_says_how_to_get_it(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')")
    (tmp_path / "speeding.yaml").write_text(STUDY)
    words = [sys.executable, "-m", "vlmsafe", "study", "run", "speeding.yaml", "--launcher", "ray"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    answer = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=600.0, env={**os.environ, "PYTHONPATH": path}
    )
    assert answer.returncode == 2
    assert answer.stderr.strip() == 'error: Ray is not installed; get it with: pip install "vlmsafe[ray]"'
