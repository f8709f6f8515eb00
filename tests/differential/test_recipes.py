"""Modules with custom attention code: a recipe reproduces the inputs of their products.

Their maps are recorded by other means; these tests only cover the path from X to Q, K and V.
"""

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from attnviz.capture.projections.find import find_attention_modules, read_inputs
from attnviz.capture.projections.match import Executed, match_projections
from attnviz.formula.attention import repeat_heads
from attnviz.results import AttentionRecord, Axis
from attnviz.results.projection import project

_sizes = {
    "vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "initializer_range": 0.1, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_gpt = {
    "vocab_size": 99, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_relative = {**_sizes, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
# The model class, its configuration, and the number of key heads in its weights.
OWN_CODE = {
    "bigbird": ("BigBirdModel", _sizes | {"attention_type": "original_full"}, 4),
    "bloom": ("BloomModel", {"vocab_size": 99, "hidden_size": 48, "n_layer": 2, "n_head": 4}, 4),
    "codegen": ("CodeGenModel", _gpt | {"rotary_dim": 8}, 4),
    "deberta": ("DebertaModel", _relative, 4),
    "deberta-v2": ("DebertaV2Model", _relative, 4),
    "falcon": ("FalconModel", _sizes | {"num_kv_heads": 2, "new_decoder_architecture": True}, 2),
    "falcon-multi-query": ("FalconModel", _sizes | {"multi_query": True}, 1),
    "falcon-old": ("FalconModel", _sizes | {"multi_query": False}, 4),
    "gpt": ("OpenAIGPTModel", _gpt, 4),
    "gpt-j": ("GPTJModel", _gpt | {"rotary_dim": 8}, 4),
    "gpt-neo": ("GPTNeoModel", {"vocab_size": 99, "hidden_size": 48, "num_layers": 2,
                                "num_heads": 4, "attention_types": [[["global"], 2]]}, 4),
    "gpt-neox-japanese": ("GPTNeoXJapaneseModel", _sizes, 4),
    "i-bert": ("IBertModel", _sizes, 4),
    "megatron-bert": ("MegatronBertModel", _sizes, 4),
    "mpnet": ("MPNetModel", _sizes, 4),
    "mpt": ("MptModel", {"vocab_size": 99, "d_model": 48, "n_heads": 4, "n_layers": 2,
                         "attn_config": {"clip_qkv": 0.5}}, 4),
    "rembert": ("RemBertModel", _sizes | {"input_embedding_size": 48}, 4),
    "roformer": ("RoFormerModel", _sizes, 4),
    "tapas": ("TapasModel", _sizes, 4),
    "xglm": ("XGLMModel", {"vocab_size": 99, "d_model": 48, "num_layers": 2, "attention_heads": 4,
                           "ffn_dim": 64}, 4),
    "xlm": ("XLMModel", {"vocab_size": 99, "emb_dim": 48, "n_layers": 2, "n_heads": 4}, 4),
}  # fmt: skip


class _Products(TorchDispatchMode):
    """Record the factors of every batched product, and the softmax calls between them."""

    def __init__(self):
        super().__init__()
        self.factors, self.softmaxes = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.factors.append(args)
        elif func is torch.ops.aten.baddbmm.default:
            self.factors.append(args[1:])
        elif func is torch.ops.aten._softmax.default:
            self.softmaxes.append(len(self.factors))
        return func(*args, **(kwargs or {}))


def _first_attention(family):
    """Return the holder of the first layer, and the record of its attention on nine tokens."""
    name, sizes, _ = OWN_CODE[family]
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    config = model_class.config_class(**sizes)
    model = model_class._from_config(config, attn_implementation="eager").eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, float(key.endswith("weight")), 0.2)
    path, holder = next(iter(find_attention_modules(model).items()))
    entered, products = [], _Products()

    def arrive(module, args, kwargs):
        entered.append(
            (len(products.factors), read_inputs(module, args, kwargs, texts=1, rotations={}))
        )

    holder.module.register_forward_pre_hook(arrive, with_kwargs=True)
    with torch.no_grad(), products:
        model(input_ids=torch.arange(3, 12).unsqueeze(0))
    first, recorded = entered[0]
    mixing = next(number for number in products.softmaxes if number > first)
    axis = Axis.numbered(9)
    query, key = products.factors[first]
    return holder, AttentionRecord(
        path=path, call=0, layer=0, stack="encoder", query_axis=axis, key_axis=axis,
        query=query, key=key.mT, value=products.factors[mixing][1], scale=1.0,
        input=recorded.input[0],
        rotation=None if recorded.rotation is None else tuple(x[0] for x in recorded.rotation),
    )  # fmt: skip


@pytest.mark.parametrize("family", OWN_CODE)
def test_the_recipe_reproduces_the_inputs_of_the_products(family):
    holder, record = _first_attention(family)
    (projection,) = match_projections([Executed(record, holder)])
    factors = project(projection, torch.float32)
    assert [*factors] == ["query", "key", "value"]
    for stage, tensor in factors.items():
        torch.testing.assert_close(tensor, getattr(record, stage), rtol=0, atol=1e-6)
    assert projection.projection.output is not None
    assert len(projection.projection.key.weight) == OWN_CODE[family][2]


def test_each_query_head_finds_its_key_head():
    holder, record = _first_attention("falcon")
    (projection,) = match_projections([Executed(record, holder)])
    matrices = repeat_heads(projection.projection.value.weight, record.heads)
    values = torch.stack([record.input @ matrix for matrix in matrices])
    torch.testing.assert_close(values, record.value, rtol=0, atol=1e-6)
    assert torch.equal(values, repeat_heads(values[::2], 4))
