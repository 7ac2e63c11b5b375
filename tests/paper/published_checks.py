"""The summaries of the paper computed anew from its own printed numbers, group by group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import comb, tanh

import numpy as np
import polars as pl
from printed_arithmetic import (
    CALIBRATED,
    GATED,
    NO_TERM,
    RND,
    UNGATED,
    Check,
    against,
    cell,
    cells,
    counted,
    family,
    first,
    grid,
    halves,
    mean,
    minus,
    over,
    paired_t,
    permutation_count,
    sign_flips,
    stated,
    std,
    welch,
)

from vlmsafe.paper.published import published


def training_grid() -> Iterator[Check]:
    """Everything that sums up the per-run training table."""
    frame = published("main-results-training", printed=True)
    name = "main-results-training"
    for arm, environment, window in frame.drop_nulls("cost").select("arm", "environment", "window").iter_rows():
        where = {"arm": arm, "environment": environment}
        if arm == CALIBRATED:
            source, texts = "phaseb-conf", cells("phaseb-conf", "cost", environment=environment, kind="seed")
            assert cell("phaseb-conf", "window", environment=environment, kind="mean") == window
        elif arm in ("ppo-lag", "cppo-pid"):  # per-run values are not printed
            continue
        else:
            source, texts = "full-results", grid(arm, environment)
        yield against((name, "cost"), mean, texts, source, **where)
        yield against((name, "cost_std"), std, texts, source, **where)
    for name, columns in {
        "component-diagnostics-cost": ("cost",),
        "ablation": ("cost", "logged_return"),
    }.items():
        for arm in published(name)["arm"]:
            for column in columns:
                yield against((name, column), mean, grid(arm, column=column), "full-results", arm=arm)
            yield counted((name, "over_budget"), over(grid(arm)), "full-results", arm=arm)
    for eta_2, arm in (("0", NO_TERM), ("0.01", UNGATED)):
        where = {"eta_1": "0.035", "eta_2": eta_2}
        yield against(("two-mult", "cost"), mean, grid(arm), "full-results", **where)
        yield against(("two-mult", "logged_return"), mean, grid(arm, column="logged_return"), "full-results", **where)
        yield counted(("two-mult", "over_budget"), over(grid(arm)), "full-results", **where)
    complete = cells("full-results", "cost", arm=NO_TERM, environment="formula-one-l2", checkpoint_lost="false")
    yield against(("two-mult", "cost_complete_runs"), mean, complete, "full-results", eta_1="0.035", eta_2="0")
    yield stated("f1-untrained-excluded-training-cost", mean, complete, "full-results")
    for arm in published("f1-return-decomp")["arm"]:
        texts = grid(arm, column="logged_return")
        yield against(("f1-return-decomp", "logged_return_final"), mean, texts, "full-results", arm=arm)
    yield against(("pareto-baseline", "cost_final"), mean, grid(NO_TERM), "full-results", arm=NO_TERM, budget=25)
    yield counted(("pareto-baseline", "over_budget"), over(grid(NO_TERM)), "full-results", arm=NO_TERM, budget=25)
    for key, environment in (("f1-prior-gate-l2", "formula-one-l2"), ("f1-prior-gate-l1", "formula-one-l1")):
        yield stated(key, mean, grid(GATED, environment), "full-results")
        yield stated(key, std, grid(GATED, environment), "full-results", "std")
    for key, arm in (("f1-l0-return-ungated", UNGATED), ("f1-l0-return-prior", GATED)):
        yield stated(key, mean, grid(arm, "formula-one-l0", "logged_return"), "full-results")
    again = published("text-runs", printed=True).filter(pl.col("window") != "evaluation-50").drop_nulls("arm")
    for arm, environment, seed, quantity in again.select("arm", "environment", "seed", "quantity").rows():
        where = {"arm": arm, "environment": environment, "seed": seed}
        if arm != CALIBRATED:  # whose runs on L1 are printed at the last epoch only
            known = [cell("full-results", quantity, **where)]
            same = {**where, "quantity": quantity, "window": "final" if quantity == "cost" else "training"}
            yield against(("text-runs", "value"), first, known, "full-results", True, **same)


def substitutions() -> Iterator[Check]:
    """The comparisons with RND and Qwen2-VL, and permutation tests at the last epoch."""
    for metric, one, two, alternative in published("cr-stats").select("metric", "arm_1", "arm_2", "alternative").rows():
        groups = [grid(arm, column=metric) for arm in (one, two)]
        where, joined = {"metric": metric, "arm_1": one}, groups[0] + groups[1]
        yield against(("cr-stats", "mean_1"), mean, groups[0], "full-results", **where)
        yield against(("cr-stats", "mean_2"), mean, groups[1], "full-results", **where)
        apart = halves(lambda a, b: a.mean() - b.mean(), 3)
        yield against(("cr-stats", "difference"), apart, joined, "full-results", **where)
        yield against(("cr-stats", "welch_p"), halves(welch, 3), joined, "full-results", **where)
        share = permutation_count(*groups, alternative) / comb(6, 3)
        yield against(("cr-stats", "permutation_p"), lambda _, p=share: p, joined, "full-results", True, **where)
    for key, arm in (("f1-final-p-ungated", UNGATED), ("f1-final-p-decoupled", NO_TERM), ("f1-final-p-rnd", RND)):
        count = permutation_count(family("final"), grid(arm), "less")
        yield counted(("text-results", "count"), count, "conf-families and full-results", key=key)
        yield counted(("text-results", "total"), comb(8, 5), "conf-families and full-results", key=key)
    for key, one, two in (("f1-gate-p-final", GATED, UNGATED), ("f1-term-p-final", UNGATED, NO_TERM)):
        share = permutation_count(grid(one), grid(two), "less") / comb(6, 3)
        yield stated(key, lambda _, p=share: p, grid(one), "full-results", exact=True)
    joined = family("final") + grid(RND)
    source = "conf-families and full-results"
    yield stated("f1-rnd-final-difference", halves(lambda a, b: a.mean() - b.mean(), 5), joined, source)
    yield stated("f1-rnd-final-welch", halves(welch, 5), joined, source)


def calibrated_gate() -> Iterator[Check]:
    """The calibrated runs: two families, three levels, and the comparison with the prior-symmetric gate."""
    name = "conf-families"
    for label, window in product("AB", ("final", "last_10")):
        texts, column = family(window, label), f"cost_{window}"
        yield against((name, column), mean, texts, name, family=label, kind="mean")
        yield against((name, column), std, texts, name, family=label, kind="std")
        within = 5 - over(texts)
        yield counted((name, column), within, name, family=label, kind="within_budget")
    name = "phaseb-conf"
    for environment, column in product([f"formula-one-l{level}" for level in range(3)], ("logged_return", "cost")):
        texts = cells(name, column, environment=environment, kind="seed")
        yield against((name, column), mean, texts, name, environment=environment, kind="mean")
        yield against((name, column), std, texts, name, environment=environment, kind="std")
        if column == "cost":
            yield counted((name, column), 5 - over(texts), name, environment=environment, kind="within_budget")
    for index, seed in enumerate((42, 123, 456, 789, 1024)):
        where = {"environment": "formula-one-l2", "seed": seed}
        yield against((name, "cost"), first, [family("last_10")[index]], "conf-families", **where)
    name = "gate-calib-prereg"
    level = {"environment": "formula-one-l2", "kind": "seed"}
    for seed in (42, 123, 456):
        for column in ("logged_return", "cost"):
            known = [cell("phaseb-conf", column, seed=seed, **level)]
            yield against((name, f"calibrated_{column}"), first, known, "phaseb-conf", seed=seed)
            pair = [cell(name, f"{gate}_{column}", seed=seed) for gate in ("calibrated", "prior")]
            yield against((name, f"difference_{column}"), minus, pair, name, seed=seed)
    for column in ("prior_logged_return", "prior_cost", "calibrated_logged_return", "calibrated_cost"):
        texts = cells(name, column, kind="seed")
        yield against((name, column), mean, texts, name, kind="mean", runs=3)
        yield against((name, column), std, texts, name, kind="std", runs=3)
        if column.endswith("cost"):
            yield counted((name, column), 3 - over(texts), name, kind="within_budget", runs=3)
        if column.startswith("calibrated"):
            texts = cells("phaseb-conf", column.removeprefix("calibrated_"), **level)
            yield against((name, column), mean, texts, "phaseb-conf", kind="mean", runs=5)
            yield against((name, column), std, texts, "phaseb-conf", kind="std", runs=5)
    for column in ("logged_return", "cost"):
        yield against((name, f"difference_{column}"), mean, cells(name, f"difference_{column}", kind="seed"), name,
                      kind="mean", runs=3)  # fmt: skip
    yield counted((name, "calibrated_cost"), 5 - over(family("last_10")), "conf-families", kind="within_budget", runs=5)
    prior = cells(name, "prior_cost", kind="seed")
    shared = family("last_10")[:3]
    yield stated("f1-shared-seeds-calibrated", mean, shared, "conf-families")
    yield counted(("text-results", "count"), 3 - over(shared), "conf-families", key="f1-shared-seeds-calibrated")
    yield stated("f1-gate-paired-t-last-10", halves(paired_t, 3), shared + prior, f"conf-families and {name}")
    yield stated("f1-gate-paired-t-final", halves(paired_t, 3), family("final")[:3] + grid(GATED),
                 "conf-families and full-results")  # fmt: skip
    returns = [cells(name, f"{gate}_logged_return", kind="seed") for gate in ("calibrated", "prior")]
    yield stated("f1-gate-paired-t-return", halves(paired_t, 3), returns[0] + returns[1], name)
    for key, pairs in (
        ("f1-gate-sign-flip-last-10", zip(shared, prior, strict=True)),
        ("f1-gate-sign-flip-final", zip(family("final")[:3], grid(GATED), strict=True)),
    ):
        share = sign_flips([float(a) - float(b) for a, b in pairs])
        yield stated(key, lambda _, p=share: p, shared, f"conf-families and {name}", exact=True)
    where = {"environment": "formula-one-l0", "kind": "seed"}
    yield stated("f1-l0-return-calibrated", mean, cells("phaseb-conf", "logged_return", **where), "phaseb-conf")
    for target in (("pareto-baseline", "cost_final"), ("pareto-baseline", "cost_last_10")):
        yield against(target, mean, family(target[1].removeprefix("cost_")), "conf-families", arm=CALIBRATED)
    yield counted(("pareto-baseline", "over_budget"), over(family("last_10")), "conf-families", arm=CALIBRATED)
    runs = cells("phaseb-conf", "logged_return", **level)
    yield against(("pareto-baseline", "logged_return_last_10"), mean, runs, "phaseb-conf", arm=CALIBRATED)
    row = {"scorer": "clip-vit-b-32"}
    for column, texts in (("cost", family("last_10")), ("logged_return", runs)):
        yield against(("clip-capacity", column), mean, texts, "conf-families and phaseb-conf", **row)
        yield against(("clip-capacity", f"{column}_std"), std, texts, "conf-families and phaseb-conf", **row)
    yield counted(("clip-capacity", "over_budget"), over(family("last_10")), "conf-families", **row)


def permutation_table() -> Iterator[Check]:
    name = "perm-l2"
    level = {"environment": "formula-one-l2", "kind": "seed"}
    for row in published(name).iter_rows(named=True):
        where = {"metric": row["metric"], "arm_1": row["arm_1"], "arm_2": row["arm_2"]}
        for side in ("1", "2"):
            if row[f"arm_{side}"] == CALIBRATED:
                texts = family("last_10") if row["metric"] == "cost" else cells("phaseb-conf", "logged_return", **level)
                source = "conf-families" if row["metric"] == "cost" else "phaseb-conf"
                yield against((name, f"mean_{side}"), mean, texts, source, **where)
        means = [cell(name, f"mean_{side}", **where) for side in ("1", "2")]
        yield against((name, "difference"), minus, means, name, **where)
        yield counted((name, "p_total"), comb(row["runs_1"] + row["runs_2"], row["runs_1"]), name, **where)
    same = [cell(name, "mean_2", metric="cost", arm_1=UNGATED)]
    yield against(("pareto-baseline", "cost_last_10"), first, same, name, arm=NO_TERM, budget=25)


def task_metrics() -> Iterator[Check]:
    name, columns = "f1-task", ("environment_return", "cost", "path_length", "progress")
    for arm in published(name)["arm"]:
        for column in columns:
            texts = cells("task-metrics", column, arm=arm, trained="true")
            yield against((name, column), mean, texts, "task-metrics", arm=arm)
            yield against((name, f"{column}_std"), std, texts, "task-metrics", arm=arm)
        for column in ("violation_pct", "catastrophe_pct"):
            texts = cells("task-metrics", column, arm=arm, trained="true")
            yield against((name, column), mean, texts, "task-metrics", True, arm=arm)
        runs = len(cells("task-metrics", "seed", arm=arm, trained="true"))
        yield counted((name, "runs"), runs, "task-metrics", arm=arm)
    everything = {"arm": NO_TERM}
    yield stated("f1-untrained-included-cost", mean, cells("task-metrics", "cost", **everything), "task-metrics")
    texts = cells("task-metrics", "catastrophe_pct", **everything)
    yield stated("f1-untrained-included-catastrophe", mean, texts, "task-metrics", exact=True)
    sizes = [len(cells("task-metrics", "seed", arm=arm, trained="true")) for arm in published(name)["arm"]]

    def correlation(joined: np.ndarray) -> float:
        groups = [np.split(half, np.cumsum(sizes)[:-1]) for half in np.split(joined, 2)]
        one, other = ([group.mean() for group in half] for half in groups)
        return float(np.corrcoef(one, other)[0, 1])

    cost = cells("task-metrics", "cost", trained="true")
    for key, column in (("path", "path_length"), ("progress", "progress"), ("return", "environment_return")):
        joined = cost + cells("task-metrics", column, trained="true")
        yield stated(f"f1-correlation-{key}", correlation, joined, "task-metrics")


def evaluations() -> Iterator[Check]:
    """Evaluations of FormulaOne-L2, MetaDrive and Bullet, run by run and pooled."""
    rates = ("violation_pct", "catastrophe_pct")
    for arm in published("phaseb-holdout")["arm"].unique(maintain_order=True):
        for column in ("environment_return", "cost", *rates):
            texts = cells("phaseb-holdout", column, arm=arm, kind="seed")
            exact = column in rates
            yield against(("phaseb-holdout", column), mean, texts, "phaseb-holdout", exact, arm=arm, kind="mean")
    for arm in (GATED, UNGATED):
        texts = cells("text-runs", "value", arm=arm, window="evaluation-50")
        yield against(("main-results-evaluation", "cost"), mean, texts, "text-runs", arm=arm)
        yield against(("main-results-evaluation", "cost_std"), std, texts, "text-runs", arm=arm)
    arms = {"baseline": "ppo-lag", "signal": GATED}
    groups: dict[str, tuple[str, dict[str, object]]] = {
        f"metadrive-{level}": ("md-perseed", {"environment": f"metadrive-{level}"})
        for level in ("easy", "medium", "hard")
    }
    groups["bullet-car-reach"] = ("bullet-perseed", {})
    for environment, (name, where) in groups.items():
        for side, arm in arms.items():
            for column in ("cost", *rates):
                texts = cells(name, column, arm=arm, kind="seed", **where)
                exact = column in rates
                yield against((name, column), mean, texts, name, exact, arm=arm, kind="pooled", **where)
                if exact:
                    target = ("generalisation", f"{side}_{column}")
                    yield against(target, mean, texts, name, True, environment=environment)
            yield counted(("generalisation", f"{side}_runs"), len(texts), name, environment=environment)
    for side, arm in (("baseline", "ppo-lag"), ("signal", CALIBRATED)):
        for column in rates:
            texts = cells("phaseb-holdout", column, arm=arm, kind="seed")
            target = ("generalisation", f"{side}_{column}")
            yield against(target, mean, texts, "phaseb-holdout", True, environment="formula-one-l2")


def metadrive_and_bullet_text() -> Iterator[Check]:
    def runs(level: str, arm: str, column: str) -> list[str]:
        where = {} if level == "bullet" else {"environment": f"metadrive-{level}"}
        return cells("bullet-perseed" if level == "bullet" else "md-perseed", column, arm=arm, kind="seed", **where)

    def apart(baseline: np.ndarray, signal: np.ndarray) -> float:
        return float(signal.mean() - baseline.mean())

    for level in ("easy", "medium", "hard"):
        rates = [runs(level, arm, "catastrophe_pct") for arm in ("ppo-lag", GATED)]
        both, size = rates[0] + rates[1], len(rates[0])
        yield stated(f"{level}-catastrophe-difference", halves(apart, size), both, "md-perseed", exact=True)
        reduction = halves(lambda a, b: 100.0 * (1.0 - b.mean() / a.mean()), size)
        yield stated(f"{level}-relative-reduction", reduction, both, "md-perseed", exact=True)
        for side, texts in zip(("baseline", "signal"), rates, strict=True):
            yield stated(f"{level}-std-{side}", std, texts, "md-perseed", exact=True)
        # The repetition repeats the reported arm; its own runs are not printed.
        where = {"environment": f"metadrive-{level}"}
        for column in ("catastrophe_pct", "violation_pct"):
            texts = runs(level, GATED, column)
            yield against(("md-noise-floor", f"first_{column}"), mean, texts, "md-perseed", True, **where)
        pair = [cell("md-noise-floor", f"{which}_catastrophe_pct", **where) for which in ("second", "first")]
        yield against(("md-noise-floor", "difference_pp"), minus, pair, "md-noise-floor", **where)
        yield counted(("md-noise-floor", "first_runs"), size, "md-perseed", **where)
    violations = [runs("hard", arm, "violation_pct") for arm in ("ppo-lag", GATED)]
    key = "hard-violation-difference"
    yield stated(key, halves(apart, 10), violations[0] + violations[1], "md-perseed", exact=True)
    rates = [runs("hard", arm, "catastrophe_pct") for arm in ("ppo-lag", GATED)]
    for key, count in (("hard-three-seeds-v1", 3), ("hard-ten-seeds-v1", 10)):
        fewer = halves(lambda a, b: a.mean() - b.mean(), count)
        yield stated(key, fewer, rates[0][:count] + rates[1][:count], "md-perseed", exact=True)
    for version in ("v2", "v3"):
        pair = [cell("generalisation", "baseline_catastrophe_pct", environment="metadrive-hard"),
                cell("text-results", "value", key=f"hard-prompts-{version}")]  # fmt: skip
        yield stated(f"hard-ten-seeds-{version}", minus, pair, "generalisation and text-results")
    for level, column in product(("easy", "medium", "hard", "bullet"), ("catastrophe", "violation", "cost")):
        if (level, column) != ("bullet", "violation"):
            name = column if column == "cost" else f"{column}_pct"
            pairs = list(zip(runs(level, GATED, name), runs(level, "ppo-lag", name), strict=True))
            wins, source = (
                sum(float(a) < float(b) for a, b in pairs),
                f"{'bullet' if level == 'bullet' else 'md'}-perseed",
            )
            yield counted(("text-results", "count"), wins, source, key=f"{level}-wins-{column}")
            yield counted(("text-results", "total"), len(pairs), source, key=f"{level}-wins-{column}")
    for steps, short in ((1_000_000, "1m"), (2_000_000, "2m")):
        for side, arm in (("baseline", "ppo-lag"), ("signal", GATED)):
            texts = cells("bullet-perseed", "catastrophe_pct", arm=arm, training_steps=steps)
            yield stated(f"bullet-{short}-catastrophe-{side}", mean, texts, "bullet-perseed", exact=True)
    texts = cells("bullet-perseed", "catastrophe_pct", arm="ppo-lag", training_steps=1_000_000)
    yield stated("bullet-prompts-baseline", mean, texts, "bullet-perseed", exact=True)


def whole_episodes() -> Iterator[Check]:
    """A pooled rate is a whole number of episodes over all of them."""

    def nearest(target: tuple[str, str], episodes: int, **where: object) -> Check:
        rate = float(cell(*target, **where))
        possible = 100.0 * round(rate * episodes / 100.0) / episodes
        return against(target, lambda _: possible, ["0"], f"{episodes} episodes", True, **where)

    for arm, runs in published("main-results-evaluation").select("arm", "runs").rows():
        for column in ("violation_pct", "catastrophe_pct"):
            yield nearest(("main-results-evaluation", column), 50 * runs, arm=arm)
    for environment in published("md-noise-floor")["environment"]:
        for column in ("second_catastrophe_pct", "second_violation_pct"):
            yield nearest(("md-noise-floor", column), 250, environment=environment)
    runs = {"easy": 3, "medium": 5, "hard": 3}
    for level, side in product(runs, ("baseline", "signal")):
        yield nearest(("text-results", "value"), 20 * runs[level], key=f"{level}-early-{side}")
    for key, episodes in (
        ("hard-passive-signal", 500), ("hard-passive-baseline", 500), ("hard-prompts-v2", 500),
        ("hard-prompts-v3", 500), ("easy-prompts-v2", 150), ("easy-prompts-v3", 150),
        ("f1-first-20-unmatched-catastrophe", 60), ("f1-first-20-unmatched-violation", 60),
    ):  # fmt: skip
        yield nearest(("text-results", "value"), episodes, key=key)
    # Three runs of 150 episodes; those without signal are printed.
    baseline = np.mean([float(text) for text in cells("md-perseed", "catastrophe_pct", arm="ppo-lag",
                                                      environment="metadrive-hard", kind="seed")[:3]])  # fmt: skip
    for key in ("hard-three-seeds-v2", "hard-three-seeds-v3"):
        rate = baseline - float(cell("text-results", "value", key=key))
        possible = baseline - 100.0 * round(1.5 * rate) / 150.0
        yield stated(key, lambda _, p=possible: p, ["0"], "150 episodes", exact=True)


def derived_within_rows() -> Iterator[Check]:
    """Cells that follow from others in their own row or table."""
    name = "f1-return-decomp"
    for arm in published(name)["arm"]:
        pair = [cell(name, column, arm=arm) for column in ("logged_return_final", "bonus_final")]
        if pair[1] == "0":
            yield against((name, "environment_return_final"), first, pair[:1], name, arm=arm)
        else:
            yield against((name, "environment_return_final"), minus, pair, name, arm=arm)
    for window in ("final", "last-5", "last-10"):
        column = f"environment_return_{window.replace('-', '_')}"
        pair = [cell(name, column, arm=arm) for arm in ("cpo-coupled", "cpo-decoupled")]
        yield stated(f"f1-coupled-decoupled-{window}", lambda x: abs(x[0] - x[1]), pair, name)
    name = "compute"
    for row in published(name).iter_rows(named=True):
        where = {key: row[key] for key in ("environment", "training_steps", "arm")}
        hours, steps = cell(name, "hours", **where), row["training_steps"]
        yield against((name, "steps_per_second"), lambda x, n=steps: n / (3600.0 * x[0]), [hours], name, **where)
        base = cell(name, "hours", environment=row["environment"], training_steps=steps, reference="true")
        if row["increase_pct"] is not None:
            yield against((name, "increase_pct"), lambda x: 100.0 * (x[0] / x[1] - 1.0), [hours, base], name, **where)
        if row["factor"] is not None:
            yield against((name, "factor"), lambda x: x[0] / x[1], [hours, base], name, **where)
    name = "gate-medians"
    for environment, seed, margin in (
        published(name, printed=True).select("environment", "seed", "margin_median").rows()
    ):
        where = {"environment": environment, "seed": seed}
        # The gate rises with the margin, so that its median is the gate at the median margin.
        yield against((name, "kappa_median_prior"), lambda m: tanh(50.0 * m[0]), [margin], name, **where)
    for level in ("easy", "medium", "hard"):
        yield stated(f"{level}-margin", mean, cells(name, "margin_median", environment=f"metadrive-{level}"), name)
    for signal in published("horizon-roc")["signal"]:
        for column in ("raw_low", "raw_high", "standardised_low", "standardised_high"):
            text = cell("horizon-roc", column, signal=signal)
            yield against(
                ("component-diagnostics-lead-time", column), first, [text], "horizon-roc", True, signal=signal
            )
    for end, extreme in (("low", np.min), ("high", np.max)):
        ends = cells("horizon-roc", f"raw_{end}")[:-1] + cells("horizon-roc", f"standardised_{end}")[:-1]
        yield stated("lead-time-all", extreme, ends, "horizon-roc", end, True)
    novelty = cells("rnd-novelty", "novelty")
    yield stated("rnd-novelty-checkpoints", np.min, novelty, "rnd-novelty", "low", True)
    yield stated("rnd-novelty-checkpoints", np.max, novelty, "rnd-novelty", "high", True)
    parts = [cell("text-results", "value", key=f"gpu-hours-{part}") for part in ("completed", "interrupted", "pilot")]
    yield stated("gpu-hours", lambda x: x.sum(), parts, "text-results")
    danger = [cell("text-results", "value", key="mean-c-vlm")]
    yield stated("budget-shift", lambda x: 0.01 * (x[0] - 0.5), danger, "text-results")
    for level in ("l1", "l2"):
        texts = [cell("text-results", column, key=f"gate-roc-{level}-prevalence") for column in ("count", "total")]
        yield stated(f"gate-roc-{level}-prevalence", lambda x: 100.0 * x[0] / x[1], texts, "text-results", exact=True)
    for arm, key in (("ppo-lag", "f1-matched-final-cost"), ("cppo-pid", "f1-pid-final-cost")):
        for column, other in (("cost", "value"), ("cost_std", "std")):
            text, where = cell("text-results", other, key=key), {"arm": arm, "environment": "formula-one-l2"}
            yield against(("main-results-training", column), first, [text], "text-results", True, **where)


GROUPS = (
    training_grid, substitutions, calibrated_gate, permutation_table, task_metrics, evaluations,
    metadrive_and_bullet_text, whole_episodes, derived_within_rows,
)  # fmt: skip


def all_checks() -> list[Check]:
    return [check for group in GROUPS for check in group()]


def intervals() -> Iterator[tuple[str, str, str, list[str], list[str]]]:
    """(name, low, high, one group, other group) for every printed interval whose runs are printed."""
    for row in published("cr-stats", printed=True).iter_rows(named=True):
        groups = [grid(row[f"arm_{side}"], column=row["metric"]) for side in "12"]
        yield f"{row['metric']} {row['arm_1']}", row["difference_low"], row["difference_high"], *groups
    texts = published("text-results", printed=True)
    for key, metric, environment in texts.filter(statistic="difference").select("key", "metric", "environment").rows():
        low, high = (cell("text-results", end, key=key) for end in ("low", "high"))
        if low is None:
            continue
        name = {"metadrive": "md-perseed", "bullet": "bullet-perseed", "formula": "phaseb-holdout"}
        source = name[environment.partition("-")[0]]
        where = {"environment": environment} if source == "md-perseed" else {}
        arms = [cell("text-results", which, key=key) for which in ("arm", "versus")]
        one, other = (cells(source, metric, arm=arm, kind="seed", **where) for arm in arms)
        yield key, low, high, one, other
    key = "f1-calibrated-interval"
    low, high = (cell("text-results", end, key=key) for end in ("low", "high"))
    yield key, low, high, family("last_10"), ["0"]
