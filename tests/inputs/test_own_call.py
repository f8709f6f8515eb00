"""What reaches the model is what the own call of its tokenizer gives, and labels say so."""

import copy
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from families import tiny
from tokenizers import normalizers
from vocabularies import ENGLISH, MAKERS, SCRIPTS, vocabulary

import attnviz
from attnviz import InputError
from attnviz.inputs import Inputs, encode
from attnviz.inputs.audio import read_sound
from attnviz.inputs.image import read_image
from attnviz.inputs.text import tokenize, tokenize_together

KINDS = [kind for kind in MAKERS if kind not in ("canine", "esm")]  # ids below 30,000; any letter
TEXTS = {"special tokens": "a <s> b </s> c <mask> d <unk> <|endoftext|> [SEP]", **SCRIPTS}


@pytest.fixture(scope="module")
def reading():
    """Checkpoints of one model, with the tokenizer of each kind or a changed one."""
    module = tiny("bert")
    module.resize_token_embeddings(60_000)
    checkpoint = attnviz.load(module, tokenizer=vocabulary("byt5")).checkpoint

    def with_tokenizer(tokenizer):
        own = vocabulary(tokenizer) if isinstance(tokenizer, str) else tokenizer
        return replace(checkpoint, processors=replace(checkpoint.processors, tokenizer=own))

    return with_tokenizer


@pytest.mark.parametrize("kind", [*KINDS, "bundled"])
def test_no_script_raises_a_false_alarm_and_labels_are_readable(kind, reading, tokenizer):
    checkpoint = reading(tokenizer if kind == "bundled" else kind)
    for name, text in SCRIPTS.items():
        batch = encode(checkpoint, [text])
        (detail,), (axis,) = batch.details, batch.axes["text"]
        assert (detail.doubt, detail.check.uncovered, detail.check.equal) == (None, (), True), name
        assert not set("ÐĠĊæ").intersection("".join(axis.labels)), name
        assert [word is None for word in axis.words] == list(axis.special), name


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("special_tokens", ["parse", "split"])
@pytest.mark.parametrize("kind", [*MAKERS, "bundled"])
def test_texts_of_one_call_are_those_of_single_calls(
    kind, special_tokens, pairs, reading, tokenizer
):
    checkpoint = reading(tokenizer if kind == "bundled" else kind)
    checkpoint = replace(checkpoint, special_tokens=special_tokens)
    texts = [(text, "a second <s> text" if pairs else None) for text in TEXTS.values()]
    for (text, pair), one in zip(texts, tokenize_together(checkpoint, texts, None), strict=True):
        alone = tokenize(checkpoint, text, pair)
        parts = "fields", "segments", "spans", "texts"
        assert one is not None
        assert all(getattr(one, part) == getattr(alone, part) for part in parts)


def test_a_text_that_cannot_be_read_is_left_to_a_single_call(small):
    checkpoint = small.checkpoint
    assert tokenize_together(checkpoint, [("a train", None), ("\ud800", None)], 9) == [None, None]
    read = tokenize_together(checkpoint, [("a train", None), ("a " * 9, None), ("\x00", None)], 9)
    assert read[0] is not None
    assert read[1:] == [None, None]  # too long, and without a token


def shifted(tokenizer, by):
    """A tokenizer whose offsets are those of the next token, or of the next character."""

    class Shifted(type(tokenizer)):
        def __call__(self, *args, **options):
            encoding = super().__call__(*args, **options)
            if (spans := encoding.get("offset_mapping")) is not None:
                added = encoding["special_tokens_mask"]
                of_text = [n for n, flag in enumerate(added) if not flag]
                for n, following in zip(of_text, [*of_text[1:], of_text[0]], strict=True):
                    a, b = encoding.encodings[0].offsets[n if by == "character" else following]
                    spans[n] = (a + 1, b + 1) if by == "character" else (a, b)
            return encoding

    wrong = copy.deepcopy(tokenizer)
    wrong.__class__ = Shifted
    return wrong


@pytest.mark.parametrize("by", ["token", "character"])
@pytest.mark.parametrize("kind", ["gpt2", "llama3", "roberta", "unigram", "byte-fallback"])
def test_shifted_offsets_are_named_in_every_script(kind, by, reading):
    checkpoint = reading(shifted(vocabulary(kind), by))
    for name, text in SCRIPTS.items():
        (detail,) = encode(checkpoint, [text]).details
        assert "the tokenizer's offsets do not match its tokens" in (detail.doubt or ""), name


@pytest.mark.parametrize("kind", ["byt5", "perceiver", "canine", "unigram", "byte-fallback"])
def test_pieces_merge_into_the_words_of_the_text(kind, reading):
    text = "the naïve Brücke left, 火车 too"
    (axis,) = encode(reading(kind), [text]).axes["text"]
    words = [axis.word_labels[word] for word in dict.fromkeys(axis.words) if word is not None]
    assert words == ["the", "naïve", "Brücke", "left", ",", "火", "车", "too"]


