"""`tools/make_drivers.py` trains what is missing, chooses on other scenarios than it reports, and fills in the card."""

import importlib.util
import sys
from pathlib import Path

import polars as pl
import pytest

from vlmsafe.errors import InputError
from vlmsafe.evaluation.protocols import protocol
from vlmsafe.runs.run import Run

_SPEC = importlib.util.spec_from_file_location("make_drivers", Path(__file__).parents[2] / "tools" / "make_drivers.py")
tool = sys.modules[_SPEC.name] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)

LIST = """
tiny:
  summary: A trial.
  seeds: [1, 2]
  figure: distance
  commands:
    - vlmsafe clone braking --steps 400 --passes 2 --hidden 8 8 --seed {seed} --processes 1
      --run-dir {dir}/tiny/clone-{seed}
    - vlmsafe train --env braking --method ppo --init-from {dir}/tiny/clone-{seed} --learner.hidden 8 8
      --total-steps 400 --steps-per-epoch 400 --learner.update-iters 1 --seed {seed} --run-dir {dir}/tiny/seed-{seed}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The trained runs of the list, its entry, and the driver packed from them."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "list.yaml").write_text(LIST)
    entry = tool.read_list(folder / "list.yaml")["tiny"]
    tool.train(entry, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, "SELECTION_EPISODES", 3)
        patch.setattr(tool, "HELD_OUT_EPISODES", 4)
        return folder, entry, tool.pack(entry, folder, folder / "out", 1)


def test_the_card_is_read_from_the_runs_and_their_evaluations(made):
    folder, _, driver = made
    card = driver.card
    run = Run.open(folder / "tiny" / f"seed-{card['seeds']['chosen']}")
    assert card["env"] == {"name": "braking", "version": 1}
    assert (card["method"], card["steps"], card["seeds"]["tried"]) == ("ppo", 800, [1, 2])
    assert card["hours"] > 0
    assert [command.split()[1] for command in card["commands"]] == ["clone", "train"]
    assert card["commands"][1].endswith(f"--run-dir .drivers/tiny/seed-{run.config.seed}")
    reached = card["chosen_by"]["reached"]
    assert reached[run.config.seed]["distance"] == max(one["distance"] for one in reached.values())
    first = protocol("selection").scenario(0, run.config.spec)
    assert card["chosen_by"]["scenarios"] == f"{first} to {first + 2}"
    assert card["held_out"]["scenarios"] == "10000 to 10003"
    assert "arrived" not in card["held_out"]["figures"]
    assert card["held_out"]["figures"]["cost"]["low"] >= 0
    assert driver.picture.read_bytes().startswith(b"\x89PNG")
    assert str(folder) not in (driver.path / "config.yaml").read_text()


def test_what_is_there_is_left(made):
    folder, entry, _ = made
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("config.yaml")}
    tool.train(entry, folder)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("config.yaml")} == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--learner.update-iters 1", "--learner.update-iters 2", "learner.update_iters is 1, not 2"),
        ("--total-steps 400", "--total-steps 800", "finished, epoch 1 of 1, with 400 steps; train it first"),
        ("clone-{seed} --learner", "clone-2 --learner", "seed-1 did not start from"),
        ("--passes 2", "--passes 3", "clone-1 was not made by its command: learner.update_iters is 2, not 3"),
        ("--run-dir {dir}/tiny/seed-{seed}", "", "the command needs --run-dir or --resume"),
        ("vlmsafe clone", "rm", "expected vlmsafe train or vlmsafe clone, got: rm braking"),
    ],
)
def test_runs_that_their_commands_would_not_make_are_refused(made, tmp_path, old, new, message):
    folder, _, _ = made
    (tmp_path / "list.yaml").write_text(LIST.replace(old, new))
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        tool.pack(tool.read_list(tmp_path / "list.yaml")["tiny"], folder, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


def test_a_share_has_an_interval_even_where_every_episode_arrived(made):
    run = Run.open(made[0] / "tiny" / "seed-1")
    columns = {"cost": [0.0, 1.0], "env_return": [1.0, 3.0], "length": [5, 5], "distance": [2.0, 2.0]}
    table = pl.DataFrame({"arrived": [True, True], "arrived_without_cost": [True, False], "violation": [False, False],
                          **columns})  # fmt: skip
    figures = tool.figures_of(table, run)
    assert figures["arrived"]["mean"] == 1.0
    assert figures["arrived"]["low"] == pytest.approx(0.3424, abs=1e-4)  # Wilson, 2 of 2
    assert figures["env_return"] == {"mean": 2.0, "low": 1.0, "high": 3.0}


@pytest.mark.parametrize(
    ("reached", "chosen"),
    [
        ({1: (0.9, 40.0), 2: (0.5, 20.0), 3: (0.6, 29.0)}, 3),  # the best one is over the budget
        ({1: (0.9, 40.0), 2: (0.5, 35.0), 3: (0.6, 33.0)}, 1),  # all are
        ({1: (0.5, 9.0), 2: (0.5, 3.0), 3: (0.4, 1.0)}, 2),  # equal success: the lower cost
    ],
)
def test_the_rule_prefers_success_within_the_budget(made, monkeypatch, reached, chosen):
    run = Run.open(made[0] / "tiny" / "seed-1")  # its budget is 30
    runs = dict.fromkeys(reached, run)
    results = iter(reached.values())
    monkeypatch.setattr(tool.vlmsafe, "evaluate", lambda *_, **__: pl.DataFrame({"scenario": [15000]}), raising=False)
    monkeypatch.setattr(
        tool, "figures_of",
        lambda *_: dict(zip(("distance", "cost"), ({"mean": value} for value in next(results)), strict=True)),
    )  # fmt: skip
    assert tool.choose(runs, None, 1)[0] == chosen


def test_a_run_of_another_variant_is_moved_to_the_world_that_the_driver_is_for(made):
    folder, _, _ = made
    run = Run.open(folder / "tiny" / "seed-1")
    assert tool.moved(run, None) is run
    assert tool.moved(run, "braking") is run
    there = tool.moved(run, "speeding")
    assert (there.config.env, there.config.budget, there.status()) == ("speeding", 30.0, "finished")
    assert (there.checkpoint()[0].arrays["networks"] == run.checkpoint()[0].arrays["networks"]).all()
    assert tool.moved(run, "speeding").path == there.path
