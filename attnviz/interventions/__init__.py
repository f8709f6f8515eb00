"""What a vector loses where one thing in a run is changed: causes, not accounts.

A word of the text is substituted, deleted, or nobody reads it any more; or one head gets back what
it gave in another run. Nothing here is derived from the splits of `attribution`, which are compared
with it. Interventions disagree with each other: always say which.
"""

from attnviz.interventions.heads import patch_heads
from attnviz.interventions.words import Site, delete, knock_out, substitute

__all__ = ["Site", "delete", "knock_out", "patch_heads", "substitute"]
