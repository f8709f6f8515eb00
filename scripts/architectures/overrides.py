"""Exceptions to the general rules, by architecture. Keep this file short."""

from __future__ import annotations

from typing import Any

# Classes for architectures whose bare model has no forward, or lacks the part with attention.
MODEL_CLASSES: dict[str, str] = {
    "esmfold2": "EsmFold2Model",
    "rag": "RagModel",
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}

# Why these architectures cannot run here; missing packages are reported automatically.
_TOWER = "its image tower is one of the package timm, which was not installed"
_NO_KEYS = (
    "transformers 5.23.0 builds none whose layers all read the keys of the model that it drafts for"
)
REASONS = {
    "edgetam": _TOWER,
    "gemma3n": f"{_TOWER}; its other towers are checked by themselves",
    "gemma4_assistant": _NO_KEYS,
    "gemma4_unified_assistant": _NO_KEYS,
    "pp_ocrv6_medium_det": "no sizes were found at which its feature maps fit each other",
    "pp_ocrv6_small_det": "no sizes were found at which its feature maps fit each other",
}

# Why nothing is shown of these, which mix tokens.
NOT_SHOWN = {
    "fnet": "mixes positions and features at once, by a Fourier transform that no text changes",
    "mra": "its mixture is a CUDA kernel, which was not installed: it returns zeros without it",
    "swiftformer": "mixes normalized queries in its own code, which is linear in no submodule's "
    "output",
}

# Already small, with widths that constrain each other in special ways.
UNSHRUNK = {"efficientloftr"}

# A draft model has no keys: all of its layers read the keys of the target model.
_DRAFTER = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "sliding_window": 4,
}  # fmt: skip

# Larger model widths, for models with another width that is hard-coded as 64 and must be smaller.
WIDTHS = {"sam2_video": 128, "sam3_tracker_video": 128, "edgetam_video": 128, "sam3_video": 128}

# Models whose timm tower returns tokens instead of feature maps.
TOKEN_TOWERS = {"perception_lm"}

