"""Every result type, frozen: what a run of a model leaves behind, and what is drawn from it.

Layers and heads count from 0. *Weights* are the attention weights after softmax, of the model in
eval mode. Tensors of one text carry no batch dimension: H query heads, G key heads (G divides H),
m query and n key positions, d_k and d_v features per head.
"""

from attnviz.records.agreement import AgreementReport, StageCheck, Verdict
from attnviz.records.attention import AttentionRecord, Reference
from attnviz.records.axis import Axis, Landmark, Side
from attnviz.records.census import Census, HeadName
from attnviz.records.comparison import Comparison
from attnviz.records.example import GivenMatrix, ReplayedStage, WorkedExample
from attnviz.records.projection import (
    Clip,
    Factor,
    Gate,
    HeadProjection,
    Linear,
    Norm,
    Projection,
    Rotation,
    Step,
)
from attnviz.records.result import (
    AttentionMap,
    AttentionResult,
    HeadMaps,
    Provenance,
    Special,
    one_result,
)
from attnviz.records.senses import Occurrence, SenseResult, SenseScore
from attnviz.records.shift import ShiftResult, consensus, numbered, spearman
from attnviz.records.split import Ledger, Secant
from attnviz.records.steps import AttentionSteps, Stage
from attnviz.records.streamed import StreamedAttention
from attnviz.records.summary import Summary, cell_sizes
from attnviz.records.visible import Visible

__all__ = [
    "AgreementReport",
    "AttentionMap",
    "AttentionRecord",
    "AttentionResult",
    "AttentionSteps",
    "Axis",
    "Census",
    "Clip",
    "Comparison",
    "Factor",
    "Gate",
    "GivenMatrix",
    "HeadMaps",
    "HeadName",
    "HeadProjection",
    "Landmark",
    "Ledger",
    "Linear",
    "Norm",
    "Occurrence",
    "Projection",
    "Provenance",
    "Reference",
    "ReplayedStage",
    "Rotation",
    "Secant",
    "SenseResult",
    "SenseScore",
    "ShiftResult",
    "Side",
    "Special",
    "Stage",
    "StageCheck",
    "Step",
    "StreamedAttention",
    "Summary",
    "Verdict",
    "Visible",
    "WorkedExample",
    "cell_sizes",
    "consensus",
    "numbered",
    "one_result",
    "spearman",
]
