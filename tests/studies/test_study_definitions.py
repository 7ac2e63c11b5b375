"""The shipped studies: the paper's runs with the paper's settings, and those that the paper lacks, matched."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from vlmsafe.comparison.judging import smallest_p
from vlmsafe.comparison.settings import differences, unnamed
from vlmsafe.config.yaml import flatten, to_dict
from vlmsafe.paper.published import labels as published_labels
from vlmsafe.paper.published import left_out, tables
from vlmsafe.paper.values import looks_at_frames, paper_config
from vlmsafe.report.kinds import FIGURES as FIGURE_KINDS
from vlmsafe.report.kinds import TABLES
from vlmsafe.report.request import check_entries, read_entries
from vlmsafe.studies.schema import load_study, parse_study, shipped_studies

FOLDER = Path("runs")
DOCS = Path(__file__).parents[2] / "docs" / "guides" / "studies.md"
FIGURES = {
    "fig:pipeline", "fig:lambda-ablation", "fig:metadrive-bug", "fig:prompt-sensitivity", "fig:learning-curves",
    "fig:kappa-groundtruth", "fig:appendix-curves-bullet", "fig:appendix-curves-bullet-1m",
    "fig:appendix-curves-bullet-2m", "fig:appendix-curves-md", "fig:appendix-md-fixed-eval",
}  # fmt: skip
LACKED = {"factorial", "density-by-map", "held-out", "own-multiplier", "controls"}
OWN = {"signal-controls", "demo", "safer-driver", "safer-driver-pilot"}
"""Studies of this project, with settings of their own."""
NO_RESULTS = {"fig:pipeline", "tab:hparams", "tab:comparison"}
"""A drawing, a list of settings, and names: made by no runs of their own."""


def specs(name):
    return load_study(name).expand(FOLDER)


def counts(name, by="arm"):
    return Counter((run.env, run.arm) for run in specs(name))


def labels():
    return {table.label for table in tables()} - {"text"} | set(left_out()) | FIGURES


@pytest.mark.parametrize("name", shipped_studies())
def test_a_file_is_called_as_its_study_and_asks_for_tables_that_exist(name):
    study = load_study(name)
    assert study.name == name
    assert study.question.endswith("?")
    check_entries(study.tables, study.figures)
    shown = {
        entry["label"] for entry in (*study.tables, *study.figures) if isinstance(entry, dict) and "label" in entry
    }
    assert shown <= set(study.paper)
    assert set(study.paper) - shown <= {"tab:prompt-sets", "fig:appendix-curves-bullet"}  # prompts; two panels


def test_the_runs_are_as_many_as_the_papers():
    main = counts("generalisation")
    for arm in ("ppo-lag", "vlm-ppo-lag-conf"):
        assert [main[f"metadrive-{level}", arm] for level in ("easy", "medium", "hard")] == [3, 5, 10]
        assert main["bullet-car-reach", arm] + main["bullet-car-reach", f"{arm}-2m"] == 6
    assert (main["formula-one-l2", "ppo-lag"], main["formula-one-l2", "vlm-ppo-lag-conf-calibrated"]) == (2, 5)
    grid = specs("formula-one-grid")
    assert len(grid) == 99
    assert len({run.arm for run in grid}) == 11
    assert {run.seed for run in grid} == {42, 123, 456}
    hard = [run.seed for run in specs("generalisation") if (run.env, run.arm) == ("metadrive-hard", "ppo-lag")]
    assert hard == [42, 123, 456, 789, 2024, 1337, 2718, 3141, 4242, 5555]
    sweep = counts("budget-sweep")
    assert [sweep["formula-one-l2", f"budget-{budget}"] for budget in (15, 25, 35)] == [1, 3, 1]
    noise = counts("replication-noise")
    assert [noise[f"metadrive-{level}", "repetition"] for level in ("easy", "medium", "hard")] == [5, 5, 5]


def test_a_repetition_has_other_seeds_because_equal_seeds_give_equal_runs():
    for name, arms in (
        ("replication-noise", None),
        ("calibrated-families", {"vlm-ppo-lag-conf-calibrated", "family-b"}),
    ):
        for env in {run.env for run in specs(name)}:
            seeds = [run.seed for run in specs(name) if run.env == env and (arms is None or run.arm in arms)]
            assert len(set(seeds)) == len(seeds)
    again = load_study("rerun-divergence")
    assert again.independent
    assert counts("rerun-divergence") == {("formula-one-l1", "first"): 5, ("formula-one-l1", "second"): 5}


EXPECTED = {
    "vlm-ppo-lag-eta003": {"signal.every": 4, "multiplier.signal_weight": 0.03},
    "budget-15": {"budget": 15.0, "signal.every": 4},
    "budget-35": {"budget": 35.0, "signal.every": 4},
    "step-035-weight-003": {"signal.every": 4, "multiplier.signal_weight": 0.03},
    "step-070-no-signal": {"multiplier.learning_rate": 0.07},
    "step-070-weight-001": {"signal.every": 4, "multiplier.learning_rate": 0.07},
    "step-070-weight-003": {"signal.every": 4, "multiplier.learning_rate": 0.07, "multiplier.signal_weight": 0.03},
    "prior-every-4": {"signal.every": 4},
    "vit-l-14": {"signal.scorer": "clip:openai/clip-vit-large-patch14", "signal.calibration.frames": 5000},
    "ppo-lag-2m": {"total_steps": 2_000_000},
    "vlm-ppo-lag-conf-2m": {"total_steps": 2_000_000},
    "v2": {"signal.prompts": ("metadrive-v2", "bullet-v2")},
    "v3": {"signal.prompts": ("metadrive-v3", "bullet-v3")},
}
"""What an arm has otherwise than the paper's arm of its method."""
EMBEDDED = {"signal.scorer": "embedded", "signal.gate": "calibrated"}
"""What a study without CLIP has otherwise."""


