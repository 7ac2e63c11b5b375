"""Our results stand beside the right published ones, and what was done otherwise is said."""

from dataclasses import replace

import polars as pl
import pytest
from recorded_versions import edit_recorded

from vlmsafe import evaluate, train
from vlmsafe.config.methods import METHODS, check_method, config_from
from vlmsafe.config.settings import TrainConfig
from vlmsafe.config.yaml import to_dict
from vlmsafe.errors import InputError, RunError
from vlmsafe.evaluation.evaluate import SCHEMA as EPISODES
from vlmsafe.paper.published import published
from vlmsafe.paper.side_by_side import SCHEMA, side_by_side
from vlmsafe.paper.values import paper_config, published_values
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.run import Run

SIGNAL = "vlm-ppo-lag-conf"
AFTER = (
    "a world after Safety-Gymnasium's: its circuit, layouts and car within the tolerances of benchmarks/formula_one.py"
)


def write_run(folder, config: TrainConfig, arm=None, costs=(), env_returns=None, bonus=None) -> Run:
    """A run directory with the given epochs, without a simulator."""
    path = folder / config.env.replace(":", "-") / (arm or config.method) / f"seed-{config.seed}"
    path.mkdir(parents=True)
    run = Run.create(replace(config, run_dir=path).resolved())
    returns = [0.0] * len(costs) if env_returns is None else env_returns
    run.append("epochs", [
        {"epoch": epoch, "episode_cost": cost, "env_return": own, "bonus": bonus,
         "shaped_return": None if bonus is None else own + bonus}
        for epoch, (cost, own) in enumerate(zip(costs, returns, strict=True), 1)
    ])  # fmt: skip
    return run


def write_evaluation(run: Run, name="paper", first=0, costs=(0.0,) * 50, **columns) -> None:
    config = run.config
    known = {
        "scenario": range(first, first + len(costs)), "cost": costs, "env_return": 0.0, "length": 1000,
        "violation": [cost > config.budget for cost in costs],
        "catastrophe": [cost > 4 * config.budget for cost in costs],
        "budget": config.budget, "checkpoint_epoch": config.epochs, "traffic_seed": None, "arrived": None,
    }  # fmt: skip
    known |= dict.fromkeys(config.spec.metrics, 1.0) | columns
    rows = {key: value if isinstance(value, range | tuple | list) else [value] * len(costs)
            for key, value in known.items()}  # fmt: skip
    kinds = {**EPISODES, **dict.fromkeys(config.spec.metrics, pl.Float64), "deterministic": pl.Boolean}
    run.evaluations.mkdir(exist_ok=True)
    pl.DataFrame(rows, schema={key: kinds[key] for key in rows}).write_parquet(run.evaluations / f"{name}.parquet")


def episodes_of(cost, violation_pct, catastrophe_pct, episodes=50):
    """Episode costs with the given mean and rates, for a budget of 25."""
    over, far = round(violation_pct * episodes / 100), round(catastrophe_pct * episodes / 100)
    slight = [60.0] * (over - far)
    return [*slight, *([(cost * episodes - sum(slight)) / far] * far), *([0.0] * (episodes - over))]


def compared(folder):
    runs, problems = open_arms([folder])
    assert not problems
    return side_by_side(runs)


def cell(table, **where):
    rows = table.filter(*(pl.col(key).is_null() if value is None else pl.col(key) == value
                          for key, value in where.items()))  # fmt: skip
    assert rows.height == 1, where
    return rows.row(0, named=True)


def easy(seed=42, method="ppo-lag", settings=()):
    return replace(paper_config("metadrive-easy", method, settings), seed=seed)


# -- the published values --------------------------------------------------------------------------------------


def test_every_published_outcome_appears_once_with_the_label_of_its_table():
    values = published_values()
    keys = [(value.env, value.arm, value.seed, value.quantity, value.window, value.settings) for value in values]
    assert len(set(keys)) == len(keys) > 900
    assert {value.label for value in values} >= {"tab:md-perseed", "tab:full-results", "text, app:md-curves"}
    assert all((value.seed is None) or value.std is None for value in values)


