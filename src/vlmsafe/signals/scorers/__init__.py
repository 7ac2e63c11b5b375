"""Scorers: each turns a batch of inputs into similarities to positive and negative prompts.

api.py        `Scorer`, the class to implement, and the checks of what a scorer returns
registry.py   the kinds of scorers, and names such as `clip:<model>`; make.py makes a scorer from its name
loaders.py    how each kind is loaded
clip.py, qwen2_vl.py, checkpoints/, embedded/, endpoint/, rnd.py, controls.py   the scorers
cache.py      scores on disk, before a slow or paid scorer; bill.py says what scoring cost
questions.py  what models that answer yes or no are asked; yes_no.py reads their answers
hub.py        models from a folder, the Hugging Face cache or the hub
batches.py    batches on the CPU and on a GPU; images.py resizes frames, device.py chooses the device
"""
