"""What the general rules cannot reach, by architecture: as short as it can be."""

from __future__ import annotations

from typing import Any

# The class to run, where the bare model has no forward of its own or lacks what has attention.
MODEL_CLASSES: dict[str, str] = {
    "esmfold2": "EsmFold2Model",
    "rag": "RagModel",
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}

# Settings by model type, also where it is a part of another model.
SETTINGS: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2, 3],
                   "moving_average": 5, "label_length": 4, "num_time_features": 2},
    "informer": {"prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2, 3],
                 "num_time_features": 2},
    "time_series_transformer": {"prediction_length": 6, "context_length": 12,
                                "lags_sequence": [1, 2, 3], "num_time_features": 2},
    "bit": {"num_groups": 4},
    "chameleon": {"vocabulary_map": {"<image>": 100}
                  | {f"IMGIMG{chr(65 + i // 10)}{chr(65 + i % 10)}Z": i for i in range(10, 90)}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default",
                            "rope_theta": 1e4, "mrope_section": [4, 2, 2]}, "sliding_attention": {
                            "rope_type": "default", "rope_theta": 1e4,
                            "mrope_section": [4, 2, 2]}}},
    "cvt": {"depth": [1, 2, 3]},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
             "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "efficientloftr": {"out_features": [16, 16, 32, 64]},
    "emu3": {"vocabulary_map": {"<image>": 100, "<|extra_200|>": 101}
             | {f"<|visual token {i:06d}|>": i for i in range(10, 90)}},
    "ernie4_5_vl_moe_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                 "mrope_section": [3, 3, 2]}},
    "esm": {"vocab_size": 128},
    "esmc": {"num_key_value_heads": 4},
    "fun_asr_nano_adaptor": {"intermediate_size": 16},
    "gemma4_text": {"global_head_dim": 32},
    "glm5_next_text": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "granite4_vision": {"deepstack_layer_map": [[0, 0], [1, 1]], "spatial_target_layers": [0, 0, 1, 1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "mistral_large4_text": {"kv_source_layers": [0, 0, 2, 3]},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
                       "indexer_budget": 8, "indexer_compress_ratio": 2},
    "reformer": {"axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 48]},
    "seggpt": {"num_hidden_layers": 4, "merge_index": 1, "intermediate_hidden_state_indices": [2, 3]},
    "vitmatte": {"fusion_hidden_sizes": [64, 32, 16, 8]},
}  # fmt: skip