@pytest.mark.parametrize("name", ["main-results-training", "main-results-evaluation", "f1-task"])
def test_means_of_printed_runs_agree_with_the_printed_means(name):
    found = {(v.env, v.arm, v.window, v.quantity): v for v in published_values() if v.seed is None and not v.settings}
    texts, checked = published(name, printed=True), 0
    for row in texts.iter_rows(named=True):
        window = row.get("window") or {"main-results-evaluation": "evaluation-50", "f1-task": "task-metrics"}.get(name)
        for quantity in ("cost", "violation_pct", "catastrophe_pct", "environment_return", "path_length", "progress"):
            if row.get(quantity) is None:
                continue
            value = found[row.get("environment", "formula-one-l2"), row["arm"], window, quantity]
            half = 0.5 * 10.0 ** -len(row[quantity].partition(".")[2])
            assert value.value == pytest.approx(float(row[quantity]), abs=2.0 * half)  # the runs are rounded too
            if row.get("runs"):
                assert value.runs == int(row["runs"])
            checked += 1
    assert checked > 30


def test_an_untrained_run_of_the_paper_is_marked_and_not_in_its_mean():
    decoupled = [v for v in published_values() if v.arm == "ppo-lag-decoupled" and v.window == "task-metrics"]
    run = next(v for v in decoupled if v.seed == 42 and v.quantity == "cost")
    assert run.remark == "the paper evaluated an untrained policy"
    mean = next(v for v in decoupled if v.seed is None and v.quantity == "cost")
    assert mean.seeds == (123, 456)
    assert mean.value == pytest.approx((27.46 + 15.82) / 2)


def test_configurations_of_the_paper_can_be_run():
    for env, arm, settings in {(v.env, v.arm, v.settings) for v in published_values()}:
        config = paper_config(env, arm, settings)
        check_method(config)
        assert config.epochs in (50, 100)
        assert "embedded" not in config.signal.scorer


# -- equal results under equal conditions ----------------------------------------------------------------------


def test_published_runs_written_as_runs_differ_in_nothing(tmp_path):
    rows = published("md-perseed").filter(environment="metadrive-easy", kind="seed")
    for row in rows.iter_rows(named=True):
        run = write_run(tmp_path, easy(row["seed"], row["arm"]))
        write_evaluation(run, costs=episodes_of(row["cost"], row["violation_pct"], row["catastrophe_pct"]))
    table = compared(tmp_path)
    assert table.schema == pl.Schema(SCHEMA)
    found = table.filter(pl.col("quantity").is_in(["cost", "violation_pct", "catastrophe_pct"]))
    assert found.height == 3 * (6 + 2)
    assert found["comparable"].all()
    assert found["difference"].abs().max() < 1e-9
    assert set(found["label"]) == {"tab:md-perseed"}
    mean = cell(found, arm=SIGNAL, run=None, quantity="catastrophe_pct")
    assert (mean["ours"], mean["ours_runs"], mean["published_runs"]) == (pytest.approx(98 / 3), 3, 3)
    assert mean["ours_std"] == pytest.approx(mean["published_std"])
    assert mean["paper_arm"] == METHODS[SIGNAL].paper


def test_training_windows_stand_beside_those_of_the_paper(tmp_path):
    families = published("conf-families").filter(kind="seed", family="A")
    arm = "vlm-ppo-lag-conf-calibrated"
    for row in families.iter_rows(named=True):
        before = (10 * row["cost_last_10"] - row["cost_final"]) / 9
        config = replace(paper_config("formula-one-l2", arm), seed=row["seed"])
        write_run(tmp_path, config, costs=[999.0] * 40 + [before] * 9 + [row["cost_final"]], bonus=30.0)
    table = compared(tmp_path)
    for window in ("final", "last-10"):
        rows = table.filter(source="training", quantity="cost", window=window)
        assert rows.height == 6
        assert rows["difference"].abs().max() < 1e-9
        assert set(rows["label"]) == {"tab:conf-families"}
        # The settings are the paper's and the world is not, which is all there is to say.
        assert {tuple(row) for row in rows["differences"]} == {(AFTER,)}
        assert not rows["comparable"].any()
    assert cell(table, run=None, window="last-5", quantity="cost")["published"] is None
    logged = cell(table, run="seed-42", window="last-10", quantity="logged_return")
    assert (logged["ours"], logged["published"], logged["label"]) == (30.0, 24.6, "tab:phaseB-conf")


