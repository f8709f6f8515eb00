"""One saved result of each type, written by the version before the restructuring.

The files in data/saved never change, but that types and fields have the names of the first release:
the tests check that they still load. ATTNVIZ_GOLDEN=write
creates missing files.
"""

from dataclasses import fields, is_dataclass, replace
from functools import cache
from hashlib import sha256

import torch
from families import tiny
from media import RATE, chirp, picture, seeing

import attnviz
from attnviz.results.base import stored
from golden.goldens import DATA

SAVED = DATA / "saved"
TEXT = "the train left the station"
CORPUS = (DATA / "corpus.txt").read_text(encoding="utf-8").splitlines()
BANK = {
    "river": ["We sat on the bank of the river.", "The bank was wet.", "A boat left the bank."],
    "money": ["The bank gave a loan.", "She works at the bank.", "The bank was closed on Monday."],
}


@cache
def tokenizer():
    return attnviz.load(device="cpu").tokenizer


@cache
def model(family="bert", seed=0):
    return attnviz.load(tiny(family, seed=seed), tokenizer=tokenizer(), device="cpu")


@cache
def attend(family="bert", text=TEXT, **options):
    return attnviz.attend(text, model=model(family), **options)


@cache
def attend_media(family):
    is_audio = family == "wav2vec2"
    inputs = {"audio": chirp(0.5), "sampling_rate": RATE} if is_audio else {"image": picture()}
    return attnviz.attend(model=seeing(family, tokenizer()), **inputs)


def select_records(result, *indices):
    """Keep some of the records of a result, for a small file."""
    return replace(result, records=tuple(result.records[n] for n in indices))


def shorten_checks(result):
    """Keep the first compared stages, for a small file."""
    if isinstance(result, attnviz.AgreementReport):
        return replace(result, checks=result.checks[:4])
    changed = {}
    for field in fields(result):
        value = getattr(result, field.name)
        if field.name == "agreement":
            changed[field.name] = shorten_checks(value)
        elif field.name == "agreements":
            changed[field.name] = tuple(map(shorten_checks, value))
    return replace(result, **changed)


def streamed():
    return attnviz.attend(
        TEXT + " on time", model=model("mistral"), mode="streamed", cells=4, top=2, exact=1
    )


MAKERS = {
    "result-bert": lambda: select_records(attend(), 0),
    "result-grouped-clipped": lambda: select_records(attend("dbrx"), 0),
    "result-gated": lambda: select_records(attend("afmoe"), 1),
    "result-latent": lambda: select_records(attend("deepseek-v3"), 0),
    "result-factors": lambda: select_records(attend("bitnet"), 0),
    "result-cross": lambda: select_records(
        attend("t5", text="the train left", target="le train").stack("cross"), 0
    ),
    "result-image": lambda: select_records(attend_media("vit"), 1),
    "result-audio": lambda: select_records(attend_media("wav2vec2"), 0),
    "result-streamed": streamed,
    "record": lambda: attend("dbrx").records[1],
    "streamed-attention": lambda: streamed().streamed[0],
    "summary": lambda: streamed().streamed[2].summary,
    "report": lambda: attend("dbrx").agreement,
    "map": lambda: attnviz.attention_map(attend(), layer=1, head=2, special="remove"),
    "map-image": lambda: attnviz.attention_map(attend_media("vit"), layer=1, head=2),
    "map-audio": lambda: attnviz.attention_map(attend_media("wav2vec2"), layer=1, head=2),
    "map-pooled": lambda: attnviz.attention_map(streamed(), layer=1, head=2),
    "map-part": lambda: attnviz.attention_map(
        streamed(), layer=1, head=2, rows=slice(1, 4), columns=slice(0, 4)
    ),
    "maps": lambda: attnviz.head_maps(attend()),
    "steps": lambda: attnviz.steps(attend("qwen3"), layer=1, head=2, word="train"),
    "senses": lambda: attnviz.senses("bank", BANK, model=model()),
    "shift": lambda: attnviz.shift("bank", "The bank was full of {mud|cash}.", model=model()),
    "shift-causally": lambda: attnviz.shift(
        "apple", "I love apple phones", verify_causally=True, model=model(),
        toward={"tech": "My apple computers", "fruit": "My apple pears"},
    ),
    "explain": lambda: attnviz.explain(TEXT, model=model("gpt2")),
    "explain-masked": lambda: attnviz.explain(
        "the [MASK] left the station", target="train", against="bus", reference="mask",
        methods=["partial-split", "gradient-attention"], model=model(),
    ),
    "ablate": lambda: attnviz.ablate(TEXT, target="on", model=model("gpt2")),
    "check": lambda: attnviz.check(attend().weights(), TEXT, model=model()),
    "survey": lambda: attnviz.survey(CORPUS, model=model()),
    "compare": lambda: attnviz.compare(CORPUS, models=(model(), model(seed=1))),
    "example": lambda: attnviz.example("phones"),
}  # fmt: skip


def write_missing():
    """Write the missing files."""
    SAVED.mkdir(parents=True, exist_ok=True)
    for name, make in MAKERS.items():
        path = SAVED / f"{name}.safetensors"
        if not path.exists():
            attnviz.save_result(make() if name == "report" else shorten_checks(make()), path)


def describe(value):
    """Return the contents of a result in JSON types, with a digest for large arrays."""
    if isinstance(value, torch.Tensor):
        return _digest(value)
    if is_dataclass(value):
        inner = {name: describe(item) for name, item in stored(value).items()}
        return {"type": type(value).__name__, **inner}
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > 2 and all(isinstance(item, float) for item in value):
            return _digest(torch.tensor(value, dtype=torch.float64))
        return [describe(item) for item in value]
    return value


def _digest(tensor):
    kind, shape = str(tensor.dtype).removeprefix("torch."), "×".join(map(str, tensor.shape))
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{kind} {shape} {sha256(data).hexdigest()[:16]}"
