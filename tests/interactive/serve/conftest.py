"""One server for all tests, and a client that has opened its page."""

import pytest
from families import tiny

import attnviz
from tests.interactive.serve.live_server import serving_in_thread, wait_until_idle


@pytest.fixture(scope="package")
def small(tokenizer, tmp_path_factory):
    """Return the folder of a small model with the bundled tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "small"
    tiny("bert").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="package")
def server(model, small):
    with serving_in_thread(model, attnviz.load(small)) as served:
        yield served


@pytest.fixture(scope="package")
def reader(server):
    """Return a client that has opened the page."""
    with server.enter() as client:
        yield client


@pytest.fixture(autouse=True)
def _idle(request):
    """Leave no run of a test in the thread of the server."""
    yield
    if "server" in request.fixturenames:
        wait_until_idle(request.getfixturevalue("server"))
