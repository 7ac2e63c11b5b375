"""A trace in a few figures."""

from __future__ import annotations

from typing import Any

import polars as pl

from vlmsafe.analysis.auc import auc


def trace_summary(table: pl.DataFrame) -> list[dict[str, Any]]:
    """The figures of a trace, one entry per scorer; a single entry without scores if there is no scorer.

    `contacts` are steps with cost, `onsets` are contacts that follow a step without cost. `auc_c_vlm` and `auc_kappa`
    say how well the score separates scored steps with cost from the others; they are None if one kind is missing.
    """
    contact = pl.col("cost") > 0.0
    before = contact.shift(1, fill_value=False).over("episode")
    common = {
        "episodes": table["episode"].n_unique(),
        "steps": len(table),
        "contacts": table.select(contact.sum()).item(),
        "onsets": table.select((contact & ~before).sum()).item(),
        "scored": int(table["scored"].sum()),
    }
    seen = table.filter("scored")
    hit = seen.select(contact).to_series().to_numpy()
    found = []
    for kappa in [name for name in table.columns if name == "kappa" or name.endswith("_kappa")]:
        prefix = kappa.removesuffix("kappa")
        negative = f"{prefix}negative"
        figures = {
            "kappa": seen[kappa].mean(),
            "c_vlm": seen[negative].mean(),
            "auc_kappa": auc(seen[kappa].to_numpy(), hit) if len(seen) else None,
            "auc_c_vlm": auc(seen[negative].to_numpy(), hit) if len(seen) else None,
        }
        found.append({"scorer": prefix.rstrip("_"), **common, **figures})
    return found or [{"scorer": "", **common}]
