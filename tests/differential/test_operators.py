"""Attention found among the operators: equal to the interface, and beyond it."""

import inspect

import pytest
import torch
import transformers
from captures import capture, restoring, verify
from families import FAMILIES, FURTHER, OWN_CODE, TARGETS, TEXTS, TWO_SIDED, tiny
from torch.testing import assert_close

import attnviz

DTYPES = [torch.float32, torch.bfloat16]


# One of each kind of grouping, mask, scale and position.
SOME = ("bert", "gpt2", "mistral", "qwen3", "gemma2", "gpt-oss", "t5-encoder", "t5", "bart")


@pytest.mark.parametrize("family", SOME)
def test_interface_and_operators_give_the_same_record(family, tokenizer, monkeypatch):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    some = slice(1, 3 if family in ("bert", "t5") else 2)  # these two with padding
    texts, target = TEXTS[some], TARGETS[some] if family in TWO_SIDED else None
    by_interface = model.attend(texts, target=target)
    monkeypatch.setattr("attnviz.capture.recorder._can_read", lambda *_: False)
    by_operators = model.attend(texts, target=target)
    for here, there in zip(by_interface, by_operators, strict=True):
        assert there.agreement.verdict == "verified", there.agreement.summary()
        for one, other in zip(here, there, strict=True):
            assert one.through_interface
            assert not other.through_interface
            assert (one.path, one.stack, one.layer) == (other.path, other.stack, other.layer)
            assert (one.query_axis, one.key_axis) == (other.query_axis, other.key_axis)
            assert_close(one.query * one.scale, other.query * other.scale)
            shared = one.heads // one.key_heads
            assert_close(one.key.repeat_interleave(shared, 0), other.key)
            assert_close(one.value.repeat_interleave(shared, 0), other.value)
            assert one.soft_cap == other.soft_cap
            rows = ~torch.tensor(one.query_axis.padding)
            assert_close(one.weights()[:, rows], other.weights()[:, rows], rtol=0, atol=1e-6)
            if one.sinks is not None:
                assert_close(one.sinks, other.sinks)


# Families whose keys, values and often queries are not compared, and the reason.
NOT_COMPARED = {
    "xlnet": "its matrices are parameters with three dimensions, and a bias is added to queries",
    "funnel": "its queries are pooled, and a bias is added to them",
    "bigbird": "its blocks are cut out and gathered before they are multiplied",
    "reformer": "its chunks are sorted, and queries are keys too",
}


@pytest.mark.pairs(each=1)  # each family in one dtype, in turn
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("family", OWN_CODE)
def test_families_with_custom_attention_code_agree(family, dtype, tokenizer):
    model = attnviz.load(tiny(family, dtype), tokenizer=tokenizer)
    for result in model.attend(TEXTS[1:]):
        verdict = result.agreement.verdict
        # In bfloat16, rounding may hide a 1 % error of the scale if position dominates the scores.
        expected = ["verified"] if dtype == torch.float32 else ["verified", "not proven"]
        assert verdict in expected, result.agreement.summary()
        assert not any(record.through_interface for record in result)
        compared = {check.stage for check in result.agreement.checks}
        assert compared >= {"scores", "weights", "head output"}
        missing = {stage for _, stage, _ in result.agreement.not_compared}
        assert missing >= {"key", "value"} if family in NOT_COMPARED else not missing


REPORTING = sorted(OWN_CODE.keys() - {"funnel", "longformer", "bigbird", "reformer"})


@pytest.mark.parametrize("family", REPORTING)
def test_heads_and_rows_have_the_models_order(family, tokenizer):
    """Compare with the attentions that the model returns, which are independent of our layout."""
    module = tiny(family)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    # In eager mode: under SDPA Falcon returns weights without their causal mask.
    with torch.no_grad(), restoring(module):
        reported = module(**inputs, output_attentions=True).attentions
    for n, captured in enumerate(capture(module, dict(inputs))):
        rows = inputs["attention_mask"][n].bool()
        for record, weights in zip(captured.records, reported, strict=True):
            assert_close(record.weights()[:, rows], weights[n][:, rows], rtol=0, atol=2e-6)


def test_memory_that_was_not_written_and_does_not_count_is_not_read(tokenizer, monkeypatch):
    """GPT-2 may multiply into an empty table, by which `baddbmm` adds nothing."""
    empty = torch.empty

    def unwritten(*size, **options):
        table = empty(*size, **options)
        return table.fill_(torch.nan) if table.is_floating_point() else table

    settings = {"n_embd": 48, "n_layer": 1, "n_head": 4, "reorder_and_upcast_attn": True}
    module = transformers.GPT2Model(transformers.GPT2Config(**settings)).eval()
    model = attnviz.load(module, tokenizer=tokenizer)
    monkeypatch.setattr(torch, "empty", unwritten)
    assert model.attend(TEXTS[0]).agreement.verdict == "verified"
    assert attnviz.shift("train", TEXTS[0], model=model).agreement.verdict == "verified"


# --- families beside `families.py`, of which all stages are compared


