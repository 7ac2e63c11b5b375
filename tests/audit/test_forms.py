"""The same defects in other forms: other layouts, columns that are missing, files that somebody else wrote."""

import dataclasses
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import yaml
from designs.clean_design import write_clean_design
from designs.editing import HELD_OUT, edit_claims, edit_epochs, edit_table, judged, run_paths, set_up_with, with_costs
from designs.planting import BASELINE, FIRST

from vlmsafe.analysis.anticipation import anticipation
from vlmsafe.audit import audit
from vlmsafe.audit.checks.signal import TracedScore, constant_score, no_lead_time
from vlmsafe.comparison.claims import Claim, Claims, count_tests
from vlmsafe.comparison.comparisons import comparisons
from vlmsafe.comparison.decisions import judge_all
from vlmsafe.comparison.judging import judge
from vlmsafe.comparison.settings import differences, factors_of, infer_about, unnamed
from vlmsafe.config.methods import method_defaults
from vlmsafe.config.yaml import flatten, to_dict, to_yaml
from vlmsafe.errors import InputError
from vlmsafe.io.source import SourceHash
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.layout import about_path
from vlmsafe.runs.records import read_arms
from vlmsafe.runs.run import Run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_clean_design(tmp_path_factory.mktemp("clean"))


@pytest.fixture
def design(base, tmp_path):
    return shutil.copytree(base, tmp_path / "design")


def claim(folder, **changes):
    """The design's first claim alone, with changes."""
    edit_claims(folder, lambda claims: [{**claims[0], **changes}])


def settings(method, **changes):
    return flatten(to_dict(method_defaults(method))) | {
        name.replace("__", "."): value for name, value in changes.items()
    }


@pytest.mark.parametrize(
    ("other", "name", "value"),
    [
        ("cppo-pid", "learner.actor_lr", 3e-3),
        ("cppo-pid", "learner.clip_ratio", 0.4),
        ("cppo-pid", "learner.lr_decay", False),
        ("focops", "multiplier.learning_rate", 0.5),
        ("focops", "multiplier.initial", 2.0),
    ],
)
def test_two_learners_must_agree_in_the_settings_that_both_have(other, name, value):
    found = differences(settings("ppo-lag"), settings(other) | {name: value})
    assert name in {difference.setting for difference in unnamed(found, infer_about(found))}


def test_a_control_without_prompts_is_matched_with_a_scorer_that_has_them():
    one = settings("vlm-ppo-lag-conf", signal__scorer="embedded", signal__prompts="metadrive")
    found = differences(one, one | {"signal.scorer": "noise", "signal.prompts": None})
    assert unnamed(found, infer_about(found)) == []
    assert factors_of(found) == 1


def test_arms_with_signals_are_compared_with_their_nearest_too(design):
    (design / "claims.yaml").unlink()
    folder = design / "metadrive-medium"
    shutil.copytree(folder / FIRST, folder / "other")
    for path in run_paths(design, "other"):
        set_up_with(path, {"signal.every": 8, "signal.reward_weight": 0.3})
    found = [finding for finding in audit([design], resamples=100).findings if finding.code == "unmatched-arms"]
    assert [finding.where for finding in found] == [f"metadrive-medium: '{FIRST}' against 'other'"]


def test_a_claim_on_the_logged_return_is_an_error_even_without_its_parts(design):
    claim(design, outcome="shaped_return", source="training")
    for path in run_paths(design):
        edit_epochs(path, lambda rows: [{**row, "bonus": None, "env_return": None} for row in rows])
    assert "shaped-return" in audit([design], resamples=100).codes()


def test_a_claim_on_an_evaluation_that_nobody_has_is_found(design):
    claim(design, source="paper")
    assert audit([design], resamples=100).codes() == {"missing-evaluation"}


def test_the_training_pool_is_found_by_its_mark_alone(design):
    for path in run_paths(design):
        edit_table(path, lambda table: table.drop("scenario").with_columns(in_training_pool=True))
    assert audit([design], resamples=100).codes() == {"evaluated-on-training-scenarios"}


