"""The test of anticipation at the paper's size, against resampling the steps themselves.

    python benchmarks/anticipation.py [--episodes 360] [--length 1000] [--resamples 2000] [--direct 3]

Four signals and the step index, raw and standardised, six horizons. The other side draws the same resamples and ranks
the steps of each again; it is measured on a few resamples of one cell of the table and multiplied up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import tyro
from scipy.stats import rankdata

from vlmsafe.analysis.anticipation import anticipation, steps_to_contact
from vlmsafe.analysis.auc import draw_resamples

CONTACTS = 0.011  # share of steps at which one begins, the prevalence of the paper's L2
SIGNALS = ("positive", "negative", "margin", "kappa")


@dataclass(frozen=True)
class Options:
    """Time the table of anticipation."""

    episodes: int = 360
    """Episodes."""
    length: int = 1000
    """Steps of each."""
    resamples: int = 2000
    """Resamples of episodes."""
    direct: int = 3
    """Resamples that the other side is timed on."""


def main(options: Options) -> None:
    rng = np.random.default_rng(0)
    steps = options.episodes * options.length
    contact = rng.random(steps) < CONTACTS
    numbers = np.repeat(np.arange(options.episodes), options.length)
    levels = np.repeat(rng.normal(size=options.episodes), options.length)
    signals = {name: levels + rng.normal(size=steps) for name in SIGNALS}

    start = time.perf_counter()
    table = anticipation(signals, contact, numbers, resamples=options.resamples)
    ours = time.perf_counter() - start

    positive = steps_to_contact(contact, numbers) <= 20
    start = time.perf_counter()
    for times in draw_resamples(options.episodes, options.direct, 0).astype(np.int64):
        taken = np.repeat(np.arange(steps), times[numbers])
        taken = taken[~contact[taken]]
        rankdata(signals["negative"][taken])[positive[taken]].sum()
    per_resample = (time.perf_counter() - start) / options.direct
    direct = per_resample * options.resamples * len(table)
    print(f"{steps:,} steps, {options.episodes} episodes, {len(table)} AUCs with {options.resamples:,} resamples each")
    print(f"concordance counts  {ours:10.1f} s")
    print(f"ranking each time   {direct:10.1f} s  ({per_resample:.3f} s per AUC, multiplied up)")
    print(f"ratio               {direct / ours:10.0f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
