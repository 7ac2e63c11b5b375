"""The command line: one function per verb, each thin over the Python interface."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from vlmsafe.config import TrainConfig
from vlmsafe.envs import ENVS
from vlmsafe.errors import EXIT_AT_ONCE, EXIT_BAD_INPUT, InputError, RunError, VlmsafeError, unknown_name
from vlmsafe.methods import METHODS, config_from_yaml, differences, method_defaults

# Into a file or a pipe rich would squeeze tables into 80 columns.
_out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
_err = Console(stderr=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb; errors a user can do something about become one line and an exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    # An installed command does not look for modules where it is called, and that is where gym:<module>:<id> lives.
    sys.path.append(os.getcwd())
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            _print_help()
            return
        verb, rest = argv[0], argv[1:]
        if verb not in _VERBS:
            raise unknown_name("command", verb, _VERBS)
        _VERBS[verb][0](rest)
    except VlmsafeError as error:
        _err.print("[bold red]error:[/] ", end="")
        _err.print(str(error), markup=False, soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        _err.print("interrupted")
        raise SystemExit(EXIT_AT_ONCE) from None
    except BrokenPipeError:
        raise SystemExit(0) from None  # the reader of our output, such as head, has seen enough


@dataclass(frozen=True)
class TrainCommand:
    """Train a constrained agent, or continue an interrupted run.

    Defaults shown are those of the chosen method. Settings given on the command line win over those of --config.
    """

    config: Path | None = None
    """YAML file of settings, such as the config.yaml of another run."""
    resume: Path | None = None
    """Run directory to continue exactly where it stopped; it takes no other settings."""
    quiet: bool = False
    """Print nothing while training."""
    settings: Annotated[TrainConfig, tyro.conf.arg(name="")] = TrainConfig()  # noqa: RUF009 - frozen


def _train(argv: list[str]) -> None:
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--config", "--method", "--resume"):
        known.add_argument(name, nargs="?")  # a value left out is for the full parser to complain about
    # What the method and the file say must be known before the rest is parsed: they are its defaults.
    early, others = known.parse_known_args(argv)
    if early.resume is not None:
        unwanted = [
            word for word in others if word.startswith("--") and word not in ("--quiet", "--no-quiet", "--help")
        ]
        unwanted += [f"--{name}" for name in ("config", "method") if getattr(early, name) is not None]
        if unwanted:
            raise InputError(
                f"--resume continues a run with its own settings; drop {', '.join(unwanted)}, or start a new run with "
                f"--config {Path(early.resume) / 'config.yaml'}"
            )
    if early.config is not None:
        defaults = config_from_yaml(Path(early.config), early.method)
    else:
        defaults = method_defaults(early.method or TrainConfig.method)
    command = _parse(TrainCommand, argv, "train", TrainCommand(settings=defaults))

    from vlmsafe.training.trainer import resume, train

    if command.resume is not None:
        from vlmsafe.training.run import Run

        if Run.open(command.resume).status() == "finished":
            _out.print(f"{command.resume} is finished; nothing to do")
            return
        run = resume(command.resume, quiet=command.quiet)
    else:
        run = train(command.settings, quiet=command.quiet)
    _out.print(f"finished: {run.path}", markup=False, soft_wrap=True)
    _out.print(f"evaluate it with: vlmsafe evaluate {shlex.quote(str(run.path))}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class EvaluateCommand:
    """Evaluate a run's policy with deterministic actions and print what it does."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    protocol: str = "held-out"
    """held-out, paper or paper-early: which scenarios, under which conditions."""
    episodes: int | None = None
    """Number of episodes; by default the protocol's."""
    epoch: int | None = None
    """Checkpoint to evaluate, by the number of epochs it was trained; by default the newest."""
    processes: int | None = None
    """Simulators at a time; by default one per core."""
    allow_untrained: bool = False
    """Evaluate the initial policy of a run that has not trained yet."""
    overwrite: bool = False
    """Replace a table that holds more episodes of the same checkpoint."""


def _evaluate(argv: list[str]) -> None:
    command = _parse(EvaluateCommand, argv, "evaluate")
    from rich.progress import Progress

    from vlmsafe.evaluation.episodes import evaluate, summary, table_path
    from vlmsafe.evaluation.protocols import protocol
    from vlmsafe.training.run import Run

    run = Run.open(command.run)
    chosen = protocol(command.protocol)
    with Progress(console=_err, transient=True) as progress:
        task = progress.add_task(f"{chosen.name} episodes", total=command.episodes or chosen.episodes)
        table = evaluate(
            run,
            chosen.name,
            episodes=command.episodes,
            epoch=command.epoch,
            processes=command.processes,
            allow_untrained=command.allow_untrained,
            overwrite=command.overwrite,
            on_episode=lambda done: progress.update(task, completed=done),
            on_note=lambda text: _err.print(f"note: {text}", markup=False, soft_wrap=True),
        )
    _out.print()
    _out.print(result_table(run, chosen.name, table["checkpoint_epoch"][0], summary(table)))
    overlap = int(table["in_training_pool"].sum())
    if overlap:
        _out.print(f"{overlap} of {len(table)} scenarios lie in the training pool: this is not a held-out result")
    _out.print(f"episodes: {table_path(run, chosen, command.epoch)}", markup=False, soft_wrap=True)


