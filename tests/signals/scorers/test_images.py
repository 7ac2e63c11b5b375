"""Frames become the pixels the reference processor makes of them."""

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil

from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.images import PatchProduct, Preparation, Preprocessing

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
KERNELS = (None, torch.float32)  # torch's uint8 resize, and products
SIZES = ((256, 256), (360, 480), (480, 360), (100, 37), (64, 64), (20, 33), (224, 224), (224, 300))
OPENAI = {  # the file of openai/clip-vit-base-patch32
    "crop_size": 224,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": 224,
}


def noise(*size: int, count: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def pillow(frame: np.ndarray, size: tuple[int, int], resample: str) -> np.ndarray:
    """Horizontally, then vertically: Pillow 13 takes the other order for some tall images, models saw this one."""
    image = Image.fromarray(frame).resize((size[1], frame.shape[0]), FILTERS[resample])
    return np.asarray(image.resize((size[1], size[0]), FILTERS[resample])).astype(int)


def reference(processor, frames: np.ndarray) -> torch.Tensor:
    return processor(list(frames), input_data_format="channels_last", return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("products", KERNELS)
@given(
    height=st.integers(1, 160),
    width=st.integers(1, 160),
    size=st.sampled_from([32, 96]),
    resample=st.sampled_from(["bilinear", "bicubic"]),
)
@example(256, 256, 224, "bicubic")
@example(64, 64, 224, "bicubic")  # grows
@example(100, 37, 32, "bicubic")
@settings(max_examples=25, deadline=None)
def test_resized_frame_equals_pillows_to_two_levels_in_few_pixels(products, height, width, size, resample):
    assume(max(height, width) <= 5 * min(height, width))
    preprocessing = Preprocessing(shortest=size, resample=resample, rescale=1.0, mean=(0, 0, 0), std=(1, 1, 1))
    frames = noise(height, width)
    ours = Preparation(preprocessing, (height, width), products=products)(torch.from_numpy(frames))
    difference = np.abs(
        ours[0].permute(1, 2, 0).numpy() - pillow(frames[0], preprocessing.resized((height, width)), resample)
    )
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.15  # ties; without rounding between the passes it is a fifth and more


@pytest.mark.parametrize("products", KERNELS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("processor", "preprocessing"),
    [(CLIPImageProcessorPil(), Preprocessing.clip(224)), (SiglipImageProcessorPil(), Preprocessing.siglip(224))],
    ids=["clip", "siglip"],
)
def test_pixels_equal_the_reference_processors(processor, preprocessing, size, products):
    frames = noise(*size, count=2)
    theirs = reference(processor, frames)
    ours = Preparation(preprocessing, size, products=products)(torch.from_numpy(frames))
    assert ours.shape == theirs.shape
    assert ours.dtype == torch.float32
    levels = (ours - theirs).abs() * 255 * torch.tensor(preprocessing.std).view(3, 1, 1)
    assert levels.max() < 2.01
    assert (levels > 0.01).float().mean() < 0.15


@pytest.mark.parametrize("preprocessing", [Preprocessing.clip(48), Preprocessing.siglip(48)], ids=["clip", "siglip"])
def test_a_frame_of_the_right_size_is_not_resized(preprocessing, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("resized")

    monkeypatch.setattr(torch.nn.functional, "interpolate", refuse)
    frames = noise(48, 48)
    for products in KERNELS:
        pixels = Preparation(preprocessing, (48, 48), products=products)(torch.from_numpy(frames))
        expected = (frames / 255 - preprocessing.mean) / preprocessing.std
        np.testing.assert_allclose(pixels.permute(0, 2, 3, 1), expected, atol=1e-5)
    with pytest.raises(AssertionError, match="resized"):
        Preparation(preprocessing, (48, 47))(torch.from_numpy(noise(48, 47)))


@pytest.mark.parametrize("products", KERNELS)
@pytest.mark.parametrize("size", [(256, 256), (60, 90), (31, 50)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"size": {"shortest_edge": 64}, "crop_size": {"height": 40, "width": 50}},
        {"size": {"shortest_edge": 32}, "crop_size": 45},  # black around it
        {"size": {"height": 30, "width": 44}, "crop_size": {"height": 37, "width": 21}},  # both
        {"size": {"height": 30, "width": 44}, "do_center_crop": False},
        {"size": [30, 44], "do_center_crop": False},
        {"do_resize": False, "crop_size": 40},
        {"do_rescale": False, "do_normalize": False},
        {"resample": 2, "rescale_factor": 1 / 127.5, "image_mean": [1.0, 1.0, 1.0], "image_std": [1.0, 1.0, 1.0]},
    ],
    ids=str,
)
def test_preprocessor_settings_mean_what_they_mean_to_the_reference(changes, size, products):
    given = {**OPENAI, "size": 48, "crop_size": 48, **changes}
    frames = noise(*size)
    theirs = reference(CLIPImageProcessorPil(**given), frames).float()
    found = Preprocessing.read(given, Preprocessing.clip(224))
    ours = Preparation(found, size, products=products)(torch.from_numpy(frames))
    assert ours.shape == theirs.shape
    assert ours.shape[2:] == found.output(size)
    levels = (ours - theirs).abs() / found.rescale * torch.tensor(found.std).view(3, 1, 1)
    assert levels.max() < 2.01
    assert (levels > 0.01).float().mean() < 0.15


def test_settings_that_are_not_given_are_the_models_defaults():
    assert Preprocessing.read(OPENAI, Preprocessing.clip(32)) == Preprocessing.clip(224)
    for default in (Preprocessing.clip(32), Preprocessing.siglip(48)):
        assert Preprocessing.read({}, default) == default
    # A crop size in a file of a model that does not crop by default means nothing.
    assert Preprocessing.read({"crop_size": 20}, Preprocessing.siglip(48)).crop is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"resample": 1}, "filter 1"),
        ({"size": {"longest_edge": 224}}, "longest_edge"),
        ({"size": "224"}, "size"),
        ({"crop_size": {"shortest_edge": 224}}, "crop_size"),
        ({"image_mean": 0.5}, "image_mean"),
        ({"image_std": [0.5, 0.5]}, "image_std"),
        ({"do_pad": True}, "pads"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_honoured_is_an_error(wrong, named):
    with pytest.raises(InputError, match=named) as caught:
        Preprocessing.read(wrong, Preprocessing.clip(224))
    assert "\n" not in str(caught.value)


@given(
    height=st.integers(8, 40),
    width=st.integers(8, 40),
    patch=st.sampled_from([(8, 8), (5, 3)]),
    bias=st.booleans(),
    last=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_the_patch_product_equals_the_convolution(height, width, patch, bias, last):
    """Also where patches do not fill the image, and for either order in memory."""
    convolution = torch.nn.Conv2d(3, 6, patch, patch, bias=bias)
    pixels = torch.randn(2, 3, height, width)
    if last:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        product, expected = PatchProduct(convolution)(pixels), convolution(pixels)
    assert product.shape == expected.shape
    torch.testing.assert_close(product, expected, atol=1e-5, rtol=0)


def test_the_patch_product_refuses_a_convolution_that_overlaps():
    for convolution in (torch.nn.Conv2d(3, 6, 8, 4), torch.nn.Conv2d(3, 6, 8, 8, padding=1)):
        with pytest.raises(ValueError, match="not one product per patch"):
            PatchProduct(convolution)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("products", "share"), [(torch.float32, 0.15), (torch.float16, 0.15)])
def test_pixels_on_a_gpu_equal_those_on_the_cpu(products, share):
    frames = torch.from_numpy(noise(256, 256, count=4))
    preprocessing = Preprocessing.clip(224)
    on_cpu = Preparation(preprocessing, (256, 256))(frames)
    on_gpu = Preparation(preprocessing, (256, 256), products=products).cuda()(frames.cuda()).cpu()
    levels = (on_gpu - on_cpu).abs() * 255 * torch.tensor(preprocessing.std).view(3, 1, 1)
    assert levels.max() < 3.01
    assert (levels > 0.01).float().mean() < share
