"""A CLIP of a few thousand random weights, in a folder, as a teacher that can be had without a download.

    python benchmarks/distil/random_clip.py small-clip

Its similarities depend on frames and prompts, and mean nothing. docs/guides/distil.md has a scorer distilled from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))


def main() -> None:
    from small_models import save_small_clip  # type: ignore[import-not-found]

    if len(sys.argv) != 2:
        raise SystemExit("usage: python benchmarks/distil/random_clip.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    save_small_clip(folder)


if __name__ == "__main__":
    main()
