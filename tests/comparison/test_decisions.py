"""Several tests are decided together, by one function."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmsafe.comparison.claims import Claim, Claims, ContrastClaim, count_tests
from vlmsafe.comparison.decisions import Tested, decide


def decided(ps, correction, count=0, alpha=0.05):
    return [one.decided for one in decide([Tested(alpha, p, -1) for p in ps], correction, count)]


def test_without_a_correction_each_test_has_its_level_to_itself():
    assert decided([0.04, 0.06, None], "none", 99) == [-1, 0, 0]


def test_bonferroni_counts_tests_that_have_no_result_yet():
    assert decided([0.02], "bonferroni", 1) == [-1]
    assert decided([0.02], "bonferroni", 3) == [0]


def test_holm_goes_from_the_smallest_p_on_and_stops_at_the_first_that_fails():
    assert decided([0.03, 0.01, 0.02], "holm", 3) == [-1, -1, -1]
    assert decided([0.03, 0.02, 0.04], "holm", 3) == [0, 0, 0]
    assert decided([0.03, 0.01, None], "holm", 3) == [0, -1, 0]  # the missing one may still turn out significant
    levels = [one.level for one in decide([Tested(0.06, p, 1) for p in (0.03, 0.01, None)], "holm", 3)]
    assert levels == pytest.approx([0.03, 0.02, 0.03])


@given(
    st.lists(st.none() | st.floats(0.0, 1.0), min_size=1, max_size=6), st.sampled_from(["none", "bonferroni", "holm"])
)
def test_a_test_is_decided_exactly_where_its_p_is_below_its_level(ps, correction):
    found = decide([Tested(0.05, p, -1) for p in ps], correction, len(ps))
    assert [bool(one.decided) for one in found] == [
        p is not None and p < one.level for p, one in zip(ps, found, strict=True)
    ]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.integers(0, 3))
def test_holm_decides_what_bonferroni_does_and_perhaps_more(ps, missing):
    bonferroni, holm, none = (decided(ps, name, len(ps) + missing) for name in ("bonferroni", "holm", "none"))
    assert all(abs(a) <= abs(b) <= abs(c) for a, b, c in zip(bonferroni, holm, none, strict=True))


def test_a_joint_claim_is_one_test_with_the_largest_p_of_its_parts():
    joint = ("safer and no worse", "easy")
    parts = [Tested(0.05, 0.001, -1, joint), Tested(0.05, 0.03, 1, joint)]
    assert [one.decided for one in decide(parts, "none", 1)] == [-1, 1]
    assert [one.decided for one in decide([*parts, Tested(0.05, 0.5, 1)], "bonferroni", 2)] == [0, 0, 0]
    failed = decide([parts[0], Tested(0.05, 0.06, 1, joint)], "none", 1)
    assert [(one.decided, one.joint_holds, one.joint_p) for one in failed] == [(0, False, 0.06)] * 2
    looked = [Tested(0.05, 0.001, -1, joint), Tested(0.003, 0.004, 1, joint)]  # each look has a level of its own
    assert [one.decided for one in decide(looked, "none", 1)] == [0, 0]
    untested = decide([parts[0], Tested(0.05, None, 1, joint)], "none", 1)
    assert [(one.decided, one.joint_p) for one in untested] == [(0, None)] * 2


def test_the_order_of_the_parts_of_a_joint_claim_does_not_matter():
    one_sided, two_sided = Tested(0.0056, 0.001, -1, ("both",)), Tested(0.0031, 0.004, 1, ("both",))
    for parts in ([one_sided, two_sided], [two_sided, one_sided]):  # at a look their levels differ
        assert [(one.joint_holds, one.level) for one in decide(parts, "none", 1)] == [(False, 0.0031)] * 2


def test_the_number_of_tests_is_that_of_the_claims_as_stated():
    planned = [(env, arm) for env in ("easy", "hard") for arm in ("a", "b")] + [("easy", "c")]
    claims = Claims(
        (
            Claim("a", "b"),  # on both environments
            Claim("a", "c"),  # on one
            Claim("a", "b", env="hard", outcome="violation"),
            Claim("a", "b", test="none"),
            Claim("a", "b", test="bootstrap"),
            Claim("a", "b", env="easy", sides="less", joint="both"),
            Claim("a", "b", env="easy", kind="equivalence", margin="2 cost", joint="both"),
        ),
        contrasts=(ContrastClaim("gate by bonus"),),
    )
    assert count_tests(claims, planned) == 2 + 1 + 1 + 1 + 1
