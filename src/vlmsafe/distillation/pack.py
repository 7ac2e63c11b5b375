"""Recordings in one small file for training on another machine: views and truths only.

    python -m vlmsafe.distillation.pack DIRECTORY

It writes `recordings.pack` and `selection.pack` into the directory of a build. The stage `train` reads them where there
are no recordings. The views of an episode are one tall picture, because WebP finds what its frames have in common.
Observations and measures are left out.
"""

from __future__ import annotations

import io
import json
import lzma
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vlmsafe.distillation.data import Examples, known_name, read
from vlmsafe.io.files import write_atomically

_UNKNOWN = 255  # a truth that is not known; the others are counted in steps of 1 / 250
_TALLEST = 120  # frames in one picture; WebP allows 16,383 pixels
_ROUNDING = 16  # of colours, as in recordings
_COLUMNS = ("frames", "contact", "ahead", "env", "scenario", "episode", "driver")


def pack(examples: Examples, versions: dict[str, int | None]) -> bytes:
    """Examples without observations and measures."""
    begins, ends = _runs(examples)
    truths = np.where(np.isnan(examples.truths), _UNKNOWN, np.round(examples.truths * 250.0)).astype(np.uint8)
    with ThreadPoolExecutor() as threads:
        pictures = list(threads.map(lambda begin, end: _tall(examples.seen[begin:end]), begins, ends))
    columns: dict[str, NDArray[Any]] = {name: getattr(examples, name) for name in _COLUMNS}
    columns |= {"truths": truths, "picture_size": np.array([len(one) for one in pictures], np.int64)}
    columns["picture_frames"] = np.array(ends) - np.array(begins)
    buffer = io.BytesIO()
    np.savez(buffer, size=np.array(examples.seen.shape[-1]), versions=np.array(json.dumps(versions)), **columns)  # type: ignore[arg-type]
    told = lzma.compress(buffer.getvalue())
    return len(told).to_bytes(8, "little") + told + b"".join(pictures)


def unpack(path: Path) -> tuple[Examples, dict[str, int | None]]:
    """What `pack` made, and the versions of the environments."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    with np.load(io.BytesIO(lzma.decompress(data[8 : 8 + length]))) as file:
        held = {name: file[name] for name in file.files}
    size, counts = int(held.pop("size")), held.pop("picture_frames")
    ends = 8 + length + np.cumsum(held.pop("picture_size"))
    versions = json.loads(str(held.pop("versions")))
    seen = torch.empty((int(counts.sum()), 6, size, size), dtype=torch.uint8)

    def show(begin: int, end: int, part: torch.Tensor) -> None:
        with Image.open(io.BytesIO(data[begin:end])) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).reshape(len(part), size, 2, size, 3)
        part.copy_(pixels.permute(0, 2, 4, 1, 3).reshape(len(part), 6, size, size))

    with ThreadPoolExecutor() as threads:
        begins = [8 + length, *ends[:-1]]
        list(threads.map(show, begins, ends, torch.split(seen, counts.tolist())))
    known = held.pop("truths")
    truths = np.where(known == _UNKNOWN, np.nan, known / 250.0).astype(np.float32)
    rows = len(truths)
    nothing: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * rows
    empty = np.empty((rows, 0), np.float32)
    return Examples(seen=seen, truths=truths, observations=nothing, measures=empty, **held), versions


def _runs(examples: Examples) -> tuple[list[int], list[int]]:
    """Where the frames of each episode begin and end in `seen`; long episodes have several runs."""
    changes = np.flatnonzero(np.diff(examples.episode)) + 1
    begins, ends = [0, *changes.tolist()], [*changes.tolist(), len(examples)]
    cuts = [
        (start, min(start + _TALLEST, end))
        for begin, end in zip(begins, ends, strict=True)
        for start in range(begin, end, _TALLEST)
    ]
    return [begin for begin, _ in cuts], [end for _, end in cuts]


def _tall(seen: torch.Tensor) -> bytes:
    """Both views of every frame side by side, frames below each other."""
    count, _, size, _ = seen.shape
    pixels = seen.reshape(count, 2, 3, size, size).permute(0, 3, 1, 4, 2).reshape(count * size, 2 * size, 3).numpy()
    half = _ROUNDING // 2
    rounded = np.minimum((pixels.astype(np.int16) + half) // _ROUNDING * _ROUNDING, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(rounded).save(buffer, format="WEBP", lossless=True, method=4)
    return buffer.getvalue()


def versions_of(paths: Sequence[Path]) -> dict[str, int | None]:
    """The versions of the environments in recordings, by name without variants. The user's have none."""
    found: dict[str, int | None] = {}
    for path in paths:
        with np.load(path) as held:
            version = int(held["version"])
            found[known_name(str(held["env"]))] = None if version < 0 else version
    return dict(sorted(found.items()))


def main(directory: Path) -> None:
    for name in ("recordings", "selection"):
        paths = sorted((directory / name).glob("*.npz"))
        packed = pack(read(paths), versions_of(paths))
        write_atomically(directory / f"{name}.pack", packed)
        print(f"{directory / name}.pack: {len(packed) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
