"""Build the embedded scorer, stage by stage, in one directory. A stage keeps what is there already.

agents/           clones that drive in recordings
recordings/       recordings of training scenarios
selection/        recordings of the last tenth of the training scenarios, for choosing among candidates
held-out/         recordings of held-out scenarios
candidates/       models of several settings, with their figures on selection/
weights.safetensors, data.json      the best of them
figures.json      what was measured
card.md           the model card, written from the figures

The training stage needs only recordings, torch and Pillow. It can run on another machine with a GPU and no simulator.
`vlmsafe.distillation.pack` makes the recordings small enough to travel.
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

from vlmsafe.distillation.plan import EPISODES_PER_FILE, AgentPlan, BuildPlan, file_name
from vlmsafe.errors import InputError
from vlmsafe.io.disk import make_directory
from vlmsafe.io.files import write_atomically
from vlmsafe.signals.scorers.embedded import revision_of

if TYPE_CHECKING:
    from vlmsafe.distillation.data import Examples
    from vlmsafe.distillation.drivers import Agent
    from vlmsafe.distillation.train import Schedule
    from vlmsafe.runs.run import Run
    from vlmsafe.signals.scorers.api import Scorer
    from vlmsafe.signals.scorers.embedded.network import Embedding

__all__ = ["STAGES", "AgentPlan", "BuildPlan", "Stage", "build"]

Stage = Literal["agents", "record", "train", "measure", "card"]
STAGES: tuple[Stage, ...] = ("agents", "record", "train", "measure", "card")
_REPOSITORY = Path(__file__).parents[3]


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
            _agents(directory, plan, processes, note)
        elif stage == "record":
            _record(directory, plan, processes, note)
        elif stage == "train":
            _train(directory, plan, device, note)
        elif stage == "measure":
            _measure(directory, plan, processes, note)
        else:
            _card(directory)
        note(f"{stage}: {time.monotonic() - begun:.0f} s")


def _agents(directory: Path, plan: BuildPlan, processes: int, note: Callable[[str], None]) -> None:
    from vlmsafe.cloning.clone import clone

    for agent in (*plan.recorded, *plan.tested):
        path = directory / "agents" / agent.name
        if agent.policy or path.exists():
            _agent_run(directory, agent)  # refuses what is not there before hours have passed
            continue
        note(f"  cloning {agent.name}, {agent.steps} steps a round")
        clone(
            agent.env, steps=agent.steps, rounds=agent.rounds, passes=20, seed=agent.seed, processes=processes,
            run_dir=path,
        )  # fmt: skip


def _agent_run(directory: Path, agent: AgentPlan) -> Run:
    """The run of an agent, in the world that the plan names, which may be another variant than it learned in."""
    from vlmsafe.config.settings import DRIVER
    from vlmsafe.runs.drivers import open_run
    from vlmsafe.runs.run import Run

    place = agent.policy or str(directory / "agents" / agent.name)
    if agent.policy and not agent.policy.startswith(DRIVER):
        folders = [folder for folder in (Path(agent.policy), _REPOSITORY / agent.policy) if folder.is_dir()]
        if not folders:
            raise InputError(
                f"{agent.policy}, whose agent is part of the plan, is no folder here; expected that of a run. Those "
                "of the shipped plan are in the repository only"
            )
        place = str(folders[0])
    run = open_run(place)
    return Run(run.path, replace(run.config, env=agent.env))


def _record(directory: Path, plan: BuildPlan, processes: int, note: Callable[[str], None]) -> None:
    from vlmsafe.distillation.record import LEAD, RecordTask
    from vlmsafe.envs.api import Scenarios
    from vlmsafe.envs.registry import env_spec
    from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool

    folders = (
        ("recordings", plan.training_files), ("selection", plan.selection_files), ("held-out", plan.held_out_files)
    )  # fmt: skip
    for folder, files in folders:
        make_directory(directory / folder)
        for env, count in files:
            spec = replace(env_spec(env), frames=True)
            # The last tenth of the training pool is kept for choosing among candidates.
            most = Scenarios(spec.training.start, spec.training.size * 9 // 10)
            last = Scenarios(most.start + most.size, spec.training.size - most.size)
            pool = {"recordings": most, "selection": last, "held-out": spec.held_out}[folder]
            paths = [directory / folder / f"{file_name(env)}.{number:04d}.npz" for number in range(count)]
            if all(path.exists() for path in paths):  # they are kept, and their drivers need not exist any more
                continue
            agents = _drivers(directory, plan, env)
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
                    longest_lead=int(LEAD * (spec.horizon or 0)),
                    version=spec.version,
                )
                for number, path in enumerate(paths)
                if not path.exists()
            ]
            with WorkerPool[dict[str, int]](EnvRecipe(spec, pool), min(processes, len(tasks))) as workers:
                results = workers.run(tasks)
            assert results is not None
            note(f"  {folder}, {env}: " + ", ".join(f"{sum(r[key] for r in results)} {key}" for key in results[0]))


def _drivers(directory: Path, plan: BuildPlan, env: str) -> tuple[Agent, ...]:
    """The agents that drive in the recordings of an environment."""
    from vlmsafe.distillation.drivers import Agent
    from vlmsafe.evaluation.plan import load_policy

    agents = []
    for each in plan.recorded:
        if each.drives_in(env):
            run = _agent_run(directory, each)
            agents.append(Agent(each.name, *load_policy(run, run.checkpoint(None)[0]), run.config.action_repeat))
    return tuple(agents)


def _train(directory: Path, plan: BuildPlan, device: str, note: Callable[[str], None]) -> None:
    if _written(directory, "data.json"):
        return
    scores = [train_candidate(directory, plan, number, device, note) for number in range(len(plan.candidates))]
    best = int(np.argmax([score["score"] for score in scores]))
    note(f"  candidate {best} is the best of {len(scores)}")
    write_atomically(directory / "weights.safetensors", (directory / f"candidates/{best}.safetensors").read_bytes())
    data = {**scores[best], "candidates": [{key: one[key] for key in _OF_CANDIDATES} for one in scores], "chosen": best}
    _write(directory, "data.json", {key: value for key, value in data.items() if key not in _OF_CANDIDATES})


_OF_CANDIDATES = ("seed", "settings", "worlds", "score")


def train_candidate(
    directory: Path, plan: BuildPlan, number: int, device: str = "auto", note: Callable[[str], None] = print
) -> dict[str, Any]:
    """One of the plan's candidates with its figures on the recordings for selection. One that is there is kept."""
    from vlmsafe.distillation.scores import selection_figures
    from vlmsafe.distillation.train import Schedule, train
    from vlmsafe.signals.scorers.device import find_device
    from vlmsafe.signals.scorers.embedded.network import POOLED, Architecture, load, save

    weights, told = (directory / "candidates" / f"{number}.{ending}" for ending in ("safetensors", "json"))
    if told.exists():
        held: dict[str, Any] = json.loads(told.read_text())
        return held
    candidate = plan.candidates[number]
    examples, versions = _examples(directory, "recordings")
    note(f"  candidate {number}: {len(examples)} frame stacks of {len(np.unique(examples.episode))} episodes")
    schedule = Schedule(
        steps=plan.steps, frames=plan.stacks_per_step, wordings=plan.wordings, joint=7 * plan.wordings,
        sets_weight=candidate.sets_weight, foresight=candidate.foresight, shift=candidate.shift,
        caution=candidate.caution,
    )  # fmt: skip

    def on_step(step: int, loss: float) -> None:
        if step % 500 == 0:
            note(f"  candidate {number}, step {step}: loss {loss:.3f}")

    model = train(
        examples, schedule, seed=candidate.seed, device=str(find_device(device)),
        architecture=Architecture(pooled=POOLED if candidate.pooled else ()), on_step=on_step,
    )  # fmt: skip
    make_directory(weights.parent)
    save(model, weights)
    figures: dict[str, Any] = {"worlds": {}, "score": 0.0}  # one candidate alone needs no selection
    if plan.selection_files:
        figures = selection_figures(load(weights), _examples(directory, "selection")[0])
    data = _description(examples, versions, model.words, schedule, candidate.seed)
    values = {**data, "settings": asdict(candidate), **figures}
    write_atomically(told, json.dumps(values).encode())
    note(f"  candidate {number}: " + json.dumps({"score": figures["score"], **figures["worlds"]}))
    return values


