"""The published FormulaOne runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.config.settings import TrainConfig
from vlmsafe.paper.published import published
from vlmsafe.signals.gate import Gate

from .published_figures import (
    CALIBRATED,
    ENV_RETURN,
    EVALUATION_COST,
    FINAL,
    GRID_SEEDS,
    L1,
    L2,
    LAST_10,
    NOT_EVALUATED,
    REMAINING,
    UNMATCHED_FIRST_20,
    UNTRAINED,
    around,
    curve,
    episode_costs,
    run_rng,
    split,
    spread,
    unsettled,
)
from .run_directory import configured, epoch_rows, evaluation_table, trace_table, write_run

ENVIRONMENT_ONLY, FIRST_20, TASK_METRICS = "paper-environment-only", "paper-20", "paper-task-metrics"
LEAD_TIME = "paper-lead-time"

_CLIP = {"signal.scorer": "clip"}
_BONUS_STEPS = 100.0  # lambda_r T: 0.1 times 1000 steps


def _settings(method: str, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the published runs have beyond the method: CLIP."""
    plain = ("ppo", "cpo", "ppo-lag", "ppo-lag-unmatched", "cppo-pid", "cpo-control")
    scorer = {} if method in (*plain, "ppo-lag-rnd", "qwen2-vl-conf") else _CLIP
    return {**scorer, **(extra or {})}


def write_formula_one(folder: Path) -> None:
    """All of them."""
    for env in (L1, L2):
        _write_grid(folder, env)
    _write_calibrated(folder)
    _write_controls(folder)


def _write_grid(folder: Path, env: str) -> None:
    """The three-seed grid: on L2 all arms, on L1 the coupled and decoupled CPO, one of whose runs ended at once."""
    rows = published("full-results").filter(environment=env).to_dicts()
    for row in rows if env == L2 else [row for row in rows if row["arm"] in ("cpo-coupled", "cpo-decoupled")]:
        arm, seed = row["arm"], row["seed"]
        config = _f1(folder, env, arm, arm, seed)
        last_10 = LAST_10.get(arm, {}).get(seed) if env == L2 else None
        _write_f1(
            config, arm, row["cost"], row["logged_return"], epochs=row["epochs"], last_10=last_10,
            lost=row["checkpoint_lost"], env_return=_decomposed(arm) if env == L2 else None,
        )  # fmt: skip


def _f1(folder: Path, env: str, arm: str, method: str, seed: int, **extra: Any) -> TrainConfig:
    settings = _settings(method, {name.replace("__", "."): value for name, value in extra.items()})
    return configured(folder / env / arm / f"seed-{seed}", env, method, seed, settings)


def _decomposed(arm: str) -> tuple[float, float, float] | None:
    """Environment return of an arm at the end, over the last five and the last ten epochs, where it is printed."""
    found = published("f1-return-decomp").filter(arm=arm).to_dicts()
    names = ("environment_return_final", "environment_return_last_5", "environment_return_last_10")
    return tuple(found[0][name] for name in names) if found else None  # type: ignore[return-value]


def _write_f1(
    config: TrainConfig,
    arm: str,
    cost: float,
    logged: float,
    *,
    epochs: int = 50,
    last_10: float | None = None,
    lost: bool = False,
    env_return: tuple[float, float, float] | None = None,
) -> None:
    """One FormulaOne run; where its environment return is not printed, a shaped run has 0.2, and the rest is bonus.

    A run without bonus logs its own final return; windows of it are printed for an arm, and go with it.
    """
    shaped = config.signal.reward_weight > 0.0
    final, last_5, last_10_return = env_return or (0.2 if shaped else logged, None, None)
    if not shaped and env_return is not None:
        final, last_5, last_10_return = (logged * value / env_return[0] for value in env_return)
    figures: dict[str, Any] = {}
    if config.signal.scorer != "none":
        # Ungated the bonus is 100 times the mean positive score; a gate takes its part of 63.5 (tab:f1-return-decomp).
        bonus = logged - final if shaped else 0.0
        gated = config.signal.gate != "off"
        kappa = min(bonus / 63.5, 0.84) if gated else 1.0
        figures = {
            "bonus": bonus,
            "positive_score": bonus / (_BONUS_STEPS * kappa) if shaped else 0.0,
            "negative_score": _danger(arm, config.seed, epochs),
            "kappa": kappa,
            "margin": 0.025,
        }
    costs = np.array(curve(cost, epochs, last_10=last_10))
    costs[:-10] = unsettled(costs[:-10], run_rng(config, 0))
    rows = epoch_rows(config, costs.tolist(), curve(final, epochs, last_5, last_10_return), **figures)
    evaluations = _f1_evaluations(config, arm, lost)
    traces = {}
    if config.env == L2 and arm in ("ppo-lag-unmatched", CALIBRATED) and config.seed in GRID_SEEDS:
        traces[LEAD_TIME] = _late_trace(config)
    write_run(config, rows, evaluations=evaluations, traces=traces, trained_epochs=0 if lost else None)


