"""The tables behind the results: what returns, multipliers and signals were made of, what runs cost, what arms are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from vlmsafe.analysis import lead_time as lead
from vlmsafe.analysis import returns as parts
from vlmsafe.analysis.anticipation import CONTROL
from vlmsafe.analysis.exact_tests import permutation_test
from vlmsafe.analysis.gate_roc import gate_medians
from vlmsafe.analysis.multiplier_replay import replay, summarise
from vlmsafe.analysis.resampling import bootstrap_mean_difference
from vlmsafe.analysis.tables import stacked
from vlmsafe.audit.check_conclusion import passive_threshold
from vlmsafe.audit.records import Arm, RunRecord
from vlmsafe.audit.settings import ABSENT, effective
from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.report.data import Entry
from vlmsafe.report.material import Material
from vlmsafe.report.measures import count, settings_word, text
from vlmsafe.report.model import Cell, Column, Missing, Table

SHARES = (0.1, 0.24, 0.5, 1.0)
"""Of the training steps, at which scores are shown: 100k, 240k, 500k and 1M of the paper's million."""
SIGNALS = {"kappa": "κ", "negative": "c_vlm", "positive": "r_vlm", "margin": "margin", CONTROL: "step index (control)"}
_TRACE = "no run has a trace that a scorer looked at; vlmsafe trace RUN records one"


def without_constant_env(table: Table | Missing) -> Table | Missing:
    """A table on one environment names it in its title and not in every row."""
    if isinstance(table, Missing) or table.columns[0].name != "env" or len({row[0].value for row in table.rows}) > 1:
        return table
    env = str(table.rows[0][0].value)
    title = table.title if env in table.title else f"{table.title} ({env})"
    return replace(table, title=title, columns=table.columns[1:], rows=[row[1:] for row in table.rows])


def difference_cells(first: Sequence[float], second: Sequence[float]) -> list[Cell]:
    """The difference of two arms' rates in percentage points with its interval over runs, and its exact p."""
    a, b = 100 * np.asarray(first), 100 * np.asarray(second)
    if min(len(a), len(b)) < 2:
        return [Cell(float(a.mean() - b.mean())), Cell()]
    interval = bootstrap_mean_difference(a, b)
    test = permutation_test(a, b, "two-sided")
    return [Cell(interval.estimate, low=interval.low, high=interval.high), Cell(float(test.p), str(test))]


def returns(material: Material, entry: Entry) -> Table | Missing:
    """The logged return taken apart."""
    rows: list[list[Cell]] = []
    names = ("logged_return_final", "bonus_final", "environment_return_final", "environment_return_last_5",
             "environment_return_last_10")  # fmt: skip
    for env in material.envs(entry):
        for arm in material.arms(env, entry):
            known = {run.name: run.epochs for run in arm.runs if any(row["env_return"] is not None for row in run.epochs)}
            if known:
                means = parts.return_table({arm.name: known}).row(0, named=True)
                rows.append([text(env), text(arm.name), count(len(known)), *(Cell(means[name]) for name in names)])
    if not rows or (not entry.asked and not any(row[4].value for row in rows)):
        return Missing(entry.kind, "Returns", "no run has finished an episode")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("runs", "runs", 0),
        Column("logged_return_final", "logged, final epoch", 2),
        Column("bonus_final", "of it bonus", 2, hint="what the signal added"),
        Column("environment_return_final", "environment, final epoch", 2),
        Column("environment_return_last_5", "environment, last 5", 2),
        Column("environment_return_last_10", "environment, last 10", 2),
    ]
    caption = "Means over runs. What the learner maximised is the logged return; the task's is the environment's."
    return Table("returns", entry.title or "The logged return taken apart", columns, rows, caption, entry.label)


