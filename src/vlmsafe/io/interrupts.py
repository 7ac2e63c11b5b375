"""SIGINT and SIGTERM as a polite request: finish the write under way, save, leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether, and by what, the process was asked to stop."""

    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        return self.reason is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Collect the first SIGINT or SIGTERM as a request; a second SIGINT interrupts at once, as it always did."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers; code that trains in another thread handles signals itself
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.reason = signal.Signals(number).name

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
