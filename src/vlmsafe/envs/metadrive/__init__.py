"""MetaDrive behind the package's interface.

env.py        the environment
simulator.py  MetaDrive, changed so that episodes repeat exactly
fast.py       the same episodes in less time; the parts of it are:
careful.py    a careful driver of the agent's car
paths.py      where a car that keeps to its lane will be
traffic.py    the traffic cars
driver.py     how a traffic car drives
neighbours.py which cars it has around it
lanes.py      where it is in a lane
reuse.py      what makes a reset cheap
maps.py       maps without bodies of their own
roads.py      the bodies of a map
ramps.py      ramps that do not cross the road
internals.py  whether the installed MetaDrive is the one that fast.py knows
scene.py      what is near the car, its hazard, and facts for captions
painter.py    frames
"""
