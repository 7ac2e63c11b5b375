"""A run says which code computed it, from its first epoch to its last."""

import yaml

from vlmsafe.envs.registry import env_spec
from vlmsafe.runs.checkpoint import path_of
from vlmsafe.runs.surroundings import package_versions
from vlmsafe.runs.versions import Code, code_of, other_code
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
    now = Code.now(run.config.spec)
    config = run.path / "config.yaml"
    document = yaml.safe_load(config.read_text())
    document["recorded"]["packages"]["vlmsafe"] = "0.0.1"
    config.write_text(yaml.safe_dump(document))
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
