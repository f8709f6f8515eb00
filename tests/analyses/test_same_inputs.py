"""Analyses take what `attend` takes, and run the model again with all of its arguments."""

import re

import pytest
import torch
import transformers
from families import tiny
from matplotlib.text import Text
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import attnviz
from attnviz import InputError, ModelError

TEXT, SECOND = "a man is sleeping", "the dog is awake"
SIZE = {
    "vocab_size": 30522,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}


def classifier(tokenizer, kind="BertForSequenceClassification", **options):
    """Return a tiny model whose weights are large enough that every word matters."""
    torch.manual_seed(1)
    cls = getattr(transformers, kind)
    return attnviz.load(cls(cls.config_class(**SIZE | options)).eval(), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def pairs(tokenizer):
    return classifier(tokenizer, num_labels=3, max_position_embeddings=48)


def own_logits(model, *texts):
    """Return the logits of the model's own call."""
    with torch.no_grad():
        return model.module(**model.tokenizer(*texts, return_tensors="pt")).logits[0].double()


@pytest.mark.parametrize("planted", [False, True])
def test_a_pair_is_explained_with_its_segments(planted, pairs, monkeypatch):
    """Also seen to fail where the segments do not reach the model."""
    if planted:
        monkeypatch.setattr("attnviz.inputs.text._SEGMENTS", re.compile("no name"))
    why = attnviz.explain(TEXT, pair=SECOND, target="LABEL_1", number="logit", model=pairs)
    same = abs(why.value - own_logits(pairs, TEXT, SECOND)[1].item()) < 1e-4
    assert same != planted
    assert why.words.count("[SEP]") == 2
    if not planted:
        deleted = own_logits(pairs, TEXT, "the dog awake")[1].item()
        assert why.causal["delete"][why.words.index("is", 5)] == pytest.approx(
            why.value - deleted, abs=1e-4
        )


def test_the_output_of_a_tokenizer_gives_the_same_numbers_as_the_pair(pairs):
    encoding = pairs.tokenizer(TEXT, SECOND, return_tensors="pt")
    options = {"model": pairs, "heads": [(0, 1), (1, 2)], "target": "LABEL_1"}
    (one,), (other,) = (
        attnviz.ablate(TEXT, pair=SECOND, **options).lost,
        attnviz.ablate(encoding, **options).lost,
    )
    torch.testing.assert_close(one, other)
    assert one.abs().max() > 1e-4
    moved = [
        attnviz.shift("dog", *text, model=pairs, **more)
        for text, more in (((TEXT,), {"pair": SECOND}), ((encoding,), {}))
    ]
    torch.testing.assert_close(moved[0].decomposition.credit, moved[1].decomposition.credit)
    assert moved[0].agreement.verdict == "verified"
    cut = attnviz.shift("man", TEXT + " now" * 60, truncate=True, model=pairs, reference="mask")
    assert "text cut from 66 to 48 tokens" in cut.notes


def test_a_corpus_of_pairs_ids_and_messages(pairs, tokenizer, monkeypatch, once):
    texts, seconds = [TEXT, "a train left"], [SECOND, "it was late"]
    encodings = [tokenizer(*both) for both in zip(texts, seconds, strict=True)]
    of_pairs = attnviz.survey(texts, pair=seconds, model=pairs)
    of_ids = attnviz.survey(encodings, model=pairs)
    alone = attnviz.survey(texts, model=pairs)
    assert of_pairs.tokens == of_ids.tokens > alone.tokens
    torch.testing.assert_close(of_pairs.mean, of_ids.mean, equal_nan=True)
    change = attnviz.compare(texts, models=[pairs] * 2, pair=seconds)
    torch.testing.assert_close(change.mean[0].double(), of_pairs.mean.double(), equal_nan=True)
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content }}", raising=False)
    chats = [[{"role": "user", "content": text}] for text in texts]
    assert attnviz.survey(chats, model=pairs).tokens == alone.tokens - 2 * len(texts)
    with pytest.raises(InputError, match="Text 2 is 3, not a string"):
        attnviz.survey([TEXT, 3], model=pairs)
    with pytest.raises(InputError, match="pair is the second text of each"):
        attnviz.survey(texts, pair=[SECOND], model=pairs)


