"""The paper's outcomes one number at a time: of which arm, environment, seed and window, and under which settings.

The published tables differ in layout, and the same number stands in several. Here each outcome is one record, from the
table that prints it with the most digits, with the configuration of this package under which the paper's run would be
repeated. Comparisons, tests and diagnostics are no outcomes of an arm and are left to their tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vlmsafe.analysis.statistics import summary
from vlmsafe.config.methods import METHODS, config_from, method
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.envs.registry import env_spec
from vlmsafe.paper.published import published, table
from vlmsafe.signals.scorers.registry import kind_of

Row = Mapping[str, Any]
Settings = tuple[tuple[str, Any], ...]

TRAINING_WINDOWS = {"final": 1, "last-5": 5, "last-10": 10}
"""Windows of training, in epochs counted from the last."""
OUTCOMES = (
    "cost", "logged_return", "environment_return", "violation_pct", "catastrophe_pct", "path_length", "progress",
)  # fmt: skip
_L2, _CALIBRATED = "formula-one-l2", "vlm-ppo-lag-conf-calibrated"


@dataclass(frozen=True)
class PublishedValue:
    """One outcome."""

    env: str
    arm: str
    """The method, as `vlmsafe.config.methods` names it."""
    seed: int | None
    """None for the mean over the arm's runs."""
    quantity: str
    window: str
    value: float
    table: str
    """Name of the published table."""
    label: str
    """Its label in the paper, or the section of the running text."""
    settings: Settings = ()
    """What differs from the arm's usual settings, by dotted names of the configuration."""
    std: float | None = None
    """Of a mean: the population deviation over runs, where it is printed or can be computed."""
    runs: int | None = None
    """Of a mean: over how many runs, where the paper says so."""
    seeds: tuple[int, ...] = ()
    """Of a mean: of which runs, where the paper tells."""
    remark: str = ""
    """What sets this result apart from that of a complete, trained run."""


@dataclass(frozen=True)
class _Source:
    """How a table's columns become outcomes."""

    table: str
    cells: Mapping[str, tuple[str, str | None]]
    """Of each column, the quantity and the window; None for the window that the row names."""
    where: Mapping[str, Any] | None = None
    """Which rows."""
    env: str = _L2
    """Where the row does not say."""
    arm: str = _CALIBRATED
    seed: int | None = None
    runs: int | None = None
    settings: Callable[[Row], Mapping[str, Any]] = lambda row: {}
    remark: Callable[[Row], str] = lambda row: ""

    def values(self) -> Iterator[PublishedValue]:
        label = table(self.table).label
        for row in published(self.table).filter(**(self.where or {})).iter_rows(named=True):
            base = PublishedValue(
                env=row.get("environment") or self.env,
                arm=row.get("arm") or self.arm,
                seed=row.get("seed", self.seed),
                quantity="",
                window="",
                value=0.0,
                table=self.table,
                label=label,
                runs=row.get("runs", self.runs),
                remark=self.remark(row),
            )
            base = replace(base, settings=_unusual(base.env, base.arm, self.settings(row)))
            for column, (quantity, window) in self.cells.items():
                if row[column] is not None:
                    yield replace(
                        base, quantity=quantity, window=window or row["window"], value=float(row[column]),
                        std=row.get(f"{column}_std"),
                    )  # fmt: skip


def _same(window: str | None, *names: str) -> dict[str, tuple[str, str | None]]:
    """Columns that are called as their quantities."""
    return {name: (name, window) for name in names}


def _early_stop(row: Row) -> str:
    return "" if row["epochs"] >= 50 else f"the paper's run stopped at epoch {row['epochs']} of 50"


def _sweep(row: Row) -> dict[str, Any]:
    return {
        "multiplier.learning_rate": row["eta_1"],
        "multiplier.signal_weight": row["eta_2"],
        "signal.every": row["clip_period"],
    }


def _budget(row: Row) -> dict[str, Any]:
    return {"budget": row["budget"], "signal.every": row["clip_period"]}


