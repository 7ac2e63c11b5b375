"""The paper's tables on the command line, and runs beside them."""

import json
from dataclasses import replace

import polars as pl
import pytest

from vlmsafe.cli import main
from vlmsafe.errors import EXIT_BAD_INPUT
from vlmsafe.paper.published import left_out, misstatements, published, table, tables
from vlmsafe.paper.side_by_side import SCHEMA
from vlmsafe.paper.values import paper_config
from vlmsafe.runs.run import Run


@pytest.fixture
def runs(tmp_path):
    """PPO on FormulaOne-L2 with the published final costs of two of its seeds, and a run of another environment."""
    folder = tmp_path / "runs"
    for env, seed, cost in (("formula-one-l2", 42, 286.67), ("formula-one-l2", 123, 240.09), ("speeding", 1, 5.0)):
        config = (
            paper_config(env, "ppo") if env != "speeding" else replace(paper_config("metadrive-easy", "ppo"), env=env)
        )
        path = folder / env / "ppo" / f"seed-{seed}"
        path.mkdir(parents=True)
        run = Run.create(replace(config, seed=seed, run_dir=path).resolved())
        row = {"episode_cost": cost, "env_return": 1.0, "bonus": None, "shaped_return": None}
        run.append("epochs", [{"epoch": epoch, **row} for epoch in range(1, 51)])
    return folder


def shown(capsys, *arguments):
    main(["published", *map(str, arguments)])
    return capsys.readouterr().out


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["published", *map(str, arguments)])
    assert caught.value.code == EXIT_BAD_INPUT
    return capsys.readouterr().err


def test_every_table_is_listed_with_its_label_and_rows_and_so_is_what_is_not_there(capsys):
    text = shown(capsys)
    lines = [line.split() for line in text.splitlines()]
    for entry in tables():
        assert any(line[:3] == [entry.name, entry.label, str(published(entry.name).height)] for line in lines)
    for label in left_out():
        assert f"Not here: {label}" in text
    assert all(found.says in text for found in misstatements())


@pytest.mark.parametrize("name", [entry.name for entry in tables()])
def test_a_table_is_shown_with_label_units_and_every_cell_as_printed(capsys, name):
    text = shown(capsys, "show", name)
    assert f"{name} ({table(name).label})" in text
    assert "…" not in text
    for column, about in table(name).columns.items():
        assert f"{column} [{about.unit}]" in text
    lines = text.splitlines()
    for row in published(name, printed=True).drop("note", strict=False).iter_rows():
        cells = [cell for cell in row if cell is not None]
        assert any(all(cell in line for cell in cells) for line in lines), row
    if "note" in table(name).columns:
        noted = published(name, printed=True).drop_nulls("note")
        assert [line for line in lines if line.startswith("* ")] == [f"* {r[0]}: {r[-1]}" for r in noted.iter_rows()]
        assert text.count(" * ") == noted.height
        assert "note" not in text.partition("───")[0].split()


def test_runs_are_printed_beside_the_paper_with_every_difference_once(capsys, runs):
    text = shown(capsys, "compare", runs)
    assert text.count("a world after Safety-Gymnasium's: its circuit, layouts and car") == 1
    assert text.count("seeds 42, 123 (paper: 42, 123, 456)") == 1
    assert "263.38 ± 23.29" in text
    assert "269.17 ± 20.70" in text
    assert "-5.79" in text
    assert "tab:full-results" in text
    assert "seed-42" not in text
    assert "speeding, ppo; in the paper: PPO, without a value for these results" in text
    assert "0 of 9 published values were obtained" in text


def test_single_runs_are_printed_when_asked(capsys, runs):
    text = shown(capsys, "compare", runs, "--runs")
    line = next(line for line in text.splitlines() if "seed-123" in line and " cost " in line)
    assert line.count("240.09") == 2
    assert "+0.00" in line


def test_both_files_hold_every_row(capsys, runs, tmp_path):
    shown(capsys, "compare", runs, "--out", tmp_path / "new" / "beside.csv")
    shown(capsys, "compare", runs, "--out", tmp_path / "beside.json")
    rows = json.loads((tmp_path / "beside.json").read_text())
    csv = pl.read_csv(tmp_path / "new" / "beside.csv")
    assert csv.columns == list(SCHEMA) == list(rows[0])
    assert csv.height == len(rows) == 9 * (2 + 1 + 2)
    assert csv["ours"].to_list() == pytest.approx([row["ours"] for row in rows])
    mean = next(row for row in rows if row["run"] is None and row["quantity"] == "cost")
    assert len(mean["differences"]) == 2
    assert csv.filter(pl.col("run").is_null(), quantity="cost")["differences"][0] == "; ".join(mean["differences"])


def test_runs_that_cannot_be_read_are_said_and_the_others_compared(capsys, runs):
    broken = runs / "broken" / "config.yaml"
    broken.parent.mkdir()
    broken.write_text("env: nowhere\n")
    main(["published", "compare", str(runs)])
    captured = capsys.readouterr()
    assert f"note: {broken.parent}" in captured.err
    assert "tab:full-results" in captured.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "md-perse"], "did you mean 'md-perseed'?"),
        (["show"], "takes one name, got 0"),
        (["list", "md-perseed"], "did you mean: published show?"),
        (["compare"], "needs a run directory, or a folder with runs"),
        (["compare", "nowhere"], "there is no nowhere"),
        (["compare", "nowhere", "--out", "beside.txt"], "ends in .csv or .json"),
        (["show", "md-perseed", "--out", "beside.csv"], "belong to: vlmsafe published compare"),
    ],
)
def test_bad_requests_get_one_line(capsys, arguments, said):
    text = refused(capsys, *arguments)
    assert said in text
    assert len(text.splitlines()) == 1


def test_runs_without_a_result_are_refused(capsys, tmp_path):
    Run.create(replace(paper_config("metadrive-easy", "ppo-lag"), run_dir=tmp_path).resolved())
    assert "none of these runs has a result yet" in refused(capsys, "compare", tmp_path)
