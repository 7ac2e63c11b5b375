"""vlmsafe prompts: what there is, and which to choose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich import box
from rich.table import Table
from rich.text import Text

from vlmsafe.cli.terminal import err, listing, out, parse
from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions

if TYPE_CHECKING:
    from vlmsafe.evaluation.trace.prompt_trial import Trial

Several = Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], tyro.conf.arg(metavar="NAME ...")]


@dataclass(frozen=True)
class PromptsCommand:
    """List the prompt sets, show one, or compare several on recorded frames: prompts bench RUN --prompts A B.

    bench scores the frames of a trace (vlmsafe trace RUN --frames) with every scorer and every prompt set, and prints
    how well each knows contact, whether it warns of it, and where its margins lie.
    """

    action: tyro.conf.Positional[Literal["list", "show", "bench"]] = "list"
    """list; show, followed by a prompt set's name or file; or bench, followed by runs or traces."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """For show: one name or file. For bench: run directories, driver:<name>, or traces (Parquet files), pooled."""
    prompts: Several = field(default_factory=tuple)
    """bench: prompt sets to compare, by name or file; by default those that the trace was recorded with."""
    scorer: Several = field(default_factory=tuple)
    """bench: scorers to compare; by default those that the trace was recorded with."""
    protocol: str | None = None
    """bench: trace to read, where a run has several."""
    each_prompt: bool = False
    """bench: also print what each prompt does by itself."""
    resamples: int = 2000
    """bench: resamples of episodes behind each interval."""
    seed: int = 0
    """bench: seed of the resamples."""
    scorer_device: str = "auto"
    """bench: where the model runs: cpu, cuda, ...; 'auto' takes a GPU where there is one."""
    batch: int | None = None
    """bench: frames scored at a time; by default the scorer's own number."""
    scorer_frames: int | None = None
    """bench: frames that a scorer which takes any number gets at a time; by default as in the trace, or one."""
    frame_distance: int | None = None
    """bench: steps between two of these frames; by default as in the trace, or 4."""
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    json: bool = False
    """bench: print JSON for programs instead of tables."""
    out: Path | None = None
    """bench: folder for every table as CSV."""


def prompts_verb(argv: list[str]) -> None:
    command = parse(PromptsCommand, argv, "prompts")
    if command.action == "bench":
        _bench(command)
        return
    if command != PromptsCommand(command.action, command.names):
        raise InputError(f"prompts {command.action} takes no options; they belong to: vlmsafe prompts bench")
    if command.action == "list":
        if command.names:
            raise InputError(f"prompts list takes nothing, got '{command.names[0]}'; did you mean: prompts show?")
        _list()
    else:
        if len(command.names) != 1:
            raise InputError(
                f"prompts show takes one name or file, got {len(command.names)}; vlmsafe prompts lists them"
            )
        _show(command.names[0])


def _list() -> None:
    from vlmsafe.envs.registry import ENVS
    from vlmsafe.signals.prompts import load_prompts, shipped_prompts

    table = listing("prompt set", "positive", "negative", "begins with", "default of")
    for name in shipped_prompts():
        prompts = load_prompts(name)
        owners = [spec.name for spec in ENVS.values() if spec.prompts == name]
        positive, negative = prompts.sizes
        table.add_row(name, str(positive), str(negative), prompts.positive[0], ", ".join(owners) or "-")
    out.print(table)
    out.print("A YAML file with a positive and a negative list is used in the same way.")


def _show(name: str) -> None:
    from vlmsafe.signals.prompts import load_prompts

    prompts = load_prompts(name)
    groups = (
        ("positive", prompts.positive, prompts.positive_description),
        ("negative", prompts.negative, prompts.negative_description),
    )
    for group, texts, description in groups:
        out.print(f"{group}:", markup=False)
        for text in texts:
            out.print(f"  - {text}", markup=False, soft_wrap=True)
        asked = f"is asked about: {description}" if description else "cannot be asked: there is no description"
        out.print(f"  (a model that answers yes or no {asked})", markup=False, soft_wrap=True)


def _bench(command: PromptsCommand) -> None:
    from rich.progress import Progress

    from vlmsafe.evaluation.trace.prompt_trial import compare, open_traces

    if not command.names:
        raise InputError("prompts bench needs a run directory or a trace; vlmsafe trace RUN --frames records one")
    traces = open_traces([Path(name) for name in command.names], command.protocol)
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task("frames", total=None)
        trial = compare(
            traces,
            [name for names in command.prompts for name in names],
            [name for names in command.scorer for name in names],
            device=command.scorer_device,
            batch=command.batch,
            scorer_frames=command.scorer_frames,
            frame_distance=command.frame_distance,
            endpoint=command.endpoint,
            resamples=command.resamples,
            seed=command.seed,
            on_frames=lambda done, total: progress.update(task, completed=done, total=total),
        )
    tables = trial.bench.tables()
    if command.out is not None:
        from vlmsafe.io.disk import make_directory
        from vlmsafe.io.files import write_atomically

        make_directory(command.out)
        for name, table in tables.items():
            write_atomically(command.out / f"{name}.csv", table.write_csv().encode())
    if command.json:
        plain = {name: table.to_dicts() for name, table in tables.items()}
        out.print(
            json.dumps({**trial.counts(), "notes": list(trial.notes), **plain}, indent=2, ensure_ascii=False),
            markup=False,
            soft_wrap=True,
        )
    else:
        for part in _rendered(trial, command.each_prompt):
            out.print(part)
    for note in trial.notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)


