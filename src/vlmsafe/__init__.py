"""Train cost-constrained RL agents with vision-language feedback, then audit whether they actually became safer.

The names below are the public API. Everything else in the package is internal and may change in any release.

>>> import pathlib, tempfile, vlmsafe
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> run = vlmsafe.train(
...     env="speeding", method="ppo-lag", total_steps=2_000, steps_per_epoch=1_000, run_dir=folder / "run", quiet=True
... )
>>> vlmsafe.evaluate(run, episodes=5).select("episode", "cost").shape
(5, 2)
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib import metadata
from typing import TYPE_CHECKING, Any

from vlmsafe import kernels

if TYPE_CHECKING:
    from vlmsafe.audit.auditor import audit
    from vlmsafe.cloning.clone import clone
    from vlmsafe.config.settings import TrainConfig
    from vlmsafe.envs.registry import make_env
    from vlmsafe.errors import VlmsafeError
    from vlmsafe.evaluation.evaluate import evaluate
    from vlmsafe.evaluation.trace.record import trace
    from vlmsafe.runs.drivers import drivers
    from vlmsafe.runs.run import Run
    from vlmsafe.signals.scorers.api import Scorer
    from vlmsafe.studies.api import load_study, report, run_study
    from vlmsafe.training.start import resume, train
    from vlmsafe.verification.verify import verify
    from vlmsafe.wrapper import SemanticSignals

__all__ = [
    "Run",
    "Scorer",
    "SemanticSignals",
    "TrainConfig",
    "VlmsafeError",
    "__version__",
    "audit",
    "clone",
    "drivers",
    "evaluate",
    "load_study",
    "make_env",
    "report",
    "resume",
    "run_study",
    "trace",
    "train",
    "verify",
]

kernels.pin()  # first: it has no effect on libraries that are loaded already

try:
    __version__ = metadata.version("vlmsafe")
except metadata.PackageNotFoundError:  # imported from a source tree that was never installed
    __version__ = "unknown"

_MODULES = {
    "Run": "vlmsafe.runs.run",
    "Scorer": "vlmsafe.signals.scorers.api",
    "SemanticSignals": "vlmsafe.wrapper",
    "TrainConfig": "vlmsafe.config.settings",
    "VlmsafeError": "vlmsafe.errors",
    "audit": "vlmsafe.audit.auditor",
    "clone": "vlmsafe.cloning.clone",
    "drivers": "vlmsafe.runs.drivers",
    "evaluate": "vlmsafe.evaluation.evaluate",
    "load_study": "vlmsafe.studies.api",
    "make_env": "vlmsafe.envs.registry",
    "report": "vlmsafe.studies.api",
    "resume": "vlmsafe.training.start",
    "run_study": "vlmsafe.studies.api",
    "trace": "vlmsafe.evaluation.trace.record",
    "train": "vlmsafe.training.start",
    "verify": "vlmsafe.verification.verify",
}
"""The module of each public name. It is imported on first use, so that `import vlmsafe` loads no torch."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'vlmsafe' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(types.ModuleType):
    """Keeps `vlmsafe.audit`, `vlmsafe.drivers` and `vlmsafe.report` functions, although folders have these names.

    After it has loaded a subpackage, the import system binds it on its parent. That would hide the function. Import
    modules of these packages with `from vlmsafe.audit import findings`: `import vlmsafe.audit.findings as f` fails.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