def _danger(arm: str, seed: int, epochs: int) -> list[float] | float:
    """Epoch means of what enters the multiplier: 0.624 with CLIP, RND's novelty and Qwen2-VL's score as printed."""
    name, column = {"ppo-lag-rnd": ("rnd-novelty", "novelty"), "qwen2-vl-conf": ("qwen-vlmc", "danger_score")}.get(
        arm, ("", "")
    )
    if not name:
        return 0.624
    rows = published(name).filter(seed=seed)
    rows = rows.filter(environment=L2) if "environment" in rows.columns else rows
    at = [steps // 20_000 for steps in rows["training_steps"]]
    return np.interp(np.arange(1, epochs + 1), at, rows[column].to_numpy()).tolist()


def _f1_evaluations(config: TrainConfig, arm: str, lost: bool) -> dict[str, pl.DataFrame]:
    if config.env != L2:
        return {}
    tables = _task_metrics(config, arm)
    summary = published("main-results-evaluation").filter(arm=arm).to_dicts()
    if not summary or lost or (arm, config.seed) == NOT_EVALUATED:
        return tables | (_first_20(config, arm) if arm == "cpo-control" else {})
    whole = _environment_only(config, arm, summary[0])
    tables[ENVIRONMENT_ONLY] = whole
    if arm in REMAINING:
        tables[FIRST_20] = whole.head(20).with_columns(protocol=pl.lit(FIRST_20))
    if summary[0]["repeat_cost"] is not None:  # the same policies once more, and other costs (tab:main_results)
        again = {**summary[0], "cost": summary[0]["repeat_cost"], "cost_std": summary[0]["repeat_cost_std"]}
        tables[f"{ENVIRONMENT_ONLY}-epoch-{config.epochs:05d}"] = _environment_only(config, arm, again)
    return tables


def _environment_only(config: TrainConfig, arm: str, summary: Mapping[str, Any]) -> pl.DataFrame:
    """50 episodes from 10000; where only the arm is printed, costs lie evenly and rates go with cost."""
    seeds = _evaluated_seeds(arm)
    place, count = seeds.index(config.seed), len(seeds)
    rng = run_rng(config, 50)
    known = EVALUATION_COST.get(arm)
    costs = [known[seed] for seed in seeds] if known else spread(summary["cost"], summary["cost_std"] or 0.0, count)
    mean = round(costs[place] * 50) / 50
    if arm in REMAINING:
        first = _holdout(arm, config.seed)
        begun = _holdout_costs(rng, first)
        violations, catastrophes = REMAINING[arm][config.seed]
        drawn = np.append(
            begun, episode_costs(rng, 30, (mean * 50 - begun.sum()) / 30, violations, catastrophes)
        )  # fmt: skip
    else:
        violations = split(round(summary["violation_pct"] * count / 2), costs)[place]
        catastrophes = split(round(summary["catastrophe_pct"] * count / 2), costs)[place]
        drawn = episode_costs(rng, 50, mean, violations, catastrophes)
        if arm == "ppo-lag-unmatched":
            drawn = _first_20_of(drawn, [split(total, costs)[place] for total in UNMATCHED_FIRST_20])
    returns = spread(
        summary["environment_return"], summary["environment_return_std"] or 0.0, 1 if count == 1 else count
    )
    return evaluation_table(config, ENVIRONMENT_ONLY, range(10_000, 10_050), drawn, around(rng, returns[place], 50))


def _evaluated_seeds(arm: str) -> list[int]:
    if arm in EVALUATION_COST:
        return list(EVALUATION_COST[arm])
    lost = published("full-results").filter(arm=arm, environment=L2, checkpoint_lost=True)["seed"].to_list()
    return [seed for seed in GRID_SEEDS if seed not in lost and (arm, seed) != NOT_EVALUATED]


def _first_20_of(costs: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """The same costs, with so many violations and catastrophes among the first 20."""
    violations, catastrophes = counts
    ordered = np.sort(costs)[::-1]
    severe, middle, low = ordered[ordered > 100], ordered[(ordered > 25) & (ordered <= 100)], ordered[ordered <= 25]
    moderate = violations - catastrophes
    first = np.concatenate([severe[:catastrophes], middle[:moderate], low[: 20 - violations]])
    return np.concatenate([first, severe[catastrophes:], middle[moderate:], low[20 - violations :]])


def _holdout(arm: str, seed: int) -> dict[str, Any]:
    return published("phaseb-holdout").filter(arm=arm, kind="seed", seed=seed).to_dicts()[0]


def _holdout_costs(rng: np.random.Generator, row: Mapping[str, Any]) -> np.ndarray:
    return episode_costs(rng, 20, row["cost"], round(row["violation_pct"] / 5), round(row["catastrophe_pct"] / 5))


def _first_20(config: TrainConfig, arm: str) -> dict[str, pl.DataFrame]:
    row = _holdout(arm, config.seed)
    rng = run_rng(config, 20)
    costs, returns = _holdout_costs(rng, row), around(rng, row["environment_return"], 20)
    return {FIRST_20: evaluation_table(config, FIRST_20, range(10_000, 10_020), costs, returns)}


def _task_metrics(config: TrainConfig, arm: str) -> dict[str, pl.DataFrame]:
    """50 episodes from 30000. Paths and progress go with cost a little, about as far as printed over all episodes."""
    found = published("task-metrics").filter(arm=arm, seed=config.seed).to_dicts()
    if not found:
        return {}
    row = found[0]
    rng = run_rng(config, 30)
    costs = episode_costs(rng, 50, row["cost"], round(row["violation_pct"] / 2), round(row["catastrophe_pct"] / 2))
    along = np.argsort(np.argsort(costs + rng.random(50))) / 49.0 - 0.5
    other = rng.normal(size=50)
    lean = 0.5 * along + 0.15 * (other - other.mean())
    return {
        TASK_METRICS: evaluation_table(
            config, TASK_METRICS, range(30_000, 30_050), costs, around(rng, row["environment_return"], 50),
            checkpoint_epoch=0 if (arm, config.seed) == UNTRAINED else None,
            stages=np.zeros(50), path=row["path_length"] * (1.0 + lean), net_progress=row["progress"] * (1.0 + lean),
        )
    }  # fmt: skip


def _late_trace(config: TrainConfig) -> pl.DataFrame:
    """Scores that fall before contact, as all the printed AUCs say; contacts come a little late in an episode."""
    rng = run_rng(config, 60)
    episodes, steps = 6, 200
    contact = np.zeros((episodes, steps), np.bool_)
    drop = np.zeros(contact.shape)
    for episode in range(episodes):
        for start in rng.integers(60, steps - 10, 2):
            contact[episode, start : start + 5] = True
            drop[episode, max(0, start - 40) : start + 5] = 1.0
    negative = 0.6257 + 0.0065 * (rng.normal(size=contact.shape) - 0.5 * drop)  # mean and deviation as printed
    positive = 0.6355 + 0.0065 * (rng.normal(size=contact.shape) - 0.8 * drop)
    margin = 0.0195 + 0.004 * (rng.normal(size=contact.shape) - 0.8 * drop)
    scenarios = range(10_000, 10_000 + episodes)
    return trace_table(config, LEAD_TIME, list(scenarios), contact, positive, negative, margin, gate=Gate())


def _write_calibrated(folder: Path) -> None:
    """Both families of the calibrated arm: five seeds, every fourth frame, trained twice with the same settings."""
    logged = published("phaseb-conf").filter(environment=L2, kind="seed")
    returns = dict(zip(logged["seed"], logged["logged_return"], strict=True))  # of family A; B's are not printed
    for family, arm in (("A", CALIBRATED), ("B", f"{CALIBRATED}-b")):
        rows = published("conf-families").filter(family=family, kind="seed").to_dicts()
        for row in rows:
            seed = row["seed"]
            config = _f1(folder, L2, arm, CALIBRATED, seed)
            _write_f1(config, arm, row["cost_final"], returns[seed], last_10=row["cost_last_10"])


def _write_controls(folder: Path) -> None:
    """What was trained beside the grid: controls without signal, other query periods, budgets and backbones."""
    for arm in ("ppo-lag", "cpo-control", "cppo-pid"):
        for seed, cost in FINAL[arm].items():
            config = _f1(folder, L2, arm, arm, seed)
            _write_f1(config, arm, cost, ENV_RETURN[arm], last_10=LAST_10[arm][seed])
    for seed in GRID_SEEDS:
        arm = "vlm-ppo-lag-eta0"
        _write_f1(_f1(folder, L2, arm, arm, seed), arm, FINAL[arm][seed], 63.8)
        arm = "vlm-ppo-lag-eta003"
        more = {"signal__every": 4, "multiplier__signal_weight": 0.03}
        _write_f1(_f1(folder, L2, arm, "vlm-ppo-lag", seed, **more), arm, FINAL[arm][seed], 63.8)
        arm = f"{CALIBRATED}-vit-l-14"
        large = {"signal__scorer": "clip:openai/clip-vit-large-patch14"}
        _write_f1(_f1(folder, L2, arm, CALIBRATED, seed, **large), arm, FINAL[arm][seed], 16.1)
    for row in published("pareto-baseline").filter(clip_period=4, arm="ppo-lag-decoupled").to_dicts():
        arm = f"ppo-lag-decoupled-d{row['budget']:.0f}"
        more = {"signal__every": 4, "budget": float(row["budget"])}
        config = _f1(folder, L2, arm, "ppo-lag-decoupled", 42, **more)
        _write_f1(config, arm, row["cost_final"], row["logged_return_last_10"], last_10=row["cost_last_10"])
