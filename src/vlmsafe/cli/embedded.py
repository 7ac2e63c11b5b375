"""vlmsafe embedded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vlmsafe.cli.terminal import out, parse


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
    plan: Path | None = None
    """YAML file with environments, agents and amounts, for environments of your own that have facts()."""
    wordings: Path | None = None
    """YAML file with the wordings of facts in your environments, and their prompts; laid over the shipped ones."""


def embedded_verb(argv: list[str]) -> None:
    if argv[:1] == ["distil"]:
        from vlmsafe.cli.distil import distil_verb

        return distil_verb(argv)
    command = parse(EmbeddedCommand, argv, "embedded")
    from vlmsafe.distillation.own import build_own

    build_own(
        command.directory,
        command.plan,
        command.wordings,
        scale=command.scale,
        stages=command.stages,
        device=command.device,
        processes=command.processes,
        note=lambda text: out.print(text, markup=False),
    )
