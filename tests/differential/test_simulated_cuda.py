"""Everything runs to its end on a simulated CUDA device, and no operator mixes devices.

Each test is run again with a planted fault, which must fail: a factory without `device=`, or
`.cpu()` left out.
"""

import os
import sys
from functools import partial
from pathlib import Path

import media
import pytest
import torch
from families import TEXTS, TWO_SIDED, tiny
from simulated_cuda import CudaTensor
from transformers import LlamaConfig, LlamaForCausalLM

import attnviz
from attnviz.attribution.methods import METHODS
from attnviz.capture import streamed
from attnviz.streaming import gpu as streaming_gpu

PACKAGE = str(Path(attnviz.__file__).parent)
FACTORIES = "arange", "empty", "eye", "full", "ones", "tensor", "zeros"
FAST = [  # of each way to attend, also in the operators
    "bert", "gemma2", "gpt-oss", "t5-encoder", "bloom", "deberta", "funnel", "longformer", "t5",
]  # fmt: skip
WORDS = "I love apple phones"
MASKED = "the train left the [MASK]"
CPU = torch.device("cpu")


def leave_out_devices(monkeypatch):
    """Leave out `device=` of every factory that attnviz calls."""

    def forgetful(factory):
        def create(*args, **options):
            if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):
                options.pop("device", None)
            return factory(*args, **options)

        return create

    for name in FACTORIES:
        monkeypatch.setattr(torch, name, forgetful(getattr(torch, name)))


def leave_out_copies(monkeypatch):
    """Leave out every `.cpu()`."""
    monkeypatch.setattr(CudaTensor, "cpu", lambda self: self)


def assert_refused(action):
    """Check that a device would have refused an action."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        action()
    error, messages = caught.value, []
    while error is not None:
        messages.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    text = "\n".join(messages)
    assert "DeviceError" in text or "type tensor to numpy" in text, text


# ------------------------------------------------------------------------- every way to attend


def attend_to_texts(family, tokenizer, dtype=torch.float32):
    """Return a call that gives the results of a small model on the device."""
    model = attnviz.load(tiny(family, dtype).to("cuda"), tokenizer=tokenizer)
    if family in TWO_SIDED:
        return lambda: [model.attend(TEXTS[2], target="le train")]
    return partial(model.attend, TEXTS[1 if family == "bert" else 2 :])  # one with padding


def generate(tokenizer):
    model = attnviz.load(tiny("t5").to("cuda"), tokenizer=tokenizer)
    return lambda: [model.attend(WORDS, generate=2)]


def stream_with_sinks(tokenizer):
    model = attnviz.load(tiny("gpt-oss").to("cuda"), tokenizer=tokenizer)
    return lambda: [stream(model, None)]


MEDIA = "swin", "clip", "whisper", "wav2vec2"  # the Vision Transformer is a part of CLIP


def attend_to_a_medium(family, tokenizer):
    """Return a call of `attend` with an image or a sound, of a model on the device."""
    module, processor = (
        media.seeing(family, tokenizer).module,
        media.processor_of(family, tokenizer),
    )
    model = attnviz.load(module.to("cuda"), processor=processor, tokenizer=tokenizer)
    sound = {"audio": media.chirp(), "sampling_rate": media.RATE}
    given = sound if family in ("whisper", "wav2vec2") else {"image": media.picture()}
    more = {"clip": {"text": "a cat"}, "whisper": {"target": "a cat"}}.get(family, {})
    return lambda: [model.attend(**given, **more)]


WAYS = {
    **{family: partial(attend_to_texts, family) for family in FAST},
    **{family: partial(attend_to_a_medium, family) for family in MEDIA[1:]},
    "generation": generate,
    "streamed": stream_with_sinks,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_attend_is_verified(way, tokenizer, simulated_gpu, monkeypatch):
    attend = WAYS[way](tokenizer)
    for result in attend():
        assert result.agreement.verdict == "verified", result.agreement.summary()
        assert result.agreement.device == "cuda:0"
    assert way not in FAST or all(simulated_gpu.counts)
    leave_out_devices(monkeypatch)
    assert_refused(attend)


# ------------------------------------------------------------------------------ every function

SENSES = {"river": ["the bank of the river", "a bank of mud"], "money": ["my bank", "a rich bank"]}


def verify(model, folder):
    return attnviz.verify(WORDS, model=model)


def shift(model, folder):
    toward = {"tech": ["a phone"], "fruit": ["a pear"]}
    options = {"verify_causally": True, "methods": [*METHODS], "toward": toward}
    return attnviz.shift("apple", WORDS, model=model, **options)


def senses(model, folder):
    return attnviz.senses("bank", SENSES, model=model)


def survey(model, folder):
    return attnviz.survey([WORDS, "the train left the station"], model=model)


def stream(model, folder):
    """Reduce maps on the device, and copy what a result keeps."""
    result = attnviz.attend(TEXTS[0], model=model, mode="streamed", top=2, exact=1)
    for attention in result.streamed:
        for name, values in vars(attention.summary).items():
            assert getattr(values, "device", CPU) == CPU, name
    return result


def draw(model, folder):
    """Draw, save and load what is on the device."""
    result = attnviz.attend(WORDS, model=model)
    result.plot(layer=1, head=1)
    attnviz.plot.heads(result)
    attnviz.steps(result, layer=1, head=0).plot()
    attnviz.view(result).save(folder / "view.html")
    attnviz.save_result(result, folder / "result.safetensors", force=True)
    return attnviz.load_result(folder / "result.safetensors")


def compare(model, folder):
    texts = [WORDS, "the train left the station"]
    return attnviz.compare(texts, models=(model, model))


def check(model, folder):
    """Compare the weights of a result on the device with the model's."""
    weights = attnviz.attend(WORDS, model=model).weights()
    return attnviz.check(weights, WORDS, model=model)


