"""GPU-hours with a GPU in every run and with a shared service: the arithmetic, and what is counted."""

from pathlib import Path

import pytest

from vlmsafe.cli import main
from vlmsafe.cli.study.plan import part_of
from vlmsafe.cli.study.tables import hours
from vlmsafe.errors import EXIT_BAD_INPUT
from vlmsafe.studies.cost.gpu import ALONE, BFLOAT16, FLOAT32, SERVICE, gpu_plan, gpu_speeds, model_of, notes
from vlmsafe.studies.cost.plan import Speeds
from vlmsafe.studies.schema import load_study, parse_study, shipped_studies

STUDY = """\
name: small
question: How long?
environments: [speeding]
seeds: [1, 2]
total_steps: 3600
settings: {steps_per_epoch: 1200, num_envs: 2, learner.update_iters: 10}
arms:
  ppo-lag: {method: ppo-lag}
  clip: {method: vlm-ppo-lag, settings: {signal.scorer: clip, signal.prompts: metadrive, signal.every: 4}}
"""
MODEL = "clip:openai/clip-vit-base-patch32"
SPEEDS = Speeds(
    {("speeding", "step"): 1.0, ("speeding", "frame"): 0.4, ("speeding", "start"): 3.0, ("ppo-lag", "pass"): 0.1}
)
RATES = {(MODEL, ALONE): 2.0, (MODEL, FLOAT32): 10.0, (MODEL, BFLOAT16): 50.0}


def test_a_run_holds_its_gpu_all_the_time_and_a_service_only_works_while_it_scores():
    (row,) = gpu_plan([parse_study(STUDY, "")], SPEEDS, RATES)
    # A step and ten passes, and every fourth step a frame; two workers are started.
    plain, signalled = 3600 * 2.0 + 6, 3600 * 2.1 + 6
    assert (row.runs, row.known, row.frames) == (4, 4, 2 * 900)
    assert row.core_hours == pytest.approx(2 * (plain + signalled) / 3600)
    assert row.per_run == pytest.approx(2 * (plain / 2 + signalled / 2 + 900 / 2.0) / 3600)
    assert row.per_run_batched == pytest.approx(2 * (plain / 2 + signalled / 2) / 3600)
    assert row.shared_float32 == pytest.approx(2 * 900 / 10.0 / 3600)
    assert row.shared_bfloat16 == pytest.approx(2 * 900 / 50.0 / 3600)
    (measured,) = gpu_plan([parse_study(STUDY, "")], SPEEDS, {**RATES, (MODEL, SERVICE): 30.0})
    assert measured.shared_bfloat16 == pytest.approx(2 * 900 / 30.0 / 3600)


def test_a_run_of_several_studies_is_counted_once_unless_one_wants_its_own():
    first, again = (parse_study(STUDY.replace("small", name), "") for name in ("one", "two"))
    other = parse_study(STUDY.replace("small", "three").replace("[1, 2]", "[2, 3]"), "")
    own = parse_study(STUDY.replace("small", "four") + "independent: true\n", "")
    rows = gpu_plan([first, again, other, own], SPEEDS, RATES)
    assert [row.runs for row in rows] == [4, 0, 2, 4]


def test_models_that_were_not_measured_are_left_out_and_said():
    large = parse_study(STUDY.replace("scorer: clip", "scorer: 'clip:openai/clip-vit-large-patch14'"), "")
    rows = gpu_plan([large], SPEEDS, RATES)
    assert (rows[0].runs, rows[0].known, rows[0].frames) == (4, 2, 0)
    said = "\n".join(notes(rows, RATES))
    assert "left out: 2 runs" in said
    assert "the rate of the service was not measured" in said
    assert "end to end" in "\n".join(notes(rows, {**RATES, (MODEL, SERVICE): 30.0}))


def test_a_model_of_which_only_one_rate_is_known_is_left_out():
    rows = gpu_plan([parse_study(STUDY, "")], SPEEDS, {(MODEL, ALONE): 2.0})
    assert (rows[0].runs, rows[0].known, rows[0].model_unknown) == (4, 2, 2)


def test_what_is_left_out_is_counted_by_what_was_not_measured():
    rows = gpu_plan([parse_study(STUDY.replace("speeding", "braking"), "")], SPEEDS, RATES)
    assert (rows[0].known, rows[0].speed_unknown, rows[0].model_unknown) == (0, 4, 0)
    said = "\n".join(notes(rows, RATES))
    assert "left out: 4 runs whose environment or learner was not measured" in said
    assert "with models" not in said


def test_what_is_said_of_a_service_is_what_was_measured_of_it():
    rates = {**RATES, (MODEL, SERVICE): 10_000.0}
    said = "\n".join(notes(gpu_plan([parse_study(STUDY, "")], SPEEDS, rates), rates))
    assert "'shared, float32' that of the model in batches" in said
    assert "10,000 frames/s went through shared memory on one machine" in said
    assert "over TCP, about 16 Gbit/s at that rate, which was not measured" in said
    assert "(--signal.precision bfloat16 --signal.compile); the shipped studies do not set that for CLIP" in said
    for name in shipped_studies():
        for spec in load_study(name).expand(Path(name)):
            signal = spec.config.signal
            assert not model_of(spec.config).startswith("clip") or signal.precision == "float32"
            assert not signal.compile


def test_the_table_in_the_documentation_is_what_the_command_computes():
    studies = [study for study in map(load_study, shipped_studies()) if study.paper]
    rows = [row for row in gpu_plan(sorted(studies, key=lambda study: -len(study.paper))) if row.runs]
    figures = ("core_hours", "per_run", "per_run_batched", "shared_float32", "shared_bfloat16")

    def line(study: str, known: int, runs: int, frames: int, *numbers: float) -> list[str]:
        return [study, part_of(known, runs), f"{frames / 1e6:.1f}", *map(hours, numbers)]

    wanted = {
        row.study: line(*(getattr(row, name) for name in ("study", "known", "runs", "frames", *figures)))
        for row in rows
    }
    sums = (sum(getattr(row, name) for row in rows) for name in ("known", "runs", "frames", *figures))
    wanted["all"] = line("all", *sums)
    page = (Path(__file__).parents[3] / "docs" / "guides" / "clusters.md").read_text()
    cells = [[cell.strip(" *") for cell in text.strip("|").split("|")] for text in page.splitlines() if text[:1] == "|"]
    assert {row[0]: row for row in cells if row[0] in wanted} == wanted
    assert [note for note in notes(rows) if f"- {note}\n" not in page] == []
    assert f"{wanted['all'][6]} hours of scoring" in page


def test_the_papers_runs_are_planned_with_what_was_measured(capsys):
    rates = gpu_speeds()
    assert rates[MODEL, ALONE] < rates[MODEL, FLOAT32] < rates[MODEL, BFLOAT16]
    main(["study", "plan", "--all"])
    said = capsys.readouterr().out
    assert "generalisation" in said
    assert "measured: seconds per step" in said
    assert "extrapolated: " in said
    assert "the paper reports 4,222 GPU-hours" in said


def test_a_plan_is_of_one_study_or_of_all(capsys):
    for words in (["study", "plan"], ["study", "plan", "demo", "--all"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == EXIT_BAD_INPUT
        assert "name a study, or pass --all" in capsys.readouterr().err.replace("\n", " ")
