"""The comparison of fixed policies saves its rows, and puts those of another world beside its own."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "three_policies.py"


def run(*words):
    command = [sys.executable, str(SCRIPT), "--envs", "braking", "--policies", "random", "--episodes", "2", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_saved_rows_of_another_world_stand_beside_those_of_the_same_scenarios(tmp_path):
    saved, other = tmp_path / "saved.csv", tmp_path / "other.csv"
    assert run("--save", str(saved)).returncode == 0
    header, first, second = saved.read_text().splitlines()
    assert header.startswith("environment,policy,scenario,steps,return,cost")
    # The second row is of a scenario that is not driven here.
    other.write_text("\n".join([header, f"other-{first}", f"other-{second.replace('10001', '10007')}"]) + "\n")
    (line,) = (text for text in run("--beside", str(other)).stdout.splitlines() if "other-braking" in text)
    assert [cell.strip() for cell in line.strip("│").split("│")][:3] == ["other-braking", "random", "1"]


def test_a_file_of_something_else_is_refused_in_one_line(tmp_path):
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    for path in (wrong, tmp_path / "missing.csv"):
        found = run("--beside", str(path))
        assert found.returncode != 0
        assert "name a CSV file that --save wrote" in found.stderr + found.stdout
        assert "Traceback" not in found.stderr
