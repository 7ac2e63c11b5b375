"""Of a trace, the scorer and the episodes that were asked for are used."""

import polars as pl
import pytest
from traces import two_arms

from vlmsafe.errors import InputError
from vlmsafe.report.traces import chosen_scorer, first_episodes, of_scorer

SIGNALS = ("positive", "negative", "margin")


@pytest.fixture
def table():
    return two_arms(contact=0.2).filter(arm="plain", run="seed-0").drop("arm", "run")


def named(table, scorer):
    return table.rename({name: f"{scorer}_{name}" for name in SIGNALS})


def test_scorer_is_the_only_one_or_the_one_that_was_named(table):
    assert chosen_scorer(table.columns, None) == ""
    clip = named(table, "clip").columns
    assert chosen_scorer(clip, None) == chosen_scorer(clip, "clip") == "clip"
    with pytest.raises(InputError, match="several scorers; choose one with --scorer: clip, oracle"):
        chosen_scorer([*clip, "oracle_negative"], None)
    with pytest.raises(InputError, match="no scorer 'rnd'; it has: clip, oracle"):
        chosen_scorer([*clip, "oracle_negative"], "rnd")
    assert chosen_scorer(["cost"], None) == "", "the analysis then says that there is none"


def test_columns_of_one_scorer_get_plain_names(table):
    both = named(table, "clip").with_columns(
        table["negative"].alias("oracle_positive"),
        table["positive"].alias("oracle_negative"),
        (-table["margin"]).alias("oracle_margin"),
        pl.lit(0.5).alias("oracle_kappa"),
    )
    first, second = of_scorer(both, None), of_scorer(both, "oracle")
    assert first.select(SIGNALS).equals(table.select(SIGNALS))
    assert second["positive"].equals(table["negative"], check_names=False)
    assert second["kappa"].unique().to_list() == [0.5]
    assert "kappa" not in first.columns
    assert of_scorer(both, "rnd") is None
    assert of_scorer(both.drop("clip_margin"), None) is None


def test_of_many_episodes_every_run_gives_as_many(table):
    kept = first_episodes({"a": table, "b": table}, most=4)
    assert [own["episode"].unique().sort().to_list() for own in kept.values()] == [[0, 1], [0, 1]]
    assert first_episodes({"a": table, "b": table}, most=1)["b"]["episode"].n_unique() == 1
