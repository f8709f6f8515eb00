"""The map of a generation: one pass over the text and what was written, compared with the steps."""

import itertools

import pytest
import torch
import transformers
from families import TEXTS, TWO_SIDED, tiny
from torch.testing import assert_close

import attnviz
from attnviz import ModelError

TOKENS = 3


def sharp(family, dtype=torch.float32):
    module = tiny(family, dtype)
    if family == "llama":  # sharpened less: rounding grows with the scores from layer to layer
        for name, parameter in module.named_parameters():
            if "q_proj" in name:
                parameter.data /= 4
    return module


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama", torch.float32),
        ("t5", torch.float32),
        ("bart", torch.float32),
        ("llama", torch.bfloat16),
        ("t5", torch.bfloat16),
    ],
)
def test_steps_and_one_pass_give_the_same_logits(family, dtype, tokenizer):
    model = attnviz.load(sharp(family, dtype), tokenizer=tokenizer)
    agreement = model.attend(TEXTS[2], generate=TOKENS).agreement
    assert agreement.verdict == "verified", agreement.summary()
    (steps,) = agreement.analysis
    assert steps.name == "logits of the steps"
    assert dtype == torch.bfloat16 or 0 < steps.difference <= 1e-5


def test_the_map_is_that_of_the_generated_text(tokenizer):
    """The oracle is independent of the assembly: a single pass over the complete text."""
    module = tiny("gpt2")
    model = attnviz.load(module, tokenizer=tokenizer)
    result = model.attend(TEXTS[2], generate=TOKENS)
    inputs = tokenizer(TEXTS[2], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        ids = module.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
    alone = model.attend(inputs={"input_ids": ids[:, :-1]})
    for stitched, whole in zip(result, alone, strict=True):
        assert_close(stitched.weights(), whole.weights(), rtol=0, atol=1e-5)
        assert_close(stitched.query, whole.query, rtol=0, atol=1e-4)
    assert result.provenance.generated == tokenizer.decode(ids[0, len(inputs["input_ids"][0]) :])


def test_both_sides_have_the_right_tokens(tokenizer):
    result = attnviz.load(tiny("t5"), tokenizer=tokenizer).attend("a train", generate=3)
    cross = result.stack().record(0)
    assert result.stacks == ("encoder", "decoder", "cross")
    assert cross.key_axis.labels == ("[CLS]", "a", "train", "[SEP]")
    assert cross.query_axis.special[0]  # the start token of the decoder
    read = "".join(cross.query_axis.labels[1:]).replace("##", "")
    assert result.provenance.generated.replace(" ", "").startswith(read)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_steps_that_read_otherwise_are_caught(family, tokenizer):
    module = sharp(family)
    blocks = module.transformer.h if family == "gpt2" else module.decoder.block
    layer = blocks[1].attn if family == "gpt2" else blocks[1].layer[0].SelfAttention

    def hook(_, __, output):  # of a step, which reads one token
        return output if output[0].shape[1] > 1 else (output[0] * 1.01, *output[1:])

    layer.register_forward_hook(hook)
    model = attnviz.load(module, tokenizer=tokenizer)
    report = model.attend(TEXTS[2], generate=TOKENS).agreement
    assert report.verdict == "failed"
    assert [check.name for check in report.analysis if not check.passed] == ["logits of the steps"]


def test_a_model_that_cannot_generate_says_so():
    with pytest.raises(ModelError, match="BertModel cannot generate text"):
        attnviz.attend("a train", generate=3)


# Settings, and whether the model then writes another text.
SETTINGS = {
    "penalty": ({"repetition_penalty": 5.0}, True),
    "no repeats": ({"no_repeat_ngram_size": 1}, True),
    "suppressed": ({"suppress_tokens": [*range(1000, 30000)]}, True),
    "bias": ({"sequence_bias": [[[2000], 100.0]]}, True),
    "forced": ({"forced_bos_token_id": 2345, "forced_eos_token_id": 3456}, True),
    "ends": ({"eos_token_id": [*range(30522)], "min_new_tokens": 2}, True),
    "length": ({"max_length": 3, "use_cache": False}, False),
    "returned": ({"return_dict_in_generate": True, "output_attentions": True}, False),
    "static cache": ({"cache_implementation": "static"}, False),
    "sampling": ({"do_sample": True, "temperature": 0.5, "num_return_sequences": 1}, False),
    "beams": ({"num_beams": 3}, False),
}
LEFT_OUT = {"sampling": ["do_sample=True, temperature=0.5"], "beams": ["num_beams=3"]}


@pytest.mark.parametrize(("name", "family"), [*zip(SETTINGS, itertools.cycle(["gpt2", "bart"]))])
def test_the_settings_are_those_of_the_checkpoint(family, name, tokenizer):
    module, (changes, differs) = tiny(family), SETTINGS[name]
    module.generation_config.pad_token_id = 0
    inputs = tokenizer(TEXTS[2], return_tensors="pt", return_token_type_ids=False)
    options = {"max_new_tokens": 4, "do_sample": False, "num_beams": 1}
    plain = module.generate(**inputs, **options)
    for setting, value in changes.items():
        setattr(module.generation_config, setting, value)
    before = module.generation_config
    kept = before.to_dict()
    expected = module.generate(**inputs, **options)
    expected = expected if isinstance(expected, torch.Tensor) else expected.sequences
    result = attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[2], generate=4)
    own = result.stack("decoder") if family == "bart" else result
    assert list(own.tokens) == tokenizer.convert_ids_to_tokens(expected[0])[:-1]
    assert torch.equal(plain, expected) is not differs
    assert result.agreement.verdict == "verified"
    said = [note for note in result.notes if note.startswith("left out of the settings")]
    assert [note.partition(": ")[2] for note in said] == LEFT_OUT.get(name, [])
    assert module.generation_config is before
    assert before.to_dict() == kept


