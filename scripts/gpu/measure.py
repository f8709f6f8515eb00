"""The measurements of the GPU check; each prints its figures as they are known.

Products are in full float32: TF32 is off, except where it is what is checked.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

import attnviz

TEXT = "the train left the station on time"


def figures(**values: object) -> None:
    """Print figures on a line that scripts/gpu/check.py reads."""
    named = {name.replace("_", " "): value for name, value in values.items()}
    print(f"figures: {json.dumps(named)}", flush=True)


def versions() -> None:
    """Print the versions of what runs here, and the device."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "none"

    names = "attnviz", "torch", "triton", "transformers", "numpy"
    figures(python=platform.python_version(), **{name: of(name) for name in names})
    properties = torch.cuda.get_device_properties(0)
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    figures(
        device=getattr(properties, "name", "simulated"),
        capability=capability,
        memory_in_GB=properties.total_memory / 1e9,
        CUDA=str(torch.version.cuda),
        cuDNN=str(torch.backends.cudnn.version()),
    )


def agreement(*, small: bool) -> None:
    """Compare the default model with our attention in three precisions, and with the CPU."""
    on_cpu = attnviz.load(device="cpu").attend(TEXT)
    for dtype in ("float32", "bfloat16", "float16"):
        model = attnviz.load(device="cuda", dtype=dtype)
        result = model.attend(TEXT)
        difference = max(
            float((ours.weights().cpu().double() - theirs.weights().double()).abs().max())
            for ours, theirs in zip(result.records, on_cpu.records, strict=True)
        )
        figures(**{
            f"{dtype}, verdict": result.agreement.verdict,
            f"{dtype}, largest difference of a weight from the CPU in float32": difference,
        })  # fmt: skip
        assert result.agreement.verdict == "verified", result.agreement.summary()
        if dtype == "float32":
            assert difference <= 5e-6, "The weights on the GPU and on the CPU differ."
    model = attnviz.load(device="cuda")
    torch.set_float32_matmul_precision("high")
    try:
        result = model.attend(TEXT)
        error = max(
            float((record.weights().double() - record.weights(dtype=torch.float64)).abs().max())
            for record in result.records
        )
    finally:
        torch.set_float32_matmul_precision("highest")
    figures(**{"with the user's TF32, error of the weights that are drawn": error})
    assert error <= 5e-6, "Weights are computed with TF32."
    text = TEXT * (2 if small else 60)
    streamed = model.attend(text, mode="streamed")
    figures(**{"streamed, verdict": streamed.agreement.verdict})
    assert streamed.agreement.verdict == "verified", streamed.agreement.summary()


def maps(tokens: int, *, small: bool) -> None:
    """Measure the maps of one layer of the shape of Llama 3.1 8B."""
    from benchmarks.gpu import run

    shape = {"heads": 4, "key_heads": 2, "width": 32, "rounds": 1} if small else {}
    for cells in (8, 90) if small else (1024, 90):
        measured = run(tokens, cells=cells, **shape)
        figures(**{f"{cells}² cells: {name}": value for name, value in measured.items()})
        errors = [value for name, value in measured.items() if name.startswith("error")]
        assert all(error <= 1e-3 for error in errors), "The maps differ from float64."


def model(tokens: int, *, llama: bool, small: bool) -> None:
    """Measure `attend` of a model with random weights beside its plain forward."""
    module = _llama(small) if llama else _bert(small)
    tokenizer = attnviz.load(device="cpu").tokenizer
    tokenizer.model_max_length = 10**9
    pieces = tokenizer(f"{TEXT} " * tokens, add_special_tokens=False)["input_ids"]
    text = tokenizer.decode(pieces[: tokens - 2])
    loaded = attnviz.load(module, tokenizer=tokenizer)
    inputs = dict(tokenizer(text, return_tensors="pt").to("cuda"))
    inputs.pop("token_type_ids", None)
    rounds = 1 if small else 5

    def forward() -> None:
        with torch.no_grad():
            module(**inputs)

    plain = seconds_of(forward, rounds)
    figures(tokens=inputs["input_ids"].shape[1], plain_forward_in_ms=plain * 1e3)
    torch.cuda.reset_peak_memory_stats()
    streamed = seconds_of(lambda: loaded.attend(text, mode="streamed"), rounds)
    verdict = loaded.attend(text, mode="streamed").agreement.verdict
    figures(**{
        "streamed attend with its proof, ms": streamed * 1e3,
        "÷ plain forward": streamed / plain,
        "streamed, verdict": verdict,
        "peak memory, GB": torch.cuda.max_memory_allocated() / 1e9,
    })  # fmt: skip
    if not llama:
        whole = seconds_of(lambda: loaded.attend(text, mode="full"), rounds)
        figures(**{"whole maps with proof, ms": whole * 1e3, "whole ÷ plain": whole / plain})
    assert verdict == "verified"


def seconds_of(work: Callable[[], Any], rounds: int) -> float:
    """Return the median wall-clock seconds, after one round that compiles."""
    times = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _bert(small: bool) -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2} if small else {}
    torch.manual_seed(0)
    return BertModel(BertConfig(vocab_size=30522, **sizes)).eval().to("cuda")


def _llama(small: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    width, heads, inner = (64, 4, 128) if small else (4096, 32, 14336)
    config = LlamaConfig(
        vocab_size=30522, hidden_size=width, intermediate_size=inner, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=heads // 4, max_position_embeddings=200_000,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaModel(config).to(torch.float32 if small else torch.bfloat16).eval().to("cuda")


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("versions", "agreement", "maps", "model"))
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--small", action="store_true", help="as in a rehearsal")
    options = parser.parse_args()
    if options.part == "versions":
        versions()
    elif options.part == "agreement":
        agreement(small=options.small)
    elif options.part == "maps":
        maps(options.tokens, small=options.small)
    else:
        model(options.tokens, llama=options.llama, small=options.small)
