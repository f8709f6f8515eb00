"""The house stands as designed: imports run one way only, and the rooms stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "attnviz"

# From the ground up. A room may import rooms of the floors above it in this list, never of its own
# floor or of one below.
FLOORS = [
    {"attention", "projection", "errors", "progress"},
    {"terms", "memory", "marks", "quiet", "weights"},
    {"failures"},
    {"files", "records", "catalogue"},
    {"stages", "words", "locating", "streaming", "naming"},
    {"checkpoints", "capture"},
    {"agreement", "attribution", "examples", "maps", "metrics", "storage", "inputs"},
    {"dissection", "interventions"},
    {"models", "plot", "html"},
    {"displacement", "separation", "corpus"},
    {"serve"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ROOMS = sorted({path.stem for path in PACKAGE.iterdir()} - {"__init__", "py"})
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported_rooms(room):
    """Return the rooms that the files of one room import, also inside functions."""
    files = (
        (PACKAGE / room).rglob("*.py") if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]
    )
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file} imports relatively"
                names = [node.module]
                if node.module == "attnviz":
                    names = [f"attnviz.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("attnviz.")}
    return found - {room}


@pytest.mark.parametrize("room", [room for room in ROOMS if not room.startswith("__pycache")])
def test_imports_run_one_way(room):
    assert room in FLOOR, f"{room} stands on no floor: give it one"
    wrong = {other for other in imported_rooms(room) if FLOOR[other] >= FLOOR[room]}
    assert not wrong, f"{room} (floor {FLOOR[room]}) imports {wrong}"


def test_only_three_rooms_know_transformers():
    knowing = {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers"
    }
    # inputs and models name its types only
    assert knowing == {"checkpoints", "capture", "inputs", "models"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_outgrows_its_room(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


def test_no_module_is_named_after_a_model_family():
    import transformers

    families = set(transformers.CONFIG_MAPPING)
    assert not families & {path.stem for path in MODULES}
    assert not [path for path in MODULES if "model_type ==" in path.read_text(encoding="utf-8")]


HEAVY = ("torch", "transformers", "matplotlib", "seaborn", "pandas", "numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import attnviz",
        "from attnviz.app import run; run(['--help'])",
        "from attnviz.app import run; run(['heatmap', '--help'])",
        "from attnviz.app import run; run(['heatmap', ''])",
        "from attnviz.app import run; run(['heatmap', 'text', '-o', 'figure.docx'])",
        "from attnviz.app import run; run(['models', 'bert'])",
        "from attnviz.app import run; run(['example', '--help'])",
        "from attnviz.app import run; run(['example', 'phnes'])",
        "from attnviz.app import run; run(['senses', '--help'])",
        "from attnviz.app import run; run(['senses', 'bnak'])",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    check = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_figure_loads_no_other_and_is_what_its_name_says_however_it_is_imported():
    code = (
        "import sys; import attnviz.analyses.maps.heatmap; from attnviz.plot import head_grid, heatmap; "
        "loaded = {name for name in sys.modules if name.startswith('attnviz.figures.')}; "
        "print(heatmap.__name__, head_grid.__name__, 'attnviz.analyses.shift.plot' in loaded)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["heatmap", "head_grid", "False"]
