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
    from attnviz.corpus import compare, survey
    from attnviz.displacement import shift
    from attnviz.dissection import make_steps
    from attnviz.errors import AttnvizError, AttnvizWarning, InputError, ModelError, OutputError
    from attnviz.examples import make_example
    from attnviz.html import View, view
    from attnviz.maps import make_map, make_maps
    from attnviz.metrics import find_heads, rank_heads
    from attnviz.models import Model, attend, load, verify
    from attnviz.plot import (
        add_caption,
        attention_vector,
        census,
        comparison,
        disambiguation,
        example,
        head_grid,
        heatmap,
        save_figure,
        steps,
        waterfall,
    )
    from attnviz.plot.style import style
    from attnviz.records import (
        AgreementReport,
        AttentionMap,
        AttentionRecord,
        AttentionResult,
        AttentionSteps,
        Census,
        Comparison,
        HeadMaps,
        SenseResult,
        ShiftResult,
        StreamedAttention,
        Summary,
        WorkedExample,
    )
    from attnviz.separation import senses
    from attnviz.storage import load_data, save_data

_HOME = {
    "AgreementReport": "records",
    "Architecture": "catalogue",
    "AttentionMap": "records",
    "AttentionRecord": "records",
    "AttentionResult": "records",
    "AttentionSteps": "records",
    "AttnvizError": "errors",
    "AttnvizWarning": "errors",
    "Census": "records",
    "Comparison": "records",
    "HeadMaps": "records",
    "InputError": "errors",
    "Model": "models",
    "ModelError": "errors",
    "OutputError": "errors",
    "SenseResult": "records",
    "ShiftResult": "records",
    "StreamedAttention": "records",
    "Summary": "records",
    "View": "html",
    "WorkedExample": "records",
    "add_caption": "plot",
    "architectures": "catalogue",
    "attend": "models",
    "attention_vector": "plot",
    "census": "plot",
    "compare": "corpus",
    "comparison": "plot",
    "disambiguation": "plot",
    "example": "plot",
    "find_heads": "metrics",
    "head_grid": "plot",
    "heatmap": "plot",
    "load": "models",
    "load_data": "storage",
    "make_example": "examples",
    "make_map": "maps",
    "make_maps": "maps",
    "make_steps": "dissection",
    "rank_heads": "metrics",
    "save_data": "storage",
    "save_figure": "plot",
    "senses": "separation",
    "shift": "displacement",
    "steps": "plot",
    "survey": "corpus",
    "style": "plot.style",
    "verify": "models",
    "view": "html",
    "waterfall": "plot",
}

__all__ = [
    "AgreementReport",
    "Architecture",
    "AttentionMap",
    "AttentionRecord",
    "AttentionResult",
    "AttentionSteps",
    "AttnvizError",
    "AttnvizWarning",
    "Census",
    "Comparison",
    "HeadMaps",
    "InputError",
    "Model",
    "ModelError",
    "OutputError",
    "SenseResult",
    "ShiftResult",
    "StreamedAttention",
    "Summary",
    "View",
    "WorkedExample",
    "add_caption",
    "architectures",
    "attend",
    "attention_vector",
    "census",
    "compare",
    "comparison",
    "disambiguation",
    "example",
    "find_heads",
    "head_grid",
    "heatmap",
    "load",
    "load_data",
    "make_example",
    "make_map",
    "make_maps",
    "make_steps",
    "rank_heads",
    "save_data",
    "save_figure",
    "senses",
    "shift",
    "steps",
    "style",
    "survey",
    "verify",
    "view",
    "waterfall",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its room when it is first asked for (PEP 562)."""
    if name in _HOME:
        return getattr(import_module(f"attnviz.{_HOME[name]}"), name)
    raise AttributeError(f"module 'attnviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
