"""A call in a child process is like a call here: its result, output, callbacks and errors."""

import atexit
import os
import sys

import pytest

from vlmsafe.envs.vector.pool import WorkerError
from vlmsafe.errors import RunError
from vlmsafe.io.child import call_in_child


def answer(number, *, told):
    told(number, "half")
    print("from the child")
    atexit.register(print, "and its last words")
    print("a warning", file=sys.stderr)
    return {"twice": 2 * number, "process": os.getpid()}


def fail(kind):
    if kind == "worker":
        raise WorkerError("the simulator broke", "its traceback", 5)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "exit":
        os._exit(3)
    raise TypeError("not a number")


def test_a_result_comes_back_with_what_was_printed_and_told(capsys, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it would hide that output waits in a buffer
    told = []
    found = call_in_child("native", answer, 21, callbacks={"told": lambda *words: told.append(words)})
    assert found["twice"] == 42
    assert found["process"] != os.getpid()
    assert told == [(21, "half")]
    assert capsys.readouterr() == ("from the child\nand its last words\n", "a warning\n")


def test_an_error_keeps_its_class_message_and_details():
    with pytest.raises(WorkerError, match=r"^the simulator broke$") as caught:
        call_in_child("native", fail, "worker")
    assert (caught.value.details, caught.value.exit_code) == ("its traceback", 5)
    with pytest.raises(TypeError, match="not a number") as other:
        call_in_child("native", fail, "type")
    assert "in fail" in other.value.__notes__[0]  # where it happened
    with pytest.raises(KeyboardInterrupt):
        call_in_child("native", fail, "interrupt")


def test_a_child_that_dies_is_one_clear_error():
    with pytest.raises(RunError, match="ended with code 3"):
        call_in_child("native", fail, "exit")


def test_an_error_in_a_callback_ends_the_child():
    def told(*words):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        call_in_child("native", answer, 1, callbacks={"told": told})
