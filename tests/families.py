"""Tiny random models of real families, sharp enough that flat attention cannot hide a fault.

Default initialization gives scores with a standard deviation of 0.025: every row is uniform, and
almost any fault passes. So the query and key projections are scaled up (the tests check that the
scores then have a standard deviation of 0.5 or more), and biases and norms are random even where
the library initializes them to 0 and 1.
"""

from __future__ import annotations

import copy
from functools import lru_cache

import torch
import transformers as hf

from attnviz.capture.projections.find import find_attention_modules

VOCABULARY = 30522  # the bundled tokenizer's
TEXTS = [
    "the train left the station on time and nobody noticed that it was early",
    "I love apple phones, but my sister prefers the ones that grow on trees",
    "a much shorter text",
]

# The stages of an attention, in the order in which they are compared.
STAGES = ("query", "key", "value", "scores", "weights", "head output", "output")

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
_default = {"rope_type": "default", "rope_theta": 1e4}
_llama = {**_bert, "num_key_value_heads": 2, "max_position_embeddings": 64}

FAMILIES = {
    "bert": ("BertForMaskedLM", _bert),
    "distilbert": ("DistilBertModel", {"vocab_size": VOCABULARY, "dim": 48, "n_layers": 3,
                                       "n_heads": 4, "hidden_dim": 64, "initializer_range": 0.1}),
    "roberta": ("RobertaModel", _bert | {"pad_token_id": 0, "max_position_embeddings": 64}),
    "albert": ("AlbertModel", _bert | {"embedding_size": 32}),
    "electra": ("ElectraModel", _bert | {"embedding_size": 32}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 3, "n_head": 4,
                                 "n_positions": 64, "initializer_range": 0.1, "bos_token_id": None,
                                 "eos_token_id": None, "scale_attn_by_inverse_layer_idx": True}),
    "llama": ("LlamaForCausalLM", _llama),
    "llama-biased": ("LlamaForCausalLM", _llama | {"attention_bias": True}),
    "mistral": ("MistralModel", _llama | {"sliding_window": 5, "head_dim": 16}),
    "qwen2": ("Qwen2Model", _llama),
    "qwen3": ("Qwen3Model", _llama | {"head_dim": 16}),
    "gemma2": ("Gemma2Model", _llama | {"head_dim": 16, "sliding_window": 5,
                                        "attn_logit_softcapping": 50.0,
                                        "query_pre_attn_scalar": 64}),
    "gpt-oss": ("GptOssModel", _llama | {"head_dim": 16, "sliding_window": 5,
                                         "num_local_experts": 2, "num_experts_per_tok": 1,
                                         "rope_parameters": _default}),
    "t5-encoder": ("T5EncoderModel", {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12,
                                      "d_ff": 64, "num_layers": 3, "num_heads": 4,
                                      "relative_attention_num_buckets": 8,
                                      "relative_attention_max_distance": 12}),
}  # fmt: skip

