"""Novelty: the formula, the order of its steps, and what a checkpoint has to hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers import rnd
from vlmsafe.signals.scorers.rnd import Network, RndScorer

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def observations(count: int, dimension: int = 5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centre, spread = rng.normal(size=dimension) * 20, rng.uniform(0.1, 10, dimension)
    return (centre + spread * rng.normal(size=(count, dimension))).astype(np.float32)


def torch_network(block: np.ndarray, dimension: int) -> torch.nn.Sequential:
    """The network that torch would build, with the weights of a scorer's state."""
    network = torch.nn.Sequential(
        torch.nn.Linear(dimension, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 32),
    )
    torch.nn.utils.vector_to_parameters(torch.tensor(block).flatten(), network.parameters())
    return network


def reference(scorer: RndScorer, rows: np.ndarray) -> tuple[list[float], torch.nn.Sequential]:
    """The definition, with torch for everything that learns and whole histories for everything that runs."""
    state = scorer.state()
    target, predictor = (torch_network(state[name], rows.shape[1]) for name in ("target", "predictor"))
    adam = torch.optim.Adam(predictor.parameters(), lr=1e-4)
    novelties: list[float] = []
    errors: list[float] = []
    for step, row in enumerate(rows):
        seen = rows[: step + 1].astype(np.float64)
        deviation = np.maximum(seen.std(axis=0, ddof=1), 1e-2) if step else 1.0
        inputs = torch.tensor(np.clip((row - seen.mean(axis=0)) / deviation, -5, 5), dtype=torch.float32)
        loss = ((predictor(inputs) - target(inputs).detach()) ** 2).mean()
        errors.append(loss.item())
        z = loss.item() / (np.std(errors, ddof=1) if step else 1.0)
        novelties.append(1.0 - math.exp(-z))
        adam.zero_grad()
        loss.backward()
        adam.step()
    return novelties, predictor


@pytest.mark.parametrize("dimension", [1, 5, 44])
def test_novelty_and_predictor_follow_the_definition(dimension):
    scorer, rows = RndScorer(dimension, 3), observations(60, dimension)
    expected, predictor = reference(scorer, rows)
    np.testing.assert_allclose(scorer.score(rows)[:, 0], expected, atol=2e-5)
    learned = torch.nn.utils.parameters_to_vector(predictor.parameters()).detach().numpy()
    np.testing.assert_allclose(scorer.state()["predictor"][0], learned, atol=1e-6)