def test_bytes_of_a_character_and_blanks_are_written_so_that_they_can_be_read(reading):
    (axis,) = encode(reading("byt5"), ["é a\n"]).axes["text"]
    assert axis.labels[:5] == ("<0xC3>", "<0xA9>", "␣", "a", "\\n")


def test_a_pair_of_a_tokenizer_written_in_python_has_two_texts(reading):
    (axis,) = encode(reading("byt5"), Inputs(["ab c"], ["é d"])).axes["text"]
    assert axis.word_labels == ("ab", "c", "é", "d")
    assert axis.segments[axis.labels.index("</s>") + 1] == 1


def test_a_protein_model_reads_one_token_for_each_residue():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.EsmConfig(
        vocab_size=32, intermediate_size=32, pad_token_id=1, mask_token_id=31,
        position_embedding_type="rotary", max_position_embeddings=64, **sizes,
    )  # fmt: skip
    module = transformers.EsmForMaskedLM(config).eval()
    model = attnviz.load(module, tokenizer=vocabulary("esm"))
    result = model.attend("MKT<mask>AY")
    assert result.words == ("<cls>", "M", "K", "T", "<mask>", "A", "Y", "<eos>")
    assert result.agreement.verdict == "verified"
    (note,) = result.notes
    assert note.startswith("read as special tokens, not as plain text: <mask> (special_tokens=")
    split = model.attend("MKT<mask>AY", special_tokens="split")
    assert split.tokens[4:5] == ("<unk>",)
    assert split.tokens[:4] == result.tokens[:4]
    assert attnviz.explain("MKT<mask>AY", model=model).words


def test_other_entries_of_the_tokenizers_call_reach_the_model(tmp_path):
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(letters))
    for name in ("shape", "sound"):
        numbers = {letter: n % 7 for n, letter in enumerate(letters)}
        (tmp_path / name).write_text(json.dumps(numbers))
    tokenizer = transformers.RoCBertTokenizer(
        *(str(tmp_path / name) for name in ("vocab.txt", "shape", "sound"))
    )
    config = transformers.RoCBertConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, pronunciation_vocab_size=9, shape_vocab_size=9,
    )  # fmt: skip
    module = transformers.RoCBertModel(config).eval()
    batch = encode(attnviz.load(module, tokenizer=tokenizer).checkpoint, ["a b c", "d"])
    own = tokenizer(["a b c", "d"], padding=True, return_tensors="pt")
    assert {"input_shape_ids", "input_pronunciation_ids"} <= batch.inputs.keys()
    for name, values in own.items():
        mask = own["attention_mask"].bool()
        assert torch.equal(batch.inputs[name][mask], values[mask]), name


def test_unknown_words_are_counted_named_and_marked(small):
    result = small.attend("火车准时离开了 the station")
    axis = result.record(0).query_axis
    assert axis.unknown_words() == tuple("车准时离开了")
    assert axis.unknown == tuple(label == "[UNK]" for label in axis.labels)
    note = "the model has no token for 6 of 9 words: it read [UNK] for them: 车, 准, 时, 离, 开, …"
    assert result.notes == (note,)
    assert small.attend("the station").record(0).query_axis.unknown is None
    (note,) = small.attend(f"the {'x' * 10_000}").notes
    assert len(note) < 120


def test_what_a_normalizer_drops_is_named(reading, tokenizer):
    shorter = copy.deepcopy(tokenizer)
    backend = shorter.backend_tokenizer
    dropped = normalizers.Replace("not ", "")
    backend.normalizer = normalizers.Sequence([backend.normalizer, dropped])
    batch = encode(reading(shorter), ["the film was not good at all"])
    assert batch.details[0].check.uncovered == ("not",)
    assert batch.details[0].notes == ("no token holds a part of the text: not",)


def test_what_differs_from_the_tokenizers_call_is_named(model):
    checkpoint = model.checkpoint
    (detail,) = encode(checkpoint.reading("split"), ["a [SEP] b"]).details
    assert not detail.check.equal
    assert detail.check.differs[0].startswith("read as plain text, not as special tokens: [SEP]")
    (detail,) = encode(checkpoint, ["a [SEP] b"]).details
    assert detail.check.equal
    assert detail.notes[0].startswith("read as special tokens, not as plain text: [SEP]")
    (detail,) = encode(checkpoint, ["the " * 600], truncate=True).details
    assert detail.check.differs == ("text cut from 602 to 512 tokens",)


