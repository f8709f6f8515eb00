"""Why a vector moved: exact accounts of what came from which layer, head and source.

Two of them. The *secant* splits the difference of two runs, and says what a change did; the
*ledger* lists what was added on the way of one run. Neither knows a model.
"""

from attnviz.attribution.ledger import ledger
from attnviz.attribution.rollout import rollout
from attnviz.attribution.secant import secant

__all__ = ["ledger", "rollout", "secant"]
