"""MuJoCo draws with what works, and physics never needs it."""

import ctypes
import os
import subprocess
import sys

import pytest

from vlmsafe.envs import opengl


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """Nothing is set before a test, and what a test sets does not outlive it."""
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.setenv(name, "")  # so that it is restored whatever the test does
        monkeypatch.delenv(name)


def only(*ways):
    return lambda way: way in ways


@pytest.mark.parametrize(
    ("working", "chosen"), [(("egl", "osmesa"), "egl"), (("egl",), "egl"), (("osmesa",), "osmesa"), ((), None)]
)
def test_egl_comes_before_osmesa_and_only_what_works_is_chosen(monkeypatch, working, chosen):
    monkeypatch.setattr(opengl, "works", only(*working))
    assert opengl.choose() == chosen
    assert os.environ["MUJOCO_GL"] == (chosen or "disable")
    assert opengl.choose() == chosen  # and again


@pytest.mark.parametrize(("named", "answer"), [("osmesa", "osmesa"), (" EGL ", "egl"), ("glfw", "glfw")])
def test_what_the_user_named_stands(monkeypatch, named, answer):
    monkeypatch.setenv("MUJOCO_GL", named)
    monkeypatch.setattr(opengl, "works", only("egl", "osmesa"))
    assert opengl.choose() == answer
    assert os.environ["MUJOCO_GL"].strip().lower() == answer


@pytest.mark.parametrize("off", ["disable", "OFF", "0"])
def test_drawing_can_be_switched_off(monkeypatch, off):
    monkeypatch.setenv("MUJOCO_GL", off)
    monkeypatch.setattr(opengl, "works", only("egl"))
    assert opengl.choose() is None
    assert os.environ["MUJOCO_GL"] == "disable"


def test_a_named_way_that_does_not_work_is_given_up_for_none(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(opengl, "works", only("egl"))
    assert opengl.choose() is None
    assert os.environ["MUJOCO_GL"] == "disable"


@pytest.mark.parametrize(("platform", "chosen"), [("osmesa", "osmesa"), ("egl", "egl"), ("glx", None)])
def test_a_platform_set_for_pyopengl_excludes_the_other_ways(monkeypatch, platform, chosen):
    monkeypatch.setenv("PYOPENGL_PLATFORM", platform)
    monkeypatch.setattr(opengl, "works", only("egl", "osmesa"))
    assert opengl.choose() == chosen


def test_a_driver_that_crashes_or_hangs_is_one_that_does_not_work(monkeypatch, tmp_path):
    script = tmp_path / "driver.py"
    monkeypatch.setattr(opengl, "__file__", str(script))
    script.write_text("import os; os.abort()")
    assert not opengl.works.__wrapped__("egl")
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(opengl, "_SECONDS", 0.2)
    assert not opengl.works.__wrapped__("egl")


class Egl:
    """A stand-in for libEGL with one device, whose steps towards a context succeed or fail as told."""

    def __init__(self, devices=1, display=7, initialises=True, configs=1, context=9, extensions=True):
        def query(room, found, count):
            for number in range(devices):
                found[number] = number + 1
            count[0] = devices
            return 1

        pointer, integer = ctypes.c_void_p, ctypes.c_int
        kinds = (integer, integer, ctypes.POINTER(pointer), ctypes.POINTER(integer))
        self._kept = (  # as long as their addresses are used
            ctypes.CFUNCTYPE(*kinds)(query),
            ctypes.CFUNCTYPE(pointer, integer, pointer, pointer)(lambda platform, device, options: display),
        )
        addresses = [ctypes.cast(function, pointer).value if extensions else None for function in self._kept]
        named = dict(zip((b"eglQueryDevicesEXT", b"eglGetPlatformDisplayEXT"), addresses, strict=True))

        def choose_config(shown, wanted, found, room, count):
            count._obj.value = configs

        self.eglGetProcAddress = lambda name: named[name]
        self.eglInitialize = lambda shown, major, minor: initialises
        self.eglChooseConfig = choose_config
        self.eglBindAPI = lambda interface: 1
        self.eglCreateContext = lambda shown, config, shared, options: context


@pytest.mark.parametrize(
    "broken",
    [{"devices": 0}, {"display": None}, {"initialises": False}, {"configs": 0}, {"context": None},
     {"extensions": False}],
    ids=str,
)  # fmt: skip
def test_egl_works_only_if_every_step_towards_a_context_does(broken):
    assert opengl._egl_draws(Egl())
    assert not opengl._egl_draws(Egl(**broken))


def test_looking_sets_nothing(monkeypatch):
    monkeypatch.setattr(opengl, "works", only("egl"))
    assert opengl.found() == "egl"
    assert "MUJOCO_GL" not in os.environ


def test_the_sentence_for_a_frame_that_cannot_be_drawn_names_the_packages():
    sentence = opengl.missing()
    assert "\n" not in sentence
    for package in ("libegl1", "libegl-mesa0", "libgl1-mesa-dri", "libosmesa6"):
        assert package in sentence


def in_a_process(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


WITHOUT_OSMESA = """
from vlmsafe.envs import opengl
works = opengl.works
opengl.works = lambda way: way == "egl" and works(way)
"""

CONTEXT = """
from vlmsafe.envs.opengl import choose
way = choose()
import mujoco
data = mujoco.MjData(model := mujoco.MjModel.from_xml_string("<mujoco/>"))
mujoco.mj_step(model, data)
print(way, data.time > 0)
if way:
    mujoco.GLContext(8, 8).make_current()
"""


def test_what_is_chosen_here_draws():
    pytest.importorskip("mujoco")
    answer = in_a_process(CONTEXT)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split()[1] == "True"


@pytest.mark.parametrize(
    "broken",
    [
        {"LIBGL_DRIVERS_PATH": "/nonexistent", "__EGL_VENDOR_LIBRARY_DIRS": "/nonexistent"},  # libEGL without a driver
        {"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_DIRS": "/nonexistent"},
        {"PYOPENGL_PLATFORM": "glx"},
    ],
    ids=["no driver", "no driver, but named", "another platform"],
)
def test_physics_runs_where_nothing_can_draw(broken):
    pytest.importorskip("mujoco")
    answer = in_a_process(WITHOUT_OSMESA + CONTEXT, **broken)
    assert (answer.returncode, answer.stdout.split()) == (0, ["None", "True"]), answer.stderr


def test_trying_loads_no_driver_into_the_process():
    code = "from vlmsafe.envs.opengl import choose; choose(); print('EGL' in open('/proc/self/maps').read())"
    assert in_a_process(code).stdout.strip() == "False"