def test_a_token_over_several_words_is_labeled_with_all_of_it(tokenizer, reading):
    more = copy.deepcopy(tokenizer)
    more.add_tokens(["[e1]", "New York", "):"])
    (axis,) = encode(reading(more), ["the [e1] (New York): left"]).axes["text"]
    assert axis.word_labels == ("the", "[e1]", "(", "New York", "):", "left")


# --- the text of a decoder


def two_sided(**options):
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(
            vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32,
        ),
        transformers.GPT2Config(
            vocab_size=400, n_embd=32, n_head=2, n_layer=1, add_cross_attention=True,
            bos_token_id=0, eos_token_id=0,
        ),
    )  # fmt: skip
    config.decoder_start_token_id = config.pad_token_id = 0
    module = transformers.EncoderDecoderModel(config).eval()
    return attnviz.load(module, tokenizer=attnviz.load().tokenizer, **options)


def test_a_decoder_has_a_tokenizer_of_its_own():
    own = vocabulary("gpt2")
    ids = own(ENGLISH).input_ids
    given, alone = two_sided(target_tokenizer=own), two_sided()
    result = given.attend("the house", target=ENGLISH)
    assert list(result.stack("decoder").words)[1:4] == ["the", "train", "left"]
    for target in (ids, np.array(ids), torch.tensor([ids]), own(ENGLISH)):
        read = given.attend("the house", target=target).stack("decoder")
        assert read.tokens == result.stack("decoder").tokens
    assert given.attend("the house", generate=3).provenance.generated is not None
    named = alone.attend("the house", target=ids).stack("decoder").tokens
    assert named[1] == f"[id {ids[0]}]"
    assert len(named) == len(result.stack("decoder").tokens)
    several = alone.attend(["the house", "a cat"], target=[ids, ids])
    assert [one.stack("decoder").tokens for one in several] == [named] * 2
    assert any("the last id of the target" in note for note in several[0].notes)
    with pytest.raises(InputError, match="decoder's first token only"):
        alone.attend("the house", target=[0])
    with pytest.raises(InputError, match="The targets differ in length"):
        alone.attend(["the house", "a cat"], target=[ids, ids[:3]])
    with pytest.raises(InputError, match="has another vocabulary than its encoder"):
        alone.attend("the house", target=ENGLISH)
    with pytest.raises(InputError, match="has no decoder"):
        attnviz.load(target_tokenizer=own)


# --- columns, sounds and images


def test_a_column_of_a_table_is_a_list_of_texts(small):
    texts = ["the train", "it left"]
    for column in (pd.Series(texts), np.array(texts, dtype=object)):
        assert [result.provenance.text for result in small.attend(column)] == texts


def test_a_sound_is_read_along_its_longer_side():
    wave = np.sin(np.arange(4000) / 9).astype(np.float32)
    expected = read_sound(wave, 16000).samples
    both = np.stack([wave, 3 * wave]) / 2
    for array in (wave[None], wave[:, None], both, both.T, torch.tensor(wave), torch.tensor(both)):
        sound = read_sound(array, 16000)
        np.testing.assert_allclose(sound.samples, expected, atol=1e-6)
        assert len(sound.notes) == array.ndim - 1
    assert read_sound(both, 16000).notes == (
        "the array (2, 4000) was read as (channels, samples), the mean of 2 channels",
    )
    item = {"array": wave, "sampling_rate": 16000, "path": None}
    np.testing.assert_array_equal(read_sound(item).samples, expected)
    with pytest.raises(InputError, match="has a sampling rate of 16000, not 8000"):
        read_sound(item, 8000)
    for unclear in (np.zeros((2, 2)), np.zeros((400, 900)), np.zeros((1, 2, 900))):
        with pytest.raises(InputError, match="is not a sound"):
            read_sound(unclear, 16000)


def test_an_image_is_read_by_its_shape_and_its_numbers():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    scaled = torch.tensor(pixels.transpose(2, 0, 1) / 255, dtype=torch.float32)
    planes = "the array (3, 6, 8) was read as (channels, height, width)"
    same = {
        planes: pixels.transpose(2, 0, 1),
        "the array (6, 8, 3) was read as floats from 0 to 1": pixels / 255,
        f"{planes}, floats from 0 to 1": scaled,
    }
    for note, source in same.items():
        picture = read_image(source)
        assert np.array_equal(picture.pixels, pixels)
        assert picture.notes == (note,)
    for gray in (pixels[..., 0], pixels[..., :1], pixels[None, ..., 0]):
        assert np.array_equal(read_image(gray).pixels, pixels[..., :1].repeat(3, axis=2))
    assert read_image(pixels).notes == ()
    for unclear in (pixels[:3, :3].transpose(2, 0, 1), pixels[..., :2], pixels * 1.0, pixels[None]):
        with pytest.raises(InputError, match="is not an image"):
            read_image(unclear)
