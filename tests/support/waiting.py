"""Wait for an event instead of a fixed time, so that tests pass on slow machines."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
