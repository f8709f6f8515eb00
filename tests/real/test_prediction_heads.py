"""Why SmolLM2 predicts "Paris": its heads, the split of the logit, and the logit lens."""

from dataclasses import dataclass

import pytest
import torch

from attnviz.attribution.decomposition import decompose, split_stream
from attnviz.attribution.prediction import logit_lens
from attnviz.attribution.reference import gate_of, read
from attnviz.attribution.target import Readout, Score, copies_of
from attnviz.capture.watch import restoring

pytestmark = pytest.mark.real


@dataclass(frozen=True, eq=False)
class LogitDifference(Readout):
    token: int
    against: int

    def __call__(self, output):
        logits = output[:, list(self.rows)].mean(1)
        return (logits[:, self.token] - logits[:, self.against])[:, None]


@pytest.fixture(scope="module")
def paris(smollm2):
    text = read(smollm2, "The Eiffel Tower is in the city of")
    tokens = [
        smollm2.tokenizer.encode(word, add_special_tokens=False) for word in (" Paris", " London")
    ]
    assert all(len(token) == 1 for token in tokens)
    row = text.inputs["input_ids"].shape[1] - 1
    readout = LogitDifference(smollm2.module, (row,), tokens[0][0], tokens[1][0])
    return Score(
        smollm2, text.inputs, text.tokens.special, readout, text.sink,
        direction=torch.ones(1), result=text.result, gate=None,
    )  # fmt: skip


def test_the_logit_is_split_completely(paris):
    gate = gate_of(paris.special, sink=paris.sink)
    with restoring(paris.model.module):
        split = decompose(
            paris.readout, copies_of(paris.inputs, 2), direction=paris.direction, gate=gate
        )
        stream = split_stream(paris.readout, paris.inputs, direction=paris.direction)
    assert max(split.error, split.credit_error, stream.error) <= 1e-5
    assert split.table.shape == stream.attention.shape == (30, 9, paris.ids.shape[1])


def test_the_lens_ends_with_the_prediction(paris):
    row = paris.rows[0]
    lens = logit_lens(paris, row)
    with torch.no_grad():
        logits = paris.model.module(**paris.inputs).logits[0, row].double()
    assert lens.ids.shape == (30, 5)
    assert lens.tokens[-1][0] == " Paris"
    assert lens.tokens[0][0] != " Paris"
    torch.testing.assert_close(lens.logits[-1], logits.topk(5).values, atol=1e-4, rtol=1e-5)
