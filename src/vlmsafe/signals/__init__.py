"""Vision-language signals, in the order in which a frame passes through them.

frame_stack.py   renders frames and stacks several of them for scorers that see motion
scorers/         turn frames into similarities to the prompts of prompts.py; service/ scores for many runs
rules.py         similarities to a positive and a negative score, and their margin
gate.py          the margin to a confidence kappa; calibration.py and platt.py fit it on frames of a random policy
shaping.py       scores and kappa to what is added to reward and cost at every step
"""
