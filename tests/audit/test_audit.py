"""The audit finds what the paper reports about itself and every planted defect, and nothing in a clean design."""

import importlib
import json
import re
import shutil
from functools import partial

import pytest
from designs.benign import BENIGN
from designs.clean_design import write_clean_design
from designs.planted import PLANTED
from designs.published_design import EXPECTED, UNREPORTED, write_published_design
from in_process import call

from vlmsafe.audit import audit
from vlmsafe.audit.kinds import KINDS, Severity
from vlmsafe.errors import EXIT_ERRORS, EXIT_WARNINGS, InputError


@pytest.fixture(scope="module")
def published(made_once):
    return made_once("published-design", write_published_design)


@pytest.fixture(scope="module")
def result(published):
    return audit([published])


@pytest.fixture(scope="module", params=["signal", "gate"])
def clean(request, bases):
    return bases[request.param]


@pytest.fixture(scope="module")
def bases(made_once):
    return {name: made_once(f"clean-{name}", partial(write_clean_design, variant=name)) for name in ("signal", "gate")}


def command(*arguments):
    return call("audit", *arguments)


def test_the_paper_is_found_to_have_the_problems_that_it_reports(result):
    assert len(EXPECTED) >= 10
    assert set(EXPECTED) <= result.codes()
    assert set(UNREPORTED) <= result.codes()
    assert result.exit_code == EXIT_ERRORS


def test_most_of_them_are_found_without_being_told_what_was_claimed(published, tmp_path):
    (tmp_path / "claims.yaml").write_text("comparisons: []\n")
    result = audit([published], claims=tmp_path / "claims.yaml")
    assert len(set(EXPECTED) & result.codes()) >= 10


def test_the_evidence_is_the_published_one(result):
    by_code = {}
    for finding in result.findings:
        by_code.setdefault(finding.code, []).append("\n".join((finding.where, *finding.evidence)))
    text = {code: "\n".join(entries) for code, entries in by_code.items()}
    assert "learner.update_iters: 40 against 10" in text["unmatched-arms"]
    assert "multiplier.initial: 0.001 against 0.0" in text["unmatched-arms"]
    assert "36 of 50 epochs" in text["incomplete-run"]
    assert "ppo-lag-decoupled seed-42" in text["untrained-checkpoint"]
    assert "50 of 50 scenarios lie in the training pool" in text["evaluated-on-training-scenarios"]
    assert "Pearson 0.978" in text["cost-tracks-distance"]
    assert "28.6% of its episodes cost nothing and return less than 20" in text["passive-policy"]
    assert "can give is 0.05, not below 0.05" in text["too-few-seeds"]


def test_nothing_is_found_in_a_clean_design(clean):
    result = audit([clean])
    assert [(finding.code, finding.where, finding.evidence) for finding in result.findings] == []
    assert result.unchecked == ()
    assert result.exit_code == 0


def test_nothing_is_found_in_a_clean_design_that_claims_nothing(clean, tmp_path):
    (tmp_path / "claims.yaml").write_text("comparisons: []\n")
    assert audit([clean], claims=tmp_path / "claims.yaml").codes() == set()


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_defect_is_found_and_no_other(planted, bases, tmp_path):
    folder = shutil.copytree(bases[planted.variant], tmp_path / "design")
    planted.plant(folder)
    found = audit([folder], resamples=300).codes()
    assert planted.code in found
    assert found - {planted.code} <= set(planted.also)


@pytest.mark.parametrize("benign", BENIGN, ids=lambda benign: benign.name)
def test_a_harmless_change_is_not_complained_of(benign, bases, tmp_path):
    folder = shutil.copytree(bases[benign.variant], tmp_path / "design")
    benign.change(folder)
    found = audit([folder], resamples=300).findings
    assert [(finding.code, finding.where, finding.evidence) for finding in found] == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.code)
def test_a_kind_of_finding_is_described_and_its_check_has_its_name(kind):
    module = importlib.import_module(f"vlmsafe.audit.checks.{kind.topic}")
    assert callable(getattr(module, kind.code.replace("-", "_")))
    assert kind.meaning.endswith(".")
    assert all(text and not text.endswith(".") for text in (kind.title, kind.remedy))


def test_every_kind_of_finding_is_planted_or_published():
    assert set(KINDS) - {planted.code for planted in PLANTED} - set(EXPECTED) - set(UNREPORTED) <= {"many-tests"}


def test_the_command_prints_findings_and_exits_by_the_worst(published, clean):
    answer = command(published / "metadrive-hard")
    assert answer.returncode == EXIT_ERRORS
    assert "(evaluated-on-training-scenarios)" in answer.stdout
    heads = re.findall(r"^warning: .*\)(?:  (\d+) times)?$", answer.stdout, re.MULTILINE)
    assert f"{sum(int(times or 1) for times in heads)} warnings" in answer.stdout.splitlines()[-1]
    assert "to fix: evaluate with: vlmsafe evaluate RUN --protocol held-out" in " ".join(answer.stdout.split())
    answer = command(clean)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "nothing found" in answer.stdout


def test_warnings_alone_have_an_exit_code_of_their_own(tmp_path):
    write_clean_design(tmp_path, seeds=3)
    result = audit([tmp_path])
    assert {finding.severity for finding in result.findings} == {Severity.WARNING}
    assert result.codes() == {"too-few-seeds"}
    assert result.exit_code == EXIT_WARNINGS


def test_programs_get_json(published):
    answer = command(published, "--json")
    document = json.loads(answer.stdout)
    assert document["worst"] == "error"
    assert {finding["severity"] for finding in document["findings"]} >= {"error", "warning"}
    for finding in document["findings"]:
        assert {"code", "where", "evidence", "fix", "data", "title"} <= set(finding)
        assert set(finding["arms"]) <= {arm["arm"] for arm in document["arms"] if arm["env"] == finding["environment"]}
        assert finding["runs"] or finding["scope"] == "all"
        assert all(name in finding["where"] for name in (finding["environment"], finding["protocol"]))
    assert set(EXPECTED) <= {finding["code"] for finding in document["findings"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no nowhere"),
        ([], "or run directories"),
        (["."], "holds no run"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = command(*arguments)
    assert answer.returncode == 2
    assert message in " ".join(answer.stderr.split())
    assert "Traceback" not in answer.stderr


def test_an_arm_that_is_not_there_is_named(clean, tmp_path):
    with pytest.raises(InputError, match="unknown arm 'ppolag'; did you mean"):
        audit([clean], baseline="ppolag", claims=_no_claims(tmp_path))
    claims = tmp_path / "other.yaml"
    claims.write_text("comparisons:\n- {first: vlm-ppo-lag-conf, second: cppo}\n")
    with pytest.raises(InputError, match="unknown arm in the claims 'cppo'"):
        audit([clean], claims=claims)


def _no_claims(folder):
    path = folder / "none.yaml"
    path.write_text("comparisons: []\n")
    return path
