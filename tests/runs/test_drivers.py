"""Shipped drivers: they are whole, act as the runs they were made of, and can be given wherever a run can."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from in_process import call
from PIL import Image

import vlmsafe
from vlmsafe.config.yaml import read_yaml
from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError, RunError
from vlmsafe.evaluation.plan import load_policy
from vlmsafe.runs import drivers as shelf
from vlmsafe.runs.drivers import file_digest, open_run, write_driver

SMALL = {"env": "braking", "total_steps": 800, "steps_per_epoch": 400, "quiet": True,
         "learner": {"update_iters": 2, "hidden": (8, 8)}}  # fmt: skip
CARD = {"env": {"name": "braking"}, "method": "ppo-lag", "steps": 800,
        "held_out": {"figures": {"cost": {"mean": 1.5}, "distance": {"mean": 9.0}}}}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The run of which the driver `small` is made."""
    return vlmsafe.train(**SMALL, seed=3, run_dir=str(tmp_path_factory.mktemp("source") / "run"))


@pytest.fixture
def small(source, tmp_path, monkeypatch):
    """A driver `small` on a shelf of its own, in an empty working directory."""
    monkeypatch.setattr(shelf, "SHIPPED", tmp_path / "shelf")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return write_driver(tmp_path / "shelf" / "small", source, CARD, b"picture")


def actions(run):
    policy, normaliser = load_policy(run, run.checkpoint()[0])
    observations = np.random.default_rng(0).normal(size=(50, len(normaliser.mean))).astype(np.float32)
    return np.array([policy.mean(normaliser.normalise(row)) for row in observations])


# -- those that ship ---------------------------------------------------------------------------------------------------