def passive(material: Material, entry: Entry) -> Table | Missing:
    """Passive episodes of each arm, and what cost correlates with over all episodes of the environment."""
    rows: list[list[Cell]] = []
    for env in material.envs(entry):
        source, arms = material.source(env, entry), material.arms(env, entry)
        tables = {
            arm.name: {run.name: run.evaluations[source] for run in arm.runs if source in run.evaluations} for arm in arms
        }
        tables = {name: own for name, own in tables.items() if own}
        threshold = passive_threshold(env, arms, source, None) if tables else None
        if not tables or threshold is None:
            continue
        episodes = stacked(tables)
        rates = parts.passive_episodes(episodes, threshold).filter(pl.col("run").is_null())
        for row in rates.iter_rows(named=True):
            own = episodes.filter(arm=row["arm"])
            correlations = [_correlation(own, names) for names in (("path", "distance", "net_progress", "route_completion"), ("env_return",))]
            rows.append(
                [text(env), text(row["arm"]), count(row["episodes"]), Cell(threshold), Cell(100 * row["rate"]), *correlations]
            )
    if not rows:
        return Missing(entry.kind, "Passive episodes", "no run has an evaluation; vlmsafe evaluate RUN makes one")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("episodes", "episodes", 0),
        Column("threshold", "passive below", 1, hint="environment return below which an episode without cost is passive"),
        Column("passive_pct", "passive %", 1, percent=True, hint="episodes without cost that return less than that"),
        Column("cost_distance", "cost with distance", 2, hint="Spearman's correlation over episodes, with how far it got"),
        Column("cost_return", "cost with return", 2, hint="Spearman's correlation over episodes, with environment return"),
    ]
    caption = "Low cost can be little driving: passive episodes, and Spearman's correlation of cost over episodes."
    return Table("passive", entry.title or "Is low cost little driving?", columns, rows, caption, entry.label)


def _correlation(episodes: pl.DataFrame, names: Sequence[str]) -> Cell:
    name = next((name for name in names if name in episodes.columns and episodes[name].drop_nulls().len()), None)
    if name is None:
        return Cell()
    row = parts.cost_correlations(episodes, [name]).row(0, named=True)
    return Cell(row["spearman"])


def scores(material: Material, entry: Entry) -> Table | Missing:
    """A score at four moments of training, run by run."""
    rows: list[list[Cell]] = []
    for env in material.envs(entry):
        for arm in material.arms(env, entry):
            for run in arm.runs:
                values = [_at(run, entry.metric, part) for part in SHARES]
                known = [row[entry.metric] for row in run.epochs if row.get(entry.metric) is not None]
                if known:
                    ends = [Cell(min(known)), Cell(max(known))]
                    rows.append([text(env), text(arm.name), Cell(float(run.seed), str(run.seed)), *map(Cell, values), *ends])
    if not rows:
        return Missing(entry.kind, "Scores over training", f"no run recorded a {entry.metric.replace('_', ' ')}")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("seed", "seed", 0),
        *(Column(f"at_{round(100 * part)}", f"at {100 * part:.0f} %", 4, hint="of the training steps") for part in SHARES),
        Column("lowest", "lowest", 4),
        Column("highest", "highest", 4),
    ]
    title = entry.title or f"Mean {entry.metric.replace('_', ' ')} over training"
    caption = "Epoch means; lowest and highest over all epochs. Named after the scorer in the arm's settings."
    return Table("scores", title, columns, rows, caption, entry.label, fold=not entry.asked)


def _at(run: RunRecord, metric: str, part: float) -> float | None:
    """The epoch's mean nearest to a share of the planned steps, of those that were trained."""
    target = part * run.config.total_steps
    row = min(run.epochs, key=lambda row: abs(row["steps"] - target))
    return row.get(metric) if abs(row["steps"] - target) <= run.config.steps_per_epoch else None


def multiplier(material: Material, entry: Entry) -> Table | Missing:
    """What the signal term did to the multiplier."""
    rows: list[list[Cell]] = []
    for env in material.envs(entry):
        for arm in material.arms(env, entry):
            replays = []
            for run in arm.runs:
                try:
                    replays.append(replay(run.epochs, run.config.multiplier))
                except InputError:
                    continue  # no term to remove, or a record that the audit names
            if replays:
                found = summarise(*replays)
                cells = [count(found.runs), count(found.epochs), count(found.sign_reversals), Cell(found.largest_term)]
                cells += [Cell(found.median_gap), Cell(found.largest_change), Cell(found.largest_step), Cell(found.budget_shift)]
                rows.append([text(env), text(arm.name), *cells, text("yes" if found.agrees else "no")])
    if not rows:
        return Missing(entry.kind, "Multiplier replay", "no arm has a signal term in its multiplier")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("runs", "runs", 0),
        Column("epochs", "epochs", 0),
        Column("sign_reversals", "signs turned", 0, hint="epochs in which the term turned the sign of J_C - d"),
        Column("largest_term", "largest term", 5, hint="eta_2 (mean c_vlm - tau), absolute"),
        Column("median_gap", "median |J_C - d|", 2),
        Column("largest_change", "λ changes by", 5, hint="largest difference that removing the term makes to lambda"),
        Column("largest_step", "largest step of λ", 4),
        Column("budget_shift", "budget shift", 5, hint="eta_2 (tau - mean c_vlm): the term acts as another budget"),
        Column("agrees", "replay agrees", hint="with the recorded lambda, to 1e-6"),
    ]
    caption = "Each run's multiplier replayed from its own record with and without the signal term; costs are held fixed."
    return Table("multiplier", entry.title or "Did the signal move the multiplier?", columns, rows, caption, entry.label)


