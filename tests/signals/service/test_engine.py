"""One model for many clients: equal results, fair turns, bounded queues, errors that reach only their cause."""

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch
from small_embedded import save_small_embedded
from small_models import PROMPTS, save_small_clip
from waiting import wait_until

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import InputKind, Rule, Scorer, ScorerFailure
from vlmsafe.signals.scorers.make import make_scorer
from vlmsafe.signals.service.engine import Engine, ModelSpec, NotShared, ServiceStopped

ONE = PromptSet(*PROMPTS)
OTHER = PromptSet(("the car drives safely",), ("danger", "the car leaves the road"))
SPEC = ModelSpec("python:somewhere:Scorer", device="cpu", batch=8)


def frames(count: int, seed: int = 0, size: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)


class Slow(Scorer):
    """Its two columns are the first pixel of a frame; scores when it is let, and remembers in which batches."""

    looks_at: ClassVar[InputKind] = "frame"
    rules: ClassVar[tuple[Rule, ...]] = ("decoupled",)
    groups = (1, 1)

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()

    def score(self, inputs: np.ndarray) -> np.ndarray:
        self.go.wait(600.0)
        assert (inputs[:, 0, 0, 0] != 213).all(), "an unlucky frame"
        if (inputs[:, 0, 0, 0] == 214).any():
            return np.full((len(inputs), 2), np.nan, np.float32)
        self.batches.append(inputs[:, 0, 0, 0].tolist())
        return (inputs[:, 0, 0, :2] / 255.0).astype(np.float32)

    def begin(self, parts: Sequence[tuple[Scorer, np.ndarray]]) -> Callable[[], list[np.ndarray]]:
        if not self.whole:
            return super().begin(parts)
        found = self.score(np.concatenate([inputs for _, inputs in parts]))
        return lambda: np.split(found, np.cumsum([len(inputs) for _, inputs in parts])[:-1])


def numbered(*numbers: int) -> np.ndarray:
    block = np.zeros((len(numbers), 4, 4, 3), np.uint8)
    block[:, 0, 0, 0] = numbers
    return block


@pytest.fixture
def engine_of():
    """An engine around one scorer; stopped at the end, whatever happened."""
    engines: list[tuple[Engine, Slow]] = []

    def make(scorer: Slow, **options) -> Engine:
        engine = Engine(make=lambda spec, prompts: scorer, **options)
        engines.append((engine, scorer))
        return engine

    yield make
    for engine, scorer in engines:
        scorer.go.set()
        engine.stop()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_small_clip(folder / "clip")
    save_small_embedded(folder / "weights.safetensors")
    return {"clip": f"clip:{folder / 'clip'}", "embedded": f"embedded:{folder / 'weights.safetensors'}"}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["clip", "embedded"])
def test_clients_that_share_a_model_get_what_private_scorers_give_bit_for_bit(models, kind, precision):
    sets = (ONE, OTHER, ONE)
    private = [make_scorer(models[kind], p, device="cpu", precision=precision, batch=16) for p in sets]
    blocks = [np.concatenate([frames(count, count)] * private[0].frames, -1) for count in (16, 5, 1, 40)]
    expected = [[scorer.score(block) for block in blocks] for scorer in private]
    engine = Engine()
    spec = ModelSpec(models[kind], device="cpu", precision=precision, batch=16)
    keys = [engine.open(spec, prompts).key for prompts in sets]
    futures = [[engine.submit(key, block) for block in blocks] for key in keys]
    for mine, theirs in zip(expected, futures, strict=True):
        for similarities, future in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(future.result(), similarities)
    (described,) = engine.describe()
    assert (described["clients"], described["prompt_sets"]) == (3, 2), "one model, two prompt sets"
    engine.stop()


def test_a_block_is_computed_with_as_many_threads_as_its_client_has(models):
    """With another number some sums are rounded otherwise, here those of five frames."""
    blocks = [frames(count, count) for count in (5, 5, 16, 5, 7)]
    expected, before = {}, torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        private = make_scorer(models["clip"], ONE, device="cpu", batch=16)
        expected[threads] = [private.score(block) for block in blocks]
    torch.set_num_threads(before)
    engine = Engine(cores=3)
    spec = ModelSpec(models["clip"], device="cpu", batch=16)
    clients = [(threads, engine.open(spec, ONE, threads=threads).key) for threads in (1, 2, 1, 2)]
    for _ in range(5):
        futures = [(threads, [engine.submit(key, block) for block in blocks]) for threads, key in clients]
        for threads, theirs in futures:
            for similarities, future in zip(expected[threads], theirs, strict=True):
                np.testing.assert_array_equal(future.result(600.0), similarities)
    engine.stop()