def test_a_run_without_bonus_logs_the_return_of_its_environment(tmp_path):
    config = replace(paper_config("formula-one-l2", "ppo"), seed=42)
    write_run(tmp_path, config, costs=[286.67] * 50, env_returns=[1.52] * 50)
    table = compared(tmp_path)
    for quantity in ("logged_return", "environment_return"):
        assert cell(table, run="seed-42", window="final", quantity=quantity)["difference"] == pytest.approx(0.0)


def test_the_original_formula_one_is_the_papers_world(tmp_path):
    env = "safety-gymnasium:SafetyRacecarFormulaOne2-v0"
    write_run(tmp_path, replace(paper_config("formula-one-l2", "ppo"), env=env, seed=42), costs=[286.67] * 50)
    row = cell(compared(tmp_path), run="seed-42", window="final", quantity="cost")
    assert (row["env"], row["published"], row["comparable"]) == (env, 286.67, True)


# -- conditions that differ ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("ppo-lag", {"total_steps": 40_000}, "total_steps 40,000 (paper: 1,000,000)"),
        ("ppo-lag", {"budget": 10.0}, "budget 10.0 (paper: 25.0)"),
        ("ppo-lag", {"learner": {"hidden": [32]}}, "learner.hidden [32] (paper: [64, 64])"),
        (SIGNAL, {"signal": {"scorer": "oracle"}}, "signal.scorer oracle (paper: clip:openai/clip-vit-base-patch32)"),
        (SIGNAL, {"signal": {"gate": "calibrated"}}, "signal.gate calibrated (paper: prior-symmetric)"),
        (SIGNAL, {"signal": {"every": 1}}, "signal.every 1 (paper: 4)"),
        (SIGNAL, {"signal": {"prompts": "bullet"}}, "signal.prompts bullet (paper: metadrive)"),
    ],
)  # fmt: skip
def test_a_setting_that_differs_makes_a_result_not_comparable_and_is_named(tmp_path, method, settings, said):
    base = {key: value for key, value in to_dict(easy(method=method)).items() if key != "run_dir"}
    merged = base | {k: {**base[k], **v} if isinstance(v, dict) else v for k, v in settings.items()}
    config = config_from(merged)
    write_evaluation(write_run(tmp_path, config, arm="mine"))
    table = compared(tmp_path)
    for run in (None, "seed-42"):
        row = cell(table, run=run, source="paper", quantity="cost")
        assert said in row["differences"]
        assert row["comparable"] is False
        assert row["published"] is not None


def test_where_and_how_fast_a_run_was_made_does_not_count(tmp_path):
    config = easy(method=SIGNAL)
    signal = replace(config.signal, batch=8, device="cpu", scoring="in-step", compile=True)
    config = replace(config, num_envs=4, signal=signal, tensorboard=True, fresh_workers="always")
    config = replace(config, checkpoint=replace(config.checkpoint, keep=1))
    write_evaluation(write_run(tmp_path, config))
    assert cell(compared(tmp_path), run="seed-42", source="paper", quantity="cost")["comparable"] is True


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"first": 10_000}, ["scenarios 10000 to 10049 (paper: 0 to 49)"]),
        ({"costs": (0.0,) * 10}, ["scenarios 0 to 9 (paper: 0 to 49)", "10 episodes (paper: 50)"]),
        ({"deterministic": False}, ["stochastic actions (paper: deterministic)"]),
        ({"deterministic": True}, []),
        ({"checkpoint_epoch": 0}, ["untrained policy of epoch 0 (planned: 50)"]),
        ({"checkpoint_epoch": 12}, ["policy of epoch 12 (planned: 50)"]),
        ({"scenario": (*range(49), 70)}, ["scenarios 0 to 70, with gaps (paper: 0 to 49)"]),
    ],
)
def test_another_evaluation_than_the_papers_is_named(tmp_path, columns, said):
    write_evaluation(write_run(tmp_path, easy()), "mine", **columns)
    row = cell(compared(tmp_path), run="seed-42", source="mine", quantity="cost")
    assert (row["differences"], row["window"]) == (said, "evaluation-50")
    assert row["comparable"] is (not said)