def gate(material: Material, entry: Entry) -> Table | Missing:
    """Medians of margin and kappa, run by run."""
    rows: list[list[Cell]] = []
    for env, cells in material.gate_cells.items():
        if env in material.envs(entry):
            prior = {(row["arm"], row["run"]): row for row in cells.filter(gate="s = 100").iter_rows(named=True)}
            for row in gate_medians(cells).iter_rows(named=True):
                own = prior[row["arm"], row["run"]]
                figures = ("margin_median", "kappa_median_prior", "kappa_median_calibrated")
                shares = [Cell(100 * own["closed"]), Cell(100 * own["open"])]
                rows.append(
                    [text(env), text(row["arm"]), text(row["run"]), count(own["frames"]), *(Cell(row[n]) for n in figures), *shares]
                )
    if not rows:
        return Missing(entry.kind, "The gate", _TRACE)
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("run", "run"),
        Column("frames", "frames", 0),
        Column("margin_median", "median margin", 4),
        Column("kappa_median_prior", "median κ, s = 100, c = 0", 2),
        Column("kappa_median_calibrated", "median κ, calibrated", 2, hint="on the same frames"),
        Column("closed_pct", "nearly closed %", 1, hint="frames with κ < 0.1, s = 100, c = 0"),
        Column("open_pct", "nearly open %", 1, hint="frames with κ > 0.9, s = 100, c = 0"),
    ]
    caption = "Scored frames of each run's trace. A gate that is open or closed nearly everywhere weighs every frame alike."
    return Table("gate", entry.title or "How open is the gate?", columns, rows, caption, entry.label)


def gate_roc(material: Material, entry: Entry) -> Table | Missing:
    """AUC of kappa against contact in the same step."""
    rows: list[list[Cell]] = []
    for env, found in material.gate_rocs.items():
        if env in material.envs(entry):
            for row in found.iter_rows(named=True):
                fitted = {None: "", "same frames": ", calibrated on these frames", "other half": ", calibrated on others"}
                name = row["score"].replace("kappa", "κ") + fitted[row["calibrated_on"]]
                name += f", half {row['half']}" if row["half"] else ""
                below = row["contact_below_centre"]
                rows.append(
                    [
                        text(env),
                        text(row["arm"]),
                        text(name),
                        count(row["positives"]),
                        Cell(row["auc"], low=row["low"], high=row["high"]),
                        Cell(row["contact_margin"]),
                        Cell(row["free_margin"]),
                        Cell(None if below is None else 100 * below),
                    ]
                )
    if not rows:
        return Missing(entry.kind, "Gate and contact", _TRACE)
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("score", "score"),
        Column("contacts", "contact frames", 0),
        Column("auc", "AUC", 3, hint="against contact in the same step; interval over episodes"),
        Column("contact_margin", "margin in contact", 4),
        Column("free_margin", "margin without", 4),
        Column("below_centre_pct", "contact below centre %", 1, hint="contact frames that only the fold makes count"),
    ]
    caption = "Where the negated margin does as well as the calibrated gate, it has found an unusual margin, not danger."
    return Table("gate-roc", entry.title or "Does the gate know contact?", columns, rows, caption, entry.label)