@pytest.mark.parametrize("name", ["steps", "view"])
def test_a_text_in_place_of_a_result(name, model):
    function, result = getattr(attnviz, name), attnviz.attend(TEXT, model=model)
    repr_of_text = repr(function(TEXT, model=model, layer=1, head=2))
    assert repr_of_text == repr(function(result, layer=1, head=2))
    with pytest.raises(InputError, match="model cannot be used: a result holds what was read"):
        function(result, model=model)
    with pytest.raises(InputError, match="pair cannot be used"):
        function(result, pair=SECOND)


READERS = {
    "explain": lambda model, **inputs: attnviz.explain(TEXT, model=model, **inputs),
    "shift": lambda model, **inputs: attnviz.shift("man", TEXT, model=model, **inputs),
    "ablate": lambda model, **inputs: attnviz.ablate(TEXT, word="man", model=model, **inputs),
    "senses": lambda model, **inputs: attnviz.senses("bank", model=model, **inputs),
    "survey": lambda model, **inputs: attnviz.survey([TEXT], model=model, **inputs),
    "explore": lambda model, **inputs: attnviz.explore([TEXT], model=model, **inputs),
    "compare": lambda model, **inputs: attnviz.compare([TEXT], models=[model] * 2, **inputs),
}


@pytest.mark.parametrize("keyword", ["image", "audio", "sampling_rate"])
@pytest.mark.parametrize("reader", [name for name in READERS if name != "explain"])
def test_an_input_that_is_not_read_is_refused_by_name(reader, keyword, pairs):
    with pytest.raises(InputError, match=f"(?i){reader} reads.*Leave .* out") as refused:
        READERS[reader](pairs, **{keyword: 16_000})
    assert keyword in str(refused.value)


@pytest.mark.parametrize("reader", ["explain", "shift"])
def test_a_list_is_refused_where_one_text_is_read(reader, pairs):
    words = ("man",) if reader == "shift" else ()
    with pytest.raises(InputError, match=f"{reader} reads one text at a time"):
        getattr(attnviz, reader)(*words, [TEXT, SECOND], model=pairs)


@pytest.mark.parametrize("reader", ["shift", "ablate", "senses"])
def test_an_encoder_decoder_is_refused_where_one_text_is_read(reader, tokenizer):
    model = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    with pytest.raises(ModelError, match="does not read one text and nothing else"):
        READERS[reader](model)


def test_both_texts_of_a_pair_are_told_apart(pairs):
    result = attnviz.explain(TEXT, pair=SECOND, model=pairs)
    assert [*dict.fromkeys(result.stacks)] == ["first text", "second text"]
    start = result.stacks.index("second text")
    assert result.words[start : start + 4] == (*SECOND.split(),)
    texts = {text.get_text() for text in result.plot().findobj(Text)}
    assert {"first text", "second text", "first text:", "second text:"} <= texts
    assert attnviz.explain(TEXT, model=pairs).stacks == ()


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression", None])
def test_what_a_classifier_predicts(problem, tokenizer):
    """The sigmoid of each of several labels, and no probability of a score."""
    labels = 4 if problem == "multi_label_classification" else 1
    model = classifier(tokenizer, num_labels=labels, problem_type=problem)
    logits = own_logits(model, TEXT)
    why = attnviz.explain(TEXT, model=model)
    assert why.against is None
    assert why.number == "logit"
    if labels == 1:
        assert why.probability != why.probability  # nan
        assert f"The score is {why.share} here" in why.finding
        assert "LABEL_0" not in why.headline + why.finding
        assert "probab" not in why.finding
        assert why.unit == "points"
    else:
        assert why.probability == pytest.approx(logits.sigmoid().max().item(), abs=1e-5)
        expected = logits.sigmoid().sort(descending=True).values.tolist()
        assert why.top_probabilities == pytest.approx(expected, abs=1e-5)
    assert why.value == pytest.approx(logits.max().item(), abs=1e-4)
    assert why.plot().axes


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_classifier_is_explained_by_what_it_loses(tokenizer):
    module = classifier(tokenizer).module
    module = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, torch.qint8)
    why = attnviz.explain(TEXT, model=attnviz.load(module, tokenizer=tokenizer))
    assert {*why.causal} == {"mask", "delete", "replace"}
    assert any("without gradients" in note for note in why.notes)
    assert why.agreement.verdict == "verified"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "LlamaForCausalLM"])