@quick
@given(seeds)
def test_gradient_equals_autograd(seed):
    rng = np.random.default_rng(seed)
    network, gradient = Network((7, 64, 64, 32)), Network((7, 64, 64, 32))
    network.initialise(rng)
    inputs, d_output = rng.normal(size=7).astype(np.float32), rng.normal(size=32).astype(np.float32)
    activations = network.forward(inputs)
    network.backward(inputs, activations, d_output, gradient)
    by_torch = torch_network(network.block, 7)
    output = by_torch(torch.tensor(inputs))
    output.backward(torch.tensor(d_output))
    slopes = torch.cat([parameter.grad.flatten() for parameter in by_torch.parameters()]).numpy()
    np.testing.assert_allclose(activations[-1], output.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(gradient.block[0], slopes, rtol=1e-5, atol=1e-6)


@quick
@given(seeds, st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_result_does_not_depend_on_how_inputs_are_split(seed, sizes):
    rows = observations(sum(sizes), seed=seed)
    whole, parts = RndScorer(5, seed), RndScorer(5, seed)
    expected = whole.score(rows)
    got = [parts.score(part) for part in np.split(rows, np.cumsum(sizes)[:-1])]
    np.testing.assert_array_equal(np.concatenate(got), expected)
    assert_same_state(parts, whole)


def test_continuing_from_a_saved_state_equals_going_on():
    rows = observations(80)
    scorer, other = RndScorer(5, (1, 2)), RndScorer(5, 99)
    scorer.score(rows[:40])
    saved = scorer.state()
    before = {name: array.copy() for name, array in saved.items()}
    expected = scorer.score(rows[40:])
    other.load_state(saved)
    np.testing.assert_array_equal(other.score(rows[40:]), expected)
    assert_same_state(other, scorer)
    for name, array in saved.items():  # neither scorer wrote into it
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def assert_same_state(left: RndScorer, right: RndScorer) -> None:
    ours, theirs = left.state(), right.state()
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_state_of_another_environment_is_refused():
    with pytest.raises(InputError, match="44 numbers; here they have 5"):
        RndScorer(5, 0).load_state(RndScorer(44, 0).state())


@quick
@given(
    npst.arrays(
        np.float32,
        st.tuples(st.integers(0, 20), st.just(3)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, 1.0]),
    )
)
def test_novelty_is_at_least_zero_and_below_one(rows):
    novelties = RndScorer(3, 0).score(rows)
    assert novelties.shape == (len(rows), 1)
    assert novelties.dtype == np.float32
    assert np.all((novelties >= 0.0) & (novelties < 1.0))


def test_novelty_far_above_the_usual_stays_below_one():
    scorer = RndScorer(3, 0)
    scorer.score(observations(2, 3))
    usual_error_zero = scorer.state() | {"errors": np.array([1e9, 0.0, 0.0])}
    scorer.load_state(usual_error_zero)
    assert scorer.score(observations(1, 3)).item() == np.nextafter(np.float32(1), np.float32(0))


def test_repeated_observations_lose_their_novelty_and_a_new_one_has_more():
    scorer = RndScorer(5, 0)
    familiar = observations(8)
    rounds = [scorer.score(familiar).mean() for _ in range(400)]
    assert rounds[-1] < 0.1 * rounds[1]
    assert rounds[-1] < rounds[100] < rounds[10]
    new = familiar.mean(axis=0, keepdims=True) + 3 * familiar.std(axis=0, keepdims=True)
    assert scorer.score(new).item() > 10 * rounds[-1]


def test_novelty_is_that_before_the_predictor_learns(monkeypatch):
    rows = observations(2)
    slow = RndScorer(5, 0).score(rows)[:, 0]
    monkeypatch.setattr(rnd, "LEARNING_RATE", 0.1)
    fast = RndScorer(5, 0).score(rows)[:, 0]
    assert fast[0] == slow[0] > 0.0
    assert fast[1] != slow[1]


def test_scale_and_offset_of_observations_do_not_matter():
    rows = observations(50)
    shifted = (rows.astype(np.float64) * 8 + 64).astype(np.float32)  # nearly exact: powers of two
    np.testing.assert_allclose(RndScorer(5, 0).score(shifted), RndScorer(5, 0).score(rows), atol=1e-3)


def test_networks_start_within_the_bounds_of_their_layers():
    state = RndScorer(44, 7).state()
    for name in ("target", "predictor"):
        for layer in torch_network(state[name], 44):
            if isinstance(layer, torch.nn.Linear):
                bound = 1.0 / math.sqrt(layer.in_features)
                for parameter in (layer.weight, layer.bias):
                    assert 0.8 * bound < parameter.abs().max() <= bound
                assert abs(layer.weight.mean()) < 0.1 * bound
    assert not np.array_equal(state["target"], state["predictor"])


def test_seed_alone_decides_the_networks():
    rows = observations(5)
    scores = {seed: RndScorer(5, seed).score(rows) for seed in (0, 1, (0, 1), (1, 1))}
    np.testing.assert_array_equal(RndScorer(5, (0, 1)).score(rows), scores[0, 1])
    assert len({array.tobytes() for array in scores.values()}) == 4


def test_target_does_not_learn_and_the_predictor_does():
    scorer = RndScorer(5, 0)
    before = scorer.state()
    scorer.score(observations(10))
    after = scorer.state()
    np.testing.assert_array_equal(after["target"], before["target"])
    assert not np.array_equal(after["predictor"], before["predictor"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((4, 3), np.float32), r"\[N, 5\], got \[4, 3\]"),
        (np.zeros(5, np.float32), r"\[N, 5\], got \[5\]"),
        (np.array([[0, 0, 0, 0, 0], [0, np.nan, 0, 0, 0]], np.float32), "not finite"),
    ],
)
def test_observations_that_cannot_be_scored_are_named_and_leave_no_trace(rows, message):
    scorer = RndScorer(5, 0)
    with pytest.raises(InputError, match=message):
        scorer.score(rows)
    assert_same_state(scorer, RndScorer(5, 0))


def test_observations_without_numbers_are_refused():
    with pytest.raises(InputError, match="at least one number, got 0"):
        RndScorer(0, 0)


def test_description_says_what_was_used():
    assert RndScorer(44, 0).describe() == {
        "model": "random network distillation",
        "networks": "44-64-64-32",
        "parameters": 9120,
        "learning_rate": 1e-4,
    }
