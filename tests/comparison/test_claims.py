"""What a study says it compares, and errors where it cannot be read."""

import pytest

from vlmsafe.comparison.claims import Claim, Claims, find_claims, load_claims
from vlmsafe.comparison.comparisons import claims_with_runs
from vlmsafe.errors import InputError


def written(folder, text):
    path = folder / "claims.yaml"
    path.write_text(text)
    return path


def test_claims_are_read_with_their_defaults(tmp_path):
    claims = load_claims(
        written(
            tmp_path,
            "correction: holm\ncomparisons:\n- {first: a, second: b, about: signal, test: welch, sides: less}\n"
            "- {first: a, second: c}\n",
        )
    )
    assert claims.correction == "holm"
    assert claims.comparisons[0] == Claim("a", "b", about=("signal",), test="welch", sides="less")
    assert claims.comparisons[1] == Claim("a", "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comparisons: 3", "expected a list"),
        ("arms: []", "expected a list under 'comparisons'"),
        ("comparisons: []\nextra: 1", "unknown entry"),
        ("comparisons:\n- {first: a}", "expected 'first' and 'second'"),
        ("comparisons:\n- {first: a, second: a}", "compared with itself"),
        ("comparisons:\n- {first: a, second: b, alpha: 2}", "alpha is 2"),
        (
            "comparisons:\n- {first: a, second: b, alpha: 0.6, sides: less}",
            "alpha is 0.6; it must lie between 0 and 0.5 for a one-sided test",
        ),
        ("comparisons:\n- {first: a, second: b, test: guess}", "guess"),
        ("comparisons:\n- {first: a, second: b, outcme: cost}", "did you mean 'outcome'"),
        ("comparisons: []\ncorrection: some", "unknown correction 'some'"),
        ("{", "claims.yaml"),
        ("comparisons:\n- {first: a, second: b, margin: 5 pp}", "a margin of 5 pp without a kind"),
        (
            "comparisons:\n- {first: a, second: b, kind: equivalence}",
            "the margin is ''; .*needs one above 0 with its unit, such as '5 cost'",
        ),
        ("comparisons:\n- {first: a, second: b, kind: equivalence, margin: 5}", "the margin is '5'"),
        ("comparisons:\n- {first: a, second: b, kind: equivalence, margin: 5 pp}", "the margin is '5 pp'"),
        (
            "comparisons:\n- {first: a, second: b, outcome: arrived, kind: equivalence, margin: 150 pp}",
            "no two rates differ by more than 100 pp",
        ),
        (
            "comparisons:\n- {first: a, second: b, kind: non-inferiority, margin: 5 cost, sides: less}",
            "a direction of its own; leave out 'sides: less'",
        ),
        (
            "comparisons:\n- {first: a, second: b, kind: non-inferiority, margin: 5 cost, test: none}",
            "needs a test, but the claim has 'test: none'",
        ),
        (
            "comparisons:\n- {first: a, second: b, sides: less}\n- {first: b, second: a, sides: less}",
            "contradict each other",
        ),
        (
            "comparisons:\n- {first: a, second: b, sides: less}\n- {first: a, second: b, env: easy, sides: greater}",
            "contradict each other",
        ),
        ("comparisons:\n- {first: a, second: b, joint: one}", "the joint claim 'one' has one part"),
        (
            "comparisons:\n- {first: a, second: b, joint: x, env: easy}\n- {first: a, second: b, joint: x, env: hard}",
            "'x' has one part on easy; a joint claim holds on one environment at a time",
        ),
        (
            "comparisons:\n- {first: a, second: b, joint: x, env: easy}\n- {first: a, second: b, joint: x}",
            "'x' has one part on every environment",
        ),
        (
            "comparisons:\n- {first: a, second: b, joint: x}\n- {first: a, second: b, joint: x, alpha: 0.01}",
            "different levels",
        ),
        (
            "comparisons:\n- {first: a, second: b, joint: x}\n- {first: a, second: b, joint: x, test: none}",
            "has no test; every part needs one",
        ),
    ],
)
def test_claims_that_cannot_be_meant_are_refused_with_the_reason(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        load_claims(written(tmp_path, text))


def test_claims_on_different_environments_do_not_contradict_each_other(tmp_path):
    entries = (
        f"- {{first: a, second: b, env: {env}, sides: {sides}}}\n" for env, sides in (("x", "less"), ("y", "greater"))
    )
    assert len(load_claims(written(tmp_path, f"comparisons:\n{''.join(entries)}")).comparisons) == 2


def test_claims_are_found_in_a_folder_and_two_files_are_refused(tmp_path):
    folders = [tmp_path / name for name in ("none", "one", "two")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[1:]:
        written(folder, "comparisons: []")
    assert find_claims(folders[:1]) is None
    assert find_claims(folders[:2]) == Claims()
    with pytest.raises(InputError, match=r"several claims: .*one.*two"):
        find_claims(folders)


def test_a_joint_claim_waits_until_all_its_parts_have_runs():
    parts = Claim("a", "b", sides="less", joint="both"), Claim("a", "c", sides="less", joint="both")
    claims = Claims((*parts, Claim("a", "b", outcome="violation")))
    there = dict.fromkeys([("easy", "a"), ("easy", "b")])
    kept, lines = claims_with_runs(claims, there)
    assert kept.comparisons == claims.comparisons[2:]
    assert lines == [
        "no runs yet for the comparison 'a' against 'c'",
        "the joint claim 'both' waits for runs of all its parts",
    ]
    assert claims_with_runs(claims, {**there, ("easy", "c"): None}) == (claims, [])
