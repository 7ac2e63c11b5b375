"""Returns are taken apart as recorded, and low cost is held against how little was driven."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vlmsafe import evaluate, train
from vlmsafe.analysis.resampling import bootstrap_mean_difference
from vlmsafe.analysis.returns import cost_correlations, passive, passive_episodes, return_parts, return_table
from vlmsafe.analysis.tables import stacked
from vlmsafe.errors import InputError
from vlmsafe.paper.published import published

SMALL = {"env": "speeding", "total_steps": 1600, "steps_per_epoch": 400, "learner": {"update_iters": 1}, "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    arms = {
        "shaped": {"method": "vlm-ppo-lag", "signal": {"scorer": "constant:0.6,0.4"}},
        "gated": {"method": "vlm-ppo-lag-conf", "signal": {"scorer": "constant:0.6,0.59", "gate": "prior-symmetric"}},
        "plain": {"method": "ppo-lag"},
    }
    return {name: train(**SMALL, **arm, cost_window="epoch", run_dir=str(folder / name)) for name, arm in arms.items()}


def epoch(env_return, bonus=None):
    shaped = None if bonus is None or env_return is None else env_return + bonus
    return {"env_return": env_return, "bonus": bonus, "shaped_return": shaped}


@pytest.mark.parametrize("name", ["shaped", "gated"])
def test_logged_return_of_a_real_run_less_its_bonus_is_what_its_episodes_earned(runs, name):
    found = return_parts(runs[name].rows("epochs"))
    last = [row for row in runs[name].rows("episodes") if row["finished"] and row["epoch"] == 4]
    assert found.environment_return_final == pytest.approx(np.mean([row["return"] for row in last]))
    assert found.logged_return_final - found.bonus_final == pytest.approx(found.environment_return_final)
    assert found.bonus_final > 0.5


def test_ungated_bonus_is_that_of_the_published_formula_and_a_gated_one_is_less(runs):
    """lambda_r times mean r_vlm times T overstates what a gate lets through: here kappa = tanh(100 * 0.02 / 2)."""
    found = {}
    for name in ("shaped", "gated"):
        rows = runs[name].rows("epochs")
        formula = 0.1 * rows[-1]["positive_score"] * rows[-1]["episode_length"]
        found[name] = return_parts(rows).bonus_final / formula
    assert found["shaped"] == pytest.approx(1.0)
    assert found["gated"] == pytest.approx(np.tanh(1.0), abs=1e-4)


def test_run_without_a_signal_logs_its_environment_return(runs):
    found = return_parts(runs["plain"].rows("epochs"))
    assert found.bonus_final == 0.0
    assert found.logged_return_final == found.environment_return_final == runs["plain"].rows("epochs")[-1]["env_return"]


def test_windows_are_the_last_recorded_epochs_of_each_run():
    found = return_parts([epoch(None), *(epoch(float(value), 60.0) for value in range(12))])
    assert found.epochs == 12
    assert (found.environment_return_final, found.logged_return_final, found.bonus_final) == (11.0, 71.0, 60.0)
    assert found.environment_return_last_5 == np.mean(range(7, 12))
    assert found.environment_return_last_10 == np.mean(range(2, 12))
    short = return_parts([epoch(1.0, 2.0), epoch(3.0, 2.0)])
    assert short.environment_return_last_5 == short.environment_return_last_10 == 2.0


def test_arms_are_means_over_runs_in_the_columns_of_the_published_table():
    arms = {
        "shaped": {"42": [epoch(1.0, 60.0)], "123": [epoch(3.0, 62.0)]},
        "plain": {"42": [epoch(5.0), epoch(7.0)]},
    }
    table = return_table(arms)
    assert [name for name in published("f1-return-decomp").columns if name not in ("arm", "note")] == table.columns[3:]
    assert table.select("arm", "run", "epochs").rows() == [
        ("shaped", None, None), ("shaped", "42", 1), ("shaped", "123", 1), ("plain", None, None), ("plain", "42", 2),
    ]  # fmt: skip
    assert table.row(0)[3:] == (63.0, 61.0, 2.0, 2.0, 2.0)
    assert table.row(3)[3:] == (7.0, 0.0, 6.0, 6.0, 7.0)


def test_published_returns_less_their_bonus_are_the_published_environment_returns():
    for row in published("f1-return-decomp").iter_rows(named=True):
        rest = row["logged_return_final"] - row["bonus_final"]
        assert rest == pytest.approx(row["environment_return_final"], abs=0.0105)


def episodes(**columns):
    size = len(next(iter(columns.values())))
    return pl.DataFrame({"arm": ["a"] * size, "run": ["r"] * size, **columns})


def test_published_correlations_of_cost_with_distance_progress_and_return():
    """Over the arm means of the published runs, the untrained one left out."""
    table = published("task-metrics").filter("trained")
    named = table.rename({"path_length": "path", "progress": "net_progress", "environment_return": "env_return"})
    found = cost_correlations(named.with_columns(run=pl.col("seed").cast(pl.String)))
    arms = {row["against"]: row for row in found.filter(level="arms").iter_rows(named=True)}
    assert {name: round(row["pearson"], 3) for name, row in arms.items()} == {
        "path": 0.978, "net_progress": 0.991, "env_return": 0.977,
    }  # fmt: skip
    assert {row["n"] for row in arms.values()} == {6}
    assert set(found.filter(level="runs")["n"]) == {19}


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_levels_are_episodes_runs_by_their_means_and_arms_by_the_means_of_their_runs(seed, arms, most):
    rng = np.random.default_rng(seed)
    tables = {
        f"arm-{arm}": {
            f"seed-{run}": pl.DataFrame(dict(zip(("cost", "path"), rng.normal(size=(2, size)), strict=True)))
            for run, size in enumerate(rng.integers(1, most + 1, rng.integers(1, 4)))
        }
        for arm in range(arms)
    }
    runs = [[(own["cost"].mean(), own["path"].mean()) for own in arm.values()] for arm in tables.values()]
    points = {
        "episodes": [row for arm in tables.values() for own in arm.values() for row in own.rows()],
        "runs": [point for arm in runs for point in arm],
        "arms": [tuple(np.mean(arm, axis=0)) for arm in runs],
    }
    for row in cost_correlations(stacked(tables), ["path"]).iter_rows(named=True):
        x, y = np.array(points[row["level"]]).T
        assert row["n"] == len(x)
        if len(x) < 3:
            assert row["pearson"] is row["spearman"] is None
        else:
            assert row["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic)
            assert row["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic)


def test_cost_that_is_distance_correlates_fully_and_a_constant_not_at_all():
    table = cost_correlations(episodes(cost=[1.0, 4.0, 9.0, 16.0], path=[1.0, 2.0, 3.0, 4.0], env_return=[2.0] * 4))
    path, own_return = table.filter(level="episodes").iter_rows(named=True)
    assert path["spearman"] == pytest.approx(1.0)
    assert 0.9 < path["pearson"] < 1.0
    assert own_return["pearson"] is own_return["spearman"] is None


def test_real_evaluation_tables_are_read_as_they_are(runs):
    tables = stacked({name: {"seed-0": evaluate(run, episodes=4, processes=1)} for name, run in runs.items()})
    found = cost_correlations(tables)
    assert found.select("level", "against", "n").rows() == [
        ("episodes", "env_return", 12), ("runs", "env_return", 3), ("arms", "env_return", 3),
    ]  # fmt: skip
    assert found["pearson"].null_count() == 0
    assert passive_episodes(tables, threshold=5.0)["episodes"].to_list() == [4] * 6


def test_passive_episodes_cost_nothing_and_return_strictly_less():
    table = stacked(
        {
            "shaped": {
                "1": pl.DataFrame({"cost": [0.0, 0.0, 1.0, 0.0], "env_return": [19.9, 20.0, 3.0, -5.0]}),
                "2": pl.DataFrame({"cost": [0.0, 7.0], "env_return": [90.0, 1.0]}),
            },
            "plain": {"1": pl.DataFrame({"cost": [0.0, 0.0], "env_return": [0.0, 0.0]})},
        }
    )
    assert passive_episodes(table, 20.0).rows() == [
        ("shaped", None, 6, 2, pytest.approx(1 / 3)),
        ("shaped", "1", 4, 2, 0.5),
        ("shaped", "2", 2, 0, 0.0),
        ("plain", None, 2, 2, 1.0),
        ("plain", "1", 2, 2, 1.0),
    ]


def test_passivity_of_two_arms_can_be_compared_over_runs():
    idle, busy = np.zeros(10), np.full(10, 100.0)
    first = passive([idle, idle], [idle, busy], 20.0)
    second = passive([busy, busy], [idle, busy], 20.0)
    assert (first.pooled, second.pooled) == (0.5, 0.0)
    assert bootstrap_mean_difference(first.per_run, second.per_run, resamples=200).estimate == 0.5


def test_bad_input_is_named():
    with pytest.raises(InputError, match="row 1 has no bonus, shaped_return"):
        return_parts([{"env_return": 1.0}])
    with pytest.raises(InputError, match="no epoch has a return"):
        return_parts([epoch(None)])
    with pytest.raises(InputError, match="arm 'a' has no runs"):
        return_table({"a": {}})
    with pytest.raises(InputError, match="no column 'arm', 'run'; expected evaluation tables"):
        cost_correlations(pl.DataFrame({"cost": [1.0], "path": [1.0]}))
    with pytest.raises(InputError, match="no column 'path'"):
        cost_correlations(episodes(cost=[1.0]), ["path"])
    with pytest.raises(InputError, match="nothing to compare cost with"):
        cost_correlations(episodes(cost=[1.0]))
    with pytest.raises(InputError, match="no column 'env_return'"):
        passive_episodes(episodes(cost=[1.0]), 20.0)
    with pytest.raises(InputError, match="costs of 1 runs and returns of 2"):
        passive([np.zeros(2)], [np.zeros(2)] * 2, 1.0)
    with pytest.raises(InputError, match="run 0 has 2 costs and 3 returns"):
        passive([np.zeros(2)], [np.zeros(3)], 1.0)
    with pytest.raises(InputError, match="not finite"):
        passive_episodes(episodes(cost=[1.0, None], env_return=[0.0, 0.0]), 1.0)