_RATES = ("cost", "violation_pct", "catastrophe_pct")
_PARETO = {
    "logged_return_last_10": ("logged_return", "last-10"),
    "cost_final": ("cost", "final"),
    "cost_last_10": ("cost", "last-10"),
}
_PER_RUN = (
    _Source("full-results", _same("final", "logged_return", "cost"), remark=_early_stop),
    _Source(
        "conf-families",
        {"cost_final": ("cost", "final"), "cost_last_10": ("cost", "last-10")},
        {"family": "A", "kind": "seed"},
    ),
    _Source("phaseb-conf", _same(None, "cost", "logged_return"), {"kind": "seed"}),
    _Source(
        "gate-calib-prereg",
        {"prior_cost": ("cost", "last-10"), "prior_logged_return": ("logged_return", "last-10")},
        {"kind": "seed"},
        arm="vlm-ppo-lag-conf",
    ),
    _Source(
        "task-metrics",
        _same("task-metrics", "path_length", "progress", "environment_return", *_RATES),
        remark=lambda row: "" if row["trained"] else "the paper evaluated an untrained policy",
    ),
    _Source("phaseb-holdout", _same("evaluation-20", "environment_return", *_RATES), {"kind": "seed"}),
    _Source(
        "bullet-perseed",
        _same("evaluation-200", *_RATES),
        {"kind": "seed"},
        env="bullet-car-reach",
        settings=lambda row: {"total_steps": row["training_steps"]},
    ),
    _Source("md-perseed", _same("evaluation-50", *_RATES), {"kind": "seed"}),
    _Source("pareto-baseline", _PARETO, {"budget": 15.0}, seed=42, settings=_budget),
    _Source("pareto-baseline", _PARETO, {"budget": 35.0}, seed=42, settings=_budget),
)
"""Tables with all runs of their arms, so that means and deviations can be computed."""
_SUMMARIES = (
    _Source("main-results-training", _same(None, "cost")),
    _Source("main-results-evaluation", _same("evaluation-50", "environment_return", *_RATES)),
    _Source(
        "f1-return-decomp",
        {
            "environment_return_final": ("environment_return", "final"),
            "environment_return_last_5": ("environment_return", "last-5"),
            "environment_return_last_10": ("environment_return", "last-10"),
        },
        runs=3,
        remark=lambda row: f"the paper's {row['note']}" if "stopped" in (row["note"] or "") else "",
    ),
    _Source("extra-baselines", _same("last-5", "environment_return", "cost"), runs=3),
    _Source("pareto-baseline", _PARETO, {"arm": "ppo-lag-decoupled", "budget": 25.0}),
    # The cell without any signal does not say which PPOLag it is; those without the term are PPOLag-Decoupled.
    _Source("two-mult", _same("final", "logged_return", "cost"), {"eta_2": 0.01}, arm="vlm-ppo-lag", settings=_sweep),
    _Source("two-mult", _same("final", "logged_return", "cost"), {"eta_2": 0.03}, arm="vlm-ppo-lag", settings=_sweep),
    _Source(
        "clip-capacity",
        _same("last-10", "logged_return", "cost"),
        {"scorer": "clip-vit-l-14"},
        settings=lambda row: {"signal.scorer": "clip:openai/clip-vit-large-patch14"},
    ),
)
"""Tables of means."""


@cache
def published_values() -> tuple[PublishedValue, ...]:
    """Every published outcome once: single runs, then the means of arms."""
    runs = [*_from_tables(_PER_RUN), *_from_text("text-runs")]
    means = [*_means(list(_from_tables(_PER_RUN))), *_from_tables(_SUMMARIES), *_from_text("text-results")]
    found: dict[tuple[Any, ...], PublishedValue] = {}
    for value in (*_both_returns(runs), *_both_returns(_with_runs(means))):
        key = (value.env, value.arm, value.seed, value.quantity, value.window, value.settings)
        found.setdefault(key, value)
    return tuple(found.values())


def _from_tables(sources: Iterable[_Source]) -> Iterator[PublishedValue]:
    for source in sources:
        yield from source.values()


def _means(runs: list[PublishedValue]) -> Iterator[PublishedValue]:
    """Means and population deviations of runs that are printed one by one; untrained ones are left out, as there."""
    groups: dict[tuple[Any, ...], list[PublishedValue]] = {}
    for run in runs:
        if "untrained" not in run.remark:
            key = (run.table, run.env, run.arm, run.quantity, run.window, run.settings)
            groups.setdefault(key, []).append(run)
    for group in groups.values():
        found = summary([run.value for run in group])
        remarks = [f"seed {run.seed}: {run.remark}" for run in group if run.remark]
        yield replace(
            group[0], seed=None, value=found.mean, std=found.std, runs=found.n, remark="; ".join(remarks),
            seeds=tuple(sorted(run.seed for run in group if run.seed is not None)),
        )  # fmt: skip


