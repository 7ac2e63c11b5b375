"""Show a run while it trains: a live line on a terminal, plain lines elsewhere, TensorBoard on request.

Nothing here is a record; the run directory holds the records.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import MissingDependencyError
from vlmsafe.runs.digest import PROGRESS
from vlmsafe.runs.run import Run


class Display(Protocol):
    """Is told everything worth showing."""

    def start(self, epoch: int) -> None:
        """Training begins, or continues after `epoch` epochs."""

    def steps(self, total: int) -> None:
        """Environment steps done so far in the whole run."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """An epoch was recorded."""

    def note(self, text: str) -> None:
        """Something unusual happened."""


class _QuietWhenClosed(Console):
    """A console that falls silent when its reader goes away, so that `| head` does not end a run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # The interpreter would write the rest of the buffer when it ends, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def check_display(config: TrainConfig) -> None:
    """Fail early where TensorBoard was asked for and is not installed."""
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise MissingDependencyError(
            "--tensorboard needs the package 'tensorboard', which is not installed; "
            "install it with: pip install tensorboard"
        )


@contextmanager
def make_display(run: Run, quiet: bool) -> Iterator[Display]:
    """The displays that fit the terminal and the run's settings."""
    console = _QuietWhenClosed(stderr=True, highlight=False)
    displays: list[Display] = []
    with ExitStack() as stack:
        if not quiet:
            displays.append(stack.enter_context(_Live(run, console)) if console.is_terminal else _Lines(run, console))
        if run.config.tensorboard:
            displays.append(stack.enter_context(_TensorBoard(run)))
        yield _Several(displays)


class _Several:
    def __init__(self, displays: list[Display]) -> None:
        self._displays = displays

    def start(self, epoch: int) -> None:
        for display in self._displays:
            display.start(epoch)

    def steps(self, total: int) -> None:
        for display in self._displays:
            display.steps(total)

    def epoch(self, row: Mapping[str, Any]) -> None:
        for display in self._displays:
            display.epoch(row)

    def note(self, text: str) -> None:
        for display in self._displays:
            display.note(text)


class _Speed:
    """Steps per second and time left, from the steps of this process only."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._begun: tuple[float, int] | None = None

    def begin(self, steps: int) -> None:
        self._begun = (time.monotonic(), steps)

    def at(self, steps: int) -> tuple[float, float | None]:
        """(steps per second, seconds left)."""
        assert self._begun is not None
        seconds = time.monotonic() - self._begun[0]
        rate = (steps - self._begun[1]) / seconds if seconds > 0 else 0.0
        return rate, (self._total - steps) / rate if rate > 0 else None


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds in words.

    >>> duration(59), duration(3725), duration(None)
    ('59 s', '1 h 02 min', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none yet."""
    return "-" if value is None else f"{value:.{digits}f}"


class _Lines:
    """One plain line per epoch."""

    def __init__(self, run: Run, console: Console) -> None:
        self._run, self._console = run, console
        self._speed = _Speed(run.config.total_steps)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def start(self, epoch: int) -> None:
        config = self._run.config
        self._speed.begin(epoch * config.steps_per_epoch)
        how = f"continues after epoch {epoch}" if epoch else "starts"
        numbers = {"epoch": config.epochs, "worker": config.num_envs}
        epochs, workers = (f"{number} {noun}{'s' * (number != 1)}" for noun, number in numbers.items())
        self._print(
            f"{self._run.path}: {config.method} on {config.env}, seed {config.seed}, {how}; "
            f"{epochs} of {config.steps_per_epoch:,} steps, {workers}"
        )

    def steps(self, total: int) -> None:
        pass

    def epoch(self, row: Mapping[str, Any]) -> None:
        rate, left = self._speed.at(row["steps"])
        multiplier = f"  lambda {number(row['multiplier'], 3)}" if row["multiplier"] is not None else ""
        signal = "".join(f"  {heading} {number(row[name], 3)}" for heading, name in _signal_columns(row))
        progress = "".join(f"  {heading} {value}" for heading, value in _progress_columns(row))
        self._print(
            f"epoch {row['epoch']}/{self._run.config.epochs}  steps {row['steps']:,}  {rate:.0f} steps/s  "
            f"return {number(row['env_return'])}  cost {number(row['episode_cost'])} of {row['budget']:g}"
            f"{multiplier}{signal}  kl {row['kl']:.4f}  episodes {row['episodes']}{progress}  left {duration(left)}"
        )

    def note(self, text: str) -> None:
        self._print(f"note: {text}")


