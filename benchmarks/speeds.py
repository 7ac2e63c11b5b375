"""What a step, a frame, a score and a pass of each learner take, for the estimates of `vlmsafe study plan`.

    python benchmarks/speeds.py [--steps 1000] [--out src/vlmsafe/studies/cost/speeds.csv]

Everything is measured in CPU seconds of one process, which other work on the machine changes little, and in bytes of
its largest extent. An environment is made in a new worker, driven with an untrained policy as training does, and asked
for frames; a learner updates on random samples of 259 dimensions; a scorer scores random frames in a process of its
own, CLIP with random weights, which take as long as trained ones. Environments whose simulator is not installed are
left out, which is said, and so is Qwen2-VL, which no CPU runs in reasonable time. The first line of the file names the
machine.
"""

from __future__ import annotations

import vlmsafe  # isort: skip  # noqa: F401 - first: it pins the kernels, as for a run

import csv
import dataclasses
import datetime
import itertools
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vlmsafe.envs.api import Env, EnvSpec

# Workers import this file for their tasks: what they do not need otherwise is imported where it is used.
from vlmsafe.envs.registry import ENVS
from vlmsafe.envs.vector.pool import EnvRecipe, WorkerPool
from vlmsafe.errors import MissingDependencyError
from vlmsafe.training.collect import CollectTask, collect

if TYPE_CHECKING:
    from vlmsafe.config.learning import LearnerConfig
    from vlmsafe.signals.scorers.api import Inputs, Scorer

HIDDEN, OBSERVATION, ACTIONS = (64, 64), 259, 2
SAMPLES = 2000
FRAME = 256
CLIPS = {
    "clip:openai/clip-vit-base-patch32": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                                          "num_attention_heads": 12, "patch_size": 32},
    "clip:openai/clip-vit-large-patch14": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                                           "num_attention_heads": 16, "patch_size": 14},
}  # fmt: skip
Row = tuple[str, str, float]
R = TypeVar("R")


@dataclass(frozen=True)
class Options:
    """Measure speeds."""

    steps: int = 1000
    """Environment steps per environment."""
    frames: int = 20
    """Frames per environment and per scorer."""
    envs: tuple[str, ...] = tuple(ENVS)
    """Environments to measure."""
    out: Path = Path("src/vlmsafe/studies/cost/speeds.csv")
    """File to write."""


@dataclass(frozen=True)
class EnvSpeed:
    start: float
    step: float
    frame: float
    memory: float


@dataclass(frozen=True)
class MeasureEnv:
    """In a new worker: what it took to get there, to collect a share, and to draw."""

    task: CollectTask
    frames: int

    def run(self, env: Env, tick: Callable[[int], None]) -> EnvSpeed:
        start = time.process_time()  # of this process, since it was forked
        collect(env, self.task, tick)
        step = (time.process_time() - start) / self.task.steps
        env.reset(seed=self.task.scenarios.start)
        env.action_space.seed(0)
        drawing = 0.0
        env.frame()  # the first one of an episode also draws what does not move
        for _ in range(self.frames):
            env.step(env.action_space.sample())
            begun = time.process_time()
            env.frame()
            drawing += time.process_time() - begun
        return EnvSpeed(start, step, drawing / self.frames, peak_memory())


def peak_memory() -> float:
    """Largest extent of this process so far, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(size if sys.platform == "darwin" else 1024 * size)


def measure_environments(options: Options) -> Iterator[Row]:
    for name in options.envs:
        try:
            ENVS[name].require()
        except MissingDependencyError as error:
            print(f"left out: {error}")
            continue
        found = alone(env_in_process, name, options.steps, options.frames)
        yield from ((name, quantity, value) for quantity, value in vars(found).items())


def env_in_process(name: str, steps: int, frames: int) -> EnvSpeed:
    """In a process of its own, whose workers inherit nothing from simulators that were measured before."""
    spec = dataclasses.replace(ENVS[name], frames=True)
    with WorkerPool[EnvSpeed](EnvRecipe(spec, spec.training), 1, fresh=True) as pool:
        found = pool.run([MeasureEnv(new_task(spec, steps), frames)])
    assert found is not None
    return found[0]


def alone(function: Callable[..., R], *arguments: Any) -> R:
    """What a function returns in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def new_task(spec: EnvSpec, steps: int) -> CollectTask:
    """A share of experience with an untrained policy of the environment's own size."""
    from vlmsafe.config.settings import TrainConfig
    from vlmsafe.io.interrupts import StopRequest
    from vlmsafe.learners.networks import Shape, Stack
    from vlmsafe.numerics.normaliser import Normaliser
    from vlmsafe.training.setup import describe

    _, sizes = describe(TrainConfig(env=spec.name), "nothing", StopRequest())
    stack = Stack(Shape(sizes.observation, HIDDEN, sizes.action, 2))
    stack.initialise(np.random.default_rng(0))
    return CollectTask(
        stack.policy(), Normaliser.empty(sizes.observation), spec.training, spec.traffic, steps, seed=(0,)
    )


