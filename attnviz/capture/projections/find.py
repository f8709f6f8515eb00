"""The projections of an attention module, and its inputs: found by the names of both.

No model family is named here. Projections are returned as plain matrices, in the orientation of the
formula: X W + b.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.results import Linear, Norm

# The names of the projections in the attention modules of transformers.
SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
    ("linear_q", "linear_k", "linear_v"),
    ("Wq", "Wk", "Wv"),
    ("q", "k", "v"),
)
FUSED = ("c_attn", "qkv_proj", "query_key_value", "Wqkv", "qkv", "W_pack", "in_proj")
KEY_AND_VALUE = (("q_attn", "c_attn"), ("q_proj", "kv_proj"))
# Latent attention: X → narrow vector → norm → heads; a part of the narrow vector is rotated.
LATENT_QUERY = (("q_a_proj",), ("q_a_layernorm", "q_a_norm"), ("q_b_proj",))
LATENT_KEY_AND_VALUE = (("kv_a_proj_with_mqa",), ("kv_a_layernorm", "kv_a_norm"), ("kv_b_proj",))
_OUTPUT = ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "o", "linear_out", "proj", "Wo")
_OUTPUT_OF_PARENT = ("output.dense",)  # the parent holds W^O, the child the heads
QUERY_NORMS = ("q_norm", "query_layernorm", "q_layernorm", "q_layer_norm", "query_norm", "qk_norm")
KEY_NORMS = ("k_norm", "key_layernorm", "k_layernorm", "k_layer_norm", "key_norm", "qk_norm")
VALUE_NORMS = ("v_norm", "value_layernorm", "v_layernorm", "value_norm")
GATES = ("gate_proj", "g_proj", "output_gate", "gate")
OUTPUT_NORMS = ("attn_sub_norm", "inner_attn_ln", "sub_norm", "o_norm")  # before W^O
_EPS = ("variance_epsilon", "eps", "epsilon")
# The names of arguments of their forward, and of one table they hold.
_OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
_ANGLES = ("position_embeddings", "sinusoidal_pos", "freqs_cis", "rotary_pos_emb")
_TABLES = ("embed_positions",)  # sines, then cosines, of every position


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """One attention module, and the module that multiplies its heads by W^O (or None)."""

    module: nn.Module
    output: nn.Module | None


def find_attention_modules(model: nn.Module) -> dict[str, AttentionModule]:
    """Return every module that holds the projections to queries, keys and values, by its path."""
    return {
        path: AttentionModule(module, find_output(model, path))
        for path, module in model.named_modules()
        if _has_projections(module)
    }


def find_output(model: nn.Module, path: str) -> nn.Module | None:
    """Return the module that multiplies the concatenated heads by W^O, or None."""
    parent, _, _ = path.rpartition(".")
    candidates = [f"{path}.{name}" for name in _OUTPUT]
    candidates += [f"{parent}.{name}" for name in _OUTPUT_OF_PARENT]
    for candidate in candidates:
        try:
            module = model.get_submodule(candidate.lstrip("."))
        except AttributeError:
            continue
        if isinstance(getattr(module, "weight", None), Tensor):
            return module
    return None


def _has_projections(module: nn.Module) -> bool:
    # The matrix of the keys may make the values too.
    needed = [names[:2] for names in SEPARATE] + [*KEY_AND_VALUE]
    needed += [LATENT_KEY_AND_VALUE[0] + LATENT_KEY_AND_VALUE[2]]
    return fused_linear(module) is not None or any(
        all(linear_child(module, name) is not None for name in names) for names in needed
    )


def fused_linear(module: nn.Module) -> Linear | None:
    """Return the single matrix of a module that makes queries, keys and values, or None."""
    for name in FUSED:
        linear = linear_child(module, name)
        # Other mixers than attention have a child of this name too, of another width.
        if linear is None or (name == "in_proj" and not _is_three_wide(module, linear)):
            continue
        if not any(name == both and linear_child(module, query) for query, both in KEY_AND_VALUE):
            return linear
    return None


def _is_three_wide(module: nn.Module, linear: Linear) -> bool:
    d_in, d_out = linear.weight.shape
    return d_out == 3 * d_in and any("head" in name for name in vars(module))


def linear_child(module: nn.Module, *names: str) -> Linear | None:
    """Return the first of these children that is a plain matrix (and a bias)."""
    children = (plain_linear(getattr(module, name, None)) for name in names)
    return next((linear for linear in children if linear is not None), None)


def plain_linear(child: Any) -> Linear | None:
    """Return W (d_in, d_out) and b as views of a module that computes only X W + b, else None.

    torch's Linear stores Wᵀ, transformers' Conv1D stores W. A child with children of its own (an
    adapter, a quantized layer) does more than multiply.
    """
    weight, bias = getattr(child, "weight", None), getattr(child, "bias", None)
    if not isinstance(child, nn.Module) or any(child.children()):
        return None
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        return None
    stored_transposed = not hasattr(child, "nf")  # the width of a Conv1D
    return Linear(
        weight.detach().mT if stored_transposed else weight.detach(),
        bias.detach() if isinstance(bias, Tensor) else None,
    )


def norms(module: nn.Module, names: tuple[str, ...], heads: int, width: int) -> Iterator[Norm]:
    """Return the norms that the child of one of these names may compute, the likeliest first."""
    children = (getattr(module, name, None) for name in names)
    child = next((child for child in children if isinstance(child, nn.Module)), None)
    if child is None:
        return
    leaves = [leaf for leaf in child.modules() if not any(leaf.children())]  # one for each head?
    weight, bias = _stacked(leaves, "weight"), _stacked(leaves, "bias")
    over_width = weight is not None and weight.dim() == 1 and weight.numel() == heads * width
    kind = type(leaves[0]).__name__
    centered = bias is not None or ("Layer" in kind and "RMS" not in kind)
    for is_layer_norm in (centered, not centered):
        for offset in (0.0, 1.0) if weight is not None else (0.0,):
            yield Norm(
                kind="layer" if is_layer_norm else "rms",
                over="width" if over_width and heads > 1 else "head",
                weight=weight,
                bias=bias,
                eps=_eps(leaves[0]),
                offset=offset,
            )


def _stacked(modules: list[nn.Module], name: str) -> Tensor | None:
    members = [getattr(module, name, None) for module in modules]
    tensors = [value.detach() for value in members if isinstance(value, Tensor)]
    if not tensors or len(tensors) < len(modules):
        return None
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)


def _eps(norm: nn.Module) -> float:
    values = (getattr(norm, name, None) for name in _EPS)
    return next((float(eps) for eps in values if eps is not None), 1e-6)


# ------------------------------------------------------------------------------------ inputs


@dataclass(frozen=True, eq=False)
class ModuleInputs:
    """The inputs of an attention module, as far as they are known.

    Attributes
    ----------
    input : Tensor or None
        X (N, m, d_model).
    key_input : Tensor or None
        (N, n, d_model), from which cross-attention makes its keys and values.
    rotation : tuple of two Tensor, or None
        Cosines and sines of a rotary position embedding, each (N or 1, m, r).
    """

    input: Tensor | None = None
    key_input: Tensor | None = None
    rotation: tuple[Tensor, Tensor] | None = None


def read_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], texts: int
) -> ModuleInputs:
    """Return the inputs of an attention module from the arguments of its forward.

    texts : N, the size of the batch.
    """
    # The class has the names also where the forward of this module is wrapped.
    _, *names = inspect.signature(type(module).forward).parameters
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    rotation = _angles_from_table(module, arguments) or angles(_first(arguments, _ANGLES))
    if rotation is not None and len(rotation[0]) not in (1, texts):
        rotation = None  # angles of several dimensions, as in pictures
    return ModuleInputs(
        input=_copied(next((arguments[name] for name in names if name in arguments), None), texts),
        key_input=_copied(_first(arguments, _OTHER_SEQUENCE), texts),
        rotation=rotation,
    )


def angles(rotation: Any) -> tuple[Tensor, Tensor] | None:
    """Return cosines and sines from the argument that a model passes to its attention, or None.

    Models pass one complex number per pair; or the sines of all pairs, then their cosines; or
    cosines and sines, once per pair, or twice: side by side, or one half after the other. The last
    of these forms is returned.
    """
    if isinstance(rotation, Tensor) and rotation.is_complex():
        pairs: tuple[Tensor, Tensor] = rotation.real, rotation.imag
    elif isinstance(rotation, Tensor) and rotation.is_floating_point():
        sin, cos = rotation.chunk(2, -1)
        pairs = cos, sin
    elif isinstance(rotation, tuple | list) and len(rotation) == 2:
        cos, sin = rotation
        if not isinstance(cos, Tensor) or not isinstance(sin, Tensor) or cos.shape != sin.shape:
            return None
        pairs = _one_per_pair(cos, sin)
    else:
        return None
    cos, sin = (_batched(table.detach()) for table in pairs)
    return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)


def _one_per_pair(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return one angle per pair."""
    width = cos.shape[-1]
    if width % 2 == 0 and all(torch.equal(*table.chunk(2, -1)) for table in (cos, sin)):
        return cos[..., : width // 2], sin[..., : width // 2]
    if width % 2 == 0 and all(torch.equal(t[..., 0::2], t[..., 1::2]) for t in (cos, sin)):
        return cos[..., 0::2], sin[..., 0::2]
    return cos, sin


def _batched(table: Tensor) -> Tensor:
    """Reshape (T, r), (N, T, r) and (N, 1, T, r) to (N, T, r)."""
    while table.dim() > 3 and 1 in table.shape[:-1]:
        table = table.squeeze([i for i, size in enumerate(table.shape[:-1]) if size == 1][-1])
    return table.unsqueeze(0) if table.dim() == 2 else table


def _angles_from_table(
    module: nn.Module, arguments: Mapping[str, Any]
) -> tuple[Tensor, Tensor] | None:
    members = vars(module) | dict(module.named_buffers(recurse=False))
    positions, table = arguments.get("position_ids"), _first(members, _TABLES)
    if not isinstance(positions, Tensor) or not isinstance(table, Tensor):
        return None
    return angles(table.to(positions.device)[positions])


def _copied(hidden: Any, texts: int) -> Tensor | None:
    """Return a copy of hidden states (N, m, d_model): a model may add to them in place."""
    if not isinstance(hidden, Tensor) or hidden.dim() != 3 or len(hidden) != texts:
        return None
    return hidden.detach().clone()


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first of these values that is not None."""
    return next((values[name] for name in names if values.get(name) is not None), None)
