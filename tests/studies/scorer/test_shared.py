"""One scoring service for a study: the runs come out as with models of their own, even if it dies in between."""

import importlib.util
import os
import signal
import tempfile
from pathlib import Path

import pytest
from in_process import InProcess

from vlmsafe import kernels
from vlmsafe.cli.study.run import RunCommand, make_launcher
from vlmsafe.errors import InputError
from vlmsafe.signals.service.sockets import listen, user_directory
from vlmsafe.signals.service.spec import Address
from vlmsafe.studies.execute import execute
from vlmsafe.studies.launch.local import LocalLauncher
from vlmsafe.studies.progress import run_progress
from vlmsafe.studies.schema import parse_study
from vlmsafe.studies.scorer.shared import (
    LocalScorer,
    remove_left_behind,
    service_name,
    shared_kernels,
    shares,
    socket_name,
)
from vlmsafe.studies.steps import RunStep, command_words

STUDY = """\
name: braking
question: Does the signal lower the cost?
environments: [braking]
seeds: [1, 2]
total_steps: 4000
settings: {steps_per_epoch: 400, learner.update_iters: 2}
arms:
  embedded:
    method: vlm-ppo-lag
    settings: {signal.scorer: embedded, signal.prompts: metadrive, signal.every: 50}
"""


@pytest.fixture(scope="module")
def private(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "braking"
    assert len(execute(parse_study(STUDY, ""), folder, InProcess()).done) == 2
    return folder


def same_runs(one: Path, other: Path) -> None:
    for spec, reference in zip(*(parse_study(STUDY, "").expand(folder) for folder in (one, other)), strict=True):
        for record in ("epochs.jsonl", "episodes.jsonl"):
            assert (spec.path / record).read_bytes() == (reference.path / record).read_bytes(), (spec.name, record)


def test_runs_that_share_a_service_on_this_machine_are_those_of_private_models_though_it_is_killed(tmp_path, private):
    study, folder, killed = parse_study(STUDY, ""), tmp_path / "braking", []
    specs = study.expand(folder)
    service = LocalScorer("braking", tmp_path / "scorer.log")
    socket = Path(service.address.removeprefix("unix:"))

    def turn() -> None:
        if not killed and any(run_progress(spec).epochs > 2 for spec in specs):
            killed.append(service.process.pid)
            os.kill(service.process.pid, signal.SIGKILL)
        service.restart_if_dead()

    try:
        outcome = execute(study, folder, LocalLauncher(cores=2), service=service.address, on_turn=turn)
    finally:
        service.close()
    assert killed
    assert not outcome.failed
    assert service.process.pid != killed[0]
    assert not socket.exists()
    assert not socket.parent.exists()
    same_runs(folder, private)


@pytest.mark.soak  # a cluster, and a service that dies
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed: pip install 'vlmsafe[ray]'")
def test_runs_that_share_a_service_on_ray_are_those_of_private_models_though_it_is_killed(tmp_path, private):
    import ray

    from vlmsafe.studies.launch.ray import RayLauncher
    from vlmsafe.studies.scorer.ray import RayService

    study, folder, killed = parse_study(STUDY, ""), tmp_path / "braking", []
    specs = study.expand(folder)
    launcher = RayLauncher("local", cores=2, patience=10.0)
    try:
        name = service_name("braking")
        service = RayService(name, anywhere=False)
        assert ray.get(service.actors[0].computes_with.remote()) == kernels.in_effect()

        def turn() -> None:
            if not killed and any(run_progress(spec).epochs > 2 for spec in specs):
                killed.append(ray.get(service.actors[0].process.remote()))
                os.kill(killed[0], signal.SIGKILL)

        outcome = execute(study, folder, launcher, service=service.address, on_turn=turn)
        assert killed
        assert not outcome.failed
        assert ray.get(service.actors[0].process.remote()) != killed[0]
        service.close()
    finally:
        launcher.close()
    same_runs(folder, private)
    assert list(user_directory().glob(f"vlmsafe-{name}*")) == []


def test_only_models_are_shared_and_a_run_that_had_a_service_is_told_when_there_is_none(tmp_path):
    assert shares("embedded")
    assert shares("clip")
    assert not any(shares(name) for name in ("none", "oracle", "noise", "constant:0.5", "rnd", "python:mine:Own"))
    (spec, _) = parse_study(STUDY, "").expand(tmp_path)
    resume = command_words(spec, RunStep("resume"), tmp_path)
    assert resume[resume.index("--signal.service") + 1] == ""
    resume = command_words(spec, RunStep("resume"), tmp_path, "unix:/tmp/x")
    assert resume[resume.index("--signal.service") + 1] == "unix:/tmp/x"
    (oracle, _) = parse_study(STUDY.replace("embedded, signal.prompts: metadrive", "oracle"), "").expand(tmp_path)
    assert "--signal.service" not in command_words(oracle, RunStep("resume"), tmp_path, "unix:/tmp/x")


def test_a_shared_service_has_the_kernels_of_the_runs_that_ask_it(tmp_path):
    native = STUDY.replace("settings: {", "settings: {kernels: native, ", 1)
    specs, others = (parse_study(text, "").expand(tmp_path) for text in (STUDY, native))
    assert (shared_kernels(specs), shared_kernels(others)) == ("baseline", "native")
    with pytest.raises(InputError, match="needs runs with the same kernels"):
        shared_kernels([*specs, *others])


def test_a_service_has_a_name_of_its_own_that_fits_a_socket():
    names = {service_name("a study: of a very long name, much longer than a path may be" * 3) for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) < 45 and name.isascii() and " " not in name for name in names)


