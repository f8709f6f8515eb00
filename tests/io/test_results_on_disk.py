"""A result is restored from disk bit for bit; other files are rejected."""

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
from families import TEXTS, tiny
from golden.saved_results import BANK, SAVED
from media import RATE, chirp, picture, seeing
from reports import forget_day
from robustness.catalogue import NUL
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

import attnviz
from attnviz import (
    AgreementReport,
    AttentionMap,
    InputError,
    attention_map,
    head_maps,
    load_result,
    save_result,
)
from attnviz.analyses.maps.compute import choose_head
from attnviz.io.export import _FORMER, to_data
from attnviz.results import Factor, Provenance

LONG = "the train left the station on time and nobody noticed that it was early. " * 4
BLANK = b'"sha256":"' + b"0" * 64


def bits(number):
    return struct.pack(">d", number)


def assert_same(one, other, at="it"):
    """Compare types, shapes and bits, not values: NaN is NaN, and -0 is not 0."""
    assert type(one) is type(other), at
    if isinstance(one, Tensor):
        assert other.device.type == "cpu", at
        assert (one.dtype, one.shape) == (other.dtype, other.shape), at
        one, other = (each.cpu().contiguous().flatten().view(torch.uint8) for each in (one, other))
        assert torch.equal(one, other), at
    elif isinstance(one, Mapping):
        assert list(one) == list(other), at
        for key in one:
            assert_same(one[key], other[key], f"{at}[{key}]")
    elif isinstance(one, tuple):
        assert len(one) == len(other), at
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{at}[{i}]")
    elif is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{at}.{field.name}")
    else:
        assert bits(one) == bits(other) if isinstance(one, float) else one == other, at


def on_disk(result, folder):
    save_result(result, folder / "result.safetensors", force=True)
    return forget_day(load_result(folder / "result.safetensors"))


def of(family, tokenizer, dtype=torch.float32, **given):
    model = attnviz.load(tiny(family, dtype), tokenizer=tokenizer)
    return attnviz.attend(TEXTS[0], model=model, **given)


MADE = {
    "a sentence": lambda model: attnviz.attend(TEXTS[0], model=model),
    "a pair": lambda model: attnviz.attend(TEXTS[0], pair=TEXTS[1], model=model),
    "one of a batch": lambda model: attnviz.attend(TEXTS, model=model)[2],
    "a causal mask": lambda model: of("gpt2", model.tokenizer, torch.float16),
    "rotation": lambda model: of("llama", model.tokenizer, torch.bfloat16),
    "a sliding window and a soft cap": lambda model: of("gemma2", model.tokenizer),
    "sinks": lambda model: of("gpt-oss", model.tokenizer),
    "latent vectors": lambda model: of("deepseek-v3", model.tokenizer),
    "norms and clips": lambda model: of("olmoe", model.tokenizer),
    "a bias by position": lambda model: of("deberta", model.tokenizer),
    "encoder, decoder, cross": lambda model: of("t5", model.tokenizer, target="le train"),
    "a generation": lambda model: of("bart", model.tokenizer, generate=3),
    "an image": lambda model: seeing("vit", model.tokenizer).attend(image=picture()),
    "a sound": lambda model: seeing("wav2vec2", None).attend(audio=chirp(), sampling_rate=RATE),
    "a text and an image": lambda model: seeing("clip", model.tokenizer).attend(
        "a circle", image=picture()
    ),
    "a long text": lambda model: attnviz.attend(
        LONG, model=model, mode="streamed", layers=[0, 2], heads=[3, 1], top=3
    ),
    "a long text with a window": lambda model: of(
        "mistral", model.tokenizer, mode="streamed", exact=1
    ),
    "a shift": lambda model: attnviz.shift(
        "apple",
        "I love apple phones",
        toward={"tech": ["computer"], "fruit": ["banana"]},
        verify_causally=True,
        model=model,
    ),
    "senses": lambda model: attnviz.senses("bank", BANK, model=model),
    "an example": lambda model: attnviz.example("likes"),
}


@pytest.fixture(scope="module", params=MADE)
def result(request, model):
    if request.param != "a sentence":
        model = attnviz.load(tiny("bert"), tokenizer=model.tokenizer)
    return MADE[request.param](model)


