"""Distillation from end to end at a small scale, on an environment that is not of this package."""

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from vlmsafe.cli import main
from vlmsafe.distillation import distil as module
from vlmsafe.distillation.distil import distil
from vlmsafe.distillation.distil_plan import DistilPlan
from vlmsafe.distillation.frames import FramesTask
from vlmsafe.errors import InputError, Interrupted, VlmsafeError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.embedded.network import POOLED, load
from vlmsafe.signals.scorers.make import make_scorer

EXAMPLES = Path(__file__).parents[2] / "examples"
HARBOUR = "gym:harbour:Harbour-v0"
PLAN = DistilPlan(
    episodes=10, held_out_episodes=10, longest=60, steps=4, stacks=8, size=32, cost_within=10, resamples=20
)
PROMPTS = "positive: [open water, towards the buoy]\nnegative: [about to hit a rock, at a rock]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the environment of the guide and prompts for it."""
    shutil.copy(EXAMPLES / "harbour.py", tmp_path)
    (tmp_path / "boat.yaml").write_text(PROMPTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    gymnasium.registry.pop("Harbour-v0", None)
    sys.modules.pop("harbour", None)


def made(directory: str, teacher: str = "oracle", env: str = HARBOUR, **changes: object) -> Path:
    settings = {"prompts": "boat.yaml", "plan": PLAN, "device": "cpu", "processes": 1, **changes}
    return distil([env], teacher, directory, **settings)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_oracle_is_distilled_into_a_scorer_with_a_card_and_the_same_command_keeps_it(here: Path) -> None:
    notes: list[str] = []
    weights = made("mine", command="vlmsafe embedded distil ...", note=notes.append)
    scorer = make_scorer(f"embedded:{weights}", PromptSet(("open water",), ("at a rock", "cost within 10 steps")))
    assert scorer.score(np.zeros((2, 96, 128, 6), np.uint8)).shape == (2, 3)
    assert scorer.notes(HARBOUR) == []
    with pytest.raises(InputError, match="not one of those that this scorer was distilled with"):
        make_scorer(f"embedded:{weights}", PromptSet(("calm sea",), ("at a rock",)))
    card, data = (here / "mine/card.md").read_text(), json.loads((here / "mine/data.json").read_text())
    figures = json.loads((here / "mine/figures.json").read_text())
    assert "{" not in card
    for part in ("`gym:harbour:Harbour-v0`", "all negative prompts", "margin", "cost within 10 steps", "K = 20",
                 "vlmsafe embedded distil ...", "96 x 128", "the hazard from the simulator"):  # fmt: skip
        assert part in card, part
    train, test = data["recorded"][0], figures["held_out"]["recorded"][0]
    assert not set(train["scenarios"]) & set(test["scenarios"])
    assert (train["episodes"], test["episodes"]) == (10, 10)
    assert [row["column"] for row in figures["agreement"]] == ["all positive prompts", "all negative prompts", "margin"]
    # The oracle's two columns mirror each other, so their agreement is the same up to the sign.
    first, second, _ = figures["agreement"]
    assert first["mean"] == pytest.approx(-second["mean"], abs=1e-6)
    before = {path: path.stat().st_mtime_ns for path in here.glob("mine/**/*.npz")} | {
        weights: weights.stat().st_mtime_ns
    }
    notes.clear()
    made("mine", note=notes.append)
    assert notes == []
    assert before == {path: path.stat().st_mtime_ns for path in before}
    # Another teacher looks at the same recordings.
    made(
        "mine", "embedded", prompts="metadrive-v2", plan=replace(PLAN, cost_within=None, pooled=True), note=notes.append
    )
    assert not any(note.startswith("record ") for note in notes)
    assert load(weights).architecture.pooled == POOLED
    assert "the car is driving safely" in (here / "mine/card.md").read_text()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_files_and_an_interrupted_recording_continues_to_them(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = replace(PLAN, cost_within=None, steps=2)
    whole = made("whole", plan=plain)
    run = module.WorkerPool.run

    def stopped_early(self: object, tasks: list[object], **rest: object) -> object:
        if not isinstance(tasks[0], FramesTask):
            return run(self, tasks, **rest)  # type: ignore[arg-type]
        run(self, tasks[:1], **rest)  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGTERM)
        return None

    monkeypatch.setattr(module.WorkerPool, "run", stopped_early)
    with pytest.raises(Interrupted, match="stopped by SIGTERM; the finished recordings are kept, and the same command"):
        made("parts", plan=plain)
    monkeypatch.setattr(module.WorkerPool, "run", run)
    assert len(list(here.glob("parts/recordings/*.npz"))) == 1
    parts = made("parts", plan=plain)
    for path in here.glob("whole/**/*.npz"):
        twin = here / "parts" / path.relative_to(here / "whole")
        if "scores" not in path.parts:  # they hold seconds
            assert twin.read_bytes() == path.read_bytes(), path
    other = made("other", plan=replace(plain, seed=1))
    first, again, another = (load(path).state_dict() for path in (whole, parts, other))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], another[name]) for name in first)
    with pytest.raises(InputError, match=r"holds recordings that were made otherwise \(other seed\)"):
        made("whole", plan=replace(plain, seed=1))