@pytest.fixture
def own_sockets(monkeypatch):
    """A folder of sockets with a short name: a socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="v") as place:
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
        yield user_directory()


def test_what_a_killed_service_left_behind_is_removed_and_one_at_work_is_left_alone(own_sockets):
    names = [socket_name(service_name(title), 0) for title in ("dead", "alive", "young")]
    dead, alive, young = (own_sockets / name for name in names)
    _, clean_up = listen(Address("unix", str(alive)))
    others = [own_sockets / "vlmsafe-mine.lock", own_sockets / "vlmsafe-notes"]
    for path in (dead, own_sockets / f"{dead.name}.lock", own_sockets / f"{young.name}.lock", *others):
        path.touch()
    for path in own_sockets.glob("*.lock"):
        if not path.name.startswith(young.name):
            os.utime(path, (0.0, 0.0))
    remove_left_behind()
    left = {path.name for path in own_sockets.iterdir()}
    assert left == {alive.name, f"{alive.name}.lock", f"{young.name}.lock", *(path.name for path in others)}
    clean_up()


# -- which runs hold a GPU --


class Cluster:
    """What the command line asks a RayLauncher."""

    def __init__(self, address: str | None, **options) -> None:
        self.address, self.options = address, options

    def has_gpus(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("options", "share"), [({}, 1.0), ({"gpus": 0.25}, 0.25), ({"gpus": 2.0}, 2.0), ({"share_scorer": True}, 0.0)]
)
def test_runs_with_a_model_of_their_own_hold_a_gpu_and_those_that_share_one_do_not(
    tmp_path, monkeypatch, options, share
):
    monkeypatch.setattr("vlmsafe.studies.launch.ray.RayLauncher", Cluster)
    _, gpus = make_launcher(RunCommand("demo", launcher="ray", **options))
    (clip, _) = parse_study(STUDY.replace("scorer: embedded", "scorer: clip"), "").expand(tmp_path)
    (embedded, _) = parse_study(STUDY, "").expand(tmp_path)
    assert gpus(clip) == share
    assert gpus(embedded) == 0.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": -0.5}, "--gpus is -0.5; expected a share of one GPU from 0 to 1, or a whole number"),
        ({"gpus": 1.5}, "--gpus is 1.5; expected a share"),
        ({"gpus": float("nan")}, "--gpus is nan; expected a share"),
        ({"gpus": float("inf")}, "--gpus is inf; expected a share"),
        ({"gpus": 1.0, "share_scorer": True}, "--gpus is 1, but with --share-scorer the service has the GPUs"),
    ],
)
def test_a_share_of_a_gpu_that_cannot_be_is_refused(monkeypatch, options, said):
    monkeypatch.setattr("vlmsafe.studies.launch.ray.RayLauncher", Cluster)
    with pytest.raises(InputError, match=said):
        make_launcher(RunCommand("demo", launcher="ray", **options))
