"""Tiny random models of real families, sharp enough that no fault can hide in flat attention.

Default initialisation gives scores with a standard deviation of 0.025: every row is uniform, and
almost any fault passes. So the projections to queries and keys are made wide (the tests check that
scores then deviate by 0.5 or more), and biases and norms are random too, where the library starts
them at 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    Gemma2Config,
    Gemma2Model,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from attnviz.capture.projections import find_holders

VOCABULARY = 30522  # the bundled tokenizer's
TEXTS = [
    "the train left the station on time and nobody noticed that it was early",
    "I love apple phones, but my sister prefers the ones that grow on trees",
    "a much shorter text",
]

TARGETS = [
    "le train est parti de la gare a l'heure",
    "j'aime les telephones",
    "un texte bien plus long que celui qui se trouve a gauche",
]

_bert = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.1,
}
_llama = {**_bert, "num_key_value_heads": 2, "max_position_embeddings": 64}

FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertForMaskedLM(BertConfig(**_bert)),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(
            vocab_size=VOCABULARY, dim=48, n_layers=3, n_heads=4, hidden_dim=64,
            initializer_range=0.1,
        )
    ),
    "roberta": lambda: RobertaModel(
        RobertaConfig(**_bert, pad_token_id=0, max_position_embeddings=64)
    ),
    "albert": lambda: AlbertModel(AlbertConfig(**_bert, embedding_size=32)),
    "electra": lambda: ElectraModel(ElectraConfig(**_bert, embedding_size=32)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=48, n_layer=3, n_head=4, n_positions=64,
            initializer_range=0.1, bos_token_id=None, eos_token_id=None,
            scale_attn_by_inverse_layer_idx=True,
        )
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_llama)),
    "llama-biased": lambda: LlamaForCausalLM(LlamaConfig(**_llama, attention_bias=True)),
    "mistral": lambda: MistralModel(MistralConfig(**_llama, sliding_window=5, head_dim=16)),
    "qwen2": lambda: Qwen2Model(Qwen2Config(**_llama)),
    "qwen3": lambda: Qwen3Model(Qwen3Config(**_llama, head_dim=16)),
    "gemma2": lambda: Gemma2Model(
        Gemma2Config(**_llama, head_dim=16, sliding_window=5, attn_logit_softcapping=50.0,
                     query_pre_attn_scalar=64)
    ),
    "gpt-oss": lambda: GptOssModel(
        GptOssConfig(**_llama, head_dim=16, sliding_window=5, num_local_experts=2,
                     num_experts_per_tok=1, rope_parameters={"rope_type": "default",
                     "rope_theta": 1e4})
    ),
    "t5-encoder": lambda: T5EncoderModel(
        T5Config(vocab_size=VOCABULARY, d_model=48, d_kv=12, d_ff=64, num_layers=3, num_heads=4,
                 relative_attention_num_buckets=8, relative_attention_max_distance=12)
    ),
}  # fmt: skip

_bart = {
    "vocab_size": VOCABULARY, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "init_std": 0.1, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
TWO_SIDED: dict[str, Callable[[], PreTrainedModel]] = {
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, d_model=48, d_kv=12, d_ff=64, num_layers=2, num_heads=4,
                 relative_attention_num_buckets=8, decoder_start_token_id=0)
    ),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**_bart)),
    "marian": lambda: MarianMTModel(MarianConfig(**_bart)),
}  # fmt: skip

GROUPED = ("llama", "llama-biased", "mistral", "qwen2", "qwen3")


def tiny(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """Return a tiny random model with sharp attention, in eval mode."""
    torch.manual_seed(seed)
    model = (FAMILIES | TWO_SIDED)[family]()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            is_scale = name.endswith("weight")  # of a norm; other vectors are biases
            torch.nn.init.normal_(parameter, 1.0 if is_scale else 0.0, 0.2 if is_scale else 0.4)
    wider = 2 if family.startswith("t5") else 4  # T5 does not scale its scores down
    for holder in find_holders(model).values():
        sharpen(holder.module, wider)
    return model.to(dtype).eval()


@torch.no_grad()
def sharpen(module: torch.nn.Module, wider: float) -> None:
    """Make the projections of one attention to its queries and keys wider."""
    for name, child in module.named_children():
        if name[0] in "qkcW" or name == "in_proj":  # c_attn, Wqkv
            weight = getattr(child, "weight", None)
            if weight is not None and weight.dim() == 2 and not name.startswith("c_proj"):
                weight.mul_(wider)
