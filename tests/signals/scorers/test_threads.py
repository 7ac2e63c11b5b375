"""With pinned kernels scores do not depend on the number of threads; with native kernels batches stay whole."""

import numpy as np
import pytest
import torch

from vlmsafe import kernels
from vlmsafe.signals.prompts import load_prompts
from vlmsafe.signals.scorers.embedded.scorer import EmbeddedScorer
from vlmsafe.signals.scorers.threads import computing_with, in_portions

FRAMES = np.random.default_rng(0).integers(0, 256, (40, 128, 128, 6), np.uint8)


@pytest.mark.skipif(not kernels.pinned(), reason="kernels cannot be pinned here")
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_scores_do_not_depend_on_the_number_of_threads(threads):
    found = []
    for count in (1, threads):
        with computing_with(count):
            scorer = EmbeddedScorer.load("", load_prompts("metadrive"), device="cpu")
            found.append(scorer.score(FRAMES))
            assert torch.get_num_threads() == count
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize(("pinned", "sizes"), [(True, {16, 8}), (False, {40})])
def test_portions_have_a_fixed_size_and_keep_their_order(monkeypatch, pinned, sizes):
    monkeypatch.setattr(kernels, "pinned", lambda: pinned)
    seen = set()

    def compute(frames):
        seen.add(len(frames))
        return frames.float().mean(dim=(1, 2, 3))

    frames = torch.from_numpy(FRAMES)
    assert torch.equal(in_portions(compute, frames), frames.float().mean(dim=(1, 2, 3)))
    assert seen == sizes
