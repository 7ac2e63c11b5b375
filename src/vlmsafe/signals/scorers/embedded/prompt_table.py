"""The text side of a distilled model: a table with one vector for each prompt that its teacher scored.

A distilled model learned similarities to given prompts and no language, so it knows these prompts and no others.

A teacher's similarities often vary little around a level of their own: CLIP's cosines of one environment may lie
between 0.22 and 0.26. The table therefore gives each prompt a centre and a scale, and the similarity is centre + scale
* cosine. Both are folded into the vectors: that of a prompt is (scale * direction, centre), and that of a frame has a 1
at the end. Their product is the similarity, as for every other dual encoder.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from vlmsafe.errors import InputError

_FEW = 4


class PromptTable(nn.Module):
    """A direction, a centre and a scale per prompt. Only directions are learned."""

    centres: Tensor
    scales: Tensor

    def __init__(self, prompts: int, dimension: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(prompts, dimension))
        self.register_buffer("centres", torch.zeros(prompts))
        self.register_buffer("scales", torch.ones(prompts))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [P, 1], numbers of prompts counted from 1, to vectors [P, D + 1]."""
        rows = tokens[:, 0] - 1
        directions = functional.normalize(self.directions[rows].float(), dim=-1)
        return torch.cat([self.scales[rows, None] * directions, self.centres[rows, None]], dim=1)


def with_one(images: Tensor) -> Tensor:
    """Unit vectors [N, D] of frames, with the 1 that takes up a prompt's centre, [N, D + 1]."""
    return torch.cat([images, images.new_ones(len(images), 1)], dim=1)


def find_prompts(texts: Sequence[str], known: Sequence[str]) -> Tensor:
    """Tokens int64 [P, 1] of prompts among those that a model knows. Case and spaces do not matter."""
    numbers = {_plain(prompt): number for number, prompt in enumerate(known, start=1)}
    for text in texts:
        if _plain(text) not in numbers:
            raise _unknown(text, known)
    return torch.tensor([[numbers[_plain(text)]] for text in texts])


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _unknown(text: str, known: Sequence[str]) -> InputError:
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.6) or list(known[:_FEW])
    more = f" and {len(known) - len(near)} more" if len(known) > len(near) else ""
    return InputError(
        f"the prompt '{text}' is not one of those that this scorer was distilled with, and it knows no others; use "
        f"its own, such as '{near[0]}'{more} (its card lists them), or distil it again with your prompts"
    )
