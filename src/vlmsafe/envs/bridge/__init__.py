"""Environments that run in another Python interpreter, with packages of their own.

adapter.py      makes a Gymnasium environment and adapts it; the one file that the other interpreter runs
interpreters.py which interpreter a name means
identity.py     what an environment there is made of
remote.py       starts the other interpreter and talks to it
"""
