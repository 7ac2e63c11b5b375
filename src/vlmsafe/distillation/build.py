"""Build the embedded scorer, stage by stage, in one directory. A stage keeps what is there already.

agents/           policies: some are recorded, some are tested
recordings/       recordings of training scenarios
held-out/         recordings of held-out scenarios
weights.safetensors, data.json
figures.json      what was measured
card.md           the model card, written from the figures

The training stage needs only recordings, torch and Pillow. It can run on another machine with a GPU and no simulator.
"""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmsafe.distillation.plan import EPISODES_PER_FILE, EPOCH, AgentPlan, BuildPlan, file_name
from vlmsafe.errors import InputError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.signals.scorers.embedded import revision_of

if TYPE_CHECKING:
    from vlmsafe.distillation.data import Examples
    from vlmsafe.distillation.drivers import Agent
    from vlmsafe.distillation.train import Schedule
    from vlmsafe.signals.scorers.api import Scorer
    from vlmsafe.signals.scorers.embedded.network import Embedding

__all__ = ["STAGES", "AgentPlan", "BuildPlan", "Stage", "build"]

Stage = Literal["agents", "record", "train", "measure", "card"]
STAGES: tuple[Stage, ...] = ("agents", "record", "train", "measure", "card")


def build(
    directory: Path,
    plan: BuildPlan | None = None,
    *,
    stages: Sequence[Stage] = STAGES,
    device: str = "auto",
    processes: int = 2,
    note: Callable[[str], None] = print,
) -> None:
    """Run the given stages, in order."""
    plan = plan or BuildPlan()
    make_directory(directory)
    for stage in STAGES:
        if stage not in stages:
            continue
        begun = time.monotonic()
        note(f"{stage} ...")
        if stage == "agents":
            _agents(directory, plan, note)
        elif stage == "record":
            _record(directory, plan, processes, note)
        elif stage == "train":
            _train(directory, plan, device, note)
        elif stage == "measure":
            _measure(directory, plan, processes, note)
        else:
            _card(directory)
        note(f"{stage}: {time.monotonic() - begun:.0f} s")


def _agents(directory: Path, plan: BuildPlan, note: Callable[[str], None]) -> None:
    from vlmsafe.config.methods import method_defaults
    from vlmsafe.runs.run import Run
    from vlmsafe.training.start import resume, train

    for agent in (*plan.recorded, *plan.tested):
        path = directory / "agents" / agent.name
        if path.exists():
            if Run.open(path).status() != "finished":
                resume(path, quiet=True)
            continue
        note(f"  training {agent.name}, {agent.steps} steps")
        defaults = method_defaults(agent.method)
        # Small epochs and few passes: a policy that soon drives at all is enough for recordings.
        config = replace(
            defaults,
            env=agent.env,
            seed=agent.seed,
            total_steps=agent.steps,
            steps_per_epoch=min(EPOCH, agent.steps),
            run_dir=path,
            learner=replace(defaults.learner, update_iters=10, initial_std=agent.initial_std),
        )
        train(config, quiet=True)