def test_tables_that_do_not_name_scenarios_are_said_not_to_be_checked(design):
    for path in run_paths(design):
        edit_table(path, lambda table: table.drop("scenario", "in_training_pool"))
    result = audit([design], resamples=100)
    assert result.codes() == set()
    assert ("evaluated-on-training-scenarios",) in {entry.codes for entry in result.unchecked}


def test_a_correction_makes_more_seeds_necessary(design):
    path = design / "claims.yaml"
    entry = f"- {{first: {FIRST}, second: {BASELINE}, about: [signal], source: {HELD_OUT}, alpha: 0.02}}\n"
    path.write_text("comparisons:\n" + entry * 4)
    assert audit([design], resamples=100).codes() == set()
    path.write_text("correction: bonferroni\ncomparisons:\n" + entry * 12)
    (found,) = audit([design], resamples=100).findings
    assert (found.code, found.data["alpha"]) == ("too-few-seeds", pytest.approx(0.02 / 12))


@pytest.mark.parametrize("layout", ["{arm}/{seed}", "{arm}/Seed={seed}", "seed-{seed}/{arm}", "{arm}_seed{seed}"])
def test_arms_are_told_apart_in_other_layouts(design, tmp_path, layout):
    moved = tmp_path / "moved"
    for path in run_paths(design):
        place = moved / layout.format(arm=path.parent.name, seed=path.name.removeprefix("seed-"))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place)
    shutil.copy(design / "claims.yaml", moved)
    result = audit([moved], resamples=100)
    assert (result.codes(), result.runs) == (set(), 12)


def test_links_are_followed_and_what_lies_inside_a_run_is_not_another_run(design, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    os.symlink(design / "metadrive-medium", linked / "metadrive-medium")
    inside = run_paths(design)[0] / ".hydra"
    inside.mkdir()
    shutil.copy(run_paths(design)[0] / "config.yaml", inside)
    result = audit([linked], claims=str(design / "claims.yaml"), resamples=100)
    assert (result.codes(), result.runs) == (set(), 12)


def test_claims_among_the_runs_of_a_shell_pattern_are_the_claims(design):
    claim(design, source="paper")
    assert audit(sorted(design.iterdir()), resamples=100).codes() == {"missing-evaluation"}


def test_folders_with_brackets_are_read(design, tmp_path):
    moved = shutil.move(design, tmp_path / "a [b] *c")
    assert audit([moved], resamples=100).codes() == set()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("epochs.jsonl", "[1, 2]\n"),
        ("epochs.jsonl", '{"env_return": 3}\n'),
        ("epochs.jsonl", '{"epoch": 1, "episode_cost": "many"}\n'),
        ("episodes.jsonl", '{"epoch": 1, "scenario": [1]}\n'),
        ("events.jsonl", "[]\n"),
    ],
)
def test_rows_of_another_kind_are_a_finding_and_no_crash(design, file, text):
    (run_paths(design)[0] / file).write_text(text)
    assert "unreadable-run" in audit([design], resamples=100).codes()


@pytest.mark.parametrize(
    ("folder", "column", "kind"),
    [
        ("evaluations", "cost", pl.String),
        ("evaluations", "violation", pl.String),
        ("traces", "negative", pl.String),
        ("traces", "scored", pl.String),
    ],
)
def test_columns_of_another_kind_are_a_finding_and_no_crash(design, folder, column, kind):
    edit_table(run_paths(design, FIRST)[0], lambda table: table.with_columns(pl.col(column).cast(kind)), folder=folder)
    assert "unreadable-run" in audit([design], resamples=100).codes()


def test_what_was_recorded_may_be_anything(design):
    path = run_paths(design)[0] / "config.yaml"
    text = path.read_text()
    path.write_text(text[: text.index("recorded:")] + "recorded: hello\n")
    assert audit([design], resamples=100).codes() == set()


