"""The package as a user gets it: a wheel, installed into an environment of its own, far from the checkout."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = ["train", "--env", "speeding", "--total-steps", "800", "--steps-per-epoch", "400", "--quiet", "--run-dir"]


@pytest.mark.soak  # it installs everything the package depends on
def test_an_installed_wheel_trains_evaluates_and_reports_without_the_checkout(tmp_path):
    wheels, home = tmp_path / "wheels", tmp_path / "elsewhere"
    home.mkdir()

    away = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may name the checkout

    def call(*words):
        done = subprocess.run(
            [str(word) for word in words], cwd=home, env=away, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
        return done.stdout

    call(sys.executable, "-m", "build", "--wheel", "--outdir", wheels, ROOT)
    (wheel,) = wheels.glob("vlmsafe-*.whl")
    venv.create(tmp_path / "fresh", with_pip=True)
    fresh = tmp_path / "fresh" / "bin"
    call(fresh / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)

    where = call(fresh / "python", "-c", "import vlmsafe; print(vlmsafe.__file__)")
    assert str(tmp_path / "fresh") in where
    assert wheel.name.split("-")[1] in call(fresh / "vlmsafe", "--version")
    assert "embedded" in call(fresh / "vlmsafe", "doctor")
    call(fresh / "vlmsafe", *TRAIN, home / "runs" / "ppo-lag" / "seed-1")
    call(fresh / "vlmsafe", "evaluate", home / "runs" / "ppo-lag" / "seed-1", "--episodes", "2")
    call(fresh / "vlmsafe", "report", home / "runs")
    assert (home / "runs" / "report.html").stat().st_size > 10_000
    # What comes as data, not as code: prompts, studies, the paper's tables, drivers, the shipped model and its card.
    assert "metadrive" in call(fresh / "vlmsafe", "prompts")
    assert "generalisation" in call(fresh / "vlmsafe", "study", "list")
    assert "metadrive-hard" in call(fresh / "vlmsafe", "published", "show", "generalisation")
    assert "braking" in call(fresh / "vlmsafe", "drivers")
    call(fresh / "vlmsafe", "evaluate", "driver:braking", "--episodes", "2")
    call(fresh / "vlmsafe", *TRAIN, home / "runs" / "signal" / "seed-1", "--method", "vlm-ppo-lag")
    call(fresh / "vlmsafe", "trace", home / "runs" / "signal" / "seed-1", "--episodes", "1", "--frames")
