"""Distil a scorer: record frames, have a teacher score them once, train the small model, measure it, write its card.

recordings/         recordings of training scenarios
held-out/           recordings of held-out scenarios
recording.json      what the recordings depend on; a directory holds those of one recording only
scores/<digest>/    what a teacher said of each recording, by teacher and prompts
weights.safetensors, data.json
figures.json        what was measured
card.md             the model card, written from the figures

What is there is kept, so an interrupted distillation continues with the same command.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vlmsafe.distillation.distil_plan import HELD_OUT, TRAINING, DistilPlan, all_paths, paths_of
from vlmsafe.distillation.frames import FramesTask
from vlmsafe.distillation.sources import Source, prompts_for, read_sources
from vlmsafe.distillation.stacks import Frames, cost_within, read_frames
from vlmsafe.distillation.student import Lessons, Targets, cost_column, require_variation, train_student, with_prompts
from vlmsafe.distillation.student_figures import measure, recorded
from vlmsafe.distillation.teach import Lesson, Teacher, digest_of, teach
from vlmsafe.envs.registry import world_name
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.errors import InputError, Interrupted
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.io.interrupts import StopRequest, stop_on_signals
from vlmsafe.io.locks import DirectoryLock
from vlmsafe.signals.frame_stack import STEPS_APART
from vlmsafe.signals.scorers.device import find_device
from vlmsafe.signals.scorers.embedded import revision_of
from vlmsafe.signals.scorers.embedded.network import POOLED, Architecture, save
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions
from vlmsafe.training.collect import DescribeTask, Dimensions

Note = Callable[[str], None]


def distil(
    sources: Sequence[str],
    teacher: str,
    directory: Path | str,
    *,
    prompts: str | None = None,
    plan: DistilPlan | None = None,
    device: str = "auto",
    batch: int | None = None,
    endpoint: EndpointOptions | None = None,
    processes: int = 2,
    command: str = "",
    note: Note = lambda text: None,
) -> Path:
    """Make a scorer of your own, and return the file of its weights.

    `sources` are run directories, `driver:<name>` or names of environments. `teacher` is any scorer that scores frames,
    observations or the hazard. `prompts` are by default those of the runs, or of the environments. `device` and `batch`
    are the teacher's; the model trains on the same device. `endpoint` says how a teacher `openai:...` is asked.
    `command` goes into the card.
    """
    plan, directory = plan or DistilPlan(), Path(directory)
    if processes < 1:
        raise InputError(f"processes is {processes}; it must be at least 1")
    found, runs = read_sources(sources)
    chosen = prompts_for(prompts, found, runs)
    if plan.cost_within is not None:
        _refuse_cost_prompt(chosen.texts, plan.cost_within)
    taught_by = Teacher.load(teacher, chosen, device=device, batch=batch, endpoint=endpoint)
    try:
        with DirectoryLock(make_directory(directory)), stop_on_signals() as stop:
            _check(found, taught_by)
            identity = _claim(directory, found, plan, taught_by.stack)
            _record(directory, found, plan, taught_by.stack, processes, stop, note)
            scores = directory / "scores" / digest_of([identity, taught_by.identity])
            lessons = {
                folder: _teach(directory, folder, found, plan, taught_by, scores, stop, note)
                for folder in (TRAINING, HELD_OUT)
            }
            about = {
                "recording": identity, "teacher": taught_by.identity,
                "plan": {**asdict(plan), "held_out_episodes": None, "resamples": None},
            }  # fmt: skip
            _train(directory, found, plan, taught_by, lessons[TRAINING], about, device, stop, note, command)
            measure(directory, found, plan, taught_by, lessons, note)
    finally:
        taught_by.scorer.close()
    return directory / "weights.safetensors"


def _refuse_cost_prompt(texts: Sequence[str], within: int) -> None:
    if cost_column(within) in {" ".join(text.split()).casefold() for text in texts}:
        raise InputError(f"'{cost_column(within)}' is the name of the second target; leave it out of the prompts")


def _check(sources: Sequence[Source], teacher: Teacher) -> None:
    """Fail before anything is recorded, if an environment renders nothing or lacks what the teacher looks at."""
    looks = ["frame", *(["hazard"] if teacher.scorer.looks_at == "hazard" else [])]
    for source in sources:
        tasks = [DescribeTask(look, source.spec.training.start) for look in looks]  # type: ignore[arg-type]
        with WorkerPool[Dimensions](EnvRecipe(source.spec, source.spec.training), 1) as pool:
            answers = pool.run(tasks)
        assert answers is not None
        for policy, agent in zip(source.policies, source.agents, strict=True):
            wants = agent.policy.layers[0][0].shape[1]
            if wants != answers[0].observation:
                raise InputError(
                    f"'{policy['name']}' was trained on {wants} observed values, and '{source.spec.name}' has "
                    f"{answers[0].observation} now; train it again, or undo the change of the environment"
                )


def _claim(directory: Path, sources: Sequence[Source], plan: DistilPlan, stack: int) -> str:
    """A digest of what the recordings depend on. A directory that holds others is refused."""
    wanted = {
        "sources": [one.identity() for one in sources], "seed": plan.seed, "longest": plan.longest, "stack": stack,
    }  # fmt: skip
    path = directory / "recording.json"
    if not path.exists():
        write_atomically(path, json.dumps(wanted).encode())
    held = json.loads(path.read_text())
    if held != wanted:
        changed = ", ".join(name for name in wanted if held.get(name) != wanted[name])
        raise InputError(
            f"{directory} holds recordings that were made otherwise (other {changed}); choose another --dir, or "
            "remove this one"
        )
    return digest_of(wanted)


def _record(
    directory: Path,
    sources: Sequence[Source],
    plan: DistilPlan,
    stack: int,
    processes: int,
    stop: StopRequest,
    note: Note,
) -> None:
    for folder in (TRAINING, HELD_OUT):
        make_directory(directory / folder)
        for source in sources:
            spec, whole = source.spec, folder == HELD_OUT
            pool = spec.held_out if whole else spec.training
            tasks = [
                FramesTask(
                    path,
                    env=spec.name.partition("@")[0],
                    scenarios=pool,
                    traffic=spec.traffic,
                    seed=(plan.seed, number, zlib.crc32(source.file_name.encode()), int(whole)),
                    agents=source.agents,
                    longest=plan.longest,
                    whole=whole,
                    frames=stack,
                )
                for number, path in enumerate(paths_of(directory, folder, source, plan))
            ]
            missing = [task for task in tasks if not task.path.exists()]
            if not missing:
                continue
            note(f"record {len(missing)} of {len(tasks)} files of {folder}, {spec.name} ...")
            # A fresh process per file: which files shared a simulator would otherwise matter.
            with WorkerPool[None](EnvRecipe(spec, pool), processes, fresh=True) as workers:
                if workers.run(missing, should_stop=lambda: stop.requested) is None:
                    raise _interrupted(stop, "the finished recordings are kept")


def _interrupted(stop: StopRequest, kept: str) -> Interrupted:
    return Interrupted(f"stopped by {stop.reason}; {kept}, and the same command continues")


def _teach(
    directory: Path, folder: str, sources: Sequence[Source], plan: DistilPlan, teacher: Teacher, scores: Path,
    stop: StopRequest, note: Note,
) -> list[Lesson]:  # fmt: skip
    """The teacher's similarities of every recording of a folder, in the order of the files."""
    found: list[Lesson] = []
    paths = all_paths(directory, folder, sources, plan)
    if any(not (scores / folder / path.name).exists() for path in paths):
        note(f"{teacher.name} scores {folder} ...")
    for path in paths:
        lesson = teach(teacher, path, scores / folder, lambda: stop.requested)
        if lesson is None:
            raise _interrupted(stop, "what the teacher has scored is kept")
        found.append(lesson)
    return found


