"""MetaDrive behind the package's interface.

env.py        the environment
simulator.py  MetaDrive, changed so that episodes repeat exactly
scene.py      what is near the car, its hazard, and facts for captions
painter.py    frames
"""