def test_json_has_null_for_what_is_not_a_number(design):
    claim(design, outcome="shaped_return", source="training")
    path = run_paths(design, FIRST)[0] / "epochs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1]["shaped_return"] = float("nan")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    json.dumps(audit([design], resamples=100).to_dict(), allow_nan=False)


def test_a_baseline_beside_claims_and_a_threshold_that_is_no_number_are_refused(design):
    with pytest.raises(InputError, match="drop --baseline"):
        audit([design], baseline=BASELINE)
    with pytest.raises(InputError, match="passive_below is nan"):
        audit([design], passive_below=float("nan"))


def test_with_many_seeds_windows_are_still_compared(tmp_path):
    folder = write_clean_design(tmp_path, seeds=24)
    claim(folder, source="training", window="final")
    for path in run_paths(folder, FIRST):
        edit_epochs(path, _worse_but_for_the_last)
    codes = audit([folder], resamples=100).codes()
    assert "window-dependent" in codes


def _worse_but_for_the_last(rows):
    return [{**row, "episode_cost": row["episode_cost"] + 30.0} for row in rows[:-1]] + rows[-1:]


@pytest.mark.parametrize("test", ["permutation", "sign-flip", "welch", "paired-t"])
def test_a_test_decides_on_arms_that_lie_apart_and_not_on_arms_that_do_not(test):
    stated = Claim("a", "b", test=test)
    low = {seed: 10.0 + 0.1 * (seed % 3) for seed in range(8)}
    high = {seed: 20.0 + 0.3 * (seed % 2) for seed in range(8)}
    mixed = {seed: value + (0.2 if seed % 2 else -0.2) for seed, value in low.items()}
    assert [judge(stated, *pair).word for pair in ((low, high), (high, low), (low, mixed))] == [
        "lower",
        "higher",
        "undecided",
    ]


def test_a_paired_test_takes_the_seeds_that_both_arms_have():
    claim = Claim("a", "b", test="sign-flip", sides="less")
    first, second = {1: 1.0, 2: 2.0, 3: 3.0, 4: 90.0, 5: 90.0}, {1: 5.0, 2: 6.0, 3: 7.0}
    verdict = judge(claim, first, second)
    assert (verdict.p, verdict.first, verdict.second) == (1 / 8, 2.0, 6.0)
    assert judge(claim, first, {3: 7.0, 8: 1.0}) is None


def test_a_percentile_interval_describes_and_decides_nothing():
    claim = Claim("a", "b", test="bootstrap")
    assert judge(claim, {1: 0.0, 2: 0.0}, {1: 1.0, 2: 1.0}) is None
    found = judge(claim, {1: 0.0, 2: 0.1, 3: 0.2}, {1: 1.0, 2: 1.1, 3: 1.2})
    assert (found.word, found.text) == ("undecided", "percentile interval -1.13 to -0.867")


def test_a_claim_about_several_environments_is_corrected_for_a_test_on_each(design):
    arms = read_arms(open_arms([design])[0])
    elsewhere = {("another", name): dataclasses.replace(arm, env="another") for (_, name), arm in arms.items()}
    claims = Claims((Claim(FIRST, BASELINE, alpha=0.04),), "bonferroni")
    assert count_tests(claims, arms | elsewhere) == 2
    judged, _ = judge_all(comparisons(arms | elsewhere, claims), "bonferroni", 2)
    assert [one.decision.level for one in judged] == [0.02, 0.02]


def test_a_study_is_audited_before_all_its_arms_have_runs(design):
    later = {"first": FIRST, "second": "not-yet-trained"}
    edit_claims(design, lambda claims: [*claims, later])
    with pytest.raises(InputError, match="unknown arm in the claims 'not-yet-trained'"):
        audit([design], resamples=100)
    (design / "study.yaml").write_text("name: design\n")
    result = audit([design], resamples=100)
    assert result.codes() == set()
    assert f"no runs yet for the comparison '{FIRST}' against 'not-yet-trained'" in {
        one.reason for one in result.unchecked
    }


