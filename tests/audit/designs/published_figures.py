"""The figures of the published design run by run: as printed, or made up where only a summary is printed.

A made-up figure always agrees with what is printed of it: its mean and deviation, its count over the budget, its rank
in a test. Nothing here says that a run of the study had it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlmsafe.config.settings import TrainConfig
from vlmsafe.paper.published import published

L1, L2 = "formula-one-l1", "formula-one-l2"
GRID_SEEDS, CALIBRATED_SEEDS = (42, 123, 456), (42, 123, 456, 789, 1024)
METADRIVE = ("metadrive-easy", "metadrive-medium", "metadrive-hard")
BASELINE, SIGNAL = "ppo-lag", "vlm-ppo-lag-conf"
CALIBRATED = "vlm-ppo-lag-conf-calibrated"

Costs = dict[int, float]

# Means over the last ten epochs that the paper prints per arm only (43.70, 43.75 and 46.73; tab:perm-l2). Each run lies
# above every calibrated one, as p = 1/56 says; the gate's p is then 2/20 and the multiplier term's 10/20, as printed.
LAST_10: dict[str, Costs] = {
    "vlm-ppo-lag": {42: 52.0, 123: 36.5, 456: 42.6},
    "ppo-lag-decoupled": {42: 47.0, 123: 39.45, 456: 44.8},
    "ppo-lag-rnd": {42: 44.0, 123: 36.2, 456: 59.99},
    "vlm-ppo-lag-conf": {42: 21.6, 123: 38.2, 456: 28.4},  # printed (tab:gate-calib-prereg)
    # Flat beside the final costs: only the arms' means are printed (app:phaseB-robustness).
    "ppo-lag": {789: 44.0, 1024: 38.8},
    "cpo-control": {789: 33.0, 1024: 20.0},
    "cppo-pid": {42: 15.2, 123: 22.3, 456: 29.4},
}
FINAL: dict[str, Costs] = {
    "ppo-lag": {789: 26.4, 1024: 15.4},  # 20.9 +- 5.5
    "cpo-control": {789: 31.4, 1024: 14.6},  # 23.0 +- 8.4
    "cppo-pid": {42: 14.6, 123: 22.8, 456: 31.0},  # 22.8 +- 6.7
    "vlm-ppo-lag-eta0": {42: 20.0, 123: 27.5, 456: 35.0},  # 27.5; with the next, p = 18/20
    "vlm-ppo-lag-eta003": {42: 24.0, 123: 45.0, 456: 55.2},  # 41.4, two of three over the budget
    "vlm-ppo-lag-conf-calibrated-vit-l-14": {42: 22.87, 123: 22.87, 456: 34.96},  # 26.9 +- 5.7, one over (last 10)
}
ENV_RETURN = {"ppo-lag": 0.13, "cpo-control": 0.16, "cppo-pid": 0.24}
"""At the final epoch (app:phaseB-robustness)."""

# Mean evaluation costs over 50 episodes whose first 20 are printed run by run (tab:phaseB-holdout): 22.06 +- 11.04 with
# three of five in budget, 10.73 +- 2.95, and 23.16 +- 9.75 with one of three in budget.
EVALUATION_COST: dict[str, Costs] = {
    CALIBRATED: {42: 25.5, 123: 40.66, 456: 22.34, 789: 11.8, 1024: 10.0},
    "ppo-lag": {789: 13.68, 1024: 7.78},
    "cppo-pid": {42: 9.9, 123: 26.4, 456: 33.18},
    "vlm-ppo-lag-conf": {42: 24.68, 123: 50.14, 456: 35.48},  # printed (app:f1-main-tables)
    "vlm-ppo-lag": {42: 46.44, 123: 17.98, 456: 54.48},  # printed
}
# Violations and catastrophes among the remaining 30 episodes, so that the pooled rates are those of tab:main_results.
REMAINING: dict[str, dict[int, tuple[int, int]]] = {
    CALIBRATED: {42: (6, 3), 123: (7, 3), 456: (6, 2), 789: (3, 0), 1024: (2, 0)},
    "ppo-lag": {789: (4, 1), 1024: (3, 0)},
    "cppo-pid": {42: (3, 2), 123: (3, 2), 456: (4, 4)},
}
UNTRAINED = ("ppo-lag-decoupled", 42)
"""The run whose only checkpoint is its start, and which was evaluated all the same (app:f1-run-sets)."""
NOT_EVALUATED = ("ppo-clg", 456)
"""Two of three PPO-CLG runs were evaluated; which is not printed."""
UNMATCHED_FIRST_20 = (16, 11)
"""Violations and catastrophes of the unmatched PPOLag among its first 20 episodes of three runs (app:f1-run-sets)."""

# Episodes without cost and with little return on Hard: 143 of 500 and 26 of 500, those of the signal arm mostly in two
# seeds (app:md-fixed-eval); which two is not printed.
PASSIVE: dict[str, dict[int, int]] = {
    SIGNAL: {5555: 44, 123: 41, 42: 8, 456: 8, 1337: 8, 2024: 7, 2718: 7, 3141: 7, 4242: 7, 789: 6},
    BASELINE: {42: 3, 123: 3, 456: 2, 789: 3, 1337: 3, 2024: 2, 2718: 3, 3141: 3, 4242: 2, 5555: 2},
}


def text_value(key: str) -> dict[str, float]:
    """A number of the running text, by its key."""
    row = published("text-results").filter(key=key).to_dicts()
    assert len(row) == 1, key
    return row[0]


def spread(mean: float, deviation: float, count: int) -> list[float]:
    """Figures with this mean and population deviation: evenly apart, or one high and the rest equal if need be."""
    even = np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(1)
    pattern = even / even.std() if count > 1 else even
    if count > 1 and mean + deviation * pattern.min() < 0.0:
        pattern = np.append(np.full(count - 1, -1.0 / np.sqrt(count - 1)), np.sqrt(count - 1))
    return (mean + deviation * pattern).tolist()


def curve(final: float, epochs: int, last_5: float | None = None, last_10: float | None = None) -> list[float]:
    """A figure per epoch, as flat as its final value and its means over the last epochs allow."""
    values = np.full(epochs, final)
    if last_5 is not None:
        values[-5:-1] = (5.0 * last_5 - final) / 4.0
        values[:-5] = values[-5]
    if last_10 is not None:
        known = values[-5:].sum() if last_5 is not None else final
        start = 5 if last_5 is not None else 1
        values[-10:-start] = (10.0 * last_10 - known) / (10 - start)
        values[:-10] = values[-10]
    return values.tolist()


def unsettled(costs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Up to a tenth further from the budget of 25: costs of which nothing is printed, the same in no two runs."""
    return np.round(costs * (1.0 + np.where(costs > 25.0, 0.1, -0.1) * rng.random(len(costs))), 2)


