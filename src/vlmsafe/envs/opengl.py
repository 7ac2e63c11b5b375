"""How MuJoCo draws without a screen: EGL where it works, else OSMesa, else not at all.

MuJoCo reads MUJOCO_GL once, when it is imported. An EGL that does not work fails only when the first frame is drawn, so
it is tried before, in a separate process: its drivers load hundreds of megabytes and start threads, which must not
happen in the server that workers are forked from, nor in a process that never draws. This file is also the script of
that process, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache

PACKAGES = ("libegl1", "libegl-mesa0", "libgl1-mesa-dri")
"""What EGL needs on Debian: the library, Mesa's part of it, and its drivers."""
INSTALL = f"apt-get install -y --no-install-recommends {' '.join(PACKAGES)}"

_OFF = ("disable", "disabled", "off", "false", "0")  # as MuJoCo reads MUJOCO_GL
_LIBRARIES = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")}
_SECONDS = 30.0  # a driver that takes longer hangs

# Of the EGL standard, its extensions and OpenGL: what MuJoCo asks for.
_PLATFORM_DEVICE, _OPENGL_API, _NONE = 0x313F, 0x30A2, 0x3038
_RED, _GREEN, _BLUE, _ALPHA, _DEPTH, _STENCIL = 0x3024, 0x3023, 0x3022, 0x3021, 0x3025, 0x3026
_SURFACE_TYPE, _PBUFFER, _RENDERABLE_TYPE, _OPENGL = 0x3033, 0x0001, 0x3040, 0x0008
_CONFIG = (_RED, 8, _GREEN, 8, _BLUE, 8, _ALPHA, 8, _DEPTH, 24, _STENCIL, 8,
           _SURFACE_TYPE, _PBUFFER, _RENDERABLE_TYPE, _OPENGL, _NONE)  # fmt: skip


def choose() -> str | None:
    """Choose how MuJoCo draws, before it is imported; returns the name, or None where it cannot draw.

    The choice is written to MUJOCO_GL, for this process and those it starts.
    """
    way = found()
    # Importing MuJoCo would fail with a way that does not work, and physics needs none.
    os.environ["MUJOCO_GL"] = way or "disable"
    return way


def found() -> str | None:
    """What `choose` would choose: the user's MUJOCO_GL where that works, else the first way that works."""
    named = os.environ.get("MUJOCO_GL", "").strip().lower()
    if named in _OFF:
        return None
    if named and named not in _LIBRARIES:
        return named  # a window system; using it shows whether it works
    platform = os.environ.get("PYOPENGL_PLATFORM", "").lower()  # where it names another way, MuJoCo refuses to draw
    return next((way for way in ([named] if named else _LIBRARIES) if platform in ("", way) and works(way)), None)


@cache
def works(way: str) -> bool:
    """Whether `egl` or `osmesa` can draw here, tried in a separate process."""
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", __file__, way], capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0


def missing() -> str:
    """Why no frame can be drawn, and what to do about it."""
    return (
        "MuJoCo has no OpenGL to draw frames with (physics runs without); leave MUJOCO_GL and PYOPENGL_PLATFORM unset, "
        f"and install it with: {INSTALL} (or libosmesa6 alone)"
    )


def _probe(way: str) -> bool:
    """Whether MuJoCo's own steps to a context succeed, including loading the library."""
    for name in _LIBRARIES[way]:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        return _egl_draws(library) if way == "egl" else True
    return False


def _egl_draws(egl: ctypes.CDLL) -> bool:
    """Whether a device without a screen gives an OpenGL context; libEGL without a driver does not."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    egl.eglGetProcAddress.restype, egl.eglGetProcAddress.argtypes = pointer, [ctypes.c_char_p]
    addresses = [egl.eglGetProcAddress(name) for name in (b"eglQueryDevicesEXT", b"eglGetPlatformDisplayEXT")]
    if not all(addresses):
        return False
    query = ctypes.CFUNCTYPE(integer, integer, ctypes.POINTER(pointer), ctypes.POINTER(integer))(addresses[0])
    open_display = ctypes.CFUNCTYPE(pointer, integer, pointer, pointer)(addresses[1])
    egl.eglInitialize.argtypes = [pointer, pointer, pointer]
    egl.eglChooseConfig.argtypes = [pointer, ctypes.POINTER(integer), ctypes.POINTER(pointer), integer, pointer]
    egl.eglCreateContext.restype, egl.eglCreateContext.argtypes = pointer, [pointer, pointer, pointer, pointer]

    devices, count = (pointer * 10)(), integer()
    if not query(len(devices), devices, ctypes.byref(count)):
        return False
    wanted, config = (integer * len(_CONFIG))(*_CONFIG), (pointer * 1)()
    for device in devices[: count.value]:
        display = open_display(_PLATFORM_DEVICE, device, None)
        if display and egl.eglInitialize(display, None, None):
            # MuJoCo takes the first display that initialises, even where the remaining steps fail.
            found = integer()
            egl.eglChooseConfig(display, wanted, config, 1, ctypes.byref(found))
            egl.eglBindAPI(_OPENGL_API)
            return found.value > 0 and bool(egl.eglCreateContext(display, config[0], None, None))
    return False


if __name__ == "__main__":
    sys.exit(not _probe(sys.argv[1]))
