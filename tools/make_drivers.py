"""Make the drivers that ship with the package: train, choose a seed, evaluate, and write weights, card and picture.

    python tools/make_drivers.py [NAME ...] [--list tools/drivers.yaml] [--dir .drivers] [--pack]

The list says for each driver which commands make a run of one seed, and which seeds to try. Training takes hours and
can be interrupted: what `--dir` holds already is left, and an unfinished run is resumed. With `--pack` nothing is
trained.

Packing checks that the runs have the settings of their commands. The seed is chosen under the protocol 'selection', and
the card reports the protocol 'held-out', whose scenarios are others. Every line of a card is read from the run, from
its evaluations or from the list.
"""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vlmsafe  # isort: skip  # first: it pins the kernels

import numpy as np
import polars as pl
import tyro
from PIL import Image
from scipy import stats

from vlmsafe.analysis.resampling import bootstrap_mean
from vlmsafe.cli.clone import CloneCommand
from vlmsafe.cli.train import settings_of
from vlmsafe.cloning.clone import clone_config
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, read_yaml, to_dict, to_yaml
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError, VlmsafeError, unknown_name
from vlmsafe.io.files import write_atomically
from vlmsafe.io.images import decode
from vlmsafe.runs.drivers import SHIPPED, ShippedDriver, write_driver
from vlmsafe.runs.layout import is_run
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import SUCCESS
from vlmsafe.runs.traces import open_trace
from vlmsafe.runs.warm_start import read_start

TOOLS = Path(__file__).parent
DEFAULT_DIRECTORY = Path(".drivers")
SELECTION_EPISODES, HELD_OUT_EPISODES = 50, 100
RULE = (
    "of the seeds whose mean cost is within the budget (of all if none is) the highest {figure}, then the lowest cost"
)
ROWS, COLUMNS, HEIGHT = 3, 6, 128  # episodes in a picture, frames of each, pixels of a frame
COST, FREE = (230, 120, 20), (210, 210, 210)  # the border of a frame
_PER_RUN = {"run_dir", "init_from", "recipe", "tensorboard", "total_steps", "extended_from"}
"""Settings that are compared by themselves, or that may differ between the command and the run that it names."""


@dataclass(frozen=True)
class Entry:
    """How a driver is made, as the list says it."""

    name: str
    summary: str
    seeds: tuple[int, ...]
    commands: tuple[str, ...]
    """In order, with {seed} and {dir}; the last one makes the driver."""
    figure: str | None = None
    """What a seed is chosen by; by default arrivals without cost, else the first figure of the environment's task."""
    env: str | None = None
    """The world that the driver is for, if it was trained in another variant, such as one with more traffic."""

    def words(self, command: str, seed: int, directory: Path) -> list[str]:
        return shlex.split(command.format(seed=seed, dir=directory))

    def runs(self, seed: int, directory: Path) -> list[Run]:
        """The runs of a seed, in the order of the commands, each checked against its command."""
        found: dict[Path, Run] = {}
        steps: dict[Path, int] = {}
        for words in (self.words(command, seed, directory) for command in self.commands):
            place = run_dir_of(words)
            run = found.setdefault(place, Run.open(place))
            wanted = expected(words)
            steps[place] = wanted if isinstance(wanted, int) else wanted.total_steps
            if isinstance(wanted, TrainConfig):
                check_settings(run, wanted)
        for place, run in found.items():
            if run.status() != "finished" or run.config.total_steps != steps[place]:
                raise InputError(f"{place} is {run.describe()}, with {run.config.total_steps:,} steps; train it first")
        return list(found.values())


def read_list(path: Path) -> dict[str, Entry]:
    """The entries of a list by name."""
    found = {}
    for name, entry in read_yaml(path).items():
        commands = tuple(" ".join(one.split()) for one in entry["commands"])
        found[name] = Entry(
            name, entry["summary"], tuple(entry["seeds"]), commands, entry.get("figure"), entry.get("env")
        )
    return found


def run_dir_of(words: Sequence[str]) -> Path:
    """Where the run of a command lies."""
    for option in ("--run-dir", "--resume"):
        if option in words:
            return Path(words[words.index(option) + 1])
    raise InputError(f"the command needs --run-dir or --resume: {shlex.join(words)}")


def expected(words: Sequence[str]) -> TrainConfig | int:
    """The settings of the run that a command makes, or the total steps to which it extends a run."""
    program, verb, *options = words
    if program != "vlmsafe" or verb not in ("train", "clone"):
        raise InputError(f"expected vlmsafe train or vlmsafe clone, got: {shlex.join(words)}")
    if "--resume" in options:
        return int(options[options.index("--total-steps") + 1].replace("_", ""))
    if verb == "train":
        return settings_of(options).resolved()
    wanted: CloneCommand = tyro.cli(CloneCommand, args=options)
    return clone_config(
        wanted.env, wanted.steps, wanted.passes, wanted.rounds, wanted.hidden, wanted.seed, wanted.run_dir,
        wanted.observe_changes, wanted.braking_weight, wanted.budget, wanted.observation_floor,
    )  # fmt: skip


