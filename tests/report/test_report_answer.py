"""The answer says what the test decides, and no more."""

import pytest
from report_runs import PLAIN, SIGNAL, costs_with, write_evaluation, write_run, write_study

from vlmsafe.audit.findings import EVERYTHING, Audit, Subject, finding
from vlmsafe.comparison.claims import Claim, Claims
from vlmsafe.comparison.looks import Looks
from vlmsafe.report.answer import answer_lines, audit_line, describe_arms, headline, sentence
from vlmsafe.report.dataset import read_dataset
from vlmsafe.report.render import html
from vlmsafe.report.request import StudyInfo
from vlmsafe.report.results import results

ENV = "metadrive-easy"


def worked_out(folder, **claim):
    claims = Claims((Claim(SIGNAL, PLAIN, outcome="catastrophe", source="held-out", **claim),))
    dataset = read_dataset([folder], StudyInfo("study", claims=claims))
    return dataset, results(dataset)


def pair(folder, first, second):
    """Runs of both arms with so many catastrophes in 20 episodes each."""
    for method, counts in ((SIGNAL, first), (PLAIN, second)):
        for seed, many in enumerate(counts):
            write_evaluation(write_run(folder, method, seed), costs_with(many))
    return folder


def test_a_decided_comparison_names_both_rates_the_interval_and_the_p(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12]), sides="less")
    text = sentence(one)
    assert (
        "catastrophe rate 10.0 % with 'vlm-ppo-lag-conf' and 52.5 % with 'ppo-lag' (4 runs each, evaluation held-out)"
        in text
    )
    # A one-sided claim at 5 % has a 90 % interval, which excludes zero exactly where the test is significant.
    assert "difference \N{MINUS SIGN}42.5 pp, 90 % interval \N{MINUS SIGN}" in text
    assert text.endswith(
        f"The difference is significant: '{SIGNAL}' is lower (exact permutation test, one-sided, lower, p = 1/70)."
    )
    assert "lower on metadrive-easy" in headline([one])


def test_the_answer_says_how_many_comparisons_only_the_table_has(tmp_path, monkeypatch):
    dataset, found = worked_out(pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12]))
    assert html._answer(dataset, found)["further"] == ""
    monkeypatch.setattr(html, "_SHOWN_RESULTS", 0)
    assert html._answer(dataset, found)["further"] == "1 further comparison"


def test_too_few_runs_are_not_read_as_no_difference(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [1, 2], [9, 10]), sides="less")
    text = sentence(one)
    assert "The difference is not significant" in text
    assert "This many runs cannot show it: the smallest p that they can give is 0.17." in text
    assert "no significant difference on metadrive-easy" in headline([one])


def test_an_undecided_comparison_of_enough_runs_does_not_blame_their_number(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [5, 9, 7, 8], [6, 8, 9, 7]))
    assert one.decided == 0
    assert "The difference is not significant" in sentence(one)
    assert "cannot show it" not in sentence(one)


def test_without_a_test_nothing_is_decided_however_large_the_difference(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [0, 0, 0, 0], [20, 20, 20, 20]), test="none")
    assert one.decided == 0
    assert sentence(one).endswith("No test is claimed, so this only describes these runs.")
    assert "not tested on metadrive-easy" in headline([one])


def test_two_runs_each_have_no_interval(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [1, 1], [9, 9]), test="bootstrap")
    assert (one.interval, one.verdict, one.decided) == (None, None, 0)


def test_a_study_that_states_no_comparison_is_not_answered_by_a_supposed_one(tmp_path):
    pair(tmp_path, [1, 2, 3], [9, 10, 11])
    for definition, compared in (("name: x", False), ("", True)):
        dataset = read_dataset([tmp_path], StudyInfo("x", "How long does it take?", definition=definition))
        lines = answer_lines(dataset, results(dataset), 4)
        assert lines[0].startswith("Cost of " if compared else f"metadrive-easy, '{PLAIN}': cost")


def test_claims_of_one_pair_from_several_sources_do_not_share_a_headline(tmp_path):
    pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12])
    one = Claim(SIGNAL, PLAIN, outcome="catastrophe", source="held-out")
    other = Claim(SIGNAL, PLAIN, outcome="catastrophe", source="held-out", test="none")
    dataset = read_dataset([tmp_path], StudyInfo("study", claims=Claims((one, other))))
    assert f"'{PLAIN}': lower on metadrive-easy." in headline(results(dataset))


def test_one_run_each_is_not_tested(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [0], [20]))
    assert "(one run each, evaluation held-out)" in sentence(one)
    assert "Not tested" in sentence(one)
    assert one.interval is None


