"""Any program: the same outputs, the same weights as by hand, a proof that can fail, labels."""

import copy
import threading
from functools import cache, partial

import pytest
import torch
from families import tiny
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import attnviz
from attnviz import InputError, ModelError
from attnviz.capture.recorder import FusedAttention

MODES = {
    "with gradients": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


class WrittenOut(nn.Module):
    """Two layers of causal attention in one file, as people write it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, x):
        for project in self.qkv:
            q, k, v = project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            weights = (q @ k.mT / 8**0.5).masked_fill(later, float("-inf")).softmax(-1)
            x = x + (weights @ v).transpose(1, 2).flatten(2)
        return x


class Windows(nn.Module):
    """Attention in windows of an image of 4 × 4 patches, which are shifted by one."""

    window_size, shift_size = (2, 2), (1, 1)

    def __init__(self):
        super().__init__()
        self.patches, self.qkv = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 24)

    def forward(self, pixels):
        x = self.patches(pixels).movedim(1, -1).roll((-1, -1), (1, 2))
        x = x.unflatten(2, (2, 2)).unflatten(1, (2, 2)).transpose(2, 3).flatten(3, 4).flatten(0, 2)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v)


def attention(**options):
    return nn.MultiheadAttention(16, 2, **options).eval()


@cache
def built(name):
    """Return a program with its arguments, and the sizes of its attentions."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 7, 16), torch.randn(3, 5, 16)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 4:] = True
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with_weights = {"need_weights": True, "average_attn_weights": False}
    programs = {
        "attention with weights": (attention(batch_first=True), (x, y, y), with_weights),
        "attention without": (attention(), (y, x[:, :5], x[:, :5]), {"need_weights": False}),
        "nested encoder": (
            nn.TransformerEncoder(layer, 2),
            (x,),
            {"src_key_padding_mask": padding},
        ),
        "encoder–decoder": (nn.Transformer(16, 2, 1, 1, 32, batch_first=True), (x, y), {}),
        "written out": (WrittenOut(), (x,), {}),
    }
    module, args, kwargs = programs[name]
    for path, weight in module.named_parameters():
        if path.endswith("in_proj_weight") or path.startswith("qkv"):
            weight.data *= 4  # sharp weights show a wrong scale in bfloat16, too
    return module.eval(), args, kwargs


SIZES = {
    "attention with weights": ["cross (7, 5)"],
    "attention without": ["cross (3, 3)"],
    "nested encoder": ["encoder (7, 7)"] * 2,
    "encoder–decoder": ["encoder (7, 7)", "decoder (5, 5)", "cross (5, 7)"],
    "written out": ["decoder (7, 7)"] * 2,
}


def recorded(program, *args, row=0, **kwargs):
    with attnviz.record() as recording:
        program(*args, **kwargs)
    return recording.result(row)


def tensors(output):
    return [x for x in (output if isinstance(output, tuple) else (output,)) if x is not None]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SIZES)
def test_every_call_is_proven_and_outputs_are_the_same_bit_for_bit(name, mode):
    module, args, kwargs = built(name)
    state = {path: (dict(vars(one)), one.training) for path, one in module.named_modules()}
    with MODES[mode]():
        expected = tensors(module(*args, **kwargs))
        with attnviz.record() as recording:
            output = tensors(module(*args, **kwargs))
    assert all(map(torch.equal, output, expected))
    assert {path: (dict(vars(one)), one.training) for path, one in module.named_modules()} == state
    result = recording.result(1)
    assert result.agreement.verdict == "verified"
    assert [f"{record.stack} {record.size}" for record in result] == SIZES[name]
    assert result.agreement.coverage["compared"] == ["scores", "weights", "head output"]


@pytest.mark.parametrize("name", SIZES)
def test_a_module_given_to_attend_has_the_same_weights(name):
    module, args, kwargs = built(name)
    names = attnviz.models.pretrained.forward_parameters(module)
    results = attnviz.attend(inputs=dict(zip(names, args, strict=False)) | kwargs, model=module)
    assert len(results) == (5 if name == "attention without" else 3)
    for row, result in enumerate(results):
        assert result.agreement.verdict == "verified"
        parts = result.agreement.parts
        known = "not compared" if name == "written out" else "verified"
        assert (parts["projections"], parts["output"]) == (known, "verified")
        for one, other in zip(result, recorded(module, *args, row=row, **kwargs), strict=True):
            assert (one.path, one.stack, one.layer) == (other.path, other.stack, other.layer)
            assert torch.allclose(one.weights(), other.weights(), atol=1e-6)


def test_the_attention_of_torch_has_steps_and_its_padding_reads_nothing():
    module, args, kwargs = built("nested encoder")
    _, padded, _ = attnviz.attend(inputs={"src": args[0], **kwargs}, model=module)
    assert not padded.weights()[..., 4:].any()
    steps = attnviz.steps(padded, layer=1, head=1, word="2")
    (weights,) = (stage.values for stage in steps.stages if stage.name == "weights")
    assert torch.allclose(weights[steps.row].float(), padded.weights(layer=1, head=1)[2], atol=1e-6)


def test_the_weights_are_those_that_the_module_returns():
    module, args, kwargs = built("attention with weights")
    _, weights = module(*args, **kwargs)
    for row in range(3):
        ours = recorded(module, *args, row=row, **kwargs).weights(layer=0)
        assert torch.allclose(ours, weights[row], atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "bigbird"])
def test_models_of_transformers_are_recorded_as_they_run(family):
    module, ids = tiny(family), torch.arange(5, 14)[None]
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids[:, :4]} if family == "t5" else {})
    expected = module(**inputs)[0]
    with attnviz.record() as recording:
        output = module(**inputs)[0]
    assert torch.equal(output, expected)
    result, attended = recording.result(), attnviz.attend(inputs=inputs, model=module)
    assert result.agreement.verdict == "verified"
    for one, other in zip(result, attended, strict=True):
        assert (one.path, one.stack, one.layer) == (other.path, other.stack, other.layer)
        assert torch.allclose(one.weights(), other.weights(), atol=1e-5)


