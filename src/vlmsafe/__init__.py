"""Train constrained-RL agents with vision-language signals, and audit whether the signal made them safer.

from vlmsafe import train, evaluate

run = train(env="metadrive-easy", method="ppo-lag", seed=42, total_steps=200_000, num_envs=2)
table = evaluate(run, "held-out")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmsafe.config.settings import TrainConfig
    from vlmsafe.evaluation.evaluate import evaluate
    from vlmsafe.runs.run import Run
    from vlmsafe.training.trainer import resume, train

__all__ = ["Run", "TrainConfig", "evaluate", "resume", "train"]

_HOME = {
    "train": "vlmsafe.training.trainer",
    "resume": "vlmsafe.training.trainer",
    "evaluate": "vlmsafe.evaluation.evaluate",
    "Run": "vlmsafe.runs.run",
    "TrainConfig": "vlmsafe.config.settings",
}


def __getattr__(name: str) -> Any:
    """Import on first use: worker processes import this package too and must not load torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'vlmsafe' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
