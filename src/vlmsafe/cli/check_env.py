"""vlmsafe check-env: drive an environment, and say what training on it would meet."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from vlmsafe.cli.terminal import err, out, parse
from vlmsafe.errors import EXIT_ERRORS, EXIT_WARNINGS, InputError

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


@dataclass(frozen=True)
class CheckEnvCommand:
    """Check an environment: cost, spaces, end of episodes, seeds, rendering, speed. Exit code 4 for errors, 3 for
    warnings."""

    env: tyro.conf.Positional[str]
    """Environment: gym:<id>, gym:<module>:<id>, safety-gymnasium:<id>, each also with @<python>, or a name from
    `vlmsafe envs`."""
    steps: int = 2000
    """Steps to drive at most."""
    seconds: float = 20.0
    """Seconds to drive at most. A call that does not return within three times as many and 30 more ends the check."""


def check_env_verb(argv: list[str]) -> None:
    command = parse(CheckEnvCommand, argv, "check-env")
    from vlmsafe.envs.checking import check_environment
    from vlmsafe.envs.registry import env_spec

    for name, value in (("--steps", command.steps), ("--seconds", command.seconds)):
        if not value > 0:
            raise InputError(f"{name} is {value}; it must be greater than 0")
    findings = check_environment(env_spec(command.env), steps=command.steps, seconds=command.seconds)
    for finding in findings:
        if finding.details:
            err.print(finding.details.rstrip(), markup=False, soft_wrap=True)
    for finding in findings:
        out.print(f"[{_COLOURS[finding.level]}]{finding.level:<8}[/]{finding.part:<12}", end="")
        out.print(finding.text, markup=False, soft_wrap=True)
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning")}
    told = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count]
    out.print(
        f"{command.env}: {' and '.join(told) or 'nothing stands in the way of training'}", markup=False, soft_wrap=True
    )
    if told:
        raise SystemExit(EXIT_ERRORS if counts["error"] else EXIT_WARNINGS)