class _Live:
    """A progress bar over the run and, under it, the figures of the newest epoch."""

    def __init__(self, run: Run, console: Console) -> None:
        config = run.config
        self._run, self._console = run, console
        self._speed = _Speed(config.total_steps)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task(f"{config.method} on {config.env}", total=config.total_steps, status="starting")
        self._figures: RenderableType = ""
        self._live = Live(console=console, get_renderable=lambda: Group(self._bar, self._figures), refresh_per_second=4)

    def __enter__(self) -> _Live:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def start(self, epoch: int) -> None:
        done = epoch * self._run.config.steps_per_epoch
        self._speed.begin(done)
        self._bar.update(self._task, completed=done)
        self._console.print(f"run directory {self._run.path}", markup=False)

    def steps(self, total: int) -> None:
        rate, left = self._speed.at(total)
        status = f"{total:,} of {self._run.config.total_steps:,} steps, {rate:.0f} steps/s, {duration(left)} left"
        self._bar.update(self._task, completed=total, status=status)

    def epoch(self, row: Mapping[str, Any]) -> None:
        self._figures = _figures(row, self._run.config.epochs)
        self.steps(row["steps"])

    def note(self, text: str) -> None:
        self._console.print(f"note: {text}", markup=False)


def _signal_columns(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Headings and names of the signal's figures; none for a method without one."""
    if row["bonus"] is None:
        return []
    own = [("mu", "signal_multiplier")] if row["signal_multiplier"] is not None else []
    return [("bonus", "bonus"), ("c_vlm", "negative_score"), ("kappa", "kappa"), *own]


_SHARES = {"arrived": "arrived", "arrived_without_cost": "arrived without cost", "passive": "passive"}


def _progress_columns(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Headings and texts of how far the epoch's episodes got; a run that stands still shows here."""
    texts = []
    for name, value in row.get(PROGRESS, {}).items():
        share = "-" if value is None else f"{value:.0%}"
        texts.append((_SHARES[name], share) if name in _SHARES else (name.replace("_", " "), number(value)))
    return texts


def _figures(row: Mapping[str, Any], epochs: int) -> RenderableType:
    """The figures of an epoch in one table, and how far its episodes got in another below it."""
    progress = _progress_columns(row)
    if not progress:
        return _main_figures(row, epochs)
    below = Table(*(heading for heading, _ in progress), box=None, padding=(0, 3, 0, 0), header_style="dim")
    below.add_row(*(value for _, value in progress))
    return Group(_main_figures(row, epochs), below)


def _main_figures(row: Mapping[str, Any], epochs: int) -> Table:
    signal = _signal_columns(row)
    table = Table(box=None, padding=(0, 2 if signal else 3, 0, 0), header_style="dim")  # within 80 columns
    cost, budget = row["episode_cost"], row["budget"]
    within = cost is not None and cost <= budget
    headings = ["epoch", "return", "cost / budget", "lambda", *(heading for heading, _ in signal)]
    for heading in (*headings, "KL", "passes", "episodes"):
        table.add_column(heading)
    table.add_row(
        f"{row['epoch']}/{epochs}",
        number(row["env_return"]),
        f"[{'green' if within else 'red'}]{number(cost)}[/] / {budget:g}",
        number(row["multiplier"], 3),
        *(number(row[name], 3) for _, name in signal),
        f"{row['kl']:.4f}",
        str(row["passes"]),
        str(row["episodes"]),
    )
    return table


class _TensorBoard:
    """The epoch rows as TensorBoard scalars."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._run = run
        self._writer_class = SummaryWriter
        self._writer: Any = None

    def __enter__(self) -> _TensorBoard:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def start(self, epoch: int) -> None:
        # Hides what a killed process wrote after the checkpoint; the row files are cut in the same way.
        done = epoch * self._run.config.steps_per_epoch
        self._writer = self._writer_class(str(self._run.path / "tensorboard"), purge_step=done + 1)

    def steps(self, total: int) -> None:
        pass

    def epoch(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name not in ("epoch", "steps"):
                self._writer.add_scalar(f"train/{name}", value, row["steps"])
        for name, value in row.get(PROGRESS, {}).items():
            if value is not None:
                self._writer.add_scalar(f"{PROGRESS}/{name}", value, row["steps"])
        self._writer.flush()

    def note(self, text: str) -> None:
        pass