@pytest.mark.parametrize("name", sorted(set(shipped_studies()) - LACKED - OWN))
def test_settings_are_the_papers(name):
    for run in specs(name):
        ours, paper = (flatten(to_dict(config)) for config in (run.config, paper_config(run.env, run.config.method)))
        found = {key: ours[key] for key in ours if ours[key] != paper[key] and key not in ("seed", "run_dir")}
        if not looks_at_frames(run.config.signal.scorer):
            found.pop("frame_indicators", None)
        expected = EXPECTED.get(run.arm, EMBEDDED if run.config.signal.scorer == "embedded" else {})
        assert found.keys() == expected.keys(), (name, run.arm)
        for key, value in found.items():
            assert value == expected[key] or value in expected[key], (name, run.arm)


def test_every_evaluation_test_of_the_calibrated_method_is_claimed_in_the_papers_direction():
    claims = [one for one in load_study("main-results").claims.comparisons if one.source == "paper-environment-only"]
    assert {(one.first, one.outcome, one.test, one.sides) for one in claims} == {
        ("vlm-ppo-lag-conf-calibrated", "cost", "permutation", "less")
    }
    assert [one.second for one in claims] == ["ppo-lag-unmatched", "ppo-lag", "cpo", "vlm-ppo-lag", "cppo-pid"]
    runs = counts("main-results")
    many = {arm: runs["formula-one-l2", arm] for arm in (claims[0].first, *(one.second for one in claims))}
    totals = {one.second: round(1 / smallest_p(one, many[one.first], many[one.second], 0)) for one in claims}
    assert totals == {"ppo-lag-unmatched": 56, "ppo-lag": 21, "cpo": 56, "vlm-ppo-lag": 56, "cppo-pid": 56}


def test_training_costs_are_of_the_final_epoch_but_for_the_calibrated_cell_on_l2():
    entries = read_entries(load_study("main-results").tables, TABLES, "tables")
    (entry,) = [one for one in entries if one.kind == "by-environment"]
    assert (entry.label, entry.window) == ("tab:main_results", "final")
    assert entry.windows == {("vlm-ppo-lag-conf-calibrated", "formula-one-l2"): "last-10"}


