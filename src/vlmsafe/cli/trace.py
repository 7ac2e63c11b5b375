"""vlmsafe trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.table import Table

from vlmsafe.cli.evaluate import note, noting_what_is_kept
from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.errors import InputError


@dataclass(frozen=True)
class TraceCommand:
    """Record evaluation episodes step by step: scores, margin, kappa, cost, progress.

    The episodes are those that `vlmsafe evaluate` runs under the same protocol. The table goes to traces/ of the run.
    An interrupted trace keeps its finished episodes: the same command goes on.
    """

    run: tyro.conf.Positional[Path]
    """Run directory, or driver:<name> for a shipped driver, whose results go to runs/drivers/<name>."""
    protocol: str = "held-out"
    """Which scenarios, under which conditions; `vlmsafe evaluate --help` names them."""
    episodes: int | None = None
    """Number of episodes; by default the protocol's."""
    epoch: int | None = None
    """Checkpoint to trace, by the number of epochs it was trained; by default the newest."""
    scorer: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")] = field(
        default_factory=tuple
    )
    """Scorer, once or several times; by default the run's own, or embedded if it has none but there are prompts."""
    prompts: str | None = None
    """Prompt set: a name shipped with the package or a YAML file; by default the run's own, or its environment's."""
    every: int = 1
    """Steps between two scored states."""
    frames: bool = False
    """Also keep the scored frames, as small pictures."""
    facts: bool = False
    """Also record the environment's privileged measures."""
    indicators: bool | None = None
    """Draw the simulator's cost indicators into frames, or leave them out; by default as the run had them."""
    scorer_device: str = "auto"
    """Where the model runs: cpu, cuda, ...; 'auto' takes a GPU where there is one."""
    batch: int | None = None
    """Frames scored at a time; by default the scorer's own number."""
    scorer_frames: int | None = None
    """Frames that a scorer which takes any number gets at a time; by default the run's, or one."""
    frame_distance: int | None = None
    """Steps between two of these frames; by default the run's, or 4."""
    service: str = ""
    """Address of a scoring service, as `vlmsafe serve` prints it; by default the models are loaded here."""
    processes: int | None = None
    """Simulators at a time; by default one per core."""
    allow_untrained: bool = False
    """Trace the initial policy of a run that has not trained yet."""
    overwrite: bool = False
    """Replace an earlier trace, once the new one is complete."""


def trace_verb(argv: list[str]) -> None:
    command = parse(TraceCommand, argv, "trace")
    from rich.progress import Progress

    from vlmsafe.evaluation.protocols import protocol
    from vlmsafe.evaluation.trace.record import trace, trace_summary
    from vlmsafe.runs.drivers import open_run
    from vlmsafe.runs.layout import frames_path

    run = open_run(command.run)
    chosen = protocol(command.protocol)
    path = run.trace_path(chosen.name, command.epoch, command.indicators)
    if path.exists() and not command.overwrite:
        raise InputError(f"{path} holds a trace already; pass --overwrite to replace it")
    with Progress(console=err, transient=True) as progress, noting_what_is_kept():
        task = progress.add_task(f"{chosen.name} episodes", total=command.episodes or chosen.episodes)
        table = trace(
            run,
            command.scorer,
            chosen.name,
            episodes=command.episodes,
            epoch=command.epoch,
            processes=command.processes,
            every=command.every,
            prompts=command.prompts,
            device=command.scorer_device,
            facts=command.facts,
            frames=command.frames,
            batch=command.batch,
            service=command.service,
            scorer_frames=command.scorer_frames,
            frame_distance=command.frame_distance,
            indicators=command.indicators,
            allow_untrained=command.allow_untrained,
            write=True,
            on_episode=lambda done: progress.update(task, completed=done),
            on_note=note,
        )
    run = open_run(command.run)  # a shipped driver has a directory for its results now
    path = run.trace_path(chosen.name, command.epoch, command.indicators)
    out.print()
    out.print(summary_table(run, chosen.name, table["checkpoint_epoch"][0], trace_summary(table)))
    out.print(f"steps: {path}", markup=False, soft_wrap=True)
    if command.frames:
        out.print(f"frames: {frames_path(path)}", markup=False, soft_wrap=True)


def summary_table(run: Any, protocol_name: str, epoch: int, summaries: list[dict[str, Any]]) -> Table:
    """A trace as people read it, one row per scorer."""
    config = run.config
    title = f"{config.method} on {config.env}, seed {config.seed}, {protocol_name}, epoch {epoch} of {config.epochs}"
    table = Table(box=box.SIMPLE_HEAD, title=title, padding=(0, 1), title_justify="left")
    several = len(summaries) > 1
    if several:
        table.add_column("scorer", no_wrap=True)
    headings = {
        "episodes": "episodes",
        "steps": "steps",
        "contacts": "contacts",
        "onsets": "onsets",
        "scored": "scored",
        "kappa": "mean kappa",
        "c_vlm": "mean c_vlm",
        "auc_kappa": "AUC kappa",
        "auc_c_vlm": "AUC c_vlm",
    }
    for heading in headings.values():
        table.add_column(heading, justify="right", no_wrap=True)

    def figure(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

    for summary in summaries:
        name = [summary["scorer"]] if several else []
        table.add_row(*name, *(figure(summary.get(key)) for key in headings))
    return table
