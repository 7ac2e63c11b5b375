"""States of models change as the table says, and the client that was served least goes next."""

import itertools
import threading

import numpy as np
import pytest
from frame_scorer import FrameScorer
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.service.scheduler import (
    TRANSITIONS,
    Change,
    Client,
    Piece,
    Queue,
    Reading,
    State,
    after,
    count,
    is_full,
)
from vlmsafe.signals.service.spec import ServiceStopped

SCORER = FrameScorer(PromptSet(("a clear road",), ("danger",)))
BATCH = 8


def ready(**options) -> Queue:
    queue = Queue(threading.Lock(), ahead=100, fill_seconds=0.0, **options)
    with queue.lock:
        queue.join()
        queue.move(Change.LOADED)
    return queue


def client(batch: int = BATCH, threads: int = 1) -> Client:
    return Client(SCORER, None, Reading(None, threads, batch))


def frames(number: int, size: int = 2) -> np.ndarray:
    return np.zeros((number, size, size, 3), np.uint8)


def test_a_model_goes_only_from_state_to_state_as_the_table_says():
    for state, change in itertools.product(State, Change):
        if (state, change) in TRANSITIONS:
            assert after(state, change) is TRANSITIONS[state, change]
        else:
            with pytest.raises(RuntimeError, match=f"a model that is {state.value} cannot be one that {change.value}"):
                after(state, change)


def test_a_model_that_ends_never_begins_again():
    ending = {State.STOPPING, State.GONE}
    for (state, change), then in TRANSITIONS.items():
        if state in ending:
            assert then in ending, (state, change)
    assert all(then is State.GONE for (state, _), then in TRANSITIONS.items() if state is State.GONE)


def test_every_state_can_be_reached_and_all_lead_to_the_end():
    reached, found = {State.LOADING}, {State.GONE}
    for _ in State:
        reached |= {then for (state, _), then in TRANSITIONS.items() if state in reached}
        found |= {state for (state, _), then in TRANSITIONS.items() if then in found}
    assert reached == found == set(State)


def test_a_queue_follows_its_users():
    queue = ready()
    with queue.lock:
        queue.join()
        queue.leave()
        assert queue.state is State.IN_USE, "one user is left"
        queue.leave()
        assert queue.state is State.IDLE
        queue.join()
        assert queue.state is State.IN_USE
        queue.move(Change.STOPPED)
    with pytest.raises(ServiceStopped):
        queue.submit(client(), frames(1), None)
    assert queue.take_block() is None
    assert queue.fill([]) == []


def test_what_waits_when_a_model_stops_is_still_given_out():
    queue = ready()
    block = queue.submit(client(), frames(3), None)
    with queue.lock:
        queue.move(Change.STOPPED)
    piece = queue.take_block()
    assert piece is not None
    assert (piece.block, piece.count) == (block, 3)
    queue.free_cores(piece.block.client)
    assert queue.take_block() is None


@settings(max_examples=100, deadline=None)
@given(
    blocks=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3 * BATCH)), min_size=1, max_size=40),
    whole=st.booleans(),
)
def test_each_frame_is_given_out_once_and_in_turn(blocks, whole):
    """Among clients that wait all the time, none is ever more than a batch ahead of another."""
    queue = ready()
    clients = [client() for _ in range(5)]
    submitted = [queue.submit(clients[number], frames(size), None) for number, size in blocks]
    taken: list[Piece] = []
    while queue.waiting:
        pieces = queue.take_batch([]) if whole else [queue.take_block()]
        for piece in pieces:
            if not whole:
                queue.free_cores(piece.block.client)
            taken.append(piece)
        assert count(pieces) <= BATCH
        served = [one.served for one in clients if one.waiting]
        assert not served or max(served) - min(served) <= BATCH
        assert not whole or is_full(pieces) or not queue.waiting
    for block in submitted:
        pieces = [piece for piece in taken if piece.block is block]
        assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])], "in order"
        assert pieces[-1].stop == len(block.frames)


def test_a_batch_never_joins_frames_of_two_sizes_or_two_batches():
    queue = ready()
    for one, shape in ((client(), 2), (client(), 3), (client(batch=4), 2), (client(), 2)):
        queue.submit(one, frames(2, shape), None)
    found = []
    while queue.waiting:
        found.append([(piece.block.frames.shape[1], piece.block.client.batch) for piece in queue.take_batch([])])
    assert sorted(found) == [[(2, 4)], [(2, 8), (2, 8)], [(3, 8)]]


def test_an_error_of_one_block_leaves_the_others_in_the_queue():
    queue, one = ready(), client()
    failing, fine = queue.submit(one, frames(20), None), queue.submit(one, frames(2), None)
    piece = queue.take_block()
    assert piece is not None
    queue.fail([piece], ValueError("no"))
    assert isinstance(failing.future.exception(0.0), ValueError)
    assert (queue.waiting, one.waiting) == (2, 2)
    queue.break_off(RuntimeError("a defect"))
    assert queue.state is State.GONE
    assert isinstance(fine.future.exception(0.0), RuntimeError)
    assert queue.waiting == 0