@pytest.mark.parametrize(
    ("env", "first", "episodes", "traffic_seed", "window"),
    [
        ("metadrive-hard", 0, 50, None, "evaluation-50"),
        ("metadrive-hard", 0, 20, None, "evaluation-50"),
        ("metadrive-hard", 0, 20, 7, "evaluation-early-20"),
        ("formula-one-l2", 10_000, 50, None, "evaluation-50"),
        ("formula-one-l2", 10_000, 20, None, "evaluation-20"),
        ("formula-one-l2", 30_000, 50, None, "task-metrics"),
        ("formula-one-l2:fast", 10_000, 50, None, "evaluation-50"),
        ("bullet-car-reach", 10_000, 200, None, "evaluation-200"),
    ],
)
def test_an_evaluation_is_known_by_what_was_driven(tmp_path, env, first, episodes, traffic_seed, window):
    config = replace(paper_config(env.partition(":")[0], "ppo-lag"), env=env, seed=42)
    run = write_run(tmp_path, config)
    write_evaluation(run, "any-name", first, (0.0,) * episodes, traffic_seed=traffic_seed)
    row = cell(compared(tmp_path), run=None, quantity="catastrophe_pct")
    assert row["window"] == window
    assert ("variant fast" in str(row["differences"])) == env.endswith(":fast")
    assert ("traffic" in str(row["differences"])) is False


def test_task_metrics_have_the_papers_names(tmp_path):
    run = write_run(tmp_path, replace(paper_config("formula-one-l2", "cpo"), seed=123))
    write_evaluation(run, "paper-task-metrics", 30_000, path=2.5, net_progress=0.5, stages=0.0)
    table = compared(tmp_path)
    assert cell(table, run="seed-123", quantity="path_length")["published"] == 2.317
    assert cell(table, run="seed-123", quantity="progress")["published"] == 0.498
    assert cell(table, run="seed-123", quantity="stages")["published"] is None
    assert cell(table, run="seed-123", quantity="path_length")["unit"] == "simulator distance"


def test_the_published_variant_with_our_settings_is_chosen(tmp_path):
    for steps, arm in ((1_000_000, "short"), (2_000_000, "long")):
        config = replace(paper_config("bullet-car-reach", "ppo-lag"), seed=42, total_steps=steps)
        write_evaluation(write_run(tmp_path, config, arm), first=10_000, costs=(0.0,) * 200)
    table = compared(tmp_path)
    found = [cell(table, arm=arm, run="seed-42", quantity="cost") for arm in ("short", "long")]
    assert [row["published"] for row in found] == [31.5, 33.6]
    assert not any("total_steps" in text for row in found for text in row["differences"])


def test_a_run_of_another_budget_stands_beside_the_budget_sweep(tmp_path):
    settings = (("budget", 15.0), ("signal.every", 4))
    write_run(
        tmp_path, replace(paper_config("formula-one-l2", "ppo-lag-decoupled", settings), seed=42), costs=[9.0] * 50
    )
    table = compared(tmp_path)
    for run in (None, "seed-42"):
        row = cell(table, run=run, quantity="cost", window="last-10")
        assert (row["published"], row["label"]) == (42.5, "tab:pareto-baseline")
        assert row["differences"] == [AFTER]


def test_other_seeds_than_the_papers_are_said_of_arms_and_have_no_published_run(tmp_path):
    for seed in (42, 7):
        write_evaluation(write_run(tmp_path, easy(seed)))
    table = compared(tmp_path).filter(source="paper", quantity="cost")
    assert cell(table, run="seed-42")["comparable"] is True
    alone = cell(table, run="seed-7")
    assert (alone["published"], alone["comparable"], alone["differences"], alone["label"]) == (None,) * 4
    assert cell(table, run=None)["differences"] == ["seeds 7, 42 (paper: 42, 123, 456)"]


def test_a_mean_whose_runs_the_paper_does_not_name_is_not_called_comparable(tmp_path):
    write_evaluation(write_run(tmp_path, easy()), "paper-early", costs=(0.0,) * 20, traffic_seed=7)
    row = cell(compared(tmp_path), run=None, source="paper-early", quantity="catastrophe_pct")
    assert (row["published"], row["differences"]) == (30.0, ["1 run (paper: does not say)"])


def test_early_ends_are_said_ours_and_the_papers(tmp_path):
    config = replace(paper_config("formula-one-l2", "cpo-coupled"), seed=42)
    write_run(tmp_path, config, costs=[1.0, 2.0, 6.0], bonus=20.0)
    table = compared(tmp_path)
    final = cell(table, run="seed-42", window="final", quantity="cost")
    assert final["ours"] == 6.0
    assert final["differences"][1:] == ["ended at epoch 3 of 50", "the paper's run stopped at epoch 39 of 50"]
    last = cell(table, run=None, window="last-10", quantity="environment_return")
    assert {"a window of 3 epochs (paper: 10)", "the paper's seeds 42 and 456 stopped early"} <= set(
        last["differences"]
    )
    assert cell(table, run=None, window="last-5", quantity="cost")["ours"] == 3.0


