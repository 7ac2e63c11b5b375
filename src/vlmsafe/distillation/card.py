"""The model card, made from what was recorded and measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vlmsafe.analysis.anticipation import PUBLISHED, RAW, STANDARDISED
from vlmsafe.distillation.data import known_name

_TEXT = """# Model card: the embedded scorer

A small dual encoder that scores rendered frames against English prompts, as CLIP does, and ships with `vlmsafe`. It was
trained on the simulators of this package with captions written from their privileged state. That makes it a scorer that
is always there, and a positive control for the question whether a score *can* warn of a contact. **It is no evidence
about CLIP or any other pretrained model, and it knows nothing of scenes outside these simulators.**

## Model

An image tower of convolutions and a text tower of two transformer layers over {words} words end in one space of 128
dimensions, where similarity is the cosine. It scores stacks of two frames, four steps apart, which show speed. Each
is seen twice, whole and its middle half, at 128 pixels.{pooled}

## Data

{stacks} frame stacks of {episodes} short pieces of episodes, on scenarios of the training pools only. They begin
anywhere on the way. Of those with a contact, three quarters end soon after it.

{data}

Recordings, agents and all figures below are of these versions of the environments. A version rises when a world
changes. In a world of another version this model was neither trained nor measured, and a note says so where it scores
frames of one.

Drivers, by episodes:

{drivers}

The agents among them drive in these worlds: policies that learned from scratch, and clones of few steps, which make the
mistakes of a driver that almost drives well. `expert` is the scripted driver, and the kinds after it are the scripted
driver with a fault that begins after a while. Cost is never drawn into a frame.

Captions come from a grammar over facts: place in the lane or on the track, heading, speed, gaps, the way to a goal,
touching something, being off the road or in a zone that costs, and what happens next. Of each world they say what its
simulator can tell: of goals and zones nothing where there are none. A contact is danger in every world, also where it
costs nothing. "About to" is fully true up to 20 steps before the event, or two seconds where these are fewer steps, and
not at all twice as long before, or as true as the simulator's geometric hazard where that is more, and false while the
event lasts: then it is "touching", "off the road" or "in a zone", and still danger. Where the recording ends too soon
to tell, it is left open. One caption in six denies something. One in ten lacks a word, as a prompt does whose word is
not known. The shipped prompt sets and a list of sentences were kept out of the grammar.

## Training

{steps} steps of {frames} stacks and {captions} captions with AdamW. The true and the false stacks of a caption weigh
the same. Chances of a world's stacks, danger as often as none: {weights}. Views are mirrored, moved by up to {shift}
pixels and given noise. The weights are a running mean.

Captions are also drawn as prompt sets, four positive and four negative ones. The mean similarity to the negative ones
is trained to tell whether a contact comes, and the difference of the two means to be above zero where a scene is safe
and below zero where it is dangerous.{caution}

{candidates}

## Held-out figures

Scenarios of the held-out pools, wordings that the grammar cannot write. Intervals are 95 %, from 2,000 resamples of
whole episodes. A frame is *safe* where danger is below 0.1 and *hazardous* from 0.5 on.

How often the positive prompts outscore the negative ones on safe frames, and the reverse on hazardous ones; the AUC of
the negated margin for hazardous frames and for frames whose step cost something:

{groups}

Each prompt of an environment's own set, against the fact it describes:

{prompts}

Sentences kept out of the grammar, on all frames of which the fact is known:

{wordings}

## Does it warn?

The paper's test of anticipation, on deterministic episodes of trained agents without vision-language signals, on
held-out scenarios: AUC of steps without contact for a contact within the next K steps. Scores are standardised over
the steps without contact of the episode, over all its steps as in the paper, or taken as they are. Figures that were
measured before the first form existed lack it, and their criterion was judged by the second.

