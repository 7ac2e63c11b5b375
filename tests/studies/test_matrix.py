"""A matrix in a study file makes an arm for every combination of its settings."""

from pathlib import Path

import pytest

from vlmsafe.config.yaml import to_yaml
from vlmsafe.errors import InputError
from vlmsafe.studies.execute import write_definition
from vlmsafe.studies.schema import load_study, parse_study

CONTROLS = """\
name: controls
question: Does it matter what the scorer sees?
environments: [speeding]
seeds: [1, 2]
total_steps: 4000
settings: {steps_per_epoch: 400}
arms:
  ppo-lag: {method: ppo-lag}
  control:
    method: vlm-ppo-lag
    matrix: {signal.scorer: [noise, "constant:0.5", oracle, embedded], signal.reward_weight: [0.05, 0.1, 0.2, 0.5]}
protocols: [held-out]
comparisons:
  - {first: "control-oracle-*", second: "control-noise-*", about: [scorer]}
"""
FOLDER = Path("runs/controls")
MATRIX = """{signal.scorer: [noise, "constant:0.5", oracle, embedded], signal.reward_weight: [0.05, 0.1, 0.2, 0.5]}"""
LABELLED = """
      signal.scorer: {constant: "constant:0.5", noise: noise}
      path: {bonus: {multiplier.signal_weight: 0.0}, term: {signal.reward_weight: 0.0, signal.every: 4}}
    name: "{path}-{signal.scorer}"
"""
COMPARED = """  - {first: "control-oracle-*", second: "control-noise-*", about: [scorer]}"""


def study(old="", new=""):
    """The study with a change; one with other arms has no comparisons."""
    assert old in CONTROLS
    text = CONTROLS.replace(old, new, 1)
    return parse_study(text.partition("comparisons:")[0] if MATRIX in old else text, "controls.yaml")


def labelled(extra=""):
    return study(f"{MATRIX}\n", LABELLED + extra).arms


def error(old, new):
    with pytest.raises(InputError) as caught:
        study(old, new)
    message = str(caught.value)
    assert message.startswith("controls.yaml, line ")
    assert "\n" not in message
    return message


def test_four_lines_make_sixteen_arms_each_with_its_own_settings():
    found = {run.arm: run.config.signal for run in study().expand(FOLDER) if run.arm != "ppo-lag"}
    assert len(found) == 16
    assert list(found)[:4] == [f"control-noise-{weight}" for weight in ("0.05", "0.1", "0.2", "0.5")]
    assert {(signal.scorer, signal.reward_weight) for signal in found.values()} == {
        (scorer, weight)
        for scorer in ("noise", "constant:0.5", "oracle", "embedded")
        for weight in (0.05, 0.1, 0.2, 0.5)
    }
    chosen = found["control-constant-0.5-0.2"]
    assert (chosen.scorer, chosen.reward_weight) == ("constant:0.5", 0.2)


def test_a_name_of_ones_own_puts_the_values_where_one_wants_them():
    arms = study(f"{MATRIX}\n", f'{MATRIX}\n    name: "{{signal.scorer}}-of-{{arm}}-w{{signal.reward_weight}}"\n').arms
    assert arms[1].name == "noise-of-control-w0.05"


def test_labels_stand_for_a_value_or_for_several_settings():
    arms = {arm.name: arm.overrides.settings for arm in labelled()}
    assert arms["term-constant"] == {"signal.scorer": "constant:0.5", "signal.reward_weight": 0.0, "signal.every": 4}
    assert arms["bonus-noise"] == {"signal.scorer": "noise", "multiplier.signal_weight": 0.0}
    assert list(arms) == ["ppo-lag", "bonus-constant", "term-constant", "bonus-noise", "term-noise"]


def test_what_an_arm_says_beside_its_matrix_holds_for_all_its_arms():
    arms = labelled("    seeds: [7]\n    settings: {signal.gate: prior-symmetric}\n    environments: [speeding]\n")[1:]
    assert {arm.overrides.seeds for arm in arms} == {(7,)}
    assert {arm.overrides.settings["signal.gate"] for arm in arms} == {"prior-symmetric"}
    assert all(arm.environments is not None for arm in arms)


