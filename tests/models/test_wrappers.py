"""Objects around a model: compiled, with adapters, parallel, quantized, of a pipeline."""

import warnings
from types import SimpleNamespace

import pytest
import torch
import transformers
from families import TEXTS, tiny
from torch import nn

import attnviz
from attnviz import InputError

with warnings.catch_warnings():  # of their own dependencies
    warnings.simplefilter("ignore")
    import sentence_transformers

    try:
        import peft
    except ImportError:
        peft = None

needs_peft = pytest.mark.skipif(peft is None, reason="needs peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # of peft
]
BERT = {
    "vocab_size": 30522, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip
PROJECTIONS = ("query", "key", "value", "output")


def stages(result):
    """The stages that were compared in every attention."""
    left_out = {stage for _, stage, _ in result.agreement.not_compared}
    return [stage for stage in PROJECTIONS if stage not in left_out]


WRAPPED = {
    "torch.compile": (torch.compile, "OptimizedModule._orig_mod"),
    "DataParallel": (nn.DataParallel, "DataParallel.module"),
    "both": (
        lambda model: torch.compile(nn.DataParallel(model)),
        "OptimizedModule._orig_mod.module",
    ),
    "a value head": (
        lambda model: Holding(pretrained_model=model, v_head=nn.Linear(48, 1)),
        "Holding.pretrained_model; not shown: .v_head (Linear)",
    ),
    "a list of modules": (
        lambda model: Holding(parts=nn.ModuleList([nn.Dropout(), Holding(encoder=model)])),
        "Holding.parts[1].encoder; not shown: .parts[0] (Dropout)",
    ),
    "not registered": (lambda model: Holding(_models=[model]), "Holding._models[0]"),
    "an object": (
        lambda model: SimpleNamespace(wrapped=nn.DataParallel(model), model=model, steps=3),
        "SimpleNamespace.model",
    ),
    "an object with an object": (
        lambda model: SimpleNamespace(inner=SimpleNamespace(net=model)),
        "SimpleNamespace.inner.net",
    ),
}


class Holding(nn.Module):
    """A user's own module, with members of these names."""

    def __init__(self, **members):
        super().__init__()
        for name, member in members.items():
            setattr(self, name, member)


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_models_are_unwrapped_with_one_note(name, tokenizer):
    wrap, path = WRAPPED[name]
    inner = tiny("bert")
    model = attnviz.load(wrap(inner), tokenizer=tokenizer)
    assert model.module is inner
    assert model.notes == (f"the model is {path}",)


def test_the_note_is_in_results_and_in_what_is_drawn(tokenizer):
    wrap, path = WRAPPED["a value head"]
    note = f"the model is {path}"
    result = attnviz.load(wrap(tiny("bert")), tokenizer=tokenizer).attend(TEXTS[0])
    assert result.agreement.verdict == "verified"
    assert result.notes == (note,)
    assert result.about()["notes"] == [note]
    assert note in attnviz.attention_map(result, layer=0, head=0).notes
    assert note in result._repr_html_()


def test_trainer_gives_its_model_and_tokenizer(tokenizer, tmp_path):
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[])
    trainer = transformers.Trainer(model=tiny("bert"), args=arguments, processing_class=tokenizer)
    model = attnviz.load(trainer)
    assert model.module is trainer.model
    assert model.tokenizer is tokenizer
    assert model.notes == ("the model is Trainer.model",)


def test_image_pipelines_give_their_processor():
    processor = transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.ViTForImageClassification(config)
    pipeline = transformers.ImageClassificationPipeline(model, image_processor=processor)
    assert attnviz.load(pipeline).checkpoint.processors.image is processor


def test_sentence_transformers_give_model_and_tokenizer(model):
    encoder = sentence_transformers.SentenceTransformer(model.module.config.name_or_path)
    loaded = attnviz.load(encoder)
    assert loaded.tokenizer is not None
    note = "the model is SentenceTransformer[0].model; not shown: [1] (Pooling), [2] (Normalize)"
    assert loaded.notes == (note,)
    for one, other in zip(loaded.attend(TEXTS[0]), model.attend(TEXTS[0]), strict=True):
        torch.testing.assert_close(one.weights(), other.weights())


def test_cross_encoders_and_own_objects_give_their_tokenizer(tokenizer, tmp_path):
    config = transformers.BertConfig(**BERT, num_labels=1)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = attnviz.load(sentence_transformers.CrossEncoder(str(tmp_path)))
    assert type(loaded.module).__name__ == "BertForSequenceClassification"
    assert loaded.notes[0].startswith("the model is CrossEncoder[0].model")
    pipeline = transformers.FeatureExtractionPipeline(tiny("bert"), tokenizer=tokenizer)
    assert attnviz.load(SimpleNamespace(pipe=pipeline)).tokenizer is tokenizer


@pytest.mark.parametrize("kind", [tuple, dict])
def test_a_container_brings_its_tokenizer(tokenizer, kind):
    module = tiny("bert")
    held = {"model": module, "tokenizer": tokenizer}
    model = attnviz.load(held if kind is dict else tuple(held.values()))
    assert model.tokenizer is tokenizer


def test_several_models_are_named_by_their_paths(tokenizer):
    both = Holding(question=tiny("bert"), answer=SimpleNamespace(net=tiny("gpt2")))
    expected = r"holds 2 models of transformers: \.question \(BertForMaskedLM\), \.answer"
    with pytest.raises(InputError, match=expected):
        attnviz.load(both, tokenizer=tokenizer)
    assert attnviz.load(both.answer.net, tokenizer=tokenizer).module is both.answer.net


