"""Which code computed a run: the versions of this package and of the environment.

A run records both under `recorded` in config.yaml when it starts, and again in its events each time it is resumed.
Runs are equal only if the same code computed them, because a release may change what a configuration computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlmsafe import kernels
from vlmsafe.runs.surroundings import package_versions

if TYPE_CHECKING:
    from vlmsafe.envs.api import EnvSpec
    from vlmsafe.runs.run import Run


@dataclass(frozen=True)
class Code:
    """The versions that computed a run, or a part of it."""

    package: str | None
    """Of vlmsafe; None where none was recorded."""
    environment: int | None
    """None where none was recorded, or where the environment has none (`gym:`)."""

    @classmethod
    def now(cls, spec: EnvSpec) -> Code:
        """The code that is running."""
        return cls(package_versions().get("vlmsafe"), spec.version)

    @classmethod
    def recorded(cls, record: dict[str, Any]) -> Code:
        """From `recorded` in config.yaml, or from an event of a resumed run."""
        packages, environment = record.get("packages"), record.get("env_version")
        package = packages.get("vlmsafe") if isinstance(packages, dict) else None
        return cls(package, environment if isinstance(environment, int) else None)

    def unlike(self, now: Code, env: str) -> str | None:
        """In one clause, why results of this code may differ from those of `now`; None where they are equal."""
        if self.package is None:
            return "it does not record which version of vlmsafe computed it"
        if self.package != now.package:
            return f"it was computed by vlmsafe {self.package}, and this is vlmsafe {now.package}"
        if now.environment is None or self.environment == now.environment:
            return None
        if self.environment is None:
            return f"it does not record which version of {env} it was computed with"
        return f"it was computed with version {self.environment} of {env}, and this is version {now.environment}"


def code_of(run: Run) -> list[Code]:
    """The code that started a run, then the code that resumed it each time."""
    return [Code.recorded(record) for record in _records(run)]


def kernels_of(run: Run) -> str:
    """The kernels that computed a run last."""
    return str(_records(run)[-1].get("kernels", kernels.UNRECORDED))


def _records(run: Run) -> list[dict[str, Any]]:
    """What was recorded when the run began, and each time it was resumed."""
    return [run.recorded(), *(event for event in run.events() if event.get("event") == "resumed")]


def other_code(run: Run) -> str | None:
    """Why a run's results may differ from what the present code would compute; None where they may not."""
    now = Code.now(run.config.spec)
    return next((why for code in code_of(run) if (why := code.unlike(now, run.config.env))), None)
