"""Rows are compared exactly, and what differs is named in words that a reader understands."""

from vlmsafe.verification.replay import compare_episodes, compare_rows

ROW = {"epoch": 2, "steps": 400, "episode_cost": 31.0, "kl": 0.01, "kappa": None, "digest": {"row": "1"}}


def test_equal_rows_have_no_difference_whatever_their_digests_or_new_columns():
    assert compare_rows(ROW, {**ROW, "digest": {"row": "2"}, "new": 1}) is None


def test_the_first_quantity_is_named_and_the_others_listed():
    difference = compare_rows(ROW, ROW | {"episode_cost": 34.0, "kl": 0.02, "kappa": 0.5}, ["networks"])
    assert str(difference) == (
        "epoch 2, episode_cost: 31.0 in the run, 34.0 in the replay (others that differ: kl and kappa)"
    )


def test_the_smallest_difference_counts():
    assert compare_rows(ROW, ROW | {"kl": 0.01 + 2e-18}) is not None


def test_a_long_list_of_quantities_is_cut():
    names = [f"figure_{number}" for number in range(9)]
    recorded, replayed = ({"epoch": 1} | dict.fromkeys(names, value) for value in (0, 1))
    assert "figure_1, figure_2, figure_3, figure_4, figure_5 and 3 more)" in str(compare_rows(recorded, replayed))


def test_a_row_is_said_to_be_changed_only_if_the_state_is_known_to_be_equal():
    changed = "the row was changed and not the training"
    assert changed in str(compare_rows(ROW, ROW | {"kl": 0.5}))
    assert changed not in str(compare_rows(ROW, ROW | {"kl": 0.5}, ["networks"]))
    without = {name: value for name, value in ROW.items() if name != "digest"}
    assert changed not in str(compare_rows(without, without | {"kl": 0.5}))


def test_the_first_episode_that_differs_is_named_and_missing_ones_are_counted():
    episodes = [{"epoch": 1, "cost": 1.0}, {"epoch": 1, "cost": 2.0}]
    assert compare_episodes(1, episodes, episodes) is None
    other = compare_episodes(1, episodes, [episodes[0], {"epoch": 1, "cost": 2.5}])
    assert str(other) == "epoch 1, episodes: cost of episode 2 is 2.0 in the run, 2.5 in the replay"
    assert str(compare_episodes(1, episodes, episodes[:1])) == "epoch 1, episodes: 2 in the run, 1 in the replay"