def _train(
    directory: Path, sources: Sequence[Source], plan: DistilPlan, teacher: Teacher, lessons: Sequence[Lesson],
    about: dict[str, Any], device: str, stop: StopRequest, note: Note, command: str,
) -> None:  # fmt: skip
    weights, written = directory / "weights.safetensors", directory / "data.json"
    if weights.exists() and written.exists():
        held = json.loads(written.read_text())
        if held["about"] == about and held["revision"] == revision_of(weights):
            return
    architecture = Architecture(size=plan.size, pooled=POOLED if plan.pooled else ())
    frames = read_frames(all_paths(directory, TRAINING, sources, plan), plan.size, architecture.frames)
    targets = _targets(frames, lessons, teacher, plan)
    for still in require_variation(teacher.columns, targets.values[:, : len(teacher.columns)], teacher.name):
        note(f"note: the teacher's similarity to '{still}' is the same for every frame")
    note(f"train on {len(frames)} frame stacks ...")

    def on_step(step: int, loss: float) -> None:
        if stop.requested:
            raise _interrupted(stop, "recordings and the teacher's scores are kept")
        if step % 500 == 0:
            note(f"  step {step}: error {loss:.3f}")

    schedule = Lessons(plan.steps, plan.stacks, mirror=plan.mirror)
    trained = train_student(
        frames, targets, schedule, seed=plan.seed, device=str(find_device(device)), architecture=architecture,
        on_step=on_step,
    )  # fmt: skip
    extra = targets.columns[len(teacher.columns) :]
    column_of = [*teacher.column_of, *range(len(teacher.columns), len(targets.columns))]
    model = with_prompts(trained, (*teacher.prompts.texts, *extra), column_of)
    model.worlds = {world_name(source.spec.name): source.spec.version for source in sources}
    save(model, weights)
    values = {
        "revision": revision_of(weights),
        "about": about,
        "teacher": teacher.identity,
        "versions": model.worlds,
        "recorded": recorded(frames, sources, directory, TRAINING, plan),
        "policies": [policy for source in sources for policy in source.policies],
        "apart": STEPS_APART,
        "lessons": asdict(schedule),
        "usual": np.nanmean(targets.values, axis=0).tolist(),
        "seed": plan.seed,
        "size": plan.size,
        "cost_within": plan.cost_within,
        "bounds": list(teacher.scorer.bounds),
        "parameters": sum(value.numel() for value in model.parameters()),
        "command": command,
    }
    write_atomically(written, json.dumps(values).encode())


def _targets(frames: Frames, lessons: Sequence[Lesson], teacher: Teacher, plan: DistilPlan) -> Targets:
    values = np.concatenate([lesson.similarities for lesson in lessons]).astype(np.float64)
    columns = teacher.columns
    if plan.cost_within is not None:
        if not frames.has_cost:
            raise InputError("--cost-within needs a cost, and the environment reports none; leave it out")
        soon = cost_within(frames, plan.cost_within)
        if not (soon == 1.0).any() or not (soon == 0.0).any():
            which = "no recorded step" if not (soon == 1.0).any() else "every recorded step"
            raise InputError(
                f"--cost-within {plan.cost_within} has nothing to learn: {which} costs or is so near a cost; record "
                "more episodes, other drivers, or leave it out"
            )
        columns, values = (*columns, cost_column(plan.cost_within)), np.column_stack([values, 2.0 * soon - 1.0])
    return Targets(columns, values, teacher.scorer.groups)
