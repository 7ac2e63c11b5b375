"""MetaDrive behind the package's interface.

env.py        the environment
simulator.py  MetaDrive, changed so that episodes repeat exactly
reuse.py      what makes a reset cheap
maps.py       maps without bodies of their own
roads.py      the bodies of a map
scene.py      what is near the car, its hazard, and facts for captions
painter.py    frames
"""
