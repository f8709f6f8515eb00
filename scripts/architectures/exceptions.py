"""What the general rules cannot reach, by architecture: as short as it can be."""

from __future__ import annotations

from typing import Any

# The class to run, where the bare model has no forward of its own or lacks what has attention.
MODEL_CLASSES: dict[str, str] = {
    "esmfold2": "EsmFold2Model",
    "rag": "RagModel",
}

# Settings by model type, also where it is a part of another model.
SETTINGS: dict[str, dict[str, Any]] = {}
