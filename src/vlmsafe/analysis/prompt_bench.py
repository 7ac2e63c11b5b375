"""The prompt bench: compare prompt sets and scorers on the same recorded frames before training with them.

Every candidate gives r_vlm, c_vlm and a margin at each scored step. Two questions are asked: whether they detect
contact in the same step, and whether they rise before it (`vlmsafe.analysis.anticipation`). Signals are turned so that
a higher value means more danger: c_vlm, -r_vlm and -margin. Intervals resample episodes, with the same resamples for
all candidates. The difference of two candidates therefore has its own interval, which is much narrower than theirs.

The best of several candidates looks better than it is on the frames it was chosen on. Judge it on other frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis.anticipation import CONTROL, STANDARDISED, anticipation, standardise, steps_to_contact, verdict
from vlmsafe.analysis.auc import RESAMPLES, Float64, Int64, Mask, concordance, draw_resamples, number_episodes, pooled
from vlmsafe.analysis.gate_roc import OPEN, calibrated
from vlmsafe.errors import InputError
from vlmsafe.signals.gate import GATES
from vlmsafe.signals.rules import Scores

HORIZONS = (5, 10, 20, 40)
DIFFERENCE_HORIZON = 20
SIGNALS = ("c_vlm", "-r_vlm", "-margin")
HAZARD = "hazard"
"""The name of the simulator's own hazard among the candidates. The scorer `oracle` uses it; it need not be the best."""
RESERVED = (HAZARD, CONTROL)
"""Names that no candidate can have."""
_TAILS = (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class Candidate:
    """The scores of a scorer with a prompt set at every scored step, in the order of the steps."""

    name: str
    positive: Float64
    """r_vlm."""
    negative: Float64
    """c_vlm."""
    margin: Float64
    prompts: tuple[tuple[str, str], ...] = ()
    """The group, positive or negative, and the text of each similarity."""
    similarities: Float64 | None = None
    """[scored steps, prompts]."""
    gate: str = "prior-symmetric"
    """The gate that a run with this scorer would have; 'calibrated' is calibrated on these steps."""
    recorded_kappa: Float64 | None = None
    """kappa of scores that were recorded; None where the gate gives it."""

    def dangers(self) -> dict[str, Float64]:
        """Its signals by name; higher values mean more danger."""
        return dict(zip(SIGNALS, (self.negative, -self.positive, -self.margin), strict=True))


@dataclass(frozen=True)
class Bench:
    """The results, as tables."""

    aucs: pl.DataFrame
    """candidate, signal, horizon (null: in the same step), auc, low, high, positives, negatives, passes, criterion."""
    differences: pl.DataFrame
    """candidate, signal, horizon, difference of its AUC from that of the first candidate, low, high."""
    margins: pl.DataFrame
    """candidate, frames, quartiles of the margin, its medians in contact and without, gate, kappa, spread of c_vlm."""
    prompts: pl.DataFrame
    """candidate, group, prompt, mean, deviation, and AUCs of its similarity turned towards danger."""
    frames: int
    episodes: int
    contacts: int
    """Scored steps with cost."""
    onsets: int
    """Contacts, scored or not, that follow a step without contact."""

    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables, by the names of their files."""
        return {"aucs": self.aucs, "differences": self.differences, "margins": self.margins, "prompts": self.prompts}


def bench(steps: pl.DataFrame, candidates: Sequence[Candidate], *, resamples: int = RESAMPLES, seed: int = 0) -> Bench:
    """Compare candidates on the steps of a trace.

    `steps` has every step of every episode, in the order of time, with `episode` (a name that differs for each
    episode), `cost`, `scored` and, if there is one, `hazard`. For the question before contact, signals are standardised
    over the steps without contact of their episode. For contact in the same step they are raw.
    """
    names = [candidate.name for candidate in candidates]
    if not candidates or len({*names, *RESERVED}) < len(names) + len(RESERVED):
        raise InputError(
            f"the prompt bench needs candidates with different names, other than {' and '.join(RESERVED)}; "
            f"got: {', '.join(names)}"
        )
    view = _View.of(steps, resamples, seed)
    for candidate in candidates:
        view.check(candidate)
    aucs = [row for candidate in candidates for row in view.judged(candidate.name, candidate.dangers())]
    if "hazard" in steps.columns and not steps.filter("scored")["hazard"].is_null().any():
        hazard = steps.filter("scored")["hazard"].cast(pl.Float64).to_numpy()
        aucs += view.judged(HAZARD, {HAZARD: hazard})
    aucs += view.judged(CONTROL, {})
    first = candidates[0]
    return Bench(
        aucs=pl.DataFrame(aucs, schema=_AUC_SCHEMA),
        differences=pl.DataFrame(
            [row for other in candidates[1:] for row in view.differences(other, first)], schema=_DIFFERENCE_SCHEMA
        ),
        margins=pl.DataFrame([view.margins(candidate) for candidate in candidates], infer_schema_length=None),
        prompts=pl.DataFrame(
            [row for candidate in candidates for row in view.prompts(candidate)], schema=_PROMPT_SCHEMA
        ),
        frames=int(view.known.sum()),
        episodes=view.drawn.shape[1],
        contacts=int(view.touched[view.known].sum()),
        onsets=int((view.touched & ~view.touched_before).sum()),
    )


_INTERVAL: dict[str, Any] = {"low": pl.Float64, "high": pl.Float64}
_WHO: dict[str, Any] = {"candidate": pl.String, "signal": pl.String, "horizon": pl.Int64}
_AUC_SCHEMA: dict[str, Any] = {
    **_WHO, "auc": pl.Float64, **_INTERVAL, "positives": pl.Int64, "negatives": pl.Int64, "passes": pl.Boolean,
    "criterion": pl.String,
}  # fmt: skip
_DIFFERENCE_SCHEMA: dict[str, Any] = {**_WHO, "difference": pl.Float64, **_INTERVAL}
_PROMPT_SCHEMA: dict[str, Any] = {
    "candidate": pl.String, "group": pl.String, "prompt": pl.String, "mean": pl.Float64, "std": pl.Float64,
    **{f"{what}_{name}": pl.Float64 for what in ("contact", "ahead") for name in ("auc", "low", "high")},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class _View:
    """The steps as arrays: which are in contact, which follow a contact, which were scored."""

    numbers: Int64
    touched: Mask
    touched_before: Mask
    known: Mask
    drawn: Float64
    resamples: int
    seed: int

    @classmethod
    def of(cls, steps: pl.DataFrame, resamples: int, seed: int) -> _View:
        for name in ("episode", "cost", "scored"):
            if name not in steps.columns:
                raise InputError(f"the prompt bench reads the steps of a trace; they have no column '{name}'")
        touched = (steps["cost"] > 0.0).to_numpy()
        numbers, count = number_episodes(steps["episode"], len(touched))
        known = steps["scored"].to_numpy()
        if not known.any():
            raise InputError("no step of the trace was scored, so there is no frame to compare prompts on")
        begins = np.append(True, np.diff(numbers) != 0)
        before = np.append(False, touched[:-1]) & ~begins
        return cls(numbers, touched, before, known, draw_resamples(count, resamples, seed), resamples, seed)

    def check(self, candidate: Candidate) -> None:
        wanted = int(self.known.sum())
        for name in ("positive", "negative", "margin"):
            values = getattr(candidate, name)
            if values.shape != (wanted,) or not np.isfinite(values).all():
                raise InputError(
                    f"'{candidate.name}' has {name} of shape {values.shape}; expected one finite number for each "
                    f"of the {wanted} scored steps"
                )

    def judged(self, name: str, dangers: Mapping[str, Float64]) -> list[dict[str, Any]]:
        """AUCs of one candidate, in contact and before it; without signals, those of the step index."""
        spread = {signal: self._everywhere(values) for signal, values in dangers.items()}
        table = anticipation(
            spread, self.touched, self.numbers, scored=self.known, horizons=HORIZONS, resamples=self.resamples,
            seed=self.seed,
        )  # fmt: skip
        rows: list[dict[str, Any]] = []
        wanted = dangers or {CONTROL: self._step_numbers()}
        for signal, values in wanted.items():
            contact = pooled(values, self.touched[self.known], self.numbers[self.known], self.drawn)
            found = verdict(table, signal) if name not in (CONTROL, HAZARD) else None
            met = None if found is None else found == "met"
            who = {"candidate": name, "signal": signal, "passes": met, "criterion": found}
            ahead = table.filter(signal=signal, form=STANDARDISED).to_dicts()
            for row in ({**asdict(contact), "horizon": None}, *ahead):
                rows.append({**who, **{key: row[key] for key in _AUC_SCHEMA if key not in who}})
        return rows

    def differences(self, candidate: Candidate, first: Candidate) -> list[dict[str, Any]]:
        """Its AUCs minus those of the first candidate, in contact and at one horizon before it."""
        own, numbers, touched = candidate.dangers(), self.numbers[self.known], self.touched[self.known]
        near = steps_to_contact(self.touched, self.numbers)[self.known] <= DIFFERENCE_HORIZON
        rows = []
        for signal, other in first.dangers().items():
            asked = {
                None: (own[signal], other, touched, np.ones_like(touched)),
                DIFFERENCE_HORIZON: (own[signal], other, near, ~touched),
            }
            for horizon, (one, two, positive, classified) in asked.items():
                episodes = numbers[classified]
                pair = (one[classified], two[classified])
                if horizon is not None:
                    pair = (standardise(pair[0], episodes), standardise(pair[1], episodes))
                found = difference(*pair, positive[classified], episodes, self.drawn)
                names = ("difference", "low", "high")
                who = {"candidate": candidate.name, "signal": signal, "horizon": horizon}
                rows.append({**who, **dict(zip(names, found, strict=True))})
        return rows

    def margins(self, candidate: Candidate) -> dict[str, Any]:
        """Quartiles of the margin, kappa of the scorer's own gate, and how much c_vlm varies."""
        margin, touched = candidate.margin, self.touched[self.known]
        low, middle, high = np.quantile(margin, [0.25, 0.5, 0.75])
        kappa = _kappa(candidate)
        return {
            "candidate": candidate.name,
            "frames": len(margin),
            "margin_q25": float(low),
            "margin_median": float(middle),
            "margin_q75": float(high),
            "positive_margins": float((margin > 0.0).mean()),
            "contact_margin": float(np.median(margin[touched])) if touched.any() else None,
            "free_margin": float(np.median(margin[~touched])) if not touched.all() else None,
            "gate": candidate.gate,
            "kappa_median": None if kappa is None else float(np.median(kappa)),
            "kappa_open": None if kappa is None else float((kappa > OPEN).mean()),
            "c_vlm_mean": float(candidate.negative.mean()),
            "c_vlm_std": float(candidate.negative.std()),
            "c_vlm_within": _within(candidate.negative, self.numbers[self.known]),
        }

    def prompts(self, candidate: Candidate) -> list[dict[str, Any]]:
        """Each prompt by itself. Positive prompts are negated, so an AUC above one half means more danger."""
        if candidate.similarities is None:
            return []
        numbers, touched = self.numbers[self.known], self.touched[self.known]
        near = steps_to_contact(self.touched, self.numbers)[self.known] <= DIFFERENCE_HORIZON
        free = numbers[~touched]
        rows = []
        for (group, text), column in zip(candidate.prompts, candidate.similarities.T, strict=True):
            values = np.asarray(column, np.float64)
            turned = -values if group == "positive" else values
            contact = pooled(turned, touched, numbers, self.drawn)
            ahead = pooled(standardise(turned[~touched], free), near[~touched], free, self.drawn)
            row: dict[str, Any] = {"candidate": candidate.name, "group": group, "prompt": text}
            row |= {"mean": float(values.mean()), "std": float(values.std())}
            for what, found in (("contact", contact), ("ahead", ahead)):
                row |= {f"{what}_{name}": getattr(found, name) for name in ("auc", "low", "high")}
            rows.append(row)
        return rows

    def _everywhere(self, values: Float64) -> Float64:
        spread = np.full(len(self.known), np.nan)
        spread[self.known] = values
        return spread

    def _step_numbers(self) -> Float64:
        places = np.arange(len(self.numbers))
        begins = np.append(True, np.diff(self.numbers) != 0)
        numbers = places - np.maximum.accumulate(np.where(begins, places, 0)) + 1
        return numbers[self.known].astype(np.float64)


def difference(
    one: Float64, other: Float64, positive: Mask, episodes: Int64, resamples: Float64
) -> tuple[float | None, float | None, float | None]:
    """The AUC of one signal minus that of another on the same steps, and its 95 % interval over `resamples`.

    An AUC is linear in its matrix of concordances, so the difference is the AUC of the difference of two matrices.
    """
    count = resamples.shape[1]
    wins = concordance(one, positive, episodes, count) - concordance(other, positive, episodes, count)
    above, below = (np.bincount(episodes[which], minlength=count).astype(np.float64) for which in (positive, ~positive))
    total = float(above.sum() * below.sum())
    if not total:
        return None, None, None
    pairs = (resamples @ above) * (resamples @ below)
    chosen, pairs = resamples[pairs > 0.0], pairs[pairs > 0.0]
    low, high = np.quantile(((chosen @ wins) * chosen).sum(axis=1) / pairs, _TAILS) if len(pairs) else (None, None)
    return float(wins.sum()) / total, None if low is None else float(low), None if high is None else float(high)


def _kappa(candidate: Candidate) -> Float64 | None:
    """kappa of the gate that a run would have; None if it cannot be calibrated on these steps."""
    if candidate.recorded_kappa is not None:
        return candidate.recorded_kappa
    gate = calibrated(candidate.margin) if candidate.gate == "calibrated" else GATES[candidate.gate]
    return None if gate is None else gate(Scores(candidate.positive, candidate.negative, candidate.margin))


def _within(values: Float64, episodes: Int64) -> float:
    """Deviation around the mean of each episode. Differences between episodes cannot warn within one."""
    counts = np.maximum(np.bincount(episodes), 1)
    centred = values - (np.bincount(episodes, weights=values) / counts)[episodes]
    return float(np.sqrt((centred**2).mean()))
