"""The projections of an attention module, and its inputs: found by the names of both.

No model family is named here. Projections are returned as plain matrices, in the orientation of the
formula: X W + b. A module may store the matrices of its heads side by side, one head after the
other, or in groups. Each layout is read as a stack of matrices, heads first, a view of the module's
own parameters wherever strides allow it. Where the shapes are ambiguous, all layouts are returned,
the likeliest first; the recorded numbers decide (match.py).
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnviz.models import last_check
from attnviz.results import Gate, HeadProjection, Linear, Norm, Rounding
from attnviz.runtime.compat import write_count

STAGES = ("query", "key", "value")
# The names of the projections in the attention modules of transformers.
_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
    ("linear_q", "linear_k", "linear_v"),
    ("Wq", "Wk", "Wv"),
    ("q", "k", "v"),
)
_FUSED = ("c_attn", "qkv_proj", "query_key_value", "Wqkv", "qkv", "W_pack", "in_proj")
_KEY_AND_VALUE = (("q_attn", "c_attn"), ("q_proj", "kv_proj"))
# Latent attention: X → narrow vector → norm → heads; a part of the narrow vector is rotated.
_LATENT_QUERY = (("q_a_proj",), ("q_a_layernorm", "q_a_norm"), ("q_b_proj",))
_LATENT_KEY_AND_VALUE = (("kv_a_proj_with_mqa",), ("kv_a_layernorm", "kv_a_norm"), ("kv_b_proj",))
_OUTPUT = ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "o", "linear_out", "proj", "Wo")
_OUTPUT_OF_PARENT = "output.dense"  # the parent holds W^O, the child the heads
# Each makes the keys and what reads them; the matrix of the keys may make the values too.
_NEEDED = (
    *(names[:2] for names in _SEPARATE),
    *_KEY_AND_VALUE,
    (*_LATENT_KEY_AND_VALUE[0], *_LATENT_KEY_AND_VALUE[2]),
)
_PROJECTIONS = {*_FUSED, *chain(*_NEEDED)}
_GATES = ("gate_proj", "g_proj", "output_gate", "gate")
NORMS = {
    "query": ("q_norm", "query_layernorm", "q_layernorm", "q_layer_norm", "query_norm", "qk_norm"),
    "key": ("k_norm", "key_layernorm", "k_layernorm", "k_layer_norm", "key_norm", "qk_norm"),
    "value": ("v_norm", "value_layernorm", "v_layernorm", "value_norm"),
    "output": ("attn_sub_norm", "inner_attn_ln", "sub_norm", "o_norm"),  # before W^O
}
_EPS = ("variance_epsilon", "eps", "epsilon")
# The names of arguments of their forward, and of one table they hold.
_OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
_ANGLES = ("position_embeddings", "sinusoidal_pos", "freqs_cis", "rotary_pos_emb")
_ADAPTED = ("base_layer", "lora_A", "lora_B", "scaling")  # of a layer of PEFT with LoRA
_TABLES = ("embed_positions",)  # sines, then cosines, of every position


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """One attention module, and the module that multiplies its heads by W^O (or None)."""

    module: nn.Module
    output: nn.Module | None
    # The stages whose form is known, because attnviz reproduces them in every attention of this
    # architecture. If the module computes something else, that is a difference.
    known: frozenset[str] = frozenset()


def find_attention_modules(model: nn.Module) -> dict[str, AttentionModule]:
    """Return every module that holds the projections to queries, keys and values, by its path."""
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    architecture = last_check().architectures.get(str(model_type))
    known = frozenset(architecture.stages if architecture else ())
    modules = dict(model.named_modules())
    numbers = [id(module) for module in modules.values()]
    before, paths = _paths.get(model, (None, []))
    if before != numbers:
        paths = [path for path, module in modules.items() if _has_projections(module)]
        _paths[model] = numbers, paths
    return {
        path: AttentionModule(
            module,
            find_output(modules, path),
            # The code of transformers, and not a class or forward of the user.
            known
            if type(module).__module__.startswith("transformers.") and "forward" not in vars(module)
            else frozenset(),
        )
        for path in paths
        for module in (modules[path],)
    }


# The modules that a model had, and the paths of its attention modules: it is asked in each run.
_paths: WeakKeyDictionary[nn.Module, tuple[list[int], list[str]]] = WeakKeyDictionary()


def find_output(modules: Mapping[str, nn.Module], path: str) -> nn.Module | None:
    """Return the module, among those of a model, that multiplies the heads by W^O, or None."""
    parent, _, _ = path.rpartition(".")
    candidates = [*(f"{path}.{name}" for name in _OUTPUT), f"{parent}.{_OUTPUT_OF_PARENT}"]
    found = (modules.get(candidate.lstrip(".")) for candidate in candidates)
    return next((one for one in found if isinstance(getattr(one, "weight", None), Tensor)), None)


def _has_projections(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight is not None
    children = dict(module.named_children())
    if children.keys().isdisjoint(_PROJECTIONS):
        return False
    return _fused_linear(module) is not None or any(
        all(
            name in children and (linear_child(module, name) or rounding_linear(children[name]))
            for name in names
        )
        for names in _NEEDED
    )


def _fused_linear(module: nn.Module) -> Linear | None:
    """Return the single matrix of a module that makes queries, keys and values, or None."""
    if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
        bias = module.in_proj_bias
        return Linear(module.in_proj_weight.detach().mT, None if bias is None else bias.detach())
    for name in _FUSED:
        linear = linear_child(module, name)
        if linear is None:
            continue
        if name == "in_proj":  # other mixers than attention have one too, of another width
            d_in, d_out = linear.weight.shape
            if d_out != 3 * d_in or not any("head" in member for member in vars(module)):
                continue
        if not any(name == both and linear_child(module, query) for query, both in _KEY_AND_VALUE):
            return linear
    return None


def norms(module: nn.Module, names: tuple[str, ...], heads: int, width: int) -> Iterator[Norm]:
    """Return the norms that the child of one of these names may compute, the likeliest first."""
    children = (getattr(module, name, None) for name in names)
    child = next((child for child in children if isinstance(child, nn.Module)), None)
    if child is None:
        return
    leaves = [leaf for leaf in child.modules() if not any(leaf.children())]  # one for each head?
    weight, bias = (_stacked(leaves, name) for name in ("weight", "bias"))
    over_width = weight is not None and weight.dim() == 1 and weight.numel() == heads * width
    kind = type(leaves[0]).__name__
    centered = bias is not None or ("Layer" in kind and "RMS" not in kind)
    epsilons = (getattr(leaves[0], name, None) for name in _EPS)
    eps = next((float(eps) for eps in epsilons if eps is not None), 1e-6)
    for is_layer_norm in (centered, not centered):
        for offset in (0.0, 1.0) if weight is not None else (0.0,):
            yield Norm(
                kind="layer" if is_layer_norm else "rms",
                over="width" if over_width and heads > 1 else "head",
                weight=weight,
                bias=bias,
                eps=eps,
                offset=offset,
            )


def _stacked(modules: list[nn.Module], name: str) -> Tensor | None:
    members = [getattr(module, name, None) for module in modules]
    tensors = [value.detach() for value in members if isinstance(value, Tensor)]
    if not tensors or len(tensors) < len(modules):
        return None
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)


@dataclass(frozen=True)
class Sizes:
    """The recorded sizes: H query heads, and the widths d_k and d_v of a head."""

    heads: int
    key: int
    value: int
    # How a dynamically quantized module may round its input, which depends on the run.
    roundings: Callable[[], tuple[Rounding, ...]] = tuple


def layouts(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    """Return the ways in which `module` may project to its queries, keys or values."""
    yield from _separate(module, stage, sizes)
    yield from _latent(module, stage, sizes)
    if (linear := _fused_linear(module)) is not None:
        for heads in _fused(linear, stage, sizes, sizes.heads):
            bias = getattr(module, f"{stage[0]}_bias", None)  # stored beside the matrix
            size = len(heads.weight) * heads.weight.shape[-1]
            if isinstance(bias, Tensor) and heads.bias is None and bias.numel() == size:
                yield replace(heads, bias=bias.detach().reshape(len(heads.weight), -1))
            yield heads
    for _, name in _KEY_AND_VALUE:
        if stage != "query" and (linear := linear_child(module, name)) is not None:
            yield from _fused(linear, stage, sizes, 0)


def gates(module: nn.Module, sizes: Sizes) -> Iterator[Gate]:
    """Return the gates that may stand between the heads of `module` and W^O."""
    gate_projections = []
    if (linear := linear_child(module, *_GATES)) is not None:
        width, rest = divmod(linear.weight.shape[-1], sizes.heads)
        if not rest and width in (1, sizes.value):
            gate_projections.append(_cut(linear, 1, 0, sizes.heads, width))
    query = linear_child(module, *(names[0] for names in _SEPARATE))
    if query is not None and query.weight.shape[-1] == sizes.heads * (sizes.key + sizes.value):
        gate_projections.append(_cut(query, sizes.heads, sizes.key, 1, sizes.value))
        gate_projections.append(_cut(query, 1, sizes.heads * sizes.key, sizes.heads, sizes.value))
    for gate in gate_projections:
        bias = getattr(module, "gate_bias", None)  # stored beside the matrix, one for each head
        if isinstance(bias, Tensor) and gate.bias is None and bias.numel() == sizes.heads:
            gate = replace(gate, bias=bias.detach().reshape(-1, 1).expand(gate.weight.shape[::2]))
        yield Gate(gate.weight, gate.bias, "sigmoid")
        yield Gate(gate.weight, gate.bias, "softplus")


def _separate(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    width = sizes.value if stage == "value" else sizes.key
    # Values may be the keys before norm and rotation.
    places = {"query": (0,), "key": (1,), "value": (2, 1)}[stage]
    every = (*_SEPARATE, *_KEY_AND_VALUE) if stage == "query" else _SEPARATE
    for names in every:
        linear = linear_child(module, *(names[place] for place in places))
        if linear is None or linear.weight.shape[-1] % width:
            continue
        count = linear.weight.shape[-1] // width
        if stage == "query" and count == 2 * sizes.heads:  # a gate as wide as the queries
            yield _cut(linear, sizes.heads, 0, 1, width)
            yield _cut(linear, 1, 0, sizes.heads, width)
        else:
            yield _cut(linear, 1, 0, count, width)
    for names in _SEPARATE:
        linear = rounding_linear(getattr(module, names[STAGES.index(stage)], None))
        if linear is not None and not linear.weight.shape[-1] % width:
            heads = _cut(linear, 1, 0, linear.weight.shape[-1] // width, width)
            yield from (replace(heads, before=(rounding,)) for rounding in sizes.roundings())


def _fused(linear: Linear, stage: str, sizes: Sizes, heads: int) -> Iterator[HeadProjection]:
    """Split one matrix of `heads` query heads, and of the key heads that fit.

    It consists of n blocks that each hold the queries, keys and values of some heads: n = 1 is side
    by side, n = H head by head, n = G group by group.
    """
    remaining = linear.weight.shape[-1] - heads * sizes.key
    key_heads, rest = divmod(remaining, sizes.key + sizes.value)
    if rest or key_heads < 1 or heads % key_heads:
        return
    counts = {"query": heads, "key": key_heads, "value": key_heads}
    widths = {"query": sizes.key, "key": sizes.key, "value": sizes.value}
    most = math.gcd(heads, key_heads)
    divisors = [n for n in range(1, most + 1) if most % n == 0]
    for order in (STAGES, ("query", "value", "key")):
        for blocks in sorted(divisors, key=lambda n: n not in (1, most)):
            lengths = [counts[name] // blocks * widths[name] for name in order]
            starts = dict(zip(order, accumulate(lengths, initial=0), strict=False))
            yield _cut(linear, blocks, starts[stage], counts[stage] // blocks, widths[stage])


def _latent(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    """Return the heads of latent attention, which read a narrow, normed vector instead of X."""
    names = _LATENT_QUERY if stage == "query" else _LATENT_KEY_AND_VALUE
    down, up = linear_child(module, *names[0]), linear_child(module, *names[2])
    if down is None or up is None:
        return
    rank, width = up.weight.shape
    narrow = Linear(down.weight[:, :rank], None if down.bias is None else down.bias[:rank])
    rotated = Linear(down.weight[:, rank:], None if down.bias is None else down.bias[rank:])
    unshared = sizes.key - rotated.weight.shape[-1]  # the features of a key of one head alone
    expected = sizes.key if stage == "query" else unshared + sizes.value
    if unshared < 0 or width != sizes.heads * expected:
        return
    for norm in [*norms(module, names[1], 1, rank), None]:
        before: tuple[Linear | Norm, ...] = (narrow,) if norm is None else (narrow, norm)
        if stage == "query":
            yield replace(_cut(up, sizes.heads, 0, 1, sizes.key), before=before)
        elif stage == "key":
            heads = _cut(up, sizes.heads, 0, 1, unshared)
            yield replace(heads, before=before, beside=rotated)
        else:
            yield replace(_cut(up, sizes.heads, unshared, 1, sizes.value), before=before)


def _cut(linear: Linear, blocks: int, start: int, count: int, width: int) -> HeadProjection:
    """Return `count` heads of each of the equal blocks of a matrix, from column `start` on."""

    def heads(columns: Tensor) -> Tensor:
        block = columns.reshape(*columns.shape[:-1], blocks, -1)
        block = block[..., start : start + count * width]
        return block.reshape(*block.shape[:-1], count, width).flatten(-3, -2)

    return HeadProjection(
        weight=heads(linear.weight).movedim(-2, 0),
        bias=None if linear.bias is None else heads(linear.bias),
    )


def linear_child(module: nn.Module, *names: str) -> Linear | None:
    """Return the first of these children that is a plain matrix (and a bias)."""
    children = [child for name in names if (child := getattr(module, name, None)) is not None]
    return next((linear for linear in map(plain_linear, children) if linear is not None), None)


@torch.no_grad()
def plain_linear(child: Any) -> Linear | None:
    """Return W (d_in, d_out) and b of a module that computes only X W + b, else None.

    They are views of its own where possible. torch's Linear stores Wᵀ, transformers' Conv1D stores
    W. LoRA adds B·A·scaling to W. Any other child with submodules does more than multiply.
    """
    if all(hasattr(child, name) for name in _ADAPTED):
        return _adapted(child)
    if not isinstance(child, nn.Module) or any(child.children()):
        return None
    weight, bias = _numbers(child), getattr(child, "bias", None)
    if weight is None or weight.dim() != 2:
        return None
    stored_transposed = not hasattr(child, "nf")  # the width of a Conv1D
    return Linear(
        weight.mT if stored_transposed else weight,
        bias.detach() if isinstance(bias, Tensor) else None,
    )


@torch.no_grad()
def rounding_linear(child: Any) -> Linear | None:
    """Return W and b of a layer of torch's dynamic quantization, which also rounds its input."""
    kind = type(child)
    if kind.__name__ != "Linear" or not kind.__module__.startswith("torch.ao.nn.quantized.dynamic"):
        return None
    weight, bias = child.weight(), child.bias()
    if not weight.is_quantized:  # in float16
        return None
    return Linear(weight.dequantize().mT, None if bias is None else bias.detach())


