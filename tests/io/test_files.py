"""Files are whole, and locks exclude other processes."""

import os
import subprocess
import sys

import pytest

from vlmsafe.errors import RunError
from vlmsafe.io.files import append_rows, cut_to, read_rows, write_atomically
from vlmsafe.io.locks import DirectoryLock, break_lock, is_locked, process_name


def test_failed_append_leaves_whole_rows_only(tmp_path):
    code = f"""
import resource
from pathlib import Path
from vlmsafe.errors import RunError
from vlmsafe.io.files import append_rows
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
path = Path({str(tmp_path / "rows.jsonl")!r})
append_rows(path, [{{"epoch": 1}}])
try:
    append_rows(path, [{{"epoch": 2, "text": "x" * 100}}])
except RunError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "cannot write" in answer.stdout, answer.stderr
    assert read_rows(tmp_path / "rows.jsonl") == [{"epoch": 1}]
    assert (tmp_path / "rows.jsonl").read_text() == '{"epoch": 1}\n'


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    code = f"""
import resource
from pathlib import Path
from vlmsafe.io.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
write_atomically(Path({str(path)!r}), b"n" * 100)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode != 0
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_row_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"epoch": 1}, {"epoch": 2}])
    with path.open("ab") as file:
        file.write(b'{"epoch": 3, "ret')
    assert read_rows(path) == [{"epoch": 1}, {"epoch": 2}]


def test_row_cut_short_by_a_crash_is_cut_off_by_the_next_append(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"epoch": 1}])
    with path.open("ab") as file:
        file.write(b'{"epoch": 2, "ret')
    append_rows(path, [{"epoch": 2}])
    assert read_rows(path) == [{"epoch": 1}, {"epoch": 2}]


def test_unfinished_row_longer_than_a_block_is_cut_off(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"epoch": 1}])
    with path.open("ab") as file:
        file.write(b"x" * 300_000)
    append_rows(path, [{"epoch": 2}])
    assert path.read_text() == '{"epoch": 1}\n{"epoch": 2}\n'


def test_file_with_nothing_but_an_unfinished_row_begins_anew(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"epoch": 1, "ret')
    append_rows(path, [{"epoch": 1}])
    assert path.read_text() == '{"epoch": 1}\n'


def test_append_reads_only_the_end_of_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    size = 1 << 40  # sparse; reading it whole would take more memory than there is
    with path.open("wb") as file:
        file.seek(size - 1)
        file.write(b"\n")
    append_rows(path, [{"epoch": 1}])
    with path.open("rb") as file:
        file.seek(size)
        assert file.read() == b'{"epoch": 1}\n'


def test_rows_with_nan_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        append_rows(tmp_path / "rows.jsonl", [{"cost": float("nan")}])


def test_cut_to_shortens_and_notices_loss(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"epoch": 1}])
    size = path.stat().st_size
    append_rows(path, [{"epoch": 2}])
    cut_to(path, size)
    assert read_rows(path) == [{"epoch": 1}]
    with pytest.raises(RunError, match="shorter"):
        cut_to(path, size + 1)


def test_lock_is_exclusive_and_dropped_on_exit(tmp_path):
    assert not is_locked(tmp_path)
    with DirectoryLock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(RunError, match="in use"), DirectoryLock(tmp_path):
            pass
    assert not is_locked(tmp_path)
    with DirectoryLock(tmp_path):
        pass


def test_a_process_whose_lock_was_broken_writes_nothing_any_more(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run / "checkpoints", other):
        folder.mkdir(parents=True)
    with DirectoryLock(run):
        append_rows(run / "epochs.jsonl", [{"epoch": 1}])
        write_atomically(run / "checkpoints" / "one", b"1")
        assert break_lock(run, process_name(os.getpid()))
        (run / "lock").write_text("7 node-3")  # another process believed it dead and took over
        with pytest.raises(RunError, match=r"run was taken over by pid 7 on node-3; this process stops"):
            append_rows(run / "epochs.jsonl", [{"epoch": 2}])
        with pytest.raises(RunError, match="taken over"):
            write_atomically(run / "checkpoints" / "two", b"2")
        append_rows(other / "epochs.jsonl", [{"epoch": 1}])
    assert read_rows(run / "epochs.jsonl") == [{"epoch": 1}]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["one"]
    append_rows(run / "epochs.jsonl", [{"epoch": 2}])  # without a lock there is nothing to check
