"""Training: the loss, and that meaning is learnt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vlmsafe.analysis.auc import auc
from vlmsafe.distillation import grammar
from vlmsafe.distillation.ceiling import train_ceiling
from vlmsafe.distillation.data import Examples, read
from vlmsafe.distillation.facts import FACTS
from vlmsafe.distillation.record import RecordTask
from vlmsafe.distillation.scores import rank_auc, selection_figures, similarities
from vlmsafe.distillation.train import (
    Schedule,
    balanced_loss,
    caption_truths,
    draw_captions,
    frame_weights,
    prompt_sets,
    train,
)  # fmt: skip
from vlmsafe.envs.api import Scenarios
from vlmsafe.envs.registry import env_spec
from vlmsafe.signals.scorers.embedded.network import Architecture, Embedding, load, save, views
from vlmsafe.signals.scorers.embedded.tokenizer import Tokenizer

SMALL = Architecture(size=32, widths=(8, 16), depths=(0, 0), dimension=16, text_width=32, text_layers=1)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    folder, spec = tmp_path_factory.mktemp("recordings"), env_spec("braking")
    recorded = RecordTask(
        folder / "braking.npz", "braking", spec.step_seconds, Scenarios(0, 100), False, episodes=60, seed=(0,)
    )
    recorded.run(spec.make(), lambda steps: None)
    return read([folder / "braking.npz"], size=32)


def test_and_is_as_true_as_the_lesser_and_or_as_the_greater() -> None:
    truths = torch.tensor([[0.2, 0.9, float("nan")]])
    facts, either = torch.tensor([[0, 1], [0, 1], [1, 1], [0, 2]]), torch.tensor([False, True, False, False])
    found = caption_truths(truths, facts, either)[0]
    assert found[:3].tolist() == pytest.approx([0.2, 0.9, 0.9])
    assert found[3].isnan()
    turned = caption_truths(truths, facts, either, torch.tensor([[False, True]] * 4))[0]
    assert turned[:3].tolist() == pytest.approx([0.1, 0.2, 0.1])


def test_true_and_false_frames_of_a_caption_weigh_the_same() -> None:
    logits = torch.tensor([2.0, -1.0, -1.0, -1.0])[:, None]
    once = balanced_loss(logits, torch.tensor([1.0, 0.0, 0.0, 0.0])[:, None])
    many = balanced_loss(logits.repeat(5, 1), torch.tensor([1.0, 0.0, 0.0, 0.0])[:, None].repeat(5, 1))
    by_hand = (np.log1p(np.exp(-2.0)) + np.log1p(np.exp(-1.0))) / 2
    assert float(once) == pytest.approx(by_hand) == pytest.approx(float(many))


def test_a_share_moves_weight_from_false_frames_to_true_ones() -> None:
    logits, truths = torch.tensor([[2.0], [-1.0]]), torch.tensor([[1.0], [0.0]])
    by_hand = 0.4 * np.log1p(np.exp(-2.0)) + 0.6 * np.log1p(np.exp(-1.0))
    assert float(balanced_loss(logits, truths, 0.4)) == pytest.approx(by_hand)


def test_caution_makes_scenes_look_more_dangerous(examples: Examples) -> None:
    margins = []
    for caution in (0.2, 0.8):
        schedule = Schedule(
            steps=150, frames=32, captions=32, wordings=60, joint=0, sets=8, sets_weight=3.0, caution=caution
        )
        model = train(examples, schedule, architecture=SMALL)
        rng = np.random.default_rng(1)
        texts = tuple(grammar.caption(fact, rng) for fact in ("safe", "danger") for _ in range(30))
        found = similarities(model, examples, texts)
        margins.append(float(found[:, :30].mean() - found[:, 30:].mean()))
    assert margins[1] < margins[0] - 0.02


def test_unknown_truths_and_captions_without_both_kinds_of_frames_add_nothing() -> None:
    nan = float("nan")
    truths = torch.tensor([[1.0, 1.0, nan], [0.0, 1.0, nan], [nan, 1.0, nan]])
    logits = torch.tensor([[1.0, 5.0, 5.0], [-1.0, 5.0, 5.0], [100.0, 5.0, 5.0]], requires_grad=True)
    loss = balanced_loss(logits, truths)
    loss.backward()
    assert loss.item() == pytest.approx(np.log1p(np.exp(-1.0)))
    assert logits.grad is not None
    assert logits.grad[:, 1:].abs().max() == logits.grad[2].abs().max() == 0.0


def test_dangerous_frames_are_drawn_as_often_as_others(examples: Examples) -> None:
    weights, danger = frame_weights(examples), examples.fact("danger") >= 0.3
    assert weights.sum() == pytest.approx(1.0)
    assert 0.05 < danger.mean() < 0.95
    assert weights[danger].sum() == pytest.approx(0.5)


def test_worlds_are_drawn_as_often_as_they_weigh_however_many_frames_they_have(examples: Examples) -> None:
    names = np.array(["metadrive-easy", "metadrive-hard", "formula-one-l2", "bullet-car-reach", "braking"])
    envs = names[np.random.default_rng(0).choice(5, len(examples), p=(0.5, 0.2, 0.1, 0.1, 0.1))]
    weights = frame_weights(replace(examples, env=envs))
    shares = [weights[np.isin(envs, chosen)].sum() for chosen in (names[:2], names[2], names[3], names[4])]
    assert shares == pytest.approx(np.array([1.0, 1.0, 1.0, 0.15]) / 3.15)


def test_a_stack_without_an_earlier_frame_is_not_drawn_if_the_car_moves(examples: Examples) -> None:
    lonely = examples.frames[:, 0] == examples.frames[:, 1]
    moving = np.where(np.arange(len(examples)) % 2 == 0, 0.0, 1.0)
    truths = examples.truths.copy()
    truths[:, list(FACTS).index("stopped")] = moving
    weights = frame_weights(replace(examples, truths=truths))
    assert lonely.any()
    assert (weights[lonely & (moving == 0.0)] == 0.0).all()
    assert (weights[lonely & (moving == 1.0)] > 0.0).all()


def test_prompt_sets_state_what_is_good_and_bad_in_a_world(examples: Examples) -> None:
    words = Tokenizer(grammar.vocabulary())
    captions = draw_captions(Schedule(wordings=4, joint=5), range(len(FACTS)), words, np.random.default_rng(0))
    sets = prompt_sets(examples, captions, 1.0, "cpu")
    names = list(FACTS)
    for pool, bare in ((sets.good[0], "safe"), (sets.bad[0], "danger")):
        stated = {tuple(names[one] for one in captions.facts[row].tolist()) for row in pool.tolist()}
        assert (bare, bare) in stated
        assert not captions.denied[pool].any()
        assert not stated & {("touching", "touching"), ("spaced", "spaced")}, "nothing in braking says so"
    soon = (examples.ahead <= 20) | examples.contact
    assert sets.coming[torch.from_numpy(soon)].min() == 1.0
    assert sets.coming[torch.from_numpy(np.isinf(examples.ahead) & ~examples.contact)].max() == 0.0


def test_candidates_are_compared_by_what_was_recorded(examples: Examples) -> None:
    model = Embedding(grammar.vocabulary(), SMALL).eval()
    told = selection_figures(model, replace(examples, env=np.full(len(examples), "metadrive-easy")))
    assert set(told["worlds"]) == {"metadrive"}
    one = told["worlds"]["metadrive"]
    assert told["score"] == pytest.approx((one["lead"] + (one["safe"] + one["hazardous"]) / 2) / 2)
    rng = np.random.default_rng(0)
    values, positive = rng.integers(0, 9, 50).astype(float), rng.random(50) < 0.4
    assert rank_auc(values, positive) == pytest.approx(auc(values, positive))


def test_a_short_training_tells_danger_from_safety_in_other_words_and_scenarios(
    examples: Examples, tmp_path: Path
) -> None:
    early, late = examples.select(examples.scenario < 70), examples.select(examples.scenario >= 70)
    losses: list[float] = []
    schedule = Schedule(steps=700, frames=32, captions=64, learning_rate=5e-3, wordings=60, joint=0, sets=4)
    model = train(early, schedule, architecture=SMALL, on_step=lambda step, loss: losses.append(loss))
    assert losses[-1] < losses[0] - 0.1
    save(model, tmp_path / "weights.safetensors")
    rng = np.random.default_rng(77)
    texts = tuple(grammar.caption(fact, rng) for fact in ("danger", "safe") for _ in range(20))
    found = similarities(load(tmp_path / "weights.safetensors"), late, texts)
    scores = [auc(column, late.fact("danger") >= 0.5) for column in found.T]
    # Seeds 0 to 2 gave 0.78 to 0.87 and 0.14 to 0.15; a model that has learnt nothing gives 0.5.
    assert np.median(scores[:20]) > 0.7
    assert np.median(scores[20:]) < 0.3


def test_the_same_seed_trains_the_same_model(examples: Examples) -> None:
    schedule = Schedule(steps=3, frames=16, captions=16, wordings=5, joint=5)
    one, same, other = (train(examples, schedule, seed=seed, architecture=SMALL) for seed in (1, 1, 2))
    weights = [model.state_dict()["_image.head.1.weight"] for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_ceiling_reads_danger_off_the_observation(examples: Examples) -> None:
    early, late = examples.select(examples.scenario < 70), examples.select(examples.scenario >= 70)
    scorer = train_ceiling(early, steps=300)
    found = scorer.score(np.stack(late.observations))
    assert found.shape == (len(late), 1)
    assert auc(found[:, 0], late.fact("danger") >= 0.5) > 0.95


@pytest.mark.parametrize("pooled", [(), (1,), (0, 1)])
def test_saving_keeps_the_function(tmp_path: Path, pooled: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = Embedding(("car", "road"), replace(SMALL, pooled=pooled))
    frames, tokens = torch.randint(0, 256, (8, 50, 70, 6), dtype=torch.uint8), torch.tensor([[1, 2], [2, 0]])
    model.train().image(frames)  # its normalisation now differs from that of a new model
    before = model.eval().image(frames), model.text(tokens)
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert again.words == ("car", "road")
    torch.testing.assert_close(again.image(frames), before[0], atol=2e-3, rtol=0)
    torch.testing.assert_close(again.text(tokens), before[1], atol=2e-3, rtol=0)


def test_pooled_responses_are_the_same_wherever_something_is_in_the_frame() -> None:
    torch.manual_seed(0)
    tower = Embedding(("car",), replace(SMALL, pooled=(0, 1)))._image.eval()
    seen: list[torch.Tensor] = []
    tower.head[1].register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    pixels = torch.zeros(2, 12, 32, 32)
    thing = torch.rand(12, 6, 6)
    pixels[0, :, 8:14, 8:14] = thing
    pixels[1, :, 16:22, 12:18] = thing  # moved by whole steps of the last stage
    with torch.inference_mode():
        tower(pixels)
    anywhere = sum(SMALL.widths)
    torch.testing.assert_close(seen[0][0, -anywhere:], seen[0][1, -anywhere:])
    assert not torch.equal(seen[0][0, :-anywhere], seen[0][1, :-anywhere])


@pytest.mark.parametrize("height", [32, 64, 128, 96, 50])
def test_views_are_means_of_the_pixels_they_cover_whatever_the_size_of_frames(height: int) -> None:
    frames = torch.randint(0, 256, (3, height, 64, 6), dtype=torch.uint8)
    seen = views(frames, 32)
    pixels = frames.permute(0, 3, 1, 2).float()
    middle = pixels[:, :, height // 4 : height - height // 4, 16:48]
    expected = [torch.nn.functional.adaptive_avg_pool2d(part, 32) for part in (pixels, middle)]
    torch.testing.assert_close(seen, torch.cat(expected, dim=1))


def test_a_large_batch_is_judged_as_its_moments_one_by_one() -> None:
    torch.manual_seed(0)
    model = Embedding(("car", "road"), SMALL).eval()
    frames = torch.randint(0, 256, (37, 64, 64, 6), dtype=torch.uint8)
    with torch.inference_mode():
        whole, single = model.image(frames), torch.cat([model.image(frame[None]) for frame in frames])
    torch.testing.assert_close(whole, single, atol=1e-5, rtol=0)
