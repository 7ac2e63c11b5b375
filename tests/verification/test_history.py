"""Records that do not fit together are found without computing anything."""

import shutil

import pytest
from verified_runs import EPOCHS, change_checkpoint, edit_rows, make_run, without_digests

from vlmsafe.errors import InputError, RunError
from vlmsafe.runs.checkpoint import load_checkpoint, path_of
from vlmsafe.runs.run import Run
from vlmsafe.verification.history import History


@pytest.fixture
def run(made_once, tmp_path):
    """A finished run that a test may change."""
    return Run.open(shutil.copytree(made_once("verified-run", make_run), tmp_path / "run"))


def found(run):
    """Epoch, quantity and words of each difference."""
    return [(one.epoch, one.quantity, one.text) for one in History.of(Run.open(run.path)).differences()]


def test_an_intact_run_fits_together(run):
    history = History.of(run)
    assert history.differences() == []
    assert list(history.matching()) == [4, 5, 6]
    assert list(history.notes()) == []


def test_progress_that_was_changed_or_removed_is_found(tmp_path):
    run = make_run(tmp_path / "run", env="braking", total_steps=400)
    assert found(run) == []
    edit_rows(run, "epochs", lambda rows: rows[1]["progress"].update(distance=1e6))
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (2, "progress")
    assert "the progress in its rows changed after the epoch was recorded" in text
    for name in ("epochs", "episodes"):
        edit_rows(run, name, lambda rows: [row.pop("progress") for row in rows])
    assert [(epoch, quantity) for epoch, quantity, _ in found(run)] == [(1, "progress")]


def test_a_changed_row_is_found_in_any_epoch(run):
    def change(rows):
        rows[2]["episode_cost"] += 1e-9

    edit_rows(run, "epochs", change)
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (3, "row")
    assert "changed after the epoch was recorded" in text


def test_changed_rows_of_episodes_are_found_and_counted(run):
    def change(rows):
        for row in rows:
            row["return"] += 1.0 if row["epoch"] in (2, 5) else 0.0

    edit_rows(run, "episodes", change)
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (2, "episodes")
    assert "the same holds for epoch 5" in text


@pytest.mark.parametrize("place", [0, 3])
def test_a_row_that_was_removed_is_found(run, place):
    edit_rows(run, "epochs", lambda rows: rows.pop(place))
    epoch, quantity, _ = found(run)[0]
    assert (epoch, quantity) == (place + 1, "rows")
    assert not History.of(run).in_order


def test_episodes_of_an_epoch_without_a_row_are_found_unless_a_killed_process_left_them(run):
    edit_rows(run, "episodes", lambda rows: rows.append(rows[-1] | {"epoch": 7}))
    assert found(run) == []
    edit_rows(run, "episodes", lambda rows: rows.append(rows[-1] | {"epoch": 9}))
    ((epoch, quantity, _),) = found(run)
    assert (epoch, quantity) == (7, "episodes")


def test_rows_that_end_before_the_checkpoints_are_found(run):
    edit_rows(run, "epochs", lambda rows: rows.pop())
    edit_rows(run, "episodes", lambda rows: rows.__setitem__(slice(None), [r for r in rows if r["epoch"] < EPOCHS]))
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (EPOCHS, "rows")
    assert "ends at 5" in text


def test_a_changed_checkpoint_is_found_although_its_checksum_fits(run):
    networks = load_checkpoint(path_of(run.checkpoints, 5)).arrays["networks"].copy()
    networks[0, 0] += 1e-3
    change_checkpoint(run, 5, {"networks": networks})
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (5, "checkpoint")
    assert text.startswith("the digests of its networks are not")
    assert list(History.of(run).matching()) == [4, 6]


