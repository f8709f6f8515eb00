"""In an encoder–decoder, explanations find the word that is copied, in the source or target."""

from dataclasses import replace

import pytest
import torch
from families import tiny
from transformers import T5Config, T5ForConditionalGeneration, T5Model

import attnviz
from attnviz import InputError, ModelError

TEXT = "we sat near the old river and talked for hours"  # ten words, with [CLS] and [SEP] twelve
PREFIX = "a tree stood by the stone and it was"  # as long, and the shapes of all attentions alike
D = 16
READ, HELD, WRITTEN = 0, 1, 2  # dimensions of the residual stream
COMPARED = ["attention-value-norm", "direct-attribution", "ensemble",
            "gradient-attention", "gradient-input", "integrated-gradients", "late-rollout",
            "partial-split", "raw-attention", "rollout"]  # fmt: skip


def handmade(tokenizer, word, *, through):
    """Return a T5 in which a word raises "yes", and nothing else counts.

    The encoder moves the word to all positions by its own attention ("encoder"), or the decoder
    reads it directly by its cross-attention ("cross") or its self-attention ("decoder"). All
    attention is even.
    """
    torch.manual_seed(0)
    found, yes, no = tokenizer.convert_tokens_to_ids([word, "yes", "no"])
    config = T5Config(
        vocab_size=len(tokenizer), d_model=D, d_kv=4, d_ff=16, num_layers=1, num_decoder_layers=2,
        num_heads=2, decoder_start_token_id=0, tie_word_embeddings=False, is_gated_act=False,
    )  # fmt: skip
    config.tie_word_embeddings = False
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(float("layer_norm" in name))
        table = torch.zeros(len(tokenizer), D)
        table[:, 4:] = torch.randn(len(tokenizer), D - 4)
        table[found, READ] = 3.0
        for stack in (model.encoder, model.decoder):
            stack.embed_tokens.weight.copy_(table)
        encoder, (first, second) = (
            model.encoder.block[0].layer[0].SelfAttention,
            model.decoder.block,
        )
        moves = {
            "encoder": [(encoder, READ, HELD), (first.layer[1].EncDecAttention, HELD, WRITTEN)],
            "cross": [(second.layer[1].EncDecAttention, READ, WRITTEN)],
            "decoder": [(second.layer[0].SelfAttention, READ, WRITTEN)],
        }[through]
        for attention, source, goal in moves:
            attention.v.weight[0, source], attention.o.weight[goal, 0] = 3.0, 3.0
        model.lm_head.weight[yes, WRITTEN], model.lm_head.weight[no, WRITTEN] = 8.0, -8.0
    return attnviz.load(model, tokenizer=tokenizer)


CASES = {"encoder": "river", "cross": "river", "decoder": "tree"}


@pytest.fixture(scope="module")
def models(tokenizer):
    return {case: handmade(tokenizer, word, through=case) for case, word in CASES.items()}


