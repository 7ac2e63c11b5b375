"""The card of a distilled scorer, made from what was recorded and measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vlmsafe.analysis.anticipation import CONTROL

_TEXT = """# Model card: a scorer distilled from `{teacher}`

A small model that reproduces the similarities of `{teacher}` on frames of {envs}. Use it as
`--scorer embedded:<this folder>/weights.safetensors` with the prompts below. It knows these prompts and no others, and
it has seen no other environment. It can be no better than its teacher.

## Prompts

{prompts}
{cost_text}
## Data

{data}

Frames are {apart} steps apart, and a stack has two of them. Recordings of training scenarios keep some moments of an
episode, and three quarters of the episodes end soon after their first cost. Those of held-out scenarios, on which
everything below is measured, are whole episodes.

Drivers, by episodes:

{drivers}

{policies}

## Training

{steps} steps of {stacks} frame stacks with AdamW, seed {seed}. The model has {parameters} parameters. It sees each
frame twice, whole and its middle half, as squares of {size} pixels. Errors count in standard deviations of each column.
Half of the stacks that are drawn are within 40 steps of a cost, if some are.{mirror} {scale}

## Agreement with the teacher

On {held_frames} frame stacks of {held_episodes} held-out episodes. The error is the mean absolute difference of
similarities. The last columns have the error of always saying the teacher's mean on training frames, and the teacher's
mean and deviation here.

{agreement}

## Does it know cost?

AUC for the cost of the present step, and for a cost within the next K steps from steps without cost. The latter are
standardised over the steps without cost of the episode. `{control}` is the number of the step, as the trivial control.
`c_vlm` is the mean score of the negative prompts, and `margin` is negated. Intervals are 95 %, from {resamples}
resamples of whole episodes. The criterion, on `student c_vlm`: at least 0.60 at K = 20 or 40, the interval above 0.5,
above `{control}`.

{warnings}
## Speed

{speed}

## Made by

```sh
{command}
```
"""


def student_card(data: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    held = figures["held_out"]
    return _TEXT.format(
        teacher=data["teacher"]["teacher"],
        envs=" and ".join(f"`{env}`" for env in data["versions"]),
        prompts=_prompts(data),
        cost_text=_cost_text(data["cost_within"]),
        data=_table(
            ("environment", "version", "scenarios", "episodes", "with cost", "frame stacks", "frame size"),
            [
                (
                    f"`{row['env']}`",
                    row["version"] or "the user's",
                    row["pool"],
                    row["episodes"],
                    row["with_cost"],
                    row["frames"],
                    row["frame_size"],
                )
                for row in (*data["recorded"], *held["recorded"])
            ],
        ),
        apart=data["apart"],
        drivers=_drivers([*data["recorded"], *held["recorded"]]),
        policies=_policies(data["policies"]),
        steps=f"{data['lessons']['steps']:,}",
        stacks=data["lessons"]["stacks"],
        seed=data["seed"],
        parameters=f"{data['parameters']:,}",
        size=data["size"],
        mirror=" Half of them are mirrored." if data["lessons"]["mirror"] else "",
        scale=_scale(data["bounds"]),
        held_frames=f"{held['frames']:,}",
        held_episodes=held["episodes"],
        agreement=_table(
            ("column", "Pearson", "Spearman", "error", "error of the mean", "mean", "deviation"),
            [
                (
                    row["column"],
                    _number(row["pearson"]),
                    _number(row["spearman"]),
                    f"{row['error']:.4f}",
                    f"{row['error_of_mean']:.4f}",
                    f"{row['mean']:.4f}",
                    f"{row['deviation']:.4f}",
                )
                for row in figures["agreement"]
            ],
        ),
        control=CONTROL,
        resamples=f"{figures['resamples']:,}",
        warnings=_warnings(figures["warnings"]),
        speed=_speed(figures["speed"]),
        command=data["command"],
    )


def _prompts(data: Mapping[str, Any]) -> str:
    prompts = data["teacher"]["prompts"]
    return "\n".join(f"- {group}: {text}" for group in ("positive", "negative") for text in prompts[group])


def _cost_text(within: int | None) -> str:
    if within is None:
        return ""
    return (
        f"- second target: cost within {within} steps\n\n"
        "The last one is no prompt of the teacher's. It is learned from the recorded cost, and may be used as a\n"
        "negative prompt. Its similarity is no probability, because frames near a cost are drawn more often than they\n"
        "occur.\n"
    )


def _scale(bounds: list[float]) -> str:
    if bounds == [-1.0, 1.0]:
        return "Similarities are the teacher's own."
    return f"The teacher's values, from {bounds[0]:g} to {bounds[1]:g}, are mapped to -1 to 1 by a straight line."


def _drivers(recorded: Iterable[Mapping[str, Any]]) -> str:
    rows = list(recorded)
    kinds = sorted({kind for row in rows for kind in row["drivers"]})
    return _table(
        ("environment", "scenarios", *kinds),
        [(f"`{row['env']}`", row["pool"], *(row["drivers"].get(kind, 0) for kind in kinds)) for row in rows],
    )


def _policies(policies: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (f"`{one['name']}`", f"`{one['env']}`", one["method"], one["seed"], one["epochs"], one["digest"])
        for one in policies
    ]
    if not rows:
        return "No policy drives: actions are random, or those of the environment's scripted driver if it has one."
    return "Policies (`agent`, and `shaking-agent` with noise):\n\n" + _table(
        ("policy", "environment", "method", "seed", "epochs", "digest"), rows
    )


def _warnings(tests: list[Mapping[str, Any]] | None) -> str:
    if tests is None:
        return "The environment reports no cost, so this was not measured.\n"
    return "\n".join(_warning(test) for test in tests)


def _warning(test: Mapping[str, Any]) -> str:
    cut = f" {test['cut']} of them were cut at the longest length that was recorded." if test["cut"] else ""
    said = (
        f"`{test['env']}`, {test['drivers']}: {test['episodes']} episodes of {test['steps']:,} steps in all, of which "
        f"{test['cost_steps']:,} cost, after {test['onsets']:,} onsets.{cut}"
    )
    if not test["cost_steps"]:
        return f"{said} No step cost anything, so there is no AUC.\n"
    horizons = list(dict.fromkeys(row["horizon"] for row in test["ahead"]))
    cells = {(row["signal"], row["horizon"]): _auc(row) for row in test["ahead"]}
    names = list(dict.fromkeys(row["signal"] for row in test["ahead"]))
    table = _table(
        ("signal", "now", *(f"K = {horizon}" for horizon in horizons)),
        [
            (f"`{name}`", _auc(test["now"][name]) if name in test["now"] else "", *(cells[name, k] for k in horizons))
            for name in names
        ],
    )
    return f"{said} The criterion is **{test['verdict']}**.\n\n{table}\n"


def _speed(speed: Mapping[str, Any]) -> str:
    rows = [(f"`{name}`", f"{rate:,.0f}", speed["devices"][name]) for name, rate in speed["frames_per_second"].items()]
    height, width = speed["frame"]
    text = (
        f"Frame stacks per second, {speed['at_a_time']} at a time, of frames of {height} x {width} pixels, on the same "
        f"frames in turns, {speed['threads']} threads:\n\n{_table(('scorer', 'frames/s', 'device'), rows)}"
    )
    return f"{text}\n\n{speed['teacher']}" if speed.get("teacher") else text


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _auc(row: Mapping[str, Any]) -> str:
    return "none" if row["auc"] is None else f"{row['auc']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