def test_a_changed_checkpoint_is_found_although_its_row_lost_the_digest_of_that_part(run):
    networks = load_checkpoint(path_of(run.checkpoints, 6)).arrays["networks"].copy()
    networks[0, 0] += 1e-3
    change_checkpoint(run, 6, {"networks": networks})
    edit_rows(run, "epochs", lambda rows: rows[5]["digest"].pop("networks"))
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (6, "checkpoint")
    assert text.startswith("the digests of its networks are not")


def test_a_damaged_checkpoint_is_found(run):
    path = path_of(run.checkpoints, 6)
    path.write_bytes(path.read_bytes()[:-1])
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (6, "checkpoint")
    assert "damaged" in text


def test_a_checkpoint_under_the_name_of_another_epoch_is_found(run):
    path_of(run.checkpoints, 5).replace(path_of(run.checkpoints, 6))
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (6, "checkpoint")
    assert "state of epoch 5" in text


def test_a_last_checkpoint_that_was_removed_from_a_finished_run_is_found(run):
    path_of(run.checkpoints, 6).unlink()
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (6, "checkpoint")
    assert "newest checkpoint is of epoch 5" in text


def test_settings_that_were_edited_afterwards_are_found(run):
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("seed: 3", "seed: 4"))
    assert {(quantity, "seed was 3, is 4" in text) for _, quantity, text in found(run)} == {("settings", True)}
    assert not History.of(Run.open(run.path)).matching()


def test_a_damaged_journal_is_found(run):
    with (run.path / "events.jsonl").open("a") as file:
        file.write("not a row\n")
    ((epoch, quantity, _),) = found(run)
    assert (epoch, quantity) == (0, "events")


def test_rows_after_the_last_checkpoint_of_a_killed_run_are_no_difference(run):
    path_of(run.checkpoints, 6).unlink()
    edit_rows(run, "events", lambda rows: rows.pop())  # that it finished
    history = History.of(run)
    assert history.differences() == []
    assert "no checkpoint covers epoch 6" in " ".join(history.notes())


def test_a_run_without_digests_is_read_and_said_to_have_none(run):
    without_digests(run)
    history = History.of(run)
    assert history.differences() == []
    assert history.state_after(1) is None
    assert history.state_after(6) == history.checkpoints[6].digest()
    assert "wrote epochs 1 to 6 without digests" in " ".join(history.notes())


@pytest.mark.parametrize(("places", "others"), [((3, 4), "epoch 5"), ((3, 5), "epoch 6")])
def test_a_digest_that_was_removed_from_a_later_row_is_found(run, places, others):
    edit_rows(run, "epochs", lambda rows: [rows[place].pop("digest") for place in places])
    ((epoch, quantity, text),) = found(run)
    assert (epoch, quantity) == (4, "row")
    assert text == f"the row has no digest, but an earlier row has one; the same holds for {others}"
    assert not [*History.of(run).notes()]


def test_a_run_that_an_earlier_version_began_is_no_difference(run):
    edit_rows(run, "epochs", lambda rows: [row.pop("digest") for row in rows[:2]])
    history = History.of(run)
    assert history.differences() == []
    assert "wrote epochs 1 to 2 without digests" in " ".join(history.notes())


@pytest.mark.parametrize("name", ["epochs", "episodes"])
def test_a_missing_row_file_is_named(run, name):
    (run.path / f"{name}.jsonl").unlink()
    with pytest.raises(InputError, match=rf"no complete run: {name}.jsonl missing"):
        History.of(run)


def test_a_digest_of_another_kind_is_damage(run):
    edit_rows(run, "epochs", lambda rows: rows[2].__setitem__("digest", "abc"))
    with pytest.raises(RunError, match="expected digests by part in the row of epoch 3, got 'abc'"):
        History.of(run)


def test_a_run_without_a_finished_epoch_says_how_to_continue_it(run):
    for name in ("epochs", "episodes"):
        (run.path / f"{name}.jsonl").write_text("")
    with pytest.raises(InputError, match=r"no finished epoch yet.*vlmsafe train --resume"):
        History.of(run)
