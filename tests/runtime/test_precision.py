"""What attnviz computes itself is exact, whatever a user allows for speed."""

import threading
from contextlib import contextmanager

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import attnviz
from attnviz import agreement
from attnviz.runtime.libraries import exact_products, full_float32
from attnviz.streaming import ScoreSpec, attend

MATMUL = torch.backends.cuda.matmul
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


def settings():
    """Return every setting of products, or why torch refuses to read it."""
    readers = {
        "cuda": lambda: MATMUL.fp32_precision,
        "cpu": lambda: torch.backends.mkldnn.matmul.fp32_precision,
        "all": lambda: torch.backends.fp32_precision,
        "legacy": lambda: MATMUL.allow_tf32,
        "older": torch.get_float32_matmul_precision,
    }
    values = {}
    for name, read in readers.items():
        try:
            values[name] = read()
        except RuntimeError:
            values[name] = "refused"
    return values


def set_(owner, name, value):
    return lambda: setattr(owner, name, value)


USERS = {
    "default": lambda: None,
    "legacy": set_(MATMUL, "allow_tf32", True),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "newer": set_(MATMUL, "fp32_precision", "tf32"),
    "on the CPU": set_(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "everywhere": set_(torch.backends, "fp32_precision", "tf32"),
}


@contextmanager
def allowed(user):
    """Change the settings as a user, and set the default ones afterwards."""
    try:
        USERS[user]()
        yield
    finally:
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        for backend in (MATMUL, torch.backends.mkldnn.matmul):
            backend.fp32_precision = "none"


@pytest.mark.parametrize("user", USERS)
def test_products_are_exact_inside_and_the_settings_are_restored(user):
    with allowed(user):
        before = settings()
        with full_float32(), full_float32():
            inside = settings()
        assert settings() == before
    assert {inside["cuda"], inside["cpu"]} <= {"ieee", "none"}
    # Code that reads the older settings must not fail.
    assert (inside["legacy"], inside["older"]) == (False, "highest")


def test_the_last_of_several_threads_restores_the_settings():
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with full_float32():
            entered.set()
            leave.wait()

    with allowed("legacy"):
        thread = threading.Thread(target=stay)
        with full_float32():
            thread.start()
            entered.wait()
        assert MATMUL.fp32_precision == "ieee"
        leave.set()
        thread.join()
        assert MATMUL.allow_tf32


def tf32(tensor):
    """Round as a GPU rounds the factors of a product in TF32."""
    bits = tensor.contiguous().view(torch.int32)
    return (bits.add(0x1000).bitwise_and(~0x1FFF)).view(torch.float32)


class Gpu(TorchDispatchMode):
    """Round the factors of float32 products as a GPU does where the user allows TF32."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in PRODUCTS and MATMUL.fp32_precision == "tf32":
            args = tuple(
                tf32(part)
                if isinstance(part, torch.Tensor) and part.dtype == torch.float32
                else part
                for part in args
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def tf32_on_a_gpu():
    with allowed("high"), Gpu():
        yield


LOW = {
    "TF32": tf32_on_a_gpu,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("low", LOW)
def test_the_simulation_rounds(low):
    X = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    with LOW[low]():
        rough = X @ X
        with exact_products():
            exact = X @ X
    assert torch.equal(exact, X @ X)
    assert (rough - exact).abs().max() > 1e-4


@pytest.mark.parametrize("low", LOW)
def test_shown_weights_are_exact(low, train):
    record = train.record(2)
    wanted = record.weights(), record.weights(3, slice(1, 4)), record.scores(5)
    with LOW[low]():
        weights = record.weights(), record.weights(3, slice(1, 4)), record.scores(5)
    for one, other in zip(weights, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("low", LOW)
def test_the_proof_and_the_stages_are_exact(low, train, monkeypatch):
    """Also the error of our own run: it bounds what passes."""
    captured = []
    verify = agreement.verify

    def keep(records, references, **provenance):
        captured.append((records, references, provenance))
        return verify(records, references, **provenance)

    monkeypatch.setattr(agreement, "verify", keep)
    attnviz.attend(train.provenance.text)
    records, references, provenance = captured[0]
    wanted = verify(records, references, **provenance)
    stages = attnviz.steps(train, layer=2, head=3)
    with LOW[low]():
        report = verify(records, references, **provenance)
        again = attnviz.steps(train, layer=2, head=3)
    assert report.checks == wanted.checks
    for name, array in stages.to_arrays().items():
        assert_close(again.to_arrays()[name], array, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("low", LOW)
def test_reduced_maps_are_exact(low, train):
    record = train.record(2)
    spec = ScoreSpec.of(record)
    wanted = attend(spec, record.value, cells=3)
    with LOW[low]():
        output, summary = attend(spec, record.value, cells=3)
        alone = attend(spec, cells=3)[1]
    assert torch.equal(output, wanted[0])
    for name in ("mean", "lse", "received", "entropy"):
        assert torch.equal(getattr(summary, name), getattr(wanted[1], name))
        assert_close(getattr(alone, name), getattr(wanted[1], name), rtol=1e-6, atol=1e-6)
