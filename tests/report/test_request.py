"""What a study may ask a report for."""

import pytest

from vlmsafe.errors import InputError
from vlmsafe.report.kinds import TABLES
from vlmsafe.report.request import Entry, check_entries, read_entries


def test_an_entry_is_a_kind_or_a_mapping_with_options():
    entries = read_entries(
        ["summary", {"kind": "sweep", "label": "tab:x", "over": "budget", "window": "last-5"}], TABLES, "tables"
    )
    assert entries == [Entry("summary"), Entry("sweep", "tab:x", over=("budget",), window="last-5")]


def test_pools_windows_and_episodes_are_options_of_the_kinds_that_have_them():
    entries = read_entries(
        [
            {"kind": "rates", "pool": {"both": ["one", "other"]}},
            {"kind": "by-environment", "windows": {"one": {"speeding": "last-10"}}},
            {"kind": "lead-time", "episodes": "all", "resamples": 2000},
            {"kind": "gate", "episodes": 90},
        ],
        TABLES,
        "tables",
    )
    assert entries == [
        Entry("rates", pool={"both": ("one", "other")}),
        Entry("by-environment", windows={("one", "speeding"): "last-10"}),
        Entry("lead-time", episodes="all", resamples=2000),
        Entry("gate", episodes=90),
    ]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["sumary"], "tables, entry 1: unknown kind 'sumary'; did you mean 'summary'"),
        ([{"label": "tab:x"}], "expected a kind, or a mapping with 'kind'"),
        ([{"kind": "summary", "colour": "red"}], "unknown option 'colour'"),
        ([{"kind": "summary", "window": "last"}], "unknown window 'last'"),
        ([{"kind": "summary", "outcome": "reward"}], "unknown outcome 'reward'"),
        ([{"kind": "summary", "arms": 3}], "'arms' is 3; expected a list of names"),
        ([{"kind": "summary", "title": 3}], "'title' is 3; expected text"),
        ([{"kind": "summary", "asked": "no"}], "unknown option 'asked'"),
        ([{"kind": "sweep", "over": ["a", "b", "c"]}], "one or two settings; got 3"),
        ("summary", "expected a list of kinds"),
        ([{"kind": "summary", "pool": {}}], "'summary' has no option 'pool'; these have it: rates, per-seed"),
        ([{"kind": "rates", "pool": {"both": ["one"]}}], "expected a list of two or more arms under the name"),
        ([{"kind": "rates", "pool": ["one", "other"]}], "expected a list of two or more arms under the name"),
        ([{"kind": "rates", "pool": {"a": ["x", "y"], "b": ["y", "z"]}}], "'pool' names the arm 'y' twice"),
        ([{"kind": "by-environment", "windows": {"x": "last-10"}}], "expected a window by environment under the name"),
        ([{"kind": "by-environment", "windows": {"x": {"y": "last-20"}}}], "unknown window 'last-20'"),
        ([{"kind": "lead-time", "episodes": 0}], "'episodes' is 0; expected a whole number above 0 or 'all'"),
        ([{"kind": "lead-time", "resamples": "all"}], "'resamples' is 'all'; expected a whole number above 0"),
        ([{"kind": "gate", "resamples": 9}], "'gate' has no option 'resamples'; these have it: lead-time,"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tables, message):
    with pytest.raises(InputError, match=r"study\.yaml: tables") as caught:
        check_entries(tables, [], "study.yaml")
    assert message in str(caught.value)
