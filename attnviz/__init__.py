"""See, verify and explain attention in any Hugging Face model.

    import attnviz

    result = attnviz.attend("the train left the station")
    attnviz.plot.heatmap(result)

`__init__.pyi` lists the public names. Each is imported when it is first used, so that
`import attnviz` and `attnviz --help` load neither torch nor transformers nor matplotlib.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
