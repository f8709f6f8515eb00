"""Explanations find the word and the head that make a hand-made model predict what it predicts."""

import io
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from families import tiny
from readable_text import check_texts
from rich.console import Console
from scipy.stats import spearmanr
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LongformerConfig,
    LongformerForMaskedLM,
)

import attnviz
from attnviz import InputError, ModelError

TEXT = "we sat near the old river and talked for hours"
LAYER, HEAD, D = 1, 0, 16  # the one head that reads "river" and writes the prediction
READ, WRITTEN = 0, 1  # dimensions of the residual stream


HEADS = {
    "encoder": BertForMaskedLM,
    "classifier": BertForSequenceClassification,
    "labels": BertForTokenClassification,
    "spans": BertForQuestionAnswering,
}


def rows_of(projection):
    """Return the weight as (out, in), of a linear layer or of GPT-2's Conv1D."""
    return projection.weight.T if type(projection).__name__ == "Conv1D" else projection.weight


def handmade(kind, tokenizer):
    """Return a model in which one head moves "river" to the prediction, and nothing else counts.

    Its tokens are orthogonal to what the head reads, but for "river". Attention is even.
    """
    torch.manual_seed(0)
    river, yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("river", "yes", "no"))
    if kind == "decoder":
        config = GPT2Config(vocab_size=len(tokenizer), n_embd=D, n_layer=2, n_head=2)
        config.tie_word_embeddings = False
        model, layer = GPT2LMHeadModel(config), "h.{}.attn"
        table = model.transformer.wte.weight
    else:
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=D, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32,
        )  # fmt: skip
        config.tie_word_embeddings = False
        model, layer = HEADS[kind](config), "encoder.layer.{}.attention"
        table = model.bert.embeddings.word_embeddings.weight
    base = model.base_model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() or ".ln_" in name
            parameter.fill_(float(is_norm and name.endswith("weight")))
        # Random, and 0 in the first four dimensions: all tokens but the one look the same there.
        table[:, 4:] = torch.randn(len(tokenizer), D - 4)
        table[:, 4:] -= table[:, 4:].mean(1, keepdim=True)
        table[river, READ], table[river, 2] = 3.0, -3.0
        attention = base.get_submodule(layer.format(LAYER))
        if kind == "decoder":
            rows_of(attention.c_attn)[2 * D + HEAD * D // 2, READ] = 2.0
            rows_of(attention.c_proj)[WRITTEN, HEAD * D // 2] = 2.0
            model.lm_head.weight[yes, WRITTEN], model.lm_head.weight[no, WRITTEN] = 4.0, -4.0
        else:
            attention.self.value.weight[HEAD * D // 2, READ] = 2.0
            attention.output.dense.weight[WRITTEN, HEAD * D // 2] = 2.0
            if kind == "encoder":
                model.cls.predictions.transform.dense.weight.copy_(torch.eye(D))
                decoder = model.cls.predictions.decoder
                decoder.weight[yes, WRITTEN], decoder.weight[no, WRITTEN] = 4.0, -4.0
            else:
                if kind == "classifier":
                    base.pooler.dense.weight.copy_(torch.eye(D))
                head = model.qa_outputs if kind == "spans" else model.classifier
                head.weight[:, WRITTEN] = torch.tensor([-4.0, 4.0])
    if kind in ("classifier", "labels"):
        model.config.id2label = {0: "no", 1: "yes"}
    return attnviz.load(model.eval(), tokenizer=tokenizer)


TEXTS = {"decoder": TEXT, "encoder": f"{TEXT} [MASK]", "classifier": TEXT}


@pytest.fixture(scope="module", params=TEXTS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def models(model):
    return {kind: handmade(kind, model.tokenizer) for kind in TEXTS}


@pytest.fixture(scope="module")
def results(models):
    return {
        kind: attnviz.explain(TEXTS[kind], target="yes", against="no", model=models[kind])
        for kind in TEXTS
    }


@pytest.mark.parametrize("kind", TEXTS)
def test_the_head_is_found_by_removing_each(models, results, kind):
    lost = attnviz.ablate(TEXTS[kind], target="yes", against="no", how="zero", model=models[kind])
    effects = dict(zip(lost.names, lost.mean.tolist(), strict=True))
    explained = results[kind].value - results[kind].baseline
    assert effects.pop(f"{LAYER}.{HEAD}") == pytest.approx(explained, rel=1e-3)
    assert max(map(abs, effects.values())) < 1e-6


def test_a_token_of_a_generation(bare_tokenizer):
    model = handmade("decoder", bare_tokenizer)
    prompt = "old river"
    one = attnviz.explain(prompt, model=model)
    assert one.sources == []  # the sink, and the word at which the token is predicted
    assert one.headline == f"The text is too short to explain {one.question} by its words"
    assert attnviz.explain(prompt, generate=1, model=model).provenance == one.provenance
    third = attnviz.explain(prompt, generate=3, model=model)
    assert third.provenance.text.startswith(f"{prompt} {one.target}")
    assert third.notes[0].startswith("the model wrote “")
    with torch.no_grad():
        ids = model.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        for _ in range(3):
            ids = torch.cat([ids, model.module(ids).logits[:, -1:].argmax(-1)], 1)
    assert third.tokens == tuple(model.tokenizer.convert_ids_to_tokens(ids[0, :-1]))
    assert third.target == model.tokenizer.decode(ids[0, -1:])


@pytest.mark.parametrize("kind", ["encoder", "classifier"])
def test_only_decoders_generate(models, kind):
    with pytest.raises(InputError, match="does not generate tokens"):
        attnviz.explain(TEXTS[kind], generate=2, model=models[kind])


def test_the_word_and_the_head_are_found(results, kind):
    result = results[kind]
    assert result.kind == {"decoder": "next token", "encoder": "masked token"}.get(kind, "class")
    assert result.headline == "“river” raises “yes” over “no” most"
    credit = dict(zip(result.words, result.credit.tolist(), strict=True))
    assert credit.pop("river") == pytest.approx(result.decomposition.total, rel=0.05)
    sizes = [abs(number) for number in credit.values() if number == number]
    assert max(sizes) < 0.05 * result.decomposition.total
    by_head = result.decomposition.table.sum(-1)
    assert divmod(int(by_head.abs().argmax()), 2) == (LAYER, HEAD)
    assert by_head[LAYER, HEAD] == pytest.approx(result.decomposition.total, rel=0.05)
    assert result.consensus[result.sources].argmax() == result.sources.index(
        result.words.index("river")
    )


def test_the_label_of_a_word_is_explained_by_the_other_words(model):
    labels = handmade("labels", model.tokenizer)
    result = attnviz.explain(TEXT, word="old", target="yes", against="no", model=labels)
    assert (result.kind, result.words[result.at]) == ("label", "old")
    assert result.headline == "“river” raises “yes” over “no” for “old” most"
    assert result.at not in result.sources  # it reads itself in both runs
    inputs = model.tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        logits = labels.module(**inputs)[0][0, result.positions[result.at][0]]
    assert result.value == pytest.approx((logits[1] - logits[0]).item(), rel=1e-5)
    assert result.completeness_error < 1e-5
    assert result.plot().axes
    with pytest.raises(InputError, match="labels each token"):
        attnviz.explain(TEXT, model=labels)
    with pytest.raises(InputError, match=r"word cannot be used: BertFor.* does not label tokens"):
        attnviz.explain(TEXT, word="old", model=handmade("classifier", model.tokenizer))


def test_a_span_is_explained_by_the_word_that_all_others_read(model):
    """The head moves "river" to every token, and the norms of tokens make it count differently."""
    spans = handmade("spans", model.tokenizer)
    result = attnviz.explain(TEXT, target="sat near the", reference="gate", model=spans)
    contributed = result.credit.nan_to_num().abs()
    assert result.words[contributed.argmax()] == "river"
    assert contributed.topk(2).values[1] < 0.3 * contributed.max()


def test_of_many_words_each_is_changed_in_one_way(models):
    text = f"the dog saw the train and {TEXT} and {TEXT} and {TEXT}"
    result = attnviz.explain(text, target="yes", against="no", model=models["classifier"])
    assert len(result.sources) > 32
    assert [*result.causal] == ["mask"]
    assert "river" in result.headline
    assert not result.rank_correlations  # it needs words that replace others
    assert result.plot().axes


def test_few_words_are_not_ranked(models):
    few = attnviz.explain("the old river", target="yes", model=models["decoder"])
    assert few.rank_correlations == {}
    assert few.strongest == few.words.index("river")


def test_the_contributions_sum_to_the_measured_difference(results, models, kind):
    result, model = results[kind], models[kind]
    assert result.completeness_error < 1e-5
    assert result.value - result.baseline == pytest.approx(result.decomposition.total)
    inputs = model.tokenizer(TEXTS[kind], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        logits = model.module(**inputs)[0]
    if logits.dim() == 3:
        row = -1 if kind == "decoder" else result.tokens.index("[MASK]")
        yes, no = model.tokenizer.convert_tokens_to_ids(["yes", "no"])
        logits = logits[:, row]
    else:
        yes, no = 1, 0
    assert result.value == pytest.approx((logits[0, yes] - logits[0, no]).item(), rel=1e-5)
    assert result.probability == pytest.approx(logits[0].softmax(0)[yes].item(), rel=1e-4)
    # The hand-made models have no keys, so that no position can be verified.
    assert all(check.passed for check in result.agreement.analysis)
    assert [check.name for check in result.agreement.analysis] == ["sums of the parts", "logits"]


def test_a_log_probability_is_split_exactly(models, kind):
    result = attnviz.explain(TEXTS[kind], target="yes", model=models[kind])
    assert result.number == "log-probability"
    assert result.value == pytest.approx(torch.tensor(result.probability).log().item(), rel=1e-4)
    assert result.completeness_error < 1e-5
    logit = attnviz.explain(TEXTS[kind], target="yes", number="logit", model=models[kind])
    assert logit.value - result.value > 0
    assert logit.strongest == result.strongest == result.words.index("river")


def test_words_read_themselves_and_special_tokens_in_the_reference(results, models):
    result, model = results["encoder"], models["encoder"]
    special = torch.tensor([token in ("[CLS]", "[SEP]") for token in result.tokens])
    gate = special | torch.eye(len(special), dtype=torch.bool)
    ids = model.tokenizer(TEXTS["encoder"], return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model.module(ids, attention_mask=gate[None, None]).logits
    yes, no = logits[0, result.tokens.index("[MASK]")][
        model.tokenizer.convert_tokens_to_ids(["yes", "no"])
    ]
    assert result.baseline == pytest.approx((yes - no).item(), abs=1e-5)


def test_no_token_of_the_text_or_of_a_reference_replaces_a_word(models):
    counts = {}
    for word in ("otter", "network"):  # the second stands in for others
        other = TEXTS["encoder"].replace("river", word)
        result = attnviz.explain(
            TEXTS["encoder"], target="yes", reference=other, model=models["encoder"]
        )
        counts[word] = len(result.replacements)
    assert counts["network"] == counts["otter"] - 1


def test_credit_of_a_word_that_is_not_read_is_not_confirmed(results, kind):
    split = results[kind].decomposition
    moved = replace(split, credit=split.credit.roll(1))
    unbound = replace(results[kind].agreement, digest=None)
    planted = replace(results[kind], decomposition=moved, agreement=unbound)
    assert planted.completeness_error < 1e-5  # the sum does not show it
    assert planted.headline == "“river” raises “yes” over “no” most"  # it is measured
    assert "The contributions name another word of “river and” first: “and”" in planted.finding
    assert "another word" not in results[kind].finding


@pytest.mark.parametrize(
    ("planted", "word", "headline"),
    [
        (1, "talked", "“river” raises “yes” over “no” most"),
        (2, "sat", "Interventions disagree on which word raises “yes” over “no” most"),
        (2, "talked", "A word of “river and talked” raises “yes” over “no” most"),
        (2, "old", "A word of “old river” raises “yes” over “no” most"),
        (4, "talked", "“talked” raises “yes” over “no” most"),
    ],
)
def test_a_headline_names_the_word_that_most_interventions_find(results, planted, word, headline):
    result = results["decoder"]
    other = {name: lost.clone() for name, lost in result.causal.items()}
    for lost in [*other.values()][:planted]:
        lost[result.words.index(word)] = 1e3
    assert altered(result, causal=other).headline == headline


def altered(result, **fields):
    """Return a result with other numbers, of which the verdict is said to be."""
    return replace(result, agreement=replace(result.agreement, digest=None), **fields)


def with_effects(result, *effects):
    """Return a result in which each intervention has some effects, and 0 on all other words."""
    causal = {}
    for name, of_words in zip(result.causal, effects, strict=True):
        causal[name] = torch.where(next(iter(result.causal.values())).isnan(), torch.nan, 0.0)
        for word, effect in of_words.items():
            causal[name][result.words.index(word)] = effect
    return altered(result, causal=causal)


def test_an_effect_that_is_printed_as_nothing_is_none(results):
    result = results["decoder"]
    small = with_effects(result, *[{"river": 0.004, "old": -0.003}] * len(result.causal))
    assert small.headline == "No word alone changes “yes” over “no” by 0.01 logits"
    assert small.strongest is None
    assert "Changing" not in small.finding
    one = {"knock-out": small.causal["knock-out"]}
    parts = altered(small, causal=one, decomposition=None, parts="part")
    assert parts.headline == "No part alone changes “yes” over “no” by 0.01 logits"


def test_effects_that_are_printed_alike_are_said_once(results):
    result = results["decoder"]
    alike = with_effects(result, *[{"river": 0.3}] * len(result.causal))
    assert "Changing “river” lowers it by 0.30 logits, by each kind of change." in alike.finding


@pytest.mark.parametrize(("dtype", "told"), [("float32", True), ("bfloat16", False)])
def test_an_effect_within_rounding_is_none(results, dtype, told):
    result = results["decoder"]
    eps = torch.finfo(getattr(torch, dtype)).eps
    output = replace(result.agreement.output, tolerance=max(1e-5, 8 * eps))
    report = replace(result.agreement, output=output, digest=None)
    effects = [{"river": 0.04 * abs(result.value)}] * len(result.causal)
    changed = replace(with_effects(result, *effects), agreement=report)
    assert (changed.strongest is not None) == told
    assert changed.headline.startswith("“river” raises" if told else "No word alone changes")


@pytest.mark.parametrize(
    ("total", "effect", "headline"),
    [
        (-2.0, -2.0, "The context lowers “yes” over “no”, “river” most"),
        (-0.08, -2.0, "“river” lowers “yes” over “no” most"),  # nothing to speak of
        (2.0, -2.0, "“river” lowers “yes” over “no” most"),
        (-2.0, 2.0, "“river” raises “yes” over “no” most"),
    ],
)
def test_the_context_lowers_a_number_if_the_effects_say_so_too(results, total, effect, headline):
    result = with_effects(results["decoder"], *[{"river": effect}] * len(results["decoder"].causal))
    split = replace(result.decomposition, total=total)
    assert altered(result, decomposition=split).headline == headline


def test_interventions_disagree_on_the_direction_of_one_word(models):
    one = attnviz.explain("river", target="yes", model=models["decoder"])
    assert len(one.sources) == 1
    causal = {name: lost * (-1) ** (name == "delete") for name, lost in one.causal.items()}
    said = "Interventions disagree on whether “river” raises “yes”"
    assert altered(one, causal=causal).headline == said


@pytest.mark.parametrize(
    ("probability", "share"),
    [(0.814, "81%"), (0.012, "1%"), (0.0031, "0.31%"), (0.00066878, "0.067%"), (6e-5, "<0.01%")],
)
def test_a_small_probability_is_not_printed_as_nothing(results, probability, share):
    result = altered(results["decoder"], probability=probability)
    assert result.share == share
    assert f"; probability {share}." in result.finding


def test_nothing_that_was_not_measured_disagrees(results):
    result = results["decoder"]
    alone = altered(result, causal={}, replacements=result.replacements[:0])
    assert alone.headline == "By its contribution “river” raises “yes” over “no” most"
    # All that changes the number comes from a word that is not ranked.
    credit = result.decomposition.credit.clone().fill_(-1e-3)
    credit[[row for index in result.unmeasured for row in result.positions[index]]] = 1e3
    other = altered(alone, decomposition=replace(result.decomposition, credit=credit))
    assert other.headline == "No word alone changes “yes” over “no” by 0.01 logits"


def test_no_methods_are_compared_and_intervals_are_those_of_words(results):
    for result in results.values():
        changed = replace(
            result, methods={"partial-split": -result.consensus},
            agreement=replace(result.agreement, digest=None),
        )  # fmt: skip
        assert "better" not in changed.finding
        rho, low, high = changed.rank_correlations["partial-split"]
        assert (rho, low) == pytest.approx((-1, -1))
        # Both numbers order the same words: only other replacements change the ranks.
        assert high < 0
        random, words = np.random.default_rng(1), len(result.sources)
        _, low, high = result.rank_correlations["split"]
        a, b = (of[result.sources].numpy() for of in (result.credit, result.consensus))
        picks = random.integers(0, words, (1000, words))
        with np.errstate(invalid="ignore"):
            draws = [(a[pick], b[pick]) for pick in picks]
            rhos = [spearmanr(*draw).statistic for draw in draws if min(map(np.ptp, draw)) > 0]
        assert high - low > 0.8 * np.subtract(*np.nanquantile(rhos, [0.975, 0.025]))


def test_near_ties_are_explained_alone(tokenizer):
    model = handmade("classifier", tokenizer)
    assert attnviz.explain(TEXT, model=model).against == "no"
    with torch.no_grad():
        model.module.classifier.weight.mul_(0.01)
    result = attnviz.explain(TEXT, model=model)
    assert (result.target, result.against, result.number) == ("yes", None, "log-probability")
    assert "are nearly tied, so the first is explained alone" in result.notes[0]
    assert result.headline == "“river” raises “yes” most"
    assert attnviz.explain(TEXT, target="yes", against="no", model=model).against == "no"


def test_attention_in_windows_has_measured_effects_alone(tokenizer):
    torch.manual_seed(0)
    config = LongformerConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, attention_window=[4, 4], pad_token_id=0,
    )  # fmt: skip
    model = attnviz.load(LongformerForMaskedLM(config).eval(), tokenizer=tokenizer)
    result = attnviz.explain(f"{TEXT} [MASK]", target="yes", model=model)
    assert result.decomposition is None
    assert {*result.causal} == {"mask", "replace", "delete"}
    assert result.attributions == result.methods == result.rank_correlations == {}
    assert "no method is computed" in result.notes[-1]
    assert "no decomposition" in repr(result)
    figure = attnviz.plot.explain(result)
    check_texts(figure)
    plt.close(figure)
    without = TEXT.replace(" river", "")
    less = attnviz.explain(f"{without} [MASK]", target="yes", model=model)
    lost = result.causal["delete"][result.words.index("river")]
    assert lost == pytest.approx(result.value - less.value, abs=1e-5)
    with pytest.raises(ModelError, match="cannot be traced"):
        attnviz.explain(f"{TEXT} [MASK]", reference="mask", model=model)


def test_tables_have_no_number_of_a_method_for_words_that_are_not_measured(results):
    result = results["encoder"]
    (masked,) = result.unmeasured
    assert result.methods["partial-split"][masked] == 0
    unknown = result.to_frame()["method partial-split"].isna()
    assert [*unknown.to_numpy().nonzero()[0]] == [masked]
    with io.StringIO() as file:
        Console(file=file, width=200).print(result)
        rows = [line.split() for line in file.getvalue().splitlines()]
    (row,) = [row for row in rows if row[0] == result.names[masked]]
    assert set(row[1:]) == {"–"}


def test_the_last_word_can_be_deleted_where_a_reference_has_another(models):
    result = attnviz.explain(
        "near the old river", target="yes", reference="near the old house", model=models["decoder"]
    )
    river, shorter = result.words.index("river"), attnviz.explain(
        "near the old", target="yes", model=models["decoder"]
    )  # fmt: skip
    lost = result.value - shorter.value
    assert result.causal["delete"][river] == pytest.approx(lost, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "yes", "against": "yes"}, "Both choices are the token or class “yes”"),
        ({"reference": "one"}, "The reference has 3 tokens"),
    ],
)
def test_wrong_arguments_are_one_line(models, options, message):
    with pytest.raises(InputError, match=message) as caught:
        attnviz.explain(TEXT, model=models["decoder"], **options)
    assert "\n" not in str(caught.value)


def test_what_a_model_does_not_predict_is_one_line(models, model):
    with pytest.raises(ModelError, match=r"no head that predicts"):
        attnviz.explain(TEXT, model=model)
    masked = attnviz.load(tiny("bert"), tokenizer=model.tokenizer)
    with pytest.raises(InputError, match=r"Write \[MASK\] for"):
        attnviz.explain(TEXT, model=masked)
    with pytest.raises(InputError, match=r"not a class of .* Its classes are no, yes"):
        attnviz.explain(TEXT, target="perhaps", model=models["classifier"])
