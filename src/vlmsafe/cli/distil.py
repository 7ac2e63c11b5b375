"""vlmsafe embedded distil."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.signals.scorers.endpoint.options import EndpointOptions


@dataclass(frozen=True)
class DistilCommand:
    """Distil a scorer of your own: record frames, have a teacher score them once, train a small model on its scores.

    The model goes to weights.safetensors in the directory, for --scorer embedded:<file>, and its card to card.md. What
    the directory holds already is kept, so an interrupted distillation continues with the same command.
    """

    verb: tyro.conf.Positional[Literal["distil"]]
    runs: tyro.conf.Positional[tuple[str, ...]]
    """Whose frames: run directories, driver:<name>, or the name of an environment for random actions."""
    teacher: str
    """Any scorer of frames, such as clip, clip:<folder> or python:<module>:<name>; or oracle, the simulator's own
    hazard."""
    prompts: str | None = None
    """Prompt set: a shipped name or a YAML file; by default the runs' own, or their environment's."""
    directory: Annotated[Path, tyro.conf.arg(aliases=("--dir",))] = Path("distilled")
    """Where everything goes."""
    episodes: int = 120
    """Episodes that are recorded on training scenarios, per environment."""
    held_out_episodes: int = 40
    """Whole episodes that are recorded on held-out scenarios, per environment, to measure the model."""
    longest: int = 1000
    """Steps after which a recorded episode is cut."""
    steps: int = 2000
    """Steps of training the model."""
    stacks: int = 64
    """Frame stacks in each of them."""
    size: int = 128
    """Pixels of the model's square views, a multiple of 32; fewer are faster and show less."""
    mirror: bool = False
    """Also learn mirrored frames, for a teacher to whom left and right are the same."""
    pooled: bool = False
    """Also look for the same things anywhere in the frame, for cameras that do not move with the car."""
    cost_within: int | None = None
    """Also learn whether a cost comes within so many steps; the model then knows it as 'cost within K steps'."""
    seed: int = 0
    """Seed of everything random."""
    resamples: int = 2000
    """Resamples of episodes behind each interval on the card."""
    device: str = "auto"
    """Where teacher and model run: cpu, cuda, ...; 'auto' takes a GPU where there is one."""
    batch: int | None = None
    """Frames that the teacher scores at a time; by default its own number."""
    processes: int = 2
    """Simulators at a time; the result does not depend on it."""
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)


def distil_verb(argv: list[str]) -> None:
    command = parse(DistilCommand, argv, "embedded")
    from vlmsafe.distillation.distil import distil
    from vlmsafe.distillation.distil_plan import DistilPlan

    plan = DistilPlan(
        episodes=command.episodes, held_out_episodes=command.held_out_episodes, longest=command.longest,
        steps=command.steps, stacks=command.stacks, size=command.size, mirror=command.mirror,
        pooled=command.pooled, cost_within=command.cost_within, seed=command.seed, resamples=command.resamples,
    )  # fmt: skip
    weights = distil(
        command.runs, command.teacher, command.directory, prompts=command.prompts, plan=plan, device=command.device,
        batch=command.batch, endpoint=command.endpoint, processes=command.processes,
        command=f"vlmsafe embedded {shlex.join(argv)}",
        note=lambda text: err.print(text, markup=False, soft_wrap=True),
    )  # fmt: skip
    out.print(f"finished: {weights}", markup=False, soft_wrap=True)
    out.print(f"its card: {weights.with_name('card.md')}", markup=False, soft_wrap=True)
    out.print(f"use it with: --scorer embedded:{shlex.quote(str(weights))}", markup=False, soft_wrap=True)
