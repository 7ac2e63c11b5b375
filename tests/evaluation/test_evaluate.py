"""Evaluations measure the frozen policy on the scenarios they name."""

import warnings
from dataclasses import replace

import polars as pl
import pytest

from vlmsafe import evaluate, train
from vlmsafe.envs.registry import ENVS
from vlmsafe.errors import InputError
from vlmsafe.evaluation.evaluate import SCHEMA, summary
from vlmsafe.evaluation.plan import EpisodeTask, load_policy
from vlmsafe.evaluation.protocols import PROTOCOLS
from vlmsafe.runs.run import Run
from vlmsafe.runs.tables import read_table, write_table

SETTINGS = {"env": "speeding", "total_steps": 1200, "steps_per_epoch": 400, "learner": {"update_iters": 2}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(**SETTINGS, run_dir=str(tmp_path_factory.mktemp("runs") / "run"), quiet=True)


def test_held_out_scenarios_are_outside_the_training_pool(run):
    table = evaluate(run, episodes=6, overwrite=True)
    assert table["scenario"].to_list() == list(range(10_000, 10_006))
    assert not table["in_training_pool"].any()
    assert table.schema == pl.Schema(SCHEMA)
    assert pl.read_parquet(run.evaluations / "held-out.parquet").equals(table)


def test_evaluation_repeats_exactly_whatever_the_number_of_processes(run):
    one = evaluate(run, episodes=5, processes=1, overwrite=True)
    assert evaluate(run, episodes=5, processes=3, overwrite=True).equals(one)


def test_violation_and_catastrophe_are_strict(run):
    table = evaluate(run, episodes=20, overwrite=True)
    assert (table["violation"] == (table["cost"] > 30.0)).all()
    assert (table["catastrophe"] == (table["cost"] > 120.0)).all()
    assert (table["length"] == 20).all()


def test_evaluation_changes_nothing_in_the_run(run):
    before = {
        path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and "evaluations" not in str(path)
    }
    evaluate(run, episodes=2, overwrite=True)
    for path, content in before.items():
        assert path.read_bytes() == content, path


def test_another_variant_is_driven_in_with_its_own_rules_and_apart_from_the_runs_tables(tmp_path):
    settings = {"env": "formula-one-l0", "total_steps": 1000, "steps_per_epoch": 1000, "learner": {"update_iters": 1}}
    run = train(**settings, run_dir=str(tmp_path / "run"), quiet=True)
    table = evaluate(run, episodes=1, env="formula-one-l0:strict+fast")
    assert set(table["env"]) == {"formula-one-l0:fast+strict"}
    assert read_table(run.evaluations / "formula-one-l0-fast+strict" / "held-out.parquet").equals(table)
    notes = []
    evaluate(run, episodes=1, env="formula-one-l0:fast+strict", on_note=notes.append)
    assert "holds these episodes already" in notes[0]  # the order of variants does not matter
    assert not (run.evaluations / "held-out.parquet").exists()
    own = evaluate(run, episodes=1)
    assert "env" not in own.columns
    assert own["env_return"][0] != table["env_return"][0]
    for env, why in (
        ("formula-one-l0:sighted", "observations of size"),
        ("braking", "another world"),
        ("formula-one-l9", "unknown"),
    ):
        with pytest.raises(InputError, match=why):
            evaluate(run, episodes=1, env=env)
    assert sorted(path.name for path in run.evaluations.iterdir()) == ["formula-one-l0-fast+strict", "held-out.parquet"]


def test_chosen_epoch_is_evaluated_and_recorded(run):
    older = evaluate(run, episodes=2, epoch=2)
    assert set(older["checkpoint_epoch"]) == {2}
    assert older["run_finished"].all()
    assert (run.evaluations / "held-out-epoch-00002.parquet").exists()
    table = evaluate(run, episodes=2, overwrite=True)
    assert set(table["checkpoint_epoch"]) == {3}
    assert table["run_finished"].all()
    with pytest.raises(InputError, match="no checkpoint of epoch 9"):
        evaluate(run, epoch=9)


def test_summary_averages_episodes(run):
    table = evaluate(run, episodes=4, overwrite=True)
    figures = summary(table)
    assert figures["episodes"] == 4
    assert figures["cost"] == pytest.approx(sum(table["cost"]) / 4)
    assert figures["violation_rate"] == pytest.approx(table["violation"].sum() / 4)
    assert figures["arrival_rate"] is figures["arrival_without_cost_rate"] is None  # there is nowhere to arrive


def test_success_is_counted_twice_also_in_tables_of_earlier_versions(run):
    table = evaluate(run, episodes=4, overwrite=True)
    success = {"arrived": [True, True, False, True], "cost": [0.0, 2.0, 0.0, 0.5]}
    earlier = table.drop("arrived_without_cost").with_columns(**{name: pl.Series(on) for name, on in success.items()})
    figures = summary(earlier)
    assert (figures["arrival_rate"], figures["arrival_without_cost_rate"]) == (0.75, 0.25)
    path = run.evaluations / "held-out.parquet"
    write_table(path, earlier)
    assert read_table(path)["arrived_without_cost"].to_list() == [True, False, False, False]


def test_task_metrics_of_an_environment_are_columns_and_means(tmp_path):
    run = train(env="braking", total_steps=400, steps_per_epoch=400, run_dir=str(tmp_path / "run"), quiet=True)
    table = evaluate(run, episodes=2)
    policy = load_policy(run, run.checkpoint(None)[0])
    for row in table.rows(named=True):
        task = EpisodeTask(*policy, [row["scenario"]], [None])
        env = ENVS["braking"].make(ENVS["braking"].held_out)
        for _, step in task.drive(env, lambda steps: None):
            if step.last:
                assert row["distance"] == env.progress()["distance"] > 0.0
                assert row["length"] == step.number
    assert summary(table)["distance"] == pytest.approx(table["distance"].mean())


def test_unknown_protocol_and_protocol_of_another_environment_are_refused(run):
    with pytest.raises(InputError, match="did you mean 'held-out'"):
        evaluate(run, "heldout")
    with pytest.raises(InputError, match="not defined for 'speeding'"):
        evaluate(run, "paper")


def test_arguments_that_are_no_whole_numbers_are_refused(run):
    for name, value in (("episodes", "4"), ("processes", 1.5), ("epoch", "2")):
        with pytest.raises(InputError, match=rf"{name} is {value!r}; expected a whole number"):
            evaluate(run, **{name: value})
    with pytest.raises(InputError, match="episodes is 0; it must be at least 1"):
        evaluate(run, episodes=0)


def test_a_note_is_a_warning_of_the_callers_line_unless_somebody_takes_it(run):
    table = evaluate(run, episodes=2, overwrite=True)
    with pytest.warns(UserWarning, match="holds these episodes already") as caught:
        again = evaluate(run, protocol="held-out", episodes=2)
    assert again.equals(table)
    assert caught[0].filename == __file__
    notes = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(run, episodes=2, on_note=notes.append)
    assert len(notes) == 1


def test_paper_protocols_map_into_the_training_pool():
    spec = ENVS["metadrive-hard"]
    assert [PROTOCOLS["paper"].scenario(i, spec) for i in (0, 1, 49)] == [0, 1, 49]
    assert PROTOCOLS["paper"].episodes == 50
    assert not PROTOCOLS["paper"].randomise
    early = PROTOCOLS["paper-early"]
    assert [early.scenario(i, spec) for i in (0, 19, 100)] == [0, 19, 0]
    assert (early.episodes, early.randomise, early.shared_simulator) == (20, True, True)
    held_out = PROTOCOLS["held-out"]
    assert all(held_out.scenario(i, spec) not in spec.training for i in range(50))


def test_metadrive_protocols_run_and_repeat(tmp_path, monkeypatch):
    pytest.importorskip("metadrive")
    monkeypatch.setitem(ENVS, "metadrive-easy", replace(ENVS["metadrive-easy"], horizon=150))  # short episodes
    run = train(env="metadrive-easy", total_steps=200, steps_per_epoch=200, learner={"update_iters": 1},
                run_dir=str(tmp_path / "run"), quiet=True)  # fmt: skip
    config = (run.path / "config.yaml").read_text()
    assert "metadrive-easy" in config
    held_out = evaluate(run, "held-out", episodes=2)
    assert held_out["scenario"].to_list() == [10_000, 10_001]
    assert held_out["arrived"].null_count() == held_out["arrived_without_cost"].null_count() == 0
    assert evaluate(Run.open(run.path), "held-out", episodes=2, overwrite=True).equals(held_out)
    paper = evaluate(run, "paper", episodes=1)
    assert paper["scenario"].to_list() == [0]
    assert paper["in_training_pool"].all()
    assert paper["traffic_seed"].null_count() == 1
    early = evaluate(run, "paper-early", episodes=2)
    assert early["scenario"].to_list() == [0, 1]
    assert early["traffic_seed"].null_count() == 0


def test_larger_table_of_the_same_checkpoint_is_not_replaced_by_accident(run):
    evaluate(run, episodes=3, overwrite=True)
    with pytest.raises(InputError, match="already holds 3 episodes"):
        evaluate(run, episodes=2)
    assert len(pl.read_parquet(run.evaluations / "held-out.parquet")) == 3
    evaluate(run, episodes=4)
    evaluate(run, episodes=1, overwrite=True)
    assert len(pl.read_parquet(run.evaluations / "held-out.parquet")) == 1