def test_they_are_small_together_and_nothing_is_pickled():
    files = [file for file in shelf.SHIPPED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 5_000_000
    assert {file.suffix for file in files} == {".yaml", ".safetensors", ".png"}


@pytest.mark.parametrize("name", vlmsafe.drivers())
def test_a_shipped_driver_is_whole_and_its_card_says_how_it_was_made_and_chosen(name):
    driver = vlmsafe.drivers()[name]
    card, run = driver.card, open_run(f"driver:{name}")
    assert card["name"] == name
    assert file_digest(driver.weights) == card["weights"]["sha256"]
    assert env_spec(card["env"]["name"]).version == card["env"]["version"]
    assert run.config.env == card["env"]["name"]
    assert run.config.method == card["method"]
    assert run.config.seed == card["seeds"]["chosen"]
    assert card["seeds"]["chosen"] in card["seeds"]["tried"]
    assert card["commands"][-1].startswith("vlmsafe ")
    assert card["chosen_by"]["scenarios"] != card["held_out"]["scenarios"]
    assert card["held_out"]["episodes"] >= 100
    for figure in card["held_out"]["figures"].values():
        assert figure["low"] <= figure["mean"] <= figure["high"]
    assert run.checkpoint()[0].shape.hidden == tuple(card["policy"]["hidden"])
    with Image.open(driver.picture) as picture:
        assert picture.format == "PNG"


@pytest.mark.parametrize("name", vlmsafe.drivers())
def test_its_files_name_no_place_of_the_machine_that_made_it(name):
    folder = vlmsafe.drivers()[name].path
    text = (folder / "card.yaml").read_text() + (folder / "config.yaml").read_text()
    text += next((folder / "checkpoints").iterdir()).read_bytes().decode(errors="replace")
    assert not any(place in text for place in ("/tmp", "/home", "/work", "/root"))


def test_the_wheel_takes_every_file_of_a_driver():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["vlmsafe"]
    root = Path(vlmsafe.__file__).parent
    taken = {file for pattern in patterns for file in root.glob(pattern)}
    assert {file for file in shelf.SHIPPED.rglob("*") if file.is_file()} <= taken


# -- what a driver is --------------------------------------------------------------------------------------------------


def test_a_driver_acts_exactly_as_the_run_that_it_was_made_of(small, source):
    np.testing.assert_array_equal(actions(small.run()), actions(source))
    assert small.run().checkpoint()[0].arrays["networks"].shape[0] == 1  # no critics


def test_an_evaluation_of_a_driver_is_that_of_its_run_and_leaves_the_package_alone(small, source):
    before = {file: file.read_bytes() for file in small.path.rglob("*") if file.is_file()}
    table = vlmsafe.evaluate("driver:small", episodes=3)
    columns = ["scenario", "env_return", "cost", "length"]
    assert table.select(columns).equals(vlmsafe.evaluate(source, episodes=3).select(columns))
    assert {file: file.read_bytes() for file in small.path.rglob("*") if file.is_file()} == before
    assert Path("runs/drivers/small/evaluations/held-out.parquet").is_file()
    assert vlmsafe.evaluate("driver:small", episodes=3).equals(table)  # from the copy


def test_trace_scope_and_prompts_bench_take_a_driver(small):
    assert "record one with: vlmsafe trace driver:small" in call("scope", "driver:small").stderr
    answer = call("trace", "driver:small", "--episodes", "1", "--frames", "--every", "4")
    assert "runs/drivers/small/traces/held-out.parquet" in answer.stdout.replace("\n", "")
    assert call("scope", "driver:small").returncode == 0
    assert Path("runs/drivers/small/scope-held-out.html").is_file()
    answer = call("prompts", "bench", "driver:small", "--prompts", "metadrive", "--resamples", "10")
    assert answer.returncode == 0
    assert "braking" in answer.stdout


def test_a_run_starts_from_a_driver_and_records_it(small, source, tmp_path):
    run = vlmsafe.train(**{**SMALL, "init_from": "driver:small"}, run_dir=str(tmp_path / "run"))
    assert run.config.init_from == "driver:small"
    start = read_yaml(run.path / "config.yaml")["recorded"]["start"]
    theirs = source.checkpoint()[0]
    assert (start["source"], start["env"], start["epoch"]) == ("driver:small", "braking", theirs.epoch)
    assert start["digest"]["normaliser"] == theirs.digest()["normaliser"]
    assert "world" not in start
    np.testing.assert_array_equal(run.start().arrays["networks"][0], theirs.arrays["networks"][0])


def test_a_copy_is_a_run_that_audits_but_is_not_continued_or_verified(small):
    copy = small.unpack("copy")
    assert "incomplete-run" not in {finding.code for finding in vlmsafe.audit(["copy"]).findings}
    with pytest.raises(RunError, match="is a shipped driver, which cannot be continued"):
        vlmsafe.resume(copy.path, total_steps=1600)
    answer = call("train", "--resume", "driver:small")
    assert (answer.returncode, len(answer.stderr.strip().splitlines())) == (1, 1)
    assert "driver:small is a shipped driver, which cannot be continued; train it on with: vlmsafe" in answer.stderr
    assert "--env braking --init-from driver:small" in answer.stderr
    with pytest.raises(InputError, match="is a shipped driver and has no training to replay"):
        vlmsafe.verify(copy.path)


def test_the_listing_and_the_card(small):
    listed = call("drivers").stdout
    row = next(line for line in listed.splitlines() if "small" in line)
    size = f"{small.size / 1000:.0f}"
    assert row.split()[:8] == ["small", "braking", "ppo-lag", "800", "9.0", "distance", "1.50", size]
    shown = call("drivers", "small").stdout
    assert small.card["weights"]["sha256"] in shown
    assert call("drivers", "driver:small").stdout == shown
    assert "unpacked: there" in call("drivers", "small", "--unpack", "there").stdout
    assert vlmsafe.evaluate("there", episodes=1).height == 1


# -- what is refused, in one line, with nothing written ----------------------------------------------------------------

TRAIN = ("train", "--total-steps", "800", "--steps-per-epoch", "400", "--run-dir", "run", "--init-from")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "driver:smal"), "unknown driver 'smal'; did you mean 'small'? Known: small"),
        (("trace", "driver:none"), "unknown driver 'none'. Known: small"),
        (("scope", "driver:none"), "unknown driver 'none'. Known: small"),
        (("prompts", "bench", "driver:none"), "unknown driver 'none'. Known: small"),
        (("drivers", "none"), "unknown driver 'none'. Known: small"),
        (("drivers", "--unpack", "there"), "--unpack needs a driver"),
        (("evaluate", "driver:small", "--protocol", "none"), "unknown protocol 'none'"),
        (("evaluate", "driver:small", "--episodes", "0"), "episodes is 0; it must be at least 1"),
        (("evaluate", "driver:small", "--env", "speeding"), "'speeding' is another world"),
        (("trace", "driver:small", "--scorer", "none"), "scorer"),
        ((*TRAIN, "driver:none"), "unknown driver 'none'. Known: small"),
        ((*TRAIN, "driver:small", "--env", "speeding"), "for 'braking', which is another world than 'speeding'"),
        ((*TRAIN, "driver:small", "--env", "braking"), "hidden layers of 8 8; this run on 'braking' has 64 64; pass"),
        ((*TRAIN, "driver:small", "--env", "gym:broken_envs:Walk-v0"), "a policy with observations of length 2"),
        ((*TRAIN, "driver:small", "--env", "braking", "--init-critics"), "has no critics; drop it"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line_and_writes_nothing(small, monkeypatch, words, message):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "end_to_end")
    answer = call(*words)
    assert answer.returncode == 2
    assert len(answer.stderr.strip().splitlines()) == 1
    assert message in answer.stderr
    assert not list(Path().iterdir())


