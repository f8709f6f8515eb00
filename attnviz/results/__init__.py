"""Every result type, frozen: what a run of a model leaves behind, and what is drawn from it.

Layers and heads count from 0. *Weights* are the attention weights after softmax, of the model in
eval mode. Tensors of one text carry no batch dimension: H query heads, G key heads (G divides H),
m query and n key positions, d_k and d_v features per head.
"""

from attnviz.results.agreement_report import (
    AgreementReport,
    AnalysisCheck,
    InputCheck,
    OutputCheck,
    PositionCheck,
    StageCheck,
    Verdict,
)
from attnviz.results.attention_record import AttentionRecord, MaskRule, Reference
from attnviz.results.attention_result import (
    AttentionResult,
    MapSummary,
    NextTokens,
    Provenance,
    Special,
    StreamedAttention,
    Waveform,
    cell_sizes,
    digests_of,
    one_result,
)
from attnviz.results.axis import Axis, AxisGeometry, Landmark
from attnviz.results.computation import Computation
from attnviz.results.kinds import (
    GivenAttention,
    LinearAttention,
    LinearReference,
    expect_vectors,
    row_shares,
)
from attnviz.results.projection import (
    Clip,
    Factor,
    Gate,
    HeadProjection,
    Linear,
    Norm,
    Projection,
    Rotation,
    Rounding,
    Step,
)

__all__ = [
    "AgreementReport",
    "AnalysisCheck",
    "AttentionRecord",
    "AttentionResult",
    "Axis",
    "AxisGeometry",
    "Clip",
    "Computation",
    "Factor",
    "Gate",
    "GivenAttention",
    "HeadProjection",
    "InputCheck",
    "Landmark",
    "Linear",
    "LinearAttention",
    "LinearReference",
    "MapSummary",
    "MaskRule",
    "NextTokens",
    "Norm",
    "OutputCheck",
    "PositionCheck",
    "Projection",
    "Provenance",
    "Reference",
    "Rotation",
    "Rounding",
    "Special",
    "StageCheck",
    "Step",
    "StreamedAttention",
    "Verdict",
    "Waveform",
    "cell_sizes",
    "digests_of",
    "expect_vectors",
    "one_result",
    "row_shares",
]
