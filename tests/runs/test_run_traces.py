"""A trace on disk is read back as it was written, with its scorers, prompts and frames."""

import polars as pl
import pytest
from recorded_traces import PROMPTS, make_run, write_recorded

from vlmsafe.errors import InputError, RunError
from vlmsafe.runs.layout import about_path, frames_path
from vlmsafe.runs.traces import open_trace
from vlmsafe.signals.prompts import PromptSet


def test_trace_of_a_run_is_found_by_protocol_or_by_being_the_only_one(tmp_path):
    run = make_run(tmp_path / "run").path
    other = write_recorded(run, "paper-20")
    assert open_trace(run).path == other
    held_out = write_recorded(run)
    assert open_trace(run).path == held_out
    assert open_trace(run, "paper-20").path == other
    assert open_trace(held_out).about["every"] == 2
    held_out.unlink()
    write_recorded(run, "paper-200")
    with pytest.raises(InputError, match="several others; choose with --protocol: paper-20, paper-200"):
        open_trace(run)


def test_trace_says_which_prompt_each_similarity_is_of(tmp_path):
    (one,) = open_trace(write_recorded(tmp_path)).scorers
    assert (one.name, one.prefix, one.prompts) == ("embedded", "", PROMPTS)
    assert one.prompt_set == PromptSet((PROMPTS[0][1],), (PROMPTS[1][1],))
    first, second = open_trace(write_recorded(tmp_path, scorers=("clip", "oracle"))).scorers
    assert (first.prefix, second.prefix) == ("clip_", "oracle_")


def test_run_without_a_trace_or_without_frames_is_told_the_command_that_makes_it(tmp_path):
    run = make_run(tmp_path / "a run").path
    with pytest.raises(InputError, match=r"has no trace 'held-out'; record one with: vlmsafe trace '.*a run' --frames"):
        open_trace(run)
    with pytest.raises(InputError, match=r"--frames --protocol paper-20 --every 4$"):
        open_trace(run, "paper-20")
    write_recorded(run, "paper-20", every=2, frames=False)
    with pytest.raises(InputError, match=r"without frames; .*' --frames --protocol paper-20 --every 2 --overwrite$"):
        open_trace(run, "paper-20").pictures()
    lone = write_recorded(tmp_path, frames=False, scorers=("clip", "oracle")).rename(tmp_path / "lone.parquet")
    with pytest.raises(InputError, match=r"vlmsafe trace RUN --frames --scorer clip --scorer oracle --overwrite$"):
        open_trace(lone).pictures()


def test_a_file_whose_name_has_the_characters_of_a_glob_is_that_file_alone(tmp_path):
    write_recorded(tmp_path, "held1")
    odd = write_recorded(tmp_path, "held[1]*?")
    trace = open_trace(odd)
    assert trace.path == odd
    assert set(trace.steps["protocol"]) == {"held[1]*?"}
    assert len(trace.pictures()) == trace.steps["scored"].sum()


def test_what_is_no_trace_is_refused(tmp_path):
    path = write_recorded(tmp_path)
    with pytest.raises(InputError, match="is no trace: it has no column 'scenario'; it holds the frames of one"):
        open_trace(frames_path(path))
    with pytest.raises(InputError, match="there is no"):
        open_trace(tmp_path / "nowhere.parquet")
    path.write_bytes(b"nothing")
    with pytest.raises(RunError, match="expected a Parquet table, got"):
        open_trace(path)


def test_frames_of_another_trace_are_refused(tmp_path):
    path = write_recorded(tmp_path)
    pl.read_parquet(frames_path(path)).slice(1).write_parquet(frames_path(path))
    with pytest.raises(RunError, match="does not hold the frames of the scored steps"):
        open_trace(path).pictures()


@pytest.mark.parametrize("about", ["nonsense", "[]", '{"scorers": [{"prefix": ""}]}', '{"scorers": 3}'])
def test_damaged_description_of_a_trace_is_one_line(tmp_path, about):
    path = write_recorded(make_run(tmp_path / "run").path)
    about_path(path).write_text(about)
    with pytest.raises(RunError, match=r"held-out.json is damaged: expected .*; move it away and make it again with: "):
        open_trace(path)


def test_trace_without_a_description_names_its_scorers_by_their_columns(tmp_path):
    path = write_recorded(tmp_path, scorers=("clip", "oracle"))
    about_path(path).unlink()
    assert [one.name for one in open_trace(path).scorers] == ["clip", "oracle"]
    assert open_trace(path).title == "held-out"
