"""Traces made up for tests, in the columns that a real one has."""

import numpy as np
import polars as pl

from vlmsafe.analysis.tables import stacked


def made_up(rng, lengths, contact=0.1, scored=1.0, warning=0.0, scale=0.01):
    """Episodes of these lengths: contacts at random, and a negative score that rises by `warning` deviations before."""
    steps = int(np.sum(lengths))
    episode = np.repeat(np.arange(len(lengths)), lengths)
    hit = rng.random(steps) < contact
    soon = np.convolve(hit, np.append(np.ones(5), np.zeros(6)), mode="same") > 0  # within the next five steps
    positive, negative = 0.62 + scale * rng.normal(size=(2, steps))
    negative += warning * scale * soon
    looked = rng.random(steps) < scored
    starts = np.cumsum(lengths) - lengths
    looked[starts] = True
    table = pl.DataFrame(
        {
            "episode": episode,
            "step": np.arange(steps) - np.repeat(starts, lengths) + 1,
            "cost": hit.astype(float) * 0.5,
            "scored": looked,
            "positive": positive,
            "negative": negative,
            "margin": 2.0 * (positive - negative),
        }
    )
    signals = ("positive", "negative", "margin")
    return table.with_columns(pl.when("scored").then(name).alias(name) for name in signals)


def two_arms(seed=0, runs=2, **settings):
    rng = np.random.default_rng(seed)
    lengths = np.array([30, 41, 25, 30])
    return stacked(
        {arm: {f"seed-{run}": made_up(rng, lengths, **settings) for run in range(runs)} for arm in ("plain", "shaped")}
    )
