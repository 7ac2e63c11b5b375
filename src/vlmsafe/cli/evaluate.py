"""vlmsafe evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich import box
from rich.table import Table

from vlmsafe.cli.terminal import err, out, parse


@dataclass(frozen=True)
class EvaluateCommand:
    """Evaluate a run's policy on the environment alone and print what it does.

    Protocols: held-out and selection for every environment; paper and paper-early for MetaDrive; paper-20 and paper-200
    for Bullet; paper-screening, paper-20, paper-20-stochastic, paper-environment-only, paper-task-metrics,
    paper-gate-roc and paper-lead-time for FormulaOne. The page on evaluation describes them. An interrupted evaluation
    keeps its finished episodes: the same command goes on.
    """

    run: tyro.conf.Positional[Path]
    """Run directory, or driver:<name> for a shipped driver, whose results go to runs/drivers/<name>."""
    protocol: str = "held-out"
    """Which scenarios, under which conditions; see above."""
    episodes: int | None = None
    """Number of episodes; by default the protocol's."""
    epoch: int | None = None
    """Checkpoint to evaluate, by the number of epochs it was trained; by default the newest."""
    processes: int | None = None
    """Simulators at a time; by default one per core."""
    allow_untrained: bool = False
    """Evaluate the initial policy of a run that has not trained yet."""
    overwrite: bool = False
    """Run again what the table holds already, and replace it even if it holds more, also of another checkpoint."""
    env: str | None = None
    """Another level or variant to evaluate it in, such as metadrive-easy:ends; by default the run's environment."""


def evaluate_verb(argv: list[str]) -> None:
    command = parse(EvaluateCommand, argv, "evaluate")
    from rich.progress import Progress

    from vlmsafe.evaluation.evaluate import evaluate, summary
    from vlmsafe.evaluation.protocols import protocol
    from vlmsafe.runs.drivers import open_run

    run = open_run(command.run)
    chosen = protocol(command.protocol)
    with Progress(console=err, transient=True) as progress, noting_what_is_kept():
        task = progress.add_task(f"{chosen.name} episodes", total=command.episodes or chosen.episodes)
        table = evaluate(
            run,
            chosen.name,
            episodes=command.episodes,
            epoch=command.epoch,
            processes=command.processes,
            allow_untrained=command.allow_untrained,
            overwrite=command.overwrite,
            env=command.env,
            on_episode=lambda done: progress.update(task, completed=done),
            on_note=note,
        )
    run = open_run(command.run)  # a shipped driver has a directory for its results now
    out.print()
    actions = ", stochastic actions" if chosen.stochastic else ""
    where = f", in {command.env}" if command.env not in (None, run.config.env) else ""
    budget = float(table["budget"][0])
    title = f"{chosen.name}{actions}{where}"
    out.print(result_table(run, title, table["checkpoint_epoch"][0], summary(table), budget))
    overlap = int(table["in_training_pool"].sum())
    if overlap:
        out.print(f"{overlap} of {len(table)} scenarios lie in the training pool: this is not a held-out result")
    path = run.evaluation_path(chosen.name, command.epoch, command.env)
    out.print(f"episodes: {path}", markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a note that is not part of the result."""
    err.print(f"note: {text}", markup=False, soft_wrap=True)


@contextmanager
def noting_what_is_kept() -> Iterator[None]:
    """Say on Ctrl-C that the episodes so far are not lost."""
    try:
        yield
    except KeyboardInterrupt:
        note("finished episodes are kept; the same command goes on with the others")
        raise


def result_table(run: Any, protocol_name: str, epoch: int, figures: dict[str, float | None], budget: float) -> Table:
    """An evaluation as people read it."""
    config = run.config
    state = "" if epoch >= config.epochs else f", epoch {epoch} of {config.epochs}"
    if run.status() != "finished":
        state += f", {run.status()}"
    if epoch == 0:
        state = ", UNTRAINED"
    title = f"{config.method} on {config.env}, seed {config.seed}, {protocol_name}{state}"
    # As wide as its title, which would be broken otherwise where the table has few columns.
    table = Table(box=box.SIMPLE_HEAD, title=title, padding=(0, 1), title_justify="left", min_width=len(title))
    metrics = config.spec.metrics
    names = [name.replace("_", "\n") for name in metrics]  # two short lines, so that the table fits a terminal
    success = ("arrived", "arrived,\nC = 0") if figures["arrival_rate"] is not None else ()
    for heading in ("episodes", "return", "cost", "budget", "C > d", "C > 4d", *success, "steps", *names):
        table.add_column(heading, justify="right", no_wrap=True)

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    def figure(name: str) -> str:
        value = figures[name]
        return "-" if value is None else f"{value:.2f}"

    table.add_row(
        f"{figures['episodes']:.0f}",
        figure("env_return"),
        figure("cost"),
        f"{budget:g}",
        percent(figures["violation_rate"]),
        percent(figures["catastrophe_rate"]),
        *(percent(figures[name]) for name in ("arrival_rate", "arrival_without_cost_rate") if success),
        figure("length"),
        *(figure(name) for name in metrics),
    )
    return table