def _adapted(child: Any) -> Linear | None:
    """Return W + Σ A B · scaling over active, not merged adapters; None for variants (DoRA)."""
    linear = plain_linear(child.base_layer)
    if linear is None or child.merged or child.disable_adapters:
        is_base = not (child.merged and child.disable_adapters)  # which the run would unmerge
        return linear if is_base else None
    weight, bias = linear.weight, linear.bias
    wide = torch.promote_types(weight.dtype, torch.float32)
    for name in child.active_adapters:
        if name not in child.lora_A:
            continue
        down, up = plain_linear(child.lora_A[name]), plain_linear(child.lora_B[name])
        is_variant = name in getattr(child, "lora_variant", {})
        is_variant |= getattr(child, "use_dora", {}).get(name, False)
        if is_variant or down is None or up is None:
            return None
        scaling = child.scaling[name]
        weight = weight.to(wide) + down.weight.to(wide) @ up.weight.to(wide) * scaling
        if up.bias is not None:
            added = up.bias.to(wide) * scaling
            bias = added if bias is None else bias.to(wide) + added
    return Linear(weight, bias)


def _numbers(child: nn.Module) -> Tensor | None:
    """Return the weight that a module multiplies by; None if it also rounds its input."""
    weight = getattr(child, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    weight = weight.detach()
    if (state := getattr(child.weight, "quant_state", None)) is not None:  # bitsandbytes, 4 bit
        computed: torch.dtype = getattr(child, "compute_dtype", None) or state.dtype
        is_coarse = torch.finfo(computed).eps > torch.finfo(state.dtype).eps
        if is_coarse or getattr(state, "packing_format_for_cpu", False):  # it reads no such packing
            return None
        functional: Any = sys.modules["bitsandbytes"].functional
        numbers: Tensor = functional.dequantize_4bit(weight, state)
        return numbers
    if type(weight).dequantize is not Tensor.dequantize:  # torchao
        rounds_input = getattr(weight, "act_quant_kwargs", None) is not None
        return None if rounds_input else weight.dequantize()
    return weight if weight.is_floating_point() else None


@dataclass(frozen=True, eq=False)
class ModuleInputs:
    """The inputs of an attention module, as far as they are known."""

    input: Tensor | None = None  # X (N, m, d_model)
    key_input: Tensor | None = None  # (N, n, d_model), of the keys and values in cross-attention
    # Cosines and sines of a rotary position embedding, each (N or 1, m, r).
    rotation: tuple[Tensor, Tensor] | None = None


def texts_first(module: nn.Module, hidden: Any) -> Any:
    """Return hidden states of a module with the texts first; torch's attention may have them so."""
    is_second = isinstance(module, nn.MultiheadAttention) and not module.batch_first
    return hidden.transpose(0, 1) if is_second and hidden is not None else hidden


# By the identity and the writes of tensors: the argument of a module, which keeps them, and angles.
Rotations = dict[tuple[tuple[int, int], ...], tuple[Any, tuple[Tensor, Tensor] | None]]


def read_inputs(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    texts: int,
    rotations: Rotations,
) -> ModuleInputs:
    """Return the inputs of an attention module from the arguments of its forward on N texts.

    rotations : those of other modules in this run, which often get the same.
    """
    # The class has the names also where the forward of this module is wrapped.
    is_script = isinstance(module, torch.jit.ScriptModule)  # which does not name its arguments
    names = [] if is_script else [*inspect.signature(type(module).forward).parameters][1:]
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    members = vars(module) | dict(module.named_buffers(recurse=False))
    positions, table = arguments.get("position_ids"), _first(members, _TABLES)
    rotation = None
    if isinstance(positions, Tensor) and isinstance(table, Tensor):
        rotation = angles(table.to(positions.device)[positions])
    rotation = rotation or _angles_once(_first(arguments, _ANGLES), rotations)
    if rotation is not None and len(rotation[0]) not in (1, texts):
        rotation = None  # angles of several dimensions, as in pictures

    key_input = _first(arguments, _OTHER_SEQUENCE)
    if isinstance(module, nn.MultiheadAttention) and arguments["key"] is not arguments["query"]:
        key_input = arguments["key"]

    def copy_of(hidden: Any) -> Tensor | None:
        """Return a copy of hidden states (N, m, d_model): a model may add to them in place."""
        hidden = texts_first(module, hidden)
        if not isinstance(hidden, Tensor) or hidden.dim() != 3 or len(hidden) != texts:
            return None
        with suppress(RuntimeError):  # a transform of torch.func wraps it
            return hidden.detach().clone()
        return None

    return ModuleInputs(
        input=copy_of(next((arguments[name] for name in names if name in arguments), None)),
        key_input=copy_of(key_input),
        rotation=rotation,
    )


def _angles_once(rotation: Any, known: Rotations) -> tuple[Tensor, Tensor] | None:
    """Return the `angles` of an argument, read once for all modules that get the same tensors."""
    tensors = rotation if isinstance(rotation, tuple | list) else (rotation,)
    if not all(isinstance(one, Tensor) and not one.is_inference() for one in tensors):
        return angles(rotation)
    key = tuple((id(one), write_count(one)) for one in tensors)
    if key not in known:
        known[key] = rotation, angles(rotation)
    return known[key][1]


def angles(rotation: Any) -> tuple[Tensor, Tensor] | None:
    """Return cosines and sines from the argument that a model passes to its attention, or None.

    Models pass one complex number per pair; or the sines of all pairs, then their cosines; or
    cosines and sines, once per pair, or twice: side by side, or one half after the other. The last
    of these forms is returned, each (N or 1, T, r).
    """
    if isinstance(rotation, Tensor) and rotation.is_complex():
        cos, sin = rotation.real, rotation.imag
    elif isinstance(rotation, Tensor) and rotation.is_floating_point():
        sin, cos = rotation.chunk(2, -1)
    elif isinstance(rotation, tuple | list) and len(rotation) == 2:
        cos, sin = rotation
        if not isinstance(cos, Tensor) or not isinstance(sin, Tensor) or cos.shape != sin.shape:
            return None
        cos, sin = (sin, cos) if _are_swapped(cos, sin) else (cos, sin)
        cos, sin = _one_per_pair(cos, sin)
    else:
        return None
    tables = []
    for table in (cos.detach(), sin.detach()):
        while table.dim() > 3 and 1 in table.shape[:-1]:  # (N, 1, T, r)
            table = table.squeeze([i for i, size in enumerate(table.shape[:-1]) if size == 1][-1])
        table = table.unsqueeze(0) if table.dim() == 2 else table
        tables.append(torch.cat((table, table), -1))
    return tables[0], tables[1]


def _are_swapped(cos: Tensor, sin: Tensor) -> bool:
    """Return whether the sines come first: at position 0 they are 0; alone, in the slowest pair."""
    if cos.dim() > 1 and cos.shape[-2] == 1:
        return bool((cos[..., -1].abs() < sin[..., -1].abs()).all())
    return bool(((cos == 0) & (sin == 1)).all(-1).any())


def _one_per_pair(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    width = cos.shape[-1]
    if width % 2 == 0 and all(torch.equal(*table.chunk(2, -1)) for table in (cos, sin)):
        return cos[..., : width // 2], sin[..., : width // 2]
    if width % 2 == 0 and all(torch.equal(t[..., 0::2], t[..., 1::2]) for t in (cos, sin)):
        return cos[..., 0::2], sin[..., 0::2]
    return cos, sin


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)