def test_as_many_blocks_are_computed_at_a_time_as_there_are_cores_for():
    scorer = Slow()
    scorer.reentrant = True
    scorer.go.clear()
    engine = Engine(make=lambda spec, prompts: scorer, cores=4)
    keys = [engine.open(SPEC, None, threads=threads).key for threads in (2, 1, 3)]
    futures = [engine.submit(key, numbered(key)) for key in keys]
    wait_until(lambda: engine.describe()[0]["batches"] == 2)
    time.sleep(0.05)
    assert engine.describe()[0]["batches"] == 2, "two threads and one; three more would be too many"
    scorer.go.set()
    for future in futures:
        future.result(600.0)
    engine.stop()


def test_prompts_that_share_a_model_share_its_weights(models):
    engine = Engine()
    spec = ModelSpec(models["clip"], device="cpu")
    one, other = (engine.open(spec, prompts).scorer for prompts in (ONE, OTHER))
    assert one._tower is other._tower
    assert engine.open(spec, ONE).scorer is one
    assert len(engine.describe()) == 1
    engine.open(ModelSpec(models["clip"], device="auto", precision="bfloat16"), ONE)
    assert len(engine.describe()) == 2
    engine.stop()


@pytest.mark.parametrize("kind", ["clip"])
def test_full_batches_hold_frames_of_several_clients_and_change_nothing(models, kind, monkeypatch):
    """Compiled code takes full batches; here it is the plain code in its place, which takes seconds less."""
    monkeypatch.setattr("vlmsafe.signals.scorers.clip.compiled", lambda program: program)
    spec = ModelSpec(models[kind], device="cpu", compile=True, batch=16)
    private = {p: make_scorer(models[kind], p, device="cpu", compile=True, batch=16) for p in (ONE, OTHER)}
    engine = Engine(fill_seconds=0.2)
    clients = [(p, engine.open(spec, p).key, frames(count, count)) for p, count in ((ONE, 3), (OTHER, 7), (ONE, 5))]
    before = engine.describe()[0]["batches"]
    futures = [engine.submit(key, block) for _, key, block in clients]
    for (prompts, _, block), future in zip(clients, futures, strict=True):
        np.testing.assert_array_equal(future.result(), private[prompts].score(block))
    assert engine.describe()[0]["batches"] - before < 3, "frames of several clients in one batch"
    engine.stop()


@pytest.mark.parametrize("compile", [False, True])
def test_another_batch_size_is_no_other_copy_and_changes_nothing(models, compile, monkeypatch):
    monkeypatch.setattr("vlmsafe.signals.scorers.clip.compiled", lambda program: program)  # compiling takes long
    loaded = []

    def make(spec: ModelSpec, prompts: PromptSet | None) -> Scorer:
        loaded.append(spec)
        return make_scorer(spec.scorer, prompts, device="cpu", compile=spec.compile, batch=spec.batch)

    engine, block = Engine(make=make), frames(23, size=32)
    for batch, prompts in ((16, ONE), (5, ONE), (5, OTHER), (7, OTHER)):
        spec = ModelSpec(models["clip"], device="cpu", compile=compile, batch=batch)
        opened = engine.open(spec, prompts)
        private = make_scorer(models["clip"], prompts, device="cpu", compile=compile, batch=batch)
        parts = [block[start : start + batch] for start in range(0, len(block), batch)]
        found = np.concatenate([engine.submit(opened.key, part).result() for part in parts])
        np.testing.assert_array_equal(found, private.score(block))
        np.testing.assert_array_equal(engine.submit(opened.key, block).result(), found, "the engine cuts it alike")
    assert len(loaded) == 1
    assert [model["prompt_sets"] for model in engine.describe()] == [4]
    engine.stop()