def test_the_steps_of_a_generation_are_recorded():
    module = tiny("gpt2")
    with attnviz.record() as recording:
        module.generate(torch.arange(5, 10)[None], max_new_tokens=3, do_sample=False)
    result = recording.result()
    assert result.agreement.verdict == "verified"
    assert [record.size for record in result] == [(5, 5)] * 3 + [(1, 6)] * 3 + [(1, 7)] * 3
    assert result.stacks == ("decoder",)


def other_scale(call):
    return {"scale": call.scale * 1.02}


def other_mask(call):
    mask = torch.zeros(1, 1, call.query.shape[2], call.key.shape[2])
    mask[..., 0, 1] = -torch.inf
    return {"mask": mask}


def other_heads(call):
    return {"query": call.query.roll(1, 1), "key": call.key.roll(1, 1)}


@pytest.mark.parametrize("fault", [other_scale, other_mask, other_heads])
@pytest.mark.parametrize("name", ["attention without", "encoder–decoder"])
def test_a_planted_fault_is_found(name, fault, monkeypatch):
    """Planted: a call is read with another scale, mask or order of heads than it ran with."""
    module, args, kwargs = built(name)
    read = FusedAttention.read.__func__

    def wrong(cls, *operator):
        call = read(cls, *operator)
        return FusedAttention(**{**vars(call), **fault(call)})

    monkeypatch.setattr(FusedAttention, "read", classmethod(wrong))
    agreement = recorded(module, *args, **kwargs).agreement
    assert agreement.verdict == "failed"
    assert all(check.stage == "head output" for check in agreement.checks if not check.passed)


def test_a_batch_that_is_given_by_name_is_divided():
    module, (x,), _ = built("written out")
    with attnviz.record() as recording:
        module(x=x)
    assert recording.inputs == 3
    for one, other in zip(recording.result(2), recorded(module, x, row=2), strict=True):
        assert torch.equal(one.weights(), other.weights())


@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=())
def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
) -> list[torch.Tensor]:
    """An operator with the name, arguments and layout of flash-attn's."""
    later = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
    mask = torch.where(later & causal, -torch.inf, 0.0)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    shared = {"attn_mask": mask, "scale": softmax_scale, "enable_gqa": True}
    output = scaled_dot_product_attention(q, k, v, **shared)
    return [output.transpose(1, 2).contiguous()]


@pytest.mark.parametrize("causal", [False, True])
def test_a_kernel_of_flash_attention_is_read(causal):
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    result = recorded(flash_attention, q, k, v, 0.0, 0.4, causal, -1, row=1)
    (record,) = result
    assert result.agreement.verdict == "verified"
    assert (record.heads, record.key_heads, record.scale) == (4, 2, 0.4)
    assert bool(record.weights()[0, 0, -1] == 0) == causal
    with pytest.raises(ModelError, match="packs its texts, or changes its scores"):
        recorded(flash_attention, q, k, v, 0.0, 0.4, causal, 2)


def test_a_cache_that_is_written_over_is_recorded_as_it_was():
    cache, mask, keys = torch.zeros(1, 2, 3, 4), torch.zeros(1, 3), torch.randn(4, 1, 2, 1, 4)
    expected = []
    with attnviz.record() as recording:
        for new in keys:
            cache.copy_(torch.cat([cache[:, :, 1:], new], 2))
            output = scaled_dot_product_attention(new, cache, cache, attn_mask=mask)
            expected.append((new @ cache.mT / 2 + mask).softmax(-1)[0])
            mask.add_(torch.tensor([0.0, 1.0, 2.0]))
            output.zero_()
    result = recording.result()
    assert result.agreement.verdict == "verified"
    for record, weights in zip(result, expected, strict=True):
        assert torch.allclose(record.weights(), weights, atol=1e-6)


def test_a_row_that_may_read_nothing_has_the_weights_of_torch():
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    result = recorded(scaled_dot_product_attention, q, k, v, attn_mask=mask)
    assert result.agreement.verdict == "verified"
    weights = result.weights(layer=0)
    assert not weights[:, 2].any()
    assert torch.allclose(weights @ v[0], scaled_dot_product_attention(q, k, v, mask)[0], atol=1e-6)


LAYOUTS = {
    "N H": ((0, 2, 1, 3), None),
    "(N H)": ((0, 2, 1, 3), (0, 1)),
    "(H N)": ((2, 0, 1, 3), (0, 1)),
    "H N": ((2, 0, 1, 3), None),
}


class Arranged(nn.Module):
    """Attention whose heads lie somewhere beside the inputs of the batch."""

    def __init__(self, layout, heads, attend):
        super().__init__()
        self.layout, self.heads, self.attend = layout, heads, attend
        self.project = nn.Linear(16, 48)

    def vectors(self, x):
        return self.project(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0)

    def forward(self, x):
        order, joined = LAYOUTS[self.layout]
        split = (one.permute(order) for one in self.vectors(x))
        return self.attend(*(one.flatten(*joined) if joined else one for one in split))


def written_out(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@pytest.mark.parametrize("attend", [written_out, scaled_dot_product_attention])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("inputs", "heads"), [(1, 2), (2, 1), (2, 4), (3, 2), (4, 2), (4, 4)])
def test_heads_and_inputs_are_told_apart_in_any_order(layout, inputs, heads, attend):
    torch.manual_seed(0)
    module, x = Arranged(layout, heads, attend).eval(), torch.randn(inputs, 5, 16)
    with attnviz.record() as recording:
        module(x)
    q, k, _ = module.vectors(x).transpose(2, 3)
    for row, weights in enumerate((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)):
        result = recording.result(row)
        assert result.agreement.verdict == "verified"
        assert torch.allclose(result.weights(layer=0), weights, atol=1e-6)


