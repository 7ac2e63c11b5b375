"""Study files: what they mean, how they shrink, and what is said about mistakes in them."""

from pathlib import Path

import pytest

from vlmsafe.config.yaml import to_yaml
from vlmsafe.errors import InputError
from vlmsafe.studies.schema import load_study, parse_study
from vlmsafe.studies.study import RunSpec, fewer_seeds, shrunk_config

SMALL = """\
name: small
question: Does the bonus
  lower the cost?
environments: [speeding, braking]
seeds: [3, 1, 2]
total_steps: 4000
settings: {steps_per_epoch: 400, learner.update_iters: 2}
arms:
  ppo-lag: {method: ppo-lag}
  oracle:
    method: vlm-ppo-lag
    settings: {signal: {scorer: oracle}}
protocols: [held-out]
comparisons:
  - {first: oracle, second: ppo-lag}
"""
FOLDER = Path("runs/small")


def study(text: str = SMALL):
    return parse_study(text, "small.yaml")


def specs(text: str = SMALL, **variation) -> tuple[RunSpec, ...]:
    return study(text).varied(**variation).expand(FOLDER)


def error(text: str) -> str:
    with pytest.raises(InputError) as caught:
        study(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_study_is_arms_by_environments_by_seeds_each_with_its_whole_configuration():
    runs = specs()
    assert len(runs) == 2 * 2 * 3
    assert len({run.path for run in runs}) == len(runs)
    run = next(run for run in runs if (run.env, run.arm, run.seed) == ("braking", "oracle", 2))
    assert run.path == FOLDER / "braking" / "oracle" / "seed-2"
    assert (run.config.env, run.config.method, run.config.seed) == ("braking", "vlm-ppo-lag", 2)
    assert (run.config.total_steps, run.config.steps_per_epoch, run.config.budget) == (4000, 400, 30.0)
    assert (run.config.signal.scorer, run.config.learner.update_iters) == ("oracle", 2)
    assert [look.protocol for look in run.evaluations] == ["held-out"]
    assert study().question == "Does the bonus lower the cost?"


def test_runs_come_seed_by_seed_so_that_an_unfinished_study_is_balanced():
    assert [run.seed for run in specs()] == [3] * 4 + [1] * 4 + [2] * 4


def test_what_is_said_in_several_places_is_taken_from_the_innermost():
    text = SMALL.replace("[speeding, braking]", "{speeding: {seeds: [7], total_steps: 800}, braking: {}}").replace(
        "ppo-lag: {method: ppo-lag}",
        "ppo-lag: {method: ppo-lag, settings: {learner.gamma: 0.9}, environments: "
        "{speeding: {settings: {learner.gamma: 0.8}}, braking: {seeds: [9], total_steps: 1200}}}",
    )
    found = {(run.env, run.arm): run for run in specs(text)}
    assert found["speeding", "oracle"].seed == 7
    assert found["speeding", "oracle"].config.total_steps == 800
    assert found["speeding", "ppo-lag"].config.learner.gamma == 0.8
    assert (found["braking", "ppo-lag"].seed, found["braking", "ppo-lag"].config.total_steps) == (9, 1200)
    assert found["braking", "ppo-lag"].config.learner.gamma == 0.9
    assert found["braking", "oracle"].config.learner.gamma == 0.99


def test_what_a_study_says_of_the_signal_is_for_arms_that_have_one():
    text = SMALL.replace(
        "{steps_per_epoch: 400", "{steps_per_epoch: 400, signal.every: 4, multiplier.signal_weight: 0.03"
    )
    every = {run.arm: (run.config.signal.every, run.config.multiplier.signal_weight) for run in specs(text)}
    assert every == {"ppo-lag": (1, 0.0), "oracle": (4, 0.03)}
    assert "signal.every is set, but the method 'ppo-lag' has no signal" in error(
        SMALL.replace("{method: ppo-lag}", "{method: ppo-lag, settings: {signal.every: 4}}")
    )


def test_an_arm_has_runs_only_in_the_environments_it_names():
    text = SMALL.replace("{method: ppo-lag}", "{method: ppo-lag, environments: [braking]}")
    assert {(run.env, run.arm) for run in specs(text)} == {
        ("speeding", "oracle"), ("braking", "oracle"), ("braking", "ppo-lag"),
    }  # fmt: skip


def test_protocols_are_taken_only_where_they_are_defined_and_asked_for():
    text = SMALL.replace("[speeding, braking]", "[speeding, metadrive-easy]").replace(
        "protocols: [held-out]",
        "protocols: [paper, {protocol: held-out, episodes: 7, arms: [oracle], seeds: [1]}]",
    )
    found = {(run.env, run.arm, run.seed): [look.protocol for look in run.evaluations] for run in specs(text)}
    assert found["speeding", "ppo-lag", 1] == found["speeding", "oracle", 2] == []
    assert found["speeding", "oracle", 1] == ["held-out"]
    assert found["metadrive-easy", "oracle", 1] == ["paper", "held-out"]
    assert found["metadrive-easy", "ppo-lag", 1] == ["paper"]


# -- smaller --


def test_scale_shrinks_steps_seeds_and_episodes_and_nothing_else():
    whole, small = specs(), specs(scale=0.25)
    assert sorted({run.seed for run in small}) == [1, 3]
    assert {run.evaluations[0].count for run in whole} == {50}
    assert {run.evaluations[0].count for run in small} == {12}
    one, other = whole[0].config, small[0].config
    assert (other.total_steps, other.steps_per_epoch, other.epochs) == (1000, 200, 5)
    assert other == shrunk_config(one, 0.25)
    assert {name for name in vars(one) if getattr(one, name) != getattr(other, name)} == {
        "total_steps",
        "steps_per_epoch",
    }


@pytest.mark.parametrize("scale", [0.5, 0.1, 0.01, 0.001])
def test_any_scale_leaves_two_epochs_two_seeds_two_episodes_and_a_whole_episode_per_epoch(scale):
    for name in ("generalisation", "signal-controls"):
        small = load_study(name).varied(scale).expand(Path("runs"))
        for run in small:
            config = run.config
            assert config.epochs >= 2
            assert config.steps_per_epoch >= config.spec.horizon * config.num_envs
            assert config.total_steps <= max(scale * 2_000_000 * 1.3, 2 * config.spec.horizon * config.num_envs)
            assert all(look.count >= 2 for look in run.evaluations)
        for env, arm in {(run.env, run.arm) for run in small}:
            assert sum((run.env, run.arm) == (env, arm) for run in small) >= 2


def test_a_smaller_study_keeps_the_first_seeds_so_that_arms_stay_paired():
    assert fewer_seeds((42, 123, 456, 789, 1024), 0.01) == fewer_seeds((42, 123, 456), 0.01) == (42, 123)
    assert fewer_seeds((5,), 0.01) == (5,)
    assert fewer_seeds(tuple(range(10)), 0.5) == (0, 1, 2, 3, 4)


def test_a_smaller_study_has_another_name_and_cannot_be_made_smaller_again():
    small = study().varied(0.01, "noise")
    assert small.title == "small-scale-0.01-noise"
    assert parse_study(to_yaml(small.document), "its own copy").expand(FOLDER) == small.expand(FOLDER)
    with pytest.raises(InputError, match="start from 'small'"):
        small.varied(0.5)
    with pytest.raises(InputError, match="scale is 0"):
        study().varied(0.0)


def test_another_scorer_stands_in_for_models_that_must_be_downloaded_and_for_no_other():
    text = SMALL.replace(
        "  ppo-lag: {method: ppo-lag}",
        "  ppo-lag: {method: ppo-lag}\n  clip: {method: vlm-ppo-lag-conf, settings: {signal.scorer: clip}}\n"
        "  qwen: {method: qwen2-vl-conf}\n  rnd: {method: ppo-lag-rnd}",
    )
    scorers = {run.arm: run.config.signal.scorer for run in specs(text, scorer="noise")}
    assert scorers == {"ppo-lag": "none", "oracle": "oracle", "clip": "noise", "qwen": "noise", "rnd": "rnd"}
    with pytest.raises(InputError, match=r"'embedded' cannot stand in for 'qwen2-vl'.*'yes-no'; noise and oracle"):
        specs(text, scorer="embedded")


# -- mistakes --


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds:", "sedes:", "line 5: unknown entry 'sedes'; did you mean 'seeds'?"),
        ("learner.update_iters: 2", "learner.update_itres: 2", "line 7: unknown setting 'learner.update_itres'"),
        ("{scorer: oracle}", "{scorrer: oracle}", "line 12: unknown setting 'signal.scorrer'; did you mean"),
        ("{steps_per_epoch: 400", "{seed: 4", "line 7: 'seed' is not a setting of a study; it is given by 'seeds'"),
        ("method: vlm-ppo-lag", "method: vlm-ppo-lags", "line 11: unknown method 'vlm-ppo-lags'"),
        ("speeding, braking", "speding", "line 4: unknown environment 'speding'; did you mean 'speeding'?"),
        ("[3, 1, 2]", "[3, 1, 3]", "line 5: 'seeds' names a seed twice"),
        ("[3, 1, 2]", "[3, x]", "line 5: 'seeds' is [3, 'x']; expected a list of whole numbers"),
        ("seeds: [3, 1, 2]\n", "", "line 8: the arm 'ppo-lag' has no seeds on speeding"),
        ("total_steps: 4000", "total_steps: 4e3", "line 6: 'total_steps' is '4e3'; expected a whole number above 0"),
        ("total_steps: 4000", "total_steps: 4100", "arm 'ppo-lag' on speeding: total_steps is 4100; it must be"),
        ("[held-out]", "[hold-out]", "line 13: unknown protocol 'hold-out'; did you mean 'held-out'?"),
        ("[held-out]", "[{protocol: held-out, every: 4}]", "line 13: unknown entry 'every'"),
        ("[held-out]", "[held-out, {protocol: held-out, arms: [oracle]}]", "line 13: 'held-out' is requested twice"),
        ("first: oracle", "first: orcale", "line 15: unknown arm of the study 'orcale'; did you mean 'oracle'?"),
        ("second: ppo-lag}", "second: ppo-lag, outcome: crashes}", "line 14, comparison 1"),
        ("name: small", "name: a/b", "line 1: the name is 'a/b'; expected letters"),
        ("settings: {signal: {scorer: oracle}}", "seeds: 3", "line 12: 'seeds' is 3; expected a list"),
        ("    settings: {signal: {scorer: oracle}}", "    settings: {learner.gamma: high}", "arm 'oracle' on speeding"),
        ("seeds: [3, 1, 2]", "seeds: [1]\nseeds: [2]", "line 6: 'seeds' appears a second time"),
        ("name: small\n", "", "small.yaml: there is no 'name'"),
        ("name: small", "name: small\nlooks: {at: [0.5]}", "line 2: looks at [0.5]: expected shares above 0 that rise"),
        ("name: small", "name: small\nlooks: {spending: even}", "line 2: unknown spending function 'even'. Known:"),
        ("name: small", "name: small\nlooks: [0.5, 1]", "line 2: 'looks' is [0.5, 1]; expected a mapping"),
        ("arms:\n", "arms: [", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_line_and_entry(old, new, message):
    assert old in SMALL
    found = error(SMALL.replace(old, new, 1))
    assert found.startswith("small.yaml")
    assert message in found


def test_studies_are_found_by_name_file_and_folder(tmp_path):
    (tmp_path / "mine.yaml").write_text(SMALL)
    (tmp_path / "study.yaml").write_text(SMALL)
    assert load_study(tmp_path / "mine.yaml").expand(FOLDER) == load_study(tmp_path).expand(FOLDER) == specs()
    with pytest.raises(InputError, match="unknown study 'generalization'; did you mean 'generalisation'"):
        load_study("generalization")
    with pytest.raises(InputError, match=r"cannot read the study nowhere\.yaml: No such file"):
        load_study("nowhere.yaml")