def test_objects_without_a_model_are_refused():
    with pytest.raises(InputError, match=r"call model\.load_state_dict\(weights\)"):
        attnviz.load(nn.Linear(2, 2).state_dict())
    hidden = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(c=tiny("bert"))))
    with pytest.raises(InputError, match="SimpleNamespace is not a checkpoint"):
        attnviz.load(hidden)


# --- LoRA


def lora(**settings):
    targets = settings.pop("target_modules", ["query", "key", "value", "dense"])
    return peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False, **settings
    )


def adapted(**settings):
    torch.manual_seed(0)
    return peft.get_peft_model(tiny("bert"), lora(**settings)).eval()


def adapters_of(result):
    """The adapters by name, of which the caption says the number and no note speaks."""
    names = result.provenance.computation.adapters
    count = {0: "", 1: " with 1 adapter"}.get(len(names), f" with {len(names)} adapters")
    assert result.provenance.with_changes == count
    assert not any("adapter" in note for note in result.notes)
    return names


@needs_peft
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"lora_bias": True}])
def test_lora_is_compared_at_every_stage(settings, tokenizer):
    result = attnviz.load(adapted(**settings), tokenizer=tokenizer).attend(TEXTS[0])
    assert result.agreement.verdict == "verified"
    assert stages(result) == [*PROJECTIONS]
    assert adapters_of(result) == ("default",)


@needs_peft
def test_several_adapters_merged_or_not_or_disabled(tokenizer):
    other = lora(target_modules=["query"])
    model = adapted()
    model.add_adapter("other", other)
    model.base_model.set_adapter(["default", "other"])
    loaded = attnviz.load(model, tokenizer=tokenizer)
    both = loaded.attend(TEXTS[0])
    assert adapters_of(both) == ("default", "other")
    with model.disable_adapter():
        without = loaded.attend(TEXTS[0])
    assert adapters_of(without) == ()
    model.merge_adapter()
    merged = attnviz.load(model, tokenizer=tokenizer).attend(TEXTS[0])
    assert adapters_of(merged) == ("default", "other")
    for result in (both, without, merged):
        assert result.agreement.verdict == "verified"
        assert stages(result) == [*PROJECTIONS]
    for one, other in zip(both, merged, strict=True):
        torch.testing.assert_close(one.weights(), other.weights(), rtol=1e-4, atol=1e-5)
    assert (both.record(0).weights() - without.record(0).weights()).abs().max() > 0.01


@needs_peft
def test_adapters_of_other_kinds_are_named(tokenizer):
    config = peft.IA3Config(target_modules=["query", "value"], feedforward_modules=[])
    model = peft.get_peft_model(tiny("bert"), config, adapter_name="scaled")
    assert adapters_of(attnviz.load(model, tokenizer=tokenizer).attend(TEXTS[0])) == ("scaled",)


@needs_peft
def test_a_fault_in_an_adapter_is_caught(tokenizer):
    """A wrong factor on what an adapter adds is named, at the stage where it is."""
    model = adapted()
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query

    def one_percent_off(module, args, output):
        return output * 1.01

    layer.lora_B["default"].register_forward_hook(one_percent_off)
    report = attnviz.verify(TEXTS[0], model=attnviz.load(model, tokenizer=tokenizer))
    assert report.verdict == "failed"
    assert (report.first_difference.layer, report.first_difference.stage) == (0, "query")


@needs_peft
def test_other_variants_of_lora_are_not_compared(tokenizer):
    result = attnviz.load(adapted(use_dora=True), tokenizer=tokenizer).attend(TEXTS[0])
    assert result.agreement.verdict == "verified"
    assert stages(result) == []


@needs_peft
def test_virtual_tokens_are_refused(tokenizer):
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny("bert"), config)
    with pytest.raises(InputError, match="puts trained vectors before every text"):
        attnviz.load(model, tokenizer=tokenizer)


# --- quantized


def test_dynamic_int8_rounds_the_input_too(tokenizer):
    model = torch.ao.quantization.quantize_dynamic(tiny("bert"), {nn.Linear}, dtype=torch.qint8)
    loaded = attnviz.load(model, tokenizer=tokenizer)
    # The rounding depends on the whole batch.
    for result in [*loaded.attend(TEXTS), loaded.attend(TEXTS[0])]:
        assert result.agreement.verdict == "verified"
        assert stages(result) == ["query", "key", "value"]
        layout = result.record(0).projection.query
        assert type(layout.before[0]).__name__ == "Rounding"
        assert result.provenance.computation.quantized == {"dynamic int8": 20}
    assert loaded.checkpoint.current_sha256() == loaded.checkpoint.sha256


class Quantized(torch.Tensor):
    """A weight of 4 bits that multiplies by what its public `dequantize` returns."""

    @staticmethod
    def __new__(cls, weight, rounds_input=False):
        self = torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype)
        self.scale = weight.abs().max() / 7
        self.numbers = (weight / self.scale).round().to(torch.int8)
        self.act_quant_kwargs = {} if rounds_input else None
        return self

    def dequantize(self):
        return self.numbers * self.scale

    def __repr__(self):
        return "Quantized"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("detach", "alias"):
            return args[0]
        plain = [arg.dequantize() if isinstance(arg, Quantized) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


@pytest.mark.parametrize("rounds_input", [False, True])
def test_quantized_weights_are_compared_unless_their_module_rounds_its_input(
    rounds_input, tokenizer
):
    model = tiny("bert")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight = Quantized(module.weight.detach(), rounds_input)
            module.weight = nn.Parameter(weight, requires_grad=False)
    result = attnviz.load(model, tokenizer=tokenizer).attend(TEXTS[0])
    assert result.agreement.verdict == "verified"
    assert stages(result) == ([] if rounds_input else [*PROJECTIONS])
    assert result.provenance.with_changes == " with 20 quantized layers"
    assert result.provenance.computation.quantized == {"Quantized": 20}
