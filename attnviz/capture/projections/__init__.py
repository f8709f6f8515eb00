"""How an attention module makes Q, K and V: found by looking at it, proven by what it computed.

No model family is named here. A module is recognised by the names of what it holds (holders.py),
its matrices are read in every order that their shapes allow (layouts.py), followed by every step
that its norms and numbers allow (recipes.py). Which of these it is, the recorded Q, K and V tell:
the recipe that makes them is kept, and where none does the module is not understood, and its
projections are not compared.
"""

from attnviz.capture.projections.find import Holder, find_holders, find_output
from attnviz.capture.projections.inputs import Arrived, arrived
from attnviz.capture.projections.match import understood

__all__ = [
    "Arrived",
    "Holder",
    "arrived",
    "find_holders",
    "find_output",
    "understood",
]
