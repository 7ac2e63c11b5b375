"""A ceiling for the scorer: a network that detects danger from the simulator's own observation.

It is trained on the same steps as the scorer. The observation contains what two frames show and more, such as the
route. Where this network fails, a model of frames can hardly succeed. It is measured for comparison and not shipped.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vlmsafe.distillation.data import Examples
from vlmsafe.distillation.train import balanced_loss, frame_weights
from vlmsafe.signals.scorers.api import InputKind, Inputs, Rule, Scorer, Similarities


class StateScorer(Scorer):
    """One column, in (-1, 1): how dangerous an observation is."""

    looks_at: ClassVar[InputKind] = "observation"
    rules: ClassVar[tuple[Rule, ...]] = ("decoupled",)

    def __init__(self, network: nn.Module, mean: Tensor, deviation: Tensor) -> None:
        self.groups = (0, 1)
        self._network, self._mean, self._deviation = network, mean, deviation

    @torch.inference_mode()
    def score(self, inputs: Inputs) -> Similarities:
        logits = self._network((torch.from_numpy(np.asarray(inputs, np.float32)) - self._mean) / self._deviation)
        similarities: Similarities = torch.tanh(logits / 2.0).numpy()
        return similarities


def train_ceiling(examples: Examples, *, steps: int = 3000, seed: int = 0) -> StateScorer:
    """A network that detects danger in observations, trained on the scorer's examples with the scorer's loss."""
    torch.manual_seed(seed)
    observations: NDArray[np.float32] = np.stack(examples.observations)
    inputs, truths = torch.from_numpy(observations), torch.from_numpy(examples.fact("danger"))[:, None]
    mean, deviation = inputs.mean(dim=0), inputs.std(dim=0) + 1e-3
    inputs = (inputs - mean) / deviation
    network = nn.Sequential(
        nn.Linear(inputs.shape[1], 256), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 1),
    )  # fmt: skip
    weights = torch.from_numpy(frame_weights(examples))
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        chosen = torch.multinomial(weights, 512, replacement=True)
        loss = balanced_loss(network(inputs[chosen]), truths[chosen])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return StateScorer(network.eval(), mean, deviation)