def result_table(run: Any, protocol_name: str, epoch: int, figures: dict[str, float | None]) -> Table:
    """An evaluation as people read it."""
    config = run.config
    state = "" if epoch >= config.epochs else f", epoch {epoch} of {config.epochs}"
    if run.status() != "finished":
        state += f", {run.status()}"
    if epoch == 0:
        state = ", UNTRAINED"
    title = f"{config.method} on {config.env}, seed {config.seed}, {protocol_name}{state}"
    table = Table(box=box.SIMPLE_HEAD, title=title, padding=(0, 1), title_justify="left")
    metrics = config.spec.metrics
    names = [name.replace("_", " ") for name in metrics]
    for heading in ("episodes", "return", "cost", "budget", "C > d", "C > 4d", "arrived", "steps", *names):
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
        f"{config.budget:g}",
        percent(figures["violation_rate"]),
        percent(figures["catastrophe_rate"]),
        percent(figures["arrival_rate"]),
        figure("length"),
        *(figure(name) for name in metrics),
    )
    return table


@dataclass(frozen=True)
class RunsCommand:
    """List runs and how far they came."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Folder to search."""


def _runs(argv: list[str]) -> None:
    command = _parse(RunsCommand, argv, "runs")
    from vlmsafe.training.run import find_runs

    if not command.folder.is_dir():
        raise InputError(
            f"there is no folder {command.folder}; runs are written to runs/ unless --run-dir says otherwise"
        )
    runs, problems = find_runs(command.folder)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("run", overflow="fold")
    for heading in ("method", "env", "seed", "status", "epochs", "return", "cost / budget"):
        narrowest = len("stopped early") if heading == "status" else None
        table.add_column(heading, no_wrap=heading not in ("method", "env"), min_width=narrowest)
    colours = {"finished": "green", "running": "cyan", "stopped early": "yellow", "untrained": "red"}
    for run in runs:
        try:
            rows = run.rows("epochs")
        except RunError as error:
            problems.append(str(error))
            rows = []
        last = rows[-1] if rows else {}
        status = run.status()

        def figure(name: str, row: dict[str, Any] = last) -> str:
            return "-" if row.get(name) is None else f"{row[name]:.2f}"

        cost = f"{figure('episode_cost')} / {run.config.budget:g}"
        config = run.config
        table.add_row(
            str(run.path), config.method, config.env, str(config.seed), f"[{colours[status]}]{status}[/]",
            f"{run.epochs_done()}/{config.epochs}", figure("env_return"), cost,
        )  # fmt: skip
    _out.print(table if runs else f"no runs in {command.folder}")
    for problem in problems:
        _err.print(f"note: {problem}", markup=False, soft_wrap=True)