def test_a_one_sided_claim_the_other_way_round_is_not_decided(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [9, 10, 11, 12], [1, 2, 3, 2]), sides="less")
    assert one.decided == 0


@pytest.mark.parametrize(
    ("correction", "alphas", "decided"),
    [
        ("none", (0.05, 0.015), [-1, -1]),
        ("bonferroni", (0.05, 0.015), [-1, 0]),  # 2/252 is below 0.05 / 2 and above 0.015 / 2
        ("holm", (0.05, 0.015), [-1, -1]),  # the second of two has its level to itself
        ("holm", (0.015, 0.05), [0, 0]),  # after one that fails none is decided
    ],
)
def test_a_correction_that_is_claimed_is_applied(tmp_path, correction, alphas, decided):
    pair(tmp_path, [1, 2, 3, 2, 4], [9, 10, 11, 4, 12])
    common = {"outcome": "catastrophe", "source": "held-out", "sides": "less"}
    claims = Claims(tuple(Claim(SIGNAL, PLAIN, alpha=alpha, **common) for alpha in alphas), correction)
    found = results(read_dataset([tmp_path], StudyInfo("study", claims=claims)))
    assert all("p = 2/252" in sentence(one) for one in found)
    assert [one.decided for one in found] == decided
    assert all(("correction for 2 tests" in sentence(one)) == (correction != "none") for one in found)


def test_a_percentile_interval_is_shown_as_published_and_decides_nothing(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [0, 1, 0, 1], [15, 17, 18, 17]), test="bootstrap")
    assert one.interval.method == "percentile bootstrap"
    assert one.interval.excludes_zero
    assert (one.decided, one.decision) == (0, None)
    assert "95 % percentile interval" in sentence(one)
    assert sentence(one).endswith("It is too narrow for few runs, so it decides nothing.")
    assert "not tested on metadrive-easy" in headline([one])


def test_three_runs_each_get_a_t_interval_because_their_test_bounds_nothing(tmp_path):
    _, (one,) = worked_out(pair(tmp_path, [1, 2, 3], [9, 10, 11]))
    assert one.interval.method == "t"
    assert "95 % t interval" in sentence(one)


def test_tests_whose_runs_are_not_there_yet_are_corrected_for(tmp_path):
    pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12])  # p = 1/70, below 0.05 and above a fourth of it
    common = {"outcome": "catastrophe", "source": "held-out", "sides": "less"}
    missing = [Claim(SIGNAL, f"later-{number}", **common) for number in range(3)]
    claims = Claims((Claim(SIGNAL, PLAIN, **common), *missing), "holm")
    dataset = read_dataset([tmp_path], StudyInfo("study", claims=claims))
    (one,) = results(dataset)
    assert (dataset.tests, one.level, one.decided) == (1, 0.05, -1)  # arms that no study plans are not counted
    planned = [tmp_path / ENV / arm / "seed-1" for arm in (SIGNAL, PLAIN, "later-0", "later-1", "later-2")]
    dataset = read_dataset([tmp_path], StudyInfo("study", claims=claims, studies={tmp_path / "none": planned}))
    assert dataset.tests == 4


def test_the_audit_and_the_answer_judge_at_the_same_level(tmp_path):
    pair(tmp_path, [1, 2, 3, 2, 1], [9, 10, 11, 12, 9])
    common = {"outcome": "catastrophe", "source": "held-out", "test": "sign-flip"}
    claims = Claims(tuple(Claim(SIGNAL, PLAIN, **common) for _ in range(3)), "holm")
    dataset = read_dataset([tmp_path], StudyInfo("study", claims=claims))
    levels = {one.level for one in results(dataset)}
    found = [one.data["alpha"] for one in dataset.audit.findings if one.code == "too-few-seeds"]
    assert found
    assert set(found) <= levels


def test_a_joint_claim_holds_where_all_its_parts_do(tmp_path):
    pair(tmp_path, [1, 2, 3, 2, 1], [9, 10, 11, 12, 9])
    safer = Claim(SIGNAL, PLAIN, outcome="catastrophe", source="held-out", sides="less", joint="safer, no worse")
    for kind, holds in (("non-inferiority", True), ("equivalence", False)):
        no_worse = Claim(
            SIGNAL, PLAIN, source="held-out", kind=kind, margin="1 cost", test="welch", joint="safer, no worse"
        )  # fmt: skip
        found = results(read_dataset([tmp_path], StudyInfo("study", claims=Claims((safer, no_worse)))))
        assert [one.decision.joint_holds for one in found] == [holds, holds]
        assert [bool(one.decided) for one in found] == [holds, holds]
        state = "holds" if holds else "not shown"
        assert headline(found).startswith(f"'safer, no worse': joint claim {state} on metadrive-easy.")
        assert f"Part of the joint claim 'safer, no worse', which {'holds' if holds else 'is not shown'}" in sentence(
            found[0]
        )