`negative` is c_vlm, the signal that was chosen beforehand, `positive` r_vlm; `margin` is negated; `kappa` is the gate
calibrated on frames of a random driver; `state` is a network on the simulator's own observation, trained on recordings
of the same world, as a ceiling; `hazard` is computed from the simulator's geometry; `step` is the number of the step.
On FormulaOne-L2 the paper's CLIP scores reached, as published, 0.348 to 0.462 (c_vlm), 0.371 to 0.497 (kappa), 0.322 to
0.465 (r_vlm) and 0.356 to 0.493 (margin). The criterion: `negative` at least 0.60 at K = 20 or 40, its interval above
0.5, above `step`.

{warnings}
{indicators}## Limits

- It has seen these simulators, these renderers and these colours. Other frames give numbers without meaning.
- Words it never saw are replaced by one of the same meaning where a list has one, and otherwise left out, with a note.
- Left and right are the same to it.
- What it calls danger was learnt from the drivers above; an agent that fails in another way may get no warning.

{command}
"""

_POOLED = """ What convolutions find is used by its place in the
frame, and of two of their stages also the strongest response anywhere."""

_WARNING = """### `{env}`

{agent}: {episodes} episodes of {steps} steps in all, of which {contact_steps} are in contact, after {onsets} onsets.
{tables}
The criterion is **{verdict}**.{caveat}

{choice}
"""

_FORMS = {
    STANDARDISED: "Standardised over the steps without contact",
    PUBLISHED: "Standardised over all steps, as published",
    RAW: "Without standardising",
}
"""The tables of a test. Figures measured before version 0.3 have no clean form."""

_CAVEAT = """
`hazard`, which knows where everything is, does not meet it either: within an episode of this agent, nearness hardly
tells when a contact comes. That says more of the agent, and of standardising, than of a score."""

_INDICATORS = """## What cost indicators give away

Bullet Safety-Gym was published with the current cost drawn into its frames. FormulaOne's original draws it too, but
only the pictures of its camera `track` show it, not those of its default camera, and the paper does not say which
camera it used. Version 1 of FormulaOne in this package had another camera, whose pictures could show it. This package
leaves the indicators out by default; the scorer never saw them. The same episodes with and without: AUC for the cost of
the current step, and by how much the indicators move the mean of a signal, in its own standard deviations, on steps
that cost something and on the others.

{table}

