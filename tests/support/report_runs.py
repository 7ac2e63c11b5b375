"""A made-up study in real run directories: two arms on MetaDrive Easy, without a simulator."""

from dataclasses import replace

import numpy as np
import polars as pl

from vlmsafe.evaluation.evaluate import SCHEMA as EPISODES
from vlmsafe.paper.values import paper_config
from vlmsafe.runs.run import Run
from vlmsafe.signals.prompts import PromptSet

PLAIN, SIGNAL = "ppo-lag", "vlm-ppo-lag-conf"
SEEDS = (42, 123, 456, 789)
EPOCHS, STEPS = 12, 20_000


def write_run(
    folder,
    method,
    seed,
    *,
    arm=None,
    env="metadrive-easy",
    cost=40.0,
    epochs=EPOCHS,
    total_steps=EPOCHS * STEPS,
    prompts=None,
    **settings,
):
    """A run whose cost falls to `cost`, with a bonus of 60 where it has a signal; its directory."""
    path = folder / env / (arm or method) / f"seed-{seed}"
    path.mkdir(parents=True)
    config = replace(paper_config(env, method, ()), seed=seed, total_steps=total_steps, run_dir=path, **settings)
    run = Run.create(config.resolved(), prompts or (made_up_prompts() if config.signal.prompts else None))
    rng = np.random.default_rng(seed)
    signal, multiplier = config.signal.scorer != "none", 0.001
    rows = []
    for epoch in range(1, epochs + 1):
        here = float(cost * (2 - epoch / EPOCHS) + rng.normal())
        own = float(10 * epoch / EPOCHS + rng.normal())
        multiplier += 0.03
        rows.append(
            {
                "epoch": epoch, "steps": epoch * STEPS, "episodes": 20, "env_return": own,
                "bonus": 60.0 if signal else None, "shaped_return": own + 60.0 if signal else None,
                "episode_cost": here, "episode_length": 1000.0, "epoch_cost": here, "budget": 25.0,
                "cost_gap": here - 25.0,
                "signal_term": 0.0012 if signal else 0.0, "bracket": here - 25.0, "multiplier": multiplier,
                "signal_gap": None, "signal_multiplier": None, "positive_score": 0.62 if signal else None,
                "negative_score": 0.624 if signal else None, "signal_excess": None, "kappa": 0.9 if signal else None,
                "margin": 0.03 if signal else None, "kl": 0.01, "passes": 10, "entropy": 1.0,
            }
        )  # fmt: skip
    run.append("epochs", rows)
    run.append("timing", [{"epoch": row["epoch"], "collect": 8.0 + 2 * signal, "update": 2.0} for row in rows])
    return run


def made_up_prompts(positive="the car has clear space ahead"):
    return PromptSet((positive,), ("the car is about to collide",))


def write_evaluation(run, costs, name="held-out", first=10_000, returns=None):
    """An evaluation with these episode costs."""
    budget = run.config.budget
    rows = {
        "episode": range(len(costs)), "scenario": range(first, first + len(costs)), "traffic_seed": [None] * len(costs),
        "in_training_pool": [False] * len(costs), "env_return": list(returns or [100.0 - cost for cost in costs]),
        "cost": list(costs), "length": [1000] * len(costs), "arrived": [False] * len(costs),
        "violation": [cost > budget for cost in costs], "catastrophe": [cost > 4 * budget for cost in costs],
        "budget": [budget] * len(costs), "checkpoint_epoch": [EPOCHS] * len(costs), "run_finished": [True] * len(costs),
        "protocol": [name] * len(costs), "deterministic": [True] * len(costs),
        "route_completion": [0.1 + 0.01 * place for place in range(len(costs))],
    }  # fmt: skip
    kinds = {**EPISODES, "route_completion": pl.Float64, "deterministic": pl.Boolean, "protocol": pl.String}
    table = pl.DataFrame(
        {key: list(value) for key, value in rows.items()}, schema={key: kinds.get(key) for key in rows}
    )
    table.write_parquet(run.evaluations / f"{name}.parquet")


def write_trace(run, episodes=6, length=60, name="held-out"):
    """A trace whose negative score rises before contact."""
    rng = np.random.default_rng(run.config.seed)
    steps = episodes * length
    contact = rng.random(steps) < 0.05
    soon = np.convolve(contact, np.append(np.ones(5), np.zeros(6)), mode="same") > 0
    positive, negative = 0.62 + 0.01 * rng.normal(size=(2, steps))
    negative += 0.01 * soon
    table = pl.DataFrame(
        {
            "episode": np.repeat(np.arange(episodes), length), "step": np.tile(np.arange(1, length + 1), episodes),
            "cost": contact.astype(float), "scored": np.ones(steps, bool), "positive": positive, "negative": negative,
            "margin": positive - negative, "kappa": np.full(steps, 0.9),
            "scenario": 10_000 + np.repeat(np.arange(episodes), length),
            "x": np.tile(np.arange(length) * 2.0, episodes), "y": np.repeat(np.arange(episodes) * 10.0, length),
        }
    )  # fmt: skip
    (run.path / "traces").mkdir()
    table.write_parquet(run.path / "traces" / f"{name}.parquet")


def costs_with(catastrophes, episodes=20):
    """Episode costs of which so many are catastrophes."""
    return [200.0] * catastrophes + [float(place % 20) for place in range(episodes - catastrophes)]


def write_study(folder, seeds=SEEDS, traces=False):
    """Both arms with these seeds; the signal's has fewer catastrophes on every one."""
    for place, seed in enumerate(seeds):
        for method, many in ((PLAIN, 8 + place), (SIGNAL, 1 + place % 3)):
            run = write_run(folder, method, seed, cost=40.0 if method == PLAIN else 30.0)
            write_evaluation(run, costs_with(many))
            write_evaluation(run, costs_with(max(0, many - 1)), "paper", first=0)
            if traces and method == SIGNAL:
                write_trace(run)
    (folder / "claims.yaml").write_text(
        f"comparisons:\n- {{first: {SIGNAL}, second: {PLAIN}, about: [signal], outcome: catastrophe, source: held-out,"
        " test: permutation, sides: less}\n"
    )
    return folder
