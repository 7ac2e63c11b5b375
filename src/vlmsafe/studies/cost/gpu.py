"""GPU-hours of the paper's whole set of runs: with a GPU in every run, and with one service for all.

A run that holds a GPU holds it for as long as it trains, whether or not it scores. A service is busy only while it
scores, so what it takes is frames divided by frames per second. Simulators and learners need the same cores either way.
Speeds of simulators and learners come from `speeds.csv`, those of a GPU from `gpu_speeds.csv`; both name the command
that measured them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.signals.scorers.registry import kind_of, parse_scorer
from vlmsafe.studies.cost.plan import Speeds, measured_on
from vlmsafe.studies.progress import ASIDE
from vlmsafe.studies.study import Study

ALONE, FLOAT32, BFLOAT16, SERVICE = "one at a time", "batched float32", "batched bfloat16", "service bfloat16"
_FRAME = 256 * 256 * 3  # bytes of a frame as it was measured
PAPERS_HOURS = 4222
"""What the paper reports, restarted and pilot runs included."""

Rates = dict[tuple[str, str], float]


@dataclass(frozen=True)
class GpuRow:
    """The runs of a study that no study before it has."""

    study: str
    runs: int
    known: int
    """Runs of which every speed was measured; the figures below are of these."""
    speed_unknown: int
    """Runs left out because the speed of their simulator or learner was not measured."""
    model_unknown: int
    """Runs left out because the speed of their model on a GPU was not measured, alone and in batches."""
    frames: int
    core_hours: float
    """Simulators, frames and learners."""
    per_run: float
    """GPU-hours, a GPU in every run and one frame at a time."""
    per_run_batched: float
    """The same with frames scored in batches while the simulators go on."""
    shared_float32: float
    shared_bfloat16: float


def gpu_speeds() -> Rates:
    """(model, how) -> frames per second; what was not measured is not there."""
    rows = csv.DictReader(line for line in _table().splitlines() if not line.startswith("#"))
    return {(row["model"], row["how"]): float(row["frames_per_second"]) for row in rows if row["frames_per_second"]}


def _table() -> str:
    return (resources.files("vlmsafe.studies.cost") / "gpu_speeds.csv").read_text(encoding="utf-8")


def gpu_plan(studies: Iterable[Study], speeds: Speeds | None = None, rates: Rates | None = None) -> list[GpuRow]:
    """A row for each study; a run that several have is counted with the first, unless a study wants its own."""
    speeds, rates = speeds or Speeds.of(None), gpu_speeds() if rates is None else rates
    seen: set[str] = set()
    return [_row(study.name, list(_new_runs(study, seen)), speeds, rates) for study in studies]


def _new_runs(study: Study, seen: set[str]) -> Iterator[TrainConfig]:
    for spec in study.expand(Path(study.name)):
        settings = {name: value for name, value in flatten(to_dict(spec.config)).items() if name not in ASIDE}
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
    """The model of a run that a GPU would hold; empty where there is none, or one that needs no GPU."""
    scorer = config.signal.scorer
    return str(parse_scorer(scorer)) if kind_of(scorer).wants_gpu else ""


def frames_of(config: TrainConfig) -> int:
    """Frames that a run scores at most: every k-th step, and those of its calibration."""
    signal = config.signal
    return config.total_steps // signal.every + (signal.calibration.frames or 0) * signal.needs_calibration


def notes(rows: list[GpuRow], rates: Rates | None = None) -> list[str]:
    """What the figures rest on, and what they leave out."""
    rates = gpu_speeds() if rates is None else rates
    served = max((rate for (_, how), rate in rates.items() if how == SERVICE), default=None)
    core, float32, bfloat16 = (
        sum(getattr(row, name) for row in rows) for name in ("core_hours", "shared_float32", "shared_bfloat16")
    )
    keeps_up = (
        [f"one GPU keeps up with simulators on about {core / float32:,.0f} cores in float32, and on "
         f"{core / bfloat16:,.0f} in bfloat16; beside C cores it is held for {core:,.0f} / C hours"]
        if bfloat16
        else []
    )  # fmt: skip
    return [
        f"measured: seconds per step, frame and pass ({measured_on().removeprefix('measured ')}); frames per second "
        "of one NVIDIA H200 (benchmarks/scoring.py)",
        *_of_service(served),
        "bfloat16 means bfloat16 and compiled, a setting of a run (--signal.precision bfloat16 --signal.compile) that "
        "the shipped studies do not have for CLIP; as they are, the float32 column is theirs",
        "extrapolated: to all steps of all runs, with simulators on cores like those measured; of a service only the "
        "time is counted in which it scores",
        *keeps_up,
        "of training alone, as in the paper; evaluations, traces and runs that would be repeated are not counted",
        *_left_out(rows),
        f"the paper reports {PAPERS_HOURS:,} GPU-hours for its runs, one GPU each, at about a dozen steps a second on "
        "FormulaOne; its simulators and GPUs were others",
    ]


def _of_service(rate: float | None) -> list[str]:
    """Which figures are a service's own."""
    if rate is None:
        return ["the service's own rate was not measured, and that of the model in batches stands for it"]
    gigabits = 8 * _FRAME * rate / 1e9
    return [
        "'shared, bfloat16' is the service's own rate, end to end; 'shared, float32' is the model's alone, in batches",
        f"the service's {rate:,.0f} frames/s went through shared memory on one machine; frames from other nodes go "
        f"over TCP, about {gigabits:.0f} Gbit/s at that rate, which was not measured",
    ]


def _left_out(rows: list[GpuRow]) -> list[str]:
    models, others = (sum(getattr(row, name) for row in rows) for name in ("model_unknown", "speed_unknown"))
    found = []
    if models:
        found.append(f"left out: {models} runs with models whose speed on a GPU was not measured (ViT-L/14, Qwen2-VL)")
    if others:
        found.append(f"left out: {others} runs whose environment or learner was not measured")
    return found
