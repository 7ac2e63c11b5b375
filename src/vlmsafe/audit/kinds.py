"""Every kind of finding: its code, severity, title, what it means and what to do about it.

The order is the order of a printed audit. `topic` is the module of `audit/checks` that finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How much a finding takes away from a comparison."""

    NOTE = 1
    """Worth knowing; the comparison stands."""
    WARNING = 2
    """The comparison shows less than it seems to."""
    ERROR = 3
    """The comparison does not show what it says."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class FindingKind:
    """One thing that the audit looks for."""

    code: str
    topic: str
    """The module of `audit/checks` with the check."""
    severity: Severity
    """The usual one; `meaning` says when a finding has another."""
    title: str
    meaning: str
    """When it is reported."""
    remedy: str
    """What to do about it, in general. A finding may name the command or the run."""


_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_ALL = (
    FindingKind(
        "unmatched-arms", "design", _ERROR, "arms differ in more than the comparison names",
        "The arms differ in settings that the comparison does not name. The finding lists them. It is a warning "
        "between two arms with signals that no claim compares.",
        "train one arm with the other arm's settings, or name these settings as part of the comparison",
    ),
    FindingKind(
        "inconsistent-arm", "design", _ERROR, "runs of one arm have different settings",
        "Runs of one arm have different settings, or prompts with the same name and different text.",
        "train the odd runs again with the settings of the others, or make them an arm of their own",
    ),
    FindingKind(
        "seed-sets-differ", "design", _WARNING, "the arms have different seeds",
        "The two arms do not have the same seeds.",
        "train the missing seeds, or compare the shared ones only",
    ),
    FindingKind(
        "too-few-seeds", "design", _WARNING, "too few seeds for the claimed test",
        "The smallest p that this many runs can give is not below alpha, or a t-test or bootstrap has fewer than three "
        "runs.",
        "train more seeds per arm, or claim no significance",
    ),
    FindingKind(
        "duplicate-runs", "design", _ERROR, "runs that should differ are the same",
        "Several runs of an arm have the same seed, or runs with different seeds have equal records. Equal evaluations "
        "alone are a warning.",
        "keep one run per seed, and train copies again: repetitions with one seed are not independent",
    ),
    FindingKind(
        "identical-arms", "design", _WARNING, "what was varied changed nothing",
        "Runs of two arms with the same seed are equal to the last digit, so the setting under test has no effect.",
        "find out whether the setting under test reaches the learner; on an environment without cost some methods are "
        "the same",
    ),
    FindingKind(
        "worlds-differ", "design", _ERROR, "results from different versions of the environment",
        "Runs that are compared, runs of one arm, or a run and its evaluation come from different versions of the "
        "environment. It is a note where all runs of an arm come from one earlier version.",
        "train the runs of the earlier version again, and evaluate them in the same version",
    ),
    FindingKind(
        "code-differs", "code", _WARNING, "results come from different code",
        "Packages, Python, the revision or the scorer's weights differ between the arms, or the source of your own "
        "environment or scorer differs between arms, runs of an arm, parts of a continued run, or a run and its "
        "evaluation or trace. It is a note where that source is not known.",
        "train both arms with one version of everything, and evaluate with it",
    ),
    FindingKind(
        "unreadable-run", "runs", _ERROR, "a run that cannot be read",
        "A file of a run cannot be read.",
        "restore the file, or train the run again",
    ),
    FindingKind(
        "incomplete-run", "runs", _ERROR, "a run that ended before its last epoch",
        "A run has fewer epochs than configured. It is a warning while the run is still running.",
        "continue the run, or leave its seed out of every arm",
    ),
    FindingKind(
        "untrained-checkpoint", "runs", _ERROR, "an untrained policy among the results",
        "The only checkpoint is the untrained start, or an evaluation used one.",
        "train the run again, and evaluate a trained checkpoint",
    ),
    FindingKind(
        "config-changed", "runs", _ERROR, "settings that are not those the run was trained with",
        "config.yaml or prompts.yaml is not what the checkpoint was trained with.",
        "undo the change; it is not what was trained",
    ),
    FindingKind(
        "not-finite", "runs", _ERROR, "results that are missing or not finite",
        "A return, cost or score is missing or not finite, or some runs of an arm lack the outcome of a claim.",
        "find out where the numbers went wrong; a mean over what is left is not the arm's",
    ),
    FindingKind(
        "record-disagrees", "runs", _ERROR, "a record that contradicts itself",
        "Epochs are out of order, returns do not add up, the budget is not the configured one, or a verdict is not "
        "cost > d or cost > 4 d.",
        "the record was edited or written by other code: train again, or evaluate again",
    ),
    FindingKind(
        "replay-disagrees", "runs", _ERROR, "a multiplier that does not follow from its own record",
        "Lambda does not follow from the recorded costs and the settings (to 1e-6).",
        "the settings or the record are not those of the run: train it again",
    ),
    FindingKind(
        "missing-evaluation", "evaluations", _WARNING, "runs without the evaluation that the others have",
        "Some or all runs of a comparison lack the evaluation that it rests on.",
        "evaluate the runs with: vlmsafe evaluate RUN --protocol PROTOCOL",
    ),
    FindingKind(
        "evaluations-differ", "evaluations", _ERROR, "arms evaluated under different conditions",
        "Episodes, scenarios, traffic, budget or the kind of actions differ between the arms. Different checkpoints "
        "alone are a warning.",
        "evaluate all runs anew with one command: vlmsafe evaluate RUN --protocol PROTOCOL --overwrite",
    ),
    FindingKind(
        "evaluated-on-training-scenarios", "evaluations", _ERROR, "evaluation scenarios from the training pool",
        "Evaluation scenarios lie in the training pool. The finding says how many were visited where training recorded "
        "it.",
        "evaluate with: vlmsafe evaluate RUN --protocol held-out; until then this measures the training distribution, "
        "not transfer",
    ),
    FindingKind(
        "repeated-episodes", "evaluations", _WARNING, "evaluation episodes that are repetitions of each other",
        "There are fewer scenarios than episodes, and actions are deterministic.",
        "evaluate as many scenarios as episodes: repetitions make an interval narrower and say nothing",
    ),
    FindingKind(
        "stale-evaluation", "evaluations", _WARNING, "an evaluation of another checkpoint than the last",
        "The evaluated checkpoint is not the last one, or one table has several.",
        "evaluate the last checkpoint of every run, or the same epoch of all, chosen before looking",
    ),
    FindingKind(
        "shared-simulator", "evaluations", _WARNING, "evaluation episodes that depend on each other",
        "The protocol runs its episodes in one simulator, so that each depends on those before.",
        "use a protocol with a fresh simulator per episode, such as held-out",
    ),
    FindingKind(
        "shaped-return", "metrics", _ERROR, "a return that contains the bonus, compared as if it were the task's",
        "A claim is on the logged return of an arm with a bonus, or logged and environment return order the arms in "
        "opposite ways, both by more than two standard errors. It is a warning where an evaluation's return is the "
        "training return with the bonus in it.",
        "compare the environment's return (env_return), best from an evaluation: it has no bonus",
    ),
    FindingKind(
        "cost-tracks-distance", "metrics", _WARNING, "cost that tracks the distance travelled",
        "Cost correlates with path, progress or length, by value or rank: 0.8 over runs or arms with one-sided "
        "p < 0.005, or 0.8 over 30 episodes or more, pooled or within arms.",
        "hold cost against progress (vlmsafe diagnose returns RUN...): an arm that does less costs less; compare "
        "cost per distance, or arms that complete the task",
    ),
    FindingKind(
        "passive-policy", "metrics", _WARNING, "low cost by doing nothing",
        "At least 20 % of an arm's episodes, or 80 % of a run's, cost nothing and return less than a threshold, and "
        "the arm's mean cost is within its budget, or at least a fifth below that of another arm.",
        "report cost together with progress; an arm that stands still is not safer",
    ),
    FindingKind(
        "progress-differs", "metrics", _WARNING, "costs that do not compare, because one arm gets much further",
        "A comparison is about cost. One arm gets at least 1.5 times as far as the other in an evaluation, the 95 % "
        "intervals over runs do not overlap, and the arm that gets less far does not cost more. It is not reported of "
        "an arm that passive-policy names.",
        "compare cost per distance (the report's table 'tails'), or arms that get equally far",
    ),
    FindingKind(
        "over-budget", "metrics", _WARNING, "an arm that does not meet its budget",
        "The mean evaluation cost of a compared arm is above its budget, and so is the one-sided 95 % t bound over "
        "runs. It is a note if only the mean is above. An arm that ignores cost (PPO) has no budget to meet.",
        "do not call this arm safe; train longer or with a stronger multiplier, or say which budget it does meet",
    ),
    FindingKind(
        "few-episodes-decide", "verdicts", _WARNING, "a difference that a few episodes make",
        "Without the costliest 2 % of each arm's episodes the difference changes sign or shrinks to a fifth, or the "
        "test decides differently and it shrinks to a half. Checked where the test decides, or where the costs differ "
        "by two standard errors or by half.",
        "show the episodes, report rates as well as means, and evaluate more of them",
    ),
    FindingKind(
        "window-dependent", "verdicts", _WARNING, "a conclusion that depends on the window of epochs",
        "The test decides differently on the final epoch, the last 5 or the last 10, or the difference changes sign by "
        "two standard errors each.",
        "say beforehand which epochs count, and show the others",
    ),
    FindingKind(
        "protocol-dependent", "verdicts", _WARNING, "a conclusion that depends on the evaluation",
        "The test decides differently on two evaluations of the same runs.",
        "say beforehand which evaluation counts, and show the others",
    ),
    FindingKind(
        "claims-changed", "claims", _WARNING, "claims that were not decided before the results were there",
        "By the study's frozen protocol, a claim with a test was added, changed or dropped after runs were finished. "
        "Seeds that were added or removed by then are a warning too. It is a note where only other parts of the design "
        "were changed, or where runs were there when the study was first frozen.",
        "call these claims exploratory, or test them on new seeds that are planned before they are trained",
    ),
    FindingKind(
        "many-tests", "verdicts", _NOTE, "several tests at a level meant for one",
        "There are five or more claimed tests without a correction.",
        "correct for it (correction: holm in the claims), or say which test was decided on beforehand",
    ),
    FindingKind(
        "replication-noise", "verdicts", _WARNING, "repetitions of one arm that differ as much as the arms do",
        "An arm with equal settings under another name is at least half as far from the first arm as the second arm "
        "is.",
        "pool the repetitions, and train more seeds: this much is chance",
    ),
    FindingKind(
        "baseline-dependent", "verdicts", _WARNING, "a conclusion that depends on the baseline",
        "An arm is better than one baseline and worse than another of the same learner, by 10 % of its own mean or "
        "more.",
        "compare with the baseline that is matched in everything but the signal, and with no other",
    ),
    FindingKind(
        "inert-signal-term", "signal", _WARNING, "a signal term too small to move the multiplier",
        "Replayed without the term, lambda differs by less than 1 % of its largest value and no sign is reversed, in "
        "every run; or the signal has no route.",
        "do not attribute a difference to this term; raise eta_2 (--multiplier.signal-weight) to the size of the cost "
        "gap, or give the signal a multiplier of its own (--signal.multiplier.kind adam)",
    ),
    FindingKind(
        "gate-saturated", "signal", _WARNING, "a gate that is open or closed almost everywhere",
        "Kappa is at least 0.9 (or at most 0.1) on 95 % of traced frames, or of recorded means, in half the runs or "
        "more.",
        "calibrate the gate (--signal.gate calibrated), and look at its distribution with: vlmsafe diagnose gate RUN",
    ),
    FindingKind(
        "constant-score", "signal", _WARNING, "a score that hardly varies",
        "c_vlm has a standard deviation below 0.01 in the trace, and does not warn of contact. For a scorer that "
        "learns, such as RND, it is 1 % of the mean instead.",
        "choose prompts, or a scorer, that tell these frames apart",
    ),
    FindingKind(
        "no-lead-time", "signal", _WARNING, "a score that does not rise before contact",
        "The trace does not meet the criterion of lead time: standardised c_vlm at K = 20 or 40. The check needs ten "
        "onsets, and contact in enough episodes to rely on a rise. The finding says so if the simulator's own hazard "
        "fails too.",
        "do not speak of anticipation; look at what the score reacts to (vlmsafe diagnose lead-time RUN), and try "
        "other prompts on the same trace before training again",
    ),
    FindingKind(
        "frames-show-cost", "signal", _ERROR, "frames that show the cost to the scorer",
        "Frames were scored with the simulator's cost indicators in them.",
        "train without --frame-indicators: a scorer that sees them reads the cost, it does not foresee it",
    ),
)  # fmt: skip

KINDS: dict[str, FindingKind] = {kind.code: kind for kind in _ALL}
"""Every kind of finding by its code."""
