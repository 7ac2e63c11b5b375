"""Pins the machine code that numerical libraries choose, so that a run's numbers do not depend on the CPU.

OpenBLAS, numpy, torch, oneDNN and MKL look at the CPU when they are loaded and choose code for it. Different code adds
in a different order and rounds differently, and a training run amplifies the difference. `pin` makes them choose the
code for AVX2 and FMA, which all x86-64 CPUs of the last ten years have: the kernels are then called `baseline`, without
it `native`. It works through environment variables, so it must run before these libraries are loaded: `import vlmsafe`
calls it. It imports only the standard library, and little of it, because every command pays for that.

VLMSAFE_KERNELS says what was done: `baseline` in a process that was pinned and in all processes that it starts,
`native` in one that must not be. Where libraries are loaded already, `io.child` computes in another process.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

Kernels = Literal["baseline", "native"]
UNRECORDED: Kernels = "native"
"""The kernels of a run that records none: it began before they could be pinned."""

_CHOICE = "VLMSAFE_KERNELS"
_BEFORE = "VLMSAFE_KERNELS_BEFORE"  # JSON: what the variables were before they were pinned
_LIBRARIES = ("numpy", "scipy", "torch", "mkl")
_NEEDED = ("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe")
_PINNED = {
    "OPENBLAS_CORETYPE": "Haswell",
    # Also in the main process: a product that several threads share is added up in another order.
    "OPENBLAS_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    # The only one of MKL's branches that is the same on CPUs of all makers. Its AVX2 branch is refused on an AMD.
    "MKL_CBWR": "COMPATIBLE",
}
_NUMPY = "NPY_DISABLE_CPU_FEATURES"
# What each version of numpy has beyond AVX2, newest first. It warns about names that it does not know.
_NUMPY_GROUPS = {
    (2, 4): "X86_V4 AVX512_ICL AVX512_SPR",
    (2, 3): "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    (0, 0): "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
}
_NUMPY_KEPT = {"SSSE3", "SSE41", "POPCNT", "SSE42", "AVX", "F16C", "FMA3", "AVX2", "X86_V3"}
REFUSED = (
    "numpy's or torch's libraries did not comply (they are built for another CPU, or were loaded before vlmsafe): "
    "results are repeatable on machines of the same kind only"
)
"""The note on a process that was to be pinned and is not, where that is possible."""


def pin() -> None:
    """Pin this process and those it starts, unless a library is loaded already or VLMSAFE_KERNELS says native.

    A library that is loaded already is pinned only if the process was started by a pinned one.
    """
    if os.environ.get(_CHOICE, "baseline") != "baseline":
        return  # native, or a word that `check` refuses: an error at import would be a traceback
    inherited = _CHOICE in os.environ and _variables_are_set()
    if unavailable() is not None or (_loaded() and not inherited):
        os.environ[_CHOICE] = "native"  # so that its worker processes compute with the same code
    elif not _loaded():
        _change({_CHOICE: "baseline", _BEFORE: json.dumps(_before(os.environ))} | _variables())


def check() -> None:
    """Refuse a value of VLMSAFE_KERNELS that is not one of the kernels."""
    if (found := os.environ.get(_CHOICE)) is not None and found not in get_args(Kernels):
        from vlmsafe.errors import InputError

        raise InputError(f"VLMSAFE_KERNELS is '{found}'; set it to {' or '.join(get_args(Kernels))}, or unset it")


def choose(kernels: Kernels) -> None:
    """Decide for this process again, if no library is loaded yet."""
    if not _loaded():
        _change(dict.fromkeys(os.environ) | environment(kernels))


def environment(kernels: Kernels) -> dict[str, str]:
    """The environment variables for a process that shall compute with certain kernels."""
    before = _before(os.environ)
    own = {name: value for name, value in os.environ.items() if name not in (_CHOICE, _BEFORE)}
    plain = {name: value for name, value in (own | before).items() if value is not None}
    if kernels == "native" or unavailable() is not None:
        return plain | {_CHOICE: "native"}
    return plain | {_CHOICE: "baseline", _BEFORE: json.dumps(before)} | _variables()


def variables(kernels: Kernels) -> dict[str, str]:
    """Those of `environment` that decide about kernels, for a process that gets the rest from elsewhere."""
    return {name: value for name, value in environment(kernels).items() if name in (_CHOICE, *_PINNED, _NUMPY)}


def pinned() -> bool:
    """Whether this process was pinned before it loaded a library. Whether they complied is for `in_effect`."""
    check()
    return os.environ.get(_CHOICE) == "baseline"


def fit(wanted: Kernels) -> bool:
    """Whether to compute in this process; otherwise a child process has the wanted kernels."""
    return pinned() == (wanted == "baseline") or (not pinned() and unavailable() is not None)


def wanted_by(words: Sequence[str]) -> Kernels | None:
    """The kernels that a command line asks for, found without loading what reads it properly; None if it does not."""
    for place, word in enumerate(words):
        option, _, value = word.partition("=")
        if option == "--kernels":
            return _choice(value or " ".join(words[place + 1 : place + 2]))
    for word in words:
        name = word.partition("=")[2] if word.startswith("--") else word
        path = os.path.join(name, "config.yaml") if os.path.isdir(name) else name
        if path.endswith((".yaml", ".yml")) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            found = re.search(r"^kernels: *(\w+)", text, re.MULTILINE)
            if found or path != name:
                return _choice(found[1] if found else UNRECORDED)
    return None


def in_effect() -> Kernels:
    """What the libraries of this process really use; those that are not loaded yet do what the variables say."""
    if not pinned() or not _variables_are_set():
        return "native"
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and not (_numpy_is_pinned(numpy) and _openblas_is_pinned()):
        return "native"
    if torch is not None and torch.backends.cpu.get_cpu_capability() != "AVX2":
        return "native"
    return "baseline"


def unavailable() -> str | None:
    """Why kernels cannot be pinned on this machine, in one line; None where they can be."""
    machine = os.uname().machine if hasattr(os, "uname") else sys.platform
    if sys.platform != "linux" or machine != "x86_64":
        found = f"{sys.platform} on {machine}"
    elif missing := [name for name in _NEEDED if name not in _cpu_flags()]:
        found = f"a CPU without {', '.join(missing)}"
    else:
        return None
    return (
        f"kernels cannot be pinned here (expected Linux on an x86-64 CPU with AVX2 and FMA, found {found}): results "
        "are repeatable on this machine only"
    )


def _loaded() -> bool:
    return any(name in sys.modules for name in _LIBRARIES)


def _choice(text: str) -> Kernels:
    """A choice as a user wrote it. What is not one is refused later, where settings are checked."""
    return "native" if text == "native" else "baseline"


def _change(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _before(variables: Mapping[str, str]) -> dict[str, str | None]:
    """The variables that are pinned, as the user has them."""
    if _BEFORE in variables:
        found: dict[str, str | None] = json.loads(variables[_BEFORE])
        return found
    return {name: variables.get(name) for name in (*_PINNED, _NUMPY)}


def _variables() -> dict[str, str]:
    return {**_PINNED, _NUMPY: _numpy_groups()}


def _variables_are_set() -> bool:
    return all(os.environ.get(name) == value for name, value in _variables().items())


def any_numpy() -> dict[str, str]:
    """The variable that pins a numpy of any version, if this process is pinned; it warns about names of other ones."""
    names = dict.fromkeys(name for groups in _NUMPY_GROUPS.values() for name in groups.split())
    return {_NUMPY: " ".join(names)} if _NUMPY in os.environ else {}


def _numpy_groups() -> str:
    """Read from numpy's folder, because the variable must be set before numpy is imported."""
    for folder in sys.path:
        try:
            with open(os.path.join(folder, "numpy", "version.py"), encoding="utf-8") as file:
                found = re.search(r'version = "(\d+)\.(\d+)', file.read())
        except OSError:
            continue
        if found:
            version = (int(found[1]), int(found[2]))
            return next(groups for first, groups in _NUMPY_GROUPS.items() if version >= first)
    return _NUMPY_GROUPS[max(_NUMPY_GROUPS)]


def _cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = file.read(8192).splitlines()  # the first CPU; there may be hundreds
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def _numpy_is_pinned(numpy: Any) -> bool:
    inner = numpy._core._multiarray_umath
    return {name for name in inner.__cpu_dispatch__ if inner.__cpu_features__[name]} <= _NUMPY_KEPT


def _openblas_is_pinned() -> bool:
    """Whether every OpenBLAS of the process, of numpy and of scipy, complied; a build for one CPU does not."""
    from threadpoolctl import threadpool_info

    found = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
    return all(one["architecture"] == _PINNED["OPENBLAS_CORETYPE"] for one in found)
