"""CPO's step is the solution of its problem and stays within it; full batches have no order, for any learner."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from vlmsafe.config.learning import OFF_POLICY, LearnerConfig, MultiplierConfig
from vlmsafe.config.methods import METHODS
from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.cpo import (
    CONSTRAINT_SLACK,
    CPO,
    FEASIBLE_START,
    INFEASIBLE_START,
    NO_COST_GRADIENT,
    RECOVER,
    Problem,
    accepts,
    step_weights,
)
from vlmsafe.learners.learner import Learner
from vlmsafe.learners.multipliers import make_multiplier
from vlmsafe.learners.networks import POLICY
from vlmsafe.learners.registry import LEARNERS
from vlmsafe.learners.trust_region import Point, PolicySurface

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)

OBSERVATION, ACTION = 4, 3
DELTA = 0.01
CONFIG = dataclasses.replace(METHODS["cpo"].learner, hidden=(8, 7), update_iters=2, batch_size=64)


class Lqclp:
    """maximise g.x subject to b.x + c <= 0 and x'Hx / 2 <= delta, with random numbers."""

    def __init__(self, seed: int, gap: float) -> None:
        """`gap` is c as a share of the largest |b.x| in the trust region: beyond 1 the boundary lies outside it."""
        rng = np.random.default_rng(seed)
        size = int(rng.integers(2, 6))
        root = rng.normal(size=(size, size))
        self.H = root @ root.T / size + 0.3 * np.eye(size)
        g, b = rng.normal(size=(2, size))  # of a size beside which the guards against division by zero vanish
        self.g, self.b = (rng.uniform(0.5, 2.0) * vector / np.linalg.norm(vector) for vector in (g, b))
        self.x, self.p = np.linalg.solve(self.H, self.g), np.linalg.solve(self.H, self.b)
        self.s = float(self.b @ self.p)
        self.c = gap * math.sqrt(2.0 * DELTA * self.s)

    def problem(self, sign: float = -1.0) -> Problem:
        """In the terms of the dual as it was derived: for minimising -g.x, so that r is -g'H^-1 b."""
        q, r = float(self.g @ self.x), sign * float(self.g @ self.p)
        return Problem(q, r, self.s, self.c, DELTA, float(self.b @ self.b))

    def step(self, sign: float = -1.0) -> np.ndarray:
        along_x, along_p = step_weights(self.problem(sign))
        return along_x * self.x - along_p * self.p

    def size(self, step: np.ndarray) -> float:
        return float(0.5 * step @ self.H @ step)

    def best(self) -> float:
        """The optimum by a general-purpose solver, from a feasible point."""
        inside = -self.p * (max(self.c, 0.0) / self.s)
        scale = math.sqrt(DELTA)  # in units in which the solver's tolerances mean something
        result = minimize(
            lambda y: -self.g @ y,
            inside / scale,
            jac=lambda y: -self.g,
            method="SLSQP",
            constraints=[
                {"type": "ineq", "fun": lambda y: 1.0 - 0.5 * y @ self.H @ y, "jac": lambda y: -self.H @ y},
                {"type": "ineq", "fun": lambda y: -self.b @ y - self.c / scale, "jac": lambda y: -self.b},
            ],
            options={"maxiter": 300, "ftol": 1e-12},
        )
        assume(result.success)
        return float(-result.fun * scale)


def assert_solved(linear: Lqclp) -> None:
    step = linear.step()
    assert linear.size(step) <= DELTA * (1 + 1e-4)
    assert linear.b @ step + linear.c <= 1e-5
    assert linear.g @ step == pytest.approx(linear.best(), rel=1e-3, abs=1e-5)


BINDING = {FEASIBLE_START: st.floats(-0.95, -0.02), INFEASIBLE_START: st.floats(0.02, 0.95)}


@quick
@given(seeds, st.floats(-3.0, -1.05))
def test_step_is_the_solution_where_the_whole_trust_region_is_feasible(seed, gap):
    linear = Lqclp(seed, gap)
    assert linear.problem().case() == CONSTRAINT_SLACK
    assert_solved(linear)


