"""Models that attend in windows: their bands as maps of all tokens, with global attention."""

from dataclasses import replace

import pytest
import torch
import transformers as t
from captures import capture, verify
from torch.testing import assert_close

import attnviz

TEXTS = ["the train left the old station on time and nobody noticed that it was early", "a text"]
WINDOWS = [8, 4]
LONGFORMER = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "pad_token_id": 1, "max_position_embeddings": 64,
}  # fmt: skip
LED = {"d_model": 48, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
       "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
       "pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102, "decoder_start_token_id": 102,
       "max_encoder_position_embeddings": 64}  # fmt: skip


def build(model_class, config_class, settings):
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=30522, attention_window=WINDOWS, **settings))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data *= 8 if "query" in name else 4
    return model.double().eval()


def map_of(band, read, window, length, tokens=(0,)):
    """Return the map (H, T, T) of the band (H, T, G + window + 1) that a model returns.

    tokens : the G tokens with global attention, which all others read in the first columns of the
    band. read : what these read, (H, T, G).
    """
    extra = band.shape[-1] - window - 1
    weights = torch.zeros(len(band), length, length, dtype=band.dtype)
    for query in range(length):
        for offset in range(-(window // 2), window // 2 + 1):
            if 0 <= query + offset < length:
                weights[:, query, query + offset] = band[:, query, extra + window // 2 + offset]
    for column, token in zip(range(extra), tokens, strict=False):
        weights[:, :, token] += band[:, :length, column]
    for column, token in zip(range(extra), tokens, strict=False):
        weights[:, token] = read[:, :length, column]
    return weights


MODELS = {
    "Longformer": (t.LongformerModel, t.LongformerConfig, LONGFORMER),
    "a classifier": (t.LongformerForSequenceClassification, t.LongformerConfig, LONGFORMER),
    "LED": (t.LEDForConditionalGeneration, t.LEDConfig, LED),
}


@pytest.mark.parametrize("name", MODELS)
def test_bands_are_maps_of_all_tokens(name, tokenizer):
    module = build(*MODELS[name])
    model = attnviz.load(module, tokenizer=tokenizer)
    target = {"target": ["we left"] * 2} if name == "LED" else {}
    for text, result in zip(TEXTS, model.attend(TEXTS, **target), strict=True):
        assert result.agreement.verdict == "verified"
        inputs = dict(tokenizer(text, return_tensors="pt", return_token_type_ids=False))
        length = inputs["input_ids"].shape[1]
        if target:
            inputs["decoder_input_ids"] = torch.tensor([[102]])
        with torch.no_grad():
            out = module(**inputs, output_attentions=True)
        bands = out.encoder_attentions if target else out.attentions
        records = [record for record in result.records if record.stack == "encoder"]
        assert len(records) == len(WINDOWS)
        for record, band, window in zip(records, bands, WINDOWS, strict=True):
            read = out.global_attentions[record.layer][0] if "class" in name else None
            expected = map_of(band[0], read, window, length)
            weights = record.weights()[:, :length, :length]
            assert_close(weights, expected, rtol=0, atol=1e-6)  # its softmax is in float32
            assert (expected - expected.roll(1, -1)).abs().max() > 0.2
            assert record.query_axis is record.key_axis
        found = attnviz.find_heads(result.stack("encoder"), query=text.split()[-1], key="[CLS]")
        assert found.scores[0].score == pytest.approx(
            max(record.weights()[:, length - 2, 0].max().item() for record in records), abs=1e-6
        )


def test_texts_with_other_tokens_of_global_attention(tokenizer):
    module = build(*MODELS["Longformer"])
    inputs = dict(tokenizer(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False))
    tokens = [(1, 2, 14), (0, 2)]
    is_global = torch.zeros_like(inputs["input_ids"])
    for row, positions in zip(is_global, tokens, strict=True):
        row[list(positions)] = 1
    for number, captured in enumerate(
        capture(module, inputs | {"global_attention_mask": is_global})
    ):
        length = inputs["attention_mask"][number].sum()
        alone = {name: tensor[number : number + 1, :length] for name, tensor in inputs.items()}
        alone["global_attention_mask"] = is_global[number : number + 1, :length]
        with torch.no_grad():
            out = module(**alone, output_attentions=True)
        assert len(captured.records) == len(WINDOWS)
        for record, window in zip(captured.records, WINDOWS, strict=True):
            both = out.attentions[record.layer][0], out.global_attentions[record.layer][0]
            expected = map_of(*both, window, length, tokens[number])
            assert_close(record.weights()[:, :length, :length], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(1, None)], ids=["global", "windows"])
def test_another_window_is_caught(rows, tokenizer):
    module = build(*MODELS["a classifier"])
    inputs = dict(tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False))
    (captured,) = capture(module, inputs)
    assert verify(captured.records, captured.references).verdict == "verified"
    first, *others = captured.records
    mask = first.mask.expand(4, -1, -1).clone()
    mask[:, rows, 5:9] = torch.finfo(mask.dtype).min
    planted = (replace(first, mask=mask), *others)
    assert verify(planted, captured.references).verdict == "failed"
