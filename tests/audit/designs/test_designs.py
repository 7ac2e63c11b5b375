"""What the designs promise: the printed figures in the published one, nothing amiss in the clean one."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from vlmsafe.analysis.anticipation import CONTROL, passes
from vlmsafe.analysis.exact_tests import permutation_test
from vlmsafe.analysis.lead_time import lead_time
from vlmsafe.analysis.multiplier_replay import AGREEMENT, rebuild, replay, summarise
from vlmsafe.analysis.returns import cost_correlations, passive_episodes, return_table
from vlmsafe.analysis.tables import stacked
from vlmsafe.config.yaml import read_yaml
from vlmsafe.paper.published import published
from vlmsafe.runs.arms import by_arm, open_arms

from .benign import BENIGN
from .clean_design import DESIGNS, write_clean_design
from .planted import PLANTED
from .published_design import EXPECTED, UNREPORTED, write_published_design
from .published_figures import CALIBRATED, L2, METADRIVE, episode_costs, split, spread


class Written:
    """A design on disk, by environment and arm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        runs, problems = open_arms([folder])
        assert not problems
        self.runs = [entry.run for entry in runs]
        self.arms = {key: {entry.name: entry.run for entry in own} for key, own in by_arm(runs).items()}

    def tables(self, env, protocol, *arms, folder="evaluations"):
        found = {
            arm: {
                name: pl.read_parquet(path)
                for name, run in runs.items()
                if (path := run.path / folder / f"{protocol}.parquet").exists()
            }
            for (place, arm), runs in self.arms.items()
            if place == env and (not arms or arm in arms)
        }
        return {arm: runs for arm, runs in found.items() if runs}

    def over(self, env, arm, name, window):
        return [
            float(np.mean([row[name] for row in run.rows("epochs")[-window:]])) for run in self.arms[env, arm].values()
        ]


@pytest.fixture(scope="module")
def paper(made_once):
    return Written(made_once("published-design", write_published_design))


@pytest.fixture(scope="module", params=DESIGNS)
def clean(request, made_once):
    return Written(made_once(f"clean-{request.param}", partial(write_clean_design, variant=request.param)))


def rates(table):
    return table["cost"].mean(), 100 * table["violation"].mean(), 100 * table["catastrophe"].mean()


def test_published_runs_have_the_epochs_and_checkpoints_that_were_left(paper):
    lost = {
        (row["environment"], row["arm"], f"seed-{row['seed']}"): row["epochs"]
        for row in published("full-results").filter(checkpoint_lost=True).to_dicts()
    }
    found = {
        (env, arm, name): len(run.rows("epochs"))
        for (env, arm), runs in paper.arms.items()
        for name, run in runs.items()
        if run.status() != "finished"
    }
    assert found == lost
    assert not any(paper.arms[env, arm][name].epochs_done() for env, arm, name in lost)
    assert len(paper.runs) == 133


def test_published_evaluations_have_the_printed_cost_and_rates(paper):
    cases = [("md-perseed", "paper"), ("task-metrics", "paper-task-metrics"), ("phaseb-holdout", "paper-20")]
    for source, protocol in cases:
        for row in published(source).filter(pl.col("seed").is_not_null()).to_dicts():
            env = row.get("environment", L2)
            table = paper.tables(env, protocol, row["arm"])[row["arm"]][f"seed-{row['seed']}"]
            assert rates(table) == pytest.approx((row["cost"], row["violation_pct"], row["catastrophe_pct"]), abs=0.011)
    for row in published("bullet-perseed").filter(kind="seed").to_dicts():
        name = f"seed-{row['seed']}" + ("-2m" if row["training_steps"] == 2_000_000 else "")
        table = paper.tables("bullet-car-reach", "paper-200", row["arm"])[row["arm"]][name]
        assert rates(table) == pytest.approx((row["cost"], row["violation_pct"], row["catastrophe_pct"]), abs=0.011)


