"""The wrapper for other trainers does to a step what training does to an epoch."""

import time

import gymnasium
import numpy as np
import pytest
from frame_scorer import FrameScorer
from gymnasium.utils.env_checker import check_env
from small_qwen import save_small_qwen

from vlmsafe.envs.registry import env_spec
from vlmsafe.errors import InputError
from vlmsafe.signals.frame_stack import stack_of
from vlmsafe.signals.gate import GATES, Gate, SignedGate
from vlmsafe.signals.prompts import PromptSet, load_prompts
from vlmsafe.signals.rules import Scores, apply_rule
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.server import Server
from vlmsafe.signals.service.sockets import listen
from vlmsafe.signals.service.spec import Address
from vlmsafe.signals.shaping import Signals, cost_bonus, due, hold, reward_bonus
from vlmsafe.wrapper import SemanticSignals

pytestmark = pytest.mark.slow

PROMPTS = load_prompts("metadrive")


def make(**settings):
    settings = {"scorer": FrameScorer(PROMPTS), "every": 4, **settings}
    return SemanticSignals(env_spec("speeding").make(), **settings)


def episode(env, seed=3):
    """(reward, info) of every step of one episode with fixed actions."""
    env.reset(seed=seed)
    rng, steps, finished = np.random.default_rng(0), [], False
    while not finished:
        _, reward, terminated, truncated, info = env.step(rng.random(1).astype(np.float32))
        steps.append((reward, info))
        finished = terminated or truncated
    return steps


@pytest.mark.parametrize("every", [1, 3, 4])
@pytest.mark.parametrize("gate", ["off", "prior-symmetric"])
def test_rewards_are_those_of_training_on_the_same_frames(every, gate):
    frames, bare = [], env_spec("speeding").make()
    bare.reset(seed=3)
    rng, rewards, finished = np.random.default_rng(0), [], False
    while not finished:
        _, reward, _, finished, _ = bare.step(rng.random(1).astype(np.float32))
        rewards.append(reward)
        frames.append(bare.frame())
    mask = np.array([due(step, every) for step in range(1, len(frames) + 1)])
    scorer = FrameScorer(PROMPTS)
    scores = apply_rule("decoupled", scorer.score(np.stack(frames)[mask]), scorer.groups)
    kappa = Gate()(scores) if gate == "prior-symmetric" else np.ones(mask.sum())
    signals = hold(scores, kappa, mask, np.array([len(frames)]))
    wrapped = episode(make(every=every, gate=gate))
    np.testing.assert_allclose([reward for reward, _ in wrapped], rewards + reward_bonus(signals, 0.1), rtol=1e-12)
    assert [info["scored"] for _, info in wrapped] == mask.tolist()
    np.testing.assert_allclose([info["negative_score"] for _, info in wrapped], signals.negative, rtol=1e-12)
    np.testing.assert_allclose([info["kappa"] for _, info in wrapped], signals.kappa, rtol=1e-12)
    last = wrapped[-1][1]["signal_episode"]
    assert last["env_return"] == pytest.approx(sum(rewards))
    assert last["bonus"] == pytest.approx(reward_bonus(signals, 0.1).sum())
    assert last["negative_score"] == pytest.approx(signals.negative.mean())


def test_reward_and_cost_of_the_environment_are_never_lost():
    for reward, info in episode(make()):
        assert reward == info["env_reward"] + info["bonus"]
        assert info["cost"] > 0.0


def test_the_cache_is_empty_again_after_a_reset():
    env = make()
    episode(env)
    _, first = episode(env)[0]
    assert (first["positive_score"], first["negative_score"], first["kappa"], first["bonus"]) == (0.0, 0.0, 1.0, 0.0)
    assert "margin" not in first


def test_it_is_a_well_behaved_gymnasium_environment():
    check_env(make(), skip_render_check=True)


def test_any_gymnasium_environment_that_renders_can_be_wrapped():
    pytest.importorskip("pygame")
    env = SemanticSignals(gymnasium.make("Pendulum-v1", render_mode="rgb_array"), FrameScorer(PROMPTS), every=2)
    env.reset(seed=0)
    for _ in range(2):
        *_, info = env.step(env.action_space.sample())
    assert 0.0 < info["positive_score"] < 1.0
    env.close()


