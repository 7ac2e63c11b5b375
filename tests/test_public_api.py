"""The public names of the package: there, documented, typed, and usable in one session."""

import doctest
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import vlmsafe
from vlmsafe.config.methods import config_from
from vlmsafe.studies.schema import parse_study

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


@pytest.mark.parametrize("name", [name for name in vlmsafe.__all__ if name != "__version__"])
def test_a_public_name_has_an_example_that_the_tests_run(name):
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(vlmsafe, name)))
    assert examples
    assert not any(doctest.SKIP in example.options for example in examples)


def test_dir_and_help_show_the_public_names():
    assert dir(vlmsafe) == sorted(vlmsafe.__all__)
    head, _, rest = pydoc.render_doc(vlmsafe, renderer=pydoc.plaintext).partition("PACKAGE CONTENTS")
    listed = [line.split()[0] for line in head.splitlines() if line.strip()]
    assert set(vlmsafe.__all__) <= set(listed)
    assert "train(config: " in rest


@pytest.mark.parametrize(
    "settings",
    [
        {"scorer": "python:mine:Own", "prompts": "mine.yaml", "vlm_cost_weight": 0.5},
        {"signal.scorer": "python:mine:Own", "signal.prompts": Path("mine.yaml"), "signal.cost_weight": 0.5},
        {"signal": {"scorer": "python:mine:Own", "prompts": "mine.yaml"}, "vlm-cost-weight": 0.5},
    ],
)
def test_settings_have_the_names_of_the_command_line_dotted_ones_or_are_nested(settings):
    signal = config_from({"env": "speeding", "method": "vlm-ppo-lag", "num-envs": 2, **settings}).signal
    assert (signal.scorer, signal.prompts, signal.cost_weight) == ("python:mine:Own", "mine.yaml", 0.5)


@pytest.mark.parametrize(
    "twice", [{"scorer": "noise", "signal": {"scorer": "oracle"}}, {"signal": 1, "signal.every": 2}]
)
def test_a_setting_under_two_names_is_refused(twice):
    with pytest.raises(vlmsafe.VlmsafeError, match="are one setting; give one of them"):
        vlmsafe.train(env="speeding", **twice)


def test_a_study_takes_the_short_names_too():
    arm = "{method: vlm-ppo-lag, settings: {scorer: oracle}}"
    (spec,) = parse_study(STUDY.replace("{method: ppo-lag}", arm), "tiny.yaml").expand(Path("runs"))
    assert spec.config.signal.scorer == "oracle"
    both = arm.replace("scorer: oracle", "scorer: oracle, signal.scorer: noise")
    with pytest.raises(vlmsafe.VlmsafeError, match=r"line 8: .*'signal.scorer', which appears a second time"):
        parse_study(STUDY.replace("{method: ppo-lag}", both), "tiny.yaml")


def test_paths_may_be_texts():
    assert vlmsafe.TrainConfig(run_dir="runs/mine").run_dir == Path("runs/mine")
    assert config_from({"run_dir": Path("runs/mine")}).run_dir == Path("runs/mine")


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
    assert [event.what for event in events] == ["frozen", *["began", "ended"] * 2]
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
    page = written.page.read_text(encoding="utf-8").replace("<wbr>", "")
    assert "unreadable-run" in page
    assert str(tmp_path / "broken") in page


def test_an_environment_without_its_name_is_explained():
    with pytest.raises(vlmsafe.VlmsafeError, match="such as env='speeding', or a TrainConfig"):
        vlmsafe.train("speeding")
