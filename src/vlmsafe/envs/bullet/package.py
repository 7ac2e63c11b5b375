"""What is taken from Bullet Safety-Gym, and PyBullet as it imports it.

To keep PyBullet's greetings off the terminal the package takes hold of the process's standard streams, and fails where
something else stands in their place, such as a notebook or a test runner. So it is given the real ones for a moment.
"""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def real_streams() -> Iterator[None]:
    """The streams that the process was started with."""
    with contextlib.redirect_stdout(sys.__stdout__), contextlib.redirect_stderr(sys.__stderr__):
        yield


with real_streams():
    from bullet_safety_gym.envs.builder import EnvironmentBuilder, get_physics_parameters, pb

__all__ = ["EnvironmentBuilder", "get_physics_parameters", "pb", "real_streams"]