@pytest.mark.parametrize("scorer", ["constant:0.6", "noise", "oracle", "rnd"])
def test_scorers_that_look_at_something_else_work_too(scorer):
    rule = "novelty" if scorer == "rnd" else "decoupled"
    steps = episode(make(scorer=scorer, gate="off", rule=rule, every=1))
    negative = [info["negative_score"] for _, info in steps]
    assert all(0.0 <= value <= 1.0 for value in negative)
    assert (len(set(negative)) == 1) == scorer.startswith("constant")


def test_calibration_sets_the_gate():
    env = make()
    calibration = env.calibrate(frames=30, episodes=6)
    assert calibration.frames == 30
    assert calibration.episodes >= 6
    assert env.gate == calibration.gate
    low, median, high = calibration.margin_quartiles
    assert float(env.gate.kappa(median)) == pytest.approx(0.0, abs=1e-9)
    assert float(env.gate.kappa(median + high - low)) == pytest.approx(0.5)
    assert make().calibrate(frames=30, episodes=6) == calibration, "seeded"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every is 0"),
        ({"every": 2.5}, "every is 2.5; it must be a whole number"),
        ({"reward_weight": float("nan")}, "reward_weight is nan"),
        ({"cost_weight": -1.0}, "cost_weight is -1.0; it must be finite and 0 or greater"),
        ({"cost_weight": 0.5, "reference": 1.5}, "reference is 1.5; it must lie between 0 and 1"),
        ({"service": "unix:/nowhere"}, "service is for a scorer by name"),
        ({"gate": None}, "gate is None; expected off"),
        ({"gate": Gate}, "gate is <class"),
        ({"scorer": FrameScorer}, "scorer is <class .* expected a scorer's name or a Scorer"),
        ({"gate": "calibrated"}, r"call calibrate\(\)"),
        ({"rule": "novelty"}, "cannot be used with the rule 'novelty'"),
        ({"scorer": "clip"}, "compares frames with prompts"),
        ({"scorer": "embedded"}, "compares frames with prompts"),
        ({"scorer": "clap"}, "unknown scorer"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make(**settings)


def test_the_oracle_needs_a_hazard_and_says_so_at_once():
    with pytest.raises(InputError, match=r"calls the environment's hazard\(\), and this environment has none"):
        SemanticSignals(gymnasium.make("Pendulum-v1"), "oracle")


@pytest.mark.parametrize(("frames", "episodes"), [(0, 5), (30, 0), (4, 5)])
def test_a_calibration_that_cannot_be_is_refused(frames, episodes):
    with pytest.raises(InputError, match=f"frames is {frames} and episodes {episodes}"):
        make().calibrate(frames=frames, episodes=episodes)


def test_an_environment_that_does_not_render_is_refused():
    with pytest.raises(InputError, match=r"render_mode is None; scoring frames needs gymnasium.make"):
        SemanticSignals(gymnasium.make("Pendulum-v1"), FrameScorer(PROMPTS))


def test_stable_baselines3_trains_on_a_wrapped_environment():
    pytest.importorskip("stable_baselines3")
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[1] / "examples" / "stable_baselines3_ppo.py"
    spec = importlib.util.spec_from_file_location("stable_baselines3_ppo", path)
    assert spec is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    returns = example.main(["--scorer", "oracle", "--env", "speeding", "--steps", "1024", "--calibrate"])
    assert len(returns.episodes) == 1024 // 20
    assert all(episode["bonus"] > 0.0 for episode in returns.episodes)


def test_a_scorer_of_two_frames_sees_the_one_four_steps_before_and_nothing_of_other_episodes() -> None:
    from frame_scorer import MotionScorer

    from vlmsafe.signals.prompts import PromptSet

    scorer = MotionScorer(PromptSet(("a",), ("b",)))
    env = SemanticSignals(env_spec("speeding").make(), scorer, gate="off", every=1)
    env.calibrate(frames=10)
    for _ in range(2):
        env.reset(seed=0)
        frames = []
        for step in range(1, 8):
            *_, info = env.step(np.array([1.0], np.float32))
            frames.append(env.unwrapped.frame())
            earlier = frames[step - 5] if step > 4 else frames[-1]
            (positive, negative), *_ = scorer.score(np.concatenate([earlier, frames[-1]], axis=-1)[None])
            assert info["margin"] == pytest.approx(float(positive) - float(negative))


class Uncopied(FrameScorer):
    """Stands for a model, or for a connection to a service."""

    def __deepcopy__(self, memo):
        raise AssertionError("a model was copied")


def test_wrappers_share_a_scorer_object_and_copy_it_never():
    scorer = Uncopied(PROMPTS)
    bare = gymnasium.make("Pendulum-v1", render_mode="rgb_array")
    envs = [SemanticSignals(bare, scorer), SemanticSignals(bare, scorer, every=2)]
    assert all(env.scorer is scorer for env in envs)
    outer = gymnasium.wrappers.TimeLimit(envs[0], 5)
    kwargs = [wrapper.kwargs for wrapper in outer.spec.additional_wrappers if wrapper.name == "SemanticSignals"]
    assert [one["scorer"] for one in kwargs] == [scorer]


def test_the_cost_route_adds_what_training_adds_and_leaves_the_cost_alone():
    env = make(every=3, cost_weight=0.5, reference=0.55, gate="prior-symmetric")
    steps = [info for _, info in episode(env)]
    assert [info["shaped_cost"] for info in steps] == [info["cost"] + info["cost_bonus"] for info in steps]
    scores = Scores(*(np.array([info.get(name, np.nan) for info in steps]) for name in
                      ("positive_score", "negative_score", "margin")))  # fmt: skip
    kappa = np.array([info["kappa"] for info in steps])
    signals = Signals(scores.positive, scores.negative, kappa, scores.margin, np.ones(len(steps), bool))
    expected = cost_bonus(signals, 0.5, 0.55)
    np.testing.assert_allclose([info["cost_bonus"] for info in steps], expected)
    assert expected[:2].tolist() == [0.0, 0.0], "nothing is scored yet"
    assert expected.max() > 0.0
    assert steps[-1]["signal_episode"]["cost_bonus"] == pytest.approx(expected.sum())
    assert "shaped_cost" not in episode(make())[0][1]


def test_calibration_sets_the_reference_unless_one_was_given():
    env = make(cost_weight=0.5)
    with pytest.raises(InputError, match=r"pass reference, or call calibrate\(\) first"):
        episode(env)
    calibration = env.calibrate(frames=30, episodes=6)
    assert env.reference == calibration.negative_median
    assert "shaped_cost" in episode(env)[0][1]
    given = make(cost_weight=0.5, reference=0.25)
    given.calibrate(frames=30, episodes=6)
    assert given.reference == 0.25


def test_an_environment_without_a_cost_has_no_cost_route():
    env = SemanticSignals(gymnasium.make("CartPole-v1"), "constant:1,0", cost_weight=0.5, reference=0.5)
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"info\['cost'\], and this environment's info has none"):
        env.step(0)


