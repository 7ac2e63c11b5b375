"""Loading a model is silent, and leaves the process as it was, even if several threads load at once or one fails."""

import logging
import os
import threading
import warnings

import pytest
import transformers

from vlmsafe.signals.scorers.hub import quiet

VARIABLE = "DISABLE_SAFETENSORS_CONVERSION"
LOGS = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]


def state():
    bars = transformers.utils.logging.is_progress_bar_enabled()
    return [log.level for log in LOGS], bars, os.environ.get(VARIABLE), len(warnings.filters)


@pytest.fixture(params=[None, "0"])
def before(request, monkeypatch):
    """The state of the process, with the variable unset or set by the user."""
    if request.param is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, request.param)
    return state()


def test_two_models_may_load_at_the_same_time(before):
    entered, leave, failures = threading.Event(), threading.Event(), []

    def load():
        try:
            with quiet():
                entered.set()
                leave.wait(10.0)
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=load)
    with quiet():
        other.start()
        entered.wait(0.3)
        assert os.environ[VARIABLE] == "1"
    assert entered.wait(10.0)
    assert os.environ[VARIABLE] == "1", "the other one is still loading"
    leave.set()
    other.join(10.0)
    assert failures == []
    assert state() == before


def test_a_model_that_cannot_be_loaded_leaves_no_setting_behind(before):
    def load():
        with quiet():
            assert [log.level for log in LOGS] == [logging.ERROR] * 2
            raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        load()
    assert state() == before


def test_loading_within_loading_is_no_deadlock(before):
    with quiet(), quiet():
        assert os.environ[VARIABLE] == "1"
    assert state() == before
