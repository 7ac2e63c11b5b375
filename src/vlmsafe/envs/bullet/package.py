"""What is taken from Bullet Safety-Gym, and PyBullet as it imports it.

To keep PyBullet's greetings off the terminal, the package redirects the standard streams of the process. That fails
where something has replaced them, such as a notebook or a test runner, so the package gets the real ones for a moment.
"""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def real_streams() -> Iterator[None]:
    """Put back the streams that the process was started with."""
    with contextlib.redirect_stdout(sys.__stdout__), contextlib.redirect_stderr(sys.__stderr__):
        yield


with real_streams():
    from bullet_safety_gym.envs.builder import EnvironmentBuilder, get_physics_parameters, pb

__all__ = ["EnvironmentBuilder", "get_physics_parameters", "pb", "real_streams"]