@pytest.mark.slow
def test_environments_without_hazard_cost_or_rendering_work_or_say_so_in_one_line(here: Path) -> None:
    (here / "bare.py").write_text(
        "import gymnasium, harbour\n"
        "class Bare(harbour.Harbour):\n"
        "    hazard = facts = None\n"
        "    def step(self, action):\n"
        "        return *super().step(action)[:4], {}\n"
        "class Blind(Bare):\n"
        "    metadata = {'render_modes': []}\n"
        "    def render(self):\n"
        "        return None\n"
        "gymnasium.register('Bare-v0', entry_point=Bare, max_episode_steps=3)\n"
        "gymnasium.register('Blind-v0', entry_point=Blind, max_episode_steps=3)\n"
    )
    few = replace(PLAN, episodes=5, held_out_episodes=5, cost_within=None)
    try:
        with pytest.raises(VlmsafeError, match="has no hazard, which the oracle scorer reads"):
            made("a", env="gym:bare:Bare-v0", plan=few)
        with pytest.raises(VlmsafeError, match=r"rendered NoneType; scoring needs uint8 arrays"):
            made("b", "python:own_teachers:Light", env="gym:bare:Blind-v0", plan=few)
        made("c", "python:own_teachers:Light", env="gym:bare:Bare-v0", plan=few)
        assert "The environment reports no cost" in (here / "c/card.md").read_text()
        with pytest.raises(InputError, match="--cost-within needs a cost, and the environment reports none"):
            made("c", "python:own_teachers:Light", env="gym:bare:Bare-v0", plan=replace(few, cost_within=5))
        with pytest.raises(InputError, match="gives every recorded frame the same similarities"):
            made("c", "python:own_teachers:Still", env="gym:bare:Bare-v0", plan=few)
    finally:
        for name in ("Bare-v0", "Blind-v0"):
            gymnasium.registry.pop(name, None)
        sys.modules.pop("bare", None)


@pytest.mark.parametrize(
    ("sources", "teacher", "prompts", "said"),
    [
        ([], "oracle", None, "nothing to record"),
        (["nowhere"], "oracle", None, "no run directory and no driver:<name>; as an environment: unknown environment"),
        (["."], "oracle", None, "is not a run directory"),
        (["driver:nobody"], "oracle", None, "unknown driver"),
        ([HARBOUR], "oracle", None, "has no prompts of its own; pass --prompts"),
        (["braking", "bullet-car-reach"], "oracle", None, "have different prompts"),
        (["braking"], "noise", None, "scores no state as a teacher must; expected one of embedded"),
        (["braking"], "rnd", None, "scores no state"),
        (["braking"], "python:own_teachers:Three", None, "has 3 positive and 1 negative columns for 1 and 1 prompts"),
        (["driver:braking", "driver:braking"], "oracle", None, "has the same policy as a run before it"),
    ],
)
def test_what_cannot_be_distilled_is_refused_before_anything_is_written(
    here: Path, sources: list[str], teacher: str, prompts: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        distil(sources, teacher, "nothing", prompts=prompts)
    assert not (here / "nothing").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": 100}, "a multiple of 32"), ({"steps": 0}, "steps is 0"), ({"stacks": 1}, "at least 2"),
        ({"cost_within": 0}, "at least 1 step"), ({"seed": -1}, "seed is -1"), ({"episodes": 0}, "episodes is 0"),
    ],
)  # fmt: skip
def test_impossible_amounts_are_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        DistilPlan(**changes)


def test_the_command_line_reports_bad_input_in_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["embedded", "distil", "nowhere", "--teacher", "oracle", "--dir", "mine"])
    assert stopped.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: 'nowhere' is no run directory and no driver:<name>; as an environment: unknown")
    assert not (here / "mine").exists()
