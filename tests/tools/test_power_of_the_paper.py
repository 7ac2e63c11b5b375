"""The power of the paper's designs, as the documentation prints it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def printed():
    command = [sys.executable, str(ROOT / "benchmarks" / "power_of_the_paper.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def row(printed, *cells):
    """The columns of the only row that has all these cells, by heading."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "|" in line]
    (found,) = [line for line in lines[2:] if set(cells) <= set(line)]
    return dict(zip(lines[0], found, strict=True))


def test_the_documentation_has_the_printed_table(printed):
    page = (ROOT / "docs" / "explanation" / "power.md").read_text()
    assert printed.strip() in page


def test_ten_seeds_on_hard_had_less_than_the_usual_power_for_the_published_difference(printed):
    found = row(printed, "metadrive-hard", "catastrophe, evaluation-50")
    assert found["runs"] == "10 + 10"
    assert found["published"] == "-12.2 pp"
    assert found["within reach"] == "no"
    assert 12.2 < float(found["detectable, 80 %"].removesuffix(" pp")) < 16.0


def test_three_seeds_detect_nothing_with_an_exact_test(printed):
    easy = row(printed, "metadrive-easy", "catastrophe, evaluation-50")
    bullet = row(printed, "bullet-car-reach, 1M steps", "catastrophe, evaluation-200")
    for found in (easy, bullet):
        assert (found["runs"], found["detectable, 80 %"], found["power for it"]) == ("3 + 3", "nothing", "0 %")


def test_a_difference_of_many_deviations_is_within_reach_of_a_t_test_with_three_seeds(printed):
    found = row(printed, "qwen2-vl-conf - vlm-ppo-lag-conf", "logged return, final", "Welch, two-sided")
    assert (found["within reach"], found["power for it"]) == ("yes", "100 %")
