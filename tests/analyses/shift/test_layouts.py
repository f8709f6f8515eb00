"""The contributions to a shift add up in every family and layout, with towers, experts, streams."""

import pytest
import torch
from architectures.tiny_models import build
from architectures.use import words_of
from families import tiny
from transformers import BertConfig, BertModel

import attnviz
from attnviz import ModelError

DENSE = [
    "bert", "roberta", "electra", "distilbert", "albert", "gpt2", "llama", "mistral", "qwen3",
    "gemma2", "gpt-neox", "opt", "phi", "olmo2", "mpnet", "falcon", "bloom", "deberta",
]  # fmt: skip
CASH = "the bank was full of cash."
EXACT = 1e-5  # relative to the length of the shift, in float32


def expect_sums(result):
    split, stream = result.decomposition, result.residual_stream
    assert max(split.error, split.credit_error, stream.error) < EXACT
    assert split.length > 0.05
    assert split.value.shape == split.routing.shape == split.table.shape
    assert len(stream.mlp) == len(stream.attention)
    assert stream.mlp.abs().min() > 0


@pytest.mark.usefixtures("without_changed_words")
@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("family", DENSE)
@pytest.mark.parametrize("text", [CASH, "the {mud|bank} was full of cash."])
def test_the_parts_sum_to_the_whole_in_every_family(family, text, tokenizer):
    expect_sums(attnviz.shift("cash", text, model=attnviz.load(tiny(family), tokenizer=tokenizer)))


@pytest.mark.usefixtures("without_changed_words")
def test_the_parts_sum_to_the_whole_in_xlm(tokenizer):
    """Those of a pair do not, and the verdict says so."""
    expect_sums(attnviz.shift("cash", CASH, model=attnviz.load(tiny("xlm"), tokenizer=tokenizer)))


@pytest.mark.usefixtures("without_changed_words")
def test_a_model_of_the_shape_of_bert_base(tokenizer):
    """Twelve layers of twelve heads, width 768: rounding does not accumulate over the depth."""
    torch.manual_seed(0)
    module = BertModel(BertConfig(intermediate_size=768)).eval()
    expect_sums(attnviz.shift("bank", CASH, model=attnviz.load(module, tokenizer=tokenizer)))
    assert all(p.requires_grad and p.grad is None for p in module.parameters())


@pytest.fixture(scope="module")
def built():
    """Return a function that builds a tiny model of an architecture, with its text of words."""
    known = {}

    def model_of(name):
        if name not in known:
            architecture, _, class_name = name.partition("/")
            module, inputs = build(architecture, class_name=class_name)
            tokenizer = words_of(module, inputs)
            text = tokenizer.decode(inputs["input_ids"][0])
            known[name] = attnviz.load(module, tokenizer=tokenizer), text
        return known[name]

    return model_of


def moved(built, name, **options):
    model, text = built(name)
    words = text.split()
    word = next(one for one in reversed(words) if words.count(one) == 1)
    return attnviz.shift(word, text, model=model, **options)


# Its code, and why it is another.
MODELS = {
    "xlnet": "its hidden states are (T, N, d), and einsum mixes values",
    "squeezebert": "its hidden states are (N, d, T), and its layers convolutions",
    "kosmos-2.5": "its largest blocks read images",
    "phi4_multimodal": "its largest blocks read images and sounds",
    "dbrx": "its experts have no name of the library's",
    "longcat_flash": "its code takes no single expert",
    "gpt_oss": "its experts add constants in place",
    "openai_privacy_filter": "its experts clamp what they compute",
    "lilt": "its second stream is read by nothing in the end",
    "dpr": "its model without a head wraps another",
    "prophetnet/ProphetNetForCausalLM": "it adds positions behind the tokens",
}


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_sum_to_the_whole_in_every_layout(name, built):
    result = moved(built, name)
    assert result.agreement.verdict == "verified"
    split, stream = result.decomposition, result.residual_stream
    assert max(split.error, split.credit_error, stream.error) < EXACT


@pytest.mark.parametrize("name", ["xlnet", "squeezebert"])
def test_credit_goes_to_the_word_that_was_changed(name, built):
    _, text = built(name)
    words = text.split()
    other = " ".join([words[0], "w6" if words[1] != "w6" else "w7", *words[2:]])
    credit = moved(built, name, reference=other).decomposition.credit
    assert credit[1].abs() > 1e-4
    assert credit.index_fill(0, torch.tensor([1]), 0).abs().max() < 1e-6


def test_runs_in_a_wrong_dimension_are_found(built, monkeypatch):
    monkeypatch.setattr("attnviz.attribution.deeplift._run_dim", lambda _: 0)
    with pytest.raises(ModelError, match="cannot be traced"):
        moved(built, "xlnet")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("funnel", "does not pass on one vector of each token"),
        ("cpmant", "reads other positions than the tokens"),
        ("hrm_text", "run without gradients, in its own code"),
        ("longformer", "multiplies its weights with values in chunks"),
    ],
)
def test_what_cannot_be_split_is_refused_with_its_reason(name, why, built):
    with pytest.raises(ModelError, match=why):
        moved(built, name)


def test_a_prediction_from_positions_behind_the_tokens_is_not_split(built):
    model, text = built("prophetnet/ProphetNetForCausalLM")
    assert attnviz.explain(text, model=model).agreement.verdict == "verified"
