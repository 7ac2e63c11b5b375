"""Loading of the reference vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.networks import Stack

FOLDER = Path(__file__).parent / "omnisafe-0.5.0"

_NETWORKS = {
    "policy": "actor.mean",
    "reward_critic": "reward_critic.critic_0",
    "cost_critic": "cost_critic.critic_0",
}


def scalars() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / "scalars.json").read_text())
    return data


def vector_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def update(name: str) -> dict[str, Any]:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def batch(vector: dict[str, Any]) -> Batch:
    return Batch(
        observations=vector["batch/obs"],
        actions=vector["batch/act"],
        log_probs=vector["batch/logp"],
        reward_advantages=vector["batch/adv_r"],
        cost_advantages=vector["batch/adv_c"],
        targets=np.stack([vector["batch/target_value_r"], vector["batch/target_value_c"]]),
    )


def reference_name(ours: str) -> str:
    """`policy.1.weight` is called `actor.mean.2.weight` there: activations count as layers."""
    network, *rest = ours.split(".")
    if rest == ["log_std"]:
        return "actor.log_std"
    depth, kind = rest
    return f"{_NETWORKS[network]}.{2 * int(depth)}.{kind}"


def load_parameters(networks: Stack, vector: dict[str, Any], when: str = "before") -> None:
    for name, view in networks.named():
        view[:] = vector[f"{when}/{reference_name(name)}"]
