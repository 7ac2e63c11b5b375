"""Calls a function in a child process with certain kernels, as if it had been called here.

A process whose libraries are loaded cannot change their kernels. A notebook, or a script that imported numpy first,
therefore computes in a child process. Its output, notes, progress, errors and interruptions reach the user as before:
what the child prints appears here, callbacks are called here, an error is raised here with its class and message, and
signals to this process are passed on. A child whose parent dies is asked to save and exit.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from typing import Any, TextIO

from vlmsafe import kernels
from vlmsafe.errors import RunError, VlmsafeError
from vlmsafe.io.output import outlive_reader

_PR_SET_PDEATHSIG = 1
# The path first: vlmsafe itself may be found only where this process found it.
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from vlmsafe.io.child import serve; serve()"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def call_in_child(
    chosen: kernels.Kernels,
    function: Callable[..., Any],
    *arguments: Any,
    callbacks: Mapping[str, Callable[..., None]] | None = None,
    **named: Any,
) -> Any:
    """The result of a function of a module, computed in a child process; arguments and result are pickled.

    `callbacks` are keyword arguments too. They are called in this process, and what they return is lost.
    """
    callbacks = callbacks or {}
    order = (function.__module__, function.__qualname__, arguments, named, tuple(callbacks))
    ours, theirs = connection.Pipe()
    forwarded = [stream for stream in (sys.stdout, sys.stderr) if not _is_own(stream)]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if sys.stdout in forwarded else None,
        stderr=subprocess.PIPE if sys.stderr in forwarded else None,
        env=kernels.environment(chosen),
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
        preexec_fn=_before_start(),
    )
    theirs.close()
    pumps = [
        threading.Thread(target=_pump, args=pair, daemon=True)
        for pair in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        if pair[0] is not None
    ]
    answer: tuple[Any, ...] = ()
    try:
        with _signals_passed_to(process):
            for pump in pumps:
                pump.start()
            ours.send_bytes(pickle.dumps(order))
            answer = _answer(ours, process, callbacks)
    finally:
        if not answer:
            process.terminate()
        process.wait()  # a child that answered may still print something on its way out
        for pump in pumps:
            pump.join()
        ours.close()
    kind, *rest = answer
    if kind == "error":
        raise _rebuilt(*rest)
    return rest[0]


def _answer(
    pipe: connection.Connection, process: subprocess.Popen[bytes], callbacks: Mapping[str, Callable[..., None]]
) -> tuple[Any, ...]:
    """The child's result or error; callbacks are called until it comes."""
    while True:
        try:
            message: tuple[Any, ...] = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RunError(
                f"the process that computes with other kernels ended with code {process.wait()}; what is on disk can "
                "be resumed"
            ) from None
        if message[0] != "callback":
            return message
        _, name, arguments = message
        callbacks[name](*arguments)


def _rebuilt(kind: type[BaseException], arguments: tuple[Any, ...], state: dict[str, Any], text: str) -> BaseException:
    """An error of the child. Its class may want other arguments than the message, so it is not called."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    if not isinstance(error, VlmsafeError):  # a defect, so it matters where it happened
        error.add_note(f"In the process that computed it:\n{text}")
    return error


def serve() -> None:
    """The main function of the child."""
    pipe = connection.Connection(int(sys.argv[1]))
    outlive_reader()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # one that came while modules were imported counts now
        module, name, arguments, named, callbacks = pickle.loads(pipe.recv_bytes())
        named |= {key: _Callback(pipe, key) for key in callbacks}
        result = getattr(importlib.import_module(module), name)(*arguments, **named)
        _flush()
        pipe.send(("result", result))
    except BaseException as error:
        _flush()
        state = {key: value for key, value in vars(error).items() if key != "__notes__"}
        pipe.send(("error", type(error), error.args, state, traceback.format_exc()))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


class _Callback:
    def __init__(self, pipe: connection.Connection, name: str) -> None:
        self._pipe, self._name = pipe, name

    def __call__(self, *arguments: Any) -> None:
        self._pipe.send(("callback", self._name, arguments))


def _is_own(stream: TextIO) -> bool:
    """Whether a stream is the process's own. A notebook or a test replaces it by one that a child cannot write to."""
    return stream in (sys.__stdout__, sys.__stderr__)


def _pump(source: Any, target: TextIO) -> None:
    """Pass on what the child prints, line by line."""
    with source:
        for line in source:
            target.write(line.decode(errors="replace"))
            target.flush()


@contextlib.contextmanager
def _signals_passed_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, lambda got, frame: process.send_signal(got)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _before_start() -> Callable[[], None]:
    """A function that the child calls before it starts: signals wait until it can answer them."""
    ask = ask_when_parent_dies()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if ask is not None:
            ask()

    return prepare


def ask_when_parent_dies() -> Callable[[], None] | None:
    """A function that a child calls before it starts, so that it gets SIGTERM when this process dies for any reason.

    Nothing is imported or looked up after the fork. On systems other than Linux children outlive their parent.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the call above
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
