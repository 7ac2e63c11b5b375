"""The embedded scorer's network and its file: an image tower and a text tower that embed into one space.

Each frame is used twice, whole and its middle half, both at 128 pixels. In a whole frame of MetaDrive at that size, a
car is four pixels wide and the gap to its lane line is hardly visible. The middle half alone does not show what lies
ahead. An earlier frame in the same stack shows speed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.embedded import SHIPPED
from vlmsafe.signals.scorers.embedded.prompt_table import PromptTable, with_one

_AT_A_TIME = 16  # frames
_FORMAT = "vlmsafe embedded scorer 1"

POOLED = (2, 3)
"""Stages for `Architecture.pooled`: their responses see about a car's surroundings and about half of a frame."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of the two towers."""

    size: int = 128
    """Width and height of a view in pixels."""
    frames: int = 2
    """Frames in a stack, see `vlmsafe.signals.frame_stack`."""
    widths: tuple[int, ...] = (16, 32, 64, 128, 192)
    """Channels of each stage; every stage halves the resolution."""
    depths: tuple[int, ...] = (0, 1, 2, 2, 1)
    """Additional convolutions of each stage, with a skip connection around each."""
    pooled: tuple[int, ...] = ()
    """Stages, counted from 0, whose strongest responses anywhere in the frame join what the head sees by position."""
    dimension: int = 128
    """Dimension of the space of both embeddings."""
    text_width: int = 96
    text_layers: int = 2
    longest: int = 32
    """The most words that a prompt may have."""


class Embedding(nn.Module):
    """Embeds frames and texts as unit vectors of one space; their product is the similarity."""

    def __init__(
        self, words: tuple[str, ...], architecture: Architecture | None = None, prompts: tuple[str, ...] = ()
    ) -> None:
        """A distilled model has `prompts` instead of words, the only texts it knows, see `prompt_table`."""
        super().__init__()
        self.words, self.prompts = words, prompts
        self.worlds: dict[str, int | None] = {}
        """Environments that a distilled model was trained in, with their versions."""
        self.architecture = architecture or Architecture()
        self._image = _ImageTower(self.architecture)
        self._text: nn.Module = (
            PromptTable(len(prompts), self.architecture.dimension)
            if prompts
            else _TextTower(len(words), self.architecture)
        )
        self.log_scale = nn.Parameter(torch.tensor(2.3))  # of similarities in the training loss
        self.bias = nn.Parameter(torch.tensor(0.0))

    @property
    def longest(self) -> int:
        """The most words that a prompt may have."""
        return self.architecture.longest

    def image(self, frames: Tensor) -> Tensor:
        """Stacks uint8 [N, height, width, 3 frames], with frames of any size, to unit vectors [N, D]."""
        if frames.device.type == "cpu" and len(frames) > _AT_A_TIME:
            # Portions that fit into the processor's cache take two thirds of the time.
            return torch.cat([self.image(part) for part in torch.split(frames, _AT_A_TIME)])
        return self.image_of_views(views(frames, self.architecture.size))

    def image_of_views(self, seen: Tensor) -> Tensor:
        """Both views of each frame, [N, 6 frames, size, size] with values from 0 to 255, to unit vectors."""
        # White becomes 0, which is also the padding of convolutions: most frames have a white background.
        pixels = 1.0 - seen.to(self.log_scale.dtype) / 255.0
        found = functional.normalize(self._image(pixels).float(), dim=-1)
        return with_one(found) if self.prompts else found

    def text(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [P, L], padded with 0, to unit vectors [P, D]; a distilled model's vectors have a centre too."""
        found: Tensor = self._text(tokens)
        return found if self.prompts else functional.normalize(found.float(), dim=-1)

    @property
    def table(self) -> PromptTable:
        """The text side of a distilled model."""
        assert isinstance(self._text, PromptTable)
        return self._text


def views(stacks: Tensor, size: int) -> Tensor:
    """Both views of stacks uint8 [N, height, width, C]: whole and middle half, [N, 2 C, size, size] from 0 to 255."""
    height, width = stacks.shape[1:3]
    top, left = height // 4, width // 4
    middle = stacks[:, top : height - top, left : width - left]
    return torch.cat([_resized(stacks, size), _resized(middle, size)], dim=1)


def _resized(frames: Tensor, size: int) -> Tensor:
    """Resize; each pixel of the result is the mean of the pixels that it covers."""
    height, width = frames.shape[1:3]
    if (height, width) == (2 * size, 2 * size):  # faster, for the usual size
        sums = frames[:, ::2, ::2].short().add_(frames[:, 1::2, ::2])
        sums.add_(frames[:, ::2, 1::2]).add_(frames[:, 1::2, 1::2])
        return sums.float().mul_(0.25).permute(0, 3, 1, 2)
    pixels = frames.permute(0, 3, 1, 2).float()
    return pixels if (height, width) == (size, size) else functional.adaptive_avg_pool2d(pixels, size)


class _ImageTower(nn.Module):
    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        self._pooled: list[int] = []  # layers whose strongest responses the head sees
        channels, anywhere = 6 * architecture.frames, 0
        for stage, (width, depth) in enumerate(zip(architecture.widths, architecture.depths, strict=True)):
            layers += [_convolution(channels, width, stride=2), nn.ReLU(inplace=True)]
            layers += [_Around(_convolution(width, width)) for _ in range(depth)]
            channels = width
            if stage in architecture.pooled:
                self._pooled.append(len(layers) - 1)
                anywhere += width
        self.stages = nn.Sequential(*layers)
        # Positions in the frame matter as much as what is there, so nothing is averaged over the frame. Where a camera
        # does not follow the car, the same things happen all over the frame; their strongest responses say so.
        side = architecture.size // 2 ** len(architecture.widths)
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * side * side + anywhere, 256),
            nn.ReLU(inplace=True),
            nn.Linear(256, architecture.dimension),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        strongest: list[Tensor] = []
        for number, layer in enumerate(self.stages):
            pixels = layer(pixels)
            if number in self._pooled:
                strongest.append(pixels.amax(dim=(2, 3)))
        by_place = self.head[0](pixels)
        found: Tensor = self.head[1:](torch.cat([by_place, *strongest], dim=1) if strongest else by_place)
        return found


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs))