def explain(model, folder):
    """Explain a prediction by words, with every method."""
    methods = ["partial-split", *METHODS]
    return attnviz.explain(MASKED, methods=methods, model=model)


def ablate(model, folder):
    return attnviz.ablate([MASKED, "the [MASK] left the station"], model=model)


def probe(model, folder):
    return attnviz.survey(probe="previous", model=model)


def explore(model, folder):
    found = attnviz.explore([WORDS, "the train left the station"], model=model)
    found.page().save(folder / "heads.html")
    return found.survey


ALL = (
    verify, shift, senses, survey, stream, compare, check, draw, explain, ablate, probe, explore,
)  # fmt: skip


@pytest.fixture
def on_the_cpu():
    """A BERT of two layers, which is built on the CPU."""
    module = tiny("bert")
    del module.bert.encoder.layer[2:]
    module.config.num_hidden_layers = 2
    return module


@pytest.fixture
def two_layers(on_the_cpu, tokenizer, simulated_gpu, monkeypatch):
    """The model on the device, verified on two texts of a corpus."""
    monkeypatch.setattr("attnviz.analyses.survey.corpus._SAMPLE_TEXTS", 2)
    return attnviz.load(on_the_cpu.to("cuda"), tokenizer=tokenizer)


@pytest.mark.parametrize("function", [one for one in ALL if one is not survey])  # as explore calls
def test_every_function_runs_to_its_end(function, two_layers, tmp_path):
    result = function(two_layers, tmp_path)
    assert getattr(result, "agreement", result).verdict == "verified"
    assert getattr(result, "agreement", result).device == "cuda:0"


