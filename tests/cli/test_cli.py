"""What the listing commands show: everything there is, what is missing, and how to get it."""

import io
import os
import subprocess
import sys

import pytest
from report_runs import PLAIN, write_run
from rich.console import Console

from vlmsafe import __version__, doctor
from vlmsafe.cli import listings, main, terminal
from vlmsafe.cli.terminal import PathText
from vlmsafe.doctor import examine
from vlmsafe.envs import opengl
from vlmsafe.envs.registry import ENVS
from vlmsafe.errors import EXIT_BAD_INPUT


def vlmsafe(*arguments, without=(), width=None):
    hidden = "".join(f"sys.modules[{module!r}] = None; " for module in without)
    squeezed = f"import vlmsafe.cli; vlmsafe.cli.out.width = {width}; " if width else ""
    code = f"import sys; {hidden}{squeezed}from vlmsafe.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout


def test_environments_are_listed_with_their_variants_whole_at_100_columns():
    lines = vlmsafe("envs", width=100).splitlines()
    assert max(map(len, lines)) <= 100
    shown = "\n".join(lines)
    for name, spec in ENVS.items():
        assert f" {name} " in shown
        for variant in spec.variants:
            assert f" :{variant} " in shown
    assert "safety-gymnasium:<id>" in shown
    assert "info['cost']" in shown
    assert "…" not in shown


def test_commands_for_missing_simulators_are_listed_whole_and_once():
    lines = vlmsafe("envs", without=["mujoco"], width=60).splitlines()
    assert lines.count(f"  {ENVS['formula-one-l0'].install}") == 1
    assert "To install formula-one-l0, formula-one-l1, formula-one-l2:" in lines
    assert ENVS["bullet-car-reach"].install not in lines


def test_the_doctor_prints_commands_that_can_be_copied():
    lines = vlmsafe("doctor", without=["mujoco"], width=60).splitlines()
    at = lines.index("To get mujoco:")
    assert lines[at + 1] == f"  {ENVS['formula-one-l0'].install}"
    assert "To get polars:" not in lines


def finding(name):
    return next(finding for finding in examine() if finding.name == name)


@pytest.mark.parametrize(
    ("distribution", "module", "enables", "install"),
    [
        ("mujoco", "mujoco", "formula-one", "mujoco>=4.0,<5"),
        ("pybullet", "pybullet", "bullet-car-reach", "pybullet>=3.2.6"),
        ("bullet-safety-gym", "bullet_safety_gym", "bullet-car-reach", "--no-deps"),
        ("safety-gymnasium", "safety_gymnasium", "safety-gymnasium:<id>", "original/bin/pip install numpy==1.23.5"),
    ],
)
def test_a_missing_simulator_is_found_missing_with_what_it_enables(monkeypatch, distribution, module, enables, install):
    real = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == module else real(name))
    missing = finding(distribution)
    assert (missing.present, missing.required) == (False, False)
    assert enables in missing.enables
    assert install in missing.install


@pytest.mark.parametrize("way", ["egl", "osmesa", None])
def test_the_doctor_says_which_opengl_mujoco_will_draw_with(monkeypatch, way):
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(opengl, "works", lambda tried: tried == way)
    drawing = finding("OpenGL of MuJoCo")
    assert drawing.version == way
    assert drawing.install.endswith("libegl1 libegl-mesa0 libgl1-mesa-dri")
    assert "MUJOCO_GL" not in os.environ


def test_the_doctor_names_the_variable_that_switches_drawing_off(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)  # which MuJoCo sets, where it has been imported
    drawing = finding("OpenGL of MuJoCo")
    assert not drawing.present
    assert drawing.install.startswith("unset MUJOCO_GL; ")


@pytest.mark.parametrize(("library", "package"), [("EGL", "libegl1"), ("EGL_mesa", "libegl-mesa0"), ("GL", "libgl1")])
def test_a_missing_library_names_its_package(monkeypatch, library, package):
    real = doctor.ctypes.util.find_library
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: None if name == library else real(name))
    missing = finding(package)
    assert not missing.present
    assert missing.install.endswith(f"apt-get install -y --no-install-recommends {package}")


def test_indicators_where_there_are_none_are_refused_in_one_line_before_anything_starts(tmp_path):
    code = "from vlmsafe.cli import main; main()"
    arguments = ["train", "--env", "speeding", "--frame-indicators", "--run-dir", str(tmp_path / "run")]
    answer = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert answer.returncode == EXIT_BAD_INPUT
    assert len(answer.stderr.strip().splitlines()) == 1
    assert "frames of environment 'speeding' show no cost indicators" in answer.stderr
    assert not (tmp_path / "run").exists()


def test_version_is_printed(capsys):
    main(["--version"])
    assert capsys.readouterr().out.strip() == f"vlmsafe {__version__}"


def test_a_path_in_a_table_breaks_after_slashes():
    console = Console(file=io.StringIO(), width=24)
    console.print(PathText("runs/gym-kiln-Kiln-v0/ppo-lag/seed-1"))
    assert [line.strip() for line in console.file.getvalue().splitlines()] == [
        "runs/gym-kiln-Kiln-v0/", "ppo-lag/seed-1",
    ]  # fmt: skip


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("", 120)])
def test_printed_tables_are_as_wide_as_columns_says(columns, widest, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert max(map(len, vlmsafe("methods").splitlines())) == widest


def test_runs_on_a_narrow_terminal_are_listed_below_their_paths(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "runs", PLAIN, 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(listings.out, "width", 60)
    main(["runs"])
    path, *text = capsys.readouterr().out.split()
    assert path == "runs/metadrive-easy/ppo-lag/seed-1"
    assert " ".join(text).startswith("ppo-lag on metadrive-easy, seed 1: ")


@pytest.mark.parametrize("console", [terminal.out, terminal.err])
def test_names_of_environments_are_not_turned_into_emoji(console):
    with console.capture() as printed:
        console.print("gym:car:Race-v0", markup=False)
        table = terminal.listing("environment")
        table.add_row("gym:car:Race-v0")
        console.print(table)
    assert printed.get().count("gym:car:Race-v0") == 2
