"""The public names of the package: there, documented, typed, and usable in one session."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import vlmsafe

STUDY = """
name: tiny
question: Does it run?
environments: [speeding]
seeds: [1]
total_steps: 800
settings: {steps_per_epoch: 400, learner.update_iters: 2}
arms: {ppo-lag: {method: ppo-lag}}
protocols: [{protocol: held-out, episodes: 2}]
"""


@pytest.mark.parametrize("name", [name for name in vlmsafe.__all__ if name != "__version__"])
def test_a_public_name_is_documented_and_typed(name):
    value = getattr(vlmsafe, name)
    assert inspect.getdoc(value)
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())


def test_the_version_is_the_installed_one():
    from importlib import metadata

    assert vlmsafe.__version__ == metadata.version("vlmsafe")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = vlmsafe.trian


def test_functions_stay_functions_although_packages_have_their_names():
    code = (
        "import vlmsafe.report.write, vlmsafe.audit.findings, vlmsafe; "
        "assert vlmsafe.audit.__name__ == 'audit' and callable(vlmsafe.audit), vlmsafe.audit; "
        "assert callable(vlmsafe.report); from vlmsafe.audit.findings import Finding"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_study_runs_and_is_reported_and_audited_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(STUDY)
    events = []
    folder = vlmsafe.run_study("tiny.yaml", on_event=events.append)
    assert folder == Path("runs/tiny")
    assert [event.what for event in events] == ["began", "ended"] * 2
    written = vlmsafe.report(folder)
    assert written.page == folder / "report.html"
    assert written.page.stat().st_size > 10_000
    assert vlmsafe.audit([folder]).findings is not None
    assert vlmsafe.run_study(folder) == folder  # nothing is left to do


def test_make_env_gives_an_environment_on_the_chosen_scenarios():
    env = vlmsafe.make_env("speeding", held_out=True)
    try:
        (first, _), (again, _) = env.reset(seed=10_001), env.reset(seed=10_001)
        assert (first == again).all()
        with pytest.raises(vlmsafe.VlmsafeError, match="scenario 1 is not in the pool"):
            env.reset(seed=1)
    finally:
        env.close()


def test_one_path_is_as_good_as_a_list_and_none_is_refused(tmp_path):
    run = vlmsafe.train(
        env="speeding", total_steps=200, steps_per_epoch=200, learner={"update_iters": 1}, quiet=True,
        run_dir=tmp_path / "runs" / "seed-1",
    )  # fmt: skip
    assert vlmsafe.audit(run.path) == vlmsafe.audit([run.path]) == vlmsafe.audit(str(run.path))
    for function in (vlmsafe.audit, vlmsafe.report):
        with pytest.raises(vlmsafe.VlmsafeError, match="no runs; expected a folder"):
            function([])


def test_a_report_on_nothing_but_damaged_runs_says_so(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").write_text("env: [")
    written = vlmsafe.report(tmp_path)
    page = written.page.read_text(encoding="utf-8")
    assert "unreadable-run" in page
    assert str(tmp_path / "broken") in page
