"""Too little memory: the error reports required, available and feasible sizes, before the run.

The limits are real (RLIMIT_AS), each in a separate process.
"""

import gc
import multiprocessing
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer
from transformers.models.bert.modeling_bert import BertEncoder

import attnviz
from attnviz import AttnvizError, InputError, ModelError

LONG = "a " * 1000
MB = 2**20
FREE = "attnviz.runtime.libraries.free"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return a BERT with four layers, twelve heads, 1,000 positions and 30 MB of weights."""
    folder = tmp_path_factory.mktemp("bert")
    sizes = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 12}
    config = BertConfig(
        vocab_size=80_000, intermediate_size=96, max_position_embeddings=1024, **sizes
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    BertTokenizer(vocab={word: n for n, word in enumerate(vocabulary)}).save_pretrained(folder)
    return folder


def within(size, trial):
    """Return the outcome of a trial, or its error, in a process with this much more memory."""
    context = multiprocessing.get_context("fork")  # imports stay loaded in a fork
    receiver, sender = context.Pipe(duplex=False)

    def limited():
        torch.set_num_threads(1)  # the threads of the parent are not in a fork
        gc.collect()  # what is freed later would be room beyond `size`
        had = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (had + size, had + size))
        try:
            sender.send(str(trial()))
        except (AttnvizError, MemoryError, RuntimeError) as error:
            sender.send(f"{type(error).__name__}: {error}")
        os._exit(0)

    process = context.Process(target=limited)
    process.start()
    sender.close()
    assert receiver.poll(300), "it hangs"
    outcome = receiver.recv()
    process.join()
    return outcome


def test_full_maps_that_do_not_fit_are_refused_before_the_run(checkpoint):
    model = attnviz.load(checkpoint, device="cpu")
    message = within(900 * MB, lambda: model.attend(LONG, mode="full"))
    # 4 layers × 12 heads × 1,002² scores and weights in float32, and the comparison of one layer.
    assert message.startswith(
        "InputError: At least 1.5 GB is needed for the attention maps of BertModel"
    )
    assert "MB is left on cpu" in message
    for option in ("--mode streamed", "--truncate", "--dtype bfloat16", "mode='streamed'"):
        assert option in message
    # The advised length fits in the same memory.
    fits = within(900 * MB, lambda: model.attend(LONG, mode="streamed").agreement.verdict)
    assert fits == "verified"


def test_one_map_that_does_not_fit_is_refused_before_the_run(checkpoint):
    model = attnviz.load(checkpoint, device="cpu")
    model.attend("a a")  # what is imported late takes no memory of the trial

    def attend():
        model.module.register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
        return model.attend(LONG, mode="full")

    assert "At least 92 MB is needed for the attention maps" in within(80 * MB, attend)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(checkpoint):
    message = within(20 * MB, lambda: attnviz.load(checkpoint, device="cpu"))
    assert message.startswith("ModelError: At least 31 MB is needed for the weights of bert0, but")
    assert "--dtype bfloat16" in message


def test_the_memory_of_weights_depends_on_their_dtype(checkpoint, monkeypatch):
    monkeypatch.setattr(FREE, lambda device: 40 * MB)
    with pytest.raises(
        ModelError, match=r"At least 61 MB is needed for the weights .* 40 MB is left"
    ):
        attnviz.load(checkpoint, device="cpu", dtype="float64")
    assert attnviz.load(checkpoint, device="cpu").module.dtype == torch.float32


@pytest.mark.parametrize(
    "size", [5, 150, *(pytest.param(size, marks=pytest.mark.long) for size in (60, 400))]
)
def test_out_of_memory_during_a_run_is_reported_in_the_same_words(checkpoint, size):
    model = attnviz.load(checkpoint, device="cpu")

    def attend():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FREE, lambda device: None)  # nothing is known before the run
            return model.attend(LONG, mode="full")

    message = within(size * MB, attend)
    assert message.startswith(("InputError: At least ", "InputError: More memory "))
    assert "for the attention maps of BertModel" in message or "for the input of" in message
    assert "but not enough is left on cpu" in message


def test_an_image_size_that_exceeds_any_memory(tmp_path):
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTModel(ViTConfig(image_size=8, patch_size=4, **sizes)).save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 10**6, "width": 10**6}).save_pretrained(tmp_path)
    model = attnviz.load(tmp_path)
    # Linux may overcommit this much, and kill the process that uses it.
    message = within(2**32, lambda: model.attend(image=np.zeros((8, 8, 3), np.uint8)))
    assert message.startswith("ModelError: At least 22,351.7 GB is needed for the picture")
    assert "preprocessor_config.json" in message


@pytest.mark.parametrize(
    ("error", "size"),
    [
        (MemoryError(), None),
        (MemoryError("Unable to allocate 3.50 GiB"), 3.5),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0"), 20),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate "
                      "memory: you tried to allocate 17179869184 bytes. Error code 12"), 16),
        (RuntimeError("std::bad_alloc"), None),
        (OSError(12, "Cannot allocate memory"), None),
    ],
)  # fmt: skip
def test_the_out_of_memory_errors_of_every_library_are_recognized(error, size, small, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(BertEncoder, "forward", fail)
    with pytest.raises(InputError) as caught:
        small.attend("the train", mode="full")
    need = "More memory" if size is None else f"At least {size:.1f} GB"
    assert str(caught.value).startswith(f"{need} is needed for the attention maps of Bert")
    assert caught.value.__cause__ is error


@pytest.mark.gpu
def test_a_full_gpu(checkpoint):
    model = attnviz.load(checkpoint, device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(400 * MB / total)
    try:
        with pytest.raises(InputError, match=r"left on cuda.*--mode streamed.*--device cpu"):
            model.attend(LONG, mode="full")
        assert model.attend(LONG, mode="streamed").agreement.verdict == "verified"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
