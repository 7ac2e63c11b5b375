"""The learners do what OmniSafe 0.5.0 does, to float32 accuracy."""

import dataclasses

import numpy as np
import pytest
from vectors import batch, load_parameters, reference_name, scalars, update

from vlmsafe.algorithms.acting import Normaliser
from vlmsafe.algorithms.advantages import gae, standardise
from vlmsafe.algorithms.multipliers import AdamMultiplier
from vlmsafe.algorithms.networks import Shape
from vlmsafe.algorithms.ppo import PPO
from vlmsafe.config import MultiplierConfig
from vlmsafe.methods import METHODS


def test_ppo_lagrangian_update_matches_the_reference_vector():
    vector = update("PPOLag-d5")
    multiplier = AdamMultiplier.from_config(METHODS["ppo-lag"].multiplier)
    value = multiplier.update(float(vector["episode_cost"]), float(vector["cost_limit"]))
    assert value == pytest.approx(float(vector["multiplier_after"]), abs=1e-6)
    config = dataclasses.replace(METHODS["ppo-lag"].learner, batch_size=400, update_iters=5, kl_early_stop=False)
    learner = PPO(Shape(observation=5, hidden=(64, 64), action=2, critics=2), config, np.random.default_rng(0))
    load_parameters(learner.networks, vector)
    learner.update(batch(vector), value, np.random.default_rng(0))
    for name, ours in learner.networks.named():
        np.testing.assert_allclose(ours, vector[f"after/{reference_name(name)}"], rtol=0, atol=1e-5, err_msg=name)


def test_multiplier_follows_the_reference_trace():
    data = scalars()
    settings = data["config"]["lagrange"]
    multiplier = AdamMultiplier.from_config(MultiplierConfig(settings["init"], settings["lr"]))
    for step, (episode_cost, expected) in data["adam_lambda"].items():
        assert multiplier.update(episode_cost, settings["cost_limit"]) == pytest.approx(expected, abs=1e-5), step


def test_gae_matches_the_reference_trace():
    data = scalars()
    config, raw = data["config"]["gae"], data["gae_raw"]
    for ours, reference, lam in (("reward", "r", "lam"), ("cost", "c", "lam_c")):
        advantages, targets = gae(
            np.array(config[f"{ours}s"], np.float64),
            np.array(config[f"value_{reference}"], np.float32),
            config[f"bootstrap_{reference}"],
            config["gamma"],
            config[lam],
        )
        np.testing.assert_allclose(advantages, raw[f"adv_{reference}"], atol=1e-5)
        np.testing.assert_allclose(targets, raw[f"target_value_{reference}"], atol=1e-5)
        np.testing.assert_allclose(
            standardise(advantages, divide=ours == "reward"), data["gae_std"][f"adv_{reference}"], atol=1e-5
        )


def test_normaliser_matches_the_reference_trace():
    data = scalars()
    normaliser = Normaliser.empty(2)
    for observation, expected in zip(data["config"]["norm"]["inputs"], data["norm"], strict=True):
        array = np.array(observation, np.float32)
        normaliser.update(array)
        np.testing.assert_allclose(normaliser.normalise(array), expected, atol=1e-5)
    np.testing.assert_allclose(normaliser.std, data["norm_std"], atol=1e-5)
