"""A small trace with frames, as `vlmsafe trace --frames` leaves it on disk, made up in a moment."""

from pathlib import Path

import numpy as np
import polars as pl

from vlmsafe.config.settings import TrainConfig
from vlmsafe.io.images import encode
from vlmsafe.runs.run import Run
from vlmsafe.runs.traces import write_trace
from vlmsafe.signals.gate import Gate

CONTACTS = {0: (10, 11, 18), 1: (), 2: (6,)}
"""Steps with cost, by episode."""
LENGTH = 24
PROMPTS = (("positive", "the car is safe"), ("negative", "danger <script>alert(1)</script> & more"))
SIZE = 32


def frame(episode: int, step: int) -> np.ndarray:
    """A picture that no other step has, in colours that survive the rounding."""
    picture = np.full((SIZE, SIZE, 3), 240, np.uint8)
    picture[:, step : step + 4] = (16 * (step % 16), 16 * episode, 160)
    return picture


def make_run(folder: Path) -> Run:
    """A run directory, as far as it is needed to have a trace."""
    folder.mkdir(parents=True, exist_ok=True)
    return Run.create(TrainConfig(env="braking", method="ppo-lag", run_dir=folder).resolved())


def write_recorded(
    folder: Path, protocol: str = "held-out", *, every: int = 2, frames: bool = True, scorers: tuple[str, ...] = ("",)
) -> Path:
    """The three files of a trace in `folder`/traces, with one scorer of that name or several; gives the table's."""
    rows, pictures = [], []
    for episode, touched in CONTACTS.items():
        for step in range(1, LENGTH + 1):
            ahead = min((at - step for at in touched if at >= step), default=99)
            scored = step % every == 0
            row = {
                "protocol": protocol, "deterministic": True, "checkpoint_epoch": 2, "episode": episode,
                "scenario": 10000 + episode, "traffic_seed": None, "step": step, "reward": 0.5,
                "cost": 1.5 if step in touched else 0.0, "hazard": 1.0 / (1 + ahead), "scored": scored,
                "distance": 0.25 * step,
            }  # fmt: skip
            for number, name in enumerate(scorers):
                prefix = f"{name}_" if name else ""
                good, bad = 0.2 + 0.001 * step + 0.1 * number, 0.2 + 0.3 / (1 + ahead)
                values = {
                    "similarity_0": good, "similarity_1": bad, "positive": (good + 1) / 2, "negative": (bad + 1) / 2,
                    "margin": good - bad, "kappa": float(Gate().kappa(np.array(good - bad))),
                }  # fmt: skip
                row |= {prefix + key: value if scored else None for key, value in values.items()}
                row |= {f"{prefix}gate_scale": 100.0, f"{prefix}gate_centre": 0.0}
            rows.append(row)
            if scored:
                pictures.append({"episode": episode, "step": step, "picture": encode(frame(episode, step))})
    kinds = {"traffic_seed": pl.Int64, "scored": pl.Boolean}
    about = {
        "env": "braking", "method": "ppo-lag", "seed": 0, "protocol": protocol, "deterministic": True,
        "episodes": len(CONTACTS), "checkpoint_epoch": 2, "indicators": False, "every": every, "fingerprint": "f",
        "scorers": [_described(name) for name in scorers],
    }  # fmt: skip
    path = folder / "traces" / f"{protocol}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pl.DataFrame(rows, schema_overrides=kinds, infer_schema_length=None)
    write_trace(path, table, about, pl.DataFrame(pictures) if frames else None)
    return path


def _described(name: str) -> dict:
    prefix = f"{name}_" if name else ""
    prompts = [
        {"column": f"{prefix}similarity_{i}", "group": group, "prompt": text} for i, (group, text) in enumerate(PROMPTS)
    ]
    gate = {"kind": "prior-symmetric", "scale": 100.0, "centre": 0.0}
    return {"scorer": name or "embedded", "prefix": prefix, "similarities": prompts, "gate": gate}
