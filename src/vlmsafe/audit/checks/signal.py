"""The signal: did its term, its gate and its score do anything, and did the score rise before contact?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vlmsafe.analysis.anticipation import CONTROL, anticipation, passes, verdict
from vlmsafe.analysis.multiplier_replay import replay, summarise
from vlmsafe.analysis.tables import episode_numbers, floats, require_trace, stacked
from vlmsafe.audit.findings import Finding, Unchecked, about_arm, counted, finding, listed
from vlmsafe.errors import InputError
from vlmsafe.runs.records import ArmRecord, RunRecord
from vlmsafe.signals.scorers.registry import kind_of
from vlmsafe.signals.scorers.user_code import PREFIX

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


def frames_show_cost(arm: ArmRecord) -> Iterator[Finding]:
    seen = [run for run in arm.runs if run.has_signal and run.config.frame_indicators]
    if seen:
        names = [run.name for run in seen]
        yield finding(
            "frames-show-cost",
            about_arm(arm, runs=seen),
            [f"frames of {listed(names)} contain the simulator's cost indicators (frame_indicators: true)"],
            {"runs": names},
        )


def inert_signal_term(arm: ArmRecord) -> Iterator[Finding]:
    """Every route of the signal, as far as the record shows what it did."""
    signal, multiplier = arm.first.config.signal, arm.first.config.multiplier
    term = multiplier.signal_weight > 0 and multiplier.kind != "none"
    if not any((signal.reward_weight > 0, signal.cost_weight > 0, signal.multiplier.kind != "none", term)):
        yield finding(
            "inert-signal-term",
            about_arm(arm),
            ["frames are scored, but no route uses a score: all weights are 0"],
            fix="give the signal a route (--signal.reward-weight, --multiplier.signal-weight, ...) or drop the scorer",
        )
    if signal.multiplier.kind != "none":
        values = [row.get("signal_multiplier") for run in arm.runs for row in run.epochs]
        known = [value for value in values if value is not None]
        if known and max(known) == 0.0:
            yield finding(
                "inert-signal-term",
                about_arm(arm),
                ["the signal's own multiplier stayed at 0 in every epoch of every run"],
                fix="lower its budget (--signal.multiplier.budget): the score never exceeded it",
            )
    if term:
        yield from _inert_term(arm)


def _inert_term(arm: ArmRecord) -> Iterator[Finding]:
    """A multiplier term that hardly changes lambda in any run."""
    replayed = []
    for run in arm.runs:
        try:
            replayed.append((run, summarise(replay(run.epochs, run.config.multiplier)), _largest(run)))
        except (InputError, KeyError, TypeError):
            continue  # there is nothing to replay, which is reported by another check
    still = [
        (run, summary, largest)
        for run, summary, largest in replayed
        if summary.largest_change <= INERT * max(largest, 1e-9) and not summary.sign_reversals
    ]
    largest = max((value for _, _, value in still), default=0.0)
    # Where lambda never rose, the constraint did not bind, and no term of this sign could have shown.
    if len(still) < len(replayed) or largest <= 0.0:
        return
    summaries = [summary for _, summary, _ in still]
    data = {
        "largest_change": max(summary.largest_change for summary in summaries),
        "largest_lambda": largest,
        "largest_term": max(summary.largest_term for summary in summaries),
        "median_gap": float(np.median([summary.median_gap for summary in summaries])),
        "budget_shift": float(np.mean([summary.budget_shift for summary in summaries])),
    }
    yield finding(
        "inert-signal-term",
        about_arm(arm, runs=[run for run, _, _ in still]),
        [
            f"without the term lambda would have been at most {data['largest_change']:.2g} different, in "
            f"{counted(len(still), 'run')}; lambda rose to {largest:.3g}",
            f"the term is at most {data['largest_term']:.2g}, the median cost gap is {data['median_gap']:.3g}; it "
            "reverses no sign",
            f"at rest it moves the budget by {data['budget_shift']:.2g}",
        ],
        data,
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


def _gate_shares(run: RunRecord) -> Iterator[GateShare]:
    """On the frames of a run's traces, and in training on recorded means over episodes, or else over epochs."""
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


def gate_saturated(arm: ArmRecord) -> Iterator[Finding]:
    gate = arm.first.config.signal.gate
    if gate == "off":
        return
    shares = [(run, share) for run in arm.runs for share in _gate_shares(run)]
    for state, bound in (("open", f">= {OPEN:g}"), ("closed", f"<= {CLOSED:g}")):
        lines, runs = [], []
        for of in dict.fromkeys(share.of for _, share in shares):
            alike = [(run, share) for run, share in shares if share.of == of]
            stuck = [(run, share) for run, share in alike if getattr(share, state) >= ALMOST]
            if stuck and 2 * len(stuck) >= len(alike):
                lines.append(_stuck_line([share for _, share in stuck], state, bound, len(alike)))
                runs += [run for run, _ in stuck]
        if lines:
            yield finding(
                "gate-saturated",
                about_arm(arm, runs=runs),
                lines,
                {"shares": [asdict(share) for _, share in shares]},
                fix=f"a gate that is {state} everywhere weighs nothing: {_remedy(gate, state)}, and look at its "
                "distribution with: vlmsafe diagnose gate RUN",
            )


def _remedy(gate: str, state: str) -> str:
    """What to do about a gate that is open, or closed, everywhere."""
    if gate.startswith(PREFIX):
        return f"change your function '{gate}'"
    if gate == "platt" and state == "open":
        return "danger was rare among its labels, so count more of it (--signal.calibration.horizon), or use calibrated"
    if gate in ("platt", "signed-calibrated"):
        return (
            "these frames look more dangerous than those it was fitted on, so fit it on others "
            "(--signal.calibration.policy initial)"
        )
    return f"calibrate it (--signal.gate {'signed-calibrated' if gate == 'signed' else 'calibrated'})"


