"""What scoring cost: frames, requests, tokens, seconds. A bill is a mapping of plain numbers and affects no result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Bill = Mapping[str, float]
"""Counts by name: frames, cached, requests, retries, tokens_in, tokens_out, undecided, and seconds."""


def since(bill: Bill, before: Bill) -> dict[str, float]:
    """What was added to a bill; empty if nothing was.

    >>> since({"frames": 5, "seconds": 2.0}, {"frames": 3, "seconds": 2.0})
    {'frames': 2, 'seconds': 0.0}
    """
    added = {name: value - before.get(name, 0) for name, value in bill.items()}
    return added if any(added.values()) else {}


def total(bills: Iterable[Bill]) -> dict[str, float]:
    """The sum of several bills."""
    found: dict[str, float] = {}
    for bill in bills:
        for name, value in bill.items():
            found[name] = found.get(name, 0) + value
    return found


def in_words(bill: Bill) -> str:
    """A bill as one line for the user.

    >>> in_words({"frames": 1200, "requests": 2403, "retries": 3, "tokens_in": 9000, "tokens_out": 2400})
    '1,200 frames scored; 2,403 requests, 3 of them sent again; 9,000 tokens in and 2,400 out'
    """
    count = {name: f"{round(value):,}" for name, value in bill.items()}
    parts = [f"{count.get('frames', 0)} frames scored"]
    if bill.get("cached"):
        parts.append(f"{count['cached']} frames from the cache")
    if "requests" in bill:
        again = f", {count['retries']} of them sent again" if bill.get("retries") else ""
        parts.append(f"{count['requests']} requests{again}")
        parts.append(f"{count.get('tokens_in', 0)} tokens in and {count.get('tokens_out', 0)} out")
    if bill.get("undecided"):
        parts.append(f"{count['undecided']} answers were neither yes nor no and count as 0.5")
    if "seconds" in bill:
        parts.append(f"{count['seconds']} seconds")
    return "; ".join(parts)
