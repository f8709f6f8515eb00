"""A shadow computes what its model does, bit for bit, and never changes it."""

import functools
import io
import threading
import types
import warnings
import weakref

import accelerate
import pytest
import torch
from families import TEXTS, tiny
from torch import nn
from torch.nn.utils import prune
from torch.utils._pytree import tree_leaves

import attnviz
from attnviz.models.shadow import shadow_of

IDS = {"input_ids": torch.arange(5, 17)[None]}


def numbers(module, inputs=IDS):
    torch.manual_seed(3)  # of dropout
    with torch.no_grad():
        leaves = tree_leaves(module(**inputs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def state(module):
    """Everything in a model that a run could change, by name."""
    found = {}
    for path, one in module.named_modules():
        for name, value in vars(one).items():
            key = f"{path}|{name}"
            if name in ("_parameters", "_buffers"):
                for tensor_name, tensor in value.items():
                    if tensor is not None:
                        identity = id(tensor), tensor._version, tensor.requires_grad
                        found[f"{key}|{tensor_name}"] = identity
            elif isinstance(value, dict):
                found[key] = [(str(item), id(held)) for item, held in value.items()]
            elif hasattr(value, "to_json_string"):
                implementation = getattr(value, "_attn_implementation", None)
                found[key] = value.to_json_string(use_diff=False), implementation
            else:
                plain = isinstance(value, int | float | str | bool | type(None))
                found[key] = value if plain else id(value)
    return found


# --- what people do to a model


def trained():
    return tiny("bert").train()


def with_checkpoints():
    model = tiny("llama").train()
    model.gradient_checkpointing_enable()
    return model


def compiled():
    model = tiny("bert")
    model.compile(backend="eager")
    return model


def with_a_compiled_layer():
    model = tiny("bert")
    model.bert.encoder.layer[0] = torch.compile(model.bert.encoder.layer[0], backend="eager")
    return model


def with_a_compiled_forward():
    model = tiny("bert")
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def with_a_hook_that_holds_the_model():
    model = tiny("llama")

    def hook(module, args, output):
        return output * 1.01 + model.model.norm.weight.mean()

    model.model.layers[0].mlp.register_forward_hook(hook)
    return model


def with_hooks_that_know_modules():
    model, seen = tiny("llama"), {}
    names = {module: name for name, module in model.named_modules()}

    def hook(module, args, output):
        seen[names[module]] = 1

    for module in model.modules():
        module.register_forward_hook(hook)
    return model


class Keeper:
    def __init__(self, model):
        self.model = model

    def hook(self, module, args, output):
        return output * (1 + self.model.model.norm.weight.sum() * 1e-3)


def with_the_hook_of_an_object():
    model = tiny("llama")
    model.model.layers[0].mlp.register_forward_hook(Keeper(model).hook)
    return model


def with_a_hook_with_keywords():
    model = tiny("llama")

    def hook(module, args, kwargs):
        return (args[0] * 1.1, *args[1:]), kwargs

    model.model.layers[1].register_forward_pre_hook(hook, with_kwargs=True)
    return model


def with_a_forward_around_its_own():
    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    own = attention.forward

    def forward(*args, **kwargs):
        output = own(*args, **kwargs)
        return output[0] * 1.05, *output[1:]

    attention.forward = forward
    return model


def of_a_notebook():
    """Cells of a notebook name the model in globals."""
    cell = "\n".join(
        [
            "attention = model.model.layers[0].self_attn",
            "own = attention.forward",
            "def scaled(output):",
            "    return output[0] * (1.05 + attention.o_proj.weight.mean()), *output[1:]",
            "def forward(*args, **kwargs):",
            "    return scaled(own(*args, **kwargs))",
            "attention.forward = forward",
        ]
    )
    cells = {"model": tiny("llama"), "__name__": "__main__"}
    exec(cell, cells)
    return cells["model"]


def with_a_bound_forward():
    model = tiny("llama")
    mlp = model.model.layers[0].mlp
    mlp.forward = types.MethodType(lambda self, hidden: type(self).forward(self, hidden) * 2, mlp)
    return model


def with_a_partial_forward():
    model = tiny("llama")
    mlp = model.model.layers[0].mlp
    mlp.forward = functools.partial(lambda module, h: module.down_proj(module.up_proj(h)), mlp)
    return model


def with_a_decorated_forward():
    def twice(forward):
        @functools.wraps(forward)
        def run(*args):
            return forward(*args) * 2

        return run

    model = tiny("llama")
    mlp = model.model.layers[0].mlp
    mlp.forward = twice(twice(mlp.forward))
    return model


class Scaled:
    def __init__(self, forward):
        self.forward = forward

    def __call__(self, *args, **kwargs):
        output = self.forward(*args, **kwargs)
        return output[0] * 1.05, *output[1:]


def with_an_object_as_forward():
    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    attention.forward = Scaled(attention.forward)
    return model


class Around(nn.Module):
    """Refers to a module of the model in many ways."""

    def __init__(self, inner, model):
        super().__init__()
        self.inner, self.inners, self.weak = inner, [inner], weakref.ref(inner)
        vars(self)["model"] = model

    def forward(self, hidden):
        assert self.weak() is self.inner is self.inners[0]
        return self.inners[0](hidden) * self.model.model.norm.weight.mean()


def with_references():
    model = tiny("llama")
    model.model.layers[0].mlp = Around(model.model.layers[0].mlp, model)
    return model


def with_foreign_objects():
    model = tiny("llama")
    model.lock, model.local, model.file = threading.RLock(), threading.local(), io.StringIO()
    return model


def with_a_generator():
    model = tiny("llama")
    mlp = model.model.layers[0].mlp
    mlp.generator = torch.Generator().manual_seed(1)
    mlp.register_forward_hook(
        lambda module, args, output: (
            output + 0 * torch.rand(output.shape, generator=module.generator)
        )
    )
    return model


def parametrized():
    model = tiny("bert")
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].intermediate.dense)
    return model