_INTRACLASS = {"reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0]} | {
    f"{name}_{ratio}ratio": [[size if tall else 1, size if wide else 1], [1, 1],
                             [size // 2 if tall else 0, size // 2 if wide else 0]]
    for name, tall, wide in (("vertical_long_to_small_conv", True, False),
                             ("horizontal_small_to_long_conv", False, True),
                             ("symmetric_conv_long", True, True))
    for ratio, size in (("long", 7), ("mid", 5), ("short", 3))
}  # fmt: skip

# Models whose components are also checked separately: one component needs a package that may be
# missing, or is an architecture itself.
IN_PARTS = {"gemma3n", "fastspeech2_conformer_with_hifigan"}

# Settings of a class with a head, beside those of its architecture.
HEAD_SETTINGS: dict[str, dict[str, Any]] = {
    "EsmForProteinFolding": {
        "is_folding_model": True, "vocab_size": 33,
        "esmfold_config": {"trunk": {"num_blocks": 1}, "fp16_esm": False},
    },
}  # fmt: skip

# Architectures whose classes with a head are called as a user calls them, too.
FAMILIES = [
    "albert", "bamba", "bart", "bert", "big_bird", "bigbird_pegasus", "biogpt", "blenderbot",
    "bloom", "camembert", "canine", "codegen", "cohere", "convbert", "ctrl", "data2vec-text",
    "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "falcon", "falcon_h1",
    "fnet", "funnel", "gemma", "gemma2", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox",
    "gpt_oss", "gptj", "granite", "granitemoehybrid", "jamba", "kimi_linear", "led", "lfm2",
    "llama", "longformer", "luke", "m2m_100", "mamba", "mamba2", "marian", "mbart", "minimax",
    "mistral", "mixtral", "mobilebert", "modernbert", "mpnet", "mpt", "mt5", "mvp", "nemotron",
    "nemotron_h", "nystromformer", "olmo2", "olmo_hybrid", "opt", "pegasus", "phi", "phi3",
    "plbart", "prophetnet", "qwen2", "qwen3", "qwen3_next", "recurrent_gemma", "rembert",
    "roberta", "roformer", "rwkv", "squeezebert", "stablelm", "starcoder2", "t5", "umt5", "xglm",
    "xlm", "xlm-roberta", "xlnet", "zamba2",
]  # fmt: skip

# Settings that are not the default, and that change how a model attends.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "albert": [{"num_hidden_groups": 2}],
    "bart": [{"scale_embedding": True}],
    "beit": [{"use_relative_position_bias": True}, {"use_shared_relative_position_bias": True}],
    "bert": [{"is_decoder": True}],
    "big_bird": [{"attention_type": "original_full"}],
    "bloom": [{"apply_residual_connection_post_layernorm": True}],
    "codegen": [{"rotary_dim": 8}],
    "cohere": [{"use_qk_norm": True}],
    "data2vec-vision": [{"use_relative_position_bias": True}],
    "deberta": [{"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
                {"relative_attention": True, "pos_att_type": ["p2c"], "talking_head": True}],
    "deberta-v2": [{"relative_attention": True, "pos_att_type": ["c2p", "p2c"],
                    "position_buckets": 4, "share_att_key": True}],
    "deepseek_v3": [{"q_lora_rank": None}],
    "dinov2": [{"use_swiglu_ffn": True}],
    "esm": [{"position_embedding_type": "rotary"}, {"token_dropout": True}],
    "falcon": [{"alibi": True}, {"new_decoder_architecture": True},
               {"multi_query": False, "num_kv_heads": 4}, {"parallel_attn": False}],
    "fsmt": [{"scale_embedding": False}],
    "funnel": [{"attention_type": "factorized"}, {"separate_cls": False}],
    "gemma2": [{"attn_logit_softcapping": None}],
    "gpt2": [{"scale_attn_by_inverse_layer_idx": True}, {"reorder_and_upcast_attn": True},
             {"scale_attn_weights": False}, {"add_cross_attention": False}],
    "gpt_bigcode": [{"multi_query": False}],
    "gpt_neox": [{"use_parallel_residual": False}, {"attention_bias": False}],
    "gptj": [{"rotary_dim": 8}],
    "granite": [{"attention_multiplier": 0.1}],
    "hubert": [{"do_stable_layer_norm": True}],
    "llama": [{"attention_bias": True},
              {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
              {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
              {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4,
                                   "original_max_position_embeddings": 64}}],
    "mistral": [{"sliding_window": None}],
    "modernbert": [{"global_attn_every_n_layers": 1}],
    "mpt": [{"attn_config": {"alibi": False, "qk_ln": False, "clip_qkv": 1.0}}],
    "nemotron": [{"attention_bias": True}],
    "olmo": [{"clip_qkv": 1.0}],
    "opt": [{"do_layer_norm_before": False}],
    "persimmon": [{"qk_layernorm": False}],
    "phi": [{"qk_layernorm": True}],
    "qwen2": [{"use_sliding_window": False, "layer_types": ["full_attention"] * 2}],
    "qwen3": [{"attention_bias": True}],
    "qwen3_next": [{"attention_bias": True}],
    "reformer": [{"attn_layers": ["local", "local"]}, {"attn_layers": ["lsh", "lsh"]}],
    "roformer": [{"rotary_value": True}],
    "stablelm": [{"qk_layernorm": True}, {"use_parallel_residual": True}],
    "starcoder2": [{"sliding_window": 4}],
    "swin": [{"use_absolute_embeddings": True}],
    "t5": [{"feed_forward_proj": "gated-gelu"}],
    "unispeech": [{"do_stable_layer_norm": True}],
    "vit": [{"qkv_bias": False}],
    "wav2vec2": [{"do_stable_layer_norm": True}],
    "wav2vec2-bert": [{"position_embeddings_type": "relative"},
                      {"position_embeddings_type": "rotary"},
                      {"position_embeddings_type": "relative_key"}],
    "wav2vec2-conformer": [{"position_embeddings_type": "rotary"},
                           {"position_embeddings_type": None}],
    "wavlm": [{"do_stable_layer_norm": True}],
    "xglm": [{"scale_embedding": False}],
    "xlm": [{"causal": True}, {"sinusoidal_embeddings": True}],
    "xlnet": [{"attn_type": "uni"}, {"bi_data": True}, {"clamp_len": 3}],
}  # fmt: skip

# Settings by model type, also when the type is a component of another model.
SETTINGS: dict[str, dict[str, Any]] = {
    "align": {"projection_dim": 32},
    "align_vision_model": {"width_coefficient": 0.1, "depth_coefficient": 0.3, "hidden_dim": 128},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "autoformer": {"prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2, 3],
                   "moving_average": 5, "label_length": 4, "num_time_features": 2},
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "chameleon": {"vocabulary_map": {"<image>": 99}
                  | {f"IMGIMG{chr(65 + i // 10)}{chr(65 + i % 10)}Z": i for i in range(10, 90)}},
    "chameleon_vqgan": {"num_embeddings": 64, "base_channels": 32, "num_res_blocks": 1},
    "clap_audio_model": {"patch_size": 8, "patch_stride": [8, 8], "patch_embeds_hidden_size": 16,
                         "hidden_size": 128},
    "clvp_decoder": {"num_attention_heads": 2},
    "clvp_encoder": {"num_attention_heads": 2},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default",
                            "rope_theta": 1e4, "mrope_section": [4, 2, 2]}, "sliding_attention": {
                            "rope_type": "default", "rope_theta": 1e4,
                            "mrope_section": [4, 2, 2]}}},
    "cvt": {"depth": [1, 2, 3]},
    "dac": {"encoder_hidden_size": 8},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
             "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "depth_pro": {"patch_size": 56, "intermediate_hook_ids": [1, 0],
                  "intermediate_feature_dims": [64, 64],
                  "scaled_images_feature_dims": [64, 64, 32]},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "edgetam_video": {"memory_attention_rope_feat_sizes": [4, 4],
                      "memory_attention_rope_k_sizes": [2, 2],
                      "perceiver_resampler_num_latents": 4, "perceiver_resampler_num_latents_2d": 4,
                      "perceiver_resampler_attention_head_dim": 64},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.3, "hidden_dim": 128},
    "emu3": {"vocabulary_map": {"<image>": 99, "<|extra_200|>": 98}
             | {f"<|visual token {i:06d}|>": i for i in range(10, 90)}},
    "emu3_vqgan": {"codebook_size": 64, "base_channels": 32, "hidden_size": 128,
                   "num_res_blocks": 1},
    "ernie4_5_vl_moe_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                 "mrope_section": [3, 3, 2]}},
    "esm": {"vocab_size": 128, "mask_token_id": 32, "pad_token_id": 1},
    "esmc": {"num_key_value_heads": 4},
    "esmfold2": {"single_inputs_size": 131, "num_loops": 1},
    "EsmFold2AtomEncoderConfig": {"hidden_size": 128, "head_dim": 32},
    "FunAsrNanoAdaptorConfig": {"intermediate_size": 16},
    "gemma3n": {"vision_soft_tokens_per_image": 4},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2,
                     "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "intermediate_size": [256] * 4, "activation_sparsity_pattern": [0.5, 0.0] * 2},
    "gemma4_assistant": {"text_config": _DRAFTER | {"model_type": "gemma4_text"}},
    "gemma4_text": {"global_head_dim": 32},
    "gemma4_unified_assistant": {"text_config": _DRAFTER | {"model_type": "gemma4_unified_text"}},
    "glm5_next_text": {"num_key_value_heads": 4, "index_kpool": 2},
    "glm_image_vqmodel": {"latent_channels": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "granite4_vision": {"downsample_rate": "2/4",
                        "image_grid_pinpoints": [[256, 128], [128, 256]],
                        "deepstack_layer_map": [[0, 0], [1, 1]],
                        "spatial_target_layers": [0, 0, 1, 1]},
    "granite_speech": {"window_size": 15},
    "granite_speech5_encoder": {"num_key_value_heads": 4},
    "granite_speech_plus": {"window_size": 15},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hgnet_v2": {"hidden_sizes": [16, 32, 64, 128], "stage_out_channels": [16, 32, 64, 128],
                 "stage_in_channels": [48, 16, 32, 64], "stage_mid_channels": [8, 8, 16, 16],
                 "stage_numb_of_layers": [2, 2, 2, 2], "stage_num_blocks": [1, 1, 1, 1]},
    "hrm_text": {"num_layers_per_stack": None},
    "informer": {"prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2, 3],
                 "num_time_features": 2},
    "inkling_vision": {"patch_size": 4, "num_hidden_layers": 4},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48},
    "llava_next": {"image_grid_pinpoints": [[112, 56], [56, 112]]},
    "llava_next_video": {"image_grid_pinpoints": [[112, 56], [56, 112]]},
    "llava_onevision": {"image_grid_pinpoints": [[112, 56], [56, 112]]},
    "longcat_flash": {"head_dim": 8, "qk_head_dim": 24},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "mamba2": {"num_heads": 8},
    "minicpm_ocr": {"insert_layer_id": 0},
    "minicpmv4_6": {"insert_layer_id": 0},
    "minicpmv4_7": {"insert_layer_id": 0},
    "mistral_large4_text": {"kv_source_layers": [0, 1]},
    "mllama_vision_model": {"vision_output_dim": 128},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "mpnet": {"relative_attention_num_buckets": 32},
    "muse_glimmer": {"out_hidden_size": 256},
    "muse_spark": {"out_hidden_size": 256},
    "muse_spark_audio": {"num_hidden_layers": 4, "hidden_sizes": [16, 32, 64, 128],
                         "depths": [2, 2, 2, 2], "patch_sizes": [16, 6, 5, 4]},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron3_5_transcribe_asr_audio": {"num_key_value_heads": 4},
    "nemotron3_5_transcribe_audio": {"num_key_value_heads": 4},
    "nemotron3_diarization_audio": {"num_key_value_heads": 4},
    "nemotron_h_omni": {"audio_config": None, "sound_config": None},
    "neucodec": {"encoder_hidden_size": 4, "quantization_dim": 128, "num_key_value_heads": 4},
    "omdet-turbo": {"d_model": 32,
                    "encoder_hidden_dim": 32,
                    "decoder_hidden_dim": 32,
                    "encoder_in_channels": [32, 64, 128],
                    "vision_features_channels": [32, 32, 32],
                    "apply_layernorm_after_vision_backbone": False},
    "paddleocr_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                              "mrope_section": [4, 2, 2]}},
    "pp_doclayout_v2": {"class_thresholds": [0.5] * 25, "class_order": list(range(25))},
    "pp_doclayout_v3": {"x4_feat_dim": 16},
    "pp_lcnet_v4": {"out_indices": [1, 2, 3, 4]},
    "pp_ocrv5_server_det": {"intraclass_block_config": _INTRACLASS, "kernel_list": [3, 2, 2],
                            "scale_factor_list": [1, 2, 4, 8]},
    "pp_ocrv6_medium_det": {"intraclass_block_config": _INTRACLASS},
    "pp_ocrv6_small_det": {"layer_list_out_channels": [96, 96, 192, 384]},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 90, "vision_end_token_id": 91},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 90, "vision_end_token_id": 91},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
                       "indexer_budget": 8, "indexer_compress_ratio": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    # Without a seed every run draws other buckets, and no two runs agree.
    "reformer": {"axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 48], "hash_seed": 0},
    "swin2sr": {"image_size": 16},
    "sam2_hiera_det_model": {"hidden_size": 16, "global_attention_blocks": [4]},
    "sam2_video": {"memory_attention_rope_feat_sizes": [4, 4]},
    "sam2_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "sam3_tracker_video": {"image_size": 56, "memory_attention_rope_feat_sizes": [4, 4]},
    "sam3_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "seggpt": {"num_hidden_layers": 4, "merge_index": 1, "image_size": [128, 64],
               "intermediate_hidden_state_indices": [2, 3]},
    "shieldgemma2": {"yes_token_index": 90, "no_token_index": 91},
    "step3p5": {"sliding_window": 4},
    "textnet": {"stem_out_channels": 16},
    "time_series_transformer": {"prediction_length": 6, "context_length": 12,
                                "lags_sequence": [1, 2, 3], "num_time_features": 2},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "unlimited_ocr_text": {"num_key_value_heads": 4},
    "unlimited_ocr_vision": {"num_key_value_heads": 4},
    "unlimited_ocr_vision_encoder": {"num_key_value_heads": 4},
    "uvdoc_backbone": {"out_indices": [1, 2, 3, 4, 5, 6]},
    "vipllava": {"vision_feature_layers": [-1, -2], "vision_feature_layer": [-1, -2]},
    "vitmatte": {"fusion_hidden_sizes": [64, 32, 16, 8]},
    "xcodec2": {"encoder_hidden_size": 4, "quantization_dim": 128, "num_key_value_heads": 4},
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"],
              "num_hidden_layers": 3, "attention_hidden_size": 128, "attention_head_dim": 32},
}  # fmt: skip