def check_settings(run: Run, wanted: TrainConfig) -> None:
    """Refuse a run that its command would not make: other settings, or another start."""
    theirs, ours = (flatten(to_dict(config)) for config in (run.config, wanted))
    other = [f"{key} is {theirs[key]}, not {ours[key]}" for key in ours if ours[key] != theirs[key]]
    other = [text for text in other if text.partition(" ")[0] not in _PER_RUN]
    if other:
        raise InputError(f"{run.path} was not made by its command: {'; '.join(other)}")
    if (start := read_start(wanted)) is not None and run.recorded()["start"]["digest"] != start.digest():
        raise InputError(f"{run.path} did not start from {wanted.init_from}")


def train(entry: Entry, directory: Path) -> None:
    """Run the commands of every seed, except those whose run is finished."""
    for seed in entry.seeds:
        for command in entry.commands:
            words = entry.words(command, seed, directory)
            place, wanted = run_dir_of(words), expected(words)
            steps = wanted if isinstance(wanted, int) else wanted.total_steps
            if is_run(place) and (run := Run.open(place)).status() == "finished" and run.config.total_steps >= steps:
                continue
            if is_run(place) and "--resume" not in words:
                words = ["vlmsafe", "train", "--resume", str(place)]
            print(shlex.join(words), flush=True)
            subprocess.run([sys.executable, "-m", *words], check=True)


def figures_of(table: pl.DataFrame, run: Run) -> dict[str, dict[str, float]]:
    """Means over episodes with 95 % intervals: Wilson's for shares, resampled episodes for other figures."""
    found = {}
    for name in (*SUCCESS, "cost", "violation", "env_return", "length", *run.config.spec.metrics):
        column = table[name]
        if column.null_count() == len(column):
            continue
        values = column.to_numpy().astype(float)
        if column.dtype == pl.Boolean:
            share = stats.binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
            mean, low, high = float(values.mean()), float(share.low), float(share.high)
        else:
            interval = bootstrap_mean(values, unit="episodes")
            mean, low, high = interval.estimate, interval.low, interval.high
        found[name] = {key: float(f"{value:.4g}") for key, value in (("mean", mean), ("low", low), ("high", high))}
    return found


def choose(runs: dict[int, Run], figure: str | None, processes: int) -> tuple[int, dict[str, Any]]:
    """The seed that the rule chooses, and how it was chosen."""
    reached = {}
    for seed, run in runs.items():
        table = vlmsafe.evaluate(run, "selection", episodes=SELECTION_EPISODES, processes=processes)
        found = figures_of(table, run)
        figure = figure or (SUCCESS[1] if SUCCESS[1] in found else next(iter(run.config.spec.metrics), "env_return"))
        reached[seed] = {name: found[name]["mean"] for name in (figure, "cost")}
    assert figure is not None
    budget = next(iter(runs.values())).config.budget
    allowed = [seed for seed, one in reached.items() if one["cost"] <= budget] or list(reached)
    about = {
        "rule": RULE.format(figure=figure) if len(runs) > 1 else "the only seed",
        "protocol": "selection",
        "episodes": SELECTION_EPISODES,
        "scenarios": scenarios_of(table),
        "reached": reached,
    }
    return max(allowed, key=lambda seed: (reached[seed][figure], -reached[seed]["cost"])), about


def hours_of(runs: Sequence[Run]) -> float | None:
    """Hours of wall time that the runs took, as far as they recorded it; None if one of them did not."""
    seconds = 0.0
    for run in runs:
        rows = run.rows("timing")
        clones = [event["seconds"] for event in run.events() if event["event"] == "cloned" and "seconds" in event]
        if not rows and not clones:
            return None
        seconds += sum(clones) + sum(value for row in rows for name, value in row.items() if name != "epoch")
    return float(f"{seconds / 3600:.2g}")


