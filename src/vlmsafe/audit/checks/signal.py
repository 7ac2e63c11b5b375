"""Did the signal do anything, and could it have warned? The multiplier term, the gate, the score before contact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.anticipation import CONTROL, anticipation, passes
from vlmsafe.analysis.multiplier_replay import replay, summarise
from vlmsafe.analysis.tables import (
    episode_numbers,
    floats,
    require_trace,
    stacked,
)
from vlmsafe.audit.findings import (
    Finding,
    Unchecked,
    counted,
    listed,
)
from vlmsafe.errors import InputError
from vlmsafe.runs.records import ArmRecord, RunRecord

INERT = 0.01
"""A term that never changes lambda by more than this share of its largest value is inert."""
OPEN, CLOSED, ALMOST = 0.9, 0.1, 0.95
"""A gate above OPEN (below CLOSED) on ALMOST all frames is open (closed) almost everywhere."""
HARDLY = 0.01
"""A score whose standard deviation is less varies too little to tell one frame from another."""
HORIZONS = (20, 40)
"""Of the criterion that was fixed in advance."""
FEWEST_ONSETS = 10
"""With fewer onsets of contact nothing can be said about what comes before them."""


def check_signal(arm: ArmRecord, *, resamples: int) -> Iterator[Finding | Unchecked]:
    """Everything about the signal of one arm."""
    if not arm.has_signal:
        return
    yield from _frames(arm)
    yield from _term(arm)
    yield from _gate(arm)
    yield from _traces(arm, resamples)


def _frames(arm: ArmRecord) -> Iterator[Finding]:
    seen = [run.name for run in arm.runs if run.has_signal and run.config.frame_indicators]
    if seen:
        yield Finding(
            "frames-show-cost",
            f"{arm.env}: {arm.name}",
            (f"frames of {listed(seen)} contain the simulator's cost indicators (frame_indicators: true)",),
            "train without --frame-indicators: a scorer that sees them reads the cost, it does not foresee it",
            {"runs": seen},
        )


def _term(arm: ArmRecord) -> Iterator[Finding]:
    """Every route of the signal, as far as its record shows what it did."""
    signal, multiplier = arm.first.config.signal, arm.first.config.multiplier
    term = multiplier.signal_weight > 0 and multiplier.kind != "none"
    routes = [signal.reward_weight > 0, signal.cost_weight > 0, signal.multiplier.kind != "none", term]
    where = f"{arm.env}: {arm.name}"
    if not any(routes):
        yield Finding(
            "inert-signal-term",
            where,
            ("frames are scored, but no route uses a score: all weights are 0",),
            "give the signal a route (--signal.reward-weight, --multiplier.signal-weight, ...) or drop the scorer",
        )
    if signal.multiplier.kind != "none":
        values = [row.get("signal_multiplier") for run in arm.runs for row in run.epochs]
        known = [value for value in values if value is not None]
        if known and max(known) == 0.0:
            yield Finding(
                "inert-signal-term", where, ("the signal's own multiplier stayed at 0 in every epoch of every run",),
                "lower its budget (--signal.multiplier.budget): the score never exceeded it",
            )  # fmt: skip
    if not term:
        return
    summaries = {}
    for run in arm.runs:
        try:
            summaries[run.name] = (summarise(replay(run.epochs, run.config.multiplier)), _largest(run))
        except (InputError, KeyError, TypeError):
            continue  # nothing to replay, which is told elsewhere
    still = {
        name: pair
        for name, pair in summaries.items()
        if pair[0].largest_change <= INERT * max(pair[1], 1e-9) and not pair[0].sign_reversals
    }
    if still and len(still) == len(summaries):
        if max(value for _, value in still.values()) <= 0.0:
            return  # lambda never rose: the constraint did not bind, and no term of this sign could have shown
        change = max(summary.largest_change for summary, _ in still.values())
        largest = max(value for _, value in still.values())
        terms = max(summary.largest_term for summary, _ in still.values())
        gap = float(np.median([summary.median_gap for summary, _ in still.values()]))
        shift = float(np.mean([summary.budget_shift for summary, _ in still.values()]))
        yield Finding(
            "inert-signal-term",
            where,
            (
                f"without the term lambda would have been at most {change:.2g} different, in "
                f"{counted(len(still), 'run')}; lambda rose to {largest:.3g}",
                f"the term is at most {terms:.2g}, the cost gap beside it {gap:.3g} in the median; it reverses no sign",
                f"at rest it moves the budget by {shift:.2g}",
            ),
            "do not attribute a difference to this term; raise eta_2 (--multiplier.signal-weight) to the size of the "
            "cost gap, or give the signal a multiplier of its own (--signal.multiplier.kind adam)",
            {
                "largest_change": change,
                "largest_lambda": largest,
                "largest_term": terms,
                "median_gap": gap,
                "budget_shift": shift,
            },
        )


def _largest(run: RunRecord) -> float:
    return max((row["multiplier"] for row in run.epochs if row.get("multiplier") is not None), default=0.0)


@dataclass(frozen=True)
class GateShare:
    """How often a run's gate was open or closed."""

    run: str
    of: str
    open: float
    closed: float
    median: float


def gate_shares(run: RunRecord) -> Iterator[GateShare]:
    """On the frames of a run's traces, and in training by what its record kept: means over episodes, else epochs."""
    traced = [
        table.filter("scored")["kappa"].drop_nulls().to_list()
        for table in run.traces.values()
        if {"kappa", "scored"} <= set(table.columns)
    ]
    episodes = [row["kappa"] for row in run.episodes if row.get("kappa") is not None]
    epochs = [row["kappa"] for row in run.epochs if row.get("kappa") is not None]
    # A mean over an episode that is near 0 or 1 says the same of nearly all of its frames.
    training = {"training episodes' means": episodes} if episodes else {"training epochs' means": epochs}
    for of, values in {"traced frames": list(chain(*traced)), **training}.items():
        if values:
            kappa = np.array(values, np.float64)
            opened, closed = float((kappa >= OPEN).mean()), float((kappa <= CLOSED).mean())
            yield GateShare(run.name, of, opened, closed, float(np.median(kappa)))


