"""Private names of torch, transformers and accelerate are used in a single file."""

import ast
import re
from pathlib import Path

import pytest
from torch.utils._python_dispatch import _len_torch_dispatch_stack

import attnviz

PACKAGE = Path(attnviz.__file__).parent
COMPAT = PACKAGE / "runtime" / "compat.py"
LIBRARIES = ("torch", "transformers", "accelerate", "huggingface_hub", "safetensors")
# As strings: operator names, and attributes for getattr.
STRINGS = re.compile(r"^_(softmax|safe_softmax|to_copy|scaled_dot_product|hf_|attn_impl|supports_)")


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def own_names(tree):
    """Return the private names that a file defines: attributes, methods and functions."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in ("self", "cls"):
            names.add(node.attr)
    return names


def private_names(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            yield from filter(is_private, names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from filter(is_private, alias.name.split("."))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from STRINGS.findall(node.value)


def test_no_other_file_uses_a_private_name():
    others = [path for path in PACKAGE.rglob("*.py") if path != COMPAT]
    used = {str(path.relative_to(PACKAGE)): [*private_names(path)] for path in others}
    allowed = {"os._exit"}  # from the standard library
    assert {path: [*names] for path, names in used.items() if set(names) - allowed} == {}


def test_the_search_finds_the_private_names_of_compat():
    assert {"_python_dispatch", "tensor._version", "module._parameters"} <= {*private_names(COMPAT)}


def test_an_attention_is_passed_on_outside_every_dispatch_mode(model, monkeypatch):
    depths = []

    def stop(*_, **__):
        depths.append(_len_torch_dispatch_stack())
        raise KeyboardInterrupt

    monkeypatch.setattr("attnviz.capture.streamed.match_projections", stop)
    with pytest.raises(KeyboardInterrupt):
        model.attend("the train left the station", mode="streamed")
    assert depths == [0]
    assert _len_torch_dispatch_stack() == 0
