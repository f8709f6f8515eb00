"""See, verify and explain attention in any Hugging Face model.

    import attnviz

    result = attnviz.attend("the train left the station")
    attnviz.heatmap(result)

Everything public is named here and imported when it is first used, so that `import attnviz` and
`attnviz --help` load neither torch nor transformers nor matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnviz.catalogue import Architecture, architectures
    from attnviz.errors import AttnvizError, InputError, ModelError, OutputError
    from attnviz.examples import make_example
    from attnviz.maps import make_map, make_maps
    from attnviz.metrics import find_heads, rank_heads
    from attnviz.models import Model, attend, load, verify
    from attnviz.plot import example, head_grid, heatmap, save_figure
    from attnviz.records import (
        AgreementReport,
        AttentionMap,
        AttentionRecord,
        AttentionResult,
        HeadMaps,
        WorkedExample,
    )
    from attnviz.storage import save_data

_HOME = {
    "AgreementReport": "records",
    "Architecture": "catalogue",
    "AttentionMap": "records",
    "AttentionRecord": "records",
    "AttentionResult": "records",
    "AttnvizError": "errors",
    "HeadMaps": "records",
    "InputError": "errors",
    "Model": "models",
    "ModelError": "errors",
    "OutputError": "errors",
    "WorkedExample": "records",
    "architectures": "catalogue",
    "attend": "models",
    "example": "plot",
    "find_heads": "metrics",
    "head_grid": "plot",
    "heatmap": "plot",
    "load": "models",
    "make_example": "examples",
    "make_map": "maps",
    "make_maps": "maps",
    "rank_heads": "metrics",
    "save_data": "storage",
    "save_figure": "plot",
    "verify": "models",
}

__all__ = [
    "AgreementReport",
    "Architecture",
    "AttentionMap",
    "AttentionRecord",
    "AttentionResult",
    "AttnvizError",
    "HeadMaps",
    "InputError",
    "Model",
    "ModelError",
    "OutputError",
    "WorkedExample",
    "architectures",
    "attend",
    "example",
    "find_heads",
    "head_grid",
    "heatmap",
    "load",
    "make_example",
    "make_map",
    "make_maps",
    "rank_heads",
    "save_data",
    "save_figure",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its room when it is first asked for (PEP 562)."""
    if name in _HOME:
        return getattr(import_module(f"attnviz.{_HOME[name]}"), name)
    raise AttributeError(f"module 'attnviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
