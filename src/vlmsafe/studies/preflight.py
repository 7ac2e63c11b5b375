"""What would stop a run of a study later, looked up before anything is trained.

Prompts, scorers, environments, warm starts, protocols and folders are looked up once each. This happens in a child
process, because it imports the user's code and libraries of models, which a process that only starts others should not
hold.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmsafe import kernels
from vlmsafe.config.settings import SignalConfig, TrainConfig
from vlmsafe.errors import InputError, RunError, VlmsafeError
from vlmsafe.evaluation.gated_scorers import default_scorers
from vlmsafe.io.child import call_in_child
from vlmsafe.io.interrupts import StopRequest
from vlmsafe.runs.warm_start import read_start
from vlmsafe.signals.gate import FITTED, load_gate
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.api import InputKind, Rule
from vlmsafe.signals.scorers.make import look_up_scorer
from vlmsafe.signals.scorers.registry import NO_SCORER, kind_of
from vlmsafe.studies.progress import run_progress
from vlmsafe.studies.scorer.shared import shares
from vlmsafe.studies.study import RunSpec, Study
from vlmsafe.training.display import check_display
from vlmsafe.training.setup import check_rule, describe

_NOT_OF_ENVIRONMENT: dict[str, Any] = {
    "method": "", "seed": 0, "run_dir": None, "init_from": None, "budget": None, "signal": None, "multiplier": None,
}  # fmt: skip


def require_ready(study: Study, specs: Sequence[RunSpec], *, elsewhere: bool = False) -> None:
    """Raise an InputError if something that a study asks for could not be made."""
    found = preflight(study, specs, elsewhere=elsewhere)
    if found:
        more = f" (and {len(found) - 1} more; vlmsafe study plan lists them)" if len(found) > 1 else ""
        raise InputError(f"nothing was started: {found[0]}{more}")


def preflight(study: Study, specs: Sequence[RunSpec], *, elsewhere: bool = False) -> list[str]:
    """One sentence for each problem of a study and of its runs that are not complete, with the runs that have it.

    `elsewhere` is for runs on other machines: their environments and scorers are not looked up here.
    """
    missing = [spec for spec in specs if not _complete(spec)]
    if not missing:
        return study.undefined
    try:
        found: list[str] = call_in_child(kernels.in_effect(), _problems, missing, elsewhere)
    except RunError as error:
        raise InputError(f"looking up what the runs need ended the process that did it: {error}") from None
    return [*study.undefined, *found]


def _complete(spec: RunSpec) -> bool:
    seen = run_progress(spec)
    there = (seen.status, seen.evaluations, seen.traces)
    return there == ("trained", len(spec.evaluations), len(spec.traces))


def _problems(specs: Sequence[RunSpec], elsewhere: bool) -> list[str]:
    """Runs in the child process."""
    lookups = _Lookups()
    cells: dict[str, dict[str, None]] = {}
    for spec in specs:
        for problem in lookups.problems(spec, elsewhere):
            cells.setdefault(problem, {})[f"'{spec.arm}' on {spec.env}"] = None
    found = []
    for problem, own in cells.items():
        names = list(own)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        found.append(f"{problem} (needed by {names[0]}{more})")
    return found


class _Lookups:
    """Looks up what runs need, each thing once."""

    def __init__(self) -> None:
        self._problem: dict[tuple[str, ...], str | None] = {}
        self._scorer: dict[tuple[str, str | None], tuple[InputKind | None, tuple[Rule, ...] | None]] = {}

    def problems(self, spec: RunSpec, elsewhere: bool) -> Iterator[str]:
        config = spec.config
        looks: list[InputKind] = ["nothing"]
        steps: list[Callable[[], str | None]] = [
            lambda: _folder_problem(spec.path),
            lambda: _error_of(lambda: read_start(config)),
            lambda: _error_of(lambda: check_display(config)),
        ]
        for name, prompts, own in _scorers(spec):
            steps.append(functools.partial(self._scorer_problem, config, name, prompts, own, elsewhere, looks))
        if not elsewhere:
            steps.append(functools.partial(self._gate_problem, config.signal))
            steps.append(lambda: next(filter(None, (self._env_problem(config, look) for look in looks)), None))
        for step in steps:
            if problem := step():
                yield problem

    def _once(self, key: tuple[str, ...], look: Callable[[], object]) -> str | None:
        if key not in self._problem:
            self._problem[key] = _error_of(look)
        return self._problem[key]

    def _scorer_problem(
        self, config: TrainConfig, name: str, prompts: str | None, own: bool, elsewhere: bool, looks: list[InputKind]
    ) -> str | None:
        """What is wrong with a scorer or its prompts; what the scorer looks at is added to `looks`."""
        if prompts is not None and (problem := self._once(("prompts", prompts), lambda: load_prompts(prompts))):
            return problem
        if elsewhere or (config.signal.service and shares(name)):
            return None

        def look_up() -> None:
            loaded = None if prompts is None else load_prompts(prompts)
            self._scorer[name, prompts] = look_up_scorer(name, loaded, config.signal.endpoint)

        if problem := self._once(("scorer", name, prompts or ""), look_up):
            return problem
        look, rules = self._scorer[name, prompts]
        looks += [look] if look is not None and look not in looks else []
        return _error_of(lambda: check_rule(config, rules)) if own and rules is not None else None

    def _gate_problem(self, signal: SignalConfig) -> str | None:
        """What is wrong with a gate of the user's."""
        if signal.scorer == NO_SCORER or signal.gate in FITTED:
            return None
        return self._once(("gate", signal.gate), lambda: load_gate(signal.gate))

    def _env_problem(self, config: TrainConfig, look: InputKind) -> str | None:
        """Whether the environment is installed; a user's own one is also made, and asked for what a scorer sees.

        It is made once for all runs that differ only in settings which it cannot depend on: `describe` also checks
        others against its sizes.
        """
        spec = config.spec
        if spec.version is not None:  # one of this package
            return self._once(("env", config.env), spec.require)
        key = ("env", look, repr(replace(config, **_NOT_OF_ENVIRONMENT)))
        return self._once(key, lambda: describe(config, look, StopRequest()))


def _scorers(spec: RunSpec) -> Iterator[tuple[str, str | None, bool]]:
    """The scorers of a run and of its traces: name, prompts, and whether it is the run's own."""
    signal = spec.config.signal
    if signal.scorer != NO_SCORER:
        yield signal.scorer, signal.prompts, True
    for request in spec.traces:
        for name in request.scorers or default_scorers(spec.config, request.prompts):
            taken = kind_of(name).takes_prompts
            yield name, (request.prompts or signal.prompts or spec.config.spec.prompts) if taken else None, False


def _error_of(look: Callable[[], object]) -> str | None:
    try:
        look()
    except VlmsafeError as error:
        return str(error)
    return None


def _folder_problem(path: Path) -> str | None:
    """Why a run's directory cannot be made."""
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        return f"{there} is a file, and the run's directory would be in it; choose another --root"
    if not os.access(there, os.W_OK):
        return f"{there} cannot be written: permission denied; choose another --root"
    return None
