"""Imports run in one direction only, and heavy imports are deferred."""

import ast
import subprocess
import sys
from pathlib import Path

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


CALLED = [
    "import attnviz",
    *(
        f"from attnviz.app import run; run({arguments})"
        for arguments in (
            ["--help"],
            ["heatmap", "--help"],
            ["heatmap", ""],
            ["heatmap", "text", "-o", "figure.docx"],
            ["models", "bert"],
            ["example", "--help"],
            ["example", "phnes"],
            ["senses", "--help"],
            ["doctor", "--help"],
            ["senses", "bnak"],
        )
    ),
]


def test_nothing_heavy_is_loaded_before_it_is_needed():
    check = f"print([name for name in {HEAVY} if name in sys.modules], file=told)"
    tell = "import sys; told, sys.stdout = sys.stdout, sys.stderr"
    code = "\n".join([tell, *(f"{called}\n{check}" for called in CALLED)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = dict(zip(CALLED, done.stdout.splitlines(), strict=True))
    assert loaded == dict.fromkeys(CALLED, "[]")


def test_saved_results_are_drawn_without_transformers_and_triton_is_loaded_on_demand():
    code = "import attnviz, sys"
    for function in ("load_result", "plot.heatmap", "plot.heads", "plot.style"):
        code += f"\nattnviz.{function}; print('{function}', 'transformers' in sys.modules)"
    code += "\nimport attnviz.streaming.gpu; print('triton', 'triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "True" not in done.stdout
    assert done.stdout.count("False") == 5