def test_a_claim_without_a_test_is_none_of_those_corrected_for(tmp_path):
    pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12])
    common = {"outcome": "catastrophe", "source": "held-out", "sides": "less"}
    claims = Claims((Claim(SIGNAL, PLAIN, **common), Claim(SIGNAL, PLAIN, **{**common, "test": "none"})), "bonferroni")
    one, other = results(read_dataset([tmp_path], StudyInfo("study", claims=claims)))
    assert (one.level, one.decided) == (0.05, -1)
    assert other.correction == ""


def test_few_runs_are_judged_by_the_corrected_level(tmp_path):
    pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12])  # 1/70 could be below 0.05, but not below a fifth of it
    common = {"outcome": "catastrophe", "source": "held-out", "sides": "less"}
    claims = Claims(tuple(Claim(SIGNAL, PLAIN, **common) for _ in range(5)), "bonferroni")
    one = results(read_dataset([tmp_path], StudyInfo("study", claims=claims)))[0]
    assert one.decided == 0
    assert "This many runs cannot show it" in sentence(one)


def test_a_comparison_has_the_worst_finding_about_itself_and_its_evaluation(tmp_path):
    dataset, (one,) = worked_out(write_study(tmp_path), sides="less")
    assert "paper" in {found.subject.protocol for found in dataset.audit.findings}  # an evaluation that is not used
    assert one.finding is not None
    assert one.finding.subject.protocol in ("", "held-out")
    assert "Worst:" in audit_line(dataset.audit)


@pytest.mark.parametrize(
    ("subject", "counts"),
    [
        (Subject("comparison", ENV, (SIGNAL, PLAIN)), True),
        (Subject("comparison", ENV, (SIGNAL, PLAIN), protocol="held-out"), True),
        (Subject("arm", ENV, (PLAIN,)), True),
        (Subject("run", ENV, (SIGNAL, "other"), (f"{SIGNAL} seed-1", "other seed-1")), True),
        (Subject("comparison", ENV, (PLAIN, SIGNAL)), False),
        (Subject("comparison", "metadrive-hard", (SIGNAL, PLAIN)), False),
        (Subject("arm", ENV, (PLAIN,), protocol="paper"), False),
        (Subject("arm", ENV, ("other",)), False),
        (Subject("environment", ENV, (SIGNAL, PLAIN), protocol="held-out"), False),
        (Subject("run", runs=(f"{SIGNAL}/seed-1",)), False),
        (EVERYTHING, False),
    ],
)
def test_a_finding_counts_for_a_comparison_by_its_fields(tmp_path, subject, counts):
    dataset, _ = worked_out(pair(tmp_path, [1], [9]))
    found = finding("duplicate-runs", subject, ["some evidence"])
    vars(dataset)["audit"] = Audit((found,), (), (), ())  # in place of the one that would be made on demand
    (one,) = results(dataset)
    assert (one.finding is found) == counts


def test_arms_without_a_comparison_are_described(tmp_path):
    write_evaluation(write_run(tmp_path, PLAIN, 1), costs_with(5))
    dataset = read_dataset([tmp_path], StudyInfo("study"))
    assert results(dataset) == []
    (line,) = describe_arms(dataset)
    assert line.startswith("metadrive-easy, 'ppo-lag': cost ")
    assert line.endswith("over the budget of 25.")


def test_an_arm_with_several_budgets_is_described_with_all_of_them(tmp_path):
    for seed, budget in ((1, 5.0), (2, 10.0)):
        write_evaluation(write_run(tmp_path, PLAIN, seed, budget=budget), costs_with(5))
    (line,) = describe_arms(read_dataset([tmp_path], StudyInfo("study")))
    assert line.endswith("with budgets from 5 to 10.")


def test_a_claim_without_runs_waits_and_is_said(tmp_path):
    write_run(tmp_path, PLAIN, 1)
    claims = Claims((Claim(SIGNAL, PLAIN),))
    dataset = read_dataset([tmp_path], StudyInfo("study", claims=claims))
    assert dataset.problems == [f"no runs yet for the comparison '{SIGNAL}' against '{PLAIN}'"]
    assert headline(results(dataset)) == "No comparison has results yet."


