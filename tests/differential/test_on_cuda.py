"""Everything runs to its end on a real CUDA device, with the numbers of the CPU."""

import pandas as pd
import pytest
import torch
from families import FAMILIES, FURTHER, OWN_CODE, TWO_SIDED, tiny
from linear_models import RECURRENCES, build
from test_simulated_cuda import (
    ALL,
    MEDIA,
    WORDS,
    attend_to_a_medium,
    attend_to_texts,
    stream,
)

import attnviz

pytestmark = pytest.mark.gpu
# Not sharp in short texts: BigBird and Reformer.
EVERY = sorted({*FAMILIES, *OWN_CODE, *TWO_SIDED, *FURTHER} - {"bigbird", "reformer"})


@pytest.mark.parametrize("function", ALL)
def test_every_function_gives_the_numbers_of_the_cpu(function, tokenizer, tmp_path):
    on_gpu, on_cpu = (
        function(attnviz.load(tiny("bert").to(device), tokenizer=tokenizer), tmp_path)
        for device in ("cuda", "cpu")
    )
    agreement = getattr(on_gpu, "agreement", on_gpu)
    assert agreement.verdict == "verified", agreement.summary()
    assert agreement.device.startswith("cuda")
    if function is stream:
        for there, here in zip(on_gpu.streamed, on_cpu.streamed, strict=True):
            torch.testing.assert_close(
                vars(there.summary), vars(here.summary), rtol=1e-3, atol=1e-4
            )
    elif agreement is not on_gpu:
        there, here = on_gpu.to_frame(), on_cpu.to_frame()
        numbers = here.select_dtypes("floating").columns
        pd.testing.assert_frame_equal(there[numbers], here[numbers], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", EVERY)
def test_every_family_is_verified(family, dtype, tokenizer):
    if dtype != torch.float32 and family not in FAMILIES:
        pytest.skip("in float32 only")
    for result in attend_to_texts(family, tokenizer, dtype)():
        assert result.agreement.verdict == "verified", result.agreement.summary()


@pytest.mark.parametrize("family", MEDIA)
def test_images_and_sounds_are_verified(family, tokenizer):
    (result,) = attend_to_a_medium(family, tokenizer)()
    agreement = result.agreement
    assert agreement.verdict == "verified", agreement.summary()


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_generation_is_verified(family, tokenizer):
    model = attnviz.load(tiny(family).to("cuda"), tokenizer=tokenizer)
    assert model.attend(WORDS, generate=3).agreement.verdict == "verified"


@pytest.mark.parametrize("family", RECURRENCES)
def test_linear_attention_is_verified(family, tokenizer):
    on_gpu, on_cpu = (
        attnviz.load(build(family).to(device), tokenizer=tokenizer).attend(WORDS)
        for device in ("cuda", "cpu")
    )
    assert on_gpu.agreement.verdict == "verified", on_gpu.agreement.summary()
    for there, here in zip(on_gpu.records, on_cpu.records, strict=True):
        torch.testing.assert_close(there.weights().cpu(), here.weights(), rtol=1e-4, atol=1e-5)
