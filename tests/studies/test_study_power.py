"""What a study's claims can detect, from pilot runs and from published tables."""

from pathlib import Path

import numpy as np
import pytest
from report_runs import costs_with, write_evaluation, write_run

from vlmsafe.cli import main
from vlmsafe.errors import EXIT_BAD_INPUT, InputError
from vlmsafe.paper.published import published
from vlmsafe.studies.power import study_power
from vlmsafe.studies.schema import load_study, parse_study

STUDY = """\
name: mine
question: Does the signal lower the cost?
environments: [{env}]
seeds: [1, 2, 3, 4, 5]
total_steps: 40000
arms:
  base: {{method: ppo-lag}}
  signal: {{method: vlm-ppo-lag-conf}}
protocols: [held-out]
comparisons:
  - {{first: signal, second: base, {claim}}}
"""


def study(env="metadrive-easy", claim="outcome: catastrophe, test: welch"):
    return parse_study(STUDY.format(env=env, claim=claim), "mine.yaml")


def powers(definition, tmp_path, **options):
    return study_power(definition, definition.expand(tmp_path), **options)


def pilot(folder, arms=("base", "signal"), env="metadrive-easy", evaluated=True):
    """Three runs of each arm, with 2, 4 and 6 catastrophes in 20 episodes."""
    for arm in arms:
        for place, seed in enumerate((1, 2, 3)):
            run = write_run(folder, "ppo-lag", seed, arm=arm, env=env)
            if evaluated:
                write_evaluation(run, costs_with(2 + 2 * place))
    return folder


def test_a_pilot_gives_the_deviations_of_its_arms(tmp_path):
    (row,) = powers(study(), tmp_path, pilot=pilot(tmp_path / "pilot")).rows
    assert [one.value for one in row.spread.deviations] == [pytest.approx(0.1)] * 2
    assert "sd 10.0 pp and 10.0 pp from 3 and 3 pilot runs" in str(row)


def test_a_pilot_that_looked_at_other_scenarios_gives_deviations_too(tmp_path):
    folder = pilot(tmp_path / "pilot")
    for table in folder.rglob("held-out.parquet"):
        table.rename(table.with_name("selection.parquet"))
    (row,) = powers(study(), tmp_path, pilot=folder).rows
    assert "sd 10.0 pp and 10.0 pp from 3 and 3 pilot runs (selection)" in str(row)


def test_a_plan_says_that_its_power_leaves_out_interim_looks(tmp_path):
    looking = parse_study(f"{STUDY.format(env='metadrive-easy', claim='test: welch')}looks: {{at: [0.5, 1.0]}}\n", "a")
    line = "the power is that of one test with all seeds; interim looks lower it a little"
    assert line in powers(looking, tmp_path).notes
    assert line not in powers(study(), tmp_path).notes


def test_a_pilot_with_other_arms_gives_their_pooled_deviation(tmp_path):
    (row,) = powers(study(), tmp_path, pilot=pilot(tmp_path / "pilot", ("base", "other"))).rows
    assert "sd 10.0 pp of 'signal' from 6 pilot runs of 2 arms, pooled, sd 10.0 pp of 'base' from 3 pilot runs" in str(
        row
    )


def test_a_pilot_without_the_outcome_leaves_the_published_tables_and_says_so(tmp_path):
    found = powers(study(), tmp_path, pilot=pilot(tmp_path / "pilot", evaluated=False))
    assert "runs of the paper" in str(found.rows[0])
    assert "the pilot runs on metadrive-easy tell nothing about catastrophe from held-out" in found.notes[0]


def test_published_runs_give_sample_deviations(tmp_path):
    (row,) = powers(study(), tmp_path).rows
    table = published("md-perseed").filter(kind="seed", environment="metadrive-easy")
    for deviation, method in zip(row.spread.deviations, ("vlm-ppo-lag-conf", "ppo-lag"), strict=True):
        printed = table.filter(arm=method)["catastrophe_pct"].to_numpy() / 100.0
        assert deviation.value == pytest.approx(np.std(printed, ddof=1))
        assert (deviation.runs, deviation.pooled) == (3, 0)


def test_printed_deviations_are_made_sample_deviations(tmp_path):
    text = "outcome: cost, source: training, window: final, test: welch"
    (row,) = powers(study("metadrive-hard", text), tmp_path).rows
    printed = [21.3, 18.5]  # population deviations over 10 runs, in the running text
    assert [one.value for one in row.spread.deviations] == [pytest.approx(one * (10 / 9) ** 0.5) for one in printed]


def test_pairs_come_from_the_published_seeds(tmp_path):
    (row,) = powers(study(claim="outcome: cost, test: paired-t"), tmp_path).rows
    table = published("md-perseed").filter(kind="seed", environment="metadrive-easy")
    first, second = (table.filter(arm=arm).sort("seed")["cost"].to_numpy() for arm in ("vlm-ppo-lag-conf", "ppo-lag"))
    assert [one.value for one in row.spread.deviations] == [pytest.approx(np.std(first - second, ddof=1))]


