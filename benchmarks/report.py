"""How large a report is and how long it takes.

    python benchmarks/report.py runs/study

Prints the number of runs, the size of the page, and the seconds of the page alone and with all its files.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from vlmsafe.report.write import write_report
from vlmsafe.runs.arms import open_arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder that holds runs")
    folder = parser.parse_args().runs
    seconds = []
    with tempfile.TemporaryDirectory() as scratch:
        for files in (False, True):
            began = time.perf_counter()
            written = write_report([folder], Path(scratch) / "report.html", files=files)
            seconds.append(time.perf_counter() - began)
        size = written.page.stat().st_size / 1e6
    runs, many = len(open_arms([folder])[0]), len(written.files)
    print(f"{runs} runs: {size:.2f} MB; {seconds[0]:.1f} s the page, {seconds[1]:.1f} s with {many} files")


if __name__ == "__main__":
    main()
