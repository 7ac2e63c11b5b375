"""What the tests of all rooms share."""

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, before tests load numpy

import hypothesis
import pytest

# Models and matrices in tests are small: threads that wait for each other would take most of the time, and other
# tests run beside them. The libraries read this when they are first imported, in child processes too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The readline library, which pytest imports, puts these into the environment of child processes. Printed tables would
# be as wide as the terminal of whoever runs the tests.
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)
    os.unsetenv(variable)

# Small models, scorers and made-up runs. They are imported by name, as a user's own would be
# (`python:frame_scorer:FrameScorer`), in worker processes too.
sys.path.append(str(Path(__file__).parent / "support"))

# A machine that is busy with other tests takes its time, and no promise is about speed. `make soak` tries more.
for profile, examples in (("tests", 40), ("soak", 400)):
    hypothesis.settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile(os.environ.get("VLMSAFE_TEST_PROFILE", "tests"))


def pytest_xdist_auto_num_workers() -> int:
    """How many workers `-n auto` starts: more than cores, because tests wait for processes that they started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (cores + 1) // 2


MadeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """`made_once(name, make)` is a folder that `make(folder)` filled once for all workers; tests only read it."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "made-once"
    root.mkdir(exist_ok=True)

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                folder.mkdir(exist_ok=True)
                make(folder)
                done.touch()
        return folder

    return folder_of
