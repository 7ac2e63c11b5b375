"""How far the published form of the lead-time test is off, in a simulation with the paper's share of contact.

    python benchmarks/lead_time_bias.py [--contacts 0.011] [--episodes 180] [--length 1000]

Every episode is noise of standard deviation 1. In contact the signal is higher by `rise`, and in the 20 steps before a
contact by `warning`. The same number of contact steps is spread over all episodes or concentrated in some, in pieces
of 10 steps. The table has the AUC at K = 20: standardised over the steps without contact, and standardised over all
steps, as published. Without a warning the right answer is 0.5, whatever the signal does in contact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import tyro
from rich.console import Console
from rich.table import Table

from vlmsafe.analysis.anticipation import PUBLISHED, STANDARDISED, anticipation

_AHEAD, _PIECE = 20, 10


@dataclass(frozen=True)
class Options:
    """Simulate the lead-time test."""

    contacts: float = 0.011
    """Share of all steps that are in contact; that of the paper's L2."""
    episodes: int = 180
    """Episodes of an arm."""
    length: int = 1000
    """Steps of an episode."""
    seed: int = 0
    """Seed of the noise."""


def simulated(options: Options, share: float, rise: float, warning: float) -> dict[str, float]:
    """AUCs at K = 20 by form, with contacts in a share of the episodes."""
    rng = np.random.default_rng(options.seed)
    signal = rng.normal(size=(options.episodes, options.length))
    contact = np.zeros(signal.shape, np.bool_)
    touched = max(1, round(share * options.episodes))
    pieces = max(1, round(options.contacts * contact.size / _PIECE / touched))
    for episode in range(touched):
        places = np.arange(_AHEAD, options.length - _PIECE, _AHEAD + _PIECE)
        for begin in rng.choice(places, min(pieces, len(places)), replace=False):
            contact[episode, begin : begin + _PIECE] = True
            signal[episode, begin : begin + _PIECE] += rise
            signal[episode, begin - _AHEAD : begin] += warning
    numbers = np.repeat(np.arange(options.episodes), options.length)
    found = anticipation({"c_vlm": signal.ravel()}, contact.ravel(), numbers, horizons=(_AHEAD,), resamples=1)
    return dict(found.filter(pl.col("signal") == "c_vlm").select("form", "auc").iter_rows())


def main(options: Options) -> None:
    table = Table("episodes with contact", "rise in contact", "warning", "AUC", "AUC as published")
    for share in (1.0, 0.25, 0.05):
        for rise in (0.0, 1.0, 3.0):
            for warning in (0.0, 0.5):
                found = simulated(options, share, rise, warning)
                figures = (f"{found[STANDARDISED]:.3f}", f"{found[PUBLISHED]:.3f}")
                table.add_row(f"{share:.0%}", f"{rise:g} sd", f"{warning:g} sd", *figures)
    console = Console(width=100, highlight=False)
    console.print(f"{options.episodes} episodes of {options.length} steps, {options.contacts:.1%} of them in contact")
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