def recorded_with(path, digests, **traced):
    """As if a run, its evaluation and its trace had recorded the source of the user's code."""
    document = yaml.safe_load((path / "config.yaml").read_text())
    source = SourceHash({"mine.py": "a"}).to_dict()
    document["recorded"]["source"] = {"environment": source, "scorer": source}
    (path / "config.yaml").write_text(to_yaml(document))
    edit_table(path, lambda table: table.with_columns(env_source=pl.Series(digests(source["digest"], len(table)))))
    if (path / "traces").is_dir():
        about_path(path / "traces" / "held-out.parquet").write_text(json.dumps(traced))


def code_differs(design):
    return [line for one in audit([design]).findings if one.code == "code-differs" for line in one.evidence]


def test_source_that_an_evaluation_does_not_know_is_unknown_and_not_other_source(design):
    for path in run_paths(design):
        recorded_with(path, lambda digest, size: [digest] * size)
    assert code_differs(design) == []
    path = run_paths(design, FIRST)[0]
    recorded_with(path, lambda digest, size: [None] * size)
    unknown = f"{FIRST} {path.name}: the source of its environment under 'held-out' is not known"
    assert code_differs(design) == [unknown]
    recorded_with(path, lambda digest, size: ["other"] * size)
    (line,) = code_differs(design)
    assert "was evaluated under 'held-out' with other source of its environment" in line


def test_a_trace_with_other_source_than_its_run_is_found(design):
    for path in run_paths(design):
        recorded_with(path, lambda digest, size: [digest] * size)
    path = next(path for path in run_paths(design, FIRST) if (path / "traces" / "held-out.parquet").exists())
    scorer = Run.open(path).config.signal.scorer
    of_scorer = {"scorer": scorer, "prefix": "", "source": SourceHash({"mine.py": "b"}).to_dict()}
    recorded_with(path, lambda digest, size: [digest] * size, env_source="other", scorers=[of_scorer])
    start, end = f"{FIRST} {path.name} was traced under 'held-out' with other source of its", "than in training"
    assert code_differs(design) == [f"{start} environment {end}", f"{start} scorer {end}"]
    same = SourceHash({"mine.py": "a"}).to_dict()
    recorded_with(path, lambda digest, size: [digest] * size, env_source=None, scorers=[{**of_scorer, "source": same}])
    assert code_differs(design) == []


def test_cheap_episodes_of_an_arm_that_costs_far_more_than_its_budget_are_not_its_safety(design):
    idle = pl.col("episode") % 3 == 0

    def fails_early(table):
        cost = pl.when(idle).then(0.0).otherwise(500.0)
        return judged(table.with_columns(cost=cost, env_return=pl.when(idle).then(1.0).otherwise("env_return")))

    def passive():
        return {arm for one in audit([design]).findings if one.code == "passive-policy" for arm in one.subject.arms}

    for path in run_paths(design, FIRST):
        edit_table(path, fails_early)
    assert passive() == set()
    for path in run_paths(design, BASELINE):  # now the same cost is far below that of the other arm
        edit_table(path, with_costs(lambda cost: cost + 1000.0))
    assert passive() == {FIRST}


def test_a_claim_about_an_evaluation_has_no_windows(tmp_path):
    folder = write_clean_design(tmp_path, seeds=24)
    claim(folder, source=HELD_OUT)
    for path in run_paths(folder, FIRST):
        edit_epochs(path, _worse_but_for_the_last)
    assert "window-dependent" not in audit([folder], resamples=100).codes()


@pytest.mark.parametrize("arm", [FIRST, BASELINE])
def test_a_repetition_of_either_arm_shows_how_much_is_chance(design, arm):
    claim(design, source=HELD_OUT)
    (own,) = {path.parent for path in run_paths(design, arm)}
    shutil.copytree(own, own.with_name(f"{arm}-again"))
    for path in run_paths(design, f"{arm}-again"):
        edit_table(path, with_costs(lambda cost: cost + 9.0))
    found = [one for one in audit([design], resamples=100).findings if one.code == "replication-noise"]
    assert [one.data["repetition"] for one in found] == [f"{arm}-again"]
    assert f"has the settings of '{arm}'" in found[0].evidence[1]


