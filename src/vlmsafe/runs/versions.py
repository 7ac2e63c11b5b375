"""Which code computed a run: the versions of this package and of the environment, and the user's own source.

A run records them under `recorded` in config.yaml when it starts, and again in its events each time it is resumed.
Runs are equal only if the same code computed them, because a release may change what a configuration computes. Another
version of the environment is another world: a run cannot be continued there, and results of two worlds are not compared
without a finding. An environment or a scorer of the user's has a hash of its source instead of a version
(`vlmsafe.io.source`). A run continues with changed source only if the user accepts it, and is never copied then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlmsafe import kernels
from vlmsafe.config.settings import TrainConfig
from vlmsafe.errors import RunError
from vlmsafe.io.source import SourceHash
from vlmsafe.runs.surroundings import package_versions
from vlmsafe.signals.gate import gate_source
from vlmsafe.signals.scorers.registry import scorer_source

if TYPE_CHECKING:
    from vlmsafe.runs.run import Run

FIRST_WORLD = 1
"""The version of environments in which runs were trained that record none: they are older than the second versions."""


@dataclass(frozen=True)
class Code:
    """The versions that computed a run, or a part of it."""

    package: str | None
    """Of vlmsafe; None where none was recorded."""
    environment: int | None
    """None where none was recorded, or where the environment has none (`gym:`)."""
    source: Mapping[str, SourceHash] = field(default_factory=dict)
    """Of the user's own environment, scorer and gate, under `environment`, `scorer` and `gate`."""

    @classmethod
    def now(cls, config: TrainConfig) -> Code:
        """The code that is installed and in the user's files now."""
        return cls(package_versions().get("vlmsafe"), config.spec.version, user_source(config))

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Code:
        """From `recorded` in config.yaml, or from an event of a resumed run."""
        packages, environment = record.get("packages"), record.get("env_version")
        package = packages.get("vlmsafe") if isinstance(packages, dict) else None
        return cls(package, environment if isinstance(environment, int) else None, recorded_source(record))

    def unlike(self, now: Code, env: str) -> str | None:
        """In one clause, why results of this code may differ from those of `now`; None where they are equal."""
        if self.package is None:
            return "it does not record which version of vlmsafe computed it"
        if self.package != now.package:
            return f"it was computed by vlmsafe {self.package}, and this is vlmsafe {now.package}"
        if now.environment is not None and self.environment != now.environment:
            if self.environment is None:
                return f"it does not record which version of {env} it was computed with"
            return f"it was computed with version {self.environment} of {env}, and this is version {now.environment}"
        return other_source(self.source, now.source) or unknown_source(self.source, now.source)


def user_source(config: TrainConfig) -> dict[str, SourceHash]:
    """The present source of the user's own environment, scorer and gate; empty if a run has none of them."""
    signal = config.signal
    gate = None if signal.scorer == "none" else gate_source(signal.gate)
    found = {"environment": config.spec.source_hash(), "scorer": scorer_source(signal.scorer), "gate": gate}
    return {part: source for part, source in found.items() if source is not None}


def recorded_source(record: Mapping[str, Any]) -> dict[str, SourceHash]:
    """What `user_source` found when a run began, or was resumed; empty if the run recorded none."""
    found = record.get("source")
    parts = found if isinstance(found, dict) else {}
    return {part: SourceHash.from_dict(one) for part, one in parts.items() if isinstance(one, dict)}


def other_source(then: Mapping[str, SourceHash], now: Mapping[str, SourceHash]) -> str | None:
    """In one clause, which source changed; None if none did, as far as it is known."""
    for part, source in now.items():
        before = then.get(part)
        if before is None or before.unknown:
            continue
        if source.unknown:
            return f"the source of its {part} cannot be compared: {source.unknown}"
        if changes := before.changes(source):
            return f"the source of its {part} has changed: {changes}"
    return None


def unknown_source(then: Mapping[str, SourceHash], now: Mapping[str, SourceHash]) -> str | None:
    """In one clause, which source was not known when a run was computed, or is not known now; None if all was."""
    for part, source in now.items():
        before = then.get(part)
        if before is None:
            return f"it does not record the source of its {part}"
        if unknown := before.unknown or source.unknown:
            return f"the source of its {part} is not known: {unknown}"
    return None


def code_of(run: Run) -> list[Code]:
    """The code that started a run, then the code that resumed it each time."""
    return [Code.recorded(record) for record in _records(run)]


def kernels_of(run: Run) -> str:
    """The kernels that computed a run last."""
    return str(_records(run)[-1].get("kernels", kernels.UNRECORDED))


def _records(run: Run) -> list[dict[str, Any]]:
    """What was recorded when the run began, and each time it was resumed."""
    return [run.recorded(), *(event for event in run.events() if event.get("event") == "resumed")]


def other_code(run: Run, wanted: TrainConfig | None = None) -> str | None:
    """Why a run's results may differ from what the present code would compute; None where they may not.

    The present code is that behind the settings `wanted`, by default the run's own: equal settings may name another
    interpreter for the environment.
    """
    now = Code.now(wanted or run.config)
    return next((why for code in code_of(run) if (why := code.unlike(now, run.config.env))), None)


def changed_source(run: Run, now: Mapping[str, SourceHash]) -> str | None:
    """In one clause, which of the user's source changed since a run was last computed; None if none did."""
    try:
        last = _records(run)[-1]
    except RunError:
        last = run.recorded()  # the journal is damaged; what the run began with is known
    return other_source(recorded_source(last), now)


def world_of(record: Mapping[str, Any]) -> int:
    """The version of the environment that a run was trained in, from `recorded` in its config.yaml."""
    version = Code.recorded(record).environment
    return FIRST_WORLD if version is None else version


def other_world(run: Run) -> str | None:
    """In one clause, that a run was trained in another world than the present one; None if it was not."""
    spec, world = run.config.spec, world_of(run.recorded())
    if spec.version is None or spec.version == world:
        return None
    name = spec.formerly.get(world)
    still = f" (that world is {name} now)" if name else ""
    return f"it was trained in version {world} of {spec.name}{still}, and this is version {spec.version}, another world"


def other_worlds(runs: Iterable[Run]) -> Iterator[str]:
    """One line for each environment and version of which runs are not of the present world."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if why := other_world(run):
            found.setdefault(why, []).append(run)
    for why, those in found.items():
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        yield f"{those[0].path}{more}: {why}"
