"""When a claim may be decided: with all planned seeds, or at the looks that the study says, at their levels."""

import pytest

from vlmsafe.analysis.sequential import levels
from vlmsafe.comparison.looks import ONE_LOOK, Looks, look_state, looks_of
from vlmsafe.errors import InputError

TEN = tuple(range(40, 50))
TWO = Looks((0.5, 1.0))


def state(first, second, looks=ONE_LOOK, planned=(TEN, TEN), **options):
    return look_state(planned, (first, second), looks, **{"alpha": 0.05, **options})


def test_without_looks_nothing_is_decided_before_all_planned_seeds_are_there():
    for there in (0, 3, 9):
        found = state(TEN, TEN[:there])
        assert (found.text, found.level) == (f"no verdict yet: {there} of 10 planned seeds", None)
        assert not found.final
    found = state(TEN, TEN)
    assert (found.text, found.level, found.final, found.seeds) == ("final", 0.05, True, (TEN, TEN))


def test_an_interim_look_has_its_own_level_and_counts_its_own_seeds():
    early, late = levels([0.5, 1.0], 0.05)
    assert state(TEN, TEN[:4], TWO).text == "no verdict yet: 4 of 10 planned seeds; the first look is at 5"
    for there in (5, 6, 9):  # what is there beyond the look does not count, so reading again is not another look
        found = state(TEN, TEN[:there], TWO)
        assert found.text == "interim look 1 of 2 at level 0.0031"
        assert (found.level, found.seeds, found.number) == (pytest.approx(early), (TEN[:5], TEN[:5]), 1)
    found = state(TEN, TEN, TWO)
    assert (found.text, found.level, found.final) == ("final look 2 of 2 at level 0.049", pytest.approx(late), True)


def test_a_one_sided_claim_has_one_sided_levels():
    one_sided = levels([0.5, 1.0], 0.05, two_sided=False, spending="pocock")
    looks = Looks((0.5, 1.0), "pocock")
    assert state(TEN, TEN, looks, sides="less").level == pytest.approx(one_sided[1])
    assert state(TEN[:5], TEN[:5], looks, sides="greater").level == pytest.approx(one_sided[0])


def test_a_look_needs_the_first_planned_seeds_and_not_any_five():
    assert state(TEN, TEN[5:], TWO).level is None
    assert state(TEN, (*TEN[:4], 99), TWO).level is None
    assert state(TEN, (*TEN, 99)).seeds == (TEN, TEN)


def test_looks_that_few_seeds_make_equal_are_one():
    found = state((1, 2), (1, 2), Looks((0.6, 1.0)), planned=((1, 2), (1, 2)))
    assert (found.text, found.level) == ("final", 0.05)


def test_arms_of_unequal_size_and_claims_about_more_than_two_arms_have_their_information():
    planned = (TEN, TEN[:4])
    found = look_state(planned, planned, TWO, alpha=0.05)
    share = (1 / 10 + 1 / 4) / (1 / 5 + 1 / 2)
    assert found.level == pytest.approx(levels([share, 1.0], 0.05)[1])
    four = look_state([TEN] * 4, [TEN, TEN, TEN, TEN[:7]], alpha=0.05)
    assert four.text == "no verdict yet: 7 of 10 planned seeds"


def test_an_arm_that_was_never_planned_is_refused():
    with pytest.raises(InputError, match="planned seeds for each of 2 arms"):
        state(TEN, (), planned=(TEN, ()))


def test_the_entry_of_a_study_file_is_read():
    assert looks_of({}) == ONE_LOOK
    assert looks_of({"at": [0.5, 1], "spending": "pocock"}) == Looks((0.5, 1.0), "pocock")
    assert "2 looks, at the shares 0.5, 1 " in str(TWO)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([0.5, 1.0], "expected a mapping such as {at:"),
        ({"at": [0.5, 1.0], "when": 3}, "unknown entry of 'looks' 'when'"),
        ({"at": 0.5}, "'at' of 'looks' is 0.5; expected a list of shares"),
        ({"at": "0.5"}, "expected a list of shares"),
        ({"at": [True, 1.0]}, "expected a list of shares"),
        ({"at": []}, "rise and end at 1"),
        ({"at": [0.5]}, "rise and end at 1"),
        ({"at": [0.7, 0.5, 1.0]}, "rise and end at 1"),
        ({"at": [0.5, 1.0], "spending": "obrien"}, "unknown spending function 'obrien'; did you mean"),
    ],
)
def test_looks_that_cannot_be_used_are_one_line(entry, message):
    with pytest.raises(InputError) as caught:
        looks_of(entry)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