_bart = {
    "vocab_size": VOCABULARY, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "init_std": 0.1, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
TWO_SIDED = {
    "t5": ("T5ForConditionalGeneration", {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12,
                                          "d_ff": 64, "num_layers": 2, "num_heads": 4,
                                          "relative_attention_num_buckets": 8,
                                          "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", _bart),
    "marian": ("MarianMTModel", _bart),
    "mbart": ("MBartForConditionalGeneration", _bart),
    "mt5": ("MT5ForConditionalGeneration", {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12,
                                            "d_ff": 64, "num_layers": 2, "num_heads": 4,
                                            "relative_attention_num_buckets": 8,
                                            "decoder_start_token_id": 0}),
    "pegasus": ("PegasusForConditionalGeneration", _bart),
}  # fmt: skip

# Families whose attention bypasses transformers' interface.
OWN_CODE = {
    "bloom": ("BloomModel", {"vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 2,
                             "n_head": 4}),
    # Eager and fused attention of transformers differ: eager adds ALiBi twice.
    "falcon": ("FalconModel", _bert | {"alibi": True, "attn_implementation": "eager"}),
    "falcon-grouped": ("FalconModel", _bert | {"new_decoder_architecture": True,
                                               "num_kv_heads": 2}),
    "mpt": ("MptModel", {"vocab_size": VOCABULARY, "d_model": 48, "n_layers": 2, "n_heads": 4,
                         "max_seq_len": 64}),
    "gpt-j": ("GPTJModel", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4,
                            "rotary_dim": 4, "n_positions": 64, "bos_token_id": None,
                            "eos_token_id": None}),
    "gpt-neo": ("GPTNeoModel", {"vocab_size": VOCABULARY, "hidden_size": 48, "num_layers": 2,
                                "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                                "window_size": 5, "max_position_embeddings": 64,
                                "bos_token_id": None, "eos_token_id": None}),
    "codegen": ("CodeGenModel", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4,
                                 "rotary_dim": 4, "n_positions": 64, "bos_token_id": None,
                                 "eos_token_id": None}),
    "deberta": ("DebertaModel", _bert | {"relative_attention": True, "pos_att_type": "c2p|p2c"}),
    "deberta-v2": ("DebertaV2Model", _bert | {"relative_attention": True, "pos_att_type": "c2p|p2c",
                                              "position_buckets": 8}),
    "xlnet": ("XLNetModel", {"vocab_size": VOCABULARY, "d_model": 48, "n_layer": 2, "n_head": 4,
                             "d_inner": 64}),
    "mpnet": ("MPNetModel", _bert),
    "roformer": ("RoFormerModel", _bert),
    "funnel": ("FunnelModel", {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 48,
                               "n_head": 4, "d_head": 12, "d_inner": 64}),
    "longformer": ("LongformerModel", _bert | {"attention_window": [4, 4, 4], "pad_token_id": 0}),
    "bigbird": ("BigBirdModel", _bert | {"attention_type": "block_sparse", "block_size": 2,
                                         "num_random_blocks": 1}),
    "reformer": ("ReformerModel", {"vocab_size": VOCABULARY, "axial_pos_embds": False,
                                   "attention_head_size": 12, "attn_layers": ["local", "lsh"],
                                   "hidden_size": 48, "num_attention_heads": 4,
                                   "feed_forward_size": 64, "local_attn_chunk_length": 4,
                                   "lsh_attn_chunk_length": 4, "num_buckets": 2,
                                   "max_position_embeddings": 64, "hash_seed": 0}),
    "xlm": ("XLMModel", {"vocab_size": VOCABULARY, "emb_dim": 48, "n_layers": 2, "n_heads": 4}),
}  # fmt: skip

GROUPED = ("llama", "llama-biased", "mistral", "qwen2", "qwen3")

_small = {**_llama, "num_hidden_layers": 2}
_wide = {**_small, "head_dim": 16}
_experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_latent = {
    **_small, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10, "head_dim": 4,
    "first_k_dense_replace": 2, "mlp_layer_types": ["dense", "dense"], "rope_theta": 1e4,
}  # fmt: skip
_yarn = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
_llama3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
_longrope = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [2.0, 3.0, 4.0], "original_max_position_embeddings": 16, "factor": 4.0,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
_sliding = ["sliding_attention", "full_attention"]