def _examples(directory: Path, folder: str) -> tuple[Examples, dict[str, int | None]]:
    """Recordings, or what `pack` made of them, and the versions of their environments."""
    from vlmsafe.distillation.data import read
    from vlmsafe.distillation.pack import unpack, versions_of

    packed = directory / f"{folder}.pack"
    if not (directory / folder).is_dir() and packed.exists():
        return unpack(packed)
    paths = _recordings(directory, folder)
    return read(paths), versions_of(paths)


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


def _description(
    examples: Examples, versions: dict[str, int | None], words: tuple[str, ...], schedule: Schedule, seed: int
) -> dict[str, Any]:
    """What a model was trained on, in enough detail to check that it is measured on other data."""
    from vlmsafe.distillation.data import world
    from vlmsafe.distillation.train import frame_weights

    worlds = np.array([world(str(env)) for env in examples.env])
    weights = frame_weights(examples)

    def episodes(rows: NDArray[np.bool_]) -> int:
        return len(np.unique(examples.episode[rows]))

    scenarios = _scenarios(examples)
    return {
        "versions": versions,
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
    from vlmsafe.distillation.measure import frames_of, held_out_texts, prompts_of, wordings_of
    from vlmsafe.distillation.scores import similarities

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
    from vlmsafe.distillation.measure import anticipation_of, indicators_of
    from vlmsafe.distillation.own import env_prompts
    from vlmsafe.distillation.scores import margins
    from vlmsafe.envs.registry import env_spec
    from vlmsafe.evaluation.trace.record import trace
    from vlmsafe.signals.gate import Gate
    from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

    paths, env = _recordings(directory, "recordings"), agent.env
    own = [path for path in paths if _env_of(path) == env]
    if not own:
        raise InputError(f"there are no recordings of {env}, on which {agent.name} is tested; record some")
    some = read(own[:10])
    dice = some.select(some.driver == "dice")
    if not len(dice):
        raise InputError(f"no recording of {env} has a random driver, and the gate needs its frames; record more")
    run, spec = _agent_run(directory, agent), env_spec(env)
    prompts = env_prompts(env)
    scorer = EmbeddedScorer(model, prompts, device="cpu")
    ceiling = train_ceiling(_alike(paths, env), steps=plan.ceiling_steps)
    scorers: dict[str, Scorer] = {"embedded": scorer, "state": ceiling}
    episodes = plan.test_episodes
    table = trace(run, scorers, episodes=episodes, processes=processes)
    table.write_parquet(directory / f"trace-{agent.name}.parquet")
    # As in a run, the gate is calibrated on a random driver's frames of training scenarios.
    gate = Gate.calibrated(margins(model, dice, prompts))
    said = {"env": env, "agent": agent.name}
    figures["anticipation"].append({**said, "choice": agent.choice, **anticipation_of(table, gate)})
    if spec.indicators is not None:
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