@pytest.mark.parametrize("test", ["sign-flip", "paired-t"])
def test_a_paired_claim_is_described_by_the_seeds_that_it_tests(tmp_path, test):
    # The fifth run of the first arm has no partner; seeds move both arms alike.
    _, (one,) = worked_out(pair(tmp_path, [1, 4, 8, 13, 20], [3, 6, 11, 15]), test=test)
    assert list(one.first) == list(one.second) == [0, 1, 2, 3]
    text = sentence(one)
    assert f"32.5 % with '{SIGNAL}' and 43.8 % with '{PLAIN}' (4 matched seeds, evaluation held-out)" in text
    assert one.interval.estimate == pytest.approx(-0.1125)
    assert one.interval.high < -0.05  # the seeds' differences lie between -0.15 and -0.10, the arms overlap
    assert one.verdict.first - one.verdict.second == pytest.approx(one.interval.estimate)


def test_before_all_planned_seeds_are_there_numbers_are_shown_and_no_verdict(tmp_path):
    pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12])
    claims = Claims((Claim(SIGNAL, PLAIN, outcome="catastrophe", source="held-out", sides="less"),))
    for planned, decided, words in (
        (range(6), 0, "No verdict yet: 4 of 6 planned seeds."),
        (range(4), -1, "The difference is significant"),
    ):
        seeds = {(ENV, arm): tuple(planned) for arm in (SIGNAL, PLAIN)}
        (one,) = results(read_dataset([tmp_path], StudyInfo("study", claims=claims, planned_seeds=seeds)))
        assert one.decided == decided
        assert words in sentence(one)
        assert "10.0 % with" in sentence(one)
        assert ("no verdict yet on metadrive-easy" in headline([one])) == (decided == 0)


def test_an_interim_look_has_a_level_of_its_own_and_the_seeds_that_it_planned(tmp_path):
    pair(tmp_path, [1, 2, 3, 2, 20, 20], [9, 10, 11, 12, 0, 0])  # the last two come after the look at four
    claims = Claims((Claim(SIGNAL, PLAIN, outcome="catastrophe", source="held-out", test="welch", sides="less"),))
    seeds = {(ENV, arm): tuple(range(8)) for arm in (SIGNAL, PLAIN)}
    info = StudyInfo("study", claims=claims, planned_seeds=seeds, looks=Looks((0.5, 1.0)))
    (one,) = results(read_dataset([tmp_path], info))
    assert list(one.first) == [0, 1, 2, 3]
    assert one.level == pytest.approx(0.0056, abs=2e-4)  # O'Brien and Fleming, one-sided 5 %, half of the information
    assert one.decided == -1
    assert "interim look 1 of 2 at level 0.0056" in sentence(one)


def test_with_several_looks_each_claim_has_its_own_part_of_the_level_as_bonferroni_divides_it(tmp_path):
    pair(tmp_path, [1, 2, 3, 2], [9, 10, 11, 12])
    both = tuple(Claim(SIGNAL, PLAIN, outcome=outcome, source="held-out") for outcome in ("catastrophe", "violation"))
    seeds = {(ENV, arm): tuple(range(4)) for arm in (SIGNAL, PLAIN)}
    info = StudyInfo("study", claims=Claims(both, "holm"), planned_seeds=seeds, looks=Looks((0.5, 1.0)))
    found = results(read_dataset([tmp_path], info))
    assert len({one.level for one in found}) == 1
    assert all("with Bonferroni's correction for 2 tests" in sentence(one) for one in found)


def test_a_run_that_is_still_training_does_not_complete_the_seeds(tmp_path):
    for method in (SIGNAL, PLAIN):
        for seed in range(4):
            write_run(tmp_path, method, seed, **({"total_steps": 10_000_000} if seed == 3 else {}))
    seeds = {(ENV, arm): tuple(range(4)) for arm in (SIGNAL, PLAIN)}
    claims = Claims((Claim(SIGNAL, PLAIN, source="training"),))
    (one,) = results(read_dataset([tmp_path], StudyInfo("study", claims=claims, planned_seeds=seeds)))
    assert "No verdict yet: 3 of 4 planned seeds." in sentence(one)


def test_a_claim_that_was_decided_at_a_look_stays_decided(tmp_path):
    pair(tmp_path, [1, 2, 3, 2, 20, 20, 20, 20], [9, 10, 11, 12, 0, 0, 0, 0])  # the later seeds say the opposite
    claims = Claims((Claim(SIGNAL, PLAIN, outcome="catastrophe", source="held-out", test="welch", sides="less"),))
    seeds = {(ENV, arm): tuple(range(8)) for arm in (SIGNAL, PLAIN)}
    info = StudyInfo("study", claims=claims, planned_seeds=seeds, looks=Looks((0.5, 1.0)))
    (one,) = results(read_dataset([tmp_path], info))
    assert (one.decided, one.look.number, len(one.first)) == (-1, 1, 4)
