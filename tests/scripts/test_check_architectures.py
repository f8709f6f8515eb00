"""Check a handful of architectures with the command-line script."""

import pytest
from architectures.check import check
from architectures.compare import compare, difference
from architectures.results import CALLS, reason, state, use_state
from architectures.tiny_models import build
from architectures.use import reads_text_alone, use

import attnviz

EXPECTED = {
    "bert": ("agrees", "interface", 2),
    "bloom": ("agrees", "operators", 2),
    "t5": ("agrees", "interface", 6),
    "vit": ("agrees", "interface", 2),
    "mamba": ("agrees", "functions", 0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_architecture_agrees(name):
    result = check(name)
    assert (state(result, 1e-5), result.get("reached"), result["attentions"]) == EXPECTED[name]
    assert result["softmaxes"] == result["attentions"]
    assert result["others"] == {}


# A sample of what a user calls, and no other test does; the whole is in gallery/architectures.md.
USED = {
    "bert": {"shift", "survey"},
    "jamba/JambaForCausalLM": {"generate"},
    "roberta/RobertaForCausalLM": {"generate"},  # which reads the prompt in both directions
    "t5/T5ForSequenceClassification": set(),  # which makes the text of its decoder
    "longformer/LongformerForQuestionAnswering": set(),  # which looks for its separators
    "csm": set(),  # of which a token is 32 codes
    "data2vec-vision": set(),  # which converts to float32 what it projected in half of it
    "dia": set(),
    "gemma3n_audio": set(),  # which cuts its input into blocks
    "kosmos-2": set(),  # which returns the weights of eager attention unasked
    "kosmos-2.5": set(),
    "lxmert": set(),  # which has layers and heads for each of three stacks
    "dinov3_vit": set(),
    'wav2vec2-bert?{"position_embeddings_type": "rotary"}': set(),
    "mamba": {"survey"},
}


@pytest.mark.parametrize("name", USED)
def test_what_a_user_calls_is_verified(name):
    found = use(name)
    for call in {"float32", *USED[name]}:
        assert found[call] == ["verified", ""], call
    assert not {call for call in CALLS if found.get(call, [""])[0] == "crash"}
    for call in ("bfloat16", "float16"):  # where rounding may hide a canary
        assert found[call][0] in ("verified", "not proven"), found[call]


def test_padding_that_overflows_in_half_precision_is_named_and_refuses_nothing():
    found = use("longt5")  # which masks a padded query by -1e10: a row of NaN in float16
    assert (found["float32"][0], use_state(*found["float16"])) == ("verified", "overflow")


def test_a_model_that_writes_sounds_generates_no_text():
    state, why = use("higgs_audio_v2")["generate"]
    assert (state, why.partition(".")[0]) == (
        "refused", "HiggsAudioV2ForConditionalGeneration does not generate text"
    )  # fmt: skip


def test_a_call_that_fails_is_told_from_one_that_is_refused(monkeypatch):
    def refuse(*args, **options):
        raise attnviz.InputError("The text is empty.")

    monkeypatch.setattr("architectures.use._load", refuse)
    assert use("bert")["float32"] == ["refused", "The text is empty."]
    monkeypatch.setattr("architectures.use._load", None)
    assert use("bert")["float32"][0] == "crash"


def test_a_fault_is_detected(monkeypatch):
    model, inputs = build("bert")
    monkeypatch.setattr("architectures.compare.difference", lambda record, reference: difference(
        type(record)(**vars(record) | {"scale": record.scale * 1.01}), reference
    ))  # fmt: skip
    result = {"architecture": "bert"} | compare(model, inputs)
    assert result["difference"] > 1e-4
    assert state(result, 1e-5) == "differs"


def test_architectures_that_do_not_run_report_the_reason():
    missing = "ImportError: DinatModel requires the natten library but it was not found in your"
    one = {"architecture": "dinat", "reason": missing}
    assert state(one, 1e-5) == "not run"
    assert reason(one) == "needs the package natten, which was not installed"
    unread = {"architecture": "x", "unread": "a row sees scores that are no product"}
    assert state(unread, 1e-5) == "not read"
    assert reason(unread) == "a row sees scores that are no product"


def test_analyses_of_a_text_are_left_out_where_the_model_needs_more():
    model, inputs = build("bros")  # the boxes of the words
    assert not reads_text_alone(model, inputs["input_ids"])
    model, inputs = build("bert")
    assert reads_text_alone(model, inputs["input_ids"])
    assert {"shift", "survey"}.isdisjoint(use("bros"))
