"""A table in a terminal has every value, whatever the width."""

import io

import pytest
from rich.console import Console

from vlmsafe.report.elements import Cell, Column, Table
from vlmsafe.report.render.terminal import rendered

COLUMNS = [Column("arm", "arm"), Column("run", "run"), *(Column(f"v{i}", f"value number {i}", 2) for i in range(12))]


def table(fold=False):
    rows = [
        [Cell(arm), Cell(run), *(Cell(10.0 * place + i) for i in range(12))]
        for place, (arm, run) in enumerate(
            [("plain", "all"), ("plain", "seed-1"), ("[shaped]", "all"), ("[shaped]", "x")]
        )
    ]
    rows[0][2] = Cell()
    rows[1][3] = Cell(0.5, low=0.25, high=0.75, published=0.6, mark="†")
    return Table(
        "t", "A table", COLUMNS, rows, "What it says.", strong=frozenset({0, 2}), notes=["† a note"], fold=fold
    )


def printed(shown, width):
    console = Console(width=width, file=io.StringIO())
    for part in rendered(shown, width):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_every_value_is_shown_within_the_width(width):
    text = printed(table(), width)
    assert max(map(len, text.splitlines())) <= width
    for place in range(4):
        for i in range(2, 12):
            assert f" {10 * place + i}.00 " in text
    assert "0.50 [0.25, 0.75] (paper 0.60†)" in text
    assert "A table" in text
    assert "What it says." in text
    assert "† a note" in text


def test_narrow_terminals_repeat_the_names_of_rows_in_every_block():
    wide, narrow = printed(table(), 400), printed(table(), 80)
    assert wide.count("seed-1") == 1
    assert narrow.count("seed-1") == narrow.count("[shaped]") > 1


def test_names_stand_over_their_rows_and_undefined_numbers_are_dashes():
    lines = printed(table(), 400).splitlines()
    (heading,) = (place for place, line in enumerate(lines) if line.split() == ["plain"])
    assert lines[heading + 1].split()[:2] == ["all", "-"]
    assert not any("None" in line for line in lines)


def test_a_folded_table_is_only_named():
    assert printed(table(fold=True), 120).strip() == "A table: 4 rows, not shown here"
