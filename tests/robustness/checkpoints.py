"""Tiny real checkpoints, as save_pretrained writes them, held in memory as {file name: bytes}.

Each is a model of one layer with a small tokenizer or image processor, so that a load and a run
take some 50 ms.
"""

import contextlib
import io
import string
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
)

Files = dict[str, bytes]

TEXT = "the train left the station on time"
_WORDS = [*TEXT.split(), "a", "bank", "river", "money"]
_PICTURE = Image.radial_gradient("L").resize((12, 12)).convert("RGB")

# What each of them reads.
READS = {
    "bert": {"text": TEXT},
    "gpt2": {"text": TEXT},
    "llama": {"text": TEXT},
    "t5": {"text": TEXT, "target": "the bank"},
    "vit": {"image": _PICTURE},
}


def checkpoints(folder: Path) -> dict[str, Files]:
    """Return the files of a checkpoint of each family, and of one in shards."""
    torch.manual_seed(0)
    made = {}
    for name, (model, beside) in _made().items():
        for shards, size in (("", "1GB"), (" in shards", "5KB")):
            place = folder / f"{name}{shards}"
            # Where a test listens to the loggers of transformers, nothing is said.
            with contextlib.redirect_stderr(io.StringIO()):
                model.save_pretrained(place, max_shard_size=size)
                beside.save_pretrained(place)
            made[name + shards] = {path.name: path.read_bytes() for path in place.iterdir()}
    return made


def _made() -> dict[str, tuple[PreTrainedModel, PreTrainedTokenizerFast | ViTImageProcessorPil]]:
    letters = [*string.ascii_lowercase]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(_WORDS), *letters]
    of_bert = {piece: n for n, piece in enumerate([*pieces, *(f"##{each}" for each in letters)])}
    of_decoders = {piece: n for n, piece in enumerate(["<s>", "</s>", "Ġ", *letters])}
    unigrams = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("▁", -2.0)]
    unigrams += [(f"▁{word}", -3.0) for word in dict.fromkeys(_WORDS)]
    unigrams += [(letter, -5.0) for letter in letters]
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    size |= {"intermediate_size": 24}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "vocab_size": len(of_decoders)}
    byte_level = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    merges = [("t", "h"), ("th", "e")]
    of_decoders |= {"".join(pair): len(of_decoders) + n for n, pair in enumerate(merges)}
    ends["vocab_size"] = len(of_decoders)
    return {
        "bert": (
            BertModel(BertConfig(vocab_size=len(of_bert), max_position_embeddings=40, **size)),
            BertTokenizer(vocab=of_bert),
        ),
        "gpt2": (
            GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=40, **ends)),
            _fast(models.BPE(of_decoders, merges), *byte_level),
        ),
        "llama": (
            LlamaForCausalLM(
                LlamaConfig(num_key_value_heads=1, max_position_embeddings=40, **size, **ends)
            ),
            _fast(models.BPE(of_decoders, merges), *byte_level),
        ),
        "t5": (
            T5ForConditionalGeneration(
                T5Config(
                    d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
                    vocab_size=len(unigrams), decoder_start_token_id=0,
                )
            ),
            _fast(
                models.Unigram(unigrams, unk_id=2),
                pre_tokenizers.Metaspace(),
                decoders.Metaspace(),
                pad_token="<pad>", unk_token="<unk>",
            ),
        ),
        "vit": (
            ViTModel(ViTConfig(image_size=8, patch_size=4, **size)),
            ViTImageProcessorPil(size={"height": 8, "width": 8}),
        ),
    }  # fmt: skip


def _fast(model, before, decoder, **tokens) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = before, decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", **tokens)
