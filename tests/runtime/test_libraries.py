"""Library logs do not reach the terminal, and the user's settings stay unchanged."""

import io
import logging
import os
import threading
import time
import warnings

import pytest
from families import tiny

from attnviz.pipeline.attend import load
from attnviz.runtime.libraries import silence_logs


@pytest.fixture
def talkative(tokenizer):
    """A model that logs and warns during a run, as users' modules may."""
    model = tiny("bigbird")
    model.register_forward_pre_hook(lambda *_: warnings.warn("mine", stacklevel=2))
    return load(model, tokenizer=tokenizer)


@pytest.fixture
def log():
    """The logger of transformers, with a terminal handler and a user's handler."""
    log = logging.getLogger("transformers")
    log.terminal, log.own = logging.StreamHandler(io.StringIO()), logging.Handler()
    log.heard = []
    log.own.emit = lambda record: log.heard.append(record.getMessage())
    log.addHandler(log.terminal)
    log.addHandler(log.own)
    yield log
    log.removeHandler(log.terminal)
    log.removeHandler(log.own)
    logging.getLogger("attnviz").setLevel(logging.NOTSET)


def test_a_run_logs_nothing_and_keeps_the_users_warnings_and_settings(talkative, log):
    before = (log.level, log.propagate, log.handlers[:], logging.root.manager.disable)
    with pytest.warns(UserWarning, match="mine"):
        talkative.attend("the train left the station")
    assert log.terminal.stream.getvalue() == ""
    assert "is not possible" in log.heard[0]
    assert before == (log.level, log.propagate, log.handlers, logging.root.manager.disable)
    assert log.terminal.filters == []
    logging.getLogger("attnviz").setLevel(logging.DEBUG)
    with pytest.warns(UserWarning, match="mine"):
        talkative.attend("the train left the station")
    assert "is not possible" in log.terminal.stream.getvalue()


def test_silencing_affects_one_thread_only(log):
    with silence_logs(), silence_logs():
        log.error("here")
        other = threading.Thread(target=log.error, args=("there",))
        other.start()
        other.join()
    log.error("after")
    assert log.terminal.stream.getvalue() == "there\nafter\n"


def test_what_other_threads_print_is_not_lost(capfd, tokenizer):
    printed, stop = [], threading.Event()

    def write():
        while not stop.is_set():
            printed.append(os.write(2, b"."))
            time.sleep(0.001)

    model = load(tiny("bert"), tokenizer=tokenizer)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        model.attend("the train left " * 30_000, truncate=True)
    finally:
        stop.set()
        thread.join()
    assert len(capfd.readouterr().err) == len(printed) > 0
