"""FormulaOne: a racecar on a walled circuit through seven goals, on MuJoCo.

Rewritten after Safety-Gymnasium's environment of that name, which is in no package registry. The documentation's page
on environments lists what is equal and what differs.

circuit.py    the goals, the way through them, the walls
racecar.xml   the car
model.py      the compiled world
barriers.py   where barriers stand
lidar.py      what the car senses
env.py        the environment
driver.py     a scripted driver
painter.py    frames
"""

from vlmsafe.envs import opengl

opengl.choose()  # before any module here imports MuJoCo, which reads the answer once
