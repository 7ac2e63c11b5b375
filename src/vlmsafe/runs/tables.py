"""Finding a table among those of a run: of its evaluations, or of its traces."""

from __future__ import annotations

from pathlib import Path

from vlmsafe.errors import InputError

DEFAULT_PROTOCOL = "held-out"


def tables_in(folder: Path) -> dict[str, Path]:
    """The tables in a run's `evaluations` or `traces`, by name; the pictures of a trace lie beside it, and are none."""
    return {path.stem: path for path in sorted(folder.glob("*.parquet")) if not path.stem.endswith("-frames")}


def find_table(folder: Path, protocol: str | None) -> Path | None:
    """`<protocol>.parquet`; without a name that of held-out, else the only one in the folder. None without any."""
    present = tables_in(folder)
    if protocol is not None or DEFAULT_PROTOCOL in present:
        return present.get(protocol or DEFAULT_PROTOCOL)
    if len(present) > 1:
        raise InputError(
            f"{folder} has no {DEFAULT_PROTOCOL} table but several others; choose with --protocol: {', '.join(present)}"
        )
    return next(iter(present.values()), None)


def protocol_option(protocol: str | None) -> str:
    """What a command says to get this protocol."""
    return "" if protocol in (None, DEFAULT_PROTOCOL) else f" --protocol {protocol}"