def lead_time(material: Material, entry: Entry) -> Table | Missing:
    """Ranges of AUCs before contact, per arm, and whether the criterion is met."""
    rows: list[list[Cell]] = []
    for env, found in material.lead_times.items():
        if env not in material.envs(entry):
            continue
        verdicts = {(row["arm"], row["signal"]): row["passes"] for row in lead.verdicts(found).iter_rows(named=True)}
        for (arm,), own in found.filter(pl.col("run").is_null()).group_by("arm", maintain_order=True):
            for row in lead.auc_ranges(own).iter_rows(named=True):
                if row["raw_low"] is None:
                    continue
                ranges = [
                    Cell(row[f"{form}_high"], f"{row[f'{form}_low']:.3f} to {row[f'{form}_high']:.3f}")
                    for form in ("raw", "standardised")
                ]
                met = verdicts.get((str(arm), row["signal"]))
                word = "" if met is None else "met" if met else "not met"
                rows.append([text(env), text(arm), text(SIGNALS.get(row["signal"], row["signal"])), *ranges, text(word)])
    if not rows:
        why = _TRACE if not material.lead_times else "no traced episode has a contact, so there is nothing to rise before"
        return Missing(entry.kind, "Lead time", why)
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("signal", "signal"),
        Column("raw", "AUC, raw", 3, hint="lowest to highest over the horizons 1, 3, 5, 10, 20, 40"),
        Column("standardised", "AUC, standardised", 3, hint="within each episode"),
        Column("criterion", "criterion"),
    ]
    caption = (
        "Above 0.5 a signal is higher before contact. The criterion, fixed in advance and about c_vlm: standardised, at "
        "K = 20 or 40, an AUC of at least 0.60, its interval above 0.5, and above the step index."
    )
    return Table("lead-time", entry.title or "Does the signal rise before contact?", columns, rows, caption, entry.label)


