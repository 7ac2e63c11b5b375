"""Output whose reader goes away."""

import subprocess
import sys

import pytest

WRITES = """
import sys
from vlmsafe.io.output import outlive_reader
outlive_reader()
for _ in range(20):
    print("x" * 20_000, flush=True)
    print("y" * 20_000, file=sys.stderr)
open(sys.argv[1], "w").write("done")
"""


@pytest.mark.parametrize("ending", ["2>&1 | head -c 1", ">&- 2>&-", "> whole.txt"])
def test_a_process_outlives_the_reader_of_its_output(tmp_path, ending):
    command = f"\"{sys.executable}\" -c '{WRITES}' note.txt {ending}"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "note.txt").read_text() == "done"
    if ending.endswith("whole.txt"):
        assert (tmp_path / "whole.txt").stat().st_size == 20 * 20_001
