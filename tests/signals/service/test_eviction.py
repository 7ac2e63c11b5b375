"""Idle models leave memory: after a while, or at once where memory is bounded, the least recently used one first."""

import threading
import weakref

import numpy as np
import pytest
from frame_scorer import FrameScorer
from waiting import wait_until

from vlmsafe.cli import main
from vlmsafe.errors import RunError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Scorer
from vlmsafe.signals.service import engine as engine_module
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.engine import Engine, memory_in_use
from vlmsafe.signals.service.server import Server
from vlmsafe.signals.service.sockets import listen
from vlmsafe.signals.service.spec import ModelSpec, ServiceStopped, parse_address

PROMPTS = PromptSet(("a clear road",), ("danger",))
FRAMES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)


def spec(name: str) -> ModelSpec:
    return ModelSpec(f"python:frame_scorer:{name}", device="cpu", batch=8)


class Shelf:
    """An engine whose models weigh one byte each."""

    def __init__(self, limit: int | None, idle_seconds: float = 600.0) -> None:
        self.made: list[tuple[str, weakref.ref[Scorer]]] = []
        self.engine = Engine(make=self.make, memory_limit=limit, memory=self.weight, idle_seconds=idle_seconds)

    def make(self, wanted: ModelSpec, prompts: PromptSet | None) -> Scorer:
        scorer = FrameScorer(prompts or PROMPTS)
        self.made.append((wanted.scorer.rpartition(":")[2], weakref.ref(scorer)))
        return scorer

    def weight(self) -> int:
        return len(self.there())

    def there(self) -> list[str]:
        return sorted(name for name, scorer in self.made if scorer() is not None)

    def use(self, name: str) -> None:
        key = self.engine.open(spec(name), PROMPTS).key
        np.testing.assert_array_equal(self.engine.submit(key, FRAMES).result(600.0), FrameScorer(PROMPTS).score(FRAMES))
        self.engine.close(key)


@pytest.fixture
def shelf():
    shelves: list[Shelf] = []

    def make(*limits, **options) -> Shelf:
        shelves.append(Shelf(*limits, **options))
        return shelves[-1]

    yield make
    for one in shelves:
        one.engine.stop()


def evictions(engine: Engine) -> dict[str, int]:
    lines = [line for line in engine.expose().splitlines() if line.startswith("vlmsafe_evictions_total{")]
    return {line.split('"')[1]: int(line.rpartition(" ")[2]) for line in lines}


def test_the_least_recently_used_model_is_evicted_first(shelf):
    one = shelf(2)
    for name in ("A", "B", "A", "C"):  # the third model is one too many
        one.use(name)
    wait_until(lambda: one.there() == ["A", "C"])
    one.use("B")
    wait_until(lambda: one.there() == ["B", "C"])
    assert [name for name, _ in one.made] == ["A", "B", "C", "B"]
    assert evictions(one.engine) == {"memory": 2}


def test_without_a_bound_idle_models_stay(shelf):
    one = shelf(None)
    for name in ("A", "B", "C"):
        one.use(name)
    assert one.there() == ["A", "B", "C"]
    assert [model["state"] for model in one.engine.describe()] == ["idle"] * 3
    assert evictions(one.engine) == {}


def test_a_model_in_use_is_never_evicted_and_another_one_is_refused_until_there_is_room(shelf):
    one = shelf(0)  # a model alone is more
    key = one.engine.open(spec("A"), PROMPTS).key
    with pytest.raises(ServiceStopped, match=r"has no memory for another model: it uses .* in use"):
        one.engine.open(spec("B"), PROMPTS)
    again = one.engine.open(spec("A"), PROMPTS).key  # the same one needs no memory
    assert one.engine.submit(key, FRAMES).result(600.0).shape == (5, 2)
    for held in (key, again):
        one.engine.close(held)
    one.use("B")
    assert [name for name, _ in one.made] == ["A", "B"]


def test_a_first_model_is_loaded_even_if_the_process_itself_takes_too_much():
    engine = Engine(make=lambda spec, prompts: FrameScorer(PROMPTS), memory_limit=5, memory=lambda: 10)
    assert engine.submit(engine.open(spec("A"), PROMPTS).key, FRAMES).result(600.0).shape == (5, 2)
    engine.stop()


