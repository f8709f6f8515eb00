"""Ways to spoil a checkpoint, each drawn from a seed: bytes, JSON, tensors, files beside.

A checkpoint is {file name: bytes}; where something else than a file is to lie in its place, it is
a `Path` (a link to it), or what `os` calls that makes it.
"""

import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from transformers import CONFIG_MAPPING

Spoilt = dict[str, Any]
_INDEX = "model.safetensors.index.json"
OUTSIDE = "outside"  # beside every checkpoint: a folder with files that none may read
CODE = "from pathlib import Path\n(Path(__file__).parent.parent / 'it-ran').touch()\n"

_NUMBERS = [0, 1, -1, 2, 3, 7, 15, 17, 64, 4096, 2**31, 2**63, 2**64, 10**12, -(10**12), 10**400]
_NUMBERS += [0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")]
_NAMES = ["", "gelu", "relu", "no-such-name", "float16", "bfloat16", "float64", "int8", "complex64"]
_NAMES += ["torch.float16", "float8_e4m3fn", "auto", "None", "../" + OUTSIDE, "/etc/passwd", "\0", "é"]
_NAMES += ["os.system", "__import__('os')", "{{ 7 * 7 }}", "%s%n", "\ud800", "x" * 5000, "eager"]
_NAMES += ["linear", "default", "yarn", "longrope", "dynamic", "llama3", "relative_key", "causal"]
_OTHERS = [None, True, False, [], {}, [[]], [1, 2], ["a", None], {"a": 1}, {"0": {"b": []}}]
_OTHERS += [[0] * 1000, {"rope_type": "yarn"}, {"rope_type": "default", "rope_theta": "x"}]

_NAMED = {
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

_TYPES = sorted(CONFIG_MAPPING)
_DTYPES = ["F32", "F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "F4", "X9", 3]


def spoil(files: dict[str, bytes], random: Random) -> tuple[str, Spoilt]:
    """Return what was done to a checkpoint, in two or three words, and its files afterwards."""
    spoilt: Spoilt = dict(files)
    kinds = [kind for kind in _KINDS if ".json" not in kind or _INDEX in kind and _INDEX in files or kind in files]
    first, second = random.choices(kinds, [_KINDS[kind][1] for kind in kinds], k=2)
    _KINDS[first][0](spoilt, random)
    if random.random() < 0.95:
        return first, spoilt
    _KINDS[second][0](spoilt, random)  # two faults may hide each other
    return "two at once", spoilt


def write(spoilt: Spoilt, folder: Path) -> None:
    """Write a spoilt checkpoint into a new folder."""
    folder.mkdir()
    for name, content in spoilt.items():
        place = folder / name
        place.parent.mkdir(exist_ok=True, parents=True)
        if isinstance(content, bytes):
            place.write_bytes(content)
        elif isinstance(content, Path):
            place.symlink_to(content)
        else:
            content(place)


# --- JSON


def _json(name: str, spoilt: Spoilt, random: Random) -> None:
    """Spoil a JSON file: a value, a key, a named setting, or its bytes."""
    if not isinstance(spoilt.get(name), bytes):
        return
    try:
        content = json.loads(spoilt[name])
    except ValueError:
        return
    places = [*_places(content)]
    how = random.random()
    if how < 0.45 and name in _NAMED or not places:
        key = random.choice([*_NAMED.get(name, {"a": [1]})])
        content[key] = random.choice(_NAMED.get(name, {key: [1]})[key])
    elif how < 0.75:
        holder, key = random.choice(places)
        holder[key] = _nasty(random)
    elif how < 0.85:
        holder, key = random.choice(places)
        del holder[key]
    elif how < 0.9:
        (holder, key), (other, its) = random.choice(places), random.choice(places)
        holder[key] = json.loads(json.dumps(other[its]))
    else:
        spoilt[name] = _bytes(spoilt[name], random)
        return
    # What cannot be encoded is escaped, as json does by default.
    spoilt[name] = json.dumps(content).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the holder and the key of every value, however deep; few of the same kind of thing."""
    keys = [*content] if isinstance(content, dict) else range(len(content))
    for key in keys[:40]:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])


def _nasty(random: Random) -> Any:
    value = random.choice(random.choice([_NUMBERS, _NUMBERS, _NAMES, _OTHERS]))
    deep: Any = 1
    if random.random() < 0.02:
        for _ in range(900):  # json reads no deeper than the interpreter goes
            deep = [deep]
        return deep
    return json.loads(json.dumps(value))


def _bytes(content: bytes, random: Random) -> bytes:
    """Flip bits, cut, repeat or add."""
    at = random.randrange(len(content) or 1)
    how = random.randrange(7)
    if how < 3:
        changed = bytearray(content)
        for _ in range(random.choice([1, 1, 2, 8])):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        return bytes(changed)
    if how == 3:
        return content[:at]
    if how == 4:
        return content[:at] + random.randbytes(random.choice([1, 8, 100])) + content[at:]
    if how == 5:
        return content[:at] + content[at + random.choice([1, 8, 100]) :]
    return random.choice([b"", b"{}", b"[]", b"null", b"\xef\xbb\xbf" + content, b"[" * 10**5, b"0"])


def _model_type(spoilt: Spoilt, random: Random) -> None:
    if isinstance(spoilt["config.json"], bytes):
        config = json.loads(spoilt["config.json"])
        config["model_type"] = random.choice(_TYPES)
        if random.random() < 0.8:
            config.pop("architectures", None)
        spoilt["config.json"] = json.dumps(config).encode()


# --- weights


def _header(spoilt: Spoilt, random: Random) -> None:
    """Have the header of a weights file lie."""
    name, header, body = _weights(spoilt, random)
    names = [each for each in header if each != "__metadata__"]
    one, other = random.choice(names), random.choice(names)
    how = random.randrange(12)
    if how == 0:
        header[one]["dtype"] = random.choice(_DTYPES)
    elif how == 1:
        header[one]["shape"] = random.choice([[], [0], [-1], [2**63], [10**12, 10**12], "x", [1]])
    elif how == 2:
        header[one]["shape"] = header[one]["shape"][::-1]
    elif how == 3:
        header[one]["data_offsets"] = random.choice([[0, 0], [0, 2**63], [-1, 4], [8, 4], [0], None])
    elif how == 4:  # two names for the same bytes
        header[one]["data_offsets"] = header[other]["data_offsets"]
    elif how == 5:  # two tensors of the same shape change places
        same = [each for each in names if header[each]["shape"] == header[one]["shape"]]
        other = random.choice(same)
        header[one], header[other] = header[other], header[one]
    elif how == 6:
        header[random.choice(["x", one.upper(), f"a.{one}", "\0", "x" * 9999, ""])] = header.pop(one)
    elif how == 7:
        del header[one]
    elif how == 8:
        header["__metadata__"] = random.choice([None, {"format": "tf"}, {"format": "x"}, {}, 3, {"a": {}}])
    elif how == 9:
        header[random.choice(["x", "lm_head.weight", "encoder.layer.7.x"])] = header[one]
    elif how == 10:
        end = len(body)
        header["more"] = {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]}
        body += random.choice([b"\0" * 8, b"", b"\0" * 9])
    elif how == 11:
        header[one] = random.choice([None, 3, {}, "x", []])
    spoilt[name] = _assembled(header, body)


def _length(spoilt: Spoilt, random: Random) -> None:
    """Have the length of the header lie."""
    name, header, body = _weights(spoilt, random)
    whole = _assembled(header, body)
    length = struct.unpack("<Q", whole[:8])[0]
    lie = random.choice([0, 1, length - 1, length + 1, length * 2, 10**8, 10**12, 2**63, 2**64 - 1])
    spoilt[name] = struct.pack("<Q", lie) + whole[8:]


def _numbers(spoilt: Spoilt, random: Random) -> None:
    """Change numbers of one tensor: NaN, infinity, huge, zero, noise."""
    name, header, body = _weights(spoilt, random)
    one = random.choice([each for each in header if each != "__metadata__"])
    start, end = header[one]["data_offsets"]
    start += 4 * random.randrange((end - start) // 4)
    end = random.choice([start + 4, end])
    value = random.choice([float("nan"), float("inf"), -float("inf"), 1e38, 1e20, -1e9, 0.0, 1e-42, 1e4])
    changed = struct.pack("<f", value) * ((end - start) // 4)
    changed = random.randbytes(len(changed)) if random.random() < 0.2 else changed
    spoilt[name] = _assembled(header, body[:start] + changed + body[end:])


def _dtype(spoilt: Spoilt, random: Random) -> None:
    """Store all tensors in another dtype, whose bytes are there."""
    for name in [*spoilt]:
        if name.endswith(".safetensors") and isinstance(spoilt[name], bytes):
            header, body = _read(spoilt[name])
            dtype, size = random.choice([("F16", 2), ("BF16", 2), ("F64", 8), ("I8", 1), ("F8_E5M2", 1)])
            at, parts = 0, []
            for each in sorted(header.keys() - {"__metadata__"}):
                start, end = header[each]["data_offsets"]
                length = (end - start) // 4 * size
                header[each] |= {"dtype": dtype, "data_offsets": [at, at + length]}
                parts.append((body[start:end] * 2)[:length])
                at += length
            spoilt[name] = _assembled(header, b"".join(parts))


def _of_weights(spoilt: Spoilt, random: Random) -> None:
    name = _weights_name(spoilt, random)
    spoilt[name] = _bytes(spoilt[name], random) if isinstance(spoilt[name], bytes) else b""


def _weights_name(spoilt: Spoilt, random: Random) -> str:
    return random.choice(sorted(name for name in spoilt if name.endswith(".safetensors")))


def _weights(spoilt: Spoilt, random: Random) -> tuple[str, dict[str, Any], bytes]:
    name = _weights_name(spoilt, random)
    try:
        return name, *_read(spoilt[name])
    except (TypeError, ValueError, struct.error):  # spoilt already
        return name, {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4


def _read(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _assembled(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


# --- files


class _Pickled:
    def __reduce__(self) -> Any:
        return exec, (CODE.replace("__file__", "'x/y'"),)


def _beside(spoilt: Spoilt, random: Random) -> None:
    """Lay a file beside that a careless loader reads, or runs."""
    anything = random.choice([b"{}", b"{", b"3", b'{"x": 3}', random.randbytes(50), CODE.encode()])
    name = random.choice([
        "adapter_config.json", "adapter_model.safetensors", "special_tokens_map.json", "added_tokens.json",
        "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model", "chat_template.jinja",
        "chat_template.json", "processor_config.json", "preprocessor_config.json", "generation_config.json",
        "quantization_config.json", "quantize_config.json", "model.safetensors.index.json", "tekken.json",
        "pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "training_args.bin",
        "custom_generate/generate.py", "code.py", "__init__.py", "modeling.py", "additional_chat_templates/a.jinja",
        "model.safetensors.json", "tokenizer.json.bak", "video_preprocessor_config.json", "model.fp16.safetensors",
    ])  # fmt: skip
    spoilt[name] = pickle.dumps(_Pickled()) if name.endswith((".bin", ".h5")) else anything


def _no_file(spoilt: Spoilt, random: Random) -> None:
    del spoilt[random.choice(sorted(spoilt))]


def _something_else(spoilt: Spoilt, random: Random) -> None:
    """Put something else in the place of a file."""
    name = random.choice(sorted(spoilt))
    outside = Path(f"../{OUTSIDE}") / ("model.safetensors" if name.startswith("model") else name)
    spoilt[name] = random.choice([
        os.mkfifo, os.mkdir, Path(name), Path("no-such-file"), Path("/dev/zero"), Path("/dev/full"),
        Path("/proc/self/environ"), outside, pickle.dumps(_Pickled()), Path("."), Path("/dev/stdin"),
    ])  # fmt: skip


def _swapped(spoilt: Spoilt, random: Random) -> None:
    one, other = random.choice(sorted(spoilt)), random.choice(sorted(spoilt))
    spoilt[one], spoilt[other] = spoilt[other], spoilt[one]


def _foreign(spoilt: Spoilt, random: Random) -> None:
    """Point a shard out of the folder."""
    name = _INDEX
    if isinstance(spoilt.get(name), bytes):
        try:
            index = json.loads(spoilt[name])
            keys = [*index["weight_map"]]
        except (ValueError, TypeError, KeyError):
            return
        way = random.choice(["../outside/model.safetensors", "/etc/passwd", "..", "", "./x", "\0", "~/x", "a/b"])
        for key in keys if random.random() < 0.5 else [random.choice(keys)]:
            index["weight_map"][key] = way
        spoilt[name] = json.dumps(index).encode()


_KINDS: dict[str, tuple[Callable[[Spoilt, Random], None], int]] = {
    "config.json": (lambda files, random: _json("config.json", files, random), 22),
    "model_type": (_model_type, 3),
    "tokenizer.json": (lambda files, random: _json("tokenizer.json", files, random), 18),
    "tokenizer_config.json": (lambda files, random: _json("tokenizer_config.json", files, random), 10),
    "generation_config.json": (lambda files, random: _json("generation_config.json", files, random), 3),
    "preprocessor_config.json": (lambda files, random: _json("preprocessor_config.json", files, random), 6),
    "model.safetensors.index.json": (lambda files, random: _json("model.safetensors.index.json", files, random), 4),
    f"shards elsewhere in {_INDEX}": (_foreign, 3),
    "bytes of weights": (_of_weights, 9),
    "header of weights": (_header, 9),
    "length of header": (_length, 2),
    "numbers of weights": (_numbers, 6),
    "dtype of weights": (_dtype, 2),
    "a file beside": (_beside, 6),
    "a file missing": (_no_file, 2),
    "no plain file": (_something_else, 3),
    "files swapped": (_swapped, 1),
}  # fmt: skip
