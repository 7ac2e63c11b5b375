"""Write docs/images/formula-one-layouts.png: FormulaOne from above, the original's outline under our walls.

    python tools/formula_one_layouts.py [SEED]

Grey is the outline of the original's walls, red lines are the faces of the walls that MuJoCo collides with here. Rings
are the original's barriers for the seed, 0 to 9, after its reset; discs are those that stand here when the episode
starts: they differ where a barrier was drawn into a wall. Green are the goals, blue is the car.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from PIL import Image, ImageDraw
from scipy.spatial import ConvexHull

from vlmsafe.envs.formula_one.barriers import BARRIER_RADIUS, draw_layout, settle
from vlmsafe.envs.formula_one.circuit import GOAL_RADIUS, GOALS, circuit
from vlmsafe.envs.formula_one.model import build

FILE = Path(__file__).parent.parent / "docs" / "images" / "formula-one-layouts.png"
ORIGINAL = np.load(FILE.parents[2] / "benchmarks" / "original" / "formula_one.npz")
SCALE, LEFT, TOP = 30, -14.5, 16.0  # pixels per metre while drawing, and the upper left corner in metres
WIDTH, HEIGHT = round(52.0 * SCALE), round(54.0 * SCALE)
SHRINK = 2  # drawn larger and reduced, so that lines are smooth


def at(points: Any) -> list[tuple[float, float]]:
    """Metres as pixels."""
    return [((x - LEFT) * SCALE, (TOP - y) * SCALE) for x, y in np.atleast_2d(points)]


def disc(draw: ImageDraw.ImageDraw, place: Any, metres: float, **colours: Any) -> None:
    ((x, y),), radius = at(place), metres * SCALE
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), **colours)


def compiled_walls() -> list[Any]:
    """The outlines from above of the walls in the compiled model."""
    model = build(0)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    found = []
    for number in range(len(circuit().pieces)):
        geom = model.geom(f"wall_{number}").id
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        corners = model.mesh_vert[first : first + count] @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
        found.append(corners[ConvexHull(corners[:, :2]).vertices, :2])
    return found


def panel(level: int, seed: int) -> Image.Image:
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(picture)
    for start, end in circuit().walls:
        draw.line(at([start, end]), fill=(170, 170, 170), width=9)
    for outline in compiled_walls():
        draw.line(at([*outline, outline[0]]), fill=(190, 40, 40), width=2)
    layout = draw_layout(level, seed)
    settled = settle(layout.barriers, GOALS[layout.start], np.random.default_rng(seed))
    for place in settled:
        disc(draw, place, BARRIER_RADIUS, fill=(240, 140, 20))
    for place in ORIGINAL[f"level{level}_barriers"][seed]:
        disc(draw, place, BARRIER_RADIUS, outline=(60, 60, 60), width=2)
    for goal in GOALS:
        disc(draw, goal, GOAL_RADIUS, fill=(30, 160, 60))
    car = GOALS[layout.start]
    ahead = car + 0.9 * np.array([math.cos(layout.yaw), math.sin(layout.yaw)])
    draw.line(at([car, ahead]), fill=(40, 80, 220), width=8)
    draw.text((24, 24), f"level {level}, seed {seed}", fill="black", font_size=44)
    return picture.resize((WIDTH // SHRINK, HEIGHT // SHRINK), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdecimal() else 0
    if sys.argv[1:] not in ([], [str(chosen)]) or chosen > 9:
        given = " ".join(sys.argv[1:])
        sys.exit(f"error: the seed is {given}; expected one of 0 to 9, for which the original was measured")
    sheet = Image.new("RGB", (2 * (WIDTH // SHRINK), HEIGHT // SHRINK))
    for column, level in enumerate((1, 2)):
        sheet.paste(panel(level, chosen), (column * (WIDTH // SHRINK), 0))
    sheet.save(FILE, optimize=True)
    print(FILE)