def test_models_that_are_asked_for_at_once_do_not_exceed_the_memory_together():
    begun, loading, go_on, made = [], threading.Semaphore(0), threading.Event(), []

    def make(wanted: ModelSpec, prompts: PromptSet | None) -> Scorer:
        begun.append(wanted.scorer)
        loading.release()
        go_on.wait(600.0)
        made.append(FrameScorer(PROMPTS))
        return made[-1]

    engine = Engine(make=make, memory_limit=0, memory=lambda: len(made))
    answers: list[object] = []

    def use(name: str) -> None:
        try:
            answers.append(engine.open(spec(name), PROMPTS))
        except ServiceStopped as error:
            answers.append(error)

    threads = [threading.Thread(target=use, args=(name,)) for name in ("A", "B")]
    for thread in threads:
        thread.start()
    loading.acquire()
    assert not loading.acquire(timeout=0.5), "the second model waits until the first one is in memory"
    go_on.set()
    for thread in threads:
        thread.join(600.0)
    assert len(begun) == 1
    assert sorted(type(answer).__name__ for answer in answers) == ["ServiceStopped", "Ticket"]
    engine.stop()


def test_an_evicted_model_is_freed_before_its_memory_is_returned(shelf, monkeypatch):
    one, then = shelf(1), []
    monkeypatch.setattr(engine_module, "_return_memory", lambda: then.append(one.there()))
    for name in ("A", "B"):
        one.use(name)
    wait_until(lambda: bool(then))
    assert then[0] == ["B"], "nothing refers to the evicted model, so its memory can go back to the system"


def test_a_model_becomes_idle_while_memory_is_short_and_goes_at_once(shelf):
    one = shelf(1)
    keys = {name: one.engine.open(spec(name), PROMPTS).key for name in ("A", "B")}  # the second one fits until it is in
    one.engine.close(keys["A"])
    wait_until(lambda: one.there() == ["B"])
    assert one.engine.submit(keys["B"], FRAMES).result(600.0).shape == (5, 2)


def test_models_that_are_idle_for_too_long_go_each_in_its_time(shelf):
    one = shelf(None, idle_seconds=0.3)
    held = one.engine.open(spec("A"), PROMPTS).key
    for name in ("B", "C"):
        one.use(name)
    wait_until(lambda: one.there() == ["A"])
    assert evictions(one.engine) == {"idle": 2}
    one.use("B")  # loaded again, with the same answers
    assert one.engine.submit(held, FRAMES).result(600.0).shape == (5, 2)


def test_two_models_load_at_once():
    both = threading.Barrier(2, timeout=600.0)

    def make(wanted: ModelSpec, prompts: PromptSet | None) -> Scorer:
        both.wait()  # passes only while the other one is being loaded too
        return FrameScorer(PROMPTS)

    engine = Engine(make=make)
    opening = [threading.Thread(target=engine.open, args=(spec(name), PROMPTS)) for name in ("A", "B")]
    for thread in opening:
        thread.start()
    for thread in opening:
        thread.join(600.0)
    assert [model["state"] for model in engine.describe()] == ["in use", "in use"]
    engine.stop()
    assert [model["state"] for model in engine.describe()] == ["gone", "gone"]


def test_a_run_waits_until_there_is_memory_for_its_model(tmp_path, shelf):
    one = shelf(0)
    address = parse_address(f"unix:{tmp_path / 'socket'}")
    listener, clean_up = listen(address)
    server = Server(listener, one.engine)
    try:
        first = ServiceScorer(address, spec("A"), PROMPTS, 10.0)
        with pytest.raises(RunError, match="no memory for another model"):
            ServiceScorer(address, spec("B"), PROMPTS, 0.3)
        threading.Timer(0.3, first.close).start()
        second = ServiceScorer(address, spec("B"), PROMPTS, 60.0)
        np.testing.assert_array_equal(second.score(FRAMES), FrameScorer(PROMPTS).score(FRAMES))
        second.close()
    finally:
        server.stop()
        clean_up()


def test_memory_in_use_follows_what_the_process_holds():
    before = memory_in_use()
    held = np.ones(64 * 2**20, np.uint8)
    assert memory_in_use() - before > 50 * 2**20
    assert held.all()


@pytest.mark.parametrize("wrong", ["0", "-1", "inf", "nan"])
def test_a_bound_that_is_none_is_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--memory-gib", wrong])
    assert "it must be finite and greater than 0" in capsys.readouterr().err
