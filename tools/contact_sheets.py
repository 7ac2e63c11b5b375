"""Write docs/images/<environment>.png: what scorers see of each environment, and of FormulaOne what people see too.

    python tools/contact_sheets.py [ENVIRONMENT ...]

The upper row is the scripted driver's, the lower one that of a driver whose hands shake more and more. Frames whose
step cost something have an orange border here, which no scorer ever sees.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from vlmsafe.envs.registry import ENVS, env_spec
from vlmsafe.learners.policy import ActionMap

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COLUMNS, HEIGHT = 5, 180  # frames in a row, pixels of each
SECONDS = 8.0  # a row spans 300 steps, or more where they are short
BORDER = (230, 120, 20)


def sheet(name: str) -> Image.Image:
    """Two rows of frames from held-out scenarios."""
    spec = env_spec(name)
    env = spec.make(spec.held_out, randomise=False)
    to_env = ActionMap.to(env.action_space, clips=env.clips)
    apart = max(1, min(spec.horizon or 1000, max(300, round(SECONDS / spec.step_seconds))) // COLUMNS)
    rows = []
    for row, shake in enumerate((0.0, 0.6)):
        env.reset(seed=spec.held_out.start + row)
        expert, rng, tiles = env.expert(), np.random.default_rng(row), []
        noise = np.zeros(env.action_space.shape)
        for step in range(1, apart * COLUMNS + 1):
            wanted = expert() if expert else rng.uniform(-1.0, 1.0, env.action_space.shape)
            noise = 0.9 * noise + shake * np.sqrt(0.19) * rng.standard_normal(env.action_space.shape)
            *_, terminated, truncated, info = env.step(to_env(np.clip(wanted + noise, -1.0, 1.0).astype(np.float32)))
            if step % apart == 0 or terminated or truncated:
                tiles.append(tile(env.frame(), info["cost"] > 0.0))
            if terminated or truncated:
                env.reset(seed=spec.held_out.start + row + 2)
                expert = env.expert()
        rows.append(np.concatenate(tiles[:COLUMNS], axis=1))
    if name == "formula-one-l2" and hasattr(env, "overview"):
        Image.fromarray(env.overview(640)).save(IMAGES / f"{name}-overview.png", optimize=True)
    env.close()
    return Image.fromarray(np.concatenate(rows))


def tile(frame: np.ndarray, cost: bool) -> np.ndarray:
    """A frame at the sheet's height, framed in white or, where its step cost something, in orange."""
    width = round(HEIGHT * frame.shape[1] / frame.shape[0])
    small = np.asarray(Image.fromarray(frame).resize((width, HEIGHT), Image.Resampling.LANCZOS))
    framed = np.empty((HEIGHT + 8, width + 8, 3), np.uint8)
    framed[:] = BORDER if cost else (255, 255, 255)
    framed[4:-4, 4:-4] = small
    return framed


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ENVS:
        file = IMAGES / f"{name.replace(':', '-')}.png"
        sheet(name).save(file, optimize=True)
        print(file)
