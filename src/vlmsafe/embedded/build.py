"""The whole making of the scorer, stage by stage, in one directory. A stage leaves what is there already.

agents/           policies: some to be recorded, one to be tested on
recordings/       training scenarios; held-out/ holds the same of held-out ones
weights.safetensors, data.json
figures.json      what was measured
card.md           the model card, written from the figures

The training stage needs recordings, torch and Pillow alone: it can run on another machine with a GPU and no simulator.
"""

from __future__ import annotations

import importlib.util
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmsafe.errors import InputError, MissingDependencyError
from vlmsafe.signals.scorers.embedded import revision_of
from vlmsafe.training.files import make_directory, write_atomically

if TYPE_CHECKING:
    from vlmsafe.embedded.data import Examples
    from vlmsafe.embedded.train import Schedule

Stage = Literal["agents", "record", "train", "measure", "card"]
STAGES: tuple[Stage, ...] = ("agents", "record", "train", "measure", "card")

EPISODES_PER_FILE = 25
EPOCH = 4000  # steps, of an agent's training


@dataclass(frozen=True)
class AgentPlan:
    """A policy trained for the making of the scorer."""

    method: str
    seed: int
    steps: int
    initial_std: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.method}-{self.seed}"


@dataclass(frozen=True)
class BuildPlan:
    """How much of everything. The defaults take some hours on two cores."""

    recorded: tuple[AgentPlan, ...] = (
        AgentPlan("ppo", 1, 240_000), AgentPlan("ppo-lag", 3, 240_000), AgentPlan("ppo-lag", 5, 240_000, 0.3),
    )  # fmt: skip
    """Agents that drive in recordings."""
    tested: AgentPlan = AgentPlan("ppo-lag", 2, 240_000)
    """The agent on whose episodes anticipation is measured; it drives in no recording."""
    choice: str = (
        'The agent is one of five that were trained, chosen because it drives: the others hardly move. When "about to" '
        "is\ntrue was settled on other episodes of the same agent, on scenarios of the training pool that no recording "
        "holds."
    )
    """How the tested agent and the settings were chosen, for the card: what a reader of its figures must know."""
    env: str = "metadrive-easy"
    """Where agents are trained and the last one is tested."""
    training_files: tuple[tuple[str, int], ...] = (
        ("metadrive-easy", 65), ("metadrive-medium", 26), ("metadrive-hard", 4), ("braking", 8), ("speeding", 4),
    )  # fmt: skip
    """Files of 25 episodes each, per environment, on scenarios of the training pool."""
    held_out_files: tuple[tuple[str, int], ...] = (
        ("metadrive-easy", 6), ("metadrive-medium", 3), ("metadrive-hard", 1), ("braking", 2), ("speeding", 2),
    )  # fmt: skip
    steps: int = 6000
    """Of training."""
    moments_per_step: int = 512
    wordings: int = 3000
    """Captions drawn per fact."""
    ceiling_steps: int = 3000
    """Of the training of the network on observations."""
    test_episodes: int = 100

    def scaled(self, share: float) -> BuildPlan:
        """A smaller or larger build of the same kind; nothing becomes less than one."""
        if not share > 0.0:
            raise InputError(f"scale is {share}; it must be greater than 0")

        def some(count: int, unit: int = 1) -> int:
            return max(1, round(count * share / unit)) * unit

        def agent(plan: AgentPlan) -> AgentPlan:
            # Whole epochs; a short run is one epoch of whatever length.
            steps = some(plan.steps, EPOCH) if plan.steps * share >= EPOCH else some(plan.steps)
            return replace(plan, steps=steps)

        return BuildPlan(
            tuple(agent(plan) for plan in self.recorded),
            agent(self.tested),
            self.choice if share == 1.0 else "",  # of another build nobody knows
            self.env,
            tuple((env, some(files)) for env, files in self.training_files),
            tuple((env, some(files)) for env, files in self.held_out_files),
            some(self.steps),
            self.moments_per_step,
            some(self.wordings),
            some(self.ceiling_steps),
            some(self.test_episodes),
        )