def episode_costs(
    rng: np.random.Generator, episodes: int, mean: float, violations: int, catastrophes: int, zeros: int = 0
) -> np.ndarray:
    """Whole costs with this mean and as many above 25 and above 100 as given, `zeros` of the rest being nothing.

    Shuffled, except that the required zeros come first.
    """
    total, rest, middle = round(mean * episodes), episodes - violations, violations - catastrophes
    assert abs(total - mean * episodes) < 0.51, f"{mean} is not the mean of {episodes} whole numbers"
    low = np.zeros(rest)
    high = np.concatenate([np.full(middle, 26.0), np.full(catastrophes, 101.0)])
    spare = total - high.sum()
    assert spare >= 0, f"mean {mean} is too low for {violations} violations and {catastrophes} catastrophes"
    small = np.arange(rest - zeros) % 4
    if small.sum() <= 0.5 * spare:
        low[zeros:] = small
        spare -= small.sum()
    for part, most in ((high[middle:], 1000.0), (high[:middle], 100.0), (low[zeros:], 25.0)):
        spare = _fill(part, spare, most)
    assert spare == 0.0, f"mean {mean} is too high for {violations} violations"
    costs = np.concatenate([low, high])
    costs[zeros:] = rng.permutation(costs[zeros:])
    return costs


def _fill(costs: np.ndarray, amount: float, most: float) -> float:
    """Add an amount to some costs, in whole and about equal parts, none beyond `most`; what is left."""
    while amount > 0 and len(costs) and costs.min() < most:
        open_ = np.flatnonzero(costs < most)
        share = max(1.0, amount // len(open_))
        for place in open_:
            step = min(share, amount, most - costs[place])
            costs[place] += step
            amount -= step
    return amount


def run_rng(config: TrainConfig, purpose: int) -> np.random.Generator:
    """Random numbers of a run for one purpose: runs of two arms of one method are two different runs."""
    assert config.run_dir is not None
    place = "/".join(config.run_dir.parts[-3:])
    return np.random.default_rng((purpose, *place.encode()))


def around(rng: np.random.Generator, mean: float, count: int) -> np.ndarray:
    """Figures a little apart, with exactly this mean."""
    noise = rng.normal(0.0, 0.1, count)
    return mean + noise - noise.mean()


def split(total: int, weights: Sequence[float]) -> list[int]:
    """A count shared out in proportion, whole."""
    share = np.array(weights, np.float64) / np.sum(weights) * total
    parts = np.floor(share).astype(int)
    for place in np.argsort(parts - share)[: total - parts.sum()]:
        parts[place] += 1
    return parts.tolist()