def _rendered(trial: Trial, each_prompt: bool) -> Iterator[Table | Text]:
    from vlmsafe.audit.findings import counted

    bench = trial.bench
    yield Text(
        f"{trial.title}: {counted(bench.episodes, 'episode')}, {bench.frames:,} frames, "
        f"{bench.contacts:,} of them in contact, "
        f"{bench.onsets} {'onset' if bench.onsets == 1 else 'onsets'}"
    )
    yield _aucs(trial)
    yield _margins(trial)
    if len(bench.differences):
        yield _differences(trial)
    if each_prompt:
        yield _prompts(trial)
    yield Text(
        "Criterion, fixed in advance: c_vlm standardised, at K = 20 or 40, an AUC of at least 0.60, its interval above "
        "0.5, and above the step index, with contact in enough episodes that 95 % of the resamples have "
        "some (too few contacts where only that fails). The best of several looks better than it is: judge it on other "
        "scenarios."
    )


def _aucs(trial: Trial) -> Table:
    from vlmsafe.analysis.anticipation import CONTROL
    from vlmsafe.analysis.prompt_bench import HAZARD

    shown = (20, 40)
    table = _table(
        "AUC: contact in the same step; contact within K steps (standardised)",
        ("", "signal", "in contact", *(f"K = {k}" for k in shown), "criterion"),
        names=2,
    )
    titles = {CONTROL: "step index", HAZARD: "simulator's hazard"}
    for (name,), own in trial.bench.aucs.group_by("candidate", maintain_order=True):
        table.add_section()
        for place, ((signal,), rows) in enumerate(own.group_by("signal", maintain_order=True)):
            by = {row["horizon"]: row for row in rows.iter_rows(named=True)}
            verdict = (by[None]["criterion"] or "") if signal == "c_vlm" else ""
            who = titles.get(str(name), str(name)) if place == 0 else ""
            cells = [_interval(by[k], "auc", 3) for k in (None, *shown)]
            table.add_row(who, "" if name in titles else str(signal), *cells, verdict)
    return table


def _margins(trial: Trial) -> Table:
    table = _table(
        "Margins u+ - u-, the gate that a run with the scorer would have, and how c_vlm varies",
        ("", "25 %", "median", "75 %", "> 0", "in\ncontact", "without", "gate", "median\nkappa", "kappa\n> 0.9",
         "mean\nc_vlm", "its std", "within\nepisodes"),
        names=1,
    )  # fmt: skip
    for row in trial.bench.margins.iter_rows(named=True):
        table.add_row(
            row["candidate"],
            *(_number(row[f"margin_{name}"], 4) for name in ("q25", "median", "q75")),
            _percent(row["positive_margins"]),
            *(_number(row[name], 4) for name in ("contact_margin", "free_margin")),
            row["gate"],
            _number(row["kappa_median"], 2),
            _percent(row["kappa_open"]),
            *(_number(row[name], 4) for name in ("c_vlm_mean", "c_vlm_std", "c_vlm_within")),
        )
    return table


def _differences(trial: Trial) -> Table:
    from vlmsafe.analysis.prompt_bench import DIFFERENCE_HORIZON

    first = trial.bench.margins["candidate"][0]
    table = _table(f"AUC less that of {first}", ("", "signal", "in contact", f"K = {DIFFERENCE_HORIZON}"), names=2)
    for (name,), own in trial.bench.differences.group_by("candidate", maintain_order=True):
        table.add_section()
        for place, ((signal,), rows) in enumerate(own.group_by("signal", maintain_order=True)):
            by = {row["horizon"]: row for row in rows.iter_rows(named=True)}
            cells = [_interval(by[k], "difference", 3, sign="+") for k in (None, DIFFERENCE_HORIZON)]
            table.add_row(str(name) if place == 0 else "", str(signal), *cells)
    return table


def _prompts(trial: Trial) -> Table:
    table = _table(
        "Prompt by prompt, turned towards danger: a positive prompt's similarity counts in reverse",
        ("", "prompt", "mean", "std", "in contact", "K = 20"),
        names=2,
    )
    for (name, group), own in trial.bench.prompts.group_by("candidate", "group", maintain_order=True):
        if group == "positive":
            table.add_section()
        for place, row in enumerate(own.iter_rows(named=True)):
            who = (str(name) if group == "positive" else "") if place == 0 else ""
            cells = (
                _interval({key: row[f"{what}_{key}"] for key in ("auc", "low", "high")}, "auc", 3)
                for what in ("contact", "ahead")
            )
            text = f"{'+' if group == 'positive' else '-'} {row['prompt']}"
            table.add_row(who, Text(text), f"{row['mean']:.4f}", f"{row['std']:.4f}", *cells)
    return table


def _table(title: str, headings: Sequence[str], names: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", padding=(0, 1))
    for place, heading in enumerate(headings):
        table.add_column(
            Text(heading), justify="left" if place < names else "right", overflow="fold", no_wrap=place >= names
        )
    return table


def _interval(row: dict[str, Any], name: str, digits: int, sign: str = "") -> str:
    if row[name] is None:
        return "-"
    ends = "" if row["low"] is None else f" [{row['low']:{sign}.2f}, {row['high']:{sign}.2f}]"
    return f"{row[name]:{sign}.{digits}f}{ends}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
