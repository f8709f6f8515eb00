"""How an attention module makes Q, K and V: proposed from what it holds, proven by its numbers.

No model family is named here. A module is recognized by the names of its children, and its matrices
are read in every layout that their shapes allow (find.py), followed by every step that its norms
and numbers allow. The layout and steps that reproduce the recorded Q, K and V are stored
(match.py); where none do, the module is not understood and its projections are not compared.
"""