def build(
    directory: Path,
    plan: BuildPlan | None = None,
    *,
    stages: Sequence[Stage] = STAGES,
    device: str = "auto",
    processes: int = 2,
    note: Callable[[str], None] = print,
) -> None:
    """Run the stages that are asked for, in order."""
    plan = plan or BuildPlan()
    if importlib.util.find_spec("PIL") is None:
        raise MissingDependencyError(
            "frames are recorded with Pillow, which is not installed; install it with: pip install 'vlmsafe[embedded]'"
        )
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
    from vlmsafe.methods import method_defaults
    from vlmsafe.training.run import Run
    from vlmsafe.training.trainer import resume, train

    for agent in (*plan.recorded, plan.tested):
        path = directory / "agents" / agent.name
        if path.exists():
            if Run.open(path).status() != "finished":
                resume(path, quiet=True)
            continue
        note(f"  training {agent.name} on {plan.env}, {agent.steps} steps")
        defaults = method_defaults(agent.method)
        # Small epochs and few passes: a policy that drives somehow, soon, serves here better than a good one later.
        config = replace(
            defaults,
            env=plan.env,
            seed=agent.seed,
            total_steps=agent.steps,
            steps_per_epoch=min(EPOCH, agent.steps),
            run_dir=path,
            learner=replace(defaults.learner, update_iters=10, initial_std=agent.initial_std),
        )
        train(config, quiet=True)