def pruned():
    model = tiny("bert")
    prune.l1_unstructured(model.bert.encoder.layer[0].intermediate.dense, "weight", 0.3)
    return model


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(tiny("bert"), {nn.Linear})


def traced():
    model = tiny("llama")
    model.model.layers[0].mlp = torch.fx.symbolic_trace(model.model.layers[0].mlp)
    return model


def placed():
    return accelerate.dispatch_model(tiny("llama"), {"": "cpu"}, force_hooks=True)


def offloaded():
    return accelerate.cpu_offload(tiny("llama"), execution_device=torch.device("cpu"))


def adapted(kind, **options):
    peft = pytest.importorskip("peft")
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
    return peft.get_peft_model(tiny("llama"), config).eval()


def with_lora():
    return adapted("LoraConfig", target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def with_a_prefix():
    return adapted("PrefixTuningConfig", num_virtual_tokens=3)


ALTERED = [
    trained, with_checkpoints, compiled, with_a_compiled_layer, with_a_compiled_forward,
    with_a_hook_that_holds_the_model, with_hooks_that_know_modules, with_the_hook_of_an_object,
    with_a_hook_with_keywords, with_a_forward_around_its_own, of_a_notebook, with_a_bound_forward,
    with_a_partial_forward, with_a_decorated_forward, with_an_object_as_forward, with_references,
    with_foreign_objects, with_a_generator, parametrized, pruned, quantized, traced, placed,
    offloaded, with_lora, with_a_prefix,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of the libraries that alter a model
@pytest.mark.parametrize("altered", ALTERED)
def test_a_shadow_computes_what_its_model_does(altered):
    model = altered()
    expected, before = numbers(model), state(model)
    shadow, _ = shadow_of(model)
    assert all(map(torch.equal, numbers(shadow), expected))
    entered = []
    handles = [
        module.register_forward_pre_hook(lambda *_: entered.append(1)) for module in model.modules()
    ]
    numbers(shadow)
    for handle in handles:
        handle.remove()
    assert not entered  # no module of the model itself runs
    for module in shadow.modules():  # what a recorded run does
        module.register_forward_hook(lambda *_: None)
        if hasattr(config := getattr(module, "config", None), "_attn_implementation_internal"):
            config._attn_implementation_internal = "eager"
    numbers(shadow.eval())
    assert state(model) == before
    assert all(map(torch.equal, numbers(model), expected))


def test_weights_are_shared_and_buffers_are_not():
    model = tiny("llama")
    shadow, notes = shadow_of(model)
    pairs = zip(model.parameters(), shadow.parameters(), strict=True)
    assert all(one.data_ptr() == other.data_ptr() for one, other in pairs)
    pairs = zip(model.buffers(), shadow.buffers(), strict=True)
    assert not any(one.data_ptr() == other.data_ptr() for one, other in pairs)
    assert notes == ()


def test_a_large_buffer_is_shared():
    """It may hold the weights of a quantized model."""
    model = tiny("bert")
    model.register_buffer("packed", torch.zeros(2**19))
    shadow, _ = shadow_of(model)
    assert shadow.packed.data_ptr() == model.packed.data_ptr()


def test_a_scripted_module_is_shared_and_named():
    class Doubled(nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * 2

    model = tiny("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.model.layers[0].mlp = torch.jit.script(Doubled())
    shadow, notes = shadow_of(model)
    assert all(map(torch.equal, numbers(shadow), numbers(model)))
    assert notes == ("RecursiveScriptModule is scripted, so it is run as it is",)


@pytest.mark.parametrize("compile_it", [compiled, with_a_compiled_layer, with_a_compiled_forward])
def test_what_is_run_uncompiled_is_named(compile_it, tokenizer):
    result = attnviz.load(compile_it(), tokenizer=tokenizer).attend(TEXTS[0])
    assert result.agreement.verdict == "verified"
    assert "what torch.compile made of the model is run uncompiled" in result.notes


def test_a_model_that_switches_its_attention_stays_as_it_was():
    """BigBird reads a short text with full attention, and keeps to it."""
    model = tiny("bigbird")
    before = state(model)
    shadow, _ = shadow_of(model)
    numbers(shadow)
    assert shadow.attention_type != model.attention_type == model.config.attention_type
    assert state(model) == before