@pytest.mark.parametrize("case", BINDING)
@quick
@given(data=st.data(), seed=seeds)
def test_step_is_the_solution_where_both_sides_of_the_dual_exist(case, data, seed):
    linear = Lqclp(seed, data.draw(BINDING[case]))
    assert linear.problem().case() == case
    assume(linear.problem().r * linear.c > 0)
    assert_solved(linear)


@pytest.mark.parametrize("case", BINDING)
@settings(quick, phases=[Phase.generate])
@given(data=st.data(), seed=seeds)
def test_step_is_the_solution_where_one_side_of_the_dual_is_empty(case, data, seed):
    linear = Lqclp(seed, data.draw(BINDING[case]))
    assume(linear.problem().r * linear.c < 0)
    assert_solved(linear)


def test_step_is_finite_where_reward_and_cost_gradients_are_parallel():
    gap, ratio = -0.3, -3.0
    linear = Lqclp(0, gap)
    problem = linear.problem()
    r = ratio * problem.q  # b = ratio g, and conjugate gradients a little off
    parallel = dataclasses.replace(problem, r=r, s=ratio**2 * problem.q, q=problem.q * (1 - 1e-5))
    along_x, along_p = step_weights(dataclasses.replace(parallel, c=gap * math.sqrt(2 * DELTA * parallel.s)))
    assert max(abs(along_x), abs(along_p)) < 10.0


@quick
@given(seeds, st.floats(1.05, 3.0))
def test_recovery_goes_straight_down_the_cost_to_the_edge_of_the_trust_region(seed, gap):
    linear = Lqclp(seed, gap)
    for sign in (-1.0, 1.0):
        assert linear.problem(sign).case() == RECOVER
        step = linear.step(sign)
        np.testing.assert_allclose(step, -math.sqrt(2 * DELTA / linear.s) * linear.p, rtol=1e-5)
        assert linear.size(step) == pytest.approx(DELTA, rel=1e-5)


@quick
@given(seeds, st.floats(-3, -0.02))
def test_without_a_cost_gradient_the_step_is_that_of_a_plain_trust_region(seed, gap):
    linear = Lqclp(seed, gap)
    problem = dataclasses.replace(linear.problem(), cost_gradient_size=1e-7)
    assert problem.case() == NO_COST_GRADIENT
    along_x, along_p = step_weights(problem)
    assert along_p == 0.0
    assert linear.size(along_x * linear.x) == pytest.approx(DELTA, rel=1e-5)


figures = st.floats(-2, 2) | st.sampled_from([math.nan, math.inf, -math.inf])
starts = st.builds(Point, st.floats(-2, 2), st.floats(-2, 2), st.just(0.0))
points = st.builds(Point, figures, figures, figures | st.floats(0, 2 * DELTA))


@quick
@given(st.integers(0, 4), starts, points, st.floats(-1, 1))
def test_no_step_outside_the_trust_region_or_with_too_much_cost_is_accepted(case, before, after, c):
    if accepts(case, before, after, c, DELTA):
        assert after.kl <= DELTA
        assert after.cost - before.cost <= max(-c, 0.0)
        assert math.isfinite(after.reward)
        if case in (FEASIBLE_START, CONSTRAINT_SLACK, NO_COST_GRADIENT):
            assert after.reward >= before.reward


