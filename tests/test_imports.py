"""Imports run in one direction only, and heavy imports are deferred."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "attnviz"

MODULES = sorted(PACKAGE.rglob("*.py"))


def test_imports_run_one_way():
    """The contracts are in pyproject.toml."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=PACKAGE.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_four_packages_import_transformers():
    importing = {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers"
    }
    assert importing == {"capture", "inputs", "models", "pipeline"}


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
        "from attnviz.app import run; run(['doctor', '--help'])",
        "from attnviz.app import run; run(['senses', 'bnak'])",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    check = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_saved_results_are_drawn_without_transformers_and_triton_is_loaded_on_demand():
    code = "import attnviz, sys"
    for function in ("load_result", "plot.heatmap", "plot.heads", "plot.style"):
        code += f"\nattnviz.{function}; print('{function}', 'transformers' in sys.modules)"
    code += "\nimport attnviz.streaming.gpu; print('triton', 'triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "True" not in done.stdout
    assert done.stdout.count("False") == 5