@pytest.fixture(scope="module")
def results(models):
    options = {"target": "yes", "against": "no", "decoder": PREFIX, "methods": COMPARED}
    return {case: attnviz.explain(TEXT, model=models[case], **options) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_word_is_found_in_its_stack(results, models, case):
    unbound = replace(results[case].agreement, digest=None)
    default = {"partial-split": results[case].methods["partial-split"]}
    result, word = replace(results[case], methods=default, agreement=unbound), CASES[case]
    assert result.headline == f"“{word}” raises “yes” over “no” most"
    assert result.completeness_error < 1e-5
    frame = result.to_frame().set_index("word")
    assert frame.loc[word, "stack"] == ("target" if case == "decoder" else "source")
    credit = frame["credit"].dropna()
    assert credit[word] == pytest.approx(result.decomposition.total, rel=0.05)
    assert credit.drop(word).abs().max() < 0.05 * result.decomposition.total
    for effect in ("knock-out", "delete", "replace"):
        assert frame[f"lost by {effect}"].idxmax() == word
    assert result.value - result.baseline == pytest.approx(result.decomposition.total, rel=1e-5)
    assert [check.passed for check in result.agreement.analysis] == [True, True]


@pytest.mark.parametrize("case", CASES)
def test_methods_follow_both_stacks(results, case):
    result, word = results[case], CASES[case]
    assert set(result.methods) == set(COMPARED)
    place = result.words.index(word)
    for name in ("ensemble", "gradient-attention", "integrated-gradients", "partial-split"):
        assert result.methods[name].argmax() == place, name
    # Directly, the decoder reads only what its own attention reads.
    direct = result.methods["direct-attribution"]
    assert (direct.argmax() == place) == (case != "encoder")
    inputs = torch.tensor([number == number for number in result.methods["rollout"].tolist()])
    assert inputs.all()
    assert result.methods["rollout"].sum() == pytest.approx(1, abs=1e-5)
    sides = torch.tensor([stack == "source" for stack in result.stacks])
    raw = result.methods["raw-attention"]
    assert raw[sides].sum() == pytest.approx(1, abs=1e-5)
    assert raw[~sides].sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_random_models_are_split_exactly_over_both_stacks(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    result = attnviz.explain(TEXT, decoder=PREFIX, methods=["value-zeroing", "split"], model=model)
    assert result.completeness_error < 1e-5
    assert result.agreement.verdict == "verified"
    sides = torch.tensor([stack == "source" for stack in result.stacks])
    split = result.credit.nan_to_num(0)
    assert (split[sides].abs().max() > 1e-4) & (split[~sides].abs().max() > 1e-4)
    assert torch.equal(result.methods["split"].nan_to_num(0)[sides], split[sides])
    assert "value-zeroing is left out" in " ".join(result.notes)
    # What is measured follows from the definition: the model's own numbers in other texts.
    ids = model.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    start = model.module.config.decoder_start_token_id
    read = [start, *model.tokenizer(PREFIX)["input_ids"][:-1]]
    assert result.tokens == tuple(model.tokenizer.convert_ids_to_tokens([*ids[0].tolist(), *read]))
    chosen, other = model.tokenizer.convert_tokens_to_ids([*result.top[:2]])
    for word, source, target in (("river", [6], []), ("tree", [], [3])):
        rest = [n for n in range(ids.shape[1]) if n not in source]
        written = [token for n, token in enumerate(read) if n not in target]
        with torch.no_grad():
            logits = model.module(
                input_ids=ids[:, rest], decoder_input_ids=torch.tensor([written])
            ).logits[0, -1]
        compared = logits.logsumexp(0) if result.against is None else logits[other]
        lost = result.value - (logits[chosen] - compared).item()
        measured = result.causal["delete"][result.words.index(word)]
        assert measured == pytest.approx(lost, abs=1e-4)


def test_references_are_other_sources_and_masks(models):
    model, options = models["cross"], {"target": "yes", "against": "no", "decoder": PREFIX}
    other = attnviz.explain(TEXT, reference=TEXT.replace("river", "house"), model=model, **options)
    masked = attnviz.explain(TEXT, reference="mask", model=model, **options)
    for result in (other, masked):
        assert result.headline == "“river” raises “yes” over “no” most"
        assert result.completeness_error < 1e-5
    assert masked.reference == "the same source and target, where all other words are [MASK]"


def test_a_generated_token_is_explained_after_what_was_written(models):
    third = attnviz.explain(TEXT, generate=3, model=models["cross"])
    assert third.target == "yes"
    assert third.notes[0] == "the model wrote “yes yes”"
    target = [word for word, stack in zip(third.words, third.stacks, strict=True)
              if stack == "target"]  # fmt: skip
    assert target == ["[PAD]", "[CLS]", "yes", "yes"]


def test_what_cannot_be_explained_is_one_line(model, models, tokenizer):
    bare = attnviz.load(T5Model(models["cross"].module.config).eval(), tokenizer=tokenizer)
    with pytest.raises(ModelError, match="a decoder without a head") as caught:
        attnviz.explain(TEXT, model=bare)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="has no decoder that reads a text of its own"):
        attnviz.explain(TEXT, decoder=PREFIX, model=model)
    with pytest.raises(InputError, match="decoder text must be a string or ids, not 3"):
        attnviz.explain(TEXT, decoder=3, model=models["cross"])
