"""The figures of a distilled scorer: all that is measured of it, as plain values, for its card."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vlmsafe.distillation.agreement import agreement, signals_of, similarities_of, speeds, warnings_of
from vlmsafe.distillation.distil_plan import HELD_OUT, TRAINING, DistilPlan, all_paths, paths_of
from vlmsafe.distillation.sources import Source
from vlmsafe.distillation.stacks import Frames, RecordedFrames, read_frames
from vlmsafe.distillation.student import cost_column
from vlmsafe.distillation.student_card import student_card
from vlmsafe.distillation.teach import Lesson, Teacher
from vlmsafe.io.files import write_atomically
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer
from vlmsafe.signals.scorers.registry import parse_scorer

Note = Callable[[str], None]


def recorded(
    frames: Frames, sources: Sequence[Source], directory: Path, folder: str, plan: DistilPlan
) -> list[dict[str, Any]]:
    """What was recorded, per environment."""
    rows = []
    for source in sources:
        env = source.spec.name.partition("@")[0]
        own = frames.env == env
        episodes = frames.episode[frames.at[own]]
        numbers, first = np.unique(episodes, return_index=True)
        drivers, counts = np.unique(frames.driver[own][first], return_counts=True)
        frame = RecordedFrames.read(paths_of(directory, folder, source, plan)[0]).frame(0)
        rows.append(
            {
                "env": env,
                "version": source.spec.version,
                "pool": "training" if folder == TRAINING else "held-out",
                "episodes": len(numbers),
                "with_cost": int(np.isin(numbers, np.unique(frames.episode[frames.contact])).sum()),
                "frames": int(own.sum()),
                "frame_size": f"{frame.shape[0]} x {frame.shape[1]}",
                "scenarios": np.unique(frames.scenario[own]).tolist(),
                "drivers": dict(zip(drivers.tolist(), counts.tolist(), strict=True)),
            }
        )
    return rows


def measure(
    directory: Path, sources: Sequence[Source], plan: DistilPlan, teacher: Teacher, lessons: dict[str, list[Lesson]],
    note: Note,
) -> None:  # fmt: skip
    """Measure the model as its file holds it, and write the card."""
    data = json.loads((directory / "data.json").read_text())
    figures_path, weights = directory / "figures.json", directory / "weights.safetensors"
    about = {"revision": data["revision"], "held_out_episodes": plan.held_out_episodes, "resamples": plan.resamples}
    held = json.loads(figures_path.read_text()) if figures_path.exists() else {}
    if {name: held.get(name) for name in about} != about:
        note("measure on held-out scenarios ...")
        paths = all_paths(directory, HELD_OUT, sources, plan)
        frames, recordings = read_frames(paths, 32, 1), [RecordedFrames.read(path) for path in paths]
        prompts = teacher.prompts
        if plan.cost_within is not None:
            prompts = replace(prompts, negative=(*prompts.negative, cost_column(plan.cost_within)))
        scorer = EmbeddedScorer.load(str(weights), prompts, device=str(teacher.scorer.describe().get("device", "cpu")))
        said = similarities_of(scorer, recordings)
        taught = np.concatenate([lesson.similarities for lesson in lessons[HELD_OUT]])
        columns = [teacher.column_of.index(column) for column in range(len(teacher.columns))]
        groups = teacher.prompts.sizes
        signals = {**signals_of(said, groups, "student"), **signals_of(taught, teacher.scorer.groups, "teacher")}
        rows = agreement(teacher.columns, said[:, columns], taught, data["usual"][: len(columns)])
        student, taught_margin = (-signals[f"{one} margin"][:, None] for one in ("student", "teacher"))
        usual = np.array(data["usual"])
        split, end = teacher.scorer.groups[0], sum(teacher.scorer.groups)
        usual_margin = usual[:split].mean() - usual[split:end].mean()
        rows += agreement(["margin"], student, taught_margin, np.array([usual_margin]))
        if plan.cost_within is not None:
            signals[cost_column(plan.cost_within)] = said[:, -1].astype(np.float64)
        if not np.isnan(frames.hazard).any() and teacher.scorer.looks_at != "hazard":
            signals["hazard"] = frames.hazard
        figures = {
            **about,
            "held_out": {
                "recorded": recorded(frames, sources, directory, HELD_OUT, plan),
                "frames": len(frames),
                "episodes": len(frames.complete),
            },
            "agreement": rows,
            "warnings": warnings_of(frames, signals, resamples=plan.resamples) if frames.has_cost else None,
            "speed": _speeds(teacher, scorer, recordings[0], lessons),
        }
        write_atomically(figures_path, json.dumps(figures).encode())
    figures = json.loads(figures_path.read_text())
    write_atomically(directory / "card.md", student_card(data, figures).encode())


def _speeds(
    teacher: Teacher, student: EmbeddedScorer, recording: RecordedFrames, lessons: dict[str, list[Lesson]]
) -> dict[str, Any]:
    """Side by side where the teacher is a model in this process. Asking another one again could cost money."""
    if teacher.scorer.looks_at == "frame" and parse_scorer(teacher.name).kind.shared:
        found: dict[str, Any] = speeds({"teacher": teacher.scorer, "student": student}, recording)
        return found
    found = speeds({"student": student}, recording)
    every = [lesson for part in lessons.values() for lesson in part]
    count, seconds = sum(len(one.similarities) for one in every), sum(one.seconds for one in every)
    if teacher.scorer.looks_at == "frame":
        text = (
            f"The teacher scored {count:,} recorded frame stacks in {seconds:,.0f} s: {count / seconds:,.1f} frames/s."
        )
    else:
        text = f"The teacher looks at no frame: it reads the {teacher.scorer.looks_at} from the simulator."
    return {**found, "teacher": text}