def test_a_users_scorer_of_another_batch_size_is_no_other_copy(engine_of):
    scorer = Slow()
    engine = engine_of(scorer)
    keys = [engine.open(dataclasses.replace(SPEC, batch=batch), None).key for batch in (4, 2)]
    block = numbered(*range(6))
    for key in keys:
        engine.submit(key, block).result()
    assert scorer.batches == [[0, 1, 2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]
    assert len(engine.describe()) == 1


def test_a_full_batch_holds_frames_of_clients_with_that_batch_alone(engine_of):
    scorer = Slow(whole=True)
    engine = engine_of(scorer, fill_seconds=0.0)
    keys = [engine.open(dataclasses.replace(SPEC, batch=batch), ONE).key for batch in (4, 2, 4)]
    scorer.go.clear()
    futures = [engine.submit(keys[0], numbered(200))]  # keeps the model busy while the others gather
    time.sleep(0.2)
    futures += [engine.submit(key, numbered(*range(10 * key, 10 * key + 3))) for key in keys]
    scorer.go.set()
    for future in futures:
        future.result(600.0)
    small = {10 * keys[1] + number for number in range(3)}
    for batch in scorer.batches[1:]:
        assert set(batch) <= small or not set(batch) & small
        assert len(batch) <= (2 if set(batch) <= small else 4)


def test_a_model_that_nobody_uses_is_released_and_loaded_again_when_it_is_wanted():
    made: list[weakref.ref[Slow]] = []

    def make(spec: ModelSpec, prompts: PromptSet | None) -> Scorer:
        scorer = Slow()
        made.append(weakref.ref(scorer))
        return scorer

    engine = Engine(make=make, idle_seconds=0.2)
    first, second = (engine.open(SPEC, ONE).key for _ in range(2))
    engine.submit(first, numbered(1)).result()
    engine.close(first)
    time.sleep(0.5)
    assert len(engine.describe()) == 1, "a client has it"
    engine.close(second)
    again = engine.open(SPEC, ONE).key  # in time
    time.sleep(0.5)
    assert engine.submit(again, numbered(1)).result().shape == (1, 2)
    assert len(made) == 1
    engine.close(again)
    until = time.monotonic() + 60.0
    while (engine.describe() or made[0]() is not None) and time.monotonic() < until:
        time.sleep(0.02)
    assert engine.describe() == []
    assert made[0]() is None, "its memory is free"
    assert engine.submit(engine.open(SPEC, ONE).key, numbered(1)).result().shape == (1, 2)
    assert len(made) == 2
    engine.stop()


def test_what_waits_is_batched_across_clients_and_cut_where_a_batch_is_full(engine_of):
    scorer = Slow(whole=True)
    engine = engine_of(scorer, fill_seconds=0.0)
    keys = [engine.open(SPEC, None).key for _ in range(3)]
    scorer.go.clear()
    first = engine.submit(keys[0], numbered(1))
    wait_until(lambda: engine.describe()[0]["batches"] == 1)
    futures = [engine.submit(key, numbered(*range(10 * key, 10 * key + 5))) for key in keys]
    scorer.go.set()
    first.result(600.0)
    for key, future in zip(keys, futures, strict=True):
        assert (future.result(600.0)[:, 0] * 255).round().tolist() == list(range(10 * key, 10 * key + 5))
    assert [len(batch) for batch in scorer.batches] == [1, 8, 7]


def test_blocks_stay_as_they_came_where_results_could_depend_on_the_batch(engine_of):
    scorer = Slow()
    engine = engine_of(scorer)
    keys = [engine.open(SPEC, None).key for _ in range(2)]
    for future in [engine.submit(key, numbered(*[key] * count)) for key in keys for count in (1, 8, 11)]:
        future.result(600.0)
    assert sorted(len(batch) for batch in scorer.batches) == [1, 1, 3, 3, 8, 8, 8, 8], "11 frames are 8 and 3"
    assert all(len(set(batch)) == 1 for batch in scorer.batches)


@pytest.mark.parametrize("whole", [True, False])
def test_a_client_with_little_to_score_does_not_wait_for_one_with_much(engine_of, whole):
    scorer = Slow(whole)
    engine = engine_of(scorer, ahead=20, fill_seconds=0.0)
    greedy, modest = (engine.open(SPEC, None).key for _ in range(2))
    scorer.go.clear()
    engine.submit(greedy, numbered(*[1] * 8))
    wait_until(lambda: engine.describe()[0]["batches"] == 1)
    much = [engine.submit(greedy, numbered(*[1] * 8)) for _ in range(15)]
    little = engine.submit(modest, numbered(2, 2))
    scorer.go.set()
    little.result(600.0)
    much[-1].result(600.0)
    assert next(number for number, batch in enumerate(scorer.batches) if 2 in batch) <= 2
    # Having been idle for long is no claim to be served alone from now on.
    scorer.go.clear()
    blocks = [engine.submit(key, numbered(*[key + 20] * 8)) for _ in range(4) for key in (greedy, modest)]
    scorer.go.set()
    for block in blocks:
        block.result(600.0)
    order = [batch[0] for batch in scorer.batches[-8:]]
    assert order[:4].count(greedy + 20) == 2


def test_newcomers_do_not_keep_an_old_client_waiting(engine_of):
    """They begin where it is, also if nothing waited when they came."""
    scorer = Slow()
    engine = engine_of(scorer)
    old, new = (engine.open(SPEC, None).key for _ in range(2))
    for _ in range(20):
        engine.submit(old, numbered(*[1] * 8)).result(600.0)
    engine.submit(new, numbered(2)).result(600.0)
    scorer.go.clear()
    held = engine.submit(new, numbered(2))
    wait_until(lambda: engine.describe()[0]["batches"] == 22)
    blocks = [engine.submit(key, numbered(*[mark] * 8)) for _ in range(3) for key, mark in ((new, 2), (old, 1))]
    scorer.go.set()
    for block in (held, *blocks):
        block.result(600.0)
    assert sorted(batch[0] for batch in scorer.batches[-6:-2]) == [1, 1, 2, 2]


def test_submitting_waits_while_a_clients_queue_is_full_and_others_go_on(engine_of):
    scorer = Slow()
    engine = engine_of(scorer, ahead=2)
    full, free = (engine.open(SPEC, None).key for _ in range(2))
    scorer.go.clear()
    engine.submit(full, numbered(*range(8)))
    wait_until(lambda: engine.describe()[0]["batches"] == 1)
    engine.submit(full, numbered(*range(8)))
    engine.submit(full, numbered(*range(8)))
    with pytest.raises(TimeoutError):
        engine.submit(full, numbered(1), timeout=0.05)
    engine.submit(free, numbered(3), timeout=0.05)
    scorer.go.set()
    engine.submit(full, numbered(1), timeout=600.0).result(600.0)


def test_a_block_that_cannot_be_scored_fails_alone(engine_of):
    scorer = Slow()
    engine = engine_of(scorer)
    one, other = (engine.open(SPEC, None).key for _ in range(2))
    blocks = ((one, numbered(*[213] * 20)), (one, numbered(214)), (other, numbered(2)))
    unlucky, unclear, fine = (engine.submit(key, block) for key, block in blocks)
    with pytest.raises(ScorerFailure, match="'python:somewhere:Scorer' raised AssertionError: an unlucky frame"):
        unlucky.result(600.0)
    with pytest.raises(InputError, match="the scorer Slow gave similarities from nan"):
        unclear.result(600.0)
    assert fine.result(600.0).shape == (1, 2)
    assert engine.submit(one, numbered(5)).result(600.0).shape == (1, 2)


def test_what_a_client_left_behind_is_not_scored(engine_of):
    scorer = Slow()
    engine = engine_of(scorer)
    gone, there = (engine.open(SPEC, None).key for _ in range(2))
    scorer.go.clear()
    engine.submit(there, numbered(1))
    wait_until(lambda: engine.describe()[0]["batches"] == 1)
    left = engine.submit(gone, numbered(7))
    engine.close(gone)
    scorer.go.set()
    with pytest.raises(CancelledError):
        left.result(600.0)
    engine.submit(there, numbered(2)).result(600.0)
    assert scorer.batches == [[1], [2]]
    with pytest.raises(InputError, match="no client has the key"):
        engine.submit(gone, numbered(7))
    engine.close(gone)


def test_stopping_finishes_what_waits_and_refuses_what_comes(engine_of):
    scorer = Slow(whole=True)
    engine = engine_of(scorer)
    key = engine.open(SPEC, None).key
    scorer.go.clear()
    waiting = [engine.submit(key, numbered(number)) for number in range(5)]
    threading.Timer(0.1, scorer.go.set).start()
    engine.stop()
    assert [round(float(future.result(0.0)[0, 0] * 255)) for future in waiting] == list(range(5))
    with pytest.raises(ServiceStopped):
        engine.submit(key, numbered(1))
    with pytest.raises(ServiceStopped):
        engine.open(SPEC, None)


def test_wrong_frames_are_refused_before_they_reach_the_model(engine_of):
    engine = engine_of(Slow())
    key = engine.open(SPEC, None).key
    for wrong in (numbered(1).astype(np.float32), numbered(1)[..., :2], numbered(1)[0]):
        with pytest.raises(InputError, match="expected frames as a uint8 array"):
            engine.submit(key, wrong)
    assert engine.submit(key, numbered()).result(1.0).shape == (0, 2)
    with pytest.raises(InputError, match=r"expected frames of shape \[4, 4, 3\], as before, got \[24, 24, 3\]"):
        engine.submit(key, frames(1))


def test_frames_of_different_sizes_are_never_in_one_batch(engine_of):
    scorer = Slow(whole=True)
    engine = engine_of(scorer, fill_seconds=0.0)
    small, large = (engine.open(SPEC, None).key for _ in range(2))
    scorer.go.clear()
    first = engine.submit(small, numbered(1))
    wait_until(lambda: engine.describe()[0]["batches"] == 1)
    blocks = [engine.submit(small, numbered(1)), engine.submit(large, frames(2)), engine.submit(small, numbered(1))]
    scorer.go.set()
    for block in (first, *blocks):
        block.result(600.0)  # the sizes could not be joined
    assert [len(batch) for batch in scorer.batches] == [1, 2, 2]


def test_a_model_that_cannot_be_loaded_is_tried_again_by_the_next_client():
    tries = []

    def make(spec: ModelSpec, prompts: PromptSet | None) -> Scorer:
        tries.append(spec)
        if len(tries) == 1:
            raise InputError("there is no such model")
        return Slow()

    engine = Engine(make=make)
    with pytest.raises(InputError, match="there is no such model"):
        engine.open(SPEC, None)
    assert engine.describe() == []
    assert engine.submit(engine.open(SPEC, None).key, numbered(3)).result(600.0).shape == (1, 2)
    engine.stop()


def test_one_clients_prompts_do_not_keep_the_model_from_another():
    loading, second = threading.Event(), threading.Event()

    def make(spec: ModelSpec, prompts: PromptSet | None) -> Scorer:
        if prompts == ONE:
            loading.set()
            assert second.wait(600.0)
            raise InputError("a prompt is too long")
        return Slow()

    engine = Engine(make=make)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(engine.open, SPEC, ONE)
        assert loading.wait(600.0)
        other = pool.submit(engine.open, SPEC, OTHER)
        time.sleep(0.1)  # it waits behind the first by then
        second.set()
        with pytest.raises(InputError, match="a prompt is too long"):
            one.result(600.0)
        assert engine.submit(other.result(600.0).key, numbered(3)).result(600.0).shape == (1, 2)
    engine.stop()


@pytest.mark.parametrize("name", ["rnd", "oracle", "noise", "constant:0.5"])
def test_scorers_that_look_at_no_frames_are_not_shared(name):
    with pytest.raises(NotShared, match="does not look at frames"):
        Engine().open(ModelSpec(name, device="cpu"), None)


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    ("kind", "precision", "compile"),
    [("clip", "float32", 0), ("clip", "bfloat16", 0), ("clip", "bfloat16", 1), ("embedded", "float32", 0)],
)  # fmt: skip
def test_clients_that_share_batches_on_a_gpu_get_what_private_scorers_give(models, kind, precision, compile):
    settings = {"device": "cuda", "precision": precision, "compile": bool(compile), "batch": 16}
    engine = Engine(fill_seconds=0.1)
    spec = ModelSpec(models[kind], **settings)
    clients = []
    for number, prompts in enumerate((ONE, OTHER, ONE, OTHER)):
        opened = engine.open(spec, prompts)
        block = np.concatenate([frames(3 + 2 * number, number)] * opened.scorer.frames, -1)
        clients.append((prompts, opened.key, block))
    for _ in range(3):
        futures = [engine.submit(key, block) for _, key, block in clients]
        found = [future.result(600.0) for future in futures]
    for (prompts, _, block), rows in zip(clients, found, strict=True):
        np.testing.assert_array_equal(rows, make_scorer(models[kind], prompts, **settings).score(block))
    engine.stop()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_several_compiled_models_work_beside_each_other_on_a_gpu(models):
    """Each in its thread, and at the same time."""
    engine = Engine()
    specs = [ModelSpec(models["clip"], "cuda", "bfloat16", compile=True, batch=batch) for batch in (4, 8, 16)]
    keys = [engine.open(spec, ONE).key for spec in specs]
    block = frames(20, 1)
    for _ in range(20):
        futures = [engine.submit(key, block) for key in keys]
        found = [future.result(600.0) for future in futures]
        for rows in found:
            np.testing.assert_allclose(rows, found[0], rtol=0, atol=2e-2)
    engine.stop()
