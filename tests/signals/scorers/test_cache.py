"""The cache of scores: what it keeps, what it forgets, and what happens when it is full, shared or damaged."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vlmsafe.errors import InputError, RunError
from vlmsafe.io.files import files_digest
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers import cache as cache_module
from vlmsafe.signals.scorers.api import Scorer, check_scorer
from vlmsafe.signals.scorers.cache import CachedScorer, ScoreCache, default_path
from vlmsafe.signals.scorers.make import make_scorer

FRAMES = np.random.default_rng(2).integers(0, 256, (12, 8, 10, 3), np.uint8)
PROMPTS = PromptSet(("a clear road",), ("a crash",))


class Counting(Scorer):
    """Brightness, and which frames it was asked about."""

    looks_at = "frame"
    rules = ("decoupled",)
    bounds = (0.0, 1.0)
    gate = "probability"
    groups = (1, 1)

    def __init__(self, scale: float = 1.0, frames: int = 1) -> None:
        self.scale, self.frames = scale, frames
        self.batches: list[int] = []

    def score(self, inputs: np.ndarray) -> np.ndarray:
        self.batches.append(len(inputs))
        light = self.scale * inputs.mean(axis=(1, 2, 3)) / 255.0
        return np.stack([light, 1.0 - light], axis=1).astype(np.float32)

    def with_prompts(self, prompts: PromptSet) -> "Counting":
        return Counting(self.scale, self.frames)


def cached(path: Path, scorer: Scorer, name: str = "mine", **options) -> CachedScorer:
    return CachedScorer(scorer, ScoreCache(path, **options), {"scorer": name}, "float32")


def entry(number: int) -> tuple[bytes, bytes]:
    return number.to_bytes(32, "big"), np.full(2, number, "<f4").tobytes()


def test_scores_are_those_of_the_scorer_and_each_frame_is_asked_about_once(tmp_path):
    first, second = Counting(), Counting()
    order = [3, 0, 3, 1, 0]
    found = cached(tmp_path / "c", first).score(FRAMES[order])
    np.testing.assert_array_equal(found, Counting().score(FRAMES[order]))
    assert first.batches == [1, 3], "the fixed picture, then three frames that differ"
    again = cached(tmp_path / "c", second)
    np.testing.assert_array_equal(again.score(FRAMES), Counting().score(FRAMES))
    assert second.batches == [1, 9], "another process would find what the first one left"
    assert again.bill() == {"frames": 9, "cached": 3}
    assert again.score(FRAMES[:0]).shape == (0, 2)


def test_it_has_the_attributes_of_its_scorer(tmp_path):
    scorer = cached(tmp_path / "c", Counting(frames=2))
    check_scorer(scorer)
    assert (scorer.bounds, scorer.gate, scorer.frames, scorer.rules) == ((0.0, 1.0), "probability", 2, ("decoupled",))
    assert scorer.uncached.uncached is scorer.uncached
    with pytest.raises(InputError, match="expected frames"):
        scorer.score(FRAMES)


def test_frames_of_other_shapes_scorers_and_prompts_are_other_entries(tmp_path):
    scorer = cached(tmp_path / "c", Counting())
    scorer.score(FRAMES)
    for other, frames in (
        (scorer, FRAMES.reshape(12, 10, 8, 3)),
        (cached(tmp_path / "c", Counting(), "another"), FRAMES),
        (scorer.with_prompts(PROMPTS), FRAMES),
    ):
        before = other.bill()["cached"]
        other.score(frames)
        assert other.bill()["cached"] == before


def test_scores_of_a_model_that_was_replaced_are_not_used(tmp_path):
    cached(tmp_path / "c", Counting()).score(FRAMES)
    replaced = cached(tmp_path / "c", Counting(scale=0.5))
    np.testing.assert_array_equal(replaced.score(FRAMES), Counting(scale=0.5).score(FRAMES))
    back = cached(tmp_path / "c", Counting(scale=1.0 + 1e-3))
    back.score(FRAMES)
    assert back.bill()["cached"] == len(FRAMES), "rounding makes no other model"


def test_wrong_scores_are_not_kept(tmp_path):
    scorer = Counting(scale=3.0)
    wrapped = cached(tmp_path / "c", scorer)
    with pytest.raises(InputError, match="they must lie between 0 and 1"):
        wrapped.score(FRAMES)
    assert len(ScoreCache(tmp_path / "c")) == 0


def test_a_full_cache_forgets_what_was_not_used_for_longest_and_stays_within_its_bound(tmp_path):
    clock = [0.0]
    cache = ScoreCache(tmp_path / "c", 1, now=lambda: clock[0])
    size = 100
    entries = [dict(map(entry, range(start, start + size))) for start in range(0, 20_000, size)]
    for number, part in enumerate(entries):
        clock[0] += 10_000.0
        cache.add(part)
        assert len(cache.find(list(part))) == size, "the newest entries are there"
        if number < 60:
            cache.find(list(entries[0]))  # used again and again
        if number == 59:
            assert len(cache) < 6000, "it has forgotten some"
            assert len(cache.find(list(entries[0]))) == size
            assert not cache.find(list(entries[1]))
    cache.close()
    assert 0.5 * 2**20 < (tmp_path / "c").stat().st_size <= 2**20


@pytest.mark.slow
def test_several_processes_share_a_cache(tmp_path):
    program = (
        "import sys\nfrom pathlib import Path\nfrom vlmsafe.signals.scorers.cache import ScoreCache\n"
        "cache = ScoreCache(Path(sys.argv[1]))\n"
        "for start in range(int(sys.argv[2]), 2000, 50):\n"
        "    keys = [n.to_bytes(32, 'big') for n in range(start, start + 100)]\n"
        "    kept = cache.add({key: key[-8:] for key in keys})\n"
        "    assert kept == {key: key[-8:] for key in keys} == cache.find(keys)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "c")]
    running = [subprocess.Popen([*command, str(start)], stderr=subprocess.PIPE, text=True) for start in (0, 25, 50)]
    for process in running:
        _, said = process.communicate(timeout=600.0)
        assert process.returncode == 0, said
    assert len(ScoreCache(tmp_path / "c")) == 2075


def test_the_process_that_was_first_decides(tmp_path):
    key = bytes(32)
    one, other = ScoreCache(tmp_path / "c"), ScoreCache(tmp_path / "c")
    assert one.add({key: b"11111111"}) == {key: b"11111111"}
    assert other.add({key: b"22222222"}) == {key: b"11111111"} == one.find([key])


@pytest.mark.parametrize("content", [b"these are my notes\n" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_cache_is_refused_in_one_line_and_left_alone(tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"notes is no cache of scores, or a damaged one .*; move it away") as refused:
        ScoreCache(path)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "theirs"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE friends (name)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="theirs is no cache of scores of this version"):
        ScoreCache(path)
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="is a folder"):
        ScoreCache(tmp_path)


def test_a_cache_that_is_damaged_while_it_is_used_ends_the_run_resumably(tmp_path):
    cache = ScoreCache(tmp_path / "c")
    for start in range(0, 3000, 500):
        cache.add(dict(map(entry, range(start, start + 500))))
    cache.close()
    cache = ScoreCache(tmp_path / "c")
    data = bytearray((tmp_path / "c").read_bytes())
    for page in range(2 * 4096, len(data), 4096):
        data[page : page + 100] = os.urandom(100)
    (tmp_path / "c").write_bytes(data)
    keys = [entry(number)[0] for number in range(3000)]
    with pytest.raises(RunError, match=r"damaged one .* and resume the run"):
        cache.find(keys)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; choose a directory"):
        ScoreCache(tmp_path / "file" / "scores")


def test_nobody_else_can_read_it_and_it_lies_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_path() == tmp_path / "cache" / "vlmsafe" / "scores.sqlite"
    ScoreCache(default_path()).add(dict([entry(1)]))
    assert {path.stat().st_mode & 0o077 for path in default_path().parent.iterdir()} == {0}
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_path() == Path.home() / ".cache" / "vlmsafe" / "scores.sqlite"


def test_on_a_network_folder_it_needs_no_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_on_network", lambda path: True)
    scorer = cached(tmp_path / "c", Counting())
    np.testing.assert_array_equal(scorer.score(FRAMES), Counting().score(FRAMES))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_any_scorer_of_frames_may_have_a_cache_and_fast_ones_have_none_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name = "python:frame_scorer:FrameScorer"
    plain = make_scorer(name, PROMPTS)
    assert plain.uncached is plain
    file = tmp_path / "scores"
    for expected in (0, len(FRAMES)):
        scorer = make_scorer(name, PROMPTS, cache=str(file))
        np.testing.assert_array_equal(scorer.score(FRAMES), plain.score(FRAMES))
        assert scorer.bill()["cached"] == expected
    assert make_scorer("constant:0.5", None, cache=str(tmp_path / "none")).bill() == {}
    assert [path.name for path in tmp_path.iterdir() if "scores" not in path.name] == []


def test_a_second_cache_in_a_process_keeps_the_locks_of_the_first(tmp_path):
    path = tmp_path / "c"
    first, second = ScoreCache(path), ScoreCache(path)
    first.add(dict([entry(1)]))
    second.add(dict([entry(2)]))
    other = "import sys; from pathlib import Path; from vlmsafe.signals.scorers.cache import ScoreCache\n"
    other += "cache = ScoreCache(Path(sys.argv[1])); assert len(cache) == 2; cache.close()"
    subprocess.run([sys.executable, "-c", other, str(path)], check=True)
    assert (tmp_path / "c-wal").exists(), "the last one to close it would remove it"
    assert len(first) == len(second) == 2


def test_changed_files_of_a_model_have_another_digest(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"1")
    before = files_digest(tmp_path / "model")
    assert before == files_digest(tmp_path / "model")
    (tmp_path / "model" / "weights").write_bytes(b"22")
    assert files_digest(tmp_path / "model") not in (before, None)
    assert files_digest(tmp_path / "none") is None
