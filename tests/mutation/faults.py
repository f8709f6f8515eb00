"""The table of all faults that are planted in a record."""

from faults_of_formula import FAULTS as OF_FORMULA
from faults_of_projections import FAULTS as OF_PROJECTIONS
from faults_of_scores import FAULTS as OF_SCORES

FAULTS = [*OF_PROJECTIONS, *OF_SCORES, *OF_FORMULA]