SIZES = {
    "vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 64, "initializer_range": 0.3, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT = {
    "vocab_size": 99, "n_embd": 48, "n_layer": 1, "n_head": 4, "n_positions": 64,
    "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FURTHER_CODE = {  # the model class, and its configuration
    "bigbird": ("BigBirdModel", SIZES | {"attention_type": "original_full"}),
    "falcon-multi-query": ("FalconModel", SIZES | {"multi_query": True}),
    "falcon-old": ("FalconModel", SIZES | {"multi_query": False}),
    "gpt": ("OpenAIGPTModel", GPT),
    "gpt-neox-japanese": ("GPTNeoXJapaneseModel", SIZES),
    "i-bert": ("IBertModel", SIZES),
    "megatron-bert": ("MegatronBertModel", SIZES),
    "mpt-clipped": ("MptModel", {"vocab_size": 99, "d_model": 48, "n_heads": 4, "n_layers": 1,
                                 "attn_config": {"clip_qkv": 0.5}}),
    "rembert": ("RemBertModel", SIZES | {"input_embedding_size": 48}),
    "tapas": ("TapasModel", SIZES),
    "xglm": ("XGLMModel", {"vocab_size": 99, "d_model": 48, "num_layers": 1, "attention_heads": 4,
                           "ffn_dim": 64, "init_std": 0.3}),
}  # fmt: skip


@pytest.mark.parametrize("family", FURTHER_CODE)
def test_every_stage_is_compared(family):
    name, sizes = FURTHER_CODE[family]
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    config = model_class.config_class(**sizes)
    model = model_class._from_config(config, attn_implementation="eager").eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, float(key.endswith("weight")), 0.2)
    inputs = {"input_ids": torch.arange(3, 12)[None]}
    report = attnviz.load(model).attend(inputs=inputs).agreement
    assert report.verdict == "verified", report.summary()
    missing = {stage for _, stage, _ in report.not_compared}
    assert missing == ({"output"} if family == "i-bert" else set())


# --- padding on either side changes nothing


PADDED = TEXTS[1:]

# These families find word positions in padded text by themselves.
KNOW_POSITIONS = {"roberta", "camembert", "xlm-roberta", "xlm-roberta-xl", "data2vec-text", "esm",
                  "roberta-prelayernorm", "opt"}  # fmt: skip
# In these families padding changes the text: blocks, chunks and pools are cut from the left, the
# batch length selects the rotary angles, or the tokenizer's padding differs from the model's.
MOVED = {
    "left": {"bigbird", "reformer", "longformer", "funnel", "roformer", "lfm2", "qwen3-next",
             "llama4", "phi3-longrope", "mpnet"},
    "right": {"bigbird", "reformer", "funnel", "phi3-longrope"},
}  # fmt: skip


def padded(family, module, tokenizer, side):
    """Return the inputs of a batch."""
    tokenizer.padding_side = side
    inputs = dict(tokenizer(PADDED, return_tensors="pt", padding=True, return_token_type_ids=False))
    parameters = inspect.signature(module.forward).parameters
    if side == "left" and "position_ids" in parameters and family not in KNOW_POSITIONS:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return inputs


@pytest.fixture
def own_tokenizer(tokenizer):
    side = tokenizer.padding_side
    yield tokenizer
    tokenizer.padding_side = side


# Its router amplifies rounding: 5e-5 in float32, 2e-8 in float64.
ROUGH = {"dbrx": 1e-4}
# Of the families without attention code of their own, some are enough: those that find positions by
# themselves, and the unusual ones.
OFTEN = {"bert", "gpt2", "mistral", "gemma2", "gpt-oss", "t5-encoder", *OWN_CODE, "roberta", "opt",
         "ctrl", "deepseek-v2", "gemma4", "lfm2", "llama4", "ministral3", "modernbert",
         "qwen3-next"}  # fmt: skip
PADDED_CASES = [
    pytest.param(
        family, side, id=f"{family}-{side}", marks=() if family in OFTEN else pytest.mark.long
    )
    for family in [*FAMILIES, *FURTHER, *OWN_CODE]
    for side in ("left", "right")
    if family not in MOVED[side]
]


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize(("family", "side"), PADDED_CASES)
def test_a_padded_text_has_the_same_maps_as_alone(family, side, own_tokenizer):
    module = tiny(family, shallow=True)
    inputs = padded(family, module, own_tokenizer, side)
    most_padded = min(range(len(PADDED)), key=lambda n: int(inputs["attention_mask"][n].sum()))
    captured = capture(module, inputs)[most_padded]
    report = verify(captured.records, captured.references)
    assert report.verdict == "verified", report.summary()
    alone = own_tokenizer(PADDED[most_padded], return_tensors="pt", return_token_type_ids=False)
    (single,) = capture(module, dict(alone))
    length = alone["input_ids"].shape[1]
    place = slice(-length, None) if side == "left" else slice(length)
    for among, one in zip(captured.records, single.records, strict=True):
        # A different rounding order gives errors proportional to the scores.
        largest = one.scores().where(one.weights() > 0, 0).abs().max().item()
        atol = ROUGH.get(family, 1e-5) * max(1, largest / 10)
        assert_close(among.weights()[:, place, place], one.weights(), rtol=0, atol=atol)