def make_batch(learner: Learner, seed: int, count: int = 90, cost_scale: float = 1.0, tilt: float = 0.0) -> Batch:
    """Samples of the learner's own policy; `tilt` is how far cost advantages follow reward advantages."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(count, OBSERVATION)).astype(np.float32)
    mean, log_std = learner.policy_mean(observations), learner.networks.log_std
    noise = rng.normal(size=(count, ACTION)).astype(np.float32)
    rewards = np.tanh(noise[:, 0]) + observations[:, 0] * noise[:, 1] + 0.3 * rng.normal(size=count)
    costs = tilt * rewards + np.tanh(noise[:, 1]) + 0.3 * rng.normal(size=count)
    return Batch(
        observations=observations,
        actions=mean + np.exp(log_std) * noise,
        log_probs=(-0.5 * noise**2 - log_std - 0.5 * np.float32(np.log(2 * np.pi))).sum(axis=1),
        reward_advantages=((rewards - rewards.mean()) / rewards.std()).astype(np.float32),
        cost_advantages=(cost_scale * (costs - costs.mean())).astype(np.float32),
        targets=rng.normal(size=(learner.critics, count)).astype(np.float32),
    )


def make_cpo(seed: int, **changes) -> CPO:
    learner = CPO(OBSERVATION, ACTION, dataclasses.replace(CONFIG, **changes), np.random.default_rng(seed))
    learner.networks.log_std[:] = np.random.default_rng(seed + 1).uniform(-0.7, 0.3, size=ACTION)
    return learner


def surface_of(learner: CPO, batch: Batch) -> PolicySurface:
    return PolicySurface(
        learner.networks.block[POLICY], learner.shape, batch.observations, batch.actions, batch.log_probs,
        average_over_actions=learner.config.variant == "engine",
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    seeds,
    st.sampled_from(["engine", "published"]),
    st.sampled_from([-20.0, -0.1, -0.02, 0.0, 0.02, 0.1, 20.0]),
    st.sampled_from([-0.8, 0.0, 0.8]),
    st.sampled_from([1e-4, 1.0, 30.0]),
)
@example(0, "engine", -0.02, 0.8, 1.0)
def test_an_update_stays_in_the_trust_region_and_from_a_feasible_start_within_the_constraint(
    seed, variant, cost_gap, tilt, cost_scale
):
    learner = make_cpo(seed % 1000, variant=variant, update_iters=1)
    batch = make_batch(learner, seed, cost_scale=cost_scale, tilt=tilt)
    surface = surface_of(learner, batch)
    before = surface.at(np.zeros_like(surface.start), batch.reward_advantages, batch.cost_advantages)
    losses = learner.update(batch, 0.0, cost_gap, np.random.default_rng(0))
    step = learner.networks.block[POLICY].astype(np.float64) - surface.start
    after = surface.at(step, batch.reward_advantages, batch.cost_advantages)
    assert after.kl <= DELTA + 1e-6
    assert after.cost - before.cost <= max(-cost_gap, 0.0) + 1e-6 * cost_scale
    if cost_gap < 0:
        assert after.reward >= before.reward - 1e-6
    summed = after.kl * (ACTION if variant == "engine" else 1)
    assert losses.kl == pytest.approx(summed, abs=1e-5)  # what is reported is summed over actions in both


@pytest.mark.parametrize(("cost_gap", "moves"), [(-20.0, True), (20.0, True), (math.nan, False)])
def test_a_rejected_step_leaves_the_policy_and_still_trains_the_critics(cost_gap, moves):
    learner = make_cpo(0)
    batch = make_batch(learner, 0)
    before = learner.networks.block.copy()
    learner.update(batch, 0.0, cost_gap, np.random.default_rng(0))
    assert np.array_equal(learner.networks.block[POLICY], before[POLICY]) != moves
    for critic in (1, 2):
        assert not np.array_equal(learner.networks.block[critic], before[critic])


def test_the_engine_takes_no_step_where_a_binding_constraint_meets_rewards_that_cost():
    learner = make_cpo(0)  # its lambda comes out negative, which points the step down the reward
    batch = make_batch(learner, 0, tilt=0.8)
    before = learner.networks.block.copy()
    learner.update(batch, 0.0, -0.02, np.random.default_rng(0))
    np.testing.assert_array_equal(learner.networks.block[POLICY], before[POLICY])
    assert not np.array_equal(learner.networks.block[1:], before[1:])


@pytest.mark.parametrize("variant", ["engine", "published"])
@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in OFF_POLICY])
def test_the_order_of_samples_in_a_full_batch_does_not_matter(name, variant):
    arrived = []
    for shuffle in (False, True):
        rng = np.random.default_rng(3)
        config = dataclasses.replace(METHODS[name].learner, hidden=(8, 7), batch_size=90, update_iters=4)
        learner = LEARNERS[name](OBSERVATION, ACTION, dataclasses.replace(config, variant=variant), rng)
        batch = make_batch(learner, 5, tilt=-0.3)
        if shuffle:
            order = np.random.default_rng(6).permutation(len(batch))
            parts = {name: part for name, part in vars(batch).items() if part is not None}
            batch = Batch(**{key: part[..., order] if key == "targets" else part[order] for key, part in parts.items()})
        before = learner.networks.block.copy()
        learner.update(batch, 0.5, -0.5, np.random.default_rng(7))
        assert np.abs(learner.networks.block - before)[POLICY].max() > 1e-4
        arrived.append(learner.networks.block)
    np.testing.assert_allclose(arrived[1], arrived[0], rtol=0, atol=1e-5)


def updated(config: LearnerConfig, multiplier: float, cost_gap: float) -> np.ndarray:
    learner = LEARNERS[config.algorithm](OBSERVATION, ACTION, config, np.random.default_rng(3))
    batch = make_batch(learner, 5, count=200, tilt=-0.3)
    learner.update(batch, multiplier, cost_gap, np.random.default_rng(7))
    assert np.isfinite(learner.networks.block).all()
    return learner.networks.block


@pytest.mark.parametrize(
    ("name", "cost_gap", "differs"),
    [
        ("ppo", 5.0, False),
        ("ppo-lag", 5.0, False),
        ("cppo-pid", 5.0, False),
        ("cup", 5.0, False),  # the published rule is another multiplier, not another update
        ("focops", 5.0, True),
        ("p3o", 5.0, True),
        ("p3o", -5000.0, False),  # far within the budget neither has a penalty
        ("cpo", 5.0, True),
        ("cpo", -5.0, True),
    ],
)
def test_published_variants_differ_where_the_engine_departs_and_nowhere_else(name, cost_gap, differs):
    config = dataclasses.replace(METHODS[name].learner, hidden=(8, 7), update_iters=3)
    engine, published = (
        updated(dataclasses.replace(config, variant=variant), 0.5, cost_gap) for variant in ("engine", "published")
    )
    assert np.array_equal(engine, published) != differs
    if name == "cpo":
        np.testing.assert_array_equal(engine[1:], published[1:])  # critics have no variant


@pytest.mark.parametrize("name", ["focops", "cup"])
def test_the_published_multiplier_of_focops_and_cup_is_a_plain_gradient_step(name):
    bounded = METHODS[name].multiplier
    values = []
    for kind in ("adam", "gradient"):
        multiplier = make_multiplier(dataclasses.replace(bounded, kind=kind, learning_rate=0.01))
        assert multiplier is not None
        values.append(multiplier.update(multiplier.bracket(30.0, 25.0), 30.0))
    assert values == [pytest.approx(bounded.initial + 0.01), pytest.approx(bounded.initial + 0.05)]
    assert isinstance(bounded, MultiplierConfig)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


@pytest.mark.parametrize(("cost_gap", "tilt"), [(-0.02, 0.8), (0.02, 0.8), (0.02, -0.8)])
def test_published_cpo_takes_the_optimal_step_where_the_constraint_cuts_the_trust_region(cost_gap, tilt):
    learner = make_cpo(0, variant="published", cg_iters=60)
    batch = make_batch(learner, 0, count=400, tilt=tilt)
    surface = surface_of(learner, batch)
    units = np.eye(len(surface.start))
    H = np.stack([surface.fisher_product(unit, learner.config.cg_damping) for unit in units])
    g, b = surface.gradient(batch.reward_advantages), surface.gradient(batch.cost_advantages)
    x, p = np.linalg.solve(H, g), np.linalg.solve(H, b)
    problem = Problem(float(g @ x), -float(g @ p), float(b @ p), cost_gap, DELTA, float(b @ b))
    assert problem.case() in (FEASIBLE_START, INFEASIBLE_START)
    along_x, along_p = step_weights(problem)
    learner.update(batch, 0.0, cost_gap, np.random.default_rng(0))
    taken = learner.networks.block[POLICY] - surface.start
    assert taken.any()
    assert cosine(taken, along_x * x - along_p * p) > 0.99
