"""The proof stays on the model's device until all numbers of an attention are copied at once.

PyTorch's "meta" device stands for a GPU: its tensors have no values, so they refuse whatever waits
for a number, and operators of tensors on two devices.
"""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from families import TEXTS, tiny
from torch.utils.flop_counter import FlopCounterMode

import attnviz
from attnviz import agreement
from attnviz.agreement import compare, streamed, verdict
from attnviz.results import Axis
from attnviz.results import projection as projections
from attnviz.streaming import ScoreSpec
from attnviz.streaming.reference import MapBuffers

# Without `-m long`: both sides, sinks with grouped keys and a window, and soft caps.
FAMILIES = [
    *("bert", "gpt-oss", "gemma2"),
    *(pytest.param(family, marks=pytest.mark.long) for family in ("llama", "mistral")),
]


class Copied(Exception):  # noqa: N818
    """All that is measured was handed over to be copied."""


def on_meta(node):
    """Return a dataclass whose tensors are on "meta"."""
    if isinstance(node, torch.Tensor):
        return node.to("meta")
    if isinstance(node, tuple):
        return tuple(on_meta(part) for part in node)
    if is_dataclass(node) and not isinstance(node, Axis):
        return replace(
            node, **{part.name: on_meta(getattr(node, part.name)) for part in fields(node)}
        )
    return node


FUNCTIONS = ("verify", "prove_rows", "prove_streamed")


def calls_in(model, text=TEXTS[0], **how):
    """Return the arguments of each call of functions of `agreement` in a run, by their names."""
    calls = {name: [] for name in FUNCTIONS}

    def keeping(name, function):
        def keep(*args, **keywords):
            kept = [[*part] if isinstance(part, list) else part for part in args]  # one is cleared
            calls[name].append((kept, keywords))
            return function(*args, **keywords)

        return keep

    with pytest.MonkeyPatch.context() as patch:
        for name in FUNCTIONS:
            patch.setattr(agreement, name, keeping(name, getattr(agreement, name)))
        attnviz.attend(text, model=model, **how)
    return calls


@pytest.fixture(scope="module")
def whole(loaded):
    """The calls in a run on two texts, whose maps stay whole; `verify` is to prove them itself."""
    calls = calls_in(loaded, TEXTS[:2])
    return calls | {"verify": [(args, {**how, "proofs": None}) for args, how in calls["verify"]]}


@pytest.fixture(scope="module")
def reduced(loaded):
    """The calls in a streamed run."""
    return calls_in(loaded, mode="streamed", cells=4, top=2)


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, tokenizer):
    return attnviz.load(tiny(request.param), tokenizer=tokenizer)


@pytest.fixture
def stop_at_the_copy(monkeypatch):
    """Return a function that stops where numbers are copied, if all are still on the device."""

    def copy(measured):
        numbers = [number for one in measured for number in one.values()]
        assert numbers
        assert {number.device.type for number in numbers} == {"meta"}
        raise Copied

    def stop():
        for module in (streamed, verdict):
            monkeypatch.setattr(module, "copy_to_cpu", copy)

    return stop


def test_stages_are_measured_without_a_wait(whole, stop_at_the_copy):
    ((records, references), _), *_ = whole["verify"]
    stop_at_the_copy()
    with pytest.raises(Copied):
        compare.prove_all(on_meta(tuple(records)), on_meta(tuple(references)))


def test_rows_of_a_long_text_are_measured_without_a_wait(reduced, stop_at_the_copy):
    stop_at_the_copy()
    assert reduced["prove_rows"]
    for ((sample,), rows), _ in reduced["prove_rows"]:
        across = on_meta(sample.record).at(rows, slice(None))
        with pytest.raises(Copied):
            compare.prove([(across, compare.model_values(across, on_meta(sample.reference)))])
        with pytest.raises(Copied):
            agreement.prove_rows([on_meta(sample)], rows)


def test_reduced_maps_are_compared_without_a_wait(reduced, stop_at_the_copy):
    stop_at_the_copy()
    assert reduced["prove_streamed"]
    for ((attention,), rows, marked), _ in reduced["prove_streamed"]:
        with pytest.raises(Copied):
            agreement.prove_streamed([on_meta(attention)], rows, on_meta(marked))


def test_a_summary_is_on_the_device_of_its_maps():
    """Also if the empty rows are named on the CPU."""
    Q = torch.empty(2, 6, 4, device="meta")
    buffers = MapBuffers(ScoreSpec(Q, Q, 0.5), 3, 0, None, None)
    summary = buffers.summary(torch.zeros(6, dtype=torch.bool))
    tensors = [value for value in vars(summary).values() if isinstance(value, torch.Tensor)]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# --- all heads together


def test_blocks_of_heads_give_the_same_proof(whole, reduced, monkeypatch):
    """The maps, the contributions of heads to the output, and the weights of a long text."""
    verified = whole["verify"][0]
    expected = agreement.verify(*verified[0], **verified[1])
    for size in (1, 100):
        monkeypatch.setattr(projections, "_NUMBERS", {"cpu": size, "cuda": size})
        monkeypatch.setattr(streamed, "_WEIGHTS", {"cpu": size, "cuda": size})
        monkeypatch.setattr(compare, "_limit", lambda _, size=size: size)
        report = agreement.verify(*verified[0], **verified[1])
        for check, wanted in zip(report.checks, expected.checks, strict=True):
            assert check.differences == wanted.differences
            assert check.slope_errors == pytest.approx(wanted.slope_errors, rel=1e-6, abs=1e-12)
        for ((attention,), *others), _ in reduced["prove_streamed"][-1:]:
            summary = attention.summary
            assert check_of(attention, *others).passed
            for name in ("mean", "largest", "received", "lse", "entropy", "first", "top_weights"):
                values = getattr(summary, name).clone()
                values[2] *= 1.01
                wrong = replace(attention, summary=replace(summary, **{name: values}))
                assert check_of(wrong, *others).failed_heads == (2,), name


