"""vlmsafe runs, envs, methods and doctor: what there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich import box
from rich.table import Table

from vlmsafe.cli.terminal import NARROW, NoOptions, PathText, err, listing, out, parse
from vlmsafe.config.methods import METHODS, OFF_POLICY_METHODS, differences, period_in_words
from vlmsafe.envs.registry import ENVS
from vlmsafe.errors import InputError, RunError


@dataclass(frozen=True)
class RunsCommand:
    """List runs and how far they came."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Folder to search."""


def runs_verb(argv: list[str]) -> None:
    command = parse(RunsCommand, argv, "runs")
    from vlmsafe.runs.run import find_runs
    from vlmsafe.runs.versions import other_worlds

    if not command.folder.is_dir():
        raise InputError(
            f"there is no folder {command.folder}; runs are written to runs/ unless --run-dir says otherwise"
        )
    runs, unreadable = find_runs(command.folder)
    problems = [*map(str, unreadable), *other_worlds(runs)]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("run")
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
        epochs = f"{run.epochs_done()}/{config.epochs}"
        if out.width < NARROW:
            out.print(PathText(run.path))
            line = f"{epochs} epochs, return {figure('env_return')}, cost {cost}"
            out.print(f"  {config.method} on {config.env}, seed {config.seed}: [{colours[status]}]{status}[/], {line}")
        table.add_row(
            PathText(run.path), config.method, config.env, str(config.seed), f"[{colours[status]}]{status}[/]",
            epochs, figure("env_return"), cost,
        )  # fmt: skip
    if not runs:
        out.print(f"no runs in {command.folder}")
    elif out.width >= NARROW:
        out.print(table)
    for problem in problems:
        err.print(f"note: {problem}", markup=False, soft_wrap=True)


def envs_verb(argv: list[str]) -> None:
    parse(NoOptions, argv, "envs")
    import importlib.util

    table = listing("environment", "what it is", "steps", "budget", "scenarios", "installed")
    commands: dict[str, list[str]] = {}
    variants: dict[tuple[str, str], list[str]] = {}
    for spec in ENVS.values():
        present = spec.package is None or importlib.util.find_spec(spec.package) is not None
        if not present:
            commands.setdefault(spec.install, []).append(spec.name)
        for name, variant in spec.variants.items():
            budget = "" if variant.budget is None else f"; budget {variant.budget:g}"
            variants.setdefault((name, variant.summary + budget), []).append(spec.name)
        table.add_row(
            spec.name, spec.summary, str(spec.horizon), f"{spec.budget:g}",
            f"{spec.training.start} to {spec.training.start + spec.training.size - 1}",
            "[green]yes[/]" if present else "[red]no[/]",
        )  # fmt: skip
    out.print(table)
    table = listing("variant", "of", "what differs")
    for (name, summary), names in variants.items():
        table.add_row(f":{name}", ", ".join(names), summary)
    out.print(table)
    out.print("A variant is <environment>:<variant>; several are joined by +, such as formula-one-l2:long+sighted.")
    out.print("gym:<id> is any registered Gymnasium environment that reports info\\['cost'].")
    out.print("safety-gymnasium:<id> is one of the original Safety-Gymnasium, whose frames show when there is a cost.")
    out.print("With @<python> they run in another interpreter. vlmsafe check-env NAME says what training would meet.")
    for command, names in commands.items():
        out.print(f"To install {', '.join(names)}:\n  {command}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class MethodsCommand:
    """List the methods, or say how two of them, or of the recipes, differ: vlmsafe methods diff A B."""

    action: tyro.conf.Positional[Literal["list", "diff"]] = "list"
    """list, or diff followed by two names."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """For diff: two methods or recipes (`vlmsafe train --config` lists the recipes)."""


_AUTO_GATE = (
    "An auto gate is prior-symmetric with CLIP, as in the paper, calibrated with embedded, and probability with "
    "qwen2-vl and openai; --signal.gate sets it."
)


def methods_verb(argv: list[str]) -> None:
    command = parse(MethodsCommand, argv, "methods")
    if command.action == "diff":
        if len(command.names) != 2:
            raise InputError(f"methods diff takes two names, got {len(command.names)}; for example ppo ppo-lag")
        _methods_diff(*command.names)
        return
    table = listing("method", "in the paper", "what it is", "made of")
    for method in (METHODS | OFF_POLICY_METHODS).values():
        table.add_row(method.name, method.paper, method.summary, method.composition())
    out.print(table)
    out.print(f"The paper's arms have CLIP where this says embedded: --scorer clip gives them. {_AUTO_GATE}")
    out.print("How often a frame is scored follows the paper where a method does not say; --signal.every sets it.")


def _methods_diff(one: str, other: str) -> None:
    changed = differences(one, other)
    if not changed:
        out.print(f"{one} and {other} have the same settings")
        return
    table = listing("setting", one, other)
    for key, (a, b) in changed.items():
        a, b = (period_in_words(value) if key == "signal.every" else value for value in (a, b))
        table.add_row(key, str(a), str(b))
    out.print(table)
    if "auto" in changed.get("signal.gate", ()):
        out.print(_AUTO_GATE)


def doctor_verb(argv: list[str]) -> None:
    parse(NoOptions, argv, "doctor")
    from vlmsafe.doctor import examine

    table = listing("part", "found", "enables")
    findings = examine()
    for finding in findings:
        table.add_row(
            finding.name, f"[green]{finding.version}[/]" if finding.present else "[red]missing[/]", finding.enables
        )
    out.print(table)
    # Commands stand below the table: one that is wrapped cannot be copied.
    for finding in findings:
        if not finding.present:
            out.print(f"To get {finding.name}:\n  {finding.install}", markup=False, soft_wrap=True)
    if any(finding.required and not finding.present for finding in findings):
        raise SystemExit(1)