"""


def card(data: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    settings = data["candidates"][data["chosen"]]["settings"]
    caution = settings.get("caution", 0.5)
    return _TEXT.format(
        pooled=_POOLED if settings.get("pooled") else "",
        caution="" if caution == 0.5 else f" In this, dangerous scenes weigh {caution:.0%} and safe ones the rest.",
        words=data["words"],
        stacks=f"{sum(data['frames'].values()):,}",
        episodes=f"{sum(data['episodes'].values()):,}",
        data=_table(
            ("environment", "version", "episodes", "with a frame that cost", "frames", "scenarios"),
            (
                (
                    f"`{env}`",
                    data["versions"][known_name(env)] or "none",
                    data["episodes"][env],
                    data["episodes_with_contact"][env],
                    data["frames"][env],
                    len(held),
                )
                for env, held in data["scenarios"].items()
            ),
        ),
        drivers=_drivers(data["drivers"]),
        weights=", ".join(f"{name} {share:.1%}" for name, share in data["world_shares"].items()),
        steps=f"{data['schedule']['steps']:,}",
        frames=data["schedule"]["frames"],
        captions=data["schedule"]["captions"],
        shift=data["schedule"]["shift"],
        candidates=_candidates(data["candidates"], data["chosen"]),
        groups=_table(
            (
                "environment",
                "frames",
                "episodes",
                "safe: positive higher",
                "hazardous: negative higher",
                "AUC hazardous",
                "AUC contact",
            ),
            (
                (
                    f"`{row['env']}`",
                    row["frames"],
                    row["episodes"],
                    _share(row["safe"]),
                    _share(row["hazardous"]),
                    _auc(row["danger"]),
                    _auc(row["contact"]),
                )
                for row in figures["frames"]
            ),
        ),
        prompts=_table(
            ("environment", "prompt", "fact", "AUC"),
            ((f"`{row['env']}`", row["text"], row["fact"], _auc(row)) for row in figures["prompts"]),
        ),
        wordings=_table(
            ("sentence", "fact", "AUC"), ((row["text"], row["fact"], _auc(row)) for row in figures["wordings"])
        ),
        warnings="\n".join(_warning(test) for test in figures["anticipation"]),
        indicators=_indicators(figures["indicators"]),
        command="Its stages are those of `vlmsafe embedded build`, which prints and writes all of the above.",
    )


def _drivers(drivers: Mapping[str, Mapping[str, int]]) -> str:
    """One row per world."""
    kinds = sorted({kind for counts in drivers.values() for kind in counts})
    return _table(
        ("world", *kinds), ((name, *(counts.get(kind, 0) for kind in kinds)) for name, counts in drivers.items())
    )


def _candidates(candidates: Sequence[Mapping[str, Any]], chosen: int) -> str:
    """How the model was chosen. The figures are not held out: they made the choice."""
    if len(candidates) == 1:
        return "No settings were compared: this is the only model that was trained."
    worlds = list(candidates[0]["worlds"])
    shown = ("lead", "safe", "hazardous")
    table = _table(
        ("candidate", "settings", *(f"{name}: AUC, safe, hazardous" for name in worlds), "score"),
        (
            (
                f"**{number}**" if number == chosen else number,
                ", ".join(f"{name} {value:g}" for name, value in one["settings"].items()),
                *(", ".join(f"{one['worlds'][name][key]:.3f}" for key in shown) for name in worlds),
                f"{one['score']:.4f}",
            )
            for number, one in enumerate(candidates)
        ),
    )
    return (
        "Candidates were compared on recordings of the last tenth of the training pools, with the shipped prompt sets: "
        "the\nAUC of c_vlm for a contact within 20 steps, standardised within pieces, and the shares of safe and "
        f"hazardous frames\nwhose prompts are in the right order. The one in bold is the model.\n\n{table}"
    )


def _warning(test: Mapping[str, Any]) -> str:
    """The section of one tested agent."""
    return _WARNING.format(
        env=test["env"],
        agent=test["agent"],
        episodes=test["episodes"],
        steps=f"{test['steps']:,}",
        contact_steps=f"{test['contact_steps']:,}",
        onsets=f"{test['onsets']:,}",
        tables="\n".join(
            f"{title}:\n\n{_anticipation(test['rows'], form)}\n"
            for form, title in _FORMS.items()
            if any(row["form"] == form for row in test["rows"])
        ),
        verdict="met" if test["passes"] else "not met",
        caveat="" if test["passes"] or test["hazard_passes"] else _CAVEAT,
        choice=test["choice"],
    )


def _indicators(tests: Sequence[Mapping[str, Any]]) -> str:
    """The section on cost indicators; empty if no tested world has them."""
    if not tests:
        return ""
    header = ("environment", "signal", "AUC without", "AUC with", "moved, cost", "moved, no cost")
    return _INDICATORS.format(
        table=_table(
            header,
            (
                (
                    f"`{test['env']}`",
                    f"`{row['signal']}`",
                    _auc(row["without"]),
                    _auc(row["with"]),
                    _moved(row["moved_in_cost"]),
                    _moved(row["moved_elsewhere"]),
                )
                for test in tests
                for row in test["rows"]
            ),
        )
    )


def _moved(by: float | None) -> str:
    return "none" if by is None else f"{by:+.2f}"


def _anticipation(rows: Iterable[Mapping[str, Any]], form: str) -> str:
    chosen = [row for row in rows if row["form"] == form]
    signals, horizons = dict.fromkeys(row["signal"] for row in chosen), dict.fromkeys(row["horizon"] for row in chosen)
    cells = {(row["signal"], row["horizon"]): _auc(row) for row in chosen}
    return _table(
        ("signal", *(f"K = {horizon}" for horizon in horizons)),
        ((f"`{signal}`", *(cells[signal, horizon] for horizon in horizons)) for signal in signals),
    )


def _auc(row: Mapping[str, Any]) -> str:
    return "none" if row["auc"] is None else f"{row['auc']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _share(row: Mapping[str, Any]) -> str:
    return "none" if row["share"] is None else f"{row['share']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"


def _table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