def test_a_recorded_study_keeps_its_matrix_and_has_the_same_runs_and_claims_when_it_is_read_again(tmp_path):
    first = study()
    write_definition(first, tmp_path)
    again = load_study(tmp_path)
    assert "matrix" in (tmp_path / "study.yaml").read_text(encoding="utf-8")
    assert again.expand(FOLDER) == first.expand(FOLDER)
    assert again.claims == first.claims
    assert parse_study(to_yaml(again.document), "again").document == first.document


def test_claims_in_the_folder_name_arms_and_no_patterns(tmp_path):
    write_definition(study(), tmp_path)
    text = (tmp_path / "claims.yaml").read_text(encoding="utf-8")
    assert "*" not in text
    assert "&" not in text
    assert text.count("first:") == 4


def test_a_star_stands_for_the_same_text_on_both_sides_of_a_comparison():
    pairs = [(claim.first, claim.second) for claim in study().claims.comparisons]
    assert pairs == [(f"control-oracle-{w}", f"control-noise-{w}") for w in ("0.05", "0.1", "0.2", "0.5")]


@pytest.mark.parametrize(
    ("comparison", "pairs"),
    [
        ('{first: "control-oracle-*", second: ppo-lag}', 4),
        ('{first: ppo-lag, second: "control-oracle-*"}', 4),
        ('{first: "control-oracle-*", second: control-oracle-0.1}', 3),  # an arm is not compared with itself
        ('{first: "*", second: ppo-lag}', 16),
    ],
)
def test_a_star_on_one_side_compares_many_arms_with_one(comparison, pairs):
    claims = study(COMPARED, f"  - {comparison}").claims.comparisons
    assert len({(claim.first, claim.second) for claim in claims}) == len(claims) == pairs


def test_evaluations_traces_and_tables_choose_arms_by_pattern():
    text = 'protocols: [{protocol: held-out, arms: ["control-oracle-*"]}]'
    tables = (
        'tables: [{kind: summary, arms: [ppo-lag, "control-noise-*"]}, {kind: rates, pool: {all: ["control-*"]}}]\n'
    )
    found = study("protocols: [held-out]\n", f"{text}\n{tables}")
    assert {run.arm for run in found.expand(FOLDER) if run.evaluations} == set(found.protocols[0].arms)
    assert len(found.protocols[0].arms) == 4
    assert len(found.tables[1]["pool"]["all"]) == 16
    assert found.tables[0]["arms"] == ["ppo-lag", *(f"control-noise-{w}" for w in ("0.05", "0.1", "0.2", "0.5"))]