@pytest.mark.parametrize("need_weights", [False, True])  # fused, or among the operators
def test_a_program_is_recorded_on_the_device(need_weights, simulated_gpu):
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval().to("cuda")
    x = torch.randn(2, 6, 16).to("cuda")
    inputs = {"query": x, "key": x, "value": x, "need_weights": need_weights}
    with torch.no_grad(), attnviz.record(grid=(2, 3)) as recording:
        module(**inputs)
    for result in (recording.result(1), attnviz.attend(inputs=inputs, model=module)[1]):
        assert result.agreement.verdict == "verified"
        assert result.agreement.device == "cuda:0"


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("fault", [leave_out_devices, leave_out_copies])
def test_a_planted_fault_is_refused(function, fault, two_layers, monkeypatch, tmp_path):
    if function in (verify, stream) and fault is leave_out_copies:
        pytest.skip("no number leaves the device but by tolist()")
    fault(monkeypatch)
    assert_refused(lambda: function(two_layers, tmp_path))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs the interpreter")
def test_streamed_maps_come_from_the_kernels(tokenizer, simulated_gpu):
    model = attnviz.load(tiny("llama").to("cuda"), tokenizer=tokenizer)
    result = model.attend(TEXTS[2], mode="streamed")
    assert result.agreement.verdict == "verified", result.agreement.summary()
    launches = [place for place, _ in simulated_gpu.top("launches", 1000)]
    assert any(place.endswith("triton") for place in launches)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs the interpreter")
@pytest.mark.parametrize(
    ("wrong", "stage"),
    [((0.0, 0.0), None), ((0.01, 0.0), "attention vectors"), ((0.0, 0.01), "summary")],
)
def test_the_models_own_fused_attention_runs_once(
    wrong, stage, tokenizer, simulated_gpu, monkeypatch
):
    """What it returns beside its output is used, and what is wrong of it is seen."""
    known = streamed._CoverageMonitor.known

    def with_errors(self, args):
        output, lse = known(self, args)
        return output * (1 + wrong[0]), lse + wrong[1]

    monkeypatch.setattr(streamed._CoverageMonitor, "known", with_errors)
    monkeypatch.setattr(streaming_gpu, "log_sum_exp", lambda *_: pytest.fail("it runs again"))
    model = attnviz.load(tiny("llama").to("cuda"), tokenizer=tokenizer)
    checks = model.attend(TEXTS[2], mode="streamed").agreement.checks
    assert {check.stage for check in checks if not check.passed} == {stage} - {None}


# ------------------------------------------------------------------------- the simulated device


def test_a_copy_is_not_complete_before_something_waits(simulated_gpu):
    x = torch.ones(3, device="cuda")
    copied = x.to("cpu", non_blocking=True)
    pinned = torch.empty(3, pin_memory=True).copy_(x, non_blocking=True)
    assert copied.isnan().all()
    assert pinned.isnan().all()
    assert simulated_gpu.counts.synchronizations == 0
    torch.cuda.synchronize()
    assert copied.tolist() == pinned.tolist() == [1.0] * 3


# --- the default device


@pytest.fixture
def gpu_by_default(simulated_gpu):
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture
def placed(on_the_cpu, tokenizer, gpu_by_default):
    """The model on the CPU."""
    return attnviz.load(on_the_cpu, tokenizer=tokenizer)


def test_attend(placed):
    for result in placed.attend(TEXTS[1:]):
        assert result.agreement.verdict == "verified"


@pytest.mark.parametrize("function", [shift, senses, survey, stream, compare, check, draw, explain])
def test_every_function(function, placed, tmp_path):
    assert function(placed, tmp_path).agreement.verdict == "verified"


def test_the_next_token_is_explained(tokenizer, gpu_by_default):
    config = LlamaConfig(
        vocab_size=30522, hidden_size=48, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, pad_token_id=0,
    )  # fmt: skip
    model = attnviz.load(LlamaForCausalLM(config).to("cpu").eval(), tokenizer=tokenizer)
    result = attnviz.explain("I love apple phones", methods=[*METHODS], model=model)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    assert set(result.methods) == {*METHODS}, result.notes
    result.plot()


def test_a_worked_example(gpu_by_default):
    attnviz.example("cat").plot()