def compute(material: Material, entry: Entry) -> Table | Missing:
    """Time per run, and how it compares with the arm that has no signal."""
    rows: list[list[Cell]] = []
    for env in material.envs(entry):
        arms = material.arms(env, entry)
        spent = {arm.name: [found for run in arm.runs if (found := _seconds(run))] for arm in arms}
        plain = [arm.name for arm in arms if not arm.has_signal and spent[arm.name]]
        for arm in arms:
            own = spent[arm.name]
            if not own:
                continue
            per_step = float(np.mean([seconds / steps for seconds, _, steps in own]))
            hours = [seconds / 3600 for seconds, _, _ in own]
            factor = None
            if plain and arm.name != plain[0]:
                factor = per_step / float(np.mean([seconds / steps for seconds, _, steps in spent[plain[0]]]))
            every = arm.first.config.signal.every if arm.has_signal else None
            rows.append(
                [
                    text(env),
                    text(arm.name),
                    count(every) if every else text("none"),
                    count(len(own)),
                    Cell(float(np.mean(hours)), low=min(hours), high=max(hours)),
                    Cell(float(np.mean([collect / 3600 for _, collect, _ in own]))),
                    Cell(1.0 / per_step),
                    Cell(100 * (factor - 1), f"{100 * (factor - 1):+.0f} %".replace("-", "−"))
                    if factor is not None
                    else text("reference" if plain and arm.name == plain[0] else ""),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Compute", "no run has recorded its times")
    columns = [
        Column("env", "environment"),
        Column("arm", "arm"),
        Column("every", "scored every", 0, hint="steps between two scored frames"),
        Column("runs", "runs", 0),
        Column("hours", "hours", 3, hint="mean over runs; in brackets the shortest and the longest"),
        Column("rollout_hours", "rollout hours", 3),
        Column("steps_per_second", "steps/s", 1),
        Column("overhead_pct", "time per step", 0, hint="against the first arm without a signal"),
    ]
    caption = "Wall time of the epochs that were recorded, evaluation excluded; on whatever machine each run was made."
    return Table("compute", entry.title or "What it costs to train", columns, rows, caption, entry.label)


def _seconds(run: RunRecord) -> tuple[float, float, int] | None:
    """Seconds of all stages, seconds of collecting, and steps, of the epochs on record."""
    try:
        rows = run.source.run.rows("timing")
    except VlmsafeError:
        return None  # the audit names files that cannot be read
    total = sum(float(value) for row in rows for name, value in row.items() if name != "epoch")
    collect = sum(float(row.get("collect", 0.0)) for row in rows)
    return (total, collect, len(rows) * run.config.steps_per_epoch) if total > 0 else None


def divergence(material: Material, entry: Entry) -> Table | Missing:
    """Runs of equal seeds in compared arms: the first epoch in which their records differ."""
    rows: list[list[Cell]] = []
    watched = ("env_return", "episode_cost", "multiplier", "kl")
    for one in material.comparisons(entry):
        first, second = one.first.matched_by, one.second.matched_by
        for key in sorted(set(first) & set(second), key=str):
            a, b = first[key].epochs, second[key].epochs
            together = list(zip(a, b, strict=False))
            if not together:
                continue
            apart = next((x["epoch"] for x, y in together if any(x.get(n) != y.get(n) for n in watched)), None)
            last = [(x["episode_cost"], y["episode_cost"]) for x, y in together if None not in (x["episode_cost"], y["episode_cost"])]
            gap = last[-1][0] - last[-1][1] if last else None
            rows.append(
                [
                    text(one.env),
                    text(one.claim.first),
                    text(one.claim.second),
                    text(key),
                    Cell(float(apart), str(apart)) if apart is not None else text("never"),
                    count(len(together)),
                    Cell(gap),
                ]
            )
    if not rows:
        return Missing(entry.kind, "Reruns", "no compared arms have runs of the same seed")
    columns = [
        Column("env", "environment"),
        Column("first", "first arm"),
        Column("second", "against"),
        Column("seed", "seed"),
        Column("epoch", "apart from epoch", 0),
        Column("epochs", "epochs compared", 0),
        Column("difference", "cost difference at the end", 2),
    ]
    caption = "Return, cost, multiplier and divergence of the policy, to the last digit."
    return Table("divergence", entry.title or "Where runs of one seed part", columns, rows, caption, entry.label)


_KINDS = {"none": "none", "adam": "Adam", "gradient": "gradient", "pid": "PID"}


def methods(material: Material, entry: Entry) -> Table | Missing:
    """What each arm is made of, in words."""
    rows: list[list[Cell]] = []
    seen: dict[str, Arm] = {}
    for env in material.envs(entry):
        for arm in material.arms(env, entry):
            seen.setdefault(arm.name, arm)
    for name, arm in seen.items():
        config = arm.first.config
        signal, has = config.signal, arm.has_signal
        routes = [
            word
            for word, on in (
                ("reward", signal.reward_weight > 0),
                ("multiplier", config.multiplier.signal_weight > 0 and config.multiplier.kind != "none"),
                ("cost", signal.cost_weight > 0),
                ("own multiplier", signal.multiplier.kind != "none"),
            )
            if has and on
        ]
        rows.append(
            [
                text(name),
                text(config.learner.algorithm),
                text("none" if config.learner.algorithm == "ppo" else "CMDP"),
                text(signal.scorer if has else "none"),
                text(signal.rule if has else ""),
                text(", ".join(routes) or ("none" if has else "")),
                text(_KINDS[config.multiplier.kind]),
                text(settings_word(config.multiplier.signal_weight) if has and config.multiplier.kind != "none" else ""),
                text(signal.gate if has else ""),
                text(("no" if signal.scorer.startswith("rnd") else "yes") if has else ""),
            ]
        )
    headings = {
        "arm": "arm", "learner": "learner", "formulation": "safety formulation", "scorer": "scorer", "rule": "scoring",
        "routes": "role of the signal", "multiplier": "multiplier", "term": "η₂", "gate": "gate", "frozen": "frozen",
    }  # fmt: skip
    columns = [Column(name, heading) for name, heading in headings.items()]
    caption = "From the settings of each arm's runs."
    return Table("methods", entry.title or "What the arms are made of", columns, rows, caption, entry.label)


def settings(material: Material, entry: Entry) -> Table | Missing:
    """Every setting in which arms differ, of those that have an effect."""
    arms = [arm for env in material.envs(entry) for arm in material.arms(env, entry)]
    found = [effective(arm.first.settings) for arm in arms]
    names = sorted({name for one in found for name in one})
    rows: list[list[Cell]] = []
    for name in names:
        values = [one.get(name, ABSENT) for one in found]
        if len({str(value) for value in values}) > 1:
            rows.append([text(name), *(text(_setting(value)) for value in values)])
    if not rows:
        return Missing(entry.kind, "Settings", "the arms differ in no setting")
    several = len({arm.env for arm in arms}) > 1
    heads = [Column(f"{arm.env}/{arm.name}", f"{arm.name}, {arm.env}" if several else arm.name) for arm in arms]
    caption = "Settings with an effect in which some arms differ; - where an arm has no such part."
    title = entry.title or "In what the arms differ"
    return Table("settings", title, [Column("setting", "setting"), *heads], rows, caption, entry.label, fold=not entry.asked)


def _setting(value: Any) -> str:
    return ABSENT if value == ABSENT else settings_word(value)


BUILDERS: dict[str, Callable[[Material, Entry], Table | Missing]] = {
    "returns": returns,
    "passive": passive,
    "scores": scores,
    "multiplier": multiplier,
    "gate": gate,
    "gate-roc": gate_roc,
    "lead-time": lead_time,
    "compute": compute,
    "divergence": divergence,
    "methods": methods,
    "settings": settings,
}
