"""Families beside `families.py` with attention code of their own: all their stages are compared."""

import pytest
import torch
import transformers

import attnviz

_sizes = {
    "vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 64, "initializer_range": 0.3, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_gpt = {
    "vocab_size": 99, "n_embd": 48, "n_layer": 1, "n_head": 4, "n_positions": 64,
    "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES = {  # the model class, and its configuration
    "bigbird": ("BigBirdModel", _sizes | {"attention_type": "original_full"}),
    "falcon-multi-query": ("FalconModel", _sizes | {"multi_query": True}),
    "falcon-old": ("FalconModel", _sizes | {"multi_query": False}),
    "gpt": ("OpenAIGPTModel", _gpt),
    "gpt-neox-japanese": ("GPTNeoXJapaneseModel", _sizes),
    "i-bert": ("IBertModel", _sizes),
    "megatron-bert": ("MegatronBertModel", _sizes),
    "mpt-clipped": ("MptModel", {"vocab_size": 99, "d_model": 48, "n_heads": 4, "n_layers": 1,
                                 "attn_config": {"clip_qkv": 0.5}}),
    "rembert": ("RemBertModel", _sizes | {"input_embedding_size": 48}),
    "tapas": ("TapasModel", _sizes),
    "xglm": ("XGLMModel", {"vocab_size": 99, "d_model": 48, "num_layers": 1, "attention_heads": 4,
                           "ffn_dim": 64, "init_std": 0.3}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_is_compared(family):
    name, sizes = FAMILIES[family]
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