class SharedKeys(WrittenOut):
    heads = 2

    def forward(self, x):
        q, k, v = self.qkv[0](x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        weights = torch.einsum("nhid,njd->nhij", q, k[:, 0]).softmax(-1)
        return weights @ v


class MaskFirst(WrittenOut):
    def forward(self, mask, x):
        return scaled_dot_product_attention(*[self.qkv[0](x)[:, None, :, :16]] * 3, attn_mask=mask)


class Matrix(WrittenOut):
    def forward(self, x):
        q, k, v = self.qkv[0](x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


class LastState(WrittenOut):
    def forward(self, x):
        weights = torch.einsum("nd,nid->ni", x[:, -1], x).softmax(-1)
        return torch.einsum("ni,nid->nd", weights, x)


def test_heads_that_share_keys_and_tensors_without_a_batch_are_read():
    x = torch.randn(3, 7, 16)
    assert recorded(SharedKeys(), x, row=2).records[0].weights().shape == (2, 7, 7)
    assert recorded(Matrix(), x[0]).records[0].size == (7, 7)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    assert recorded(MaskFirst(), mask, x, row=2).agreement.verdict == "verified"
    last = recorded(LastState(), x, row=1)
    assert last.agreement.verdict == "verified"
    weights = (x[1] @ x[1, -1]).softmax(-1)
    assert torch.allclose(last.weights(layer=0), weights[None, None], atol=1e-6)


def test_modules_and_calls_are_chosen():
    module, args, _ = built("encoder–decoder")
    with attnviz.record(modules="decoder.*self_attn", calls=[1]) as recording:
        for _ in range(3):
            module(*args)
    (record,) = recording.result()
    assert (record.path, record.call) == ("decoder.layers.0.self_attn", 1)
    with attnviz.record(modules=["encoder", "nothing"]) as recording:
        module(*args)
    assert [record.path for record in recording.result()] == ["encoder.layers.0.self_attn"]


class Denoiser(nn.Module):
    """One step of a diffusion: latents read a prompt."""

    def __init__(self):
        super().__init__()
        self.attn2 = attention(batch_first=True)

    def forward(self, latents, prompt):
        return latents + self.attn2(latents, prompt, prompt, need_weights=False)[0]


def diffuse(steps, **options):
    torch.manual_seed(0)
    module, latents, prompt = Denoiser().eval(), torch.randn(2, 16, 16), torch.randn(2, 3, 16)
    words = {"keys": ["a", "red", "cat"], "grid": (4, 4)}
    with torch.no_grad(), attnviz.record(**words, **options) as recording:
        for _ in range(steps):
            latents = module(latents, prompt)
    return recording


def held(recording):
    """Return how many bytes of tensors a recording refers to."""
    seen, parts, size = set(), [vars(recording)], 0
    while parts:
        part = parts.pop()
        if id(part) in seen or isinstance(part, type | nn.Module):
            continue
        seen.add(id(part))
        size += part.nbytes if isinstance(part, torch.Tensor) else 0
        items = part.values() if isinstance(part, dict) else part
        parts += items if isinstance(items, list | tuple | type({}.values())) else []
        parts += [vars(part)] if hasattr(part, "__dict__") else []
    return size


def test_the_mean_over_the_steps_of_a_diffusion_takes_no_more_memory_with_more_steps():
    every, short, long = diffuse(9), diffuse(2, mean=True), diffuse(9, mean=True)
    assert held(long) == held(short) < held(every) / 3
    result, calls = long.result(1), every.result(1)
    (record,) = result
    assert result.agreement.verdict == "verified"
    assert len(result.agreement.checks) == 9 * 3
    assert result.notes == ("mean maps of 9 calls of a module",)
    expected = torch.stack([call.weights(dtype=torch.float64) for call in calls]).mean(0)
    assert torch.allclose(record.weights(), expected.float())
    of_cat = attnviz.attention_map(result, layer=0, head=(0, 1)).weights[:, 2]
    assert of_cat.shape == (16,)
    assert record.query_axis.patches[5] == (1, 1)
    with pytest.raises(InputError, match="means of several calls"):
        attnviz.steps(result, layer=0, head=0, word="r0 c0")


def test_a_program_stops_before_its_attentions_fill_the_memory(monkeypatch):
    module, args, _ = built("encoder–decoder")
    monkeypatch.setattr("attnviz.runtime.libraries.free", lambda device: 5000)
    with pytest.raises(InputError, match=r"layers\.0\.self_attn, but 0 MB is left on cpu\. Choose"):
        recorded(module, *args)
    with attnviz.record(modules="nothing"):
        module(*args)


def test_labels_of_a_grid_and_of_words():
    small, large, words = (torch.randn(1, 2, n, 4) for n in (4, 16, 3))
    with attnviz.record(keys=["a", "red", "cat"], grid=(4, 4)) as recording:
        scaled_dot_product_attention(large, words, words)
        scaled_dot_product_attention(small, words, words)
    first, second = recording.result()
    assert first.key_axis.labels == ("a", "red", "cat")
    assert first.query_axis.patches[-1] == (3, 3)
    assert second.query_axis.labels == ("r0 c0", "r0 c1", "r1 c0", "r1 c1")


@pytest.mark.parametrize("through", ["record", "attend"])
def test_windows_are_one_map_with_its_patches(through):
    torch.manual_seed(0)
    module, pixels = Windows().eval(), torch.randn(2, 3, 16, 16)
    result = (
        recorded(module, pixels, row=1)
        if through == "record"
        else attnviz.attend(inputs=(pixels,), model=module)[1]
    )
    assert result.agreement.verdict == "verified"
    (record,) = result
    assert record.query_axis.labels[:5] == ("r1 c1", "r1 c2", "r2 c1", "r2 c2", "r1 c3")
    windows = torch.arange(16) // 4
    assert torch.equal(record.weights()[0] > 0, windows[:, None] == windows)
    assert through == "attend" or result.image.shape == (16, 16, 3)


def test_a_result_is_drawn_and_saved(tmp_path):
    module, args, kwargs = built("nested encoder")
    result = recorded(module, *args, row=2, **kwargs)
    assert attnviz.head_maps(result).weights.shape == (2, 2, 7, 7)
    result.plot()
    result.save(tmp_path / "result.safetensors")
    again = attnviz.load_result(tmp_path / "result.safetensors")
    assert again.agreement.verdict == "verified"
    assert torch.equal(again.weights(), result.weights())
    assert result.provenance.inputs == "src (3 × 7 × 16), src_key_padding_mask (3 × 7)"
    assert result.provenance.model == "TransformerEncoder"


def test_threads_record_their_own(monkeypatch):
    module, args, kwargs = built("written out")
    ready, found = threading.Barrier(2), {}

    def run(name, repeats):
        with attnviz.record() as recording:
            ready.wait()
            for _ in range(repeats):
                module(*args, **kwargs)
            ready.wait()
        found[name] = recording.result()

    threads = [threading.Thread(target=run, args=pair) for pair in (("one", 1), ("two", 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: len(result) for name, result in found.items()} == {"one": 2, "two": 6}
    assert all(result.agreement.verdict == "verified" for result in found.values())


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_module_is_recorded_uncompiled(whole):
    module, args, _ = built("written out")
    compiled = torch.compile(module, backend="eager", fullgraph=whole)
    assert torch.equal(compiled(*args), module(*args))
    result = recorded(compiled, *args)
    assert torch.equal(result.weights(layer=1), recorded(module, *args).weights(layer=1))
    assert result.provenance.model == "WrittenOut"
    assert [(record.path, record.call) for record in result] == [("", 0), ("", 1)]
    assert attnviz.attend(inputs=args, model=compiled)[0].agreement.verdict == "verified"


class Given(nn.Module):
    """A module that hands on what it is given."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, *args):
        return self.inside(*args)


class Mapped(Given):
    def forward(self, batch):
        return self.inside(batch["x"])


class LengthFirst(Given):
    def forward(self, x):
        return self.inside(x, x, x, need_weights=False)[0]


class BatchFirst(LengthFirst):
    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


WRAPPED = {
    "hands on": Given,
    "a dict": lambda module: lambda x: Mapped(module)({"x": x}),
    "data parallel": nn.DataParallel,
    "jit": lambda module: torch.jit.trace(module, torch.randn(3, 7, 16)),
    "gradients": lambda module: torch.func.grad(lambda x: module(x).sum()),
    "lazy": lambda module: nn.Sequential(module, nn.LazyLinear(2)),
    "sparse": lambda module: lambda x: torch.sparse.softmax(module(x)[0].to_sparse(), 1),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", WRAPPED)
def test_a_module_is_recorded_however_it_is_called(way):
    module, args, _ = built("written out")
    result = recorded(WRAPPED[way](module), *args, row=2)
    assert result.agreement.verdict == "verified"
    expected = recorded(module, *args, row=2)
    assert torch.allclose(result.weights(layer=0), expected.weights(layer=0), atol=1e-6)


@pytest.mark.parametrize("module", [LengthFirst, BatchFirst])
@pytest.mark.parametrize("inputs", [2, 6])
def test_the_batch_is_the_second_dimension_inside_a_module_of_ones_own(module, inputs):
    inside, x = attention(), torch.randn(3, inputs, 16)
    given = x if module is LengthFirst else x.transpose(0, 1)
    weights = inside(x, x, x, average_attn_weights=False)[1]
    ours = recorded(nn.Sequential(module(inside)), given, row=1).weights(layer=0)
    assert torch.allclose(ours, weights[1], atol=1e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_meta_tensors_and_flex_attention_run_as_they_do_without_us():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, 16)
    expected = flex_attention(q, q, q)
    with attnviz.record() as recording:
        attention().to("meta")(*[torch.empty(3, 1, 16, device="meta")] * 3)
        assert torch.equal(flex_attention(q, q, q), expected)
    with pytest.raises(ModelError, match="flex_attention shows no scores"):
        recording.result()


class Gated(WrittenOut):
    def forward(self, x):
        q, k, v = self.qkv[0](x).chunk(3, -1)
        return ((q @ k.mT).softmax(-1) * x[..., :1].sigmoid()) @ v


class Slots(WrittenOut):
    def forward(self, x):
        q, k, v = self.qkv[0](x).chunk(3, -1)
        return (q[:, :3] @ k.mT).softmax(1) @ v


GATED = "not compared: what heads return in Gated: more than weights and values enters it"
SLOTS = "the softmax of Slots runs over its queries: they are the columns of its maps"


@pytest.mark.parametrize(("kind", "note"), [(Gated, GATED), (Slots, SLOTS)])
def test_weights_that_are_used_otherwise_are_named(kind, note):
    result = recorded(kind(), built("written out")[1][0])
    assert result.agreement.verdict == "verified"
    assert "head output" not in result.agreement.coverage["compared"]
    assert result.notes == (note,)


def test_a_failing_program_leaves_no_hook():
    hooks = nn.modules.module
    names = [name for name in vars(hooks) if name.startswith("_global_forward_")]
    before = [len(getattr(hooks, name)) for name in names]
    module, args, _ = built("written out")
    wrong = nn.Sequential(module, nn.Linear(3, 3))
    recording = attnviz.record()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), recording:
        wrong(*args)
    assert [len(getattr(hooks, name)) for name in names] == before
    assert len(recording.result()) == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_what_cannot_be_recorded_is_said_in_one_line():
    with attnviz.record() as recording:
        nn.Linear(2, 2)(torch.ones(1, 2))
        with pytest.raises(InputError, match="The block has not ended"):
            recording.result()
    with pytest.raises(ModelError, match="no softmax over products q·k ran"):
        recording.result()
    module, args, _ = built("written out")
    with attnviz.record() as recording:
        module(*args)
    with pytest.raises(InputError, match="row must be from 0 to 2, not 3"):
        recording.result(3)
    nested = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)])
    with pytest.raises(ModelError, match="nested"), attnviz.record():
        attention(batch_first=True)(nested, nested, nested)
    for chosen in ({"modules": "nothing"}, {"calls": 5}):
        with attnviz.record(**chosen) as recording:
            module(*args)
        with pytest.raises(ModelError, match="none of its attentions was chosen"):
            recording.result()
    with attnviz.record(keys=["a", "b"], queries=list("abcdefg"), grid=(3, 3)) as recording:
        module(*args)
    result = recording.result()
    assert repr(result) == "AttentionResult(WrittenOut, 2 attentions, verified)"
    assert result.records[0].query_axis.labels == tuple("abcdefg")
    fits = "fit no map"
    assert result.notes == (f"the labels of keys {fits}", f"the labels of image {fits}")
    with pytest.raises(InputError, match=r"grid must be two numbers, .*, not \(4,\)"):
        attnviz.record(grid=(4,))
    with pytest.raises(InputError, match=r"inputs=\{'x': …\}"):
        attnviz.attend("a text", model=module)


class TalkingHeads(nn.Module):
    """Weights that are mixed across heads after the softmax: they mix no values themselves."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(2, 2))

    def forward(self, x):
        q = x.unflatten(-1, (2, 8)).transpose(1, 2)
        weights = torch.einsum("bhij,hg->bgij", (q @ q.mT).softmax(-1), self.mix)
        return weights @ q


def test_weights_that_are_changed_after_the_softmax_are_not_shown():
    module, args, _ = built("written out")
    with attnviz.record() as recording:
        TalkingHeads()(args[0])
        module(*args)
    result = recording.result()
    assert len(result) == 2
    (note,) = (note for note in result.notes if note.startswith("not shown"))
    assert note == "not shown: attention of TalkingHeads: its weights enter no product with values"


@pytest.mark.parametrize(
    "analysis",
    [
        lambda model: attnviz.explain("the train", model=model),
        lambda model: attnviz.explain_generation("the train", generate=1, model=model),
        lambda model: attnviz.shift("train", "the train left", model=model),
        lambda model: attnviz.senses("bank", model=model),
        lambda model: attnviz.ablate("the train left", model=model),
        lambda model: attnviz.survey(["the train left"], model=model),
        lambda model: attnviz.explore(["the train left"], model=model),
        lambda model: attnviz.compare(["the train left"], models=[model, model]),
        lambda model: attnviz.steps("the train left", model=model),
    ],
)
def test_an_analysis_of_texts_says_what_it_needs(analysis):
    model = attnviz.load(built("written out")[0])
    assert repr(model) == "Model('WrittenOut', WrittenOut, cpu, torch.float32)"
    with pytest.raises(InputError, match=r"WrittenOut (is another module|reads tensors)"):
        analysis(model)


def test_the_arguments_of_an_attention_may_be_named_in_any_order():
    q, k = torch.randn(2, 1, 2, 3, 4)
    expected = scaled_dot_product_attention(q, k, k)
    with attnviz.record() as recording:
        output = scaled_dot_product_attention(attn_mask=None, value=k, key=k, query=q)
    assert torch.equal(output, expected)
    weights = (q @ k.mT / 2).softmax(-1)
    assert torch.allclose(recording.result().weights(layer=0), weights[0], atol=1e-6)


class HandWritten(WrittenOut):
    """One layer, whose weights are computed of its scores by a function, and mixed by another."""

    def __init__(self, weights, mix=torch.matmul):
        super().__init__()
        self.weights, self.mix = weights, mix

    def vectors(self, x):
        return self.qkv[0](x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = self.vectors(x)
        return self.mix(self.weights(q @ k.mT), v)


def hidden_row(scores):
    return scores.masked_fill(torch.arange(7)[:, None] == 2, float("-inf")).softmax(-1)


def by_columns(scores):
    exponentials = scores.mT.exp()
    return (exponentials / exponentials.sum(-2, keepdim=True)).mT


def divided_in_place(scores):
    exponentials = scores.exp()
    exponentials /= exponentials.sum(-1, keepdim=True)
    return exponentials


def of_two(scores, *, far=0.0):
    """Weights of the two largest scores of each row; far: added to those of the last keys."""
    scores = scores + far * (torch.arange(7) > 4)
    values, index = scores.topk(2, -1)
    return torch.zeros_like(scores).scatter(-1, index, values.softmax(-1))


def scattered(scores):
    values, index = scores.topk(2, -1)
    return torch.full_like(scores, float("-inf")).scatter(-1, index, values).softmax(-1)


WAYS = {
    "exp over columns": by_columns,
    "in place": divided_in_place,
    "a reciprocal": lambda s: s.exp() * s.exp().sum(-1, keepdim=True).reciprocal(),
    "powers of 2": lambda s: (e := torch.exp2(s / 0.6931471805599453)) / e.sum(-1, keepdim=True),
    "logarithms": lambda s: s.log_softmax(-1).exp(),
    "the two largest": of_two,
    "the two largest, scattered": scattered,
    "no last key": lambda s: of_two(s, far=-99.0),
    "sorted": lambda s: s.sort(-1).values.softmax(-1).gather(-1, s.argsort(-1).argsort(-1)),
    "a row of no numbers": lambda s: hidden_row(s).nan_to_num(0.0),
}


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_shown_however_they_are_computed(way):
    torch.manual_seed(0)
    module, x = HandWritten(WAYS[way]).eval(), torch.randn(3, 7, 16)
    q, k, _ = module.vectors(x)
    for row, weights in enumerate(WAYS[way](q @ k.mT)):
        result = recorded(module, x, row=row)
        assert result.agreement.verdict == "verified"
        assert "head output" in result.agreement.coverage["compared"]
        assert torch.allclose(result.weights(layer=0), weights, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_a_row_that_dropout_drops_keeps_its_weights(fused):
    torch.manual_seed(0)
    q = torch.randn(2, 2, 5, 8)
    with attnviz.record() as recording:
        for _ in range(9):
            if fused:
                scaled_dot_product_attention(q, q, q, dropout_p=0.8)
            else:
                nn.functional.dropout((q @ q.mT / 8**0.5).softmax(-1), 0.8) @ q
    result = recording.result(1)
    assert result.agreement.verdict == "verified"
    for record in result:
        assert torch.allclose(record.weights(), (q[1] @ q[1].mT / 8**0.5).softmax(-1), atol=1e-6)


UNREAD = {
    "mixed across heads": (
        lambda s: torch.einsum("bhij,hg->bgij", s, torch.ones(2, 2)).softmax(-1),
        "its scores are no products q·k",
    ),
    "one more in the sum": (
        lambda s: s.exp() / (1 + s.exp().sum(-1, keepdim=True)),
        "its exponentials are not divided by their sum before they mix values",
    ),
    "over heads": (lambda s: s.softmax(1), "one row holds scores of several queries"),
    "over all pairs": (
        lambda s: s[..., :3, :3].flatten(2).softmax(-1).unflatten(-1, (3, 3)),
        "one row holds scores of several queries",
    ),
}


@pytest.mark.parametrize("way", UNREAD)
def test_a_softmax_that_cannot_be_shown_is_named_beside_others(way):
    weights, reason = UNREAD[way]
    module = HandWritten(weights, lambda w, v: w @ v[..., : w.shape[-1], :]).eval()
    with attnviz.record() as recording:
        module(built("written out")[1][0])
        built("written out")[0](built("written out")[1][0])
    result = recording.result()
    assert len(result) == 2
    assert result.notes == (f"not shown: attention of HandWritten: {reason}",)


class Cached(WrittenOut):
    """Attention whose keys and values are written into buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 3, 2, 9, 8))

    def forward(self, x, first):
        q, *new = self.qkv[0](x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        self.cache[..., first : first + x.shape[1], :] = torch.stack(new)
        key, value = self.cache
        later = torch.arange(9) > first + torch.arange(x.shape[1])[:, None]
        return (q @ key.mT).masked_fill(later, float("-inf")).softmax(-1) @ value


def test_keys_in_a_buffer_that_the_program_fills_are_activations():
    module, (x,), _ = built("written out")
    module = Cached().eval()
    with attnviz.record() as recording:
        module(x[:, :4], 0)
        module(x[:, 4:5], 4)
    result = recording.result(1)
    assert result.agreement.verdict == "verified"
    q = module.qkv[0](x).unflatten(-1, (3, 2, 8))[1, 4, 0]
    weights = (q[:, None] @ module.cache[0, 1, :, :5].mT).softmax(-1)
    assert torch.allclose(result.records[1].weights()[..., :5], weights, atol=1e-6)


def test_an_ensemble_and_sparse_buffers_run_as_they_do_without_us():
    modules, (x,) = [WrittenOut().eval() for _ in range(2)], built("written out")[1]
    modules[0].register_buffer("adjacency", torch.eye(3).to_sparse())
    ours, mine = modules[0](x), recorded(modules[0], x)
    assert mine.agreement.verdict == "verified"
    del modules[0].adjacency
    parameters, buffers = torch.func.stack_module_state(modules)

    def one(*state):
        return torch.func.functional_call(modules[0], state, (x,))

    expected = torch.vmap(one)(parameters, buffers)
    with attnviz.record() as recording:
        output = torch.vmap(one)(parameters, buffers)
    assert torch.equal(output, expected)
    assert torch.allclose(output[0], ours, atol=1e-6)
    assert recording.result().agreement.verdict == "verified"


class Own(nn.Module):
    """Attention of some heads on (…, T, 16), with the weights that it computes."""

    def __init__(self, heads):
        super().__init__()
        self.heads, self.queries, self.keys = heads, nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def weights(self, x):
        q, k = (self.by_head(project(x)) for project in (self.queries, self.keys))
        return (q @ k.mT).softmax(-1)

    def by_head(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(self, x):
        return self.head((self.weights(x) @ self.by_head(x)).transpose(-3, -2).flatten(-2))


def run_of_vmap(kind, members, inputs, heads):
    """Return what runs under `torch.vmap`, and the weights of each input of each member."""
    modules = [Own(heads).eval() for _ in range(members)]
    x, base = torch.randn(inputs, 5, 16), modules[0]
    if kind == "ensemble":
        state = torch.func.stack_module_state(modules)
        empty = copy.deepcopy(base).to("meta")
        run = torch.vmap(lambda *own: torch.func.functional_call(empty, own, (x,)))
        return partial(run, *state), torch.cat([one.weights(x) for one in modules])
    if kind == "heads of a frozen model":
        run = torch.vmap(lambda w: torch.func.functional_call(base, {"head.weight": w}, (x,)))
        return partial(run, torch.randn(members, 3, 16)), base.weights(x)
    run = torch.vmap(torch.vmap(base)) if kind == "nested" else torch.vmap(base)
    x = x.expand(members, *x.shape) if kind == "nested" else x
    return partial(run, x), base.weights(x).flatten(0, -4)


@pytest.mark.parametrize(
    ("members", "inputs", "heads"), [(2, 1, 2), (3, 2, 2), (2, 3, 4), (4, 4, 1)]
)
@pytest.mark.parametrize("kind", ["ensemble", "heads of a frozen model", "by sample", "nested"])
def test_the_members_of_a_vmap_are_inputs(kind, members, inputs, heads):
    run, expected = run_of_vmap(kind, members, inputs, heads)
    with attnviz.record() as recording:
        run()
    assert recording.inputs == len(expected)
    for row, weights in enumerate(expected):
        result = recording.result(row)
        assert result.agreement.verdict == "verified"
        assert torch.allclose(result.records[0].weights(), weights, atol=1e-6)


class Grouped(WrittenOut):
    """Four heads, of which two share their keys; no member names a number of heads."""

    def __init__(self, way):
        super().__init__()
        self.way, self.project = way, nn.Linear(16, 64)

    def vectors(self, x):
        q, k, v = self.project(x).split((32, 16, 16), -1)
        q = q.unflatten(-1, (2, 2, 8)).movedim(1, 3)
        return q, *(one.unflatten(-1, (2, 8)).transpose(1, 2) for one in (k, v))

    def forward(self, x):
        q, k, v = self.vectors(x)
        if self.way == "folded":
            return (q.flatten(2, 3) @ k.mT).softmax(-1) @ v
        weights = torch.einsum("bgrqd,bgkd->bgrqk", q, k).softmax(-1)
        return torch.einsum("bgrqk,bgkd->bgrqd", weights, v)


@pytest.mark.parametrize("way", ["folded", "einsum"])
def test_heads_that_share_keys_are_heads_and_no_rows(way):
    module, (x,) = Grouped(way).eval(), built("written out")[1]
    q, k, _ = module.vectors(x)
    result = recorded(module, x, row=2)
    assert result.agreement.verdict == "verified"
    weights = (q @ k.mT.unsqueeze(2)).softmax(-1).flatten(1, 2)
    assert torch.allclose(result.weights(layer=0), weights[2], atol=1e-6)


class Axial(WrittenOut):
    """Attention along the columns of an image, whose rows and columns are (3, 4)."""

    def __init__(self, way):
        super().__init__()
        self.way, self.inside = way, attention(batch_first=True)

    def forward(self, x):
        x = x.transpose(1, 2)
        if self.way == "torch":
            return self.inside(x.flatten(0, 1), *[x.flatten(0, 1)] * 2)[0]
        vectors = self.qkv[0](x).unflatten(-1, (3, 2, 8)).unbind(3)
        q, k, v = (torch.einsum(f"bcrhd->{FOLDS[self.way]}rd", one) for one in vectors)
        q, k, v = (one.reshape(-1, *one.shape[-2:]) for one in (q, k, v))
        if self.way == "fused":
            return scaled_dot_product_attention(*(one.unflatten(0, (-1, 2)) for one in (q, k, v)))
        return (q @ k.mT / 8**0.5).softmax(-1) @ v

    def weights(self, x):
        x = x.transpose(1, 2)
        if self.way == "torch":
            own = self.inside(x.flatten(0, 1), *[x.flatten(0, 1)] * 2, average_attn_weights=False)
            return own[1].unflatten(0, x.shape[:2])
        q, k, _ = self.qkv[0](x).unflatten(-1, (3, 2, 8)).permute(3, 0, 1, 4, 2, 5)
        return (q @ k.mT / 8**0.5).softmax(-1)


# The order of inputs, columns and heads in the batch.
FOLDS = {"written out": "bch", "fused": "bch", "heads first": "bhc", "columns first": "cbh"}


@pytest.mark.parametrize("way", ["torch", *FOLDS])
@pytest.mark.parametrize(("inputs", "columns"), [(2, 4), (3, 4), (3, 2), (1, 4)])
def test_an_axis_in_the_batch_is_no_head(way, inputs, columns):
    torch.manual_seed(0)
    module, x = Axial(way).eval(), torch.randn(inputs, 3, columns, 16)
    row = inputs - 1
    result = recorded(module, x, row=row)
    assert result.agreement.verdict == "verified"
    assert len(result.weights(layer=0)) == 2
    for head, shown in enumerate(result.weights(layer=0)):
        columns = module.weights(x)[row, :, head]
        assert torch.allclose(shown, torch.block_diag(*columns), atol=1e-6)


class Pair(Axial):
    """Two pictures of each input, in one batch, of which the second may stand behind all first."""

    def __init__(self, way, join):
        super().__init__(way)
        self.norm, self.join = nn.LayerNorm(16), join

    def forward(self, a, b):
        return super().forward(self.norm(self.join([a, b]).view(-1, *a.shape[1:]))).chunk(2)


@pytest.mark.parametrize("way", ["torch", "written out", "fused"])
@pytest.mark.parametrize("join", [torch.cat, torch.stack, partial(torch.stack, dim=1)])
@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_what_is_joined_to_one_batch_is_of_its_own_input(way, join, inputs):
    torch.manual_seed(0)
    module, pictures = Pair(way, join).eval(), torch.randn(2, inputs, 3, 2, 16)
    result = recorded(module, *pictures, row=inputs - 1)
    assert result.agreement.verdict == "verified"
    weights = [module.weights(module.norm(one))[-1] for one in pictures]
    for head, shown in enumerate(result.weights(layer=0)):
        expected = torch.block_diag(*(columns for one in weights for columns in one[:, head]))
        assert torch.allclose(shown, expected, atol=1e-6)


def plain(scores):
    return scores.softmax(-1)


CHANGED = {
    "a head that is switched off": lambda w, v: (w * torch.tensor([0.0, 1.0])[:, None, None]) @ v,
    "small weights are dropped": lambda w, v: w.masked_fill(w < 0.1, 0) @ v,
    "rounded": lambda w, v: w.half().float() @ v,
    "dropped in place": lambda w, v: nn.functional.dropout(w, 0.5, inplace=True) @ v,
    "masked in place": lambda w, v: w.masked_fill_(w < 0.1, 0) @ v,
}


@pytest.mark.parametrize("change", CHANGED)
def test_weights_that_are_changed_are_shown_before_it(change):
    torch.manual_seed(0)
    module, x = HandWritten(plain, CHANGED[change]).eval(), torch.randn(3, 7, 16)
    q, k, _ = module.vectors(x)
    result = recorded(module, x, row=1)
    assert result.agreement.verdict == "verified"
    assert result.agreement.coverage["compared"] == ["scores", "weights"]
    assert torch.allclose(result.weights(layer=0), plain(q @ k.mT)[1], atol=1e-6)


class OneByOne(WrittenOut):
    def by_head(self, x):
        return self.qkv[0](x)[..., :16].unflatten(-1, (2, 8)).transpose(-3, -2)

    def forward(self, x):
        return torch.stack([(one @ one.mT).softmax(-1) @ one for one in self.by_head(x)])


@pytest.mark.parametrize("inputs", [2, 3])
def test_inputs_that_are_read_one_by_one_are_calls(inputs):
    module, x = OneByOne(), torch.randn(inputs, 7, 16)
    with attnviz.record() as recording:
        module(x)
    assert (recording.inputs, recording.calls) == (1, inputs)
    for one, record in zip(module.by_head(x), recording.result(), strict=True):
        assert torch.allclose(record.weights(), (one @ one.mT).softmax(-1), atol=1e-6)


def test_the_mean_of_several_attentions_in_a_call_is_one_of_each():
    module, x = OneByOne(), torch.randn(2, 2, 7, 16)
    with attnviz.record(mean=True) as recording:
        for step in x:
            module(step)
    result = recording.result()
    by_head = module.by_head(x)
    expected = (by_head @ by_head.mT).softmax(-1).mean(0)
    for record, weights in zip(result, expected, strict=True):
        assert torch.allclose(record.weights(), weights, atol=1e-6)


def test_keys_that_are_written_over_are_recorded_as_they_were():
    module, (x,), _ = built("written out")
    module = Cached().eval()
    with attnviz.record() as recording:
        for part in (x[:, :4], x[:, 3:7]):
            module(part, 0)
    result = recording.result(1)
    assert result.agreement.verdict == "verified"
    for part, record in zip((x[:, :4], x[:, 3:7]), result, strict=True):
        q, k, _ = module.qkv[0](part[1]).unflatten(-1, (3, 2, 8)).permute(1, 2, 0, 3)
        later = torch.ones(4, 4, dtype=torch.bool).triu(1)
        weights = (q @ k.mT).masked_fill(later, float("-inf")).softmax(-1)
        assert torch.allclose(record.weights()[..., :4], weights, atol=1e-6)


def test_an_empty_batch_is_no_input():
    module, (x,), _ = built("written out")
    with attnviz.record() as recording:
        assert module(x[:0]).shape == (0, 7, 16)
        module(x)
    assert recording.result(2).agreement.verdict == "verified"


@pytest.mark.parametrize("given", [{"queries", "keys"}, {"queries"}, {"keys"}])
@pytest.mark.parametrize("cross", [False, True])
def test_rows_take_no_labels_of_keys_and_columns_none_of_queries(given, cross):
    words = {"queries": ("a", "b", "c"), "keys": ("x", "y", "z")}
    x, y = torch.randn(2, 1, 3, 16)
    with attnviz.record(**{name: words[name] for name in given}) as recording:
        attention(batch_first=True)(x, y if cross else x, y if cross else x)
    (record,) = recording.result()
    one = next(iter(given)) if len(given) == 1 and not cross else None  # a square map takes it
    for name, axis in (("queries", record.query_axis), ("keys", record.key_axis)):
        expected = words[one or name] if one or name in given else ("0", "1", "2")
        assert axis.labels == expected


class Einsum(WrittenOut):
    """Attention whose weights have their dimensions in any order; no member names the heads."""

    def __init__(self, order, heads):
        super().__init__()
        self.order, self.project = order, nn.Linear(16, 24 * heads)
        self.vectors = lambda x: self.project(x).unflatten(-1, (3, heads, 8)).unbind(2)

    def forward(self, x):
        q, k, v = self.vectors(x)
        weights = torch.einsum(f"nqhd,nkhd->{self.order}", q, k).softmax(self.order.index("k"))
        return torch.einsum(f"{self.order},nkhd->nqhd", weights, v)


@pytest.mark.parametrize("order", ["hnqk", "hqnk", "nqkh"])
@pytest.mark.parametrize(("inputs", "length", "heads"), [(3, 3, 3), (4, 4, 2), (2, 5, 2)])
def test_as_many_heads_or_queries_as_inputs_are_told_apart(order, inputs, length, heads):
    torch.manual_seed(0)
    module, x = Einsum(order, heads).eval(), torch.randn(inputs, length, 16)
    q, k, _ = module.vectors(x)
    result = recorded(module, x, row=1)
    assert result.agreement.verdict == "verified"
    expected = torch.einsum("qhd,khd->hqk", q[1], k[1]).softmax(-1)
    assert torch.allclose(result.weights(layer=0), expected, atol=1e-6)


class Latent(WrittenOut):
    """Heads that read one latent vector of each position, through a matrix of their own."""

    def __init__(self):
        super().__init__()
        self.q, self.c = nn.Linear(16, 16), nn.Linear(16, 12)
        self.up = nn.Parameter(torch.randn(2, 8, 12))

    def vectors(self, x):
        q = self.q(x).unflatten(-1, (2, 8))
        return torch.einsum("nthd,hdc->nhtc", q, self.up), self.c(x)

    def forward(self, x):
        q, c = self.vectors(x)
        return torch.einsum("nhts,nsc->nhtc", torch.einsum("nhtc,nsc->nhts", q, c).softmax(-1), c)


def test_heads_of_latent_attention_are_no_rows():
    torch.manual_seed(0)
    module, x = Latent().eval(), torch.randn(3, 7, 16)
    q, c = module.vectors(x)
    result = recorded(module, x, row=2)
    assert result.agreement.verdict == "verified"
    assert torch.allclose(result.weights(layer=0), (q[2] @ c[2].mT).softmax(-1), atol=1e-6)


def test_heads_that_nothing_tells_from_inputs_are_not_shown():
    class Stacked(WrittenOut):
        def forward(self, x):
            q = torch.stack([x @ matrix for matrix in self.matrices])
            return (q @ q.mT).softmax(-1) @ q

    module, x = Stacked(), torch.randn(2, 5, 16)
    module.matrices = torch.randn(2, 16, 8)
    with pytest.raises(ModelError, match="as many heads as inputs"):
        recorded(module, x)
