"""vlmsafe drivers: the trained drivers that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vlmsafe.cli.terminal import listing, out, parse
from vlmsafe.errors import InputError

if TYPE_CHECKING:
    from vlmsafe.runs.drivers import ShippedDriver


@dataclass(frozen=True)
class DriversCommand:
    """List the trained drivers that come with the package, or show the card of one: vlmsafe drivers NAME.

    evaluate, trace, scope, prompts bench and train --init-from take driver:<name> in place of a run.
    """

    name: tyro.conf.Positional[str | None] = None
    """Driver whose card is shown."""
    unpack: Path | None = None
    """Directory into which the driver is copied, as a run; by default results make a copy in runs/drivers/<name>."""


def drivers_verb(argv: list[str]) -> None:
    command = parse(DriversCommand, argv, "drivers")
    from vlmsafe.config.settings import DRIVER
    from vlmsafe.config.yaml import to_yaml
    from vlmsafe.runs.drivers import drivers, shipped_driver

    if command.name is None:
        if command.unpack is not None:
            raise InputError("--unpack needs a driver: vlmsafe drivers NAME --unpack DIR")
        _list(drivers())
        return
    chosen = shipped_driver(command.name.removeprefix(DRIVER))
    if command.unpack is not None:
        path = chosen.unpack(command.unpack).path
        out.print(f"unpacked: {path}", markup=False, soft_wrap=True)
        return
    out.print(to_yaml(chosen.card), markup=False, soft_wrap=True, end="")
    out.print(f"picture: {chosen.picture}", markup=False, soft_wrap=True)


def _list(known: dict[str, ShippedDriver]) -> None:
    table = listing("driver", "world", "method", "steps", "success", "cost", "size")
    for column in table.columns[3:]:
        column.justify = "right"
    for name, driver in known.items():
        card = driver.card
        figures = card["held_out"]["figures"]
        table.add_row(
            name, card["env"]["name"], card["method"], f"{card['steps']:,}", success(figures),
            f"{figures['cost']['mean']:.2f}", f"{driver.size / 1000:,.0f} kB",
        )  # fmt: skip
    out.print(table)
    out.print(
        "Success and cost are means of deterministic episodes on held-out scenarios. vlmsafe drivers NAME shows how a "
        "driver was made and chosen; vlmsafe evaluate driver:NAME evaluates it.",
        soft_wrap=True,
    )


def success(figures: dict[str, dict[str, float]]) -> str:
    """The held-out success of a card in a few words: stages, who arrives, or the first figure of the task.

    >>> success({"arrived": {"mean": 0.98}, "arrived_without_cost": {"mean": 0.9}, "cost": {"mean": 0.2}})
    '98 % arrive, 90 % at no cost'
    >>> success({"cost": {"mean": 0.2}, "env_return": {"mean": 9.0}, "length": {"mean": 500.0}, "goals": {"mean": 3.1}})
    '3.1 goals'
    >>> success({"arrived": {"mean": 0.0}, "arrived_without_cost": {"mean": 0.0}, "stages": {"mean": 3.96}})
    '4.0 stages'
    """
    if "stages" in figures:  # arriving takes all of them
        return f"{figures['stages']['mean']:.1f} stages"
    if "arrived" in figures:
        arrived, clean = (100 * figures[name]["mean"] for name in ("arrived", "arrived_without_cost"))
        return f"{arrived:.0f} % arrive, {clean:.0f} % at no cost"
    own = next((name for name in figures if name not in ("cost", "violation", "env_return", "length")), "env_return")
    return f"{figures[own]['mean']:.1f} {own.removeprefix('env_').replace('_', ' ')}"
