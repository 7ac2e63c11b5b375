"""One scoring service for a study: the runs come out as with models of their own, even if it dies in between."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from in_process import InProcess

from vlmsafe.studies.execution import command_words, execute
from vlmsafe.studies.launchers import LocalLauncher
from vlmsafe.studies.progress import Step, glance
from vlmsafe.studies.shared_scorer import LocalScorer, service_name, shares
from vlmsafe.studies.study_yaml import parse_study

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
        if not killed and any(glance(spec).epochs > 2 for spec in specs):
            killed.append(service.process.pid)
            os.kill(service.process.pid, signal.SIGKILL)
        service.look()

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


@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed: pip install 'vlmsafe[ray]'")
def test_runs_that_share_a_service_on_ray_are_those_of_private_models_though_it_is_killed(tmp_path, private):
    import ray

    from vlmsafe.studies.ray_launcher import RayLauncher
    from vlmsafe.studies.ray_service import RayService

    study, folder, killed = parse_study(STUDY, ""), tmp_path / "braking", []
    specs = study.expand(folder)
    launcher = RayLauncher("local", cores=2, patience=10.0)
    try:
        service = RayService(service_name("braking"), anywhere=False)

        def turn() -> None:
            if not killed and any(glance(spec).epochs > 2 for spec in specs):
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


def test_only_models_are_shared_and_a_run_that_had_a_service_is_told_when_there_is_none(tmp_path):
    assert shares("embedded")
    assert shares("clip")
    assert not any(shares(name) for name in ("none", "oracle", "noise", "constant:0.5", "rnd", "python:mine:Own"))
    (spec, _) = parse_study(STUDY, "").expand(tmp_path)
    resume = command_words(spec, Step("resume"), tmp_path)
    assert resume[resume.index("--signal.service") + 1] == ""
    resume = command_words(spec, Step("resume"), tmp_path, "unix:/tmp/x")
    assert resume[resume.index("--signal.service") + 1] == "unix:/tmp/x"
    (oracle, _) = parse_study(STUDY.replace("embedded, signal.prompts: metadrive", "oracle"), "").expand(tmp_path)
    assert "--signal.service" not in command_words(oracle, Step("resume"), tmp_path, "unix:/tmp/x")


def test_a_service_has_a_name_of_its_own_that_fits_a_socket():
    names = {service_name("a study: of a very long name, much longer than a path may be" * 3) for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) < 45 and name.isascii() and " " not in name for name in names)