def test_every_result_is_restored_bit_for_bit(result, tmp_path):
    assert_same(result, on_disk(result, tmp_path))
    for part in (*getattr(result, "records", ())[-1:], *getattr(result, "streamed", ())[-1:]):
        assert_same(part, on_disk(part, tmp_path))
        if summary := getattr(part, "summary", None):
            assert_same(summary, on_disk(summary, tmp_path))


# The others differ from these in what was restored above, bit for bit.
DRAWN = {
    "a pair", "encoder, decoder, cross", "a generation", "an image", "a sound",
    "a text and an image", "a long text", "a shift", "senses", "an example",
}  # fmt: skip


@pytest.mark.parametrize(
    "result",
    [pytest.param(name, marks=[] if name in DRAWN else pytest.mark.long) for name in MADE],
    indirect=True,
)
def test_its_figures_are_the_same(result, tmp_path):
    again = on_disk(result, tmp_path)
    if not isinstance(result, attnviz.AttentionResult):
        assert repr(again) == repr(result)
        assert json.dumps(to_data(again)) == json.dumps(to_data(result))
        return
    layer, heads, _ = choose_head(result)
    for make in (
        lambda given: attention_map(given, layer=layer, head=heads),
        head_maps,
        None if result.streamed else attnviz.steps,
    ):
        if make is not None:
            drawn = make(result)
            assert_same(drawn, make(again))
            assert_same(drawn, on_disk(drawn, tmp_path))
    assert attnviz.view(again).data() == attnviz.view(result).data()
    assert again.agreement.summary() == result.agreement.summary()


# property/test_any_result.py has float32 and float64 with any bits and in any order of memory.
ODD = [
    torch.tensor([0x7FC1, -1, 0x0001], dtype=torch.int16).view(torch.bfloat16),
    torch.tensor([0x7E01, -1, 0x0001], dtype=torch.int16).view(torch.float16),
    torch.tensor([True, False]),
    torch.tensor([-(2**63), 2**63 - 1]),
    torch.ones(1, 1, 3).expand(2, 4, 3),
    torch.tensor(1.5),
    torch.empty(0, 3),
    torch.empty(2, 0, dtype=torch.bfloat16),
    torch.ones(2, requires_grad=True),
]


@pytest.mark.parametrize("tensor", ODD, ids=lambda each: f"{each.dtype}, {tuple(each.shape)}")
def test_every_kind_of_tensor(tensor, tmp_path):
    assert_same(Factor(tensor.detach()), on_disk(Factor(tensor), tmp_path))


NAN = struct.unpack(">d", 0x7FF0DEAD0000BEEF.to_bytes(8))[0]


@pytest.mark.parametrize("number", [NAN, math.inf, -math.inf, -0.0, 5e-324, 1 / 3, 2**70, 3])
def test_every_kind_of_number(number, tmp_path):
    assert_same(Factor(number), on_disk(Factor(number), tmp_path))


def test_shared_tensors_are_stored_once(train, tmp_path):
    again = on_disk(train, tmp_path)
    first, *others = again.records
    assert all(each.query_axis is first.key_axis for each in others)
    one = train.records[0]
    twice = replace(one, input=one.query[0], key_input=one.query[0])
    again = on_disk(twice, tmp_path)
    assert again.input is again.key_input
    with safe_open(tmp_path / "result.safetensors", framework="pt") as file:
        assert "input" in file.keys()  # noqa: SIM118
        assert "key_input" not in file.keys()  # noqa: SIM118


def test_overlapping_memory_is_not_sharing(train, tmp_path):
    X = torch.arange(81.0).reshape(9, 9)
    terms = {"bias": X.view(torch.int32)[None], "mask": X[None]}
    one = replace(train.records[0], input=X, key_input=X.mT, **terms)
    assert_same(one, on_disk(one, tmp_path))


@pytest.mark.gpu
def test_results_are_restored_on_the_cpu(tmp_path):
    result = attnviz.attend(TEXTS[0], model=attnviz.load(device="cuda"))
    assert result.records[0].query.is_cuda
    assert_same(result, on_disk(result, tmp_path))


