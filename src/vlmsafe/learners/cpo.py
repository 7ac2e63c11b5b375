"""CPO: the best policy step within a trust region and a linearised cost constraint, found through the dual."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.learner import Learner, Losses
from vlmsafe.learners.networks import POLICY
from vlmsafe.learners.policy import mean_kl
from vlmsafe.learners.trust_region import Point, PolicySurface, Vector, conjugate_gradients

_TINY = 1e-8

# The cases: how the linearised constraint lies relative to the trust region.
RECOVER, INFEASIBLE_START, FEASIBLE_START, CONSTRAINT_SLACK, NO_COST_GRADIENT = range(5)


@dataclass(frozen=True)
class Problem:
    """maximise g.x subject to b.x + c <= 0 and x'Hx / 2 <= delta, in the terms its dual needs."""

    q: float
    """g' H^-1 g."""
    r: float
    """-g' H^-1 b, because the dual is that of minimising -g.x. The engine takes g' H^-1 b, see `step_weights`."""
    s: float
    """b' H^-1 b."""
    c: float
    """J_C - d: negative within the budget."""
    delta: float
    """Radius of the trust region."""
    cost_gradient_size: float
    """b'b."""
    engine: bool = False
    """Whether an empty side of the dual is used nevertheless, as the engine does."""

    @property
    def A(self) -> float:  # noqa: N802 - as in the paper
        return self.q - self.r**2 / (self.s + _TINY)

    @property
    def B(self) -> float:  # noqa: N802
        """Negative where the constraint's boundary does not cross the trust region."""
        return 2.0 * self.delta - self.c**2 / (self.s + _TINY)

    def case(self) -> int:
        if self.cost_gradient_size <= 1e-6 and self.c < 0:
            return NO_COST_GRADIENT
        if self.c < 0:
            return CONSTRAINT_SLACK if self.B < 0 else FEASIBLE_START
        return INFEASIBLE_START if self.B >= 0 else RECOVER


def step_weights(problem: Problem) -> tuple[float, float]:
    """(a, b) such that the step is a H^-1 g - b H^-1 b: the reward's direction and the cost's.

    The engine's r has the opposite sign, and where a side of the dual is empty it takes the far end of the side, a
    negative lambda. Its step then fails the line search, and the policy stays as it is, from feasible starts where the
    reward and cost gradients agree and from most infeasible starts within reach of the budget.
    """
    p, case = problem, problem.case()
    if case in (CONSTRAINT_SLACK, NO_COST_GRADIENT):
        return math.sqrt(2.0 * p.delta / (p.q + _TINY)), 0.0
    if case == RECOVER:
        return 0.0, math.sqrt(2.0 * p.delta / (p.s + _TINY))
    # The dual is concave in lambda on either side of r/c, where the constraint becomes active; take the better side.
    boundary = p.r / (p.c + _TINY)
    low, high = (0.0, boundary), (boundary, math.inf)
    side_a, side_b = (low, high) if p.c < 0 else (high, low)
    clamp = _clamp_into_empty if p.engine else _clamp
    # A = q - r^2/s is negative only by rounding, when the gradients are parallel; then only the other side is left.
    lambda_a = clamp(math.sqrt(max(p.A, 0.0) / p.B) if p.B > 0 else math.inf, *side_a)
    lambda_b = clamp(math.sqrt(p.q / (2.0 * p.delta)), *side_b)
    dual_a = -0.5 * (p.A / (lambda_a + _TINY) + p.B * lambda_a) - p.r * p.c / (p.s + _TINY)
    dual_b = -0.5 * (p.q / (lambda_b + _TINY) + 2.0 * p.delta * lambda_b)
    lam = lambda_a if p.A >= 0.0 and dual_a >= dual_b else lambda_b
    nu = max(0.0, lam * p.c - p.r) / (p.s + _TINY)
    return 1.0 / (lam + _TINY), nu / (lam + _TINY)


def _clamp(value: float, low: float, high: float) -> float:
    """Clamp into [low, high], or to low where that is empty, which gives the side a dual value that cannot win."""
    return max(min(value, high), low)


def _clamp_into_empty(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def accepts(case: int, before: Point, after: Point, c: float, delta: float) -> bool:
    """Whether the line search takes a step: inside the trust region, cost no worse than allowed, reward no worse.

    From an infeasible start the reward may fall.
    """
    if not all(math.isfinite(figure) for figure in (before.reward, after.reward, after.cost, after.kl)):
        return False
    if case > INFEASIBLE_START and after.reward < before.reward:
        return False
    return after.cost - before.cost <= max(-c, 0.0) and after.kl <= delta


class CPO(Learner):
    """Constrained policy optimisation: one policy step per epoch, then passes for the critics."""

    def _update(self, batch: Batch, multiplier: float, cost_gap: float, rng: np.random.Generator) -> Losses:
        old_mean, old_log_std = self.policy_mean(batch.observations), self.networks.log_std.copy()
        step, surrogate = self._policy_step(batch, cost_gap)
        self.networks.block[POLICY] += step.astype(np.float32)
        if self.config.final_std is not None:
            self.networks.log_std[:] = old_log_std  # a schedule sets it
        self._raise_std()
        fitted = self.minimise(batch, None, rng, networks=range(POLICY + 1, self.shape.networks))
        kl = mean_kl(old_mean, old_log_std, self.policy_mean(batch.observations), self.networks.log_std)
        return Losses(-surrogate, fitted.critic_losses, kl, fitted.passes, self.entropy())

    def _policy_step(self, batch: Batch, cost_gap: float) -> tuple[Vector, float]:
        """The accepted step, zero where none was, and the reward surrogate after it."""
        config = self.config
        surface = PolicySurface(
            self.networks.block[POLICY], self.shape, batch.observations, batch.actions, batch.log_probs,
            average_over_actions=config.variant == "engine",
        )  # fmt: skip

        def product(vector: Vector) -> Vector:
            return surface.fisher_product(vector, config.cg_damping)

        g, b = surface.gradient(batch.reward_advantages), surface.gradient(batch.cost_advantages)
        x = conjugate_gradients(product, g, config.cg_iters)
        p = conjugate_gradients(product, b, config.cg_iters)
        engine = config.variant == "engine"
        r = float(g @ p) if engine else -float(g @ p)
        q, s, size = float(x @ product(x)), float(b @ p), float(b @ b)
        problem = Problem(q, r, s, cost_gap, config.target_kl, size, engine)
        along_x, along_p = step_weights(problem)
        direction = along_x * x - along_p * p
        return self._line_search(surface, direction, problem, batch.reward_advantages, batch.cost_advantages)

    def _line_search(
        self,
        surface: PolicySurface,
        direction: Vector,
        problem: Problem,
        rewards: NDArray[np.float32],
        costs: NDArray[np.float32],
    ) -> tuple[Vector, float]:
        """The longest of a shrinking series of steps that is acceptable, or none at all."""
        before = surface.at(np.zeros_like(direction), rewards, costs)
        step = direction
        for _ in range(self.config.line_search_steps):
            after = surface.at(step, rewards, costs)
            if accepts(problem.case(), before, after, problem.c, problem.delta):
                return step, after.reward
            step = step * self.config.line_search_decay
        return np.zeros_like(direction), before.reward