class SixValues(gymnasium.Wrapper):
    """Steps as Safety-Gymnasium does, with the cost after the reward."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, 0.0, terminated, truncated, info


def test_an_environment_with_other_values_per_step_is_told_what_is_expected():
    env = SemanticSignals(SixValues(gymnasium.make("CartPole-v1")), "constant:1,0")
    env.reset(seed=0)
    message = r"step\(\) gave 6 values; expected the five of Gymnasium: .*SafetyGymnasium2Gymnasium"
    with pytest.raises(InputError, match=message):
        env.step(0)
    with pytest.raises(InputError, match="gave 6 values"):
        env.calibrate(frames=10)


def test_an_auto_gate_is_the_scorers_own():
    class Answering(FrameScorer):
        gate = "probability"

    class Careful(FrameScorer):
        gate = "calibrated"

    gates = [make(scorer=kind(PROMPTS)).gate for kind in (FrameScorer, Answering, Careful)]
    assert gates == [GATES["prior-symmetric"], GATES["probability"], GATES["off"]]


def test_a_wrapper_asks_a_scoring_service_and_hangs_up_when_it_is_closed(tmp_path):
    address = Address("unix", str(tmp_path / "scorer"))
    listener, clean_up = listen(address)
    server = Server(listener)
    try:
        private = episode(make(scorer="python:frame_scorer:FrameScorer", prompts=PROMPTS))
        env = make(scorer="python:frame_scorer:FrameScorer", prompts=PROMPTS, service=str(address), service_wait=5.0)
        assert isinstance(env.scorer, ServiceScorer)
        assert [reward for reward, _ in episode(env)] == [reward for reward, _ in private]
        env.close()
        until = time.monotonic() + 5.0
        while server.clients and time.monotonic() < until:
            time.sleep(0.01)
        assert server.clients == 0
    finally:
        server.stop()
        clean_up()


def test_a_scorer_by_name_gets_as_many_frames_as_are_asked_for(tmp_path):
    save_small_qwen(tmp_path)
    prompts = PromptSet(("a",), ("b",), "a pole that stands", "a pole that falls")
    cart = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    options = {"rule": "yes-no", "device": "cpu", "frames": 3, "frame_distance": 2}
    env = SemanticSignals(cart, f"qwen2-vl:{tmp_path}", prompts, every=2, **options)
    assert stack_of(env.scorer) == (4, 2, 0)
    env.reset(seed=0)
    seen = []
    for _ in range(6):
        *_, info = env.step(0)
        seen.append(cart.render())
    expected = env.scorer.score(np.concatenate([seen[1], seen[3], seen[5]], axis=-1)[None])[0]
    assert [info["positive_score"], info["negative_score"]] == pytest.approx(expected.tolist(), abs=1e-6)
    with pytest.raises(InputError, match="for a scorer by name"):
        SemanticSignals(cart, FrameScorer(PROMPTS), frames=2)


@pytest.mark.parametrize("label", ["cost-ahead", "cost", "hazard"])
def test_calibration_fits_a_platt_gate_on_labels_of_the_environment(label):
    env = SemanticSignals(env_spec("braking").make(), "oracle", every=2)
    calibration = env.calibrate(frames=150, episodes=3, gate="platt", label=label, horizon=10)
    assert env.gate == calibration.fitted("platt")
    assert 0 < calibration.dangerous_frames < calibration.labelled_frames <= 150
    assert label == "cost" or calibration.platt_slope < 0.0
    again = SemanticSignals(env_spec("braking").make(), "oracle", every=2)
    assert again.calibrate(frames=150, episodes=3, gate="platt", label=label, horizon=10) == calibration, "seeded"


def test_calibration_fits_a_signed_gate():
    env = make()
    calibration = env.calibrate(frames=30, episodes=6, gate="signed-calibrated")
    assert env.gate == SignedGate(calibration.gate_scale, calibration.gate_centre)


def test_labels_that_an_environment_does_not_have_are_refused():
    env = SemanticSignals(gymnasium.make("CartPole-v1"), "noise", every=1)
    with pytest.raises(InputError, match=r"label 'cost' reads info\['cost'\], and this environment's info has none"):
        env.calibrate(30, gate="platt", label="cost")
    with pytest.raises(InputError, match=r"label 'hazard' calls the environment's hazard\(\)"):
        env.calibrate(30, gate="platt", label="hazard")
    for settings in ({"gate": "signed"}, {"label": "danger"}, {"horizon": 0}):
        with pytest.raises(InputError, match=r"expected one of|fits one of"):
            env.calibrate(30, **settings)


def test_a_gate_that_closes_on_danger_cannot_weigh_the_cost():
    with pytest.raises(InputError, match="'signed' closes on frames that look dangerous"):
        make(gate="signed", cost_weight=0.5)
    env = make(cost_weight=0.5)
    with pytest.raises(InputError, match="'platt' closes on frames that look dangerous"):
        env.calibrate(30, gate="platt")


def test_a_gate_of_the_users_weighs_a_wrapped_environment(tmp_path, monkeypatch):
    (tmp_path / "quarter_gates.py").write_text(
        "def quarter(positive, negative, margin):\n    return 0.25 + 0.0 * margin\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    steps = episode(make(gate="python:quarter_gates:quarter", every=1))
    assert {info["kappa"] for _, info in steps} == {0.25}