SEVENTEEN = "[" + ", ".join(map(str, range(1, 18))) + "]"


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ("{}", "line 11: 'matrix' is empty; expected settings"),
        ("[noise]", "line 11: 'matrix' is ['noise']; expected a mapping"),
        ("{signal.scorer: []}", "line 11: 'signal.scorer' has no values; expected at least one"),
        ("{signal.scorer: {}}", "line 11: 'signal.scorer' has no labels; expected at least one"),
        ("{signal.scorer: noise}", "line 11: 'signal.scorer' is 'noise'; expected a list of values, or labels"),
        ("{signal.scorrer: [noise]}", "line 11: unknown setting 'signal.scorrer'; did you mean 'signal.scorer'"),
        ("{seed: [1, 2]}", "line 11: 'seed' is not a setting of a study; it is given by 'seeds'"),
        ("{signal.scorer: [null]}", "line 11: 'signal.scorer' has the value empty, which names no arm; give labels"),
        ("{signal.scorer: [oracle, oracle]}", "line 11: 'signal.scorer' has two values that are both labelled"),
        ('{signal.scorer: ["a:b", a/b]}', "line 11: 'signal.scorer' has two values that are both labelled 'a-b'"),
        ("{signal.scorer: {a b: noise}}", "line 11: the label is 'a b'; expected letters"),
        ("{path: {bonus: 0.1}}", "line 11: 'path' is not a setting, so 'bonus' needs settings of its own; got 0.1"),
        ("{path: {bonus: {signal.evry: 4}}}", "line 11: unknown setting 'signal.evry'"),
        ("{signal.scorer: [orcale, noise]}", "line 9: arm 'control-orcale' on speeding"),
        (
            "{scorer: [noise], signal.scorer: [oracle]}",
            "line 11: 'signal.scorer' is given by 'signal.scorer' of the matrix and by 'scorer' of the matrix",
        ),
        (
            "{signal.scorer: [noise]}\n    settings: {signal: {scorer: oracle}}",
            "line 11: 'signal.scorer' is given by 'signal.scorer' of the matrix and by 'settings'; give it once",
        ),
        (
            "{signal.scorer: [noise]}\n    environments: {speeding: {settings: {scorer: oracle}}}",
            "line 11: 'signal.scorer' is given by 'signal.scorer' of the matrix and by 'settings'; give it once",
        ),
        (
            f"{{signal.every: {SEVENTEEN}, multiplier.warmup_epochs: {SEVENTEEN}}}",
            "line 11: 'matrix' makes 289 arms; at most 256 are possible",
        ),
        ('{signal.every: [1, 4]}\n    name: "{every}"', "line 12: unknown part of a name 'every'; did you mean"),
        ("{signal.every: [1, 4]}\n    name: 3", "line 12: 'name' is 3; expected text such as \"{signal.every}\""),
        ("{signal.every: [1, 4]}\n    name: same", "line 12: two arms are called 'same': signal.every 1, and"),
        ('{signal.every: [1, 4]}\n    name: "a/{signal.every}"', "line 12: the arm of signal.every 1 is called 'a/1'"),
        ('{signal.every: [1, 4]}\n    name: "{arm"', "line 12: the arm of signal.every 1 is called '{arm'"),
        ("{signal.scorer: [oracle]}\n    name: ppo-lag", "line 9: 'control' makes an arm 'ppo-lag', which 'ppo-lag'"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_matrix_is_one_line_with_file_and_line(matrix, message):
    assert message in error(f"matrix: {MATRIX}", f"matrix: {matrix}")


def test_a_name_without_a_matrix_is_refused():
    assert "line 8: 'ppo-lag' has a 'name' and no 'matrix'" in error("{method: ppo-lag}", "{method: ppo-lag, name: x}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("control-oracle-*", "control-orcale-*", "line 14: no arm is called like 'control-orcale-*'; the study"),
        ("control-oracle-*", "*-oracle-*", "line 14: '*-oracle-*' has 2 stars; expected one"),
        ("control-noise-*", "control-none-*", "control-oracle-0.05 and control-none-0.05 would be compared, but"),
        ("control-noise-*", "ppo", "control-oracle-0.05 and ppo would be compared, but the study has no arm 'ppo'"),
        ("[held-out]", '[{protocol: held-out, arms: ["x-*"]}]', "line 12: no arm is called like 'x-*'"),
        ("protocols:", 'figures: [{kind: bars, arms: ["x-*"]}]\nprotocols:', "line 12: no arm is called like 'x-*'"),
        ("protocols:", "tables: [{kind: summary, arms: [ppolag]}]\nprotocols:", "line 12: unknown arm of the study"),
        ("protocols:", "tables: [{kind: rates, pool: {a: [ppo-lag, x]}}]\nprotocols:", "line 12: unknown arm of the"),
        ("protocols:", "tables: [{kind: rates, pool: {a: ppo-lag}}]\nprotocols:", "expected a list of two or more"),
        ("protocols:", "tables: [{kind: by-environment, windows: {x: {}}}]\nprotocols:", "line 12: unknown arm of the"),
        ("protocols:", "tables: [{kind: summary, arms: 3}]\nprotocols:", "'arms' is 3; expected a list of names"),
    ],
)  # fmt: skip
def test_a_pattern_that_names_no_arm_is_an_error_with_its_line(old, new, message):
    assert message in error(old, new)
