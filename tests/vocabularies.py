"""Small tokenizers of many kinds, trained on texts in 24 languages, scripts and notations."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SCRIPTS = {
    "German": "Der Zug fährt über die Brücke – „schön“, süß & weiß.",
    "French": "L’élève a reçu où ça cœur naïf.",
    "Vietnamese": "Tàu đã rời ga đúng giờ.",
    "Turkish": "İstanbul'dan IĞDIR'a ışık",
    "Russian": "Поезд ушёл со станции вовремя.",
    "Greek": "Το τρένο έφυγε νωρίς, ο Σίσυφος.",
    "Georgian": "მატარებელმა დატოვა სადგური",
    "Armenian": "Գնացքը լքեց կայարանը",
    "Arabic": "القطار غادر المحطة في الوقت",
    "Hebrew": "הרכבת עזבה את התחנה שָׁלוֹם",
    "Amharic": "ባቡሩ ጣቢያውን ለቅቋል",
    "Hindi": "ट्रेन समय पर स्टेशन से निकली",
    "Bengali": "ট্রেনটি স্টেশন ছেড়েছে",
    "Tamil": "ரயில் நிலையத்தை விட்டு",
    "Thai": "รถไฟออกจากสถานีตรงเวลา",
    "Chinese": "火车准时离开了车站。",
    "Japanese": "列車は時間通りに駅を出た。ｶﾞｷﾞ ㍿",
    "Korean": "기차가 제시간에 역을 떠났다",
    "emoji": "I 👍🏽 love 👨‍👩‍👧‍👦 and 🇩🇪 flags ☀️!",
    "mathematics": "∀x ∈ ℝ: x² ≥ 0, ½ ≠ ∞ … ﬁn",
    "marks": "t̴h̶e̷ c̸a̵t̶ s̷a̴t̶",
    "code": "if (a!=b): return {'x': [1,2]}  # done\n\tpass",
    "addresses": "see https://a.org/?q=1&r=2 or e-mail a.b@c.de",
    "blanks": "a  b\u00a0c\u3000d\u200be\ttab\r\nnew",
}
ENGLISH = "the train left the station on time and nobody noticed that it was early"
RESIDUES = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<mask>"]
_CORPUS = [*SCRIPTS.values()] * 3 + [ENGLISH] * 20


def _fast(tokenizer: Tokenizer, **special: str) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def _byte_level(**options: Any) -> Any:
    """A byte-level BPE as GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if options.get("split"):  # Llama 3
        words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
        split = pre_tokenizers.Sequence([
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])  # fmt: skip
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=not options.get("split"))
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(
        vocab_size=options.get("size", 400), special_tokens=[end], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return _fast(tokenizer, bos_token=end, eos_token=end, unk_token=end, pad_token=end)


def _roberta() -> Any:
    model = json.loads(_byte_level().backend_tokenizer.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        vocabulary[token] = len(vocabulary)
    merges = [tuple(merge) for merge in model["merges"]]
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)


def _unigram() -> Any:
    """A SentencePiece model as T5's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.UnigramTrainer(
            vocab_size=700, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
            show_progress=False,
        ),
    )  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return _fast(tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>")


def _byte_fallback() -> Any:
    """A BPE that writes what it lacks as bytes, as Llama 2's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    special = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([ENGLISH], trainer)
    return _fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _protein() -> Any:
    folder = Path(tempfile.mkdtemp())
    (folder / "vocab.txt").write_text("\n".join(RESIDUES), encoding="utf-8")
    return transformers.EsmTokenizer(str(folder / "vocab.txt"))


MAKERS: dict[str, Callable[[], Any]] = {
    "gpt2": _byte_level,
    "llama3": lambda: _byte_level(split=True, size=600),
    "roberta": _roberta,
    "unigram": _unigram,
    "byte-fallback": _byte_fallback,
    "byt5": transformers.ByT5Tokenizer,
    "perceiver": transformers.PerceiverTokenizer,
    "canine": transformers.CanineTokenizer,
    "esm": _protein,
}


@cache
def vocabulary(kind: str) -> Any:
    """Return the tokenizer of a kind."""
    return MAKERS[kind]()
