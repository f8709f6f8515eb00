"""Tiny random models of real families, with a small tokenizer; each is created once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "of", "in", "on", "at", ",", ".",
    "!", "?", "#", "$", "%", "{", "}", "<", ">", "/", "\\", "[", "]", "(", ")", "=", "0", "1",
    "2", "train", "left", "station", "home", "went", "bank", "mud", "cash", "river", "money",
    "full", "was", "##s", "##ed", "script", "frac",
]  # fmt: skip
_SMALL = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.2,
    "max_position_embeddings": 64,
}
_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_VISION = {
    **{name: value for name, value in _SMALL.items() if name[0] in "hni"},
    "image_size": 16,
    "patch_size": 4,
}


def tokenizer(more: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Return a word-piece tokenizer of a few words, and of letters that spell all others."""
    letters = [prefix + chr(code) for code in range(97, 123) for prefix in ("", "##")]
    entries = {word: code for code, word in enumerate(dict.fromkeys((*WORDS, *letters, *more)))}
    pieces = Tokenizer(models.WordPiece(entries, unk_token="[UNK]", max_input_chars_per_word=100))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    specials = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    return PreTrainedTokenizerFast(tokenizer_object=pieces, **specials)


@cache
def saved(family: str) -> Path:
    """Return the folder of a valid tiny model, which is created once."""
    place = Path(tempfile.mkdtemp(prefix="attnviz-models-")) / family
    torch.manual_seed(0)
    small = {**_SMALL, "vocab_size": len(tokenizer())}
    model, reader = FAMILIES[family](small)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and any(part in name for part in ("q_proj", "k_proj", "query", "key")):
            torch.nn.init.normal_(weight, 0.0, 0.5)  # attention that is not uniform
    model.save_pretrained(place)
    for one in reader:
        one.save_pretrained(place)
    return place


def _family(kind: str, ending: str = "Model", **more: Any) -> Callable[[dict[str, Any]], Any]:
    def make(small: dict[str, Any]) -> Any:
        config = getattr(transformers, f"{kind}Config")(**{**small, **_IDS, **more})
        return getattr(transformers, f"{kind}{ending}")(config), [tokenizer()]

    return make


def _t5(small: dict[str, Any]) -> Any:
    config = transformers.T5Config(
        vocab_size=small["vocab_size"], d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=3,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), [tokenizer()]


def _vit(_: dict[str, Any]) -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    reader = ViTImageProcessorPil(size={"height": 16, "width": 16})
    return transformers.ViTModel(transformers.ViTConfig(**_VISION)), [reader]


def _resnet(_: dict[str, Any]) -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1])
    reader = ViTImageProcessorPil(size={"height": 32, "width": 32})
    return transformers.ResNetModel(config), [reader]


def _wav2vec2(small: dict[str, Any]) -> Any:
    config = transformers.Wav2Vec2Config(
        **{name: small[name] for name in small if name[0] in "hni"}, conv_dim=(8,) * 7,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return transformers.Wav2Vec2Model(config), [transformers.Wav2Vec2FeatureExtractor()]


FAMILIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bert": _family("Bert"),
    "gpt": _family("GPT2", "LMHeadModel"),
    "llama": _family("Llama", "ForCausalLM", num_key_value_heads=1),
    "fnet": _family("FNet", num_hidden_layers=1),
    "t5": _t5,
    "vit": _vit,
    "resnet": _resnet,
    "wav2vec2": _wav2vec2,
}