def measure_learners() -> Iterator[Row]:
    """Seconds per sample and pass of a whole update, with as many passes as the learner makes."""
    from vlmsafe.config.learning import OFF_POLICY
    from vlmsafe.config.methods import METHODS
    from vlmsafe.learners.registry import LEARNERS

    for name in (name for name in LEARNERS if name not in OFF_POLICY):
        config = next(method.learner for method in METHODS.values() if method.learner.algorithm == name)
        config = dataclasses.replace(config, kl_early_stop=False)
        update_seconds(dataclasses.replace(config, update_iters=1))  # whatever happens only once
        yield name, "pass", update_seconds(config) / config.update_iters / SAMPLES


def update_seconds(config: LearnerConfig) -> float:
    from vlmsafe.learners.advantages import Batch
    from vlmsafe.learners.learner import Learner
    from vlmsafe.learners.registry import LEARNERS

    rng = np.random.default_rng(0)
    observations, actions, rest = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in ((SAMPLES, OBSERVATION), (SAMPLES, ACTIONS), (4, SAMPLES))
    )
    log_probs = (-0.5 * actions**2 - 0.5 * np.log(2 * np.pi)).sum(axis=1).astype(np.float32)
    learner = LEARNERS[config.algorithm](OBSERVATION, ACTIONS, config, np.random.default_rng(1))
    assert isinstance(learner, Learner)
    batch = Batch(observations, actions, log_probs, rest[0], rest[1], rest[2:][: learner.critics])
    begun = time.process_time()
    learner.update(batch, 0.3, 5.0, np.random.default_rng(2))
    return time.process_time() - begun


def random_clip(settings: dict[str, int]) -> Scorer:
    """A CLIP of a certain size with random weights, and random embeddings of eight prompts."""
    import torch
    import transformers

    from vlmsafe.signals.scorers.clip import ClipScorer
    from vlmsafe.signals.scorers.images import Preprocessing

    models: Any = transformers  # half typed; what comes from it is Any
    config = models.CLIPConfig(vision_config=settings)
    model = models.CLIPModel(config).eval()
    return ClipScorer(model, torch.randn(8, config.projection_dim), (4, 4), Preprocessing.clip(224), device="cpu")


def score_in_process(name: str, frames: int) -> tuple[float, float]:
    """(CPU seconds per frame, largest extent in bytes) of a scorer; of `none`, what a process takes without one."""
    import torch

    import vlmsafe.training.trainer  # noqa: F401 - what a training process has in memory in any case
    from vlmsafe.signals.prompts import load_prompts
    from vlmsafe.signals.scorers.make import make_scorer

    torch.set_num_threads(1)
    if name == "none":
        return 0.0, peak_memory()
    scorer: Scorer
    if name in CLIPS:
        scorer = random_clip(CLIPS[name])
    else:
        scorer = make_scorer(name, load_prompts("metadrive"), device="cpu", observation=OBSERVATION)
    rng = np.random.default_rng(0)
    if scorer.looks_at == "frame":
        inputs: Inputs = rng.integers(0, 256, (frames, FRAME, FRAME, 3 * scorer.frames), dtype=np.uint8)
    else:
        sizes = {"observation": (frames, OBSERVATION), "noise": (frames, 2)}
        inputs = rng.random(sizes.get(scorer.looks_at, (frames,)), dtype=np.float32)
    scorer.score(inputs[:2])
    begun = time.process_time()
    scorer.score(inputs)
    return (time.process_time() - begun) / frames, peak_memory()


def measure_scorers(options: Options) -> Iterator[Row]:
    _, main = alone(score_in_process, "none", 0)
    yield "main", "memory", main
    for name in ("embedded", "rnd", "constant:0.5", "noise", "oracle", *CLIPS):
        seconds, memory = alone(score_in_process, name, options.frames)
        kind = name.partition(":")[0] if name not in CLIPS else name
        yield kind, "score", seconds
        yield kind, "memory", max(0.0, memory - main)


def machine() -> str:
    import torch

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return f"one core of {os.cpu_count()} of {processor}, no GPU, torch {torch.__version__}, {datetime.date.today()}"


def main() -> None:
    import torch
    import tyro

    options = tyro.cli(Options)
    torch.set_num_threads(1)
    rows: list[Row] = []
    for row in itertools.chain(measure_learners(), measure_scorers(options), measure_environments(options)):
        rows.append(row)
        print(f"{row[0]:<40} {row[1]:<8} {row[2]:.6g}", flush=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# measured by benchmarks/speeds.py on {machine()}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "quantity", "value"])
        writer.writerows((name, quantity, f"{value:.4g}") for name, quantity, value in rows)
    print(f"written: {options.out}")


if __name__ == "__main__":
    # Tasks travel to the workers by name, and the workers know this file as a module, not as a script.
    import speeds as this_module

    this_module.main()