# Every way in which text models compute Q, K and V: the model class, and a small configuration that
# enables its special features.
FURTHER = {
    "afmoe": ("AfmoeModel", {**_wide, "num_dense_layers": 2, "layer_types": _sliding}),
    "apertus": ("ApertusModel", _small),
    "arcee": ("ArceeModel", _small),
    "bert-generation": ("BertGenerationEncoder", _small),
    "biogpt": ("BioGptModel", _small),
    "bitnet": ("BitNetModel", _small),
    "camembert": ("CamembertModel", _small | {"pad_token_id": 0}),
    "cohere": ("CohereModel", _small | {"use_qk_norm": True}),
    "cohere2": ("Cohere2Model", _small | {"sliding_window": 5, "layer_types": _sliding}),
    "ctrl": ("CTRLModel", {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 48, "n_layer": 2,
                           "n_head": 4, "dff": 64, "initializer_range": 0.1}),
    "cwm": ("CwmModel", _wide | {"layer_types": _sliding, "sliding_window": 5,
                                 "rope_parameters": _llama3}),
    "data2vec-text": ("Data2VecTextModel", _small | {"pad_token_id": 0}),
    "dbrx": ("DbrxModel", {"vocab_size": VOCABULARY, "d_model": 48, "n_heads": 4, "n_layers": 2,
                           "max_seq_len": 64, "initializer_range": 0.1,
                           "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 1e4},
                           "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 2,
                                          "moe_top_k": 1, "hidden_size": 48}}),
    "deepseek-v2": ("DeepseekV2Model", _latent | {"n_routed_experts": 2}),
    "deepseek-v3": ("DeepseekV3Model", _latent),
    "deepseek-v3-yarn": ("DeepseekV3Model", _latent | {"q_lora_rank": None,
                                                       "rope_parameters": _yarn}),
    "dots1": ("Dots1Model", _wide | {"first_k_dense_replace": 2, "n_routed_experts": 2}),
    "ernie": ("ErnieModel", _small),
    "ernie4.5": ("Ernie4_5Model", _wide),
    "ernie4.5-moe": ("Ernie4_5_MoeModel", _small | {"moe_num_experts": 2, "moe_k": 1,
                                                    "moe_intermediate_size": 32}),
    "esm": ("EsmModel", _small | {"position_embedding_type": "rotary", "pad_token_id": 0,
                                  "mask_token_id": 103}),
    "eurobert": ("EuroBertModel", _small),
    "exaone4": ("Exaone4Model", _wide | {"layer_types": _sliding, "sliding_window": 5}),
    "flex-olmo": ("FlexOlmoModel", _small | {"num_experts": 2, "num_experts_per_tok": 1}),
    "gemma": ("GemmaModel", _wide),
    "gemma3": ("Gemma3TextModel", _wide | {"layer_types": _sliding, "sliding_window": 5}),
    "gemma4": ("Gemma4TextModel", _wide | {"layer_types": _sliding, "sliding_window": 5,
                                           "vocab_size_per_layer_input": VOCABULARY,
                                           "hidden_size_per_layer_input": 4, "global_head_dim": 16,
                                           "num_kv_shared_layers": 0}),
    "glm": ("GlmModel", _wide),
    "glm4": ("Glm4Model", _wide),
    "glm4-moe": ("Glm4MoeModel", _wide | {"use_qk_norm": True, "first_k_dense_replace": 2,
                                          "n_routed_experts": 2}),
    "gpt-bigcode": ("GPTBigCodeModel", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2,
                                        "n_head": 4, "n_positions": 64, "initializer_range": 0.1,
                                        "multi_query": True}),
    "gpt-bigcode-heads": ("GPTBigCodeModel", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2,
                                              "n_head": 4, "n_positions": 64, "multi_query": False,
                                              "initializer_range": 0.1}),
    "gpt-neox": ("GPTNeoXModel", _small),
    "granite": ("GraniteModel", _small | {"attention_multiplier": 0.2}),
    "granite-moe": ("GraniteMoeModel", _small | {"num_local_experts": 2}),
    "gte": ("GteModel", _small),
    "helium": ("HeliumModel", _small | {"head_dim": 12}),
    "hunyuan": ("HunYuanDenseV1Model", _wide),
    "hunyuan-moe": ("HunYuanMoEV1Model", _wide | {"num_experts": 2, "moe_topk": 1}),
    "jais2": ("Jais2Model", _small),
    "jina-v3": ("JinaEmbeddingsV3Model", _small),
    "layoutlm": ("LayoutLMModel", _small),
    "lfm2": ("Lfm2Model", _small | {"layer_types": ["full_attention"] * 2}),
    "llama-yarn": ("LlamaModel", _small | {"rope_parameters": _yarn}),
    "llama4": ("Llama4TextModel", _wide | {"no_rope_layers": [1, 0], "interleave_moe_layer_step": 3,
                                           "intermediate_size_mlp": 64, "moe_layers": [],
                                           "attention_chunk_size": 64, "floor_scale": 4}),
    "mellum": ("MellumModel", _wide | {"num_experts": 2, **_experts}),
    "minicpm3": ("MiniCPM3Model", _latent),
    "minimax-m2": ("MiniMaxM2Model", _wide | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "ministral": ("MinistralModel", _wide | {"layer_types": _sliding, "sliding_window": 5}),
    "ministral3": ("Ministral3Model", _wide | {"rope_parameters": _yarn | {
        "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 4}}),
    "mixtral": ("MixtralModel", _small | {"num_local_experts": 2}),
    "modernbert": ("ModernBertModel", _small | {"layer_types": _sliding, "local_attention": 4,
                                                "pad_token_id": 0}),
    "modernbert-decoder": ("ModernBertDecoderModel", _small | {"layer_types": _sliding,
                                                               "pad_token_id": 0}),
    "nanochat": ("NanoChatModel", _small),
    "nemotron": ("NemotronModel", _wide),
    "nomic-bert": ("NomicBertModel", _small),
    "olmo": ("OlmoModel", _small | {"clip_qkv": 1.0}),
    "olmo2": ("Olmo2Model", _small),
    "olmo3": ("Olmo3Model", _small | {"layer_types": _sliding, "sliding_window": 5}),
    "olmoe": ("OlmoeModel", _small | {"num_experts": 2, "num_experts_per_tok": 1, "clip_qkv": 2.0}),
    "opt": ("OPTModel", _small | {"ffn_dim": 64, "word_embed_proj_dim": 48, "init_std": 0.1}),
    "persimmon": ("PersimmonModel", _small),
    "phi": ("PhiModel", _small | {"qk_layernorm": True}),
    "phi3": ("Phi3Model", _small | {"pad_token_id": 0}),
    "phi3-longrope": ("Phi3Model", _small | {"pad_token_id": 0, "partial_rotary_factor": 0.5,
                                             "original_max_position_embeddings": 16,
                                             "rope_parameters": _longrope}),
    "phimoe": ("PhimoeModel", _small | {"num_local_experts": 2}),
    "qwen2-moe": ("Qwen2MoeModel", _small | {"num_experts": 2, **_experts,
                                             "shared_expert_intermediate_size": 32}),
    "qwen3-moe": ("Qwen3MoeModel", _wide | {"num_experts": 2, **_experts}),
    "qwen3-next": ("Qwen3NextModel", _wide | {"layer_types": ["full_attention"] * 2,
                                              "num_experts": 2, **_experts,
                                              "shared_expert_intermediate_size": 32}),
    "qwen3.5": ("Qwen3_5TextModel", _wide | {"layer_types": ["full_attention"] * 2}),
    "roberta-prelayernorm": ("RobertaPreLayerNormModel", _small | {"pad_token_id": 0}),
    "seed-oss": ("SeedOssModel", _wide),
    "smollm3": ("SmolLM3Model", _small | {"no_rope_layers": [1, 0], "pad_token_id": 0}),
    "solar-open": ("SolarOpenModel", _wide | {"n_routed_experts": 2, **_experts}),
    "stablelm": ("StableLmModel", _wide | {"hidden_size": 64, "qk_layernorm": True}),
    "starcoder2": ("Starcoder2Model", _small),
    "vaultgemma": ("VaultGemmaModel", _wide | {"layer_types": _sliding, "sliding_window": 5}),
    "xlm-roberta": ("XLMRobertaModel", _small | {"pad_token_id": 0}),
    "xlm-roberta-xl": ("XLMRobertaXLModel", _small | {"pad_token_id": 0}),
    "youtu": ("YoutuModel", _latent),
}  # fmt: skip


_BY_LAYER = {"layer_types", "mlp_layer_types", "no_rope_layers"}  # layers of several kinds


def tiny(
    family: str, dtype: torch.dtype = torch.float32, seed: int = 0, *, shallow: bool = False
) -> hf.PreTrainedModel:
    """Return a tiny random model with sharp attention, in eval mode.

    shallow : of a further family whose layers are alike, with a single one.
    """
    model, random_state = _built(family, dtype, seed, shallow)
    torch.set_rng_state(random_state)  # as if it had been built anew
    return copy.deepcopy(model)


@lru_cache(12)
def _built(
    family: str, dtype: torch.dtype, seed: int, shallow: bool
) -> tuple[hf.PreTrainedModel, torch.Tensor]:
    """Return a model to be copied, and the state of the random generator after it was built."""
    torch.manual_seed(seed)
    name, sizes = (FAMILIES | TWO_SIDED | OWN_CODE | FURTHER)[family]
    if family in FURTHER:
        sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | sizes
        if shallow and "num_hidden_layers" in sizes and not _BY_LAYER & sizes.keys():
            sizes["num_hidden_layers"] = 1
    model_class = getattr(hf, name)
    model = model_class(model_class.config_class(**copy.deepcopy(sizes)))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or "norm." in name:
            is_scale = name.endswith("weight")  # of a norm; other vectors are biases
            torch.nn.init.normal_(parameter, 1.0 if is_scale else 0.0, 0.2 if is_scale else 0.4)
    if family in OWN_CODE:
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=2 / parameter.shape[-1] ** 0.5)
        return model.to(dtype).eval(), torch.get_rng_state()
    wider = 2 if family.startswith(("t5", "mt5")) else 4  # T5 does not scale its scores down
    for holder in find_attention_modules(model).values():
        sharpen(holder.module, wider)
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:  # initialized far too flat
            parameter.detach().mul_(4)
    return model.to(dtype).eval(), torch.get_rng_state()


@torch.no_grad()
def sharpen(module: torch.nn.Module, wider: float) -> None:
    """Scale up the query and key projections of one attention, or their norms."""
    for name, parameter in module.named_parameters():
        child, _, kind = name.partition(".")
        if child[0] in "qkcW" and child not in ("c_proj", "Wo") and kind.endswith("weight"):
            parameter.mul_(1.5 if "norm" in child else wider)
