"""What libraries log is kept from the terminal, and nothing of the user's is touched."""

import logging
import threading
import warnings

import pytest
from families import tiny

from attnviz.models import load
from attnviz.quiet import unlogged


@pytest.fixture
def talkative(tokenizer):
    """A model that logs what becomes of a short text, and warns, as users' own modules may."""
    model = tiny("bigbird")
    model.register_forward_pre_hook(lambda *_: warnings.warn("mine", stacklevel=2))
    return load(model, tokenizer=tokenizer)


def test_a_run_logs_nothing_and_leaves_the_users_warnings_and_settings(talkative):
    log = logging.getLogger("transformers")
    heard = logging.Handler()
    heard.emit = lambda record: spoken.append(record.getMessage())
    spoken, before = [], (log.level, log.propagate, logging.root.manager.disable)
    log.addHandler(heard)
    try:
        with pytest.warns(UserWarning, match="mine"):
            talkative.attend("the train left the station")
        assert spoken == []
        assert (log.level, log.propagate, logging.root.manager.disable) == before
        assert heard.filters == []
        logging.getLogger("attnviz").setLevel(logging.DEBUG)
        with pytest.warns(UserWarning, match="mine"):
            talkative.attend("the train left the station")
        assert any("is not possible" in said for said in spoken)
    finally:
        logging.getLogger("attnviz").setLevel(logging.NOTSET)
        log.removeHandler(heard)


def test_silence_is_of_one_thread():
    log, heard, spoken = logging.getLogger("transformers"), logging.Handler(), []
    heard.emit = lambda record: spoken.append(record.getMessage())
    log.addHandler(heard)
    try:
        with unlogged(), unlogged():
            log.error("here")
            other = threading.Thread(target=log.error, args=("there",))
            other.start()
            other.join()
        log.error("after")
    finally:
        log.removeHandler(heard)
    assert spoken == ["there", "after"]
