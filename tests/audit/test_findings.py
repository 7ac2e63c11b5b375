"""A finding carries fields, and its sentence is made from them."""

import json

import pytest
from designs.clean_design import write_clean_design
from designs.planting import BASELINE, FIRST

from vlmsafe.audit.findings import (
    EVERYTHING,
    Audit,
    Subject,
    Unchecked,
    about_arm,
    about_comparison,
    about_environment,
    about_runs,
    finding,
)
from vlmsafe.audit.kinds import KINDS, Severity
from vlmsafe.comparison.comparisons import comparisons
from vlmsafe.runs.arms import open_arms
from vlmsafe.runs.records import read_arms

ENV = "metadrive-medium"


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    folder = write_clean_design(tmp_path_factory.mktemp("clean"), seeds=2)
    return read_arms(open_arms([folder])[0])


def test_the_sentence_is_made_from_the_fields(arms):
    one, other = arms[ENV, FIRST], arms[ENV, BASELINE]
    (comparison,) = comparisons(arms, None, baseline=BASELINE)
    seeds = [run.name for run in one.runs]
    assert about_runs(one.runs[0]).where == f"{ENV}: {FIRST} {seeds[0]}"
    assert about_runs(one.runs[0], other.runs[0]).where == f"{ENV}: {FIRST} {seeds[0]}, {BASELINE} {seeds[0]}"
    assert about_arm(one).where == f"{ENV}: '{FIRST}'"
    assert about_arm(one, "paper").where == f"{ENV}: '{FIRST}', 'paper'"
    assert about_comparison(comparison, "paper").where == f"{ENV}: '{FIRST}' against '{BASELINE}', 'paper'"
    assert about_environment(ENV, [one, other], "held-out").where == f"{ENV}, 'held-out'"
    assert Subject("run", runs=("some/folder",)).where == "some/folder"


def test_a_subject_names_the_runs_in_question(arms):
    one, other = arms[ENV, FIRST], arms[ENV, BASELINE]
    (comparison,) = comparisons(arms, None, baseline=BASELINE)
    labels = [run.label for run in (*one.runs, *other.runs)]
    assert about_comparison(comparison).runs == about_environment(ENV, [one, other], "held-out").runs == tuple(labels)
    assert about_arm(one, runs=one.runs[:1]).runs == (one.runs[0].label,)
    assert about_environment(ENV, [one, other], "unknown").runs == ()


def test_severity_and_fix_are_those_of_the_kind_unless_given():
    usual = finding("many-tests", EVERYTHING, ["six tests"])
    assert (usual.severity, usual.fix) == (Severity.NOTE, KINDS["many-tests"].remedy)
    other = finding("many-tests", EVERYTHING, [], fix="make one", severity=Severity.ERROR)
    assert (other.severity, other.fix) == (Severity.ERROR, "make one")


def test_programs_get_the_fields_of_findings_and_of_what_was_not_checked():
    subject = Subject("arm", "braking", ("ppo",), ("ppo seed-1",), "held-out")
    found = finding("stale-evaluation", subject, ["epoch 3 of 5"], {"epoch": 3, "share": float("nan")}, metric="cost")
    audit = Audit((found,), (Unchecked(("no-lead-time",), (subject, EVERYTHING), "no trace"),), (), ())
    document = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
    (entry,) = document["findings"]
    fields = {"scope": "arm", "environment": "braking", "arms": ["ppo"], "runs": ["ppo seed-1"], "protocol": "held-out"}
    assert fields.items() <= entry.items()
    assert (entry["code"], entry["severity"], entry["metric"]) == ("stale-evaluation", "warning", "cost")
    assert entry["data"] == {"epoch": 3, "share": None}
    (unchecked,) = document["unchecked"]
    assert fields.items() <= unchecked["subjects"][0].items()
    assert unchecked["where"] == "braking: 'ppo', 'held-out'; all comparisons"
