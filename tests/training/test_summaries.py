"""The figures of an epoch are means over the right episodes."""

import numpy as np
import pytest

from vlmsafe.training.summaries import EpisodeWindow, epoch_notes, mean_of, progress_figures


def episode(cost: float, **more: object) -> dict[str, object]:
    return {"return": 1.0, "cost": cost, "length": 10, "finished": True, **more}


def test_a_window_keeps_the_newest_episodes():
    window = EpisodeWindow(2)
    assert window.mean("cost") is None
    window.add([episode(1.0), episode(2.0)])
    window.add([episode(6.0, bonus=0.5)])
    assert window.mean("cost") == 4.0
    assert window.mean("bonus") == 0.25


def test_a_window_of_one_epoch_forgets_the_epoch_before():
    window = EpisodeWindow("epoch")
    window.add([episode(1.0), episode(2.0)])
    window.add([episode(6.0)])
    assert window.mean("cost") == 6.0


def test_a_window_continues_from_its_array():
    window, again = EpisodeWindow(3), EpisodeWindow(3)
    window.add([episode(cost) for cost in (1.0, 2.0, 3.0)])
    again.load(window.array())
    for each in (window, again):
        each.add([episode(9.0)])
    np.testing.assert_array_equal(window.array(), again.array())


def test_a_mean_skips_episodes_without_the_figure_and_may_be_weighted():
    rows = [{"kappa": 0.2, "scored": 1}, {"kappa": None, "scored": 0}, {"kappa": 0.8, "scored": 3}]
    assert mean_of(rows, "kappa") == pytest.approx(0.5)
    assert mean_of(rows, "kappa", weight="scored") == pytest.approx(0.65)
    assert mean_of(rows, "margin") is None


def test_notes_name_an_epoch_without_scores_and_one_without_finished_episodes():
    assert list(epoch_notes(3, [episode(1.0)], 4, True)) == []
    assert list(epoch_notes(3, [episode(1.0, scored=2)], 4, True)) == []
    (unscored,) = epoch_notes(3, [episode(1.0, scored=0)], 4, True)
    assert "epoch 3: nothing was scored; no episode lasts the 4 steps" in unscored
    (unfinished,) = epoch_notes(3, [episode(1.0) | {"finished": False}], 4, True)
    assert "no episode finished, so the multiplier is unchanged" in unfinished
    (without,) = epoch_notes(3, [episode(1.0) | {"finished": False}], 4, False)
    assert "unchanged" not in without


def test_progress_is_of_the_finished_episodes_and_success_is_counted_twice():
    rows = [
        episode(0.0, arrived=True, progress={"route_completion": 1.0}) | {"return": 300.0},
        episode(2.0, arrived=True, progress={"route_completion": 1.0}) | {"return": 250.0},
        episode(0.0, arrived=False, progress={"route_completion": 0.1}) | {"return": 5.0},  # stood still
        episode(1.0, arrived=False, progress={"route_completion": 0.3}) | {"return": 5.0},  # low, but not for free
        episode(0.0, arrived=True, progress={"route_completion": 9.0}) | {"finished": False},
    ]
    expected = {"route_completion": 0.6, "arrived": 0.5, "arrived_without_cost": 0.25, "passive": 0.25}
    assert progress_figures(rows, 20.0) == pytest.approx(expected)


def test_progress_has_only_what_the_environment_tells():
    assert progress_figures([episode(1.0)], None) == {}
    assert progress_figures([episode(1.0, progress={"goals": 2.0})], None) == {"goals": 2.0}
    cut = episode(1.0, arrived=False, progress={"goals": 2.0}) | {"finished": False}
    assert progress_figures([cut], 1.0) == dict.fromkeys(["goals", "arrived", "arrived_without_cost", "passive"])
