"""A call frees its tensors at once: Python's collector of cycles does not count their memory."""

import gc

import pytest
import torch
from families import tiny

import attnviz
from attnviz.attribution.methods import METHODS

TEXT = "the train left the station on time"
CORPUS = ["the train left", "the bank was full of cash", "it was late"]
SENSES = {
    "river": ["the bank was full of mud", "he sat on the bank"],
    "money": ["the bank was full of cash", "the bank was closed"],
}
EXPLAIN = {"methods": list(METHODS)}
SHIFT = {"word": "train", "text": TEXT, "methods": list(METHODS), "verify_causally": True}


def save_and_load(model, folder):
    path = folder / "result.safetensors"
    attnviz.save_result(attnviz.attend(TEXT, model=model), path, force=True)
    return attnviz.load_result(path)


def in_model(name, **inputs):
    """Return the call of a function of `attnviz` with a model."""
    return lambda model, folder: getattr(attnviz, name)(model=model, **inputs)


CALLS = {
    "attend": ("bert", in_model("attend", text=TEXT)),
    "streamed": ("bert", in_model("attend", text=TEXT, mode="streamed")),
    "a file": ("bert", save_and_load),
    "explain a token": ("gpt2", in_model("explain", text=TEXT, **EXPLAIN)),
    "explain a mask": ("bert", in_model("explain", text="the [MASK] left on time", **EXPLAIN)),
    "explain a target": ("t5", in_model("explain", text=TEXT, decoder="it was", **EXPLAIN)),
    "shift": ("bert", in_model("shift", **SHIFT)),
    "shift by experts": ("mixtral", in_model("shift", **SHIFT)),
    "ablate": ("gpt2", in_model("ablate", texts=TEXT)),
    "senses": ("bert", in_model("senses", word="bank", sentences=SENSES)),
    "steps": ("bert", in_model("steps", result=TEXT, layer=1, head=0)),
    "survey": ("bert", in_model("survey", texts=CORPUS)),
    "compare": (
        "bert",
        lambda model, folder: attnviz.compare(CORPUS, models=[model, tiny_model("bert", seed=1)]),
    ),
}


def tiny_model(family, seed=0):
    return attnviz.load(tiny(family, seed=seed), tokenizer=attnviz.load().tokenizer)


@pytest.mark.parametrize("name", CALLS)
def test_no_tensor_is_alive_after_a_call(name, tmp_path):
    family, call = CALLS[name]
    model = tiny_model(family)
    call(model, tmp_path)  # what is loaded, and known of the model, stays
    gc.collect()
    gc.freeze()  # what is alive now is no longer listed
    gc.disable()
    try:
        call(model, tmp_path)
        assert [one.shape for one in gc.get_objects() if isinstance(one, torch.Tensor)] == []
    finally:
        gc.enable()
        gc.unfreeze()
