"""Train cost-constrained RL agents with vision-language feedback, then audit whether they actually became safer.

The names below are the public API. Everything else in the package is internal and may change in any release. Each has
an example in its own help, such as `help(vlmsafe.train)`. Paths may be texts.

train            train a new run
resume           continue a run, or extend it
clone            make a run that imitates an environment's scripted driver
evaluate         evaluate a run's policy on scenarios that training never draws
trace            record evaluation episodes step by step, with the scores of scorers
verify           compute parts of a run again and compare them with its record
audit            say what a comparison of runs can and cannot show
report           write a report on runs: one HTML page, with tables and figures
export           write runs, evaluations and findings for other tools: CSV, MLflow, Weights & Biases
load_study       read and check a study file
run_study        train, evaluate and trace every run of a study
make_env         start an environment
drivers          the trained drivers that come with the package
Run              a run directory
TrainConfig      every setting of a run
Scorer           the base class of your own scorer
SemanticSignals  a Gymnasium wrapper that adds a signal to any environment
VlmsafeError     the base class of errors that a user can act on
__version__      the version of the package

>>> import vlmsafe
>>> run = vlmsafe.train(env="speeding", method="ppo-lag", total_steps=400, steps_per_epoch=200, quiet=True)
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
    from vlmsafe.cloning.clone import clone
    from vlmsafe.config.settings import TrainConfig
    from vlmsafe.envs.registry import make_env
    from vlmsafe.errors import VlmsafeError
    from vlmsafe.evaluation.evaluate import evaluate
    from vlmsafe.evaluation.trace.record import trace
    from vlmsafe.export.api import export
    from vlmsafe.runs.drivers import drivers
    from vlmsafe.runs.run import Run
    from vlmsafe.signals.scorers.api import Scorer
    from vlmsafe.studies.api import audit, load_study, report, run_study
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
    "export",
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
    "audit": "vlmsafe.studies.api",
    "clone": "vlmsafe.cloning.clone",
    "drivers": "vlmsafe.runs.drivers",
    "evaluate": "vlmsafe.evaluation.evaluate",
    "export": "vlmsafe.export.api",
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
    """Keeps `vlmsafe.audit`, `drivers`, `export` and `report` functions, although folders have these names.

    After it has loaded a subpackage, the import system binds it on its parent. That would hide the function. Import
    modules of these packages with `from vlmsafe.audit import findings`: `import vlmsafe.audit.findings as f` fails.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