class _Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: Tensor) -> Tensor:
        return functional.relu(values + self.inner(values))


class _TextTower(nn.Module):
    def __init__(self, words: int, architecture: Architecture) -> None:
        super().__init__()
        width = architecture.text_width
        self.words = nn.Embedding(words + 1, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(architecture.longest, width) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(architecture.text_layers)
        )
        self.weight = nn.Linear(width, 1)
        self.head = nn.Linear(width, architecture.dimension, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        values = self.words(tokens) + self.places[: tokens.shape[1]]
        for layer in self.layers:
            values = layer(values, src_key_padding_mask=padding)
        # Words have learned weights: "the car is" appears in most texts and distinguishes none of them.
        weights = self.weight(values).masked_fill(padding[..., None], -torch.inf).softmax(dim=1)
        found: Tensor = self.head((values * weights).sum(dim=1))
        return found


def fused(model: Embedding) -> Embedding:
    """Fold the normalisation of each convolution into its weights, which must not change afterwards."""
    for pair in _pairs(model):
        convolution, normalisation = pair[0], pair[1]
        assert isinstance(convolution, nn.Conv2d)
        if isinstance(normalisation, nn.BatchNorm2d):
            pair[0] = torch.nn.utils.fuse_conv_bn_eval(convolution, normalisation)
            pair[1] = nn.Identity()
    return model


def _pairs(model: Embedding) -> Iterator[nn.Sequential]:
    for module in model.modules():
        if isinstance(module, nn.Sequential) and isinstance(module[0], nn.Conv2d):
            yield module


def save(model: Embedding, path: Path) -> None:
    """Weights, sizes and words in one safetensors file, halved in precision; the model is fused by it."""
    weights = {
        # The table of a distilled model keeps its precision: similarities may differ in the third digit only.
        name: (value.detach() if model.prompts and name.startswith("_text.") else value.detach().half()).contiguous()
        for name, value in fused(model.eval()).state_dict().items()
    }
    description: dict[str, Any] = {"architecture": asdict(model.architecture), "words": list(model.words)}
    if model.prompts:
        description |= {"prompts": list(model.prompts), "worlds": model.worlds}
    save_file(weights, path, metadata={"format": _FORMAT, "description": json.dumps(description)})


def load(path: Path | None = None) -> Embedding:
    """The model from its file, by default the one that ships with the package."""
    path = SHIPPED if path is None else path
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; expected the weights of an embedded scorer") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"cannot read the weights of an embedded scorer from {path}: {error}") from None
    if metadata.get("format") != _FORMAT:
        raise InputError(f"{path} does not hold an embedded scorer; `vlmsafe embedded build` writes one")
    description = json.loads(metadata["description"])
    sizes: dict[str, Any] = description["architecture"]
    sizes |= {name: tuple(value) for name, value in sizes.items() if isinstance(value, list)}
    model = Embedding(tuple(description["words"]), Architecture(**sizes), tuple(description.get("prompts", ()))).eval()
    model.worlds = description.get("worlds", {})
    for pair in _pairs(model):
        convolution = pair[0]
        assert isinstance(convolution, nn.Conv2d)
        convolution.bias = nn.Parameter(torch.zeros(convolution.out_channels))
        pair[1] = nn.Identity()
    model.load_state_dict(weights)
    # Frames come with their channels last and keep this order: reordering would take a quarter of the time.
    return model.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