def test_the_sums_of_half_precision_are_verified(dtype, kind, tokenizer):
    options = {"num_key_value_heads": 4} if "Llama" in kind else {}
    module = classifier(tokenizer, kind, **options).module.to(dtype)
    why = attnviz.explain(TEXT, model=attnviz.load(module, tokenizer=tokenizer), methods=())
    assert why.agreement.verdict == "verified"


def test_a_causal_model_reads_a_class_and_a_similarity_as_its_own_call_does(tokenizer):
    """Without a BOS token that the tokenizer does not add."""
    options = {"num_key_value_heads": 4, "pad_token_id": 0}
    model = classifier(tokenizer, "LlamaForSequenceClassification", **options)
    bare = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        bos_token="[CLS]", unk_token="[UNK]", pad_token="[PAD]",
    )  # fmt: skip
    bare.backend_tokenizer.post_processor = processors.Sequence([])
    model = attnviz.load(model.module, tokenizer=bare)
    why = attnviz.explain(TEXT, model=model, methods=())
    assert why.probability == pytest.approx(
        own_logits(model, TEXT).softmax(-1).max().item(), abs=1e-5
    )
    assert why.tokens[0] == "a"
    base = attnviz.load(model.module.model, tokenizer=bare)
    similar = attnviz.explain(TEXT, similar_to=SECOND, model=base, methods=())
    with torch.no_grad():
        one, other = (
            base.module(**bare(text, return_tensors="pt"))[0].mean(1) for text in (TEXT, SECOND)
        )
    assert similar.value == pytest.approx(torch.cosine_similarity(one, other).item(), abs=1e-5)


def test_the_pieces_of_a_labeled_word_are_no_context(tokenizer):
    model = classifier(tokenizer, "BertForTokenClassification")
    options = {"word": "unbelievably", "target": "LABEL_0", "number": "logit", "methods": ()}
    text = f"he was unbelievably {TEXT}"
    why = attnviz.explain(text, model=model, **options)
    pieces = torch.tensor(why.positions[why.at])
    assert len(pieces) > 1
    visible = torch.eye(len(why.tokens)).bool()
    visible[:, [0, -1]] = True
    visible[pieces[:, None], pieces] = True
    inputs = {**tokenizer(text, return_tensors="pt"), "attention_mask": visible[None, None]}
    with torch.no_grad():
        alone = model.module(**inputs).logits[0, pieces[0], 0].item()
    assert why.baseline == pytest.approx(alone, abs=1e-5)


def test_parts_of_a_pair_that_is_given_by_its_ids(pairs):
    encoding = pairs.tokenizer(TEXT, SECOND, return_tensors="pt")
    why = attnviz.explain(encoding, groups=[SECOND, "a man"], model=pairs)
    typed = attnviz.explain(TEXT, pair=SECOND, groups=[SECOND, "a man"], model=pairs)
    assert why.words == typed.words == (SECOND, "a man")
    torch.testing.assert_close(why.causal, typed.causal)


def test_a_target_in_another_vocabulary_is_not_masked(tokenizer):
    """The mask token, and words that replace others, are those of the source alone."""
    vocabulary = {"[PAD]": 0, "[START]": 1, "ein": 2, "mann": 3}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    target = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", bos_token="[START]")
    encoder = transformers.BertConfig(**SIZE)
    decoder = transformers.BertConfig(
        **SIZE | {"vocab_size": 4}, is_decoder=True, add_cross_attention=True
    )
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    torch.manual_seed(0)
    module = transformers.EncoderDecoderModel(config).eval()
    model = attnviz.load(module, tokenizer=tokenizer, target_tokenizer=target)
    why = attnviz.explain(TEXT, decoder="ein", target="mann", model=model)
    assert {*why.causal} == {"knock-out", "delete"}
    assert why.agreement.verdict == "verified"