def test_the_main_result_is_claimed_in_both_directions_as_its_intervals_are():
    claims = [one for one in load_study("generalisation").claims.comparisons if one.test != "none"]
    assert len(claims) == 5
    assert {one.sides for one in claims} == {"two-sided"}


def test_bullets_six_runs_of_a_method_are_one_row():
    entries = read_entries(load_study("generalisation").tables, TABLES, "tables")
    pools = [one.pool for one in entries if one.label in ("tab:generalisation", "tab:bullet-perseed")]
    runs = counts("generalisation")
    for pool in pools:
        assert [sum(runs["bullet-car-reach", arm] for arm in arms) for arms in pool.values()] == [6, 6]
    assert len(pools) == 2


def test_lead_time_is_measured_on_all_180_episodes_of_an_arm_with_as_many_resamples_as_published():
    study = load_study("lead-time")
    episodes = Counter(run.arm for run in specs("lead-time") for _ in range(run.traces[0].count))
    assert set(episodes.values()) == {180}
    entries = read_entries(study.tables, TABLES, "tables") + read_entries(study.figures, FIGURE_KINDS, "figures")
    assert {one.episodes for one in entries} == {"all"}
    assert {one.resamples for one in entries if one.kind != "gate"} == {2000}


@pytest.mark.parametrize("name", sorted(LACKED))
def test_studies_that_the_paper_lacks_compare_arms_that_differ_in_what_is_named_and_have_equal_seeds(name):
    study, runs = load_study(name), specs(name)
    cells = {}
    for run in runs:
        cells.setdefault((run.env, run.arm), []).append(run)
    assert study.claims.comparisons
    for claim in study.claims.comparisons:
        for env in study.environments:
            first, second = cells[env, claim.first], cells[env, claim.second]
            assert [run.seed for run in first] == [run.seed for run in second]
            found = differences(*(flatten(to_dict(own[0].config)) for own in (first, second)))
            assert not unnamed(found, list(claim.about)), (env, str(claim))
            assert not any(run.config.frame_indicators for run in (*first, *second))


@pytest.mark.parametrize("name", sorted(LACKED))
def test_studies_that_the_paper_lacks_have_seeds_enough_to_decide_something(name):
    study, runs = load_study(name), specs(name)
    seeds = min(Counter((run.env, run.arm) for run in runs).values())
    tested = [claim for claim in study.claims.comparisons if claim.test != "none"]
    tests = sum(1 if claim.env else len(study.environments) for claim in tested)
    for claim in tested:
        level = claim.alpha / (tests if study.claims.correction != "none" else 1)
        assert smallest_p(claim, seeds, seeds, seeds) < level


def test_the_factorial_is_full():
    cells = {}
    for run in specs("factorial"):
        signal = run.config.signal
        cells.setdefault((signal.reward_weight > 0, signal.gate != "off", run.config.multiplier.signal_weight > 0), run)
    assert len(cells) == 8
    assert {(run.config.signal.every, run.config.signal.scorer) for run in cells.values()} == {
        (4, "clip:openai/clip-vit-base-patch32")
    }


def test_density_and_map_are_crossed():
    found = {
        tuple(run.config.spec.settings[key] for key in ("map", "traffic_density")) for run in specs("density-by-map")
    }
    assert found == {(blocks, density) for blocks in (3, 5, 7) for density in (0.1, 0.2, 0.35)}


def test_controls_send_every_scorer_through_every_path_alone():
    found = set()
    for run in specs("controls"):
        signal = run.config.signal
        if signal.scorer == "none":
            continue
        routes = {
            "bonus": signal.reward_weight > 0,
            "term": run.config.multiplier.signal_weight > 0,
            "critic": signal.cost_weight > 0,
            "own": signal.multiplier.kind != "none",
        }
        (route,) = [name for name, used in routes.items() if used]
        assert run.arm == f"{route}-{signal.scorer.partition(':')[0]}"
        found.add(run.arm)
    assert len(found) == 16


