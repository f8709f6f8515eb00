"""What the files of a checkpoint may say that is not so: data for `mutants`."""
# ruff: noqa: E501  a table of many short values, read across

NUMBERS = [0, 1, -1, 2, 3, 7, 15, 17, 64, 4096, 2**31, 2**63, 2**64, 10**12, -(10**12), 10**400]
NUMBERS += [0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")]
NAMES = ["", "gelu", "relu", "no-such-name", "float16", "bfloat16", "float64", "int8", "complex64"]
NAMES += ["torch.float16", "float8_e4m3fn", "auto", "None", "../outside", "/etc/passwd", "\0", "é"]
NAMES += ["os.system", "__import__('os')", "{{ 7 * 7 }}", "%s%n", "\ud800", "x" * 5000, "eager"]
NAMES += ["linear", "default", "yarn", "longrope", "dynamic", "llama3", "relative_key", "causal"]
OTHERS = [None, True, False, [], {}, [[]], [1, 2], ["a", None], {"a": 1}, {"0": {"b": []}}]
OTHERS += [[0] * 1000, {"rope_type": "yarn"}, {"rope_type": "default", "rope_theta": "x"}]

NAMED = {
    "config.json": {
        "auto_map": [{"AutoConfig": "code.C", "AutoModel": "code.M"}, "code.M", [], {"AutoModel": 3}],
        "architectures": [["BertModel"], ["GPT2LMHeadModel"], ["AutoModel"], ["pipeline"], [3], "BertModel"],
        "rope_scaling": [{"type": "linear", "factor": 0}, {"rope_type": "yarn", "factor": "x"}, 3],
        "rope_parameters": [{"rope_type": "longrope"}, {"rope_theta": 0, "rope_type": "default"}],
        "quantization_config": [
            {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "gptq", "bits": 4},
            {"quant_method": "no-such"}, {"quant_method": "fp8"}, {"quant_method": "torchao"}, 3,
        ],
        "dtype": ["float16", "bfloat16", "float64", "int8", "no-such", 3, {"": "float16"}, "auto"],
        "torch_dtype": ["float16", "float8_e4m3fn", "complex64", "os"],
        "attn_implementation": ["flash_attention_2", "sdpa", "owner/kernel", 3, {"": "eager"}],
        "transformers_weights": ["../outside/model.safetensors", "/etc/passwd", 3],
        "num_labels": [10**12, -1, "many", 10**5], "id2label": [{"x": "y"}, 3, {"0": 0}],
        "num_hidden_layers": [10**12, 10**7, 1000, 2, 0, -3, "1", 1.5, True, None],
        "n_layer": [10**12, 2], "num_layers": [10**12, 2], "hidden_size": [10**12, 15, 17, -16, 10**6],
        "n_embd": [10**12, 15, 17], "d_model": [10**12, 15], "vocab_size": [10**12, 10**9, 3, 0, -1],
        "intermediate_size": [10**12, 10**9, 1], "max_position_embeddings": [10**12, 10**6, 1, 3],
        "n_positions": [10**12, 10**6, 3], "num_attention_heads": [10**12, 3, 0, 16, 32, 1, -2],
        "num_key_value_heads": [10**12, 3, 0, 2], "head_dim": [10**12, 3, 0, 7], "d_kv": [10**12, 7],
        "layer_types": [["full_attention"] * 3, ["no-such"], ["sliding_attention"], 3, []],
        "sliding_window": [1, 0, -1, 10**12], "text_config": [{}, {"hidden_size": 10**12}, 3],
        "is_decoder": [True], "add_cross_attention": [True], "is_encoder_decoder": [True, False, "x"],
        "return_dict": [False], "use_return_dict": [False], "torchscript": [True],
        "output_attentions": [True], "output_hidden_states": [True], "use_cache": [False],
        "chunk_size_feed_forward": [1, 3, -1, 10**12], "pruned_heads": [{"0": [0, 1]}, {"9": [0]}, 3],
        "decoder_start_token_id": [10**12, -1, None, "x"], "pad_token_id": [10**12, -5, 99, [0]],
        "problem_type": ["x"], "_name_or_path": ["../outside", 3], "name_or_path": ["/etc", 3],
        "image_size": [10**12, 0, 4, [8, 8], "x"], "patch_size": [0, 3, 10**12, -4],
        "base_model_tp_plan": [{"*": "colwise"}], "tie_word_embeddings": [True, False, 3],
        "relative_attention_num_buckets": [0, 1, 10**12], "_commit_hash": [3], "model_type": [3, ""],
        "hidden_act": ["no-such", 3, "quick_gelu"], "layer_norm_eps": [-1, "x", float("nan")],
    },
    "tokenizer_config.json": {
        "auto_map": [{"AutoTokenizer": ["code.T", None]}, "code.T", 3],
        "tokenizer_class": ["no-such", "BertTokenizer", "T5Tokenizer", "PreTrainedModel", 3, None, "code.T"],
        "model_max_length": [0, -1, 3, 10**30, "x", None, 10**12], "trust_remote_code": [True],
        "tokenizer_file": ["../outside/tokenizer.json", "/etc/passwd", 3], "subfolder": ["../outside"],
        "vocab_file": ["/etc/passwd", 3], "padding_side": ["left", "no-such", 3],
        "cls_token": [None, 3, {"content": "x"}, "", "the"], "pad_token": [None, "", "no-such"],
        "added_tokens_decoder": [
            {"10000000": {"content": "far"}}, {"-1": {"content": "x"}}, {"x": {}}, {"0": 3},
            {"3": {"content": "", "special": True}}, 3, {"9": {"content": "bank", "special": True}},
        ],
        "extra_special_tokens": [{"a": "b"}, ["a"], 3], "additional_special_tokens": [["x"], 3, [3]],
        "chat_template": ["{% for x in range(10**12) %}{% endfor %}", 3, {"a": "b"}],
        "local_files_only": [False], "self": [1], "cls": [1], "name_or_path": ["../outside"],
        "truncation_side": ["no-such"], "clean_up_tokenization_spaces": ["x"], "use_fast": [False],
        "backend": ["x", "sentencepiece", "custom"], "split_special_tokens": [3], "mask_token": [3],
        "add_prefix_space": [3], "do_lower_case": ["x"], "tokenizer_object": ["x"], "vocab": [{}, 3],
        "processor_class": ["AutoProcessor", 3], "unk_token": [None, "no-such", 3], "_from_auto": [1],
    },
    "tokenizer.json": {
        "truncation": [{"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}],
        "padding": [
            {"strategy": {"Fixed": n}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
             "pad_type_id": 0, "pad_token": "x"} for n in (50, 10**9, 10**12)
        ],
        "normalizer": [
            {"type": "Replace", "pattern": {"Regex": "(t+)+$"}, "content": "x" * 99},
            {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "NFKD"},
            {"type": "Prepend", "prepend": "x" * 10**5}, {"type": "no-such"},
            {"type": "Replace", "pattern": {"String": ""}, "content": "abc"},
        ],
        "pre_tokenizer": [
            {"type": "Split", "pattern": {"Regex": "(a|a)*("}, "behavior": "Isolated", "invert": False},
            {"type": "Split", "pattern": {"Regex": "(.*)*x"}, "behavior": "Isolated", "invert": True},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}, None,
            {"type": "FixedLength", "length": 0}, {"type": "Sequence", "pretokenizers": []},
        ],
        "post_processor": [
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 10**6}}],
             "pair": [], "special_tokens": {"x": {"id": "x", "ids": [10**9], "tokens": ["x"]}}},
            {"type": "BertProcessing", "sep": ["[SEP]", 99999], "cls": ["[CLS]", 2]}, None,
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        ],
        "decoder": [{"type": "Strip", "content": "x", "start": 10**9, "stop": 0}, None, 3],
        "added_tokens": [
            [], 3, [{"id": 10**8, "content": "bank", "special": False, "single_word": False,
                     "lstrip": False, "rstrip": False, "normalized": False}],
        ],
        "version": ["2.0", 3],
    },
    "generation_config.json": {
        "custom_generate": ["code", "../outside"], "max_new_tokens": [10**12, "x"], "num_beams": [0, 10**6],
        "eos_token_id": ["x", [10**12]], "transformers_version": [3], "cache_implementation": ["x"],
        "assistant_model": ["../outside"], "auto_map": [{"AutoModel": "code.M"}],
    },
    "preprocessor_config.json": {
        "size": [{"height": 10**6, "width": 10**6}, {"height": 0, "width": 8}, 3, {"shortest_edge": 10**9},
                 {"height": -8, "width": 8}, {"longest_edge": 8}, 10**12, None, "x", {}],
        "auto_map": [{"AutoImageProcessor": "code.P"}, 3],
        "image_processor_type": ["no-such", "CLIPImageProcessor", "code.P", 3, "ViTFeatureExtractor"],
        "image_mean": [[0.5], [float("nan")] * 3, [0.5] * 4, "x", None], "image_std": [[0, 0, 0], [1e-300] * 3],
        "rescale_factor": [float("inf"), 0, "x", None], "do_resize": [False, "x"], "resample": [99, "x", -1],
        "do_rescale": [False], "do_normalize": [False], "processor_class": ["CLIPProcessor", 3],
        "feature_extractor_type": ["no-such"], "do_center_crop": [True], "crop_size": [10**9, {"height": 10**6, "width": 3}],
        "data_format": ["x", "channels_last"], "input_data_format": ["x", "channels_first"],
        "do_pad": [True], "pad_size": [{"height": 10**6, "width": 10**6}], "return_tensors": ["np", "x"],
        "disable_grouping": [False], "device": ["cuda", "x"], "do_convert_rgb": [True, "x"],
    },
    "model.safetensors.index.json": {
        "weight_map": [{}, 3, {"x": "../outside/model.safetensors"}, {"x": "/etc/passwd"}, {"x": 3}],
        "metadata": [3, {"total_size": -1}, None],
    },
}  # fmt: skip

BESIDE = [
        "adapter_config.json", "adapter_model.safetensors", "special_tokens_map.json", "added_tokens.json",
        "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model", "chat_template.jinja",
        "chat_template.json", "processor_config.json", "preprocessor_config.json", "generation_config.json",
        "quantization_config.json", "quantize_config.json", "model.safetensors.index.json", "tekken.json",
        "pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "training_args.bin",
        "custom_generate/generate.py", "code.py", "__init__.py", "modeling.py", "additional_chat_templates/a.jinja",
        "model.safetensors.json", "tokenizer.json.bak", "video_preprocessor_config.json", "model.fp16.safetensors",
    ]  # fmt: skip
