"""Kernels: a run's numbers depend on its settings and seed, and on nothing that the environment or the CPU brings."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vlmsafe
from vlmsafe import kernels
from vlmsafe.cli import kernels_for
from vlmsafe.errors import EXIT_BAD_INPUT

HOSTILE = {
    "OPENBLAS_CORETYPE": "Nehalem",
    "OPENBLAS_NUM_THREADS": "3",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "SSE4_2",
    "OMP_NUM_THREADS": "3",
    "PYTHONHASHSEED": "7",
}
SETTINGS = {"env": "speeding", "method": "ppo-lag", "total_steps": 1200, "steps_per_epoch": 600}
WORDS = [word for key, value in SETTINGS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
pytestmark = pytest.mark.skipif(kernels.unavailable() is not None, reason=str(kernels.unavailable()))


def plain_environment(**variables: str) -> dict[str, str]:
    """An environment in which nothing was pinned."""
    found = kernels.environment("native")
    return {name: value for name, value in found.items() if "VLMSAFE" not in name} | variables


def python(code: str, *words: object, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=plain_environment(**variables),
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def train(folder: Path, *words: str, **variables: str) -> str:
    """The epochs of a run that the command line trained, with all digests of its state."""
    command = [sys.executable, "-m", "vlmsafe", "train", *WORDS, "--run-dir", str(folder), "--quiet", *words]
    subprocess.run(command, env=plain_environment(**variables), check=True, capture_output=True)
    return (folder / "epochs.jsonl").read_text()


@pytest.fixture(scope="module")
def pinned(made_once):
    return made_once("kernels-baseline", lambda folder: train(folder))


@pytest.fixture(scope="module")
def native(made_once):
    return made_once("kernels-native", lambda folder: train(folder, "--kernels", "native"))


def test_a_run_does_not_depend_on_its_environment(pinned, tmp_path):
    assert vlmsafe.Run.open(pinned).recorded()["kernels"] == "baseline"
    assert train(tmp_path / "run", **HOSTILE) == (pinned / "epochs.jsonl").read_text()


def test_a_native_run_depends_on_it_and_says_so(pinned, tmp_path):
    assert train(tmp_path / "run", "--kernels", "native", **HOSTILE) != (pinned / "epochs.jsonl").read_text()
    run = vlmsafe.Run.open(tmp_path / "run")
    assert (run.config.kernels, run.recorded()["kernels"]) == ("native", "native")


def test_a_script_that_loads_numpy_and_torch_first_gets_the_same_run(pinned, tmp_path):
    code = (
        "import numpy, torch, sys, vlmsafe; from vlmsafe import kernels; assert not kernels.pinned();"
        f"run = vlmsafe.train(run_dir=sys.argv[1], quiet=True, **{SETTINGS!r});"
        "print(run.recorded()['kernels'], len(vlmsafe.evaluate(run, episodes=2, processes=1)))"
    )
    assert python(code, tmp_path / "run", **HOSTILE).split() == ["baseline", "2"]
    assert (tmp_path / "run" / "epochs.jsonl").read_text() == (pinned / "epochs.jsonl").read_text()


@pytest.mark.parametrize("resume", ["command line", "api"])
def test_a_run_of_before_resumes_with_native_kernels(native, tmp_path, resume):
    folder = shutil.copytree(native, tmp_path / "run")
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(re.sub(r"^ *kernels: native\n", "", config, flags=re.MULTILINE))
    (folder / "checkpoints" / "epoch-00002.safetensors").unlink()
    if resume == "api":  # this process is pinned, so a child computes
        assert kernels.pinned()
        vlmsafe.resume(folder, quiet=True)
    else:
        command = [sys.executable, "-m", "vlmsafe", "train", "--resume", str(folder), "--quiet"]
        subprocess.run(command, env=plain_environment(), check=True, capture_output=True)
    assert vlmsafe.Run.open(folder).events()[-2]["kernels"] == "native"
    assert (folder / "epochs.jsonl").read_text() == (native / "epochs.jsonl").read_text()


def test_resuming_with_other_kernels_is_noted(pinned, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(pinned, tmp_path / "run")
    (folder / "checkpoints" / "epoch-00002.safetensors").unlink()
    monkeypatch.setattr(kernels, "in_effect", lambda: "native")  # as on a machine where libraries do not comply
    vlmsafe.resume(folder)
    assert "resuming with native kernels a run that was computed with baseline kernels" in capsys.readouterr().err


def test_every_library_complies_without_a_warning():
    code = (
        "import warnings; warnings.simplefilter('error', ImportWarning); import vlmsafe, numpy, scipy.linalg, torch;"
        "from vlmsafe import kernels; print(kernels.in_effect())"
    )
    assert python(code, **HOSTILE) == "baseline\n"


def test_a_process_that_loaded_a_library_is_left_alone():
    code = (
        "import os, numpy; before = dict(os.environ); import vlmsafe;"
        "print(before | {'VLMSAFE_KERNELS': 'native'} == dict(os.environ))"
    )
    assert python(code, **HOSTILE) == "True\n"


def test_the_workers_of_a_script_that_loads_numpy_first_are_native_too(native, tmp_path):
    code = (
        f"import numpy, sys, vlmsafe; vlmsafe.train(run_dir=sys.argv[1], quiet=True, kernels='native', **{SETTINGS!r})"
    )
    python(code, tmp_path / "run")
    assert (tmp_path / "run" / "epochs.jsonl").read_text() == (native / "epochs.jsonl").read_text()


def test_a_child_with_native_kernels_has_the_users_variables():
    code = (
        "import json, os, sys; before = dict(os.environ); import vlmsafe; from vlmsafe import kernels;"
        "assert dict(os.environ) != before; found = kernels.environment('native'); del found['VLMSAFE_KERNELS'];"
        "print(found == before)"
    )
    assert python(code, **HOSTILE) == "True\n"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("import numpy", "False native native"),  # the variable alone pins nothing
        ("import vlmsafe, sys; del sys.modules['vlmsafe'], sys.modules['vlmsafe.kernels']", "True baseline baseline"),
    ],
)
def test_a_variable_that_says_baseline_is_believed_only_where_it_was_done(first, expected):
    code = (
        f"{first}; import numpy, os, vlmsafe; from vlmsafe import kernels;"
        "print(kernels.pinned(), os.environ['VLMSAFE_KERNELS'], kernels.in_effect())"
    )
    assert python(code, VLMSAFE_KERNELS="baseline").strip() == expected


def test_a_machine_that_cannot_be_pinned_is_native_whatever_the_variable_says(monkeypatch):
    monkeypatch.setattr(kernels, "_cpu_flags", frozenset)
    monkeypatch.setenv("VLMSAFE_KERNELS", "baseline")
    kernels.pin()
    assert not kernels.pinned()


@pytest.mark.parametrize("words", [["doctor"], ["train", "--env", "speeding", "--run-dir", "run"]])
def test_an_unknown_value_of_the_variable_is_refused_in_one_line(words, tmp_path):
    answer = subprocess.run(
        [sys.executable, "-m", "vlmsafe", *words], env=plain_environment(VLMSAFE_KERNELS="fast"), cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == EXIT_BAD_INPUT
    assert answer.stderr == "error: VLMSAFE_KERNELS is 'fast'; set it to baseline or native, or unset it\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("chosen", "shown"), [({}, True), ({"VLMSAFE_KERNELS": "native"}, False)])
def test_a_command_without_the_setting_is_pinned_unless_a_variable_says_native(chosen, shown):
    command = [sys.executable, "-m", "vlmsafe", "doctor"]
    answer = subprocess.run(command, env=plain_environment(**chosen), check=True, capture_output=True, text=True)
    assert bool(re.search(r"pinned kernels +AVX2", answer.stdout)) == shown


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], None),
        (["--kernels", "native"], "native"),
        (["--kernels=native", "--quiet"], "native"),
        (["--kernels"], "baseline"),
        (["--resume", "old"], "native"),
        (["--resume=old"], "native"),
        (["new"], "baseline"),
        (["fast"], "native"),
        (["--config", "fast/config.yaml"], "native"),
        (["--config", "fast/config.yaml", "--kernels", "baseline"], "baseline"),
        (["--config", "old/config.yaml"], None),  # a new run
        (["nowhere"], None),
    ],
)
def test_a_command_line_says_which_kernels_it_needs(words, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"old": "", "new": "kernels: baseline\n", "fast": "kernels: native\n"}.items():
        Path(name).mkdir()
        Path(name, "config.yaml").write_text(f"env: speeding\n{text}recorded:\n  kernels: baseline\n")
    assert kernels.wanted_by(words) == wanted


@pytest.mark.parametrize(
    ("verb", "words", "wanted"),
    [
        ("train", ["--resume", "old"], "native"),
        ("train", [], "baseline"),
        ("clone", ["braking"], "baseline"),
        ("evaluate", ["old"], "native"),
        ("trace", ["old"], "native"),
        ("verify", ["old"], "native"),
        ("audit", ["old", "new"], None),  # pinned, in whatever order its runs are named
        ("diagnose", ["old"], None),
        ("embedded", ["build"], "native"),
    ],
)
def test_only_verbs_that_compute_with_a_run_take_its_kernels(verb, words, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"old": "", "new": "kernels: baseline\n"}.items():
        Path(name).mkdir()
        Path(name, "config.yaml").write_text(f"env: speeding\n{text}")
    assert kernels_for(verb, words) == wanted


def test_a_cpu_without_avx2_is_named_and_computes_natively(monkeypatch):
    monkeypatch.setattr(kernels, "_cpu_flags", lambda: frozenset({"fma", "sse4_2"}))
    assert re.search("found a CPU without avx2, .*repeatable on this machine only", kernels.unavailable())
    assert kernels.environment("baseline")["VLMSAFE_KERNELS"] == "native"
    monkeypatch.setenv("VLMSAFE_KERNELS", "native")
    assert kernels.fit("baseline")


def test_ctrl_c_saves_a_run_that_a_child_computes(tmp_path):
    code = (
        "import numpy, sys, vlmsafe\n"
        "try: vlmsafe.train(env='speeding', total_steps=10**7, steps_per_epoch=500, run_dir=sys.argv[1], quiet=True)\n"
        "except vlmsafe.VlmsafeError as error: print(type(error).__name__, error)\n"
    )
    script = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], env=plain_environment(), stdout=subprocess.PIPE, text=True
    )
    rows = tmp_path / "run" / "epochs.jsonl"
    while not rows.exists() and script.poll() is None:
        time.sleep(0.05)
    os.kill(script.pid, signal.SIGINT)
    answer, _ = script.communicate(timeout=60)
    assert re.match(r"Interrupted stopped by SIGINT after epoch \d+ of 20000; continue with: vlmsafe train", answer)
    assert vlmsafe.Run.open(tmp_path / "run").status() == "stopped early"
    assert json.loads(rows.read_text().splitlines()[0])["epoch"] == 1