def traced_score(scorer, scores, warned):
    """A trace of 12 episodes, of which two have contact; with `warned`, the score rises before it."""
    episodes, at = np.repeat(np.arange(12), 100), np.tile(np.arange(100), 12)
    contact = (at == 50) & (episodes < 2)
    rises = (at >= 30) & (at < 50) & (episodes < 2) if warned else (at < 20) & (episodes < 2)
    aucs = anticipation({"negative": rises.astype(float)}, contact, episodes, resamples=100)
    arm = SimpleNamespace(name="scored", env="speeding", runs=[], first=SimpleNamespace(config=method_config(scorer)))
    return TracedScore(arm, HELD_OUT, 2, scores, aucs)


def method_config(scorer):
    defaults = method_defaults("ppo-lag-rnd")
    return dataclasses.replace(defaults, signal=dataclasses.replace(defaults.signal, scorer=scorer))


def test_a_rise_before_few_contacts_is_not_called_none():
    varied = np.random.default_rng(0).normal(0.6, 0.2, 500)
    assert list(no_lead_time(traced_score("embedded", varied, warned=True))) == []
    assert [one.code for one in no_lead_time(traced_score("embedded", varied, warned=False))] == ["no-lead-time"]


@pytest.mark.parametrize(
    ("scorer", "mean", "deviation", "constant"),
    [("embedded", 0.6, 0.005, True), ("embedded", 0.6, 0.02, False), ("rnd", 0.002, 0.001, False),
     ("rnd", 5.0, 0.02, True)],
)  # fmt: skip
def test_novelty_is_compared_with_its_own_mean(scorer, mean, deviation, constant):
    scores = mean + deviation * np.tile([-1.0, 1.0], 200)
    found = list(constant_score(traced_score(scorer, scores, warned=False)))
    assert [one.code for one in found] == ["constant-score"] * constant


def contrast(design, **changes):
    """Claims with a contrast between the arms of the design in place of its comparisons."""
    env = Run.open(run_paths(design)[0]).config.env
    entry = {"name": "is it so", "env": env, "plus": [FIRST], "minus": [BASELINE], "source": HELD_OUT, **changes}
    (design / "claims.yaml").write_text(yaml.safe_dump({"comparisons": [], "contrasts": [entry]}))
    return audit([design], resamples=100)


def test_a_contrast_alone_is_a_comparison_and_nothing_is_wrong_with_a_clean_one(design):
    found = contrast(design)
    assert found.codes() == set()
    assert not [one for one in found.unchecked if "nothing is compared" in one.reason]


def test_a_contrast_of_too_few_seeds_is_found(tmp_path):
    design = write_clean_design(tmp_path, seeds=4)
    assert contrast(design, test="sign-flip").codes() == {"too-few-seeds"}
    assert contrast(design, test="welch").codes() == set()


def test_a_contrast_on_the_logged_return_is_found(design):
    assert "shaped-return" in contrast(design, source="training", outcome="shaped_return").codes()


def test_a_contrast_of_arms_or_results_that_are_not_there_is_said(design):
    with pytest.raises(InputError, match="unknown arm of the contrast 'is it so'"):
        contrast(design, plus=["nobody"])
    reasons = [one.reason for one in contrast(design, source="elsewhere").unchecked]
    assert any(reason.startswith("no cost for the contrast 'is it so'") for reason in reasons)


def test_an_outcome_that_some_runs_lack_is_found_and_one_that_all_lack_is_said(design):
    claim(design, outcome="arrived", source=HELD_OUT)
    for lacking in (12, 1):
        for place, path in enumerate(run_paths(design)):
            value = pl.lit(None if place < lacking else True)
            edit_table(path, lambda table, value=value: table.with_columns(arrived=value))
        found = audit([design], resamples=100)
        lines = [line for one in found.findings if one.code == "not-finite" for line in one.evidence]
        said = [one.reason for one in found.unchecked] if lacking == 12 else lines
        assert any(line.startswith("no arrival rate of") for line in said)