def _with_runs(means: list[PublishedValue]) -> Iterator[PublishedValue]:
    """Means with the runs they are over, where another table tells: an arm has the same runs in most of the paper.

    Not in the early evaluation of MetaDrive: its rates, such as 28.3 % of 20 episodes each, fit fewer.
    """
    counts: dict[tuple[str, str], set[int]] = {}
    sets: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for mean in means:
        if mean.runs is not None and not mean.settings:
            counts.setdefault((mean.env, mean.arm), set()).add(mean.runs)
        if mean.seeds:
            sets.setdefault((mean.env, mean.arm), set()).add(mean.seeds)
    for mean in means:
        key, runs = (mean.env, mean.arm), mean.runs
        if runs is None and mean.window != "evaluation-early-20" and len(counts.get(key, ())) == 1:
            (runs,) = counts[key]
        fitting = [seeds for seeds in sets.get(key, ()) if len(seeds) == runs]
        yield replace(mean, runs=runs, seeds=mean.seeds or (fitting[0] if len(fitting) == 1 else ()))


_VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "1000000 steps": {"total_steps": 1_000_000},
    "2000000 steps": {"total_steps": 2_000_000},
    "prompts v2": {"signal.prompts": "metadrive-v2"},
    "prompts v3": {"signal.prompts": "metadrive-v3"},
}
"""The variants of arms in the running text that are settings; the others are selections of runs."""


def _from_text(name: str) -> Iterator[PublishedValue]:
    """What only the running text gives: outcomes of runs, and means of arms."""
    for row in published(name).iter_rows(named=True):
        quantity, variant = row.get("quantity") or row.get("metric"), row.get("variant") or ""
        plain = row.get("statistic", "mean") in ("mean", "rate") and not row.get("versus")
        if plain and quantity in OUTCOMES and row["arm"] and row["value"] is not None and variant in _VARIANTS:
            yield PublishedValue(
                env=row["environment"], arm=row["arm"], seed=row.get("seed"), quantity=quantity, window=row["window"],
                value=row["value"], std=row.get("std"), table=name, label=f"text, {row['section']}",
                settings=_unusual(row["environment"], row["arm"], _VARIANTS[variant]),
            )  # fmt: skip


def _both_returns(values: Iterable[PublishedValue]) -> Iterator[PublishedValue]:
    """An arm without a bonus logs the environment's return, so that either name is right for its training."""
    other = {"logged_return": "environment_return", "environment_return": "logged_return"}
    for value in values:
        yield value
        shaped = METHODS[value.arm].signal.reward_weight > 0.0
        if value.quantity in other and value.window in TRAINING_WINDOWS and not shaped:
            yield replace(value, quantity=other[value.quantity])


def _unusual(env: str, arm: str, settings: Mapping[str, Any]) -> Settings:
    """Those of the settings that the arm does not have anyway."""
    usual = flatten(to_dict(paper_config(env, arm)))
    return tuple(sorted((key, value) for key, value in settings.items() if value != usual[key]))


@cache
def paper_config(env: str, arm: str, settings: Settings = ()) -> TrainConfig:
    """The run of this package that repeats one of the paper's: its scorer, its query period and its frames."""
    signal = method(arm).signal
    nested: dict[str, Any] = {"env": env, "method": arm, "signal": {}}
    if signal.scorer == "embedded":
        nested["signal"]["scorer"] = "clip"
    if looks_at_frames(signal.scorer) and env_spec(env).indicators is not None:
        # Bullet's frames show them. FormulaOne's do only with the camera `track`; the paper does not say which it used.
        nested["frame_indicators"] = True
    for key, value in settings:
        place = nested
        *path, last = key.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return config_from(nested, f"the paper's {arm} on {env}").resolved()


def looks_at_frames(scorer: str) -> bool:
    """Whether frames, and what is drawn into them, can reach the scores."""
    return kind_of(scorer).may_look_at_frames