def _gate(arm: ArmRecord) -> Iterator[Finding]:
    if arm.first.config.signal.gate == "off":
        return
    shares = [share for run in arm.runs for share in gate_shares(run)]
    for state, bound in (("open", f">= {OPEN:g}"), ("closed", f"<= {CLOSED:g}")):
        lines = []
        for of in dict.fromkeys(share.of for share in shares):
            alike = [share for share in shares if share.of == of]
            stuck = [share for share in alike if getattr(share, state) >= ALMOST]
            if stuck and 2 * len(stuck) >= len(alike):
                lines.append(_stuck_line(stuck, state, bound, len(alike)))
        if lines:
            yield Finding(
                "gate-saturated",
                f"{arm.env}: {arm.name}",
                tuple(lines),
                f"a gate that is {state} everywhere weighs nothing: calibrate it (--signal.gate calibrated), and look "
                "at its distribution with: vlmsafe diagnose gate RUN",
                {"shares": [asdict(share) for share in shares]},
            )


def _stuck_line(stuck: Sequence[GateShare], state: str, bound: str, runs: int) -> str:
    least, medians = min(getattr(own, state) for own in stuck), sorted(own.median for own in stuck)
    span = f"{medians[0]:.3f}" if len(stuck) == 1 else f"{medians[0]:.3f} to {medians[-1]:.3f}"
    return (
        f"{len(stuck)} of {counted(runs, 'run')}: kappa {bound} on {least:.1%} of {stuck[0].of} or more, median {span} "
        f"({listed([own.run for own in stuck])})"
    )


def _traces(arm: ArmRecord, resamples: int) -> Iterator[Finding | Unchecked]:
    where = f"{arm.env}: {arm.name}"
    protocols = sorted({name for run in arm.runs for name in run.traces})
    if not protocols:
        yield Unchecked(
            ("no-lead-time", "constant-score"), where, "no run has a trace; make them with: vlmsafe trace RUN"
        )
        return
    for protocol in protocols:
        tables = {run.name: run.traces[protocol] for run in arm.runs if protocol in run.traces}
        try:
            yield from _judged(arm, protocol, stacked({arm.name: tables}), resamples)
        except InputError as error:
            yield Unchecked(("no-lead-time", "constant-score"), f"{where}, '{protocol}'", str(error))


def _judged(arm: ArmRecord, protocol: str, steps: pl.DataFrame, resamples: int) -> Iterator[Finding | Unchecked]:
    where = f"{arm.env}: {arm.name}, '{protocol}'"
    if "negative" not in steps.columns:
        yield Unchecked(("no-lead-time", "constant-score"), where, "its trace has several scorers")
        return
    require_trace(steps, "audit", "", ("negative",))
    onsets = _onsets(steps)
    if onsets < FEWEST_ONSETS:
        yield from _varies(steps, where)
        yield Unchecked(
            ("no-lead-time",), where, f"{counted(onsets, 'onset')} of contact; at least {FEWEST_ONSETS} needed"
        )
        return
    signals = {"negative": floats(steps, "negative")}
    if "hazard" in steps.columns and steps["hazard"].null_count() == 0:
        signals["hazard"] = floats(steps, "hazard")
    table = anticipation(
        signals,
        floats(steps, "cost") > 0.0,
        episode_numbers(steps, "audit"),
        scored=steps["scored"],
        horizons=HORIZONS,
        resamples=resamples,
    )
    if passes(table):
        return  # a score that warns may vary as little as it likes
    yield from _varies(steps, where)
    remark: tuple[str, ...] = ()
    if "hazard" in signals and not passes(table, "hazard"):
        remark = ("the simulator's own hazard fails the test on these episodes too: no score could have met it here",)
    yield Finding(
        "no-lead-time",
        where,
        (f"{counted(onsets, 'onset')} of contact", *(_auc_line(row) for row in table.iter_rows(named=True)), *remark),
        "do not speak of anticipation; look at what the score reacts to (vlmsafe diagnose lead-time RUN), and try "
        "other prompts on the same trace before training again",
        {"auc": table.to_dicts(), "onsets": onsets},
    )


def _varies(steps: pl.DataFrame, where: str) -> Iterator[Finding]:
    scores = steps.filter("scored")["negative"].drop_nulls().to_numpy()
    spread = float(np.std(scores)) if len(scores) else 0.0
    if spread < HARDLY:
        yield Finding(
            "constant-score",
            where,
            (f"c_vlm has a standard deviation of {spread:.2g} over {len(scores)} frames, mean {scores.mean():.3f}",),
            "choose prompts, or a scorer, that tell these frames apart",
            {"std": spread},
        )


_NAMES = {"negative": "c_vlm", CONTROL: "step index"}


def _auc_line(row: dict[str, Any]) -> str:
    name = _NAMES.get(row["signal"], row["signal"])
    if row["auc"] is None:
        return f"{name}, {row['form']}, K = {row['horizon']}: no AUC"
    return f"{name}, {row['form']}, K = {row['horizon']}: AUC {row['auc']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _onsets(steps: pl.DataFrame) -> int:
    contact = pl.col("cost") > 0
    return int(steps.select((contact & ~contact.shift(1).over("arm", "run", "episode").fill_null(False)).sum()).item())