def _record(directory: Path, plan: BuildPlan, processes: int, note: Callable[[str], None]) -> None:
    from vlmsafe.embedded.drivers import Agent
    from vlmsafe.embedded.record import RecordTask
    from vlmsafe.envs import Scenarios, env_spec
    from vlmsafe.envs.workers import EnvRecipe, WorkerPool
    from vlmsafe.evaluation.episodes import load_policy
    from vlmsafe.training.run import Run

    agents = []
    for each in plan.recorded:
        run = Run.open(directory / "agents" / each.name)
        agents.append(Agent(each.name, *load_policy(run, run.checkpoint(None)[0])))
    for folder, files in (("recordings", plan.training_files), ("held-out", plan.held_out_files)):
        make_directory(directory / folder)
        for env, count in files:
            spec = env_spec(env)
            # The last tenth of the training pool is left for choosing settings on.
            most = Scenarios(spec.training.start, spec.training.size * 9 // 10)
            pool = most if folder == "recordings" else spec.held_out
            tasks = [
                RecordTask(
                    directory / folder / f"{env}.{number:04d}.npz",
                    env=env,
                    step_seconds=spec.step_seconds,
                    scenarios=pool,
                    traffic=spec.traffic,
                    episodes=EPISODES_PER_FILE,
                    seed=(number, zlib.crc32(env.encode()), pool.start),
                    agents=agents if env.startswith(plan.env.split("-")[0]) else (),
                )
                for number in range(count)
            ]
            with WorkerPool[dict[str, int]](EnvRecipe(spec, pool), processes) as workers:
                results = workers.run(tasks)
            assert results is not None
            note(f"  {folder}, {env}: " + ", ".join(f"{sum(r[key] for r in results)} {key}" for key in results[0]))


def _train(directory: Path, plan: BuildPlan, device: str, note: Callable[[str], None]) -> None:
    from vlmsafe.embedded.data import read
    from vlmsafe.embedded.train import Schedule, train
    from vlmsafe.signals.scorers.device import find_device
    from vlmsafe.signals.scorers.embedded.model import save

    if _written(directory, "data.json"):
        return
    examples = read(_recordings(directory, "recordings"))
    note(f"  {len(examples)} moments of {len(np.unique(examples.episode))} episodes")
    schedule = Schedule(steps=plan.steps, frames=plan.moments_per_step, wordings=plan.wordings, joint=7 * plan.wordings)
    seed = 0
    where = str(find_device(device))
    model = train(
        examples, schedule, seed=seed, device=where,
        on_step=lambda step, loss: note(f"  step {step}: loss {loss:.3f}") if step % 500 == 0 else None,
    )  # fmt: skip
    save(model, directory / "weights.safetensors")
    _write(directory, "data.json", _description(examples, model.words, schedule, seed))


def _write(directory: Path, name: str, values: dict[str, Any]) -> None:
    """A file that says for which weights it holds."""
    revision = revision_of(directory / "weights.safetensors")
    write_atomically(directory / name, json.dumps({"revision": revision, **values}).encode())


def _written(directory: Path, name: str) -> dict[str, Any] | None:
    """What was written for the weights that are there, None where there is nothing or it was for others."""
    weights, path = directory / "weights.safetensors", directory / name
    if not (weights.exists() and path.exists()):
        return None
    values: dict[str, Any] = json.loads(path.read_text())
    return values if values["revision"] == revision_of(weights) else None


def _description(examples: Examples, words: tuple[str, ...], schedule: Schedule, seed: int) -> dict[str, Any]:
    """What a model was trained on: enough to see that it never saw what it is measured on."""

    def episodes(rows: NDArray[np.bool_]) -> int:
        return len(np.unique(examples.episode[rows]))

    scenarios = _scenarios(examples)
    return {
        "scenarios": scenarios,
        "frames": {env: int((examples.env == env).sum()) for env in scenarios},
        "episodes": {env: episodes(examples.env == env) for env in scenarios},
        "episodes_with_contact": {env: episodes((examples.env == env) & examples.contact) for env in scenarios},
        "drivers": {str(name): episodes(examples.driver == name) for name in np.unique(examples.driver)},
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
    from vlmsafe.embedded.ceiling import train_ceiling
    from vlmsafe.embedded.data import read
    from vlmsafe.embedded.measure import anticipation_of, frames_of, margins, prompts_of, wordings_of
    from vlmsafe.envs import env_spec
    from vlmsafe.evaluation.trace import trace
    from vlmsafe.signals.gate import Gate
    from vlmsafe.signals.prompts import load_prompts
    from vlmsafe.signals.scorers.embedded.model import load
    from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer

    if _written(directory, "figures.json"):
        return
    if not _written(directory, "data.json"):
        raise InputError(f"there is no model with its description in {directory}; run the stage 'train' first")
    model = load(directory / "weights.safetensors")
    examples = read(_recordings(directory, "held-out"))
    figures: dict[str, Any] = {
        "frames": frames_of(model, examples),
        "prompts": prompts_of(model, examples),
        "wordings": wordings_of(model, examples),
        "scenarios": _scenarios(examples),
    }
    note("  held-out recordings measured")
    of_env = [path for path in _recordings(directory, "recordings") if path.name.startswith(plan.env.split("-")[0])]
    ceiling = train_ceiling(read(of_env, pictures=False), steps=plan.ceiling_steps)
    prompts = load_prompts(str(env_spec(plan.env).prompts))
    scorer = EmbeddedScorer(model, prompts, device="cpu")
    table = trace(
        directory / "agents" / plan.tested.name, {"embedded": scorer, "state": ceiling},
        episodes=plan.test_episodes, processes=processes,
    )  # fmt: skip
    table.write_parquet(directory / "trace.parquet")
    # As a run does: on a random driver's frames of training scenarios.
    some = read([path for path in of_env if path.name.startswith(f"{plan.env}.")][:10])
    dice = some.select(some.driver == "dice")
    figures["anticipation"] = {
        "env": plan.env,
        "agent": f"{plan.tested.method}, seed {plan.tested.seed}, {plan.tested.steps:,} steps",
        "choice": plan.choice,
        **anticipation_of(table, Gate.calibrated(margins(model, dice, prompts))),
    }
    figures["scenarios"][plan.env] = sorted({*figures["scenarios"].get(plan.env, []), *table["scenario"].unique()})
    _write(directory, "figures.json", figures)


def _card(directory: Path) -> None:
    from vlmsafe.embedded.card import card

    data, figures = _written(directory, "data.json"), _written(directory, "figures.json")
    if data is None or figures is None:
        raise InputError(f"the model in {directory} has not been measured; run the stages 'train' and 'measure' first")
    write_atomically(directory / "card.md", card(data, figures).encode())
