"""The server process from which the runs of the catalogue are forked."""

import pytest

from robustness.running.scene import Server


@pytest.fixture(scope="session")
def server():
    """The server process with all imports done."""
    return Server()