def test_two_arms_of_one_published_method_are_no_pairs(tmp_path):
    text = STUDY.format(env="metadrive-easy", claim="outcome: cost, test: paired-t")
    same = parse_study(text.replace("method: ppo-lag}", "method: vlm-ppo-lag-conf}"), "mine.yaml")
    (row,) = powers(same, tmp_path).rows
    assert len(row.spread.deviations) == 2
    assert "pairs taken as independent" in str(row)


def test_an_environment_that_nobody_published_has_no_variance(tmp_path):
    found = powers(study("speeding", "outcome: cost"), tmp_path)
    assert found.rows[0].spread is None
    assert "--pilot" in found.notes[-1]


def test_longer_published_runs_stand_for_longer_runs(tmp_path):
    definition = load_study("generalisation")
    rows = {row.planned.claim.first: row for row in powers(definition, tmp_path).rows if "bullet" in row.planned.env}
    table = published("bullet-perseed").filter(kind="seed", arm="vlm-ppo-lag-conf")
    for name, steps in (("vlm-ppo-lag-conf", 1_000_000), ("vlm-ppo-lag-conf-2m", 2_000_000)):
        printed = table.filter(training_steps=steps)["catastrophe_pct"].to_numpy() / 100.0
        assert rows[name].spread.deviations[0].value == pytest.approx(np.std(printed, ddof=1))


@pytest.mark.parametrize("name", ["main-results", "controls", "factorial", "density-by-map"])
def test_the_power_of_shipped_studies_can_be_planned(name, tmp_path):
    definition = load_study(name)
    assert all(str(row).endswith(".") for row in powers(definition, tmp_path, difference=0.1).rows)


def test_the_documentation_shows_what_is_printed(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "power.md").read_text()
    rows = powers(load_study("prompt-templates"), tmp_path, difference=0.1).rows[:2]
    assert "study plan prompt-templates --difference 0.1" in page
    for row in rows:
        assert f"power: {row}\n" in page


def test_a_study_without_claims_has_no_power_to_plan(tmp_path):
    definition = parse_study(STUDY.format(env="speeding", claim="").partition("comparisons")[0], "mine.yaml")
    assert powers(definition, tmp_path).rows == ()
    with pytest.raises(InputError, match="claims no test"):
        powers(definition, tmp_path, difference=1.0)


# -- as a user types it --------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = STUDY.format(env="speeding", claim="outcome: cost, source: training, window: last-5, test: welch")
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "rates.yaml").write_text(STUDY.format(env="speeding", claim="outcome: violation"))
    return tmp_path


def refused(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main(["study", "plan", *map(str, words)])
    assert caught.value.code == EXIT_BAD_INPUT
    shown = capsys.readouterr()
    assert not shown.out
    assert len(shown.err.strip().splitlines()) == 1
    return shown.err


def test_plan_takes_the_claims_that_somebody_wrote_into_the_folder(capsys, here):
    (here / "runs" / "mine").mkdir(parents=True)
    own = "comparisons: [{first: signal, second: base, outcome: env_return, test: paired-t}]\n"
    (here / "runs" / "mine" / "claims.yaml").write_text(own)
    main(["study", "plan", "mine.yaml"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("power: ")]
    assert line.startswith("power: speeding, environment return of 'signal' against 'base': ")


def test_plan_prints_the_power_of_each_claim(capsys, here):
    pilot(here / "pilot", env="speeding", evaluated=False)
    main(["study", "plan", "mine.yaml", "--pilot", "pilot", "--difference", "3", "--power", "0.9"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("power: ")]
    assert line.startswith("power: speeding, cost of 'signal' against 'base': with 5 seeds per arm, a difference of ")
    assert "with 90 % power (Welch's t-test, two-sided, level 0.05; sd " in line
    assert "from 3 and 3 pilot runs); a difference of 3 needs " in line


def test_bad_requests_get_one_line_before_anything_is_printed(capsys, here):
    assert "the difference is -1; expected a number above 0" in refused(capsys, "mine.yaml", "--difference", "-1")
    assert "the wanted power is 80; it must lie between 0 and 1" in refused(capsys, "mine.yaml", "--power", "80")
    assert "all claims are about rates" in refused(capsys, "rates.yaml", "--difference", "5")
    assert "there is no nowhere" in refused(capsys, "mine.yaml", "--pilot", "nowhere")
    pilot(here / "pilot", ("base",))
    message = refused(capsys, "mine.yaml", "--pilot", "pilot")
    assert "the pilot folder pilot has no runs of speeding; it has runs of metadrive-easy" in message
