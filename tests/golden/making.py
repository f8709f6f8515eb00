"""One result of each type that can be saved, written once by the attnviz of before.

The files in data/saved stay as they are: that they load is what is tested. One that is missing is
made by ATTNVIZ_GOLDEN=write.
"""

from dataclasses import fields, is_dataclass, replace
from functools import cache
from hashlib import sha256

import torch
from families import tiny
from media import RATE, chirp, picture, seeing

import attnviz
from golden.frozen import DATA

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
def read(family="bert", text=TEXT, **how):
    return attnviz.attend(text, model=model(family), **how)


@cache
def seen(family):
    hears = family == "wav2vec2"
    given = {"audio": chirp(0.5), "sampling_rate": RATE} if hears else {"image": picture()}
    return attnviz.attend(model=seeing(family, tokenizer()), **given)


def some(result, *which):
    """Keep some of the records of a result, for a small file."""
    return replace(result, records=tuple(result.records[n] for n in which))


def small(result):
    """Keep of what was compared the first stages, for a small file."""
    if isinstance(result, attnviz.AgreementReport):
        return replace(result, checks=result.checks[:4])
    changed = {}
    for field in fields(result):
        held = getattr(result, field.name)
        if field.name == "agreement":
            changed[field.name] = small(held)
        elif field.name == "agreements":
            changed[field.name] = tuple(map(small, held))
    return replace(result, **changed)


def two_sides():
    return read("t5", text="the train left", target="le train")


def streamed():
    return attnviz.attend(
        TEXT + " on time", model=model("mistral"), mode="streamed", cells=4, top=2, exact=1
    )


MAKERS = {
    "result-bert": lambda: some(read(), 0),
    "result-grouped-clipped": lambda: some(read("dbrx"), 0),
    "result-gated": lambda: some(read("afmoe"), 1),
    "result-latent": lambda: some(read("deepseek-v3"), 0),
    "result-factors": lambda: some(read("bitnet"), 0),
    "result-cross": lambda: some(two_sides().stack("cross"), 0),
    "result-image": lambda: some(seen("vit"), 1),
    "result-audio": lambda: some(seen("wav2vec2"), 0),
    "result-streamed": streamed,
    "record": lambda: read("dbrx").records[1],
    "streamed-attention": lambda: streamed().streamed[0],
    "summary": lambda: streamed().streamed[2].summary,
    "report": lambda: read("dbrx").agreement,
    "map": lambda: attnviz.attention_map(read(), layer=1, head=2, special="remove"),
    "map-image": lambda: attnviz.attention_map(seen("vit"), layer=1, head=2),
    "map-audio": lambda: attnviz.attention_map(seen("wav2vec2"), layer=1, head=2),
    "map-pooled": lambda: attnviz.attention_map(streamed(), layer=1, head=2),
    "map-part": lambda: attnviz.attention_map(
        streamed(), layer=1, head=2, rows=slice(1, 4), columns=slice(0, 4)
    ),
    "maps": lambda: attnviz.head_maps(read()),
    "steps": lambda: attnviz.steps(read("qwen3"), layer=1, head=2, word="train"),
    "senses": lambda: attnviz.senses("bank", BANK, model=model()),
    "shift": lambda: attnviz.shift("bank", "The bank was full of {mud|cash}.", model=model()),
    "shift-causally": lambda: attnviz.shift(
        "apple", "I love apple phones", verify_causally=True, model=model(),
        toward={"tech": "I love computers", "fruit": "I love pears"},
    ),
    "census": lambda: attnviz.survey(CORPUS, model=model()),
    "comparison": lambda: attnviz.compare(CORPUS, models=(model(), model(seed=1))),
    "example": lambda: attnviz.example("phones"),
}  # fmt: skip


def make_missing():
    """Write what is not there yet."""
    SAVED.mkdir(parents=True, exist_ok=True)
    for name, make in MAKERS.items():
        path = SAVED / f"{name}.safetensors"
        if not path.exists():
            attnviz.save_result(make() if name == "report" else small(make()), path)


def described(value):
    """Return all that a result holds in types that JSON knows; of many numbers their digest."""
    if isinstance(value, torch.Tensor):
        return _digest(value)
    if is_dataclass(value):
        inner = {field.name: described(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **inner}
    if isinstance(value, dict):
        return {key: described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > 2 and all(isinstance(each, float) for each in value):
            return _digest(torch.tensor(value, dtype=torch.float64))
        return [described(each) for each in value]
    return value


def _digest(tensor):
    kind, shape = str(tensor.dtype).removeprefix("torch."), "×".join(map(str, tensor.shape))
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{kind} {shape} {sha256(data).hexdigest()[:16]}"