CANNOT = {
    "no padding token": (
        lambda tokenizer: classifier(tokenizer, "LlamaForSequenceClassification"),
        "pad_token_id = tokenizer.eos_token_id",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_explained_is_one_line(case, tokenizer):
    make, message = CANNOT[case]
    with pytest.raises(ModelError, match=message) as caught:
        attnviz.explain(TEXT, model=make(tokenizer))
    assert "\n" not in str(caught.value)


def test_the_advice_on_a_padding_token_works(tokenizer):
    model = classifier(tokenizer, "LlamaForSequenceClassification")
    model.module.config.pad_token_id = tokenizer.sep_token_id
    assert attnviz.explain(TEXT, model=model).agreement.verdict == "verified"


def test_a_text_is_explained_inside_inference_mode(pairs):
    expected = attnviz.explain(TEXT, model=pairs)
    with torch.inference_mode():
        why = attnviz.explain(TEXT, model=pairs)
    torch.testing.assert_close(why.credit, expected.credit, equal_nan=True)


def test_a_vocabulary_of_letters_replaces_letters_by_others():
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = "LAGVSERT"
    inner = Tokenizer(
        models.WordLevel({t: n for n, t in enumerate(["[PAD]", "[UNK]", *letters])}, "[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]"
    )
    model = classifier(tokenizer, vocab_size=10)
    why = attnviz.explain(letters, model=model)
    assert why.causal["replace"].isfinite().all()
    assert (why.replacements != 0).all()  # no letter is replaced by itself


@pytest.mark.parametrize("kind", ["BartForSequenceClassification", "T5ForSequenceClassification"])
def test_a_classifier_with_a_decoder_is_explained_by_what_it_loses(kind, tokenizer):
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    config = cls.config_class(
        vocab_size=30522, d_model=32, encoder_layers=2, decoder_layers=2, num_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, num_heads=2, d_kv=16, d_ff=32,
        encoder_ffn_dim=32, decoder_ffn_dim=32, init_std=0.3, bos_token_id=101, eos_token_id=102,
        pad_token_id=0, decoder_start_token_id=102, forced_eos_token_id=None,
    )  # fmt: skip
    model = attnviz.load(cls(config).eval(), tokenizer=tokenizer)
    why = attnviz.explain(TEXT, target="LABEL_1", number="logit", model=model)
    assert why.value == pytest.approx(own_logits(model, TEXT)[1].item(), abs=1e-5)
    less = own_logits(model, "a man sleeping")[1].item()
    assert why.causal["delete"][why.words.index("is")] == pytest.approx(why.value - less, abs=1e-5)
    assert (why.decomposition, "knock-out" in why.causal) == (None, False)
    assert any("makes the text of its decoder itself" in note for note in why.notes)
    assert why.agreement.verdict == "verified"
    parts = attnviz.explain(TEXT, target="LABEL_1", number="logit", groups=["is"], model=model)
    assert parts.causal["mask"][0] == pytest.approx(why.causal["mask"][3].item(), abs=1e-6)


def test_the_target_of_an_encoder_decoder_is_empty_by_default(tokenizer):
    model = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    why = attnviz.explain(TEXT, target="dog", model=model, methods=())
    assert why.tokens[-2:] == ("[PAD]", "[CLS]")  # as this tokenizer begins a text
    start = torch.tensor([[model.module.config.decoder_start_token_id, tokenizer.cls_token_id]])
    with torch.no_grad():
        ids = tokenizer(TEXT, return_tensors="pt").input_ids
        logits = model.module(input_ids=ids, decoder_input_ids=start).logits[0, -1].double()
    expected = logits.log_softmax(-1)[tokenizer.convert_tokens_to_ids("dog")].item()
    assert why.value == pytest.approx(expected, abs=1e-5)
    assert why.agreement.verdict == "verified"