# --- a long text, of which few cells and rows are compared

WRONG = {
    "mean": lambda mean: mean.roll(1, -1),
    "largest": lambda largest: largest / 2,
    "received": lambda received: received.roll(5, -1),
    "entropy": lambda entropy: entropy * 1.4427,
    "distance": lambda distance: distance + 1,
    "first": lambda first: first * 1.001,
    "itself": lambda itself: itself.roll(1, -1),
    "previous": lambda previous: previous.roll(1, -1),
    "marked": lambda marked: 1 - marked,
    "lse": lambda lse: lse + 0.01,
    "empty": torch.ones_like,
    "top_keys": lambda keys: keys.flip(1),
    "top_weights": lambda weights: weights * 1.001,
}


def test_the_proof_of_a_long_text_is_short(model, monkeypatch):
    """Of a row of cells only some cells are compared, however large a cell is."""
    text = "the train left the station " * 98
    calls = calls_in(model, text, mode="streamed", cells=4)
    ((attention,), *others), _ = calls["prove_streamed"][-1]
    H, m, d = attention.record.query.shape
    of_a_map = 2 * H * m * m * d

    def work():
        with FlopCounterMode(display=False) as counter:
            assert check_of(attention, *others).passed
        return counter.get_total_flops() / of_a_map

    monkeypatch.setattr(streamed, "_CELL_WEIGHTS", 0)
    monkeypatch.setattr(streamed, "_CELLS", 1)
    assert work() < 0.3
    monkeypatch.setattr(streamed, "_CELLS", 4)
    assert work() > 0.4  # the whole row of cells


def test_few_cells_and_rows_still_show_every_fault(loaded, monkeypatch):
    """All numbers of the summary, and a cell of the diagonal that is off."""
    monkeypatch.setattr(streamed, "_CELL_WEIGHTS", 0)
    monkeypatch.setattr(streamed, "_CELLS", 3)
    monkeypatch.setattr(streamed, "_ROWS", 2)
    calls = calls_in(loaded, mode="streamed", cells=5, top=2)
    for ((attention,), *others), _ in calls["prove_streamed"]:
        summary = attention.summary
        assert check_of(attention, *others).passed
        faults = {name: change(getattr(summary, name)) for name, change in WRONG.items()}
        for name, values in faults.items():
            wrong = replace(attention, summary=replace(summary, **{name: values}))
            assert not check_of(wrong, *others).passed, name


def check_of(attention, *others):
    """Return the check of the reduced maps of one attention."""
    return agreement.prove_streamed([attention], *others)[0].checks[-1]


# --- the layers of a long text together, as on a GPU


def test_layers_that_are_proven_together_give_the_same_checks(reduced):
    """Every stage of the rows; of the reduced maps other cells may be compared."""
    samples = [sample for ((sample,), _), _ in reduced["prove_rows"]]
    (_, rows, marked), _ = reduced["prove_streamed"][0]
    alone = [proof for sample in samples for proof in agreement.prove_rows([sample], rows)]
    for proof, wanted in zip(agreement.prove_rows(samples, rows), alone, strict=True):
        assert (proof.place, proof.unproven) == (wanted.place, wanted.unproven)
        assert proof.not_compared == wanted.not_compared
        for check, of_one in zip(proof.checks, wanted.checks, strict=True):
            assert check.passed
            assert (check.stage, check.compared) == (of_one.stage, of_one.compared)
            assert check.differences == pytest.approx(of_one.differences, rel=0.1, abs=1e-6)
    for sample, proof in zip(samples, agreement.prove_streamed(samples, rows, marked), strict=True):
        assert proof.place == sample.record.place
        assert all(check.passed for check in proof.checks)


def test_a_fault_among_layers_that_are_proven_together_is_named(reduced):
    """Its layer and its head are."""
    samples = [sample for ((sample,), _), _ in reduced["prove_rows"]]
    (_, rows, marked), _ = reduced["prove_streamed"][0]
    for n, sample in enumerate(samples):
        for name, change in WRONG.items():
            values = getattr(sample.summary, name).clone()
            part = slice(None) if name == "empty" else slice(2, 3)
            values[part] = change(values)[part]
            wrong = replace(sample, summary=replace(sample.summary, **{name: values}))
            several = [*samples[:n], wrong, *samples[n + 1 :]]
            proofs = agreement.prove_streamed(several, rows, marked)
            failed = [k for k, each in enumerate(proofs) if not each.checks[-1].passed]
            assert failed == [n], name
            if name != "empty":
                assert proofs[n].checks[-1].failed_heads == (2,), name
        wrong = replace(sample, record=replace(sample.record, scale=sample.record.scale * 1.001))
        proofs = agreement.prove_rows([*samples[:n], wrong, *samples[n + 1 :]], rows)
        checks = [[check.passed for check in each.checks] for each in proofs]
        assert [k for k, passed in enumerate(checks) if not all(passed)] == [n]