def test_published_arms_have_the_printed_means_over_50_episodes(paper):
    tables = paper.tables(L2, "paper-environment-only")
    for row in published("main-results-evaluation").filter(pl.col("arm") != "cpo-decoupled-conf").to_dicts():
        runs = list(tables[row["arm"]].values())
        assert len(runs) == row["runs"]
        costs = [table["cost"].mean() for table in runs]
        pooled = rates(pl.concat(runs))
        assert np.mean(costs) == pytest.approx(row["cost"], abs=0.02)
        assert np.std(costs) == pytest.approx(row["cost_std"] or 0.0, abs=0.1)
        assert pooled[1:] == pytest.approx((row["violation_pct"], row["catastrophe_pct"]), abs=0.06)
        assert np.mean([table["env_return"].mean() for table in runs]) == pytest.approx(row["environment_return"])


def test_published_training_costs_are_the_printed_ones_by_every_window(paper):
    for row in published("full-results").filter(environment=L2).to_dicts():
        run = paper.arms[L2, row["arm"]][f"seed-{row['seed']}"]
        last = run.rows("epochs")[-1]
        assert last["episode_cost"] == row["cost"]
        logged = last["shaped_return"] if row["augmented"] else last["env_return"]
        assert logged == pytest.approx(row["logged_return"])
    for row in published("perm-l2").filter(metric="cost").to_dicts():
        first, second = (paper.over(L2, row[name], "episode_cost", 10) for name in ("arm_1", "arm_2"))
        assert (np.mean(first), np.mean(second)) == pytest.approx((row["mean_1"], row["mean_2"]), abs=0.005)
        result = permutation_test(first, second, alternative=row["alternative"])
        assert result.p == pytest.approx(row["p_count"] / row["p_total"])


def test_published_returns_come_apart_as_printed(paper):
    rows = {
        arm: {name: run.rows("epochs") for name, run in runs.items()}
        for (env, arm), runs in paper.arms.items()
        if env == L2
    }
    computed = {row["arm"]: row for row in return_table(rows).filter(pl.col("run").is_null()).to_dicts()}
    windows = [f"environment_return_{window}" for window in ("final", "last_5", "last_10")]
    for row in published("f1-return-decomp").to_dicts():
        for name in ("logged_return_final", "bonus_final", *windows):
            assert computed[row["arm"]][name] == pytest.approx(row[name], abs=0.006)


def test_published_hard_episodes_idle_as_often_as_printed(paper):
    table = passive_episodes(stacked(paper.tables("metadrive-hard", "paper", "ppo-lag", "vlm-ppo-lag-conf")), 20.0)
    pooled = table.filter(pl.col("run").is_null())
    assert dict(zip(pooled["arm"], pooled["rate"], strict=True)) == {"ppo-lag": 0.052, "vlm-ppo-lag-conf": 0.286}


def test_published_metadrive_returns_have_the_printed_means_and_go_against_cost(paper):
    means = []
    for env in METADRIVE:
        for arm, runs in paper.tables(env, "paper", "ppo-lag", "vlm-ppo-lag-conf").items():
            side = "baseline" if arm == "ppo-lag" else "signal"
            key = f"{env.removeprefix('metadrive-')}-return-{side}"
            printed = published("text-results").filter(key=key)["value"][0]
            assert pl.concat(runs.values())["env_return"].mean() == pytest.approx(printed, abs=0.6)
            means += [(table["env_return"].mean(), table["cost"].mean()) for table in runs.values()]
    assert len(means) == 36
    assert np.corrcoef(np.array(means).T)[0, 1] < -0.99


def test_published_cost_goes_with_distance_over_six_arms_as_printed(paper):
    tables = paper.tables(L2, "paper-task-metrics")
    del tables["ppo-lag-decoupled"]["seed-42"]  # untrained; the paper leaves it out here
    found = cost_correlations(stacked(tables), ["path", "net_progress"]).filter(level="arms")
    assert found["pearson"].to_list() == pytest.approx([0.978, 0.991], abs=0.0006)


