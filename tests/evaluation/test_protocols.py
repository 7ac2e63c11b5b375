"""Every evaluation of the paper has a name, and does what the paper says it did."""

import dataclasses
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from vlmsafe import evaluate, train
from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.errors import InputError
from vlmsafe.evaluation.plan import Plan
from vlmsafe.evaluation.protocols import PROTOCOLS, Protocol, protocol, protocols_of
from vlmsafe.evaluation.trace.record import trace
from vlmsafe.signals.scorers.make import make_scorer

METADRIVE, BULLET, FORMULA_ONE = "metadrive-hard", "bullet-car-reach", "formula-one-l2"
PAPER = {  # (name, environment): first scenario, episodes, stochastic, in the training pool
    ("paper", METADRIVE): (0, 50, False, True),
    ("paper-early", METADRIVE): (0, 20, False, True),
    ("paper-20", BULLET): (10_000, 20, False, False),
    ("paper-200", BULLET): (10_000, 200, False, False),
    ("paper-screening", FORMULA_ONE): (10_000, 10, False, False),
    ("paper-20", FORMULA_ONE): (10_000, 20, False, False),
    ("paper-20-stochastic", FORMULA_ONE): (10_000, 20, True, False),
    ("paper-environment-only", FORMULA_ONE): (10_000, 50, False, False),
    ("paper-task-metrics", FORMULA_ONE): (30_000, 50, False, False),
    ("paper-gate-roc", FORMULA_ONE): (10_000, 25, True, False),
    ("paper-lead-time", FORMULA_ONE): (10_000, 60, False, False),
}


@pytest.mark.parametrize(("name", "env"), PAPER)
def test_protocols_of_the_paper(name, env):
    first, episodes, stochastic, trained = PAPER[name, env]
    chosen, spec = protocol(name), ENVS[env]
    assert (chosen.episodes, chosen.stochastic) == (episodes, stochastic)
    scenarios = [chosen.scenario(episode, spec) for episode in range(episodes)]
    assert scenarios == list(range(first, first + episodes))
    assert [scenario in spec.training for scenario in scenarios] == [trained] * episodes


def test_each_environment_has_its_own_and_held_out():
    for env in (METADRIVE, BULLET, FORMULA_ONE):
        assert protocols_of(env) == ["held-out", "selection", *(name for name in PROTOCOLS if (name, env) in PAPER)]
    assert protocols_of("formula-one-l2:fast+sighted") == protocols_of("formula-one-l2")
    assert protocols_of("gym:Own-v0") == ["held-out", "selection"]


@pytest.mark.parametrize("env", [*ENVS, "gym:Own-v0"])
def test_selection_uses_held_out_scenarios_that_no_other_protocol_reports(env):
    spec = env_spec(env)
    own = {protocol("selection").scenario(episode, spec) for episode in range(50)}
    assert len(own) == 50
    assert all(scenario in spec.held_out for scenario in own)
    for name in (name for name in protocols_of(env) if name != "selection"):
        other = protocol(name)
        assert not own & {other.scenario(episode, spec) for episode in range(max(1000, other.episodes))}


def test_a_protocol_of_another_environment_names_those_that_are_defined():
    with pytest.raises(InputError, match=r"'paper' is not defined for 'bullet-car-reach'; use held-out or sel"):
        protocol("paper").scenarios(ENVS[BULLET])
    with pytest.raises(InputError, match="unknown protocol 'list'") as caught:
        protocol("list")
    assert all(name in str(caught.value) for name in PROTOCOLS)


def test_the_help_names_every_protocol():
    code = "from vlmsafe.cli import main; main()"
    asked = subprocess.run([sys.executable, "-c", code, "evaluate", "--help"], capture_output=True, text=True)
    words = asked.stdout.replace("│", " ").replace(",", " ").replace(";", " ").replace(".", " ").split()
    assert set(PROTOCOLS) <= set(words)


@pytest.fixture
def dice(monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "dice", Protocol("dice", "actions drawn", episodes=4, stochastic=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    size = {"env": "speeding", "total_steps": 400, "steps_per_epoch": 400, "learner": {"update_iters": 2}}
    folder = tmp_path_factory.mktemp("runs")
    return [train(**size, seed=seed, run_dir=str(folder / str(seed)), quiet=True) for seed in (0, 1)]


def test_drawn_actions_repeat_whatever_the_number_of_processes_and_episodes(runs, dice):
    one = evaluate(runs[0], "dice", processes=1)
    assert not one["deterministic"].any()
    assert set(one["protocol"]) == {"dice"}
    assert evaluate(runs[0], "dice", processes=3, overwrite=True).equals(one)
    assert evaluate(runs[0], "dice", episodes=2, processes=1, overwrite=True).equals(one[:2])
    mean = evaluate(runs[0], episodes=4)
    assert mean["deterministic"].all()
    assert mean["scenario"].equals(one["scenario"])
    assert not set(mean["env_return"]) & set(one["env_return"])


def test_a_trace_of_drawn_actions_adds_up_to_their_evaluation(runs, dice):
    episodes = evaluate(runs[0], "dice", overwrite=True)
    steps = trace(runs[0], make_scorer("oracle", None), "dice")
    assert not steps["deterministic"].any()
    sums = steps.group_by("episode", maintain_order=True).agg(pl.col("cost").sum())
    np.testing.assert_allclose(sums["cost"], episodes["cost"], rtol=1e-12)


def test_dice_differ_between_episodes_protocols_and_seeds_of_runs(runs, dice, monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "others", dataclasses.replace(PROTOCOLS["dice"], name="others"))
    plans = [
        Plan.of(run, name, episodes=2, epoch=None, processes=1, allow_untrained=False, on_note=print)
        for run, name in [(runs[0], "dice"), (runs[0], "others"), (runs[1], "dice")]
    ]
    env = ENVS["speeding"].make(ENVS["speeding"].held_out)
    rewards = []
    for plan in plans:  # all with one policy, on one scenario
        for task in plan.tasks:
            alike = dataclasses.replace(task, policy=plans[0].tasks[0].policy, normaliser=None, scenarios=[10_000])
            rewards.append([step.reward for _, step in alike.drive(env, lambda steps: None)])
    assert len(set(map(tuple, rewards))) == 6