def test_signal_controls_is_the_small_study():
    runs = specs("signal-controls")
    assert {run.seed for run in runs} == {1, 2, 3, 4, 5}
    assert {run.arm: (run.config.signal.scorer, run.config.signal.gate) for run in runs} == {
        "ppo-lag": ("none", "off"), "embedded": ("embedded", "calibrated"), "oracle": ("oracle", "prior-symmetric"),
        "constant": ("constant:0.5", "off"),
    }  # fmt: skip
    for run in runs:
        config = run.config
        assert (config.total_steps, config.steps_per_epoch, config.num_envs, config.cost_window) == (
            100_000,
            4000,
            2,
            20,
        )
        assert [(look.protocol, look.count) for look in run.evaluations] == [("held-out", 20)]


def test_every_table_and_figure_of_the_paper_is_made_by_a_study_that_says_so():
    made = {label for name in shipped_studies() for label in load_study(name).paper}
    assert labels() - made == NO_RESULTS
    assert made <= labels()


def test_every_label_is_made_by_a_study_or_has_a_command():
    described = published_labels()
    assert described.keys() == labels()
    made = {label for name in shipped_studies() for label in load_study(name).paper}
    assert made <= described.keys()
    for label, entry in described.items():
        assert label in made or entry.command.startswith("vlmsafe "), label
        assert label in made or label in NO_RESULTS


def test_the_page_on_studies_names_every_study():
    pages = DOCS.read_text(encoding="utf-8") + (DOCS.parent / "reproduce-the-paper.md").read_text(encoding="utf-8")
    made = {name for name in shipped_studies() if load_study(name).paper}  # these are in the generated table
    assert {name for name in shipped_studies() if f"`{name}`" in pages} | made == set(shipped_studies())


def test_the_example_on_the_page_is_a_study():
    example, matrix = re.findall(r"^```yaml\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.M | re.S)
    runs = parse_study(example, "the example").expand(FOLDER)
    assert Counter(run.arm for run in runs) == {"without": 6, "with": 6, "own-prompts": 2}
    head = "name: many\nquestion: Which?\nenvironments: [metadrive-hard]\nseeds: [1]\ntotal_steps: 1000000\n"
    study, shipped = parse_study(head + matrix, "the matrix"), load_study("controls")
    assert [arm.name for arm in study.arms] == [arm.name for arm in shipped.arms]
    assert len(study.claims.comparisons) == 16


def test_what_is_written_beside_the_runs_has_no_anchors():
    for name in shipped_studies():
        document = load_study(name).document
        assert "&id" not in yaml.safe_dump(dict(document))


def test_the_arms_of_safer_driver_differ_in_the_scorer_and_from_the_baseline_in_the_signal():
    arms = {run.arm: flatten(to_dict(run.config)) for run in specs("safer-driver") if run.seed == 1}
    assert set(arms) == {"ppo-lag", "embedded", "shuffled", "oracle"}
    own = {"run_dir", "signal.scorer"}
    for arm, more in (("shuffled", set()), ("oracle", {"signal.prompts"})):  # it reads no prompts
        assert {key for key in arms[arm] if arms[arm][key] != arms["embedded"][key]} <= own | more
    assert arms["shuffled"]["signal.scorer"] == f"shuffled:{arms['embedded']['signal.scorer']}"
    others = {key for key in arms["embedded"] if arms["embedded"][key] != arms["ppo-lag"][key]} - {"run_dir", "method"}
    assert others
    assert all(key.startswith("signal.") for key in others)
    (joint,) = {one.joint for one in load_study("safer-driver").claims.comparisons if one.tested}
    assert joint == "safer"


def test_the_pilot_of_safer_driver_uses_neither_its_seeds_nor_its_roads_and_begins_alike():
    study, pilot = specs("safer-driver"), specs("safer-driver-pilot")
    assert not {run.seed for run in study} & {run.seed for run in pilot}
    assert {one.protocol for run in pilot for one in run.evaluations} == {"selection"}
    assert {one.protocol for run in study for one in run.evaluations} == {"held-out"}
    starts = {(run.env, run.config.init_from, run.config.init_mean, run.config.init_std) for run in (*study, *pilot)}
    assert len(starts) == 1