def test_published_scores_fall_before_contact_and_the_term_moves_nothing(paper):
    traces = paper.tables(L2, "paper-lead-time", folder="traces")
    assert set(traces) == {CALIBRATED, "ppo-lag-unmatched"}
    table = lead_time(stacked(traces), resamples=20).filter(pl.col("run").is_null())
    assert table.filter(pl.col("signal") != CONTROL)["auc"].max() < 0.5
    assert table.filter(pl.col("signal") == CONTROL)["auc"].min() > 0.5
    parts = [
        replay(run.rows("epochs"), run.config.multiplier) for run in paper.runs if run.config.multiplier.signal_weight
    ]
    found = summarise(*parts)
    assert found.agrees
    assert found.largest_term <= 0.005
    assert found.sign_reversals == 0
    assert found.largest_change < 1e-3


def test_all_multipliers_follow_from_their_rows(paper, clean):
    for run in paper.runs + clean.runs:
        if run.config.multiplier.kind != "none":
            rows = run.rows("epochs")
            assert np.abs(rebuild(rows, run.config.multiplier) - [row["multiplier"] for row in rows]).max() <= AGREEMENT


def test_claims_name_arms_that_exist(paper, clean):
    for design in (paper, clean):
        for claim in read_yaml(design.folder / "claims.yaml")["comparisons"]:
            for side in ("first", "second"):
                assert (claim["env"], claim[side]) in design.arms


def test_both_clean_arms_drive_and_cost_tells_nothing_of_how_far(clean):
    (env,) = {env for env, _ in clean.arms}
    episodes = stacked(clean.tables(env, "held-out"))
    found = cost_correlations(episodes)
    assert found["pearson"].abs().max() < 1e-9
    assert found["spearman"].abs().max() < 0.3
    assert passive_episodes(episodes, 100.0)["passive"].sum() == 0
    assert not episodes["in_training_pool"].any()


def test_the_clean_comparison_holds_by_every_window_within_the_budget(clean):
    (env,) = {env for env, _ in clean.arms}
    claim = read_yaml(clean.folder / "claims.yaml")["comparisons"][0]
    for window in (1, 5, 10):
        first, second = (clean.over(env, claim[side], "episode_cost", window) for side in ("first", "second"))
        assert max(first) < min(second) < max(second) < 25.0


def test_the_clean_signal_matters_and_warns(clean):
    (env,) = {env for env, _ in clean.arms}
    for arm, runs in clean.tables(env, "held-out", folder="traces").items():
        some = dict(list(runs.items())[:2])
        assert passes(lead_time(stacked({arm: some}), horizons=(20, 40), resamples=50).filter(pl.col("run").is_null()))
        parts = [replay(run.rows("epochs"), run.config.multiplier) for run in clean.arms[env, arm].values()]
        assert summarise(*parts).largest_change > 0.1
        kappa = pl.concat(runs.values())["kappa"]
        assert kappa.max() == 1.0 if arm == "vlm-ppo-lag" else 0.1 < kappa.median() < 0.9


def test_every_defect_comes_in_two_forms_and_under_one_name():
    assert min(Counter(defect.code for defect in PLANTED).values()) >= 2
    names = [case.name for case in (*PLANTED, *BENIGN)]
    assert len(names) == len(set(names))
    assert not set(EXPECTED) & set(UNREPORTED)


def test_made_up_costs_have_the_mean_and_the_counts_asked_for():
    rng = np.random.default_rng(0)
    for mean, over, severe, zeros in ((10.0, 4, 1, 20), (0.1, 0, 0, 0), (357.48, 41, 39, 0), (27.1, 5, 3, 44)):
        costs = episode_costs(rng, 50, mean, over, severe, zeros)
        assert costs.mean() == pytest.approx(mean)
        assert ((costs > 25).sum(), (costs > 100).sum()) == (over, severe)
        assert not costs[:zeros].any()
    with pytest.raises(AssertionError, match="too low"):
        episode_costs(rng, 50, 1.0, 10, 5)
    for count, mean, deviation in ((3, 30.0, 5.0), (5, 33.0, 25.1), (1, 4.0, 0.0)):
        values = spread(mean, deviation, count)
        assert (np.mean(values), np.std(values)) == pytest.approx((mean, deviation))
        assert min(values) >= 0.0
    assert split(10, [1.0, 1.0, 2.0]) in ([2, 3, 5], [3, 2, 5])
