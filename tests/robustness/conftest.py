"""What the two ways through the catalogue share: the process that runs are forked from."""

import pytest

from robustness.running.checks import check
from robustness.running.prepared import prepare
from robustness.running.scene import Scene, Server, readable, run
from robustness.running.settings import put


@pytest.fixture(scope="session")
def server():
    """The process that has imported everything."""
    started = Server()
    yield started
    started.stop()


@pytest.fixture
def judge(server, tmp_path, record_property):
    """Return what runs a case and checks its outcome; it is counted in the summary."""

    def judged(group, name, case, *, called):
        record_property("catalogue", (group, name))
        folder, notes = tmp_path / "here", tmp_path / "notes"
        folder.mkdir()
        notes.mkdir()
        prepare(folder, f"{case.typed or ''} {case.called or ''}")
        scene = Scene(folder, notes)
        put(scene, case.within)
        with readable(folder):
            several = run(server, case, scene, called=called)
            record_property("seconds", sum(ended.seconds for ended in several))
            for ended in several:
                check(case, ended, called=called)

    return judged
