"""Environments behind one interface. Simulators are imported only when one is made.

To add an environment:

1. Write a module with a subclass of `api.Env` and a function `make(spec, scenarios, randomise)` that returns one.
   `small/braking.py` is the shortest example with everything; a simulator gets a folder, such as `metadrive/`.
2. Add an `api.EnvSpec` with the module's name to `registry.ENVS`.
3. Write prompts for it (`signals/prompts`), if vision-language scorers should see it.

A registered Gymnasium environment that reports a cost needs none of this: name it `gym:<id>` (`gym.py`).

api.py       `Env`, `EnvSpec`, `Scenarios`
registry.py  the environments by name
gym.py       Gymnasium and Safety-Gymnasium environments
bridge/      the same in another Python interpreter
episodes.py  resets and steps with everything checked
checking.py  what training on an environment would meet
hazard.py    how close a state is to something that costs
opengl.py    how MuJoCo draws without a screen
vector/      worker processes with one environment each, and the frames that come out of them
"""
