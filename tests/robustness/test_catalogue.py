"""Run the cases: no traceback, the documented exit code, complete files."""

import pytest

from robustness.catalogue import GROUPS
from robustness.running.prepared import prepare
from robustness.running.scene import Scene, check, run

# Groups of cases of what comes before and after the model, which was read before
KNOWN = ("text", "selections", "files", "commands", "streams")
CASES = {
    f"{group}: {name}": (group, case)
    for group, some in GROUPS.items()
    for name, case in some.items()
}


@pytest.mark.parametrize(("group", "case"), CASES.values(), ids=CASES)
def test_a_case_has_the_expected_outcome(group, case, server, tmp_path):
    folder, notes = tmp_path / "here", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    prepare(folder, f"{case.typed or ''} {case.called or ''}")
    scene = Scene(folder, notes, {"known": group in KNOWN})
    scene.apply(case.within)
    try:
        for ended in run(server, case, scene):
            check(case, ended)
    finally:  # so that the folder can be removed
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
