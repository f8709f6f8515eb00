"""Too little memory: what was needed, what there was, what fits; before a run where it is certain.

The limits are real (RLIMIT_AS), each in a process of its own.
"""

import contextlib
import io
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer

import attnviz
from attnviz.app import run
from attnviz.errors import AttnvizError, InputError, ModelError
from attnviz.runtime import memory
from attnviz.runtime.libraries import translate
from attnviz.runtime.memory import is_out_of_memory
from tests.robustness.forked import tried

LONG = "a " * 1000
CPU = torch.device("cpu")
MB = 2**20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A BERT of four layers and twelve heads for a thousand tokens, with 30 MB of weights."""
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
    """Return what a trial returns, or raises, in a process that can have so many bytes more."""

    def limited(_):
        had = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (had + size, had + size))
        try:
            return str(trial())
        except AttnvizError as error:
            return f"{type(error).__name__}: {error}"

    ((_, told),) = tried(limited, [0], seconds=300, memory=2**33)  # and no more, should a test fail
    return told


def test_whole_maps_that_cannot_be_kept_are_refused_before_they_are_made(checkpoint):
    model = attnviz.load(checkpoint, device="cpu")
    told = within(900 * MB, lambda: model.attend(LONG, mode="full"))
    # 4 layers × 12 heads × 1,002² scores and weights in float32, and the comparison of one layer.
    assert told.startswith(
        "InputError: Expected 1.3 GB or more for the attention maps of BertModel"
    )
    assert "MB is left on cpu" in told
    for option in ("--mode streamed", "--truncate", "--dtype bfloat16", "mode='streamed'"):
        assert option in told
    # What it advises does fit, in the same room.
    fits = within(900 * MB, lambda: model.attend(LONG, mode="streamed").agreement.verdict)
    assert fits == "verified"


def test_one_map_that_cannot_be_made_is_refused_before_the_run(checkpoint):
    model = attnviz.load(checkpoint, device="cpu")

    def attend():
        model.module.register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
        return model.attend(LONG, mode="full")

    assert "Expected 92 MB or more for the attention maps" in within(80 * MB, attend)


def test_the_command_line_says_it_in_one_line(checkpoint):
    def command():
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = run(["verify", "--mode", "full", "--model", str(checkpoint), LONG])
        return f"{code} {said.getvalue()}"

    told = within(900 * MB, command)
    assert told.startswith("2 attnviz: Expected 1.3 GB or more for the attention maps of BertModel")
    assert told.count("\n") == 1


def test_weights_that_do_not_fit_are_refused_before_they_are_read(checkpoint):
    told = within(20 * MB, lambda: attnviz.load(checkpoint, device="cpu"))
    assert told.startswith("ModelError: Expected 31 MB or more for the weights of bert0, but")
    assert "--dtype bfloat16" in told


def test_weights_need_what_their_dtype_takes(checkpoint, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 40 * MB)
    with pytest.raises(
        ModelError, match=r"Expected 61 MB or more for the weights .* 40 MB is left"
    ):
        attnviz.load(checkpoint, device="cpu", dtype="float64")
    assert attnviz.load(checkpoint, device="cpu").module.dtype == torch.float32


@pytest.mark.parametrize("size", [5, 60, 150, 400])
def test_what_fails_nevertheless_is_told_in_the_same_words(checkpoint, size):
    model = attnviz.load(checkpoint, device="cpu")

    def attend():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "free", lambda device: None)  # nothing is known before
            return model.attend(LONG, mode="full")

    told = within(size * MB, attend)
    assert told.startswith("InputError: Expected ")
    assert "for the attention maps of BertModel" in told or "for the input of" in told
    assert "but not enough is left on cpu" in told


def test_the_estimate_is_near_what_is_taken(checkpoint, monkeypatch):
    model = attnviz.load(checkpoint, device="cpu")
    text, sizes = "a " * 500, []
    monkeypatch.setattr(memory.MemoryBudget, "expect", lambda self, size: sizes.append(size))

    def peak():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model.attend(text, mode="full")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return f"{max(sizes)} {(after - before) * 1024}"

    estimate, taken = map(int, within(2**32, peak).split())
    assert 0.5 < estimate / taken < 2


def test_an_image_size_of_a_processor_that_no_memory_holds(tmp_path):
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTModel(ViTConfig(image_size=8, patch_size=4, **sizes)).save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 10**6, "width": 10**6}).save_pretrained(tmp_path)
    model = attnviz.load(tmp_path)
    # Linux may well promise so much, and end the process that takes it.
    told = within(2**32, lambda: model.attend(image=np.zeros((8, 8, 3), np.uint8)))
    assert told.startswith("ModelError: Expected 22,351.7 GB or more for the picture")
    assert "preprocessor_config.json" in told


def test_what_is_free_is_the_least_that_any_limit_leaves(tmp_path, monkeypatch):
    there = memory.free(CPU)
    assert 2**28 < there < 2**50
    assert within(100 * MB, lambda: memory.free(CPU) <= 100 * MB) == "True"


def test_where_nothing_is_known_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: None)
    memory.MemoryBudget("x", CPU, "y").expect(2**60)


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
def test_every_library_says_it_in_its_own_way(error, size):
    assert is_out_of_memory(error)
    with pytest.raises(ModelError) as caught, translate(_budget(), "x", "y"):
        raise error
    need = "more memory" if size is None else f"{size:.1f} GB or more"
    assert str(caught.value).startswith(f"Expected {need} for the maps, but ")
    assert caught.value.__cause__ is error


def _budget():
    return memory.MemoryBudget("the maps", CPU, "Read less.", ModelError)


def test_other_failures_are_no_lack_of_memory():
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    said = r"^It fails \(RuntimeError: shapes\)\. Look\.$"
    with pytest.raises(ModelError, match=said), translate(_budget(), "It fails", ". Look."):
        raise RuntimeError("shapes")
    with pytest.raises(KeyboardInterrupt), translate(_budget(), "It fails"):
        raise KeyboardInterrupt


@pytest.mark.gpu
def test_a_gpu_without_room(checkpoint):
    model = attnviz.load(checkpoint, device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(400 * MB / total)
    try:
        with pytest.raises(InputError, match=r"left on cuda.*--mode streamed.*--device cpu"):
            model.attend(LONG, mode="full")
        assert model.attend(LONG, mode="streamed").agreement.verdict == "verified"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
