"""List what is installed and what is missing, what each part enables, and the command that installs it."""

from __future__ import annotations

import ctypes.util
import importlib.util
import math
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata

from safetensors import SafetensorError, safe_open

from vlmsafe import kernels
from vlmsafe.envs import opengl
from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.signals.scorers.embedded import SHIPPED, revision_of
from vlmsafe.signals.scorers.registry import KINDS


@dataclass(frozen=True)
class Requirement:
    """One line of the doctor's table."""

    name: str
    version: str | None
    """None when missing."""
    enables: str
    install: str
    required: bool = False

    @property
    def present(self) -> bool:
        return self.version is not None


def _scorers_that_need(package: str) -> str:
    *names, last = (kind.name for kind in KINDS.values() if package in kind.packages)
    return f"scorers {', '.join(names)} and {last}"


# (distribution, import name, what it enables, how to install it, required)
_PACKAGES = (
    ("torch", "torch", f"{_scorers_that_need('torch')}, train --tensorboard", "pip install torch", False),
    ("transformers", "transformers", _scorers_that_need("transformers"), "pip install 'transformers>=5.0'", False),
    ("gymnasium", "gymnasium", "environments", "pip install gymnasium", True),
    ("polars", "polars", "evaluation tables", "pip install polars", True),
    ("metadrive-simulator", "metadrive", "metadrive-easy, -medium, -hard", ENVS["metadrive-easy"].install, False),
    ("pybullet", "pybullet", "bullet-car-reach", "pip install 'pybullet>=3.2.6'", False),
    # Its metadata requires an old Gymnasium that its code does not need.
    ("bullet-safety-gym", "bullet_safety_gym", "bullet-car-reach", "pip install --no-deps 'bullet-safety-gym>=1.4,<2'",
     False),
    ("mujoco", "mujoco", "formula-one-l0, -l1, -l2", ENVS["formula-one-l0"].install, False),
    # In a Python of its own, because it asks for an older Gymnasium, MuJoCo and numpy.
    ("safety-gymnasium", "safety_gymnasium", "safety-gymnasium:<id> without @<python>",
     env_spec("safety-gymnasium:any").install, False),
    ("tensorboard", "tensorboard", "train --tensorboard", "pip install tensorboard", False),
)  # fmt: skip

# (library, Debian package, what it enables); cv2, which MetaDrive imports, loads the first two at import.
_LIBRARIES = (
    ("GL", "libgl1", "importing MetaDrive (OpenCV loads it)"),
    ("glib-2.0", "libglib2.0-0", "importing MetaDrive (OpenCV loads it)"),
    ("EGL", "libegl1", "frames of formula-one"),
    ("EGL_mesa", "libegl-mesa0", "frames of formula-one without a GPU"),
)


def examine() -> list[Requirement]:
    """Examine this machine without slow imports."""
    requirements = [Requirement("python", platform.python_version(), "everything", "", required=True)]
    pinned = "AVX2" if kernels.in_effect() == "baseline" else None
    reason = kernels.unavailable() or (kernels.REFUSED if kernels.pinned() else "unset VLMSAFE_KERNELS")
    requirements.append(Requirement("pinned kernels", pinned, "the same numbers on every machine", reason))
    for distribution, module, enables, install, required in _PACKAGES:
        version = None
        if importlib.util.find_spec(module) is not None:
            try:
                version = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                version = "present"
        if module == "metadrive" and version is None and sys.version_info >= (3, 12):
            install = "use Python 3.11: MetaDrive does not support newer versions"
        requirements.append(Requirement(distribution, version, enables, install, required))
    for library, package, enables in _LIBRARIES:
        found = ctypes.util.find_library(library)
        requirements.append(Requirement(package, found, enables, install_command([package])))
    requirements.append(_drawing())
    again = "install vlmsafe again: it is a part of it"
    requirements.append(Requirement("embedded model", _shipped(), "--scorer embedded, the default", again))
    for kind in KINDS.values():
        if kind.downloaded and kind.default is not None:
            found = "in the cache" if _cached(kind.default) else None
            enables = f"--scorer {kind.name} without internet"
            requirements.append(Requirement(kind.default, found, enables, f"hf download {kind.default}"))
    return requirements


def _drawing() -> Requirement:
    """The OpenGL that MuJoCo will draw with. It is tried, because an installed library may lack a driver."""
    set_by_user = [name for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM") if os.environ.get(name)]
    first = f"unset {' '.join(set_by_user)}; " if set_by_user else ""
    install = first + install_command(list(opengl.PACKAGES))
    return Requirement("OpenGL of MuJoCo", opengl.found(), "frames of formula-one; physics needs none", install)


def _shipped() -> str | None:
    """Size and revision of the weights in the package, read without torch; None where missing or damaged."""
    try:
        with safe_open(SHIPPED, framework="numpy") as file:
            numbers = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no dict
        return f"{SHIPPED.stat().st_size / 1e6:.1f} MB, {numbers:,} parameters, revision {revision_of(SHIPPED)}"
    except (OSError, SafetensorError):
        return None


def _cached(model: str) -> bool:
    """Whether a model's configuration is in the Hugging Face cache."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model, "config.json"), str)


def install_command(packages: list[str]) -> str:
    """The command that installs Debian packages, with sudo where it is needed."""
    prefix = "" if os.geteuid() == 0 or shutil.which("sudo") is None else "sudo "
    return f"{prefix}apt-get install -y --no-install-recommends {' '.join(packages)}"
