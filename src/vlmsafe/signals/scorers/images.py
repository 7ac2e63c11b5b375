"""Turns rendered frames into the pixels that a vision tower reads, with torch alone and no imaging library.

A model's similarities depend on how images were resized in its training, so this follows the reference processor of
`transformers`. It resizes with Pillow: horizontally, then vertically, each time with a filter that widens as the image
shrinks (antialiasing), and rounds to whole pixel values after each pass. On the CPU, torch's resize of uint8 tensors
does the same in integer arithmetic. A GPU has no such kernel, so there each pass is a matrix product followed by
rounding. On random pixels both differ from Pillow by at most two of 255 levels, in fewer than one pixel of a hundred on
average. Floating point without the rounding between the passes differs by up to twenty levels, in every fifth pixel.
Pillow 13 swaps the passes for some tall images. Models were trained before that, so the swap is not made here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from vlmsafe.errors import InputError

Resample = Literal["bilinear", "bicubic"]
Size = tuple[int, int]
"""(height, width)"""

_PILLOW: dict[Any, Resample] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers, as in configuration files
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Preprocessing:
    """The steps that prepare an image for a model; steps that are None are left out."""

    shortest: int | None = None
    """Resize the shorter side to this length and keep the proportions."""
    exact: Size | None = None
    """Resize to this size without keeping the proportions; excludes `shortest`."""
    crop: Size | None = None
    """Then cut this size out of the middle; if the image is smaller, add black around it."""
    resample: Resample = "bicubic"
    rescale: float = 1 / 255
    mean: tuple[float, ...] = _CLIP_MEAN
    std: tuple[float, ...] = _CLIP_STD

    @classmethod
    def clip(cls, size: int) -> Preprocessing:
        """CLIP's steps: resize the shorter side to `size`, then cut out the middle square."""
        return cls(shortest=size, crop=(size, size))

    @classmethod
    def siglip(cls, size: int) -> Preprocessing:
        """SigLIP's steps: resize to a square without keeping the proportions, values from -1 to 1."""
        return cls(exact=(size, size), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

    @classmethod
    def read(cls, settings: Mapping[str, Any], default: Preprocessing) -> Preprocessing:
        """Read the content of a model's preprocessor_config.json; missing entries are as in `default`."""
        found = default
        if settings.get("do_pad"):
            raise InputError("the model's preprocessor pads images, which is not supported")
        if "size" in settings:
            found = replace(found, **_resize(settings["size"], bool(settings.get("default_to_square"))))
        if not settings.get("do_resize", True):
            found = replace(found, shortest=None, exact=None)
        if "crop_size" in settings and settings.get("do_center_crop", found.crop is not None):
            found = replace(found, crop=_pair(settings["crop_size"], "crop_size"))
        if not settings.get("do_center_crop", True):
            found = replace(found, crop=None)
        if "resample" in settings:
            if settings["resample"] not in _PILLOW:
                raise InputError(
                    f"the model's preprocessor resamples with Pillow's filter {settings['resample']}; "
                    "supported are 2 (bilinear) and 3 (bicubic)"
                )
            found = replace(found, resample=_PILLOW[settings["resample"]])
        found = replace(found, rescale=settings.get("rescale_factor", found.rescale))
        if not settings.get("do_rescale", True):
            found = replace(found, rescale=1.0)
        found = replace(
            found,
            mean=_channels(settings.get("image_mean", found.mean), "image_mean"),
            std=_channels(settings.get("image_std", found.std), "image_std"),
        )
        if not settings.get("do_normalize", True):
            found = replace(found, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        return found

    def resized(self, size: Size) -> Size:
        """The size after resizing; the longer side is rounded down, as in the reference."""
        if self.exact is not None:
            return self.exact
        if self.shortest is None:
            return size
        height, width = size
        if width <= height:
            return int(self.shortest * height / width), self.shortest
        return self.shortest, int(self.shortest * width / height)

    def output(self, size: Size) -> Size:
        """The size of the image that a model gets for frames of this size."""
        return self.crop or self.resized(size)


class Preparation(nn.Module):
    """`Preprocessing` for frames of one size: uint8 [N, height, width, 3] to pixels [N, 3, height, width].

    With `products`, it resizes by matrix products of that type; torch's uint8 kernel exists only on the CPU.
    Pixel values are whole numbers up to 255, so float16 rounds only the filter's weights, to 11 binary digits.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        size: Size,
        *,
        pixels: torch.dtype = torch.float32,
        products: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._resized = preprocessing.resized(size)
        self._crop = preprocessing.output(size)
        self._resample = preprocessing.resample
        self._pixels = pixels
        mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", (preprocessing.rescale / std).view(-1, 1, 1))
        self.register_buffer("shift", (-mean / std).view(-1, 1, 1))
        self.rows: Tensor | None
        self.columns: Tensor | None
        self.register_buffer("rows", None)
        self.register_buffer("columns", None)
        self._resizes = self._resized != size
        if products is not None and self._resizes:
            # Cutting leaves rows out of the matrices, and a black border makes rows of zeros.
            down, across = (
                _cut(_resize_matrix(before, after, preprocessing.resample), wanted, 0).to(products)
                for before, after, wanted in zip(size, self._resized, self._crop, strict=True)
            )
            self.rows, self.columns = down, across.T.contiguous()

    def forward(self, frames: Tensor) -> Tensor:
        images = frames.permute(0, 3, 1, 2)
        if self.rows is not None and self.columns is not None:
            images = _whole(images.to(self.columns.dtype) @ self.columns)
            images = _whole(self.rows @ images)
        else:
            if self._resizes:
                images = functional.interpolate(images, self._resized, mode=self._resample, antialias=True)
            images = _cut(_cut(images, self._crop[0], 2), self._crop[1], 3)
        return (images.float() * self.scale + self.shift).to(self._pixels)


class PatchProduct(nn.Module):
    """A convolution from pixels to patch embeddings, computed as a matrix product: its stride equals its kernel's size.

    It replaces a vision tower's `patch_embedding` on a GPU, where the convolution is slower.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        if convolution.stride != convolution.kernel_size or convolution.padding not in ("valid", (0, 0)):
            raise ValueError(f"not one product per patch: {convolution}")
        self.height, self.width = convolution.kernel_size
        self.weight = nn.Parameter(convolution.weight.detach().flatten(1))
        self.bias = None if convolution.bias is None else nn.Parameter(convolution.bias.detach())

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, channels, height, width] to [N, embedding, rows, columns]."""
        count, channels = pixels.shape[:2]
        rows, columns = pixels.shape[2] // self.height, pixels.shape[3] // self.width
        # Like the convolution, leave out pixels at the bottom and the right that do not fill a patch.
        filled = pixels[:, :, : rows * self.height, : columns * self.width]
        patches = filled.reshape(count, channels, rows, self.height, columns, self.width).permute(0, 2, 4, 1, 3, 5)
        embeddings = functional.linear(patches.reshape(count, rows * columns, -1), self.weight, self.bias)
        return embeddings.transpose(1, 2).view(count, -1, rows, columns)


def _whole(images: Tensor) -> Tensor:
    """Round to pixel values, halves up as in Pillow, and clip, because bicubic filters overshoot."""
    return (images + 0.5).floor().clamp(0, 255)


def _resize_matrix(before: int, after: int, resample: Resample) -> Tensor:
    """The [after, before] matrix that resizes a column of pixels: torch's own resize of the identity matrix."""
    identity = torch.eye(before)[None, None]
    return functional.interpolate(identity, (after, before), mode=resample, antialias=True)[0, 0]


def _cut(images: Tensor, wanted: int, dim: int) -> Tensor:
    """The middle of a dimension. If it is too short, zeros are added around it, the odd one in front."""
    there = images.shape[dim]
    if there >= wanted:
        return images.narrow(dim, (there - wanted) // 2, wanted)
    before = math.ceil((wanted - there) / 2)
    return functional.pad(images, [0, 0] * (images.ndim - 1 - dim) + [before, wanted - there - before])


def _resize(size: Any, square: bool) -> dict[str, Any]:
    """The fields `shortest` and `exact`, from any form of a size in configuration files."""
    if isinstance(size, int) and not square:
        return {"shortest": size, "exact": None}
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        return {"shortest": int(size["shortest_edge"]), "exact": None}
    return {"shortest": None, "exact": _pair(size, "size")}


def _pair(size: Any, what: str) -> Size:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and set(size) == {"height", "width"}:
        return int(size["height"]), int(size["width"])
    if isinstance(size, Sequence) and not isinstance(size, str) and len(size) == 2:
        return int(size[0]), int(size[1])
    raise InputError(f"the model's preprocessor has an unsupported {what}: {size}")


def _channels(values: Any, what: str) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != 3:
        raise InputError(f"the model's preprocessor has an unsupported {what}: {values}; expected three numbers")
    return tuple(float(value) for value in values)
