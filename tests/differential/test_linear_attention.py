"""Linear attention: its matrices against the papers' recurrences, and planted faults."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from captures import capture, verify
from linear_models import CHUNK, RECURRENCES, TOKENS, SaturatedSum, build, hybrid, sharpen
from torch.nn import functional
from torch.nn.functional import normalize
from transformers import (
    AutoformerConfig,
    AutoformerModel,
    Mamba2Model,
    MiniMaxConfig,
    MiniMaxModel,
    MobileViTV2Config,
    MobileViTV2Model,
    PreTrainedConfig,
    PreTrainedModel,
    YosoConfig,
    YosoModel,
)

import attnviz
from attnviz import InputError
from attnviz.capture.streamed import capture_pooled, linear_calls
from attnviz.results import Axis

FAMILIES = [*RECURRENCES]


@cache
def captured(family, dtype=torch.float32):
    """Return the record of the first linear layer, its reference and its module."""
    model = build(family).to(dtype)
    ids = torch.randint(30522, (1, TOKENS[family]), generator=torch.Generator().manual_seed(0))
    (one,) = capture(model, {"input_ids": ids})
    pairs = zip(one.records, one.references, strict=True)
    record, reference = next(pair for pair in pairs if pair[0].signed)
    return record, reference, model.get_submodule(record.path)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrix_is_that_of_the_papers_recurrence(family):
    record, reference, module = captured(family)
    expected = RECURRENCES[family](record, module)
    assert expected.abs().triu(1).max() == 0
    assert (expected.tril(-1) != 0).any()
    largest = expected.abs().amax((1, 2), keepdim=True)
    assert ((record.matrix - expected).abs() / largest).max() < 1e-5
    mixed = record.matrix.double() @ record.value.double()
    assert (mixed - reference.head_output).abs().max() <= 1e-5 * mixed.abs().max()
    assert verdict(record, reference) == "verified"


def verdict(record, reference):
    return verify([record], [reference]).verdict


def faults(family, record, module):
    """Return wrong matrices by what is wrong with them."""
    M, recurrence = record.matrix, RECURRENCES[family]
    exact = recurrence(record, module)
    wrong = {
        "decay off by 1 %": M + (recurrence(record, module, decay=1.01) - exact).float(),
        "heads swapped": M.flip(0),
        "off by one token": M.roll(1, dims=2).tril(),
    }
    if family in CHUNK:  # what lies before the chunk of a query is not read
        chunk = torch.arange(M.shape[1]) // CHUNK[family]
        wrong["wrong chunk boundary"] = M * (chunk[:, None] == chunk)
    if family == "qwen3_next":
        wrong["erase term left out"] = recurrence(record, module, erase=False).float()
    if family == "mamba":
        gate = torch.nn.functional.silu(record.arguments["z"])
        wrong["gate left out"] = M / gate[:, :, None]
    else:  # as if no decay were applied
        wrong["gate left out"] = M + (recurrence(record, module, decay=0.0) - exact).float()
    return wrong


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_planted_faults_are_caught(family, dtype):
    record, reference, module = captured(family, dtype)
    assert verdict(record, reference) == "verified"
    for fault, matrix in faults(family, record, module).items():
        assert verdict(replace(record, matrix=matrix), reference) == "failed", fault
    values = record.value.clone()
    values[-1] *= 1.01
    assert verdict(replace(record, value=values), reference) == "failed", "values 1 % off"


def test_a_slope_in_half_precision_is_judged_as_in_float32():
    record, reference, _ = captured("mamba", torch.bfloat16)
    report = verify([record], [reference])
    (check,) = (one for one in report.checks if one.stage == "head output")
    assert check.largest_difference > 1e-4  # the result itself is rounded
    assert max(map(abs, check.slope_errors)) < 1e-6
    assert max(check.slope_tolerances) < 1e-3
    off = reference.rounding + 0.001 * reference.head_output
    assert verdict(record, replace(reference, rounding=off)) == "failed"
    # A function that gives other bits when it is called again is judged by what it rounds.
    assert verdict(record, replace(reference, reproduced=False)) != "failed"
    other = reference.rounding.flip(1)  # as large
    assert verdict(record, replace(reference, rounding=other, reproduced=False)) != "failed"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrix_of_a_text_of_one_token_is_one_number(family):
    (one,) = capture(build(family), {"input_ids": torch.tensor([[5]])})
    signed = [record for record in one.records if record.signed]
    assert signed
    assert {record.matrix.shape[1:] for record in signed} == {(1, 1)}


class Mixture(torch.nn.Module):
    """Mixes all tokens of a table of pairs, along its rows or along its columns."""

    def __init__(self, *, by_rows: bool) -> None:
        super().__init__()
        self.by_rows = by_rows
        self.gate = torch.nn.Linear(4, 4)
        self.values = torch.nn.Linear(4, 4)

    def combine(self, gates, values):
        if self.by_rows:
            return torch.einsum("nikd,njkd->nijd", gates, values)
        return torch.einsum("nkid,nkjd->nijd", gates, values)

    def forward(self, table):
        return self.combine(self.gate(table).sigmoid(), self.values(table))


class Mixtures(PreTrainedModel):
    def __init__(self) -> None:
        super().__init__(PreTrainedConfig())
        self.layers = torch.nn.Sequential(Mixture(by_rows=True), Mixture(by_rows=False))

    def forward(self, table):
        return self.layers(table)


def test_a_method_may_do_something_else_by_a_switch_of_its_module():
    torch.manual_seed(0)
    model = Mixtures()
    (one,) = capture(model.eval(), {"table": torch.randn(1, 6, 6, 4)})
    for pair in zip(one.records, one.references, strict=True):
        assert verdict(*pair) != "failed"
    assert len(one.records) == 2


def test_an_argument_that_goes_unnoticed_proves_nothing():
    record, reference, _ = captured("mamba2")
    blind = replace(reference, canaries={"dt": reference.head_output})
    assert verdict(record, blind) != "verified"
    assert verdict(record, replace(reference, canaries={})) == "not proven"


def test_settings_of_a_saved_model_may_be_lists(tmp_path):
    build("mamba2").save_pretrained(tmp_path)
    model = Mamba2Model.from_pretrained(tmp_path)
    assert isinstance(model.config.time_step_limit, list)
    (one,) = capture(model, {"input_ids": torch.arange(20)[None]})
    assert [record.signed for record in one.records] == [True]


@pytest.fixture(scope="module")
def mixed(tokenizer):
    """A result of two linear layers and one of softmax attention."""
    model = hybrid(["linear_attention", "linear_attention", "full_attention"])
    before = {name: vars(type(m)).get("forward") for name, m in model.named_modules()}
    result = attnviz.load(model, tokenizer=tokenizer).attend("the train left the station on time")
    assert before == {name: vars(type(m)).get("forward") for name, m in model.named_modules()}
    return result


def test_a_hybrid_says_which_layers_are_which(mixed):
    assert mixed.stacks == ("decoder", "linear")
    assert [record.signed for record in mixed.records] == [False, True, True]
    assert any("1 of 3 layers that mix tokens is softmax attention" in n for n in mixed.notes)
    assert "4 of linear attention" in mixed.agreement.summary()
    assert mixed.agreement.verdict == "verified"
    assert len(mixed.without_linear("steps need").records) == 1
    with pytest.raises(InputError, match="has linear attention only"):
        mixed.stack("linear").without_linear("the page shows")


def test_layers_of_another_kind_are_named(tokenizer):
    model = hybrid(["linear_attention", "full_attention"])
    model.layers[0].linear_attn = SaturatedSum()
    notes = " ".join(attnviz.load(model, tokenizer=tokenizer).attend("the train left").notes)
    assert "not shown: 1 layer with SaturatedSum" in notes


def test_signed_maps_are_drawn_around_zero(mixed, tmp_path):
    stack = mixed.stack("linear")
    ax = attnviz.plot.heatmap(stack, layer=1, head=0)
    (mesh, *_) = ax.collections
    assert mesh.norm.vmin == -mesh.norm.vmax == -stack.weights(1, 0).abs().max()
    assert "largest weight between two words" in ax.figure.texts[0].get_text()
    drawn = attnviz.attention_map(stack, layer=1, head=0, special="remove")
    assert torch.equal(drawn.weights, stack.weights(1, 0)[1:-1, 1:-1])  # not renormalized
    stack.save(tmp_path / "linear.safetensors")
    again = attnviz.load_result(tmp_path / "linear.safetensors")
    assert torch.equal(again.weights(1, 0), stack.weights(1, 0))
    assert again.agreement.verdict == "verified"
    with pytest.raises(InputError, match="Scores need a softmax"):
        again.records[0].scores()


# --- the short convolution before the mixing


@pytest.mark.parametrize("family", ["mamba", "mamba2", "qwen3_next"])
@torch.no_grad()
def test_each_feature_has_its_own_exact_product(family, monkeypatch):
    model = build(family)
    ids = torch.randint(30522, (1, TOKENS[family]), generator=torch.Generator().manual_seed(0))
    (one,) = capture(model, {"input_ids": ids})
    pairs = zip(one.records, one.references, strict=True)
    record, reference = next(pair for pair in pairs if pair[0].signed)
    calls, conv1d = [], functional.conv1d

    def watched(x, weight, bias=None, **options):
        calls.append((x, weight, bias))
        return conv1d(x, weight, bias, **options)

    monkeypatch.setattr(functional, "conv1d", watched)
    model(input_ids=ids)
    x, kernel, bias = calls[0]
    x, kernel = x[0].double(), kernel[:, 0].double()
    bias = torch.zeros(len(kernel)).double() if bias is None else bias.double()
    M, T, K = record.matrix.double(), x.shape[1], kernel.shape[1]

    def banded(kernel):
        lag = torch.arange(T)[:, None] - torch.arange(T)
        taps = kernel[:, (K - 1 - lag).clamp(0, K - 1)]
        return taps * ((lag >= 0) & (lag < K))

    convolution = banded(kernel)
    before = (convolution @ x[:, :, None])[..., 0] + bias[:, None]
    gate = before.sigmoid()  # silu(u) = sigmoid(u) u, with the gate held fixed
    activated, largest = before * gate, reference.head_output.abs().max()
    shares = []
    for head, values in enumerate(record.value.double()):
        products = []
        for feature, column in enumerate(values.T):
            c = int((activated - column).abs().amax(1).argmin())
            model_output = reference.head_output[head, :, feature]
            constant = M[head] @ (gate[c] * bias[c])
            product = M[head] @ (gate[c][:, None] * convolution[c])
            assert (product @ x[c] + constant - model_output).abs().max() < 1e-5 * largest
            wrong = M[head] @ (gate[c][:, None] * banded(kernel[c : c + 1].flip(1))[0])
            assert (wrong @ x[c] + constant - model_output).abs().max() > 1e-5 * largest
            products.append(product)
        stacked = torch.stack(products)
        shares.append(stacked.mean(0).square().sum() / stacked.square().mean(0).sum())
    if family == "mamba":  # one feature a head
        assert min(shares) > 1 - 1e-9
    else:  # the mean over a head's features is not their map
        assert max(shares) < 0.5


# --- pooled maps of long texts


LENGTH, CELL = 19, 8  # the last cell is smaller


@pytest.fixture(scope="module", params=["mamba", "mamba2", "rwkv", "xlstm"])
def pooled(request, tokenizer):
    """A model, and a text with pooled maps."""
    words = ["the", "train", "left", "station", "on", "time", "nobody", "was", "there", "to"]
    chosen = torch.randint(len(words), (LENGTH - 2,), generator=torch.Generator().manual_seed(0))
    text = " ".join(words[index] for index in chosen)
    model = attnviz.load(build(request.param), tokenizer=tokenizer)
    return model, model.attend(text, cells=-(-LENGTH // CELL))


def test_pooled_maps_are_those_of_whole_ones(pooled):
    model, result = pooled
    whole = model.attend(result.provenance.text, mode="full")
    assert result.agreement.verdict == "verified"
    for record, other in zip(result.records, whole.records, strict=True):
        blocks = other.matrix.split(record.cell, 2)
        summed = torch.stack([block.sum(2) for block in blocks], dim=2)
        rows = torch.stack([block.mean(1) for block in summed.split(record.cell, 1)], dim=1)
        assert (record.matrix - rows).abs().max() <= 1e-5 * rows.abs().max()
        assert len(record.text) == len(whole.tokens)


def test_pooled_maps_are_drawn_with_the_places_of_their_cells(pooled):
    _, result = pooled
    drawn = attnviz.attention_map(result, layer=0, head=0)
    assert drawn.sides[0].cell == result.records[0].cell
    assert any("columns summed with their signs, rows averaged" in note for note in drawn.notes)
    with pytest.raises(InputError, match="has pooled maps only"):
        attnviz.attention_map(result, layer=0, head=0, rows=slice(0, 2))


def test_planted_faults_in_pooled_maps_are_caught():
    model = build("mamba2")
    inputs = {"input_ids": torch.randint(30522, (1, LENGTH))}
    known = linear_calls(model, inputs)
    assert (known.heads, known.modules, known.is_all) == (4, ("Mamba2Mixer",), True)
    records, references = capture_pooled(model, inputs, Axis.numbered(LENGTH), known.calls, CELL)
    record, M = records[0], records[0].matrix
    faults = (M * 1.01, M.flip(0), M.roll(1, dims=2).tril(), M * (M[:, :1, :1] != M))
    for matrix in (M, *faults):
        report = verify([replace(record, matrix=matrix)], references)
        assert report.verdict == ("verified" if matrix is M else "failed")


def test_options_of_softmax_attention_are_refused_for_pooled_maps(tokenizer):
    model, text = attnviz.load(build("mamba"), tokenizer=tokenizer), "the train left the station"
    why = r"exact \(--layer of view\) cannot be used: .* has linear attention only"
    with pytest.raises(InputError, match=why):
        model.attend(text, cells=8, exact=0)
    with pytest.raises(InputError, match="positions of a streamed text cannot be checked"):
        model.attend(text, cells=8, positions="all")
    with pytest.raises(InputError, match="layer 9 is out of range"):
        model.attend(text, cells=8, layers=9)
    with pytest.raises(InputError, match="head 99 is out of range"):
        model.attend(text, cells=8, heads=99)


def test_only_the_layers_that_were_asked_for_are_stored(tokenizer):
    model = attnviz.load(build("rwkv"), tokenizer=tokenizer)  # two layers
    text = "the train left the station on time " * 2
    every = model.attend(text, cells=8)
    one = model.attend(text, cells=8, layers=1, heads=0)
    assert (every.layers, one.layers) == ((0, 1), (1,))
    assert torch.equal(one.records[0].matrix, every.records[1].matrix)
    assert one.checked_agreement.verdict == "verified"


@pytest.mark.parametrize("other", [False, True])
def test_a_long_text_of_a_hybrid_says_what_it_does_not_show(other, tokenizer):
    model = hybrid(["linear_attention", "full_attention", "linear_attention"])
    if other:
        model.layers[0].linear_attn = SaturatedSum()
    text = "the train left the station on time " * 5
    result = attnviz.load(model, tokenizer=tokenizer).attend(text, mode="streamed")
    assert result.stacks == ("decoder",)
    (note,) = [note for note in result.notes if note.endswith("not shown of a long text")]
    left = "1 (Qwen3NextGatedDeltaNet) is" if other else "2 (Qwen3NextGatedDeltaNet) are"
    assert f"the other {left} linear attention" in note
    assert ("not shown: 1 layer with SaturatedSum" in " ".join(result.notes)) == other


# --- mixtures in the code of a module, or in an operator of its own


def minimax():
    config = MiniMaxConfig(
        vocab_size=30522, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_local_experts=2,
        block_size=8, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    return MiniMaxModel(config), {"input_ids": torch.randint(30522, (1, 20))}


def lightning(record, module):
    """S_t = λ S_{t-1} + k_t v_tᵀ; o_t = S_tᵀ q_t (Qin et al. 2024)."""
    T, heads = len(record.query_axis), module.num_attention_heads
    q, k, _ = record.arguments["act_fn"].double().reshape(T, heads, 3, -1).unbind(2)
    decay = torch.exp(-module.slope_rate.double()).flatten()
    M = torch.zeros(heads, T, T, dtype=torch.float64)
    state = torch.zeros(heads, k.shape[-1], T, dtype=torch.float64)  # by source token
    for t in range(T):
        state = state * decay[:, None, None]
        state[:, :, t] += k[t]
        M[:, t] = torch.einsum("hk,hks->hs", q[t], state)
    return M


def autoformer():
    config = AutoformerConfig(
        prediction_length=4, context_length=14, lags_sequence=[1], d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, input_size=1,
        num_time_features=1, label_length=4, autocorrelation_factor=2,
    )  # fmt: skip
    past, future = torch.randn(1, 15), torch.randn(1, 4)
    inputs = {
        "past_values": past, "past_time_features": torch.randn(1, 15, 1),
        "past_observed_mask": torch.ones(1, 15), "future_values": future,
        "future_time_features": torch.randn(1, 4, 1),
    }  # fmt: skip
    return AutoformerModel(config), inputs


def autocorrelation(record, module):
    """y_t = Σ_i softmax(R(τ_i)) v_{t+τ_i}, the τ_i of the largest R = q ⋆ k (Wu et al. 2021)."""
    q, k = (record.arguments[name].double() for name in ("q_proj", "k_proj"))
    T = len(q)
    rows = torch.arange(T)
    products = q @ k.T / q.shape[1]
    delays = torch.stack([products[(rows + delay) % T, rows].sum() for delay in range(T)])
    top = delays.topk(int(module.autocorrelation_factor * math.log(T)))
    M = torch.zeros(T, T, dtype=torch.float64)
    for weight, delay in zip(top.values.softmax(0), top.indices, strict=True):
        M[rows, (rows + delay) % T] += weight
    return M


def mobilevit():
    config = MobileViTV2Config(
        image_size=64, base_attn_unit_dims=[8, 16, 16], n_attn_blocks=[1, 1, 1]
    )
    model = MobileViTV2Model(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # without them hardly anything is left after so many layers
            torch.nn.init.normal_(parameter)
    return model, {"pixel_values": torch.randn(1, 3, 64, 64)}


def separable(record, module):
    """y_t = relu(v_t) Σ_s softmax(q)_s k_s: the “values” of the mixture are k (Mehta 2022)."""
    query, _, value = record.arguments["qkv_proj"].double().split([1, *2 * [module.embed_dim]])
    weights = query.softmax(-1)
    return (value.relu()[..., None] * weights[..., None, :]).flatten(0, 1)


def yoso():
    config = YosoConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, hash_code_len=4,
    )  # fmt: skip
    return YosoModel(config), {"input_ids": torch.randint(30522, (1, 20))}


def collisions(record, module):
    """The chance that q and k fall on one side of each of τ planes (Zeng et al. 2021)."""
    q, k = (normalize(record.arguments[name].double(), dim=-1) for name in ("query", "key"))
    return (1 - torch.acos((q @ k.mT).clamp(-1, 1)) / torch.pi) ** module.hash_code_len


INLINE = {
    "minimax": (minimax, lightning),
    "autoformer": (autoformer, autocorrelation),
    "mobilevitv2": (mobilevit, separable),
    "yoso": (yoso, collisions),
}


def captured_inline(family):
    torch.manual_seed(0)
    model, inputs = INLINE[family][0]()
    sharpen(model)
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:  # else 1 % of them hardly changes the weights
            parameter.data *= 3
    (one,) = capture(model.eval(), inputs)
    return model, one


@pytest.mark.parametrize("family", INLINE)
def test_the_matrix_is_that_of_the_paper(family):
    model, one = captured_inline(family)
    pairs = [pair for pair in zip(one.records, one.references, strict=True) if pair[0].signed]
    record, reference = pairs[0]
    expected = INLINE[family][1](record, model.get_submodule(record.path))
    largest = expected.abs().amax((-2, -1), keepdim=True).clamp(min=1e-6)
    assert ((record.matrix - expected).abs() / largest).max() < 1e-5
    T = len(record.query_axis)
    assert (expected * (1 - torch.eye(T))).any()
    for wrong in (record.matrix, record.matrix.roll(1, dims=2), record.matrix * 1.01):
        report = verify([replace(record, matrix=wrong)], [reference])
        assert report.verdict == ("verified" if wrong is record.matrix else "failed")


def test_queries_may_read_other_positions():
    _, one = captured_inline("autoformer")
    shapes = {record.path: record.matrix.shape[1:] for record in one.records}
    assert shapes["decoder.layers.0.encoder_attn"] == (8, 14)


def test_the_model_is_restored():
    model, inputs = yoso()
    from transformers.models.yoso.modeling_yoso import YosoCumulation

    capture(model.eval(), inputs)
    assert "apply" not in vars(YosoCumulation)
    assert not any("forward" in vars(module) for module in model.modules())