def _record(directory: Path, plan: BuildPlan, processes: int, note: Callable[[str], None]) -> None:
    from vlmsafe.distillation.record import RecordTask
    from vlmsafe.envs.api import Scenarios
    from vlmsafe.envs.registry import env_spec
    from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool

    for folder, files in (("recordings", plan.training_files), ("held-out", plan.held_out_files)):
        make_directory(directory / folder)
        for env, count in files:
            spec = replace(env_spec(env), frames=True)
            # The last tenth of the training pool is kept for choosing settings.
            most = Scenarios(spec.training.start, spec.training.size * 9 // 10)
            pool = most if folder == "recordings" else spec.held_out
            paths = [directory / folder / f"{file_name(env)}.{number:04d}.npz" for number in range(count)]
            # Recordings that exist are kept, so their drivers need not exist any more.
            agents = () if all(path.exists() for path in paths) else _drivers(directory, plan, env)
            tasks = [
                RecordTask(
                    path,
                    env=env,
                    step_seconds=spec.step_seconds,
                    scenarios=pool,
                    traffic=spec.traffic,
                    episodes=EPISODES_PER_FILE,
                    seed=(number, zlib.crc32(env.encode()), pool.start),
                    agents=agents,
                )
                for number, path in enumerate(paths)
            ]
            with WorkerPool[dict[str, int]](EnvRecipe(spec, pool), processes) as workers:
                results = workers.run(tasks)
            assert results is not None
            note(f"  {folder}, {env}: " + ", ".join(f"{sum(r[key] for r in results)} {key}" for key in results[0]))


def _drivers(directory: Path, plan: BuildPlan, env: str) -> tuple[Agent, ...]:
    """The agents that drive in the recordings of an environment."""
    from vlmsafe.distillation.drivers import Agent
    from vlmsafe.evaluation.plan import load_policy
    from vlmsafe.runs.run import Run

    agents = []
    for each in plan.recorded:
        if each.drives_in(env):
            run = Run.open(directory / "agents" / each.name)
            agents.append(Agent(each.name, *load_policy(run, run.checkpoint(None)[0])))
    return tuple(agents)


def _train(directory: Path, plan: BuildPlan, device: str, note: Callable[[str], None]) -> None:
    from vlmsafe.distillation.data import read
    from vlmsafe.distillation.train import Schedule, train
    from vlmsafe.signals.scorers.device import find_device
    from vlmsafe.signals.scorers.embedded.network import save

    if _written(directory, "data.json"):
        return
    examples = read(_recordings(directory, "recordings"))
    note(f"  {len(examples)} frame stacks of {len(np.unique(examples.episode))} episodes")
    schedule = Schedule(steps=plan.steps, frames=plan.stacks_per_step, wordings=plan.wordings, joint=7 * plan.wordings)
    seed = 0
    where = str(find_device(device))
    model = train(
        examples, schedule, seed=seed, device=where,
        on_step=lambda step, loss: note(f"  step {step}: loss {loss:.3f}") if step % 500 == 0 else None,
    )  # fmt: skip
    save(model, directory / "weights.safetensors")
    _write(directory, "data.json", _description(examples, model.words, schedule, seed))


def _write(directory: Path, name: str, values: dict[str, Any]) -> None:
    """Write a file with the revision of the weights that it belongs to."""
    revision = revision_of(directory / "weights.safetensors")
    write_atomically(directory / name, json.dumps({"revision": revision, **values}).encode())


def _written(directory: Path, name: str) -> dict[str, Any] | None:
    """What was written for the present weights; None if there is no file or it belongs to other weights."""
    weights, path = directory / "weights.safetensors", directory / name
    if not (weights.exists() and path.exists()):
        return None
    values: dict[str, Any] = json.loads(path.read_text())
    return values if values["revision"] == revision_of(weights) else None


def _description(examples: Examples, words: tuple[str, ...], schedule: Schedule, seed: int) -> dict[str, Any]:
    """What a model was trained on, in enough detail to check that it is measured on other data."""
    from vlmsafe.distillation.data import world
    from vlmsafe.distillation.train import frame_weights
    from vlmsafe.envs.registry import env_spec

    worlds = np.array([world(str(env)) for env in examples.env])
    weights = frame_weights(examples)

    def episodes(rows: NDArray[np.bool_]) -> int:
        return len(np.unique(examples.episode[rows]))

    scenarios = _scenarios(examples)
    return {
        "versions": {env: env_spec(env).version for env in scenarios},
        "scenarios": scenarios,
        "frames": {env: int((examples.env == env).sum()) for env in scenarios},
        "episodes": {env: episodes(examples.env == env) for env in scenarios},
        "episodes_with_contact": {env: episodes((examples.env == env) & examples.contact) for env in scenarios},
        "drivers": {
            str(name): {
                str(kind): episodes((worlds == name) & (examples.driver == kind))
                for kind in np.unique(examples.driver[worlds == name])
            }
            for name in np.unique(worlds)
        },
        "world_shares": {str(name): float(weights[worlds == name].sum()) for name in np.unique(worlds)},
        "words": len(words),
        "schedule": asdict(schedule),
        "seed": seed,
    }


def _scenarios(examples: Examples) -> dict[str, list[int]]:
    """Every scenario in the recordings, by environment."""
    return {str(env): np.unique(examples.scenario[examples.env == env]).tolist() for env in np.unique(examples.env)}


def _recordings(directory: Path, folder: str) -> list[Path]:
    paths = sorted((directory / folder).glob("*.npz"))
    if not paths:
        raise InputError(f"there are no recordings in {directory / folder}; run the stage 'record' first")
    return paths


def _measure(directory: Path, plan: BuildPlan, processes: int, note: Callable[[str], None]) -> None:
    from vlmsafe.signals.scorers.embedded.network import load

    if _written(directory, "figures.json"):
        return
    if not _written(directory, "data.json"):
        raise InputError(f"there is no model with its description in {directory}; run the stage 'train' first")
    model = load(directory / "weights.safetensors")
    figures = _held_out_figures(model, _recordings(directory, "held-out"))
    note("  held-out recordings measured")
    for agent in plan.tested:
        _test(directory, plan, agent, model, figures, processes)
        note(f"  {agent.name} tested")
    _write(directory, "figures.json", figures)


def _held_out_figures(model: Embedding, paths: Sequence[Path]) -> dict[str, Any]:
    """Measure one environment at a time, because the pictures of all of them need much memory."""
    from vlmsafe.distillation.data import read
    from vlmsafe.distillation.measure import frames_of, held_out_texts, prompts_of, similarities, wordings_of

    figures: dict[str, Any] = {"frames": [], "prompts": [], "anticipation": [], "indicators": []}
    found = []
    for _, group in itertools.groupby(paths, _env_of):
        examples = read(list(group))
        figures["frames"] += frames_of(model, examples)
        figures["prompts"] += prompts_of(model, examples)
        found.append(similarities(model, examples, held_out_texts()))
    everything = read(paths, pictures=False)
    figures["wordings"] = wordings_of(np.concatenate(found), everything)
    figures["scenarios"] = _scenarios(everything)
    return figures


def _test(
    directory: Path, plan: BuildPlan, agent: AgentPlan, model: Embedding, figures: dict[str, Any], processes: int
) -> None:
    """Add an agent's test of anticipation to the figures and, if its simulator can draw cost, the effect of that."""
    from vlmsafe.distillation.ceiling import train_ceiling
    from vlmsafe.distillation.data import read
    from vlmsafe.distillation.measure import anticipation_of, indicators_of, margins
    from vlmsafe.distillation.own import env_prompts
    from vlmsafe.envs.registry import env_spec
    from vlmsafe.evaluation.trace.record import trace
    from vlmsafe.signals.gate import Gate
    from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

    paths = _recordings(directory, "recordings")
    env, _, variant = agent.env.partition(":")  # the frames of a variant look the same
    own = [path for path in paths if _env_of(path) == env]
    if not own:
        raise InputError(f"there are no recordings of {env}, on which {agent.name} is tested; record some")
    some = read(own[:10])
    dice = some.select(some.driver == "dice")
    if not len(dice):
        raise InputError(f"no recording of {env} has a random driver, and the gate needs its frames; record more")
    run, spec = directory / "agents" / agent.name, env_spec(agent.env)
    prompts = env_prompts(agent.env)
    scorer = EmbeddedScorer(model, prompts, device="cpu")
    scorers: dict[str, Scorer] = {"embedded": scorer}
    if not variant:  # a variant may observe other things than were recorded
        scorers["state"] = train_ceiling(_alike(paths, env), steps=plan.ceiling_steps)
    episodes = plan.test_episodes
    table = trace(run, scorers, episodes=episodes, processes=processes)
    table.write_parquet(directory / f"trace-{agent.name}.parquet")
    # As in a run, the gate is calibrated on a random driver's frames of training scenarios.
    gate = Gate.calibrated(margins(model, dice, prompts))
    said = {"env": agent.env, "agent": f"{agent.method}, seed {agent.seed}, {agent.steps:,} steps"}
    figures["anticipation"].append({**said, "choice": agent.choice, **anticipation_of(table, gate)})
    if spec.indicators is not None and not variant:
        drawn = trace(run, {"embedded": scorer}, episodes=episodes, processes=processes, indicators=True)
        figures["indicators"].append({**said, **indicators_of(table, drawn)})
    known = figures["scenarios"]
    known[env] = sorted({*known.get(env, []), *table["scenario"].unique()})


def _env_of(path: Path) -> str:
    """The environment of a recording."""
    with np.load(path) as held:
        return str(held["env"])


def _alike(paths: Sequence[Path], env: str) -> Examples:
    """Frame stacks of an environment, and of others of its world with as long observations, without pictures."""
    from vlmsafe.distillation.data import read, world

    examples = read([path for path in paths if world(_env_of(path)) == world(env)], pictures=False)
    sizes = np.array([len(observation) for observation in examples.observations])
    return examples.select(sizes == sizes[examples.env == env][0])


def _card(directory: Path) -> None:
    from vlmsafe.distillation.card import card

    data, figures = _written(directory, "data.json"), _written(directory, "figures.json")
    if data is None or figures is None:
        raise InputError(f"the model in {directory} has not been measured; run the stages 'train' and 'measure' first")
    write_atomically(directory / "card.md", card(data, figures).encode())