def picture_of(run: Run, processes: int) -> bytes:
    """Frames of a few held-out episodes, one episode a row; an orange border means that the step cost something."""
    horizon = run.config.spec.horizon or 1000
    every = max(1, horizon // 100)
    vlmsafe.trace(run, ["constant:0.5"], episodes=ROWS, every=every, processes=processes, frames=True, write=True)
    recorded = open_trace(run.path)
    scored = recorded.steps.filter("scored").select("episode", "step", "cost")
    frames = recorded.pictures().join(scored, on=["episode", "step"], how="left", maintain_order="left")
    rows = []
    for episode in frames.partition_by("episode", maintain_order=True):
        places = np.linspace(0, len(episode) - 1, COLUMNS).round().astype(int)
        costs = episode["cost"].to_list()
        rows.append([tile(decode(episode["picture"][int(i)]), costs[i] > 0.0) for i in places])
    image = Image.fromarray(np.concatenate([np.concatenate(row, axis=1) for row in rows]))
    buffer = io.BytesIO()
    # 64 colours: a card's picture is small, and the worlds are drawn in few colours.
    image.quantize(64, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def tile(frame: np.ndarray, cost: bool) -> np.ndarray:
    """A small frame with its border."""
    width = round(HEIGHT * frame.shape[1] / frame.shape[0])
    small = Image.fromarray(frame).resize((width, HEIGHT), Image.Resampling.LANCZOS)
    framed = np.empty((HEIGHT + 4, width + 4, 3), np.uint8)
    framed[:] = COST if cost else FREE
    framed[2:-2, 2:-2] = np.asarray(small)
    return framed


def pack(entry: Entry, directory: Path, out: Path, processes: int) -> ShippedDriver:
    """Choose, evaluate and write a driver."""
    chains = {seed: entry.runs(seed, directory) for seed in entry.seeds}
    runs = {seed: moved(chain[-1], entry.env) for seed, chain in chains.items()}
    seed, chosen_by = choose(runs, entry.figure, processes)
    run, chain = runs[seed], chains[seed]
    table = vlmsafe.evaluate(run, "held-out", episodes=HELD_OUT_EPISODES, processes=processes)
    checkpoint, _ = run.checkpoint()
    recorded, sizes = run.recorded(), checkpoint.shape
    card = {
        "name": entry.name,
        "summary": entry.summary,
        "env": {"name": run.config.env, "version": recorded.get("env_version")},
        "trained_in": chain[-1].config.env,
        "method": run.config.method,
        "recipe": run.config.recipe,
        "commands": [shlex.join(entry.words(one, seed, DEFAULT_DIRECTORY)) for one in entry.commands],
        "seeds": {"tried": list(entry.seeds), "chosen": seed},
        "chosen_by": chosen_by,
        "steps": sum(one.config.total_steps * one.config.action_repeat for one in chain),
        "hours": hours_of(chain),
        "held_out": {
            "protocol": "held-out",
            "episodes": len(table),
            "scenarios": scenarios_of(table),
            "actions": "deterministic",
            "budget": run.config.budget,
            "intervals": "95 %; Wilson's for shares, 10,000 resamples of episodes for the others",
            "figures": figures_of(table, run),
        },
        "policy": {"observation": sizes.observation, "hidden": list(sizes.hidden), "action": sizes.action},
        "package": recorded["packages"].get("vlmsafe"),
    }  # fmt: skip
    return write_driver(out / entry.name, run, card, picture_of(run, processes))


def moved(run: Run, env: str | None) -> Run:
    """The run as one of another variant of its world, in which it is evaluated and shipped."""
    if env is None or env == run.config.env:
        return run
    place = run.path.with_name(f"{run.path.name}-in-{env.replace(':', '-')}")
    if not is_run(place):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(run.path, place, ignore=shutil.ignore_patterns("config.yaml", "lock", "evaluations", "traces"))
        settings = read_yaml(run.path / "config.yaml") | {"env": env, "budget": env_spec(env).budget}
        (place / "evaluations").mkdir()
        write_atomically(place / "config.yaml", to_yaml(settings).encode())
    return Run.open(place)


def scenarios_of(table: pl.DataFrame) -> str:
    """The scenarios of an evaluation."""
    return f"{table['scenario'].min()} to {table['scenario'].max()}"


@dataclass(frozen=True)
class Options:
    """Make the shipped drivers."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Drivers to make; by default all of the list."""
    list: Path = TOOLS / "drivers.yaml"
    """The list of drivers."""
    dir: Path = DEFAULT_DIRECTORY
    """Where runs are, or go."""
    out: Path = SHIPPED
    """Where the drivers go."""
    pack: bool = False
    """Train nothing: make drivers of the runs that are there."""
    processes: int = 2
    """Simulators at a time in evaluations."""


def main() -> None:
    options = tyro.cli(Options)
    entries = read_list(options.list)
    for name in options.names:
        if name not in entries:
            raise unknown_name("driver", name, entries)
    chosen = [entries[name] for name in options.names or entries]
    for entry in chosen if not options.pack else []:
        train(entry, options.dir)
    for entry in chosen:
        driver = pack(entry, options.dir, options.out, options.processes)
        print(f"{driver.path}: {driver.size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    try:
        main()
    except VlmsafeError as error:
        sys.exit(f"error: {error}")