def _listing(name: str, *others: str) -> Table:
    """A table whose first column, what the user types or opens, is never cut."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(name, no_wrap=True)
    for heading in others:
        table.add_column(heading)
    return table


@dataclass(frozen=True)
class NoOptions:
    """This command takes no options."""


def _envs(argv: list[str]) -> None:
    _parse(NoOptions, argv, "envs")
    import importlib.util

    table = _listing("environment", "what it is", "steps", "budget", "scenarios", "installed")
    commands: dict[str, list[str]] = {}
    variants: dict[tuple[str, str], list[str]] = {}
    for spec in ENVS.values():
        present = spec.package is None or importlib.util.find_spec(spec.package) is not None
        if not present:
            commands.setdefault(spec.install, []).append(spec.name)
        for name, variant in spec.variants.items():
            variants.setdefault((name, variant.summary), []).append(spec.name)
        table.add_row(
            spec.name, spec.summary, str(spec.horizon), f"{spec.budget:g}",
            f"{spec.training.start} to {spec.training.start + spec.training.size - 1}",
            "[green]yes[/]" if present else "[red]no[/]",
        )  # fmt: skip
    _out.print(table)
    table = _listing("variant", "of", "what differs")
    for (name, summary), names in variants.items():
        table.add_row(f":{name}", ", ".join(names), summary)
    _out.print(table)
    _out.print("A variant is <environment>:<variant>; several are joined by +, such as formula-one-l2:long+sighted.")
    _out.print("gym:<id> is any registered Gymnasium environment that reports info\\['cost'].")
    _out.print("safety-gymnasium:<id> is one of the original Safety-Gymnasium, whose frames show when there is a cost.")
    for command, names in commands.items():
        _out.print(f"To install {', '.join(names)}:\n  {command}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class MethodsCommand:
    """List the methods, or say how two of them differ: vlmsafe methods diff A B."""

    action: tyro.conf.Positional[Literal["list", "diff"]] = "list"
    """list, or diff followed by two names."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """For diff: the two methods."""


_AUTO_GATE = (
    "An auto gate is prior-symmetric with CLIP, as in the paper, and calibrated with embedded; --signal.gate sets it."
)


def _methods(argv: list[str]) -> None:
    command = _parse(MethodsCommand, argv, "methods")
    if command.action == "diff":
        if len(command.names) != 2:
            raise InputError(f"methods diff takes two names, got {len(command.names)}; for example ppo ppo-lag")
        _methods_diff(*command.names)
        return
    table = _listing("method", "in the paper", "what it is", "made of")
    for method in METHODS.values():
        table.add_row(method.name, method.paper, method.summary, method.composition())
    _out.print(table)
    _out.print(f"The paper's arms have CLIP where this says embedded: --scorer clip gives them. {_AUTO_GATE}")


def _methods_diff(one: str, other: str) -> None:
    changed = differences(one, other)
    if not changed:
        _out.print(f"{one} and {other} have the same settings")
        return
    table = _listing("setting", one, other)
    for key, (a, b) in changed.items():
        table.add_row(key, str(a), str(b))
    _out.print(table)
    if "auto" in changed.get("signal.gate", ()):
        _out.print(_AUTO_GATE)


def _doctor(argv: list[str]) -> None:
    _parse(NoOptions, argv, "doctor")
    from vlmsafe.doctor import examine

    table = _listing("part", "found", "enables")
    findings = examine()
    for finding in findings:
        table.add_row(
            finding.name, f"[green]{finding.version}[/]" if finding.present else "[red]missing[/]", finding.enables
        )
    _out.print(table)
    # Commands stand below the table: one that is wrapped cannot be copied.
    for finding in findings:
        if not finding.present:
            _out.print(f"To get {finding.name}:\n  {finding.install}", markup=False, soft_wrap=True)
    if any(finding.required and not finding.present for finding in findings):
        raise SystemExit(1)


@dataclass(frozen=True)
class EmbeddedCommand:
    """Make the embedded scorer anew: train agents, record, train the model, measure it, write its card.

    What the directory holds already is left, so an interrupted build goes on where it stopped.
    """

    verb: tyro.conf.Positional[Literal["build"]]
    directory: Annotated[Path, tyro.conf.arg(aliases=("--dir",))] = Path(".embedded")
    """Where everything goes; `weights.safetensors` in it is the model, for --scorer embedded:<file>."""
    stages: tuple[Literal["agents", "record", "train", "measure", "card"], ...] = (
        "agents", "record", "train", "measure", "card",
    )  # fmt: skip
    """Which stages to run; training needs no simulator and may be done on another machine."""
    device: str = "auto"
    """Where the model is trained: cpu, cuda, ...; 'auto' takes a GPU where there is one."""
    processes: int = 2
    """Simulators at a time."""
    scale: float = 1.0
    """Multiplies episodes and steps, for a small trial."""


def _embedded(argv: list[str]) -> None:
    command = _parse(EmbeddedCommand, argv, "embedded")
    from vlmsafe.embedded.build import BuildPlan, build

    build(
        command.directory,
        BuildPlan().scaled(command.scale),
        stages=command.stages,
        device=command.device,
        processes=command.processes,
        note=lambda text: _out.print(text, markup=False),
    )


_VERBS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "train": (_train, "train an agent, or continue a run with --resume"),
    "evaluate": (_evaluate, "evaluate a run's policy on held-out scenarios"),
    "runs": (_runs, "list runs: finished, running, stopped early"),
    "envs": (_envs, "list the environments"),
    "methods": (_methods, "list the methods, or compare two: methods diff A B"),
    "embedded": (_embedded, "make the embedded scorer anew: embedded build"),
    "doctor": (_doctor, "say what is installed and what is missing"),
}


def _print_help() -> None:
    _out.print("usage: vlmsafe COMMAND [OPTIONS]\n")
    _out.print("Train constrained-RL agents with vision-language signals, and audit whether they became safer.\n")
    for verb, (_, summary) in _VERBS.items():
        _out.print(f"  {verb:<10} {summary}")
    _out.print("\nvlmsafe COMMAND --help lists a command's options.")


def _parse(kind: type[Any], argv: list[str], verb: str, default: Any = tyro.MISSING) -> Any:
    extra = {} if default is tyro.MISSING else {"default": default}
    try:
        return tyro.cli(kind, args=argv, prog=f"vlmsafe {verb}", **extra)
    except SystemExit as exit_:
        raise SystemExit(EXIT_BAD_INPUT if exit_.code not in (0, None) else 0) from None


if __name__ == "__main__":
    main()