_MIXED = {
    "vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32, "pad_token_id": 1, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
_STATE_SPACE = {"vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 1, "pad_token_id": 1}
MIXED = {  # a class, and its settings
    "qwen3.5": ("Qwen3_5", _MIXED | {
        "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"]}),
    "lfm2": ("Lfm2", _MIXED | {"layer_types": ["conv", "full_attention"]}),
    "minimax": ("MiniMax", _MIXED | {
        "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "block_size": 16,
        "num_local_experts": 2, "num_experts_per_tok": 1}),
    "mamba2": ("Mamba2", _STATE_SPACE | {
        "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 16}),
}  # fmt: skip


def language_model(family):
    torch.manual_seed(0)
    if family in MIXED:
        name, sizes = MIXED[family]
        model_class = getattr(transformers, f"{name}ForCausalLM")
        return model_class(model_class.config_class(**sizes)).eval()
    module = tiny(family)
    if module.can_generate():
        return module
    return transformers.AutoModelForCausalLM.from_config(module.config).eval()


# Of each mechanism: positions, windows, chunks, experts, sinks, soft caps, ALiBi, two sides.
WRITERS = [
    "llama", "gpt-oss", "bloom", "gpt-j", "gpt-neo", "deepseek-v3", "gemma4", "llama4", "opt",
    "qwen3-next", "pegasus",
]  # fmt: skip


@pytest.mark.parametrize("family", [*WRITERS, *MIXED])
def test_what_is_written_is_what_the_model_writes(family, tokenizer):
    module = language_model(family)
    inputs = tokenizer("the train left", return_tensors="pt", return_token_type_ids=False)
    own = module.generate(**inputs, max_new_tokens=3, do_sample=False, num_beams=1)
    result = attnviz.load(module, tokenizer=tokenizer).attend("the train left", generate=3)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    for stack in ["decoder"] if family in TWO_SIDED else result.stacks:
        tokens = list(result.stack(stack).tokens)
        assert tokens == tokenizer.convert_ids_to_tokens(own[0])[:-1]


@pytest.mark.parametrize("is_decoder", [True, False])
def test_a_model_reads_the_positions_and_the_prompt_as_generate_does(tokenizer, is_decoder):
    module = language_model("roberta")  # whose own positions begin behind those of padding
    module.config.is_decoder = is_decoder
    module = type(module)(module.config).eval()
    result = attnviz.load(module, tokenizer=tokenizer).attend("the train left", generate=3)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    inputs = tokenizer("the train left", return_tensors="pt", return_token_type_ids=False)
    ids = module.generate(**inputs, max_new_tokens=3, do_sample=False)[0]
    assert list(result.tokens) == tokenizer.convert_ids_to_tokens(ids[:-1])
    prompt, read = inputs["input_ids"].shape[1], result.weights(layer=0, head=0) > 0
    assert read[:prompt, :prompt].all() == (not is_decoder)
    assert torch.equal(read[prompt:], torch.ones_like(read).tril()[prompt:])


class OneMask(transformers.RobertaForCausalLM):
    """Takes a mask of positions only."""

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, **others):
        assert attention_mask is None or attention_mask.dim() == 2
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **others)


def test_a_model_whose_tokens_attend_to_later_ones_is_refused(tokenizer):
    module = OneMask(language_model("roberta").config).eval()
    with pytest.raises(ModelError, match="attend to later ones"):
        attnviz.load(module, tokenizer=tokenizer).attend("the train left", generate=3)