@pytest.mark.parametrize("words", [("evaluate", "driver:small"), (*TRAIN, "driver:small", "--env", "braking")])
def test_damaged_weights_are_refused(small, words):
    data = bytearray(small.weights.read_bytes())
    data[-1] ^= 1
    small.weights.write_bytes(data)
    answer = call(*words)
    assert answer.returncode == 1
    assert len(answer.stderr.strip().splitlines()) == 1
    assert "the weights of driver:small are damaged" in answer.stderr
    assert not list(Path().iterdir())


def test_a_copy_of_another_version_or_another_run_is_not_mixed_with_the_driver(small, source):
    copy = small.unpack("runs/drivers/small").path
    (copy / "card.yaml").write_text("name: small\n")
    with pytest.raises(InputError, match="holds another run, or another version of driver:small"):
        vlmsafe.evaluate("driver:small", episodes=1)
    shutil.copytree(source.path, "other")
    with pytest.raises(InputError, match="holds another run"):
        small.unpack("other")
    Path("full").mkdir()
    Path("full/file").touch()
    with pytest.raises(InputError, match="full is not empty"):
        small.unpack("full")


def test_evaluations_that_begin_at_once_share_one_copy(small):
    together = threading.Barrier(4)

    def unpack(_):
        together.wait()
        return small.unpack("runs/drivers/small").path

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(unpack, range(4))) == {Path("runs/drivers/small")}
    assert [path.name for path in Path("runs/drivers").iterdir()] == ["small"]


def test_a_driver_of_a_warm_started_run_needs_its_source_no_more(small, source, tmp_path):
    warm = {"init_from": "driver:small", "init_std": 0.2, "init_mean": 0.1}
    run = vlmsafe.train(**{**SMALL, **warm}, run_dir=str(tmp_path / "run"))
    driver = write_driver(tmp_path / "shelf" / "warm", run, CARD, b"")
    shutil.rmtree(small.path)
    assert driver.run().config.init_from is None
    np.testing.assert_array_equal(actions(driver.run()), actions(run))


def test_a_run_with_a_signal_is_no_driver(source, tmp_path):
    signal = vlmsafe.train(
        **SMALL, method="vlm-ppo-lag", signal={"scorer": "constant:0.5"}, run_dir=str(tmp_path / "run")
    )  # fmt: skip
    with pytest.raises(InputError, match="has a signal"):
        write_driver(tmp_path / "driver", signal, CARD, b"")
    assert not (tmp_path / "driver").exists()