def test_indicators_in_frames_count_only_where_a_scorer_looks_at_them(tmp_path):
    for arm in ("ppo", "vlm-ppo-lag"):
        config = replace(
            paper_config("formula-one-l2", arm), env="formula-one-l2:track", seed=42, frame_indicators=True
        )
        write_run(tmp_path, config, costs=[1.0] * 50)
    table = compared(tmp_path).filter(run="seed-42", window="final", quantity="cost")
    said = [f"variant track of {AFTER}", "frame_indicators true (paper: does not say)"]
    assert cell(table, arm="ppo")["differences"] == said[:1]
    assert cell(table, arm="vlm-ppo-lag")["differences"] == said


def test_frames_of_bullet_have_indicators_as_published_and_those_of_formula_one_have_none():
    assert paper_config("bullet-car-reach", "vlm-ppo-lag-conf").frame_indicators is True
    assert paper_config("formula-one-l2", "vlm-ppo-lag-conf").frame_indicators is False


def test_a_run_of_an_earlier_world_is_said_to_be_one(tmp_path):
    for arm, version in (("old", 1), ("new", 2)):
        run = write_run(tmp_path, replace(paper_config("formula-one-l2", "ppo"), seed=42), arm, costs=[286.67] * 50)
        edit_recorded(run.path, env_version=version)
    table = compared(tmp_path).filter(run="seed-42", window="final", quantity="cost")
    assert cell(table, arm="old")["differences"] == [
        "it was trained in version 1 of formula-one-l2, and this is version 2, another world"
    ]
    assert cell(table, arm="new")["differences"] == [AFTER]


def test_bullet_has_the_originals_step_and_still_differs(tmp_path):
    for env in ("bullet-car-reach", "bullet-car-reach:four-steps"):
        config = replace(paper_config("bullet-car-reach", "ppo-lag"), env=env, seed=42)
        run = write_run(tmp_path, config, arm=env.rpartition(":")[2])
        write_evaluation(run, first=10_000, costs=(0.0,) * 200)
    table = compared(tmp_path).filter(run="seed-42", quantity="cost")
    world = "a world with the original's task and step, but seeded starts and a box that moves by simulated time"
    assert cell(table, arm="bullet-car-reach")["differences"] == [world]
    assert cell(table, arm="four-steps")["differences"] == [f"variant four-steps of {world}"]


# -- runs as they come -----------------------------------------------------------------------------------------


def test_a_real_run_of_an_environment_that_is_not_in_the_paper_has_results_and_nothing_beside_them(tmp_path):
    run = train(env="speeding", total_steps=800, steps_per_epoch=400, learner={"update_iters": 2},
                run_dir=str(tmp_path / "mine" / "seed-3"), quiet=True)  # fmt: skip
    episodes = evaluate(run, episodes=4)
    table = compared(tmp_path)
    assert table["published"].null_count() == table["comparable"].null_count() == table.height
    rows = run.rows("epochs")
    both = cell(table, run="seed-3", window="last-5", quantity="cost")["ours"]
    assert both == pytest.approx((rows[0]["episode_cost"] + rows[1]["episode_cost"]) / 2)
    assert (
        cell(table, run="seed-3", source="training", window="final", quantity="environment_return")["ours"]
        == (rows[-1]["env_return"])
    )
    own = cell(table, run="seed-3", source="held-out", quantity="violation_pct")
    assert own["ours"] == pytest.approx(100 * episodes["violation"].mean())
    assert own["window"] is None
    assert set(table["arm"]) == {"mine"}


def test_a_damaged_or_foreign_table_is_named(tmp_path):
    run = write_run(tmp_path, easy())
    run.evaluations.joinpath("held-out.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"held-out\.parquet is damaged: .*vlmsafe evaluate"):
        compared(tmp_path)
    pl.DataFrame({"cost": [1.0]}).write_parquet(run.evaluations / "held-out.parquet")
    with pytest.raises(InputError, match="held-out: the table has no column 'env_return'"):
        compared(tmp_path)
