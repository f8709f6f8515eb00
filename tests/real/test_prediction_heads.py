"""Why SmolLM2 predicts "Paris": its heads, the split of the logit, and the logit lens."""

from dataclasses import dataclass

import pytest
import torch

from attnviz.attribution.decomposition import decompose, split_stream
from attnviz.attribution.interventions import HeadRun, ablate_each, head_effects, replace_outputs
from attnviz.attribution.prediction import logit_lens
from attnviz.attribution.ranking import spearman
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


@pytest.mark.long
def test_the_estimate_agrees_with_exact_ablations(paris):
    """Of the ten largest heads, and of 18 others spread over all layers."""
    with restoring(paris.model.module):
        effects = head_effects(paris, exact=10)
        sample = [(layer, layer % 9) for layer in range(1, 30, 5)]
        sample += [(layer, (layer + 4) % 9) for layer in range(0, 30, 5)]
        sample += [(layer, (layer + 7) % 9) for layer in range(2, 30, 5)]
        run = HeadRun.of(paris)
        exact = ablate_each(paris, run, sample, replace_outputs(run, "zero", []))
    assert effects.estimate.shape == (30, 9)
    largest = effects.is_exact
    assert largest.sum() == 10
    both = torch.cat(
        [effects.estimate[largest], torch.stack([effects.estimate[h] for h in sample])]
    )
    truth = torch.cat([effects.exact[largest], exact])
    assert spearman(both, truth) >= 0.85
    # The estimate of the next layer's heads is no substitute.
    shifted = effects.estimate.roll(1, 0)
    others = torch.cat([shifted[largest], torch.stack([shifted[h] for h in sample])])
    assert spearman(others, truth) < 0.5


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