def _stuck_line(stuck: Sequence[GateShare], state: str, bound: str, runs: int) -> str:
    least, medians = min(getattr(own, state) for own in stuck), sorted(own.median for own in stuck)
    span = f"{medians[0]:.3f}" if len(stuck) == 1 else f"{medians[0]:.3f} to {medians[-1]:.3f}"
    return (
        f"{len(stuck)} of {counted(runs, 'run')}: kappa {bound} on {least:.1%} of {stuck[0].of} or more, median {span} "
        f"({listed([own.run for own in stuck])})"
    )


@dataclass(frozen=True)
class TracedScore:
    """What the traces of an arm under one protocol say about its score."""

    arm: ArmRecord
    protocol: str
    onsets: int
    """Of contact."""
    scores: NDArray[np.float64]
    """c_vlm of the scored frames."""
    aucs: pl.DataFrame | None
    """Of `anticipation`; None where there are too few onsets."""

    @property
    def runs(self) -> list[RunRecord]:
        return [run for run in self.arm.runs if self.protocol in run.traces]


def read_traces(arm: ArmRecord, resamples: int) -> Iterator[TracedScore | Unchecked]:
    """The traces of an arm by protocol, for `TRACE_CHECKS`; what cannot be checked is said."""
    both = ("no-lead-time", "constant-score")
    protocols = sorted({name for run in arm.runs for name in run.traces})
    if kind_of(arm.first.config.signal.scorer).shuffles:
        reason = "a control: its episodes learn from the scores of others, and a trace shows their own"
        yield Unchecked(both, (about_arm(arm),), reason)
        return
    if not protocols:
        yield Unchecked(both, (about_arm(arm),), "no run has a trace; make them with: vlmsafe trace RUN")
    for protocol in protocols:
        tables = {run.name: run.traces[protocol] for run in arm.runs if protocol in run.traces}
        subject = about_arm(arm, protocol, [run for run in arm.runs if protocol in run.traces])
        try:
            traced = _traced_score(arm, protocol, stacked({arm.name: tables}), resamples)
        except InputError as error:
            yield Unchecked(both, (subject,), str(error))
            continue
        if traced.aucs is None:
            reason = f"{counted(traced.onsets, 'onset')} of contact; at least {FEWEST_ONSETS} needed"
            yield Unchecked(("no-lead-time",), (subject,), reason)
        elif verdict(traced.aucs) == "too few contacts":
            reason = "c_vlm rises before contact, but too few episodes have contact to rely on it"
            yield Unchecked(("no-lead-time",), (subject,), reason)
        yield traced


def _traced_score(arm: ArmRecord, protocol: str, steps: pl.DataFrame, resamples: int) -> TracedScore:
    if "negative" not in steps.columns:
        several = any(name.endswith("_negative") for name in steps.columns)
        raise InputError(f"its trace has {'several scorers' if several else 'no scorer'}")
    require_trace(steps, "audit", "", ("negative",))
    scores, onsets = steps.filter("scored")["negative"].drop_nulls().to_numpy(), _onsets(steps)
    if onsets < FEWEST_ONSETS:
        return TracedScore(arm, protocol, onsets, scores, None)
    signals = {"negative": floats(steps, "negative")}
    if "hazard" in steps.columns and steps["hazard"].null_count() == 0:
        signals["hazard"] = floats(steps, "hazard")
    aucs = anticipation(
        signals,
        floats(steps, "cost") > 0.0,
        episode_numbers(steps, "audit"),
        scored=steps["scored"],
        horizons=HORIZONS,
        resamples=resamples,
    )
    return TracedScore(arm, protocol, onsets, scores, aucs)


def constant_score(traced: TracedScore) -> Iterator[Finding]:
    """A score that warns of contact may vary as little as it likes; no other may.

    A similarity lies between -1 and 1. Novelty has a scale of its own, and is compared with its mean.
    """
    spread = float(np.std(traced.scores)) if len(traced.scores) else 0.0
    scorer = traced.arm.first.config.signal.scorer
    scale = abs(float(traced.scores.mean())) if len(traced.scores) and kind_of(scorer).learns else 1.0
    if spread < HARDLY * scale and (traced.aucs is None or not passes(traced.aucs)):
        yield finding(
            "constant-score",
            about_arm(traced.arm, traced.protocol, traced.runs),
            [
                f"c_vlm has a standard deviation of {spread:.2g} over {len(traced.scores)} frames, "
                f"mean {traced.scores.mean():.3f}"
            ],
            {"std": spread},
        )


def no_lead_time(traced: TracedScore) -> Iterator[Finding]:
    if traced.aucs is None or verdict(traced.aucs) != "not met":
        return
    remark = []
    if "hazard" in traced.aucs["signal"] and not passes(traced.aucs, "hazard"):
        remark = ["the simulator's own hazard fails the test on these episodes too: no score could have met it here"]
    rows = traced.aucs.to_dicts()
    yield finding(
        "no-lead-time",
        about_arm(traced.arm, traced.protocol, traced.runs),
        [f"{counted(traced.onsets, 'onset')} of contact", *map(_auc_line, rows), *remark],
        {"auc": rows, "onsets": traced.onsets},
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


ARM_CHECKS = (frames_show_cost, inert_signal_term, gate_saturated)
TRACE_CHECKS = (constant_score, no_lead_time)
