"""vlmsafe scope: episodes frame by frame, in one HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from vlmsafe.cli.terminal import err, out, parse


@dataclass(frozen=True)
class ScopeCommand:
    """Write a page that shows a trace's episodes frame by frame, with the signals and what each prompt scored.

    The trace must have been recorded with its frames: vlmsafe trace RUN --frames. The page is one file, works offline,
    and holds the frames themselves.
    """

    run: tyro.conf.Positional[Path]
    """Run directory, driver:<name>, or a trace (Parquet file)."""
    protocol: str | None = None
    """Trace to show, where the run has several; by default held-out, else the only one there is."""
    episodes: int = 10
    """How many of its episodes, from the first on."""
    out: Path | None = None
    """File to write; by default scope-<protocol>.html in the run directory."""


def scope_verb(argv: list[str]) -> None:
    command = parse(ScopeCommand, argv, "scope")
    from vlmsafe.audit.findings import counted
    from vlmsafe.report.scope import write_scope

    path, scope = write_scope(command.run, command.out, protocol=command.protocol, episodes=command.episodes)
    out.print(
        f"{counted(scope.episodes, 'episode')}, {scope.frames:,} frames, {counted(scope.onsets, 'onset')}, "
        f"{scope.size / 1e6:.1f} MB",
        markup=False,
    )
    out.print(f"scope: {path}", markup=False, soft_wrap=True)
    if scope.episodes < scope.recorded:
        left = scope.recorded_onsets - scope.onsets
        err.print(
            f"note: the trace has {scope.recorded} episodes; those left out have {counted(left, 'more onset')}. "
            f"--episodes {scope.recorded} shows all",
            markup=False,
            soft_wrap=True,
        )
