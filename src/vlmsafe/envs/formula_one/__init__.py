"""FormulaOne: a racecar on a walled circuit through seven goals, on MuJoCo.

Rewritten here after Safety-Gymnasium's environment of that name, which is in no package registry; docs/environments.md
says what equals it and what differs.

circuit.py    the goals, the way through them, the walls
racecar.xml   the car
model.py      the compiled world
barriers.py   where barriers stand
lidar.py      what the car senses around it
env.py        the environment
driver.py     a scripted driver
painter.py    frames
"""

from __future__ import annotations

from vlmsafe.envs import opengl
from vlmsafe.envs.api import Env, EnvSpec, Scenarios

opengl.choose()  # before any module here imports MuJoCo, which then settles how it draws


def make(spec: EnvSpec, scenarios: Scenarios, randomise: bool) -> Env:
    """Called by `EnvSpec.make`; there is nothing to randomise beyond the scenario."""
    from vlmsafe.envs.formula_one.env import FormulaOne

    assert spec.horizon is not None
    return FormulaOne(scenarios, spec.horizon, indicators=bool(spec.indicators), **spec.settings)
