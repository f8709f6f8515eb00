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
from attnviz.models.objects import shadow_of

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


def altered(change, family="llama"):
    """Return a function that makes a tiny model and changes it."""

    def make():
        model = tiny(family)
        return change(model) or model

    return make


def with_mlp(change):
    """Return a function that makes a tiny model and changes a module of its first layer."""
    return altered(lambda model: change(model.model.layers[0].mlp))


def checkpointing(model):
    model.train().gradient_checkpointing_enable()


def compile_a_layer(model):
    model.bert.encoder.layer[0] = torch.compile(model.bert.encoder.layer[0], backend="eager")


def compile_the_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")


COMPILED = {
    "compiled": altered(lambda model: model.compile(backend="eager"), "bert"),
    "with a compiled layer": altered(compile_a_layer, "bert"),
    "with a compiled forward": altered(compile_the_forward, "bert"),
}


def hook_that_holds_the_model(model):
    def hook(module, args, output):
        return output * 1.01 + model.model.norm.weight.mean()

    model.model.layers[0].mlp.register_forward_hook(hook)


def hooks_that_know_modules(model):
    seen = {}
    names = {module: name for name, module in model.named_modules()}

    def hook(module, args, output):
        seen[names[module]] = 1

    for module in model.modules():
        module.register_forward_hook(hook)


class Keeper:
    def __init__(self, model):
        self.model = model

    def hook(self, module, args, output):
        return output * (1 + self.model.model.norm.weight.sum() * 1e-3)


def hook_of_an_object(model):
    model.model.layers[0].mlp.register_forward_hook(Keeper(model).hook)


def hook_with_keywords(model):
    def hook(module, args, kwargs):
        return (args[0] * 1.1, *args[1:]), kwargs

    model.model.layers[1].register_forward_pre_hook(hook, with_kwargs=True)


def forward_around_its_own(model):
    attention = model.model.layers[0].self_attn
    own = attention.forward

    def forward(*args, **kwargs):
        output = own(*args, **kwargs)
        return output[0] * 1.05, *output[1:]

    attention.forward = forward


# Cells of a notebook name the model in globals.
CELL = """
attention = model.model.layers[0].self_attn
own = attention.forward
def scaled(output):
    return output[0] * (1.05 + attention.o_proj.weight.mean()), *output[1:]
def forward(*args, **kwargs):
    return scaled(own(*args, **kwargs))
attention.forward = forward
"""


def bound_forward(mlp):
    mlp.forward = types.MethodType(lambda self, hidden: type(self).forward(self, hidden) * 2, mlp)


def partial_forward(mlp):
    mlp.forward = functools.partial(lambda module, h: module.down_proj(module.up_proj(h)), mlp)


def decorated_forward(mlp):
    def twice(forward):
        @functools.wraps(forward)
        def run(*args):
            return forward(*args) * 2

        return run

    mlp.forward = twice(twice(mlp.forward))


class Scaled:
    def __init__(self, forward):
        self.forward = forward

    def __call__(self, *args, **kwargs):
        output = self.forward(*args, **kwargs)
        return output[0] * 1.05, *output[1:]


def object_as_forward(model):
    attention = model.model.layers[0].self_attn
    attention.forward = Scaled(attention.forward)


class Around(nn.Module):
    """Refers to a module of the model in many ways."""

    def __init__(self, inner, model):
        super().__init__()
        self.inner, self.inners, self.weak = inner, [inner], weakref.ref(inner)
        vars(self)["model"] = model

    def forward(self, hidden):
        assert self.weak() is self.inner is self.inners[0]
        return self.inners[0](hidden) * self.model.model.norm.weight.mean()


def references(model):
    model.model.layers[0].mlp = Around(model.model.layers[0].mlp, model)


def foreign_objects(model):
    model.lock, model.local, model.file = threading.RLock(), threading.local(), io.StringIO()


def generator(mlp):
    mlp.generator = torch.Generator().manual_seed(1)
    mlp.register_forward_hook(
        lambda module, args, output: (
            output + 0 * torch.rand(output.shape, generator=module.generator)
        )
    )


def parametrize(model):
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].intermediate.dense)


def pruning(model):
    prune.l1_unstructured(model.bert.encoder.layer[0].intermediate.dense, "weight", 0.3)


def trace(model):
    model.model.layers[0].mlp = torch.fx.symbolic_trace(model.model.layers[0].mlp)


def adapter(kind, **options):
    def change(model):
        peft = pytest.importorskip("peft")
        config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
        return peft.get_peft_model(model, config).eval()

    return altered(change)


ALTERED = {
    **COMPILED,
    "in training": altered(lambda model: model.train(), "bert"),
    "with checkpoints": altered(checkpointing),
    "with a hook that holds the model": altered(hook_that_holds_the_model),
    "with hooks that know modules": altered(hooks_that_know_modules),
    "with the hook of an object": altered(hook_of_an_object),
    "with a hook with keywords": altered(hook_with_keywords),
    "with a forward around its own": altered(forward_around_its_own),
    "of a notebook": altered(lambda model: exec(CELL, {"model": model, "__name__": "__main__"})),
    "with a bound forward": with_mlp(bound_forward),
    "with a partial forward": with_mlp(partial_forward),
    "with a decorated forward": with_mlp(decorated_forward),
    "with an object as forward": altered(object_as_forward),
    "with references": altered(references),
    "with foreign objects": altered(foreign_objects),
    "with a generator": with_mlp(generator),
    "parametrized": altered(parametrize, "bert"),
    "pruned": altered(pruning, "bert"),
    "quantized": altered(
        lambda model: torch.ao.quantization.quantize_dynamic(model, {nn.Linear}), "bert"
    ),
    "traced": altered(trace),
    "placed": altered(
        lambda model: accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    ),
    "offloaded": altered(
        lambda model: accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    ),
    "with LoRA": adapter(
        "LoraConfig", target_modules=["q_proj", "v_proj"], init_lora_weights=False
    ),
    "with a prefix": adapter("PrefixTuningConfig", num_virtual_tokens=3),
}


@pytest.mark.filterwarnings("ignore")  # of the libraries that alter a model
@pytest.mark.parametrize("name", ALTERED)
def test_a_shadow_computes_what_its_model_does(name):
    model = ALTERED[name]()
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


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_run_uncompiled_is_named(name, tokenizer):
    result = attnviz.load(COMPILED[name](), tokenizer=tokenizer).attend(TEXTS[0])
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
