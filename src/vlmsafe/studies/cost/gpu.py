"""GPU-hours of all the paper's runs: with a GPU in every run, and with one scoring service for all of them.

A run that holds a GPU holds it for its whole training. A service needs it only while it scores, so its time is the
number of frames divided by frames per second. Simulators and learners need the same cores either way. The speeds of
simulators and learners come from `speeds.csv`, those of a GPU from `gpu_speeds.csv`; both name the command that
measured them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from vlmsafe.audit.findings import counted
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.signals.scorers.registry import kind_of, parse_scorer
from vlmsafe.studies.cost.plan import Speeds, measured_on
from vlmsafe.studies.steps import NO_RESULT
from vlmsafe.studies.study import Study

ALONE, FLOAT32, BFLOAT16, SERVICE = "one at a time", "batched float32", "batched bfloat16", "service bfloat16"
_FRAME = 256 * 256 * 3  # bytes of a frame as it was measured
PAPERS_HOURS = 4222
"""What the paper reports, including restarted and pilot runs."""

Rates = dict[tuple[str, str], float]


@dataclass(frozen=True)
class GpuRow:
    """The runs of a study that no earlier study has."""

    study: str
    runs: int
    known: int
    """Runs of which every speed was measured; the numbers below are for these."""
    speed_unknown: int
    """Runs left out because the speed of their simulator or learner was not measured."""
    model_unknown: int
    """Runs left out because the speed of their model on a GPU was not measured, one frame at a time and in batches."""
    frames: int
    core_hours: float
    """Simulators, frames and learners."""
    per_run: float
    """GPU-hours with a GPU in every run, one frame at a time."""
    per_run_batched: float
    """The same with frames scored in batches while the simulators run."""
    shared_float32: float
    shared_bfloat16: float


def gpu_speeds() -> Rates:
    """(model, how) -> frames per second, for everything that was measured."""
    rows = csv.DictReader(line for line in _table().splitlines() if not line.startswith("#"))
    return {(row["model"], row["how"]): float(row["frames_per_second"]) for row in rows if row["frames_per_second"]}


def _table() -> str:
    return (resources.files("vlmsafe.studies.cost") / "gpu_speeds.csv").read_text(encoding="utf-8")


def gpu_plan(studies: Iterable[Study], speeds: Speeds | None = None, rates: Rates | None = None) -> list[GpuRow]:
    """A row for each study; a run of several studies is counted with the first, unless a study is independent."""
    speeds, rates = speeds or Speeds.of(None), gpu_speeds() if rates is None else rates
    seen: set[str] = set()
    return [_row(study.name, list(_new_runs(study, seen)), speeds, rates) for study in studies]


def _new_runs(study: Study, seen: set[str]) -> Iterator[TrainConfig]:
    for spec in study.expand(Path(study.name)):
        settings = {name: value for name, value in flatten(to_dict(spec.config)).items() if name not in NO_RESULT}
        key = json.dumps(settings, sort_keys=True, default=str)
        if study.independent or key not in seen:
            seen.add(key)
            yield spec.config


def _row(name: str, runs: list[TrainConfig], speeds: Speeds, rates: Rates) -> GpuRow:
    frames = known = speed_unknown = model_unknown = 0
    core = per_run = batched = float32 = bfloat16 = 0.0
    for config in runs:
        model = model_of(config)
        seconds = speeds.without_model(config)
        if seconds is None:
            speed_unknown += 1
            continue
        if model and any((model, how) not in rates for how in (ALONE, FLOAT32, BFLOAT16)):
            model_unknown += 1
            continue
        count = frames_of(config) if model else 0
        known, frames, core = known + 1, frames + count, core + seconds
        wall = seconds / config.num_envs
        per_run += wall + (count / rates[model, ALONE] if model else 0.0)
        batched += max(wall, count / rates[model, FLOAT32] if model else 0.0)
        if model:
            float32 += count / rates[model, FLOAT32]
            bfloat16 += count / rates.get((model, SERVICE), rates[model, BFLOAT16])
    hours = [seconds / 3600.0 for seconds in (core, per_run, batched, float32, bfloat16)]
    return GpuRow(name, len(runs), known, speed_unknown, model_unknown, frames, *hours)


def model_of(config: TrainConfig) -> str:
    """The model of a run that needs a GPU; empty if it has none."""
    scorer = config.signal.scorer
    return str(parse_scorer(scorer).unshuffled) if kind_of(scorer).wants_gpu else ""


def frames_of(config: TrainConfig) -> int:
    """The most frames that a run scores: every k-th step, and those of its calibration, each with its whole clip."""
    signal = config.signal
    states = config.total_steps // signal.period + (signal.calibration.frames or 0) * signal.needs_calibration
    return states * (signal.frames or 1)


def notes(rows: list[GpuRow], rates: Rates | None = None) -> list[str]:
    """What the numbers are based on, and what they leave out."""
    rates = gpu_speeds() if rates is None else rates
    served = max((rate for (_, how), rate in rates.items() if how == SERVICE), default=None)
    core, float32, bfloat16 = (
        sum(getattr(row, name) for row in rows) for name in ("core_hours", "shared_float32", "shared_bfloat16")
    )
    keeps_up = (
        [f"one GPU keeps up with simulators on about {core / float32:,.0f} cores in float32, and on "
         f"{core / bfloat16:,.0f} in bfloat16; with C cores of simulators it is in use for {core:,.0f} / C hours"]
        if bfloat16
        else []
    )  # fmt: skip
    return [
        f"measured: seconds per step, frame and pass ({measured_on().removeprefix('measured ')}); frames per second "
        "of one NVIDIA H200 (benchmarks/scoring.py)",
        *_of_service(served),
        "bfloat16 means bfloat16 and compiled (--signal.precision bfloat16 --signal.compile); the shipped studies do "
        "not set that for CLIP, so the float32 column applies to them",
        "extrapolated: to all steps of all runs, with simulators on cores like those measured; for a service only the "
        "time in which it scores is counted",
        *keeps_up,
        "for training alone, as in the paper; evaluations, traces and repeated runs are not counted",
        *_left_out(rows),
        f"the paper reports {PAPERS_HOURS:,} GPU-hours for its runs, one GPU each, at about a dozen steps a second on "
        "FormulaOne, with other simulators and GPUs",
    ]


def _of_service(rate: float | None) -> list[str]:
    """Which numbers were measured on a service."""
    if rate is None:
        return ["the rate of the service was not measured; that of the model in batches is used instead"]
    gigabits = 8 * _FRAME * rate / 1e9
    return [
        "'shared, bfloat16' uses the rate of the service, end to end; 'shared, float32' that of the model in batches",
        f"the service's {rate:,.0f} frames/s went through shared memory on one machine; frames from other nodes go "
        f"over TCP, about {gigabits:.0f} Gbit/s at that rate, which was not measured",
    ]


def _left_out(rows: list[GpuRow]) -> list[str]:
    models, others = (sum(getattr(row, name) for row in rows) for name in ("model_unknown", "speed_unknown"))
    found = []
    if models:
        found.append(
            f"left out: {counted(models, 'run')} with models whose speed on a GPU was not measured (ViT-L/14, Qwen2-VL)"
        )
    if others:
        found.append(f"left out: {counted(others, 'run')} whose environment or learner was not measured")
    return found
