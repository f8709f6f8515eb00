"""Fixtures that run the catalogue: the server process from which runs are forked."""

import pytest

from robustness.running.checks import check
from robustness.running.prepared import prepare
from robustness.running.scene import Scene, Server, restore_permissions, run
from robustness.running.settings import apply

# Groups of cases of what comes before and after the model
KNOWN = ("text", "selections", "files", "commands", "streams")


@pytest.fixture(scope="session")
def server():
    """The server process with all imports done."""
    started = Server()
    yield started
    started.stop()


@pytest.fixture
def check_case(server, tmp_path, record_property):
    """Return a function that runs a case, checks its outcome and counts it for the summary."""

    def run_case(group, name, case):
        record_property("catalogue", (group, name))
        folder, notes = tmp_path / "here", tmp_path / "notes"
        folder.mkdir()
        notes.mkdir()
        prepare(folder, f"{case.typed or ''} {case.called or ''}")
        scene = Scene(folder, notes, known=group in KNOWN)
        apply(scene, case.within)
        with restore_permissions(folder):
            several = run(server, case, scene)
            record_property("seconds", sum(ended.seconds for ended in several))
            for ended in several:
                check(case, ended)

    return run_case
