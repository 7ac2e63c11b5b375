"""An update is the textbook's: an eager PyTorch loop, written out below, arrives at the same networks."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmsafe.config.learning import LearnerConfig
from vlmsafe.learners.advantages import Batch
from vlmsafe.learners.networks import Shape
from vlmsafe.learners.policy import mean_kl
from vlmsafe.learners.ppo import PPO, PPOLagrangian, clipped_surrogate, lagrangian_advantages
from vlmsafe.numerics.adam import Adam

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)

SHAPE = Shape(observation=4, hidden=(8, 7), action=2, critics=2)
CONFIG = LearnerConfig(update_iters=3, batch_size=32, kl_early_stop=False)


def make_batch(seed: int, count: int = 110, critics: int = 2, action: int = 2, scale: float = 1.0) -> Batch:
    """Samples of a policy a little away from the initial one, so that some ratios lie outside the clip range."""
    rng = np.random.default_rng(seed)

    def normal(*size: int) -> np.ndarray:
        return rng.normal(size=size).astype(np.float32)

    actions = normal(count, action)
    log_probs = torch.distributions.Normal(0.0, 1.0).log_prob(torch.tensor(actions)).sum(dim=1).numpy()
    return Batch(
        observations=normal(count, 4),
        actions=actions,
        log_probs=log_probs + 0.1 * normal(count),
        reward_advantages=normal(count),
        cost_advantages=scale * normal(count),
        targets=scale * normal(critics, count),
    )


def make_learner(config: LearnerConfig = CONFIG, shape: Shape = SHAPE, seed: int = 0) -> PPOLagrangian:
    kind = PPOLagrangian if shape.critics == 2 else PPO
    config = dataclasses.replace(config, hidden=shape.hidden)
    return kind(shape.observation, shape.action, config, np.random.default_rng(seed))


class Eager:
    """Actor and critics as separate modules with an Adam each, updated as the reference describes."""

    def __init__(self, learner: PPO, actor_lr: float | None = None) -> None:
        self.config = learner.config
        values = {name: torch.tensor(view.copy()) for name, view in learner.networks.named()}
        names = ("policy", "reward_critic", "cost_critic")[: learner.networks.shape.networks]
        self.networks = {name: self._build(values, name) for name in names}
        self.log_std = torch.nn.Parameter(values["policy.log_std"])
        self.actor_parameters = [*self.networks["policy"].parameters(), self.log_std]
        self.optimisers = {"policy": torch.optim.Adam(self.actor_parameters, lr=actor_lr or self.config.actor_lr)}
        for name in names[1:]:
            self.optimisers[name] = torch.optim.Adam(self.networks[name].parameters(), lr=self.config.critic_lr)

    @staticmethod
    def _build(values: dict[str, torch.Tensor], name: str) -> torch.nn.Sequential:
        modules: list[torch.nn.Module] = []
        depth = 0
        while f"{name}.{depth}.weight" in values:
            weight = values[f"{name}.{depth}.weight"]
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
            with torch.no_grad():
                linear.weight.copy_(weight)
                linear.bias.copy_(values[f"{name}.{depth}.bias"])
            modules += [torch.nn.Tanh(), linear] if depth else [linear]
            depth += 1
        return torch.nn.Sequential(*modules)

    def distribution(self, observations: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.networks["policy"](observations), self.log_std.exp())

    def update(self, batch: Batch, multiplier: float, rng: np.random.Generator) -> dict[str, float]:
        config = self.config
        observations, actions = torch.tensor(batch.observations), torch.tensor(batch.actions)
        advantages = torch.tensor(batch.reward_advantages) - multiplier * torch.tensor(batch.cost_advantages)
        advantages = advantages / (1.0 + multiplier)
        with torch.no_grad():
            old = self.distribution(observations)
        losses: dict[str, list[float]] = {name: [] for name in self.networks}
        kl = 0.0
        for _ in range(config.update_iters):
            order = rng.permutation(len(batch))
            for start in range(0, len(batch), config.batch_size):
                rows = torch.tensor(order[start : start + config.batch_size])
                for critic, target in zip(list(self.networks)[1:], batch.targets, strict=True):
                    network = self.networks[critic]
                    error = torch.nn.functional.mse_loss(
                        network(observations[rows]).squeeze(-1), torch.tensor(target)[rows]
                    )
                    penalty = sum(parameter.pow(2).sum() for parameter in network.parameters())
                    self._step(critic, list(network.parameters()), error + config.critic_penalty * penalty)
                    losses[critic].append(error.item())
                distribution = self.distribution(observations[rows])
                log_probs = distribution.log_prob(actions[rows]).sum(dim=-1)
                ratios = torch.exp(log_probs - torch.tensor(batch.log_probs)[rows])
                clipped = torch.clamp(ratios, 1 - config.clip_ratio, 1 + config.clip_ratio)
                loss = -torch.min(ratios * advantages[rows], clipped * advantages[rows]).mean()
                entropy = distribution.entropy().mean()
                losses["policy"].append(loss.item())
                self._step("policy", self.actor_parameters, loss - config.entropy_coef * entropy)
            with torch.no_grad():
                new = self.distribution(observations)
                kl = torch.distributions.kl_divergence(old, new).sum(dim=-1).mean().item()
        return {**{name: float(np.mean(values)) for name, values in losses.items()}, "kl": kl}

    def _step(self, name: str, parameters: list[torch.nn.Parameter], loss: torch.Tensor) -> None:
        self.optimisers[name].zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        self.optimisers[name].step()

    def named(self) -> dict[str, np.ndarray]:
        arrays = {"policy.log_std": self.log_std.detach().numpy()}
        for name, network in self.networks.items():
            linears = [module for module in network if isinstance(module, torch.nn.Linear)]
            for depth, linear in enumerate(linears):
                arrays[f"{name}.{depth}.weight"] = linear.weight.detach().numpy()
                arrays[f"{name}.{depth}.bias"] = linear.bias.detach().numpy()
        return arrays


def assert_same_networks(learner: PPO, eager: Eager, atol: float = 1e-5) -> None:
    expected = eager.named()
    assert {name for name, _ in learner.networks.named()} == set(expected)
    for name, view in learner.networks.named():
        np.testing.assert_allclose(view, expected[name], rtol=0, atol=atol, err_msg=name)


# --- the pieces


@quick
@given(seeds, st.integers(1, 40), st.floats(0.05, 0.5))
def test_the_clipped_surrogate_and_its_gradient_equal_autograds(seed, count, clip):
    rng = np.random.default_rng(seed)
    old, new = rng.normal(size=(2, count)).astype(np.float32)
    advantages = (rng.normal(size=count) * rng.integers(0, 2, count)).astype(np.float32)  # some of them exactly zero
    log_probs = torch.tensor(new, requires_grad=True)
    ratios = torch.exp(log_probs - torch.tensor(old))
    gains = torch.tensor(advantages)
    expected = -torch.min(ratios * gains, torch.clamp(ratios, 1 - clip, 1 + clip) * gains).mean()
    expected.backward()
    given_ratios, given_advantages = ratios.detach().numpy().copy(), advantages.copy()
    loss, gradient = clipped_surrogate(given_ratios, given_advantages, clip)
    assert loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(gradient, log_probs.grad, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(given_ratios, ratios.detach())
    np.testing.assert_array_equal(given_advantages, advantages)


@pytest.mark.parametrize(
    ("ratio", "advantage", "flat"),
    [(1.3, 1.0, True), (1.3, -1.0, False), (0.7, 1.0, False), (0.7, -1.0, True), (1.0, 1.0, False)],
)
def test_only_samples_pushed_further_out_are_ignored(ratio, advantage, flat):
    _, gradient = clipped_surrogate(np.array([ratio], np.float32), np.array([advantage], np.float32), 0.2)
    assert (gradient[0] == 0.0) == flat


@quick
@given(seeds, st.integers(1, 4))
def test_the_divergence_is_torchs(seed, actions):
    rng = np.random.default_rng(seed)
    mean, new_mean = rng.normal(size=(6, actions)), rng.normal(size=(6, actions))
    log_std, new_log_std = rng.normal(size=actions), rng.normal(size=actions)
    old, new = (
        torch.distributions.Normal(torch.tensor(m), torch.tensor(s).exp())
        for m, s in ((mean, log_std), (new_mean, new_log_std))
    )
    expected = torch.distributions.kl_divergence(old, new).sum(dim=1).mean().item()
    assert mean_kl(mean, log_std, new_mean, new_log_std) == pytest.approx(expected, rel=1e-9)
    assert mean_kl(mean, log_std, mean, log_std) == 0.0


@quick
@given(seeds, st.floats(0.0, 100.0))
def test_the_multiplier_prices_cost_into_the_advantage(seed, multiplier):
    reward, cost = np.random.default_rng(seed).normal(size=(2, 20)).astype(np.float32)
    combined = lagrangian_advantages(reward, cost, multiplier)
    np.testing.assert_allclose(combined, (reward - multiplier * cost) / (1 + multiplier), rtol=1e-4, atol=1e-5)
    assert combined.dtype == np.float32


@quick
@given(seeds, st.integers(1, 12), st.sampled_from([1.0, 1e-6, 1e-12, 1e4]))
def test_a_step_of_adam_is_torchs_for_every_row_with_its_own_rate(seed, steps, scale):
    rng = np.random.default_rng(seed)
    block, rates = rng.normal(size=(3, 6)).astype(np.float32), [1e-2, 3e-4, 1e-3]
    rows = [torch.nn.Parameter(torch.tensor(row)) for row in block]
    optimiser = torch.optim.Adam([{"params": [row], "lr": rate} for row, rate in zip(rows, rates, strict=True)])
    adam = Adam(block)
    for _ in range(steps):
        gradient = (scale * rng.normal(size=(3, 6)) * rng.integers(0, 2, (3, 6))).astype(np.float32)
        for row, slope in zip(rows, gradient, strict=True):
            row.grad = torch.tensor(slope)
        optimiser.step()
        adam.step(gradient, rates, range(3))
    for ours, theirs in zip(block, rows, strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


# --- a whole update


@pytest.mark.parametrize("multiplier", [0.0, 0.7])
@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 1.0),
        ({"entropy_coef": 0.05}, 1.0),
        ({"max_grad_norm": 1e-2}, 1.0),  # every gradient is clipped
        ({"max_grad_norm": 0.5}, 5.0),  # those of the critics are, the policy's is not
        ({"critic_penalty": 0.1, "clip_ratio": 0.05}, 1.0),
        ({"batch_size": 1000, "actor_lr": 2e-3, "critic_lr": 5e-3}, 1.0),
        ({"batch_size": 109}, 1.0),  # leaves a minibatch of one
    ],
    ids=["plain", "entropy", "clipped", "critics-clipped", "penalty", "one-minibatch", "single-row"],
)
def test_an_update_equals_the_eager_loop(multiplier, changes, scale):
    learner = make_learner(dataclasses.replace(CONFIG, **changes))
    eager = Eager(learner)
    batch = make_batch(1, scale=scale)
    initial = learner.networks.block.copy()
    for epoch in range(2):  # the second begins with the first one's moments
        losses = learner.update(batch, multiplier, 0.0, np.random.default_rng(epoch))
        expected = eager.update(batch, multiplier, np.random.default_rng(epoch))
    assert_same_networks(learner, eager)
    assert np.abs(learner.networks.block - initial).max(axis=1).min() > 1e-3, "the networks did move"
    assert losses.policy_loss == pytest.approx(expected["policy"], abs=1e-5)
    assert losses.critic_losses == pytest.approx((expected["reward_critic"], expected["cost_critic"]), rel=1e-4)
    assert losses.kl == pytest.approx(expected["kl"], rel=1e-2, abs=1e-6)
    assert losses.passes == CONFIG.update_iters
    assert losses.entropy == pytest.approx(
        torch.distributions.Normal(0.0, eager.log_std.exp()).entropy().sum().item(), rel=1e-5
    )


@pytest.mark.parametrize(
    ("shape", "count"), [(Shape(4, (5,), 1, 1), 64), (Shape(4, (6, 5, 4), 3, 2), 65), (Shape(4, (8, 8), 2, 1), 33)]
)
def test_other_shapes_equal_the_eager_loop_too(shape, count):
    learner = make_learner(shape=shape)
    eager = Eager(learner)
    batch = make_batch(2, count, shape.critics, shape.action)
    learner.update(batch, 0.0, 0.0, np.random.default_rng(3))
    eager.update(batch, 0.0, np.random.default_rng(3))
    assert_same_networks(learner, eager)


def test_clipping_one_network_leaves_the_others_steps_alone():
    """Each gradient is clipped by its own norm: outrageous targets of one critic do not slow the policy."""
    config = dataclasses.replace(CONFIG, max_grad_norm=1.0)
    calm, wild = make_batch(1), make_batch(1)
    wild.targets[1] *= 1e4
    learners = [make_learner(config), make_learner(config)]
    for learner, batch in zip(learners, (calm, wild), strict=True):
        learner.update(batch, 0.5, 0.0, np.random.default_rng(0))
    first, second = (learner.networks.block for learner in learners)
    np.testing.assert_array_equal(first[:2], second[:2])
    assert not np.array_equal(first[2], second[2])


def test_without_a_multiplier_costs_do_not_reach_the_policy():
    batch = make_batch(1)
    without = dataclasses.replace(batch, cost_advantages=np.zeros_like(batch.cost_advantages))
    first, second = make_learner(), make_learner()
    first.update(batch, 0.0, 0.0, np.random.default_rng(0))
    second.update(without, 0.0, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(first.networks.block, second.networks.block)
    np.testing.assert_array_equal(
        lagrangian_advantages(batch.reward_advantages, batch.cost_advantages, 0.0), batch.reward_advantages
    )


def test_the_entropy_bonus_widens_the_policy():
    batch = dataclasses.replace(make_batch(1), reward_advantages=np.zeros(110, np.float32))
    learner = make_learner(dataclasses.replace(CONFIG, entropy_coef=0.1))
    before = learner.networks.block[0].copy()
    learner.update(batch, 0.0, 0.0, np.random.default_rng(0))
    assert (learner.networks.log_std > 0).all()
    np.testing.assert_array_equal(learner.networks.block[0][: -SHAPE.action], before[: -SHAPE.action])


# --- early stopping


def test_passes_stop_after_the_one_that_overshot_and_keep_it():
    batch = make_batch(1)

    def run(passes: int, target: float | None = None):
        config = dataclasses.replace(CONFIG, update_iters=passes, actor_lr=3e-3)
        if target is not None:
            config = dataclasses.replace(config, kl_early_stop=True, target_kl=target)
        learner = make_learner(config)
        return learner, learner.update(batch, 0.3, 0.0, np.random.default_rng(0))

    divergences = [run(passes)[1].kl for passes in (1, 2, 3)]
    assert 0 < divergences[0] < divergences[1] < divergences[2]
    first, second, _ = divergences
    for expected, target in ((1, 0.999 * first), (2, 1.001 * first), (2, 0.999 * second), (3, 1.001 * second)):
        stopped, losses = run(6, target)
        assert losses.passes == expected
        assert losses.kl == divergences[expected - 1] > target
        np.testing.assert_array_equal(stopped.networks.block, run(expected)[0].networks.block)


def test_without_early_stopping_every_pass_is_made():
    learner = make_learner(dataclasses.replace(CONFIG, target_kl=1e-12, kl_early_stop=False))
    assert learner.update(make_batch(1), 0.0, 0.0, np.random.default_rng(0)).passes == CONFIG.update_iters


# --- learning rates


@pytest.mark.parametrize(
    ("epoch", "epochs", "decay", "factor"),
    [(0, 5, True, 1.0), (1, 5, True, 0.8), (4, 5, True, 0.2), (0, 1, True, 1.0), (4, 5, False, 1.0)],
)
def test_the_policys_rate_falls_linearly_and_the_critics_stays(epoch, epochs, decay, factor):
    learner = make_learner(dataclasses.replace(CONFIG, lr_decay=decay))
    eager = Eager(learner, actor_lr=CONFIG.actor_lr * factor)
    learner.set_learning_rates(4, 5)  # an earlier epoch's rate leaves no trace
    learner.set_learning_rates(epoch, epochs)
    batch = make_batch(1)
    learner.update(batch, 0.5, 0.0, np.random.default_rng(0))
    eager.update(batch, 0.5, np.random.default_rng(0))
    assert_same_networks(learner, eager)


# --- repeating and continuing


def test_equal_seeds_give_equal_updates_to_the_last_bit():
    learners = [make_learner(), make_learner()]
    results = [learner.update(make_batch(1), 0.4, 0.0, np.random.default_rng(5)) for learner in learners]
    assert results[0] == results[1]
    np.testing.assert_array_equal(learners[0].networks.block, learners[1].networks.block)
    other = make_learner()
    other.update(make_batch(1), 0.4, 0.0, np.random.default_rng(6))
    assert not np.array_equal(other.networks.block, learners[0].networks.block), "the order of samples matters"


@pytest.mark.parametrize("updates", [0, 1, 3])
def test_a_restored_learner_continues_bit_for_bit(updates):
    original = make_learner()
    for epoch in range(updates):
        original.update(make_batch(epoch), 0.1 * epoch, 0.0, np.random.default_rng(epoch))
    state = {name: array.copy() for name, array in original.state().items()}
    restored = make_learner(seed=99)
    restored.update(make_batch(50), 0.3, 0.0, np.random.default_rng(50))  # a past of its own, to be forgotten
    restored.load_state(state)
    assert set(restored.state()) == set(original.state())
    for epoch in range(10, 12):
        results = [
            learner.update(make_batch(epoch), 0.2, 0.0, np.random.default_rng(epoch))
            for learner in (original, restored)
        ]
        assert results[0] == results[1]
    for name, array in original.state().items():
        np.testing.assert_array_equal(array, restored.state()[name], err_msg=name)


def test_a_state_does_not_change_under_later_updates():
    learner = make_learner()
    learner.update(make_batch(0), 0.1, 0.0, np.random.default_rng(0))
    state = learner.state()
    kept = {name: array.copy() for name, array in state.items()}
    learner.update(make_batch(1), 0.1, 0.0, np.random.default_rng(1))
    for name, array in kept.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)
    restored = make_learner()
    restored.load_state(state)
    restored.update(make_batch(1), 0.1, 0.0, np.random.default_rng(1))
    for name, array in kept.items():
        np.testing.assert_array_equal(state[name], array, err_msg=f"{name}, after use")


def test_an_update_leaves_the_batch_alone():
    batch = make_batch(1)
    batch = dataclasses.replace(batch, values=batch.targets + 1.0)
    kept = {field.name: getattr(batch, field.name).copy() for field in dataclasses.fields(batch)}
    make_learner(dataclasses.replace(CONFIG, value_clip=0.1)).update(batch, 0.5, 0.0, np.random.default_rng(0))
    for name, array in kept.items():
        np.testing.assert_array_equal(getattr(batch, name), array, err_msg=name)


def test_values_are_those_of_the_critics_in_order():
    learner = make_learner()
    eager = Eager(learner)
    observations = make_batch(1).observations
    values = learner.values(observations)
    assert values.shape == (2, len(observations))
    for row, name in enumerate(("reward_critic", "cost_critic")):
        expected = eager.networks[name](torch.tensor(observations)).detach()[:, 0]
        np.testing.assert_allclose(values[row], expected, rtol=1e-4, atol=1e-6)
