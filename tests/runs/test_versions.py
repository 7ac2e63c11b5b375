"""A run says which code computed it, from its first epoch to its last."""

import yaml
from recorded_versions import edit_recorded

from vlmsafe.config.settings import TrainConfig
from vlmsafe.envs.registry import env_spec
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.runs.run import Run
from vlmsafe.runs.surroundings import package_versions
from vlmsafe.runs.versions import Code, code_of, other_code, other_world, other_worlds
from vlmsafe.training.start import resume, train

SMALL = {"env": "speeding", "total_steps": 80, "steps_per_epoch": 40, "quiet": True}


def test_a_run_records_the_versions_of_the_package_and_of_the_environment(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    recorded = yaml.safe_load((run.path / "config.yaml").read_text())["recorded"]
    assert recorded["env_version"] == env_spec("speeding").version == 1
    assert code_of(run) == [Code(package_versions().get("vlmsafe"), 1)]
    assert other_code(run) is None


def test_resuming_a_run_of_an_earlier_version_is_allowed_and_noted_once(tmp_path):
    run = train(**SMALL, run_dir=str(tmp_path / "run"))
    now = Code.now(run.config)
    edit_recorded(run.path, packages={**run.recorded()["packages"], "vlmsafe": "0.0.1"})
    for _ in range(2):
        path_of(run.checkpoints, 2).unlink()
        assert resume(run.path, quiet=True).status() == "finished"
    (noted,) = [event for event in run.events() if event["event"] == "code changed"]
    assert noted["reason"] == f"it was computed by vlmsafe 0.0.1, and this is vlmsafe {now.package}"
    assert code_of(run) == [Code("0.0.1", 1), now, now]
    assert other_code(run) == noted["reason"]  # a part of it remains of the earlier version


def test_an_environment_that_is_not_this_packages_has_no_version():
    spec = env_spec("gym:Pendulum-v1")
    assert spec.version is None
    assert Code("1", None).unlike(Code("1", spec.version), spec.name) is None


def test_a_run_says_under_which_name_its_world_is_still_there(tmp_path):
    config = TrainConfig(env="bullet-car-reach", run_dir=tmp_path / "run").resolved()
    config.run_dir.mkdir()
    run = Run.create(config)
    assert other_world(run) is None
    said = (
        "it was trained in version 1 of bullet-car-reach (that world is bullet-car-reach:four-steps now), and this is "
        "version 2, another world"
    )
    for version in (1, None):  # runs from before versions were recorded are of the first ones
        edit_recorded(run.path, env_version=version)
        assert other_world(run) == said
    assert list(other_worlds([run, run])) == [f"{run.path} and 1 more: {said}"]
