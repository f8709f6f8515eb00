"""Every result type, frozen: what a run of a model leaves behind, and what is drawn from it.

Layers and heads count from 0. *Weights* are the attention weights after softmax, of the model in
eval mode. Tensors of one text carry no batch dimension: H query heads, G key heads (G divides H),
m query and n key positions, d_k and d_v features per head.
"""

from attnviz.results.agreement_report import AgreementReport as AgreementReport
from attnviz.results.agreement_report import AnalysisCheck as AnalysisCheck
from attnviz.results.agreement_report import InputCheck as InputCheck
from attnviz.results.agreement_report import OutputCheck as OutputCheck
from attnviz.results.agreement_report import PositionCheck as PositionCheck
from attnviz.results.agreement_report import StageCheck as StageCheck
from attnviz.results.attention_record import AttentionRecord as AttentionRecord
from attnviz.results.attention_record import GivenAttention as GivenAttention
from attnviz.results.attention_record import LinearAttention as LinearAttention
from attnviz.results.attention_record import LinearReference as LinearReference
from attnviz.results.attention_record import MaskRule as MaskRule
from attnviz.results.attention_record import Reference as Reference
from attnviz.results.attention_record import row_shares as row_shares
from attnviz.results.attention_result import AttentionResult as AttentionResult
from attnviz.results.attention_result import Computation as Computation
from attnviz.results.attention_result import MapSummary as MapSummary
from attnviz.results.attention_result import NextTokens as NextTokens
from attnviz.results.attention_result import Provenance as Provenance
from attnviz.results.attention_result import Special as Special
from attnviz.results.attention_result import StreamedAttention as StreamedAttention
from attnviz.results.attention_result import Waveform as Waveform
from attnviz.results.attention_result import cell_sizes as cell_sizes
from attnviz.results.attention_result import digests_of as digests_of
from attnviz.results.attention_result import digests_of_each as digests_of_each
from attnviz.results.attention_result import one_result as one_result
from attnviz.results.axis import Axis as Axis
from attnviz.results.axis import AxisGeometry as AxisGeometry
from attnviz.results.axis import Landmark as Landmark
from attnviz.results.base import Result as Result
from attnviz.results.base import Savable as Savable
from attnviz.results.projection import Clip as Clip
from attnviz.results.projection import Factor as Factor
from attnviz.results.projection import Gate as Gate
from attnviz.results.projection import HeadProjection as HeadProjection
from attnviz.results.projection import Linear as Linear
from attnviz.results.projection import Norm as Norm
from attnviz.results.projection import Projection as Projection
from attnviz.results.projection import Rotation as Rotation
from attnviz.results.projection import Rounding as Rounding
from attnviz.results.projection import Step as Step
