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
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tables, message):
    with pytest.raises(InputError, match=r"study\.yaml: tables") as caught:
        check_entries(tables, [], "study.yaml")
    assert message in str(caught.value)