def test_other_programs_can_read_the_file(train, tmp_path):
    save_result(train, tmp_path / "x.safetensors")
    metadata, tensors = parts(tmp_path / "x.safetensors")
    about = json.loads(metadata["about"])
    assert about["agreement"]["verdict"] == "verified"
    assert about["provenance"]["text"] == "the train left the station on time"
    assert torch.equal(tensors["records.5.query"], train.records[5].query)
    example = attnviz.example("phones")
    save_result(example, tmp_path / "y.safetensors")
    assert parts(tmp_path / "y.safetensors")[1].keys() >= {"X given", "K from_inputs_follows"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda train: [train], "list is not a result of attnviz"),
        (lambda train: torch.ones(2), "Tensor is not a result of attnviz"),
        (lambda train: Factor("2"), "Factor.factor cannot hold this str"),
        (lambda train: replace(train, records=list(train.records)), "AttentionResult.records"),
        (lambda train: replace(train.records[0], layer=True), "AttentionRecord.layer"),
    ],
)
def test_unreadable_results_are_not_written(wrong, said, train, tmp_path):
    with pytest.raises(InputError, match=said):
        save_result(wrong(train), tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_more_labels_than_a_header_holds(train, tmp_path, monkeypatch):
    monkeypatch.setattr("attnviz.io.export._MAX_HEADER", 10_000)
    with pytest.raises(InputError, match="a file holds at most 10,000"):
        save_result(train, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def signed(metadata, tensors):
    """Return a file with a valid digest for any contents."""
    data = save(tensors, metadata | {"sha256": "0" * 64})
    digest = hashlib.sha256(data).hexdigest().encode()
    return data.replace(BLANK, BLANK[:-64] + digest, 1)


def parts(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata(), load(path.read_bytes())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a small result and its file, with labels that are hard to serialize."""
    generator = torch.Generator().manual_seed(0)
    agreement = AgreementReport((), (("layer 0", "query", "why"),), (), "f", "cpu", {}, "00")
    result = AttentionMap(
        torch.rand(3, 2, generator=generator),
        ("a", "the\0\n#2", "日本"),
        ("\u202e", "</script>"),
        "encoder",
        2,
        (1, 2),
        (),
        agreement,
        Provenance("m", "00", "", None, "f", "cpu", {"torch": "2", "attnviz": "1"}),
        (None, 1),
        image=torch.randint(0, 256, (3, 5, 3), generator=generator).to(torch.uint8),
    )
    path = tmp_path_factory.mktemp("small") / "x.safetensors"
    save_result(result, path)
    return path, result


def refusal(path):
    """Return the one-line error for a rejected file; it must say what to do."""
    with pytest.raises(InputError) as refused:
        load_result(path)
    said = str(refused.value)
    assert said.isprintable()
    assert len(said) < 400 + len(str(path))
    assert " cannot be read: " in said
    assert said.endswith(". Name another file, or save the result again.")
    return said


def in_axis(record, **other):
    return replace(record, key_axis=replace(record.key_axis, **other))


def in_check(result, **other):
    report = result.agreement
    first = next(check for check in report.checks if check.stage == "weights")
    return replace(result, agreement=replace(report, checks=(replace(first, **other),)))


UNSOUND = {
    "seconds of no label": lambda one: in_axis(one, seconds=()),
    "words without a label": lambda one: in_axis(one, words=(99,) * len(one.key_axis)),
    "other queries": lambda one: replace(one, query=one.query[:, :1]),
    "wider keys": lambda one: replace(one, key=one.key.repeat(1, 1, 2)),
    "no values": lambda one: replace(one, value=one.value[..., :0]),
    "whole numbers": lambda one: replace(one, query=one.query.long()),
    "an odd scale": lambda one: replace(one, scale=math.nan),
    "an odd mask": lambda one: replace(one, mask=torch.zeros(1, 2, 2)),
    "an odd rotation": lambda one: replace(one, rotation=(torch.ones(1, 2), torch.ones(1, 2))),
}
CONTRADICTORY = {
    "nan": lambda one: replace(
        one, records=tuple(replace(each, key=each.key * math.nan) for each in one.records)
    ),
    "nothing at all": lambda one: replace(one, records=()),
    "a gray image": lambda one: replace(one, image=torch.zeros(4, 4)),
    "differences that do not pass": lambda one: in_check(one, differences=(9.0,) * 12),
    "differences that are nan": lambda one: in_check(one, differences=(math.nan,) * 12),
    "tolerances of nothing": lambda one: in_check(one, tolerances=(0.0,) * 12),
    "fewer tolerances": lambda one: in_check(one, tolerances=(1.0,)),
    "a slope that does not pass": lambda one: in_check(one, slope_error=1.0),
    "numbers that are not finite": lambda one: in_check(one, finite=False),
    "a hidden key with weight": lambda one: in_check(one, hidden_zero=False),
}


@pytest.mark.parametrize("name", [*UNSOUND, *CONTRADICTORY])
def test_a_valid_file_with_an_invalid_result_is_refused(name, train, tmp_path, monkeypatch):
    with monkeypatch.context() as unchecked:  # as a foreign program could write it
        unchecked.setattr("attnviz.results.base.Savable.check", lambda *_, **__: None)
        if name in UNSOUND:
            unsound = replace(train, records=(UNSOUND[name](train.records[0]), *train.records[1:2]))
        else:
            unsound = CONTRADICTORY[name](train)
        save_result(unsound, tmp_path / "x.safetensors")
    assert "its content is not valid: " in (said := refusal(tmp_path / "x.safetensors"))
    assert " should have " in said
    with pytest.raises(InputError, match=r"The result is not valid: .* should have"):
        save_result(unsound, tmp_path / "y.safetensors")


def test_a_file_with_impossible_numbers_is_refused(small, tmp_path):
    metadata, tensors = parts(small[0])
    for kind in (torch.float8_e4m3fn, torch.complex64, torch.int8):
        path = tmp_path / "x.safetensors"
        path.write_bytes(signed(metadata, tensors | {"weights": tensors["weights"].to(kind)}))
        assert f"no tensor of a result is of {kind}" in refusal(path)
    nan = replace(small[1], weights=small[1].weights * math.nan)
    assert_same(nan, on_disk(nan, tmp_path))  # it was not verified, and does not claim to be


def test_a_lone_surrogate(small, tmp_path):
    result = replace(small[1], rows=("a", "\ud83d", "b"))
    assert_same(result, on_disk(result, tmp_path))
    about = json.loads(parts(tmp_path / "result.safetensors")[0]["about"])
    assert about["rows"] == ["a", "\ud83d", "b"]


@pytest.mark.parametrize("name", ["x.json", "x.npz", "x.parquet", "x.png"])
def test_a_file_of_another_kind(small, tmp_path, name):
    path = tmp_path / name
    picture().save(path) if name == "x.png" else save_result(small[1], path)
    assert "it is not a safetensors file" in refusal(path)


def test_files_that_are_not_results(tmp_path):
    assert "there is no such file" in refusal(tmp_path / "none.safetensors")
    assert "it is a folder" in refusal(tmp_path)
    (tmp_path / "empty").touch()
    assert "it is empty" in refusal(tmp_path / "empty")
    save_file = tmp_path / "model.safetensors"
    save_file.write_bytes(save({"weight": torch.ones(3)}, {"format": "pt"}))
    assert "such as the weights of a model" in refusal(save_file)
    save_file.write_bytes(save({"weight": torch.ones(3)}))
    assert "such as the weights of a model" in refusal(save_file)
    with pytest.raises(InputError, match=f"cannot be read: {NUL}"):
        load_result(tmp_path / "a\0b")
    assert "name too long" in refusal(tmp_path / ("long" * 100))
    if Path("/dev/zero").exists():
        assert "it is not a plain file" in refusal(Path("/dev/zero"))


def test_a_result_too_large_for_memory(small, monkeypatch):
    def load(data):
        raise MemoryError

    monkeypatch.setattr("attnviz.io.export.load", load)
    with pytest.raises(InputError, match="MB is needed for the result in"):
        load_result(small[0])


@pytest.fixture(scope="module")
def explored(model):
    return attnviz.explore(TEXTS, model=attnviz.load(tiny("bert"), tokenizer=model.tokenizer))


def test_fields_that_no_longer_exist_are_left_out(explored, tmp_path):
    explored.save(tmp_path / "x.safetensors")
    metadata, tensors = parts(tmp_path / "x.safetensors")
    path, tree = tmp_path / "older.safetensors", json.loads(metadata["tree"])
    plane = {"QueryKeyPlane": {"keys": {"tensor": ["planes.0.keys", 0, 1]}, "explained": 1.0}}
    tree[0]["ExploreResult"]["planes"] = [plane]
    tree[0]["ExploreResult"]["examples"][0][0]["HeadExample"]["count"] = 3
    more = tensors | {"planes.0.keys": torch.ones(2, 2)}
    path.write_bytes(signed(metadata | {"tree": json.dumps(tree)}, more))
    assert_same(on_disk(explored, tmp_path), forget_day(load_result(path)))
    plane["QueryKeyPlane"]["no name"] = 1
    path.write_bytes(signed(metadata | {"tree": json.dumps(tree)}, more))
    assert "its content is not valid" in refusal(path)


def test_a_saved_result_that_holds_another_stays_verified(explored, tmp_path):
    again = on_disk(explored, tmp_path)
    assert again.checked_agreement.verdict == again.survey.checked_agreement.verdict == "verified"
    again.survey.mean[0, 0] += 1
    assert again.checked_agreement.verdict == "failed"


def test_a_newer_format_names_its_version(small, tmp_path):
    metadata, tensors = parts(small[0])
    path = tmp_path / "x.safetensors"
    path.write_bytes(signed(metadata | {"format": "2", "attnviz": "9.1"}, tensors))
    with pytest.raises(InputError, match=r"in format '2' of attnviz '9\.1', .* Upgrade attnviz\."):
        load_result(path)


HUGE = 2**62


@pytest.mark.parametrize(
    "header",
    [
        {"weights": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}},
        {"weights": {"dtype": "F32", "shape": [3, 2], "data_offsets": [24, 0]}},
        {"weights": {"dtype": "F4", "shape": [3, 2], "data_offsets": [0, 24]}},
        {"weights": {"dtype": "F32", "shape": [3, 2], "data_offsets": ["0", "24"]}},
        {"weights": None},
        [],
    ],
)
def test_a_header_that_lies_about_sizes(small, tmp_path, header):
    metadata, tensors = parts(small[0])
    if isinstance(header, dict):
        header = {"__metadata__": metadata | {"sha256": "0" * 64}, **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    data = len(text).to_bytes(8, "little") + text + tensors["weights"].numpy().tobytes()
    digest = hashlib.sha256(data).hexdigest().encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(data.replace(BLANK, BLANK[:-64] + digest))
    refusal(path)
    path.write_bytes((99_000_000).to_bytes(8, "little") + data[8:])
    assert "it was cut short" in refusal(path)
    path.write_bytes((2**63).to_bytes(8, "little") + data[8:])
    assert "it is not a safetensors file" in refusal(path)


def put(*path, value):
    """Return a function that changes a tree at one position."""

    def change(tree):
        at = tree
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        return tree

    return change


MAP = (0, "AttentionMap")
NOT_VALID = "its content is not valid"
SIDES = [{"AxisGeometry": {"start": 0, "unheard": 1}}] * 2
FORGED = {
    "an unknown type": (lambda tree: [{"os.system": {"command": "true"}}], "no type 'os.system'"),
    "a type in the wrong place": (
        put(*MAP, "provenance", value={"AxisGeometry": {}}),
        "cannot hold this AxisGeometry",
    ),
    "an unknown field inside": (
        put(*MAP, "sides", value=SIDES),
        "AxisGeometry has no field 'unheard'",
    ),
    "a field that is missing": (lambda tree: [{"AttentionMap": {}}, *tree[1:]], "TypeError"),
    "a text for a number": (
        put(*MAP, "layer", value="2"),
        "AttentionMap.layer cannot hold this str",
    ),
    "a missing tensor": (put(*MAP, "image", value={"tensor": ["gone", 0]}), "'gone' is missing"),
    "a surplus tensor": (
        lambda tree: put(*MAP, "image", value=None)(tree)[:2],
        "the result has no tensor 'image'",
    ),
    "a number alone": (lambda tree: [7, *tree[1:]], "AttributeError"),
    "no list": (lambda tree: tree[0], NOT_VALID),
    "a name that breaks lines": (lambda tree: [{"a\n\x1b[2J": {}}], "no type 'a\\\\n\\\\x1b"),
}


@pytest.mark.parametrize("name", FORGED)
def test_an_invalid_tree(small, tmp_path, name):
    metadata, tensors = parts(small[0])
    change, said = FORGED[name]
    metadata["tree"] = json.dumps(change(json.loads(metadata["tree"])))
    path = tmp_path / "x.safetensors"
    path.write_bytes(signed(metadata, tensors))
    assert said.replace("\\\\", "\\") in refusal(path)


def test_fields_of_older_versions_are_left_out(tmp_path):
    """An explanation with effects of heads and a logit lens; its numbers are still checked."""
    metadata, tensors = parts(SAVED / "explain.safetensors")
    assert {"HeadEffects", "LogitLens"} <= {*re.findall(r"\w+", metadata["tree"])}
    result = load_result(SAVED / "explain.safetensors")
    assert not hasattr(result, "heads")
    assert not hasattr(result, "lens")
    assert result.checked_agreement.verdict == "verified"
    save_result(result, tmp_path / "again.safetensors")
    again = load_result(tmp_path / "again.safetensors")
    assert again.checked_agreement.verdict == "verified"
    tree = json.loads(metadata["tree"])
    path = tmp_path / "x.safetensors"
    for change in (
        put(0, "ExplainResult", "value", value=9.0),
        put(0, "ExplainResult", "heads", value=None),
    ):
        altered = change(json.loads(metadata["tree"]))
        path.write_bytes(signed(metadata | {"tree": json.dumps(altered)}, tensors))
        assert load_result(path).checked_agreement.altered
    alone = [tree[0]["ExplainResult"]["heads"], *tree[1:]]
    path.write_bytes(signed(metadata | {"tree": json.dumps(alone)}, tensors))
    assert "no type 'HeadEffects'" in refusal(path)


@pytest.mark.parametrize("name", ["compare", "survey"])
def test_fields_that_are_gone_are_left_out_of_older_files(name, tmp_path):
    metadata, tensors = parts(SAVED / f"{name}.safetensors")
    ((kind, fields),) = json.loads(metadata["tree"])[0].items()
    result = load_result(SAVED / f"{name}.safetensors")
    assert fields.keys() - vars(result).keys() == {*_FORMER[kind]}
    assert (type(result).__name__, result.checked_agreement.verdict) == (kind, "verified")
    path = tmp_path / "x.safetensors"
    path.write_bytes(signed(metadata, tensors | {"mean": tensors["mean"] + 1}))
    is_bound = '"digest"' in metadata["tree"]  # files of the first versions know no digest
    assert load_result(path).checked_agreement.altered == is_bound


def test_an_older_comparison_of_three_models_is_refused(tmp_path):
    metadata, tensors = parts(SAVED / "compare.safetensors")
    change = put(0, "CompareResult", "checkpoints", value=["a", "b", "c"])
    metadata["tree"] = json.dumps(change(json.loads(metadata["tree"])))
    path = tmp_path / "x.safetensors"
    path.write_bytes(signed(metadata, tensors))
    assert "two models, with a report and a provenance of each" in refusal(path)


@pytest.mark.parametrize("tree", ["", "{", "[" * 100_000, "nonsense", "null", "1" * 5000])
def test_a_tree_that_is_not_json(small, tmp_path, tree):
    metadata, tensors = parts(small[0])
    path = tmp_path / "x.safetensors"
    path.write_bytes(signed(metadata | {"tree": tree}, tensors))
    assert NOT_VALID in refusal(path)


@pytest.mark.parametrize("kind", [3, "AttentionResult", int, attnviz.SensesResult])
def test_another_type_than_that_of_the_file_is_refused(kind, tmp_path):
    attnviz.attend("the train left").save(path := tmp_path / "train.safetensors")
    with pytest.raises(attnviz.InputError, match=r"kind must be a type|not SensesResult\. Name"):
        attnviz.load_result(path, kind)
