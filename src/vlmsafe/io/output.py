"""Standard output and error that fall silent when their reader goes away, so that `| head` ends no command."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _Silenced(io.FileIO):
    """A file that swallows what is written after its reader has closed the pipe."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outlive_reader() -> None:
    """Let this process continue silently when the reader of its output, such as head, has seen enough.

    A stream that a test or a notebook has replaced is left alone. A stream that was closed before the process started
    (`>&-`) is silent from the beginning.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        if stream is None:
            own = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the process
        else:
            stream.flush()
            own = io.TextIOWrapper(
                io.BufferedWriter(_Silenced(stream.fileno(), "w", closefd=False)),
                encoding=stream.encoding, errors=stream.errors,
                line_buffering=stream.line_buffering, write_through=stream.write_through,
            )  # fmt: skip
        setattr(sys, name, own)
        setattr(sys, f"__{name}__", own)  # it is still the process's own stream
