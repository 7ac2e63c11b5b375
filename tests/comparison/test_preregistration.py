"""The frozen protocol: what counts as a change, when a claim was decided, and a file that shows if it was edited."""

import json
from dataclasses import dataclass, replace

import pytest
from frozen_study import CONTRAST, COST, RETURN, content

from vlmsafe.comparison.changes import changes, claim_defaults
from vlmsafe.comparison.claims import Claim, Claims
from vlmsafe.comparison.preregistration import (
    PROTOCOL_FILE,
    FrozenProtocol,
    Moment,
    ProtocolVersion,
    claim_states,
    dropped_claims,
    protocol_bytes,
    protocol_lines,
    read_protocol,
)
from vlmsafe.errors import InputError

BEFORE, LATE = Moment(0, 0, 40), Moment(14, 12, 40)


def protocol(*versions):
    return FrozenProtocol(
        tuple(ProtocolVersion("2026-05-01T12:00:00Z", at, content(claims)) for at, claims in versions)
    )


def texts(frozen, claims, now=LATE):
    return [state.text for state in claim_states(frozen, claims, now)]


def test_a_claim_that_was_frozen_before_the_runs_is_decided_before():
    assert texts(protocol((BEFORE, Claims((COST, RETURN)))), Claims((RETURN, COST))) == [
        "decided before the first run"
    ] * 2  # fmt: skip


def test_a_claim_that_was_changed_or_added_says_after_how_many_runs():
    stricter = replace(COST, alpha=0.01)
    frozen = protocol((BEFORE, Claims((COST,))), (LATE, Claims((stricter, RETURN))))
    assert texts(frozen, Claims((stricter, RETURN)), Moment(40, 40, 40)) == [
        "decided before, changed after 12 of 40 runs",
        "added after 12 of 40 runs",
    ]
    states = claim_states(frozen, Claims((stricter, RETURN)), LATE)
    assert [(state.kind, state.at.finished) for state in states] == [("changed", 12), ("added", 12)]


def test_a_change_before_the_first_run_is_none_and_one_during_it_says_so():
    frozen = protocol((BEFORE, Claims((COST,))), (BEFORE, Claims((RETURN,))))
    assert texts(frozen, Claims((RETURN,))) == ["decided before the first run"]
    frozen = protocol((BEFORE, Claims((COST,))), (Moment(2, 0, 40), Claims((RETURN,))))
    assert texts(frozen, Claims((RETURN,))) == ["decided before, changed after 0 of 40 runs, with 2 begun"]


def test_a_claim_that_no_version_has_is_added_now():
    assert texts(protocol((BEFORE, Claims((COST,)))), Claims((COST, RETURN)))[1] == "added after 12 of 40 runs"


def test_a_change_that_was_taken_back_leaves_the_claim_decided_before():
    frozen = protocol((BEFORE, Claims((COST,))), (LATE, Claims((RETURN,))), (LATE, Claims((COST,))))
    assert texts(frozen, Claims((COST,))) == ["decided before the first run"]


def test_a_study_that_had_runs_when_it_was_frozen_says_that_nobody_can_tell():
    frozen = protocol((LATE, Claims((COST,))))
    assert texts(frozen, Claims((COST,))) == ["not decided before: 14 of 40 runs were there"]
    assert "not before the first run: 14 of 40 runs were there" in protocol_lines(frozen, [])[0]


def test_another_correction_is_another_form_of_every_claim():
    frozen = protocol((BEFORE, Claims((COST,), "holm")))
    assert texts(frozen, Claims((COST,), "none")) == ["decided before, changed after 12 of 40 runs"]


def test_contrasts_are_claims_too():
    frozen = protocol((BEFORE, Claims((COST,), contrasts=(CONTRAST,))))
    now = Claims((COST,), contrasts=(replace(CONTRAST, sides="less"),))
    assert texts(frozen, now) == ["decided before the first run", "decided before, changed after 12 of 40 runs"]


def test_a_claim_that_was_given_up_after_results_is_known():
    frozen = protocol((BEFORE, Claims((COST, RETURN))), (LATE, Claims((COST,))))
    assert dropped_claims(frozen, {}) == [("'oracle' against 'plain', env_return", LATE)]
    back = FrozenProtocol((*frozen.versions, ProtocolVersion("", LATE, content(Claims((COST, RETURN))))))
    assert dropped_claims(back, {}) == []
    early = protocol((BEFORE, Claims((COST, RETURN))), (BEFORE, Claims((COST,))))
    assert dropped_claims(early, {}) == []
    described = replace(RETURN, test="none")
    untested = protocol((BEFORE, Claims((COST, RETURN))), (LATE, Claims((COST, described))))
    assert dropped_claims(untested, {}) == [("'oracle' against 'plain', env_return", LATE)]
    assert dropped_claims(protocol((BEFORE, Claims((COST, described))), (LATE, Claims((COST,)))), {}) == []


def test_a_field_that_an_older_version_of_the_package_did_not_have_is_no_change():
    @dataclass(frozen=True)
    class NewerClaim(Claim):
        weight: float = 1.0

    newer = Claims((NewerClaim("oracle", "plain", about=("signal",)),))
    old = content(Claims((COST,)))
    assert changes(old, content(newer), claim_defaults(newer)) == []
    assert texts(protocol((BEFORE, Claims((COST,)))), newer) == ["decided before the first run"]
    other = Claims((NewerClaim("oracle", "plain", about=("signal",), weight=2.0),))
    assert changes(old, content(other), claim_defaults(other)) != []


def test_a_report_says_once_what_holds_for_all_claims():
    frozen = protocol((BEFORE, Claims((COST, RETURN))))
    lines = protocol_lines(frozen, claim_states(frozen, Claims((COST, RETURN)), LATE))
    assert lines[0].startswith("Protocol frozen 2026-05-01T12:00:00Z, hash ")
    assert lines[1:] == ["All 2 claims: decided before the first run."]


def test_a_file_is_read_as_it_was_written(tmp_path):
    assert read_protocol(tmp_path) is None
    frozen = protocol((BEFORE, Claims((COST,))), (LATE, Claims((RETURN,))))
    (tmp_path / PROTOCOL_FILE).write_bytes(protocol_bytes(frozen))
    assert read_protocol(tmp_path) == frozen


@pytest.mark.parametrize(
    "edit",
    [
        lambda document: document["versions"][0]["content"]["claims"]["comparisons"][0].update(alpha=0.1),
        lambda document: document["versions"][0].update(time="2025-05-01T12:00:00Z"),
        lambda document: document["versions"][1].update(finished=0),
        lambda document: document["versions"].pop(),
        lambda document: document.update(versions=[]),
        lambda document: document.pop("seal"),
    ],
)
def test_a_file_that_was_edited_is_refused_in_one_line(tmp_path, edit):
    path = tmp_path / PROTOCOL_FILE
    document = json.loads(protocol_bytes(protocol((BEFORE, Claims((COST,))), (LATE, Claims((RETURN,))))))
    edit(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="was changed by hand") as caught:
        read_protocol(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b'{"versions": 3, "seal": ""}'])
def test_a_file_that_is_no_protocol_is_refused_in_one_line(tmp_path, data):
    (tmp_path / PROTOCOL_FILE).write_bytes(data)
    with pytest.raises(InputError, match="was changed by hand"):
        read_protocol(tmp_path)
