"""The learners do what OmniSafe 0.5.0 does, to float32 accuracy."""

import dataclasses

import numpy as np
import pytest
from vectors import batch, load_parameters, reference_name, scalars, update, vector_names

from vlmsafe.config.learning import MultiplierConfig
from vlmsafe.config.methods import METHODS
from vlmsafe.learners.advantages import gae, standardise
from vlmsafe.learners.multipliers import make_multiplier
from vlmsafe.learners.registry import LEARNERS
from vlmsafe.numerics.normaliser import Normaliser

METHOD = {"PPOLag": "ppo-lag", "CPPOPID": "cppo-pid", "FOCOPS": "focops", "CUP": "cup", "P3O": "p3o", "CPO": "cpo"}


@pytest.mark.parametrize("name", vector_names())
def test_update_matches_the_reference_vector(name):
    """With the settings of the method, save for the one full batch, five passes and no early stop of the vectors."""
    vector, method = update(name), METHODS[METHOD[name.split("-")[0]]]
    config = dataclasses.replace(method.learner, batch_size=400, update_iters=5, kl_early_stop=False)
    observation, action = vector["batch/obs"].shape[1], vector["batch/act"].shape[1]
    learner = LEARNERS[config.algorithm](observation, action, config, np.random.default_rng(0))
    load_parameters(learner.networks, vector)
    # The vectors start from the engine's own lambda_0 and, where it has one, its multiplier.
    multiplier = make_multiplier(dataclasses.replace(method.multiplier, initial=0.001))
    episode_cost, budget = float(vector["episode_cost"]), float(vector["cost_limit"])
    price = 0.0
    if multiplier is not None:
        price = multiplier.update(multiplier.bracket(episode_cost, budget), episode_cost)
        assert price == pytest.approx(float(vector["multiplier_after"]), abs=1e-6)
    learner.update(batch(vector), price, episode_cost - budget, np.random.default_rng(0))
    for parameter, ours in learner.networks.named():
        theirs = vector[f"after/{reference_name(parameter)}"]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5, err_msg=parameter)


@pytest.mark.parametrize(
    ("kind", "settings", "trace"), [("adam", "lagrange", "adam_lambda"), ("pid", "pid", "pid_lambda")]
)
def test_multiplier_follows_the_reference_trace(kind, settings, trace):
    data = scalars()
    given = data["config"][settings]
    multiplier = make_multiplier(MultiplierConfig(kind=kind, initial=given["init"]))
    for step, (episode_cost, expected) in data[trace].items():
        value = multiplier.update(multiplier.bracket(episode_cost, given["cost_limit"]), episode_cost)
        assert value == pytest.approx(expected, abs=1e-5), step


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
