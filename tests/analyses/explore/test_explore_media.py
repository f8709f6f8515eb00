"""Heads that read images and sounds, explored: examples, pictures, sounds, the page."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from commands import run
from media import RATE, chirp, picture, seeing
from PIL import Image

import attnviz
from attnviz import InputError

PICTURES = [picture(60 + 4 * n, 50 + 6 * n).rotate(9 * n) for n in range(5)]


@pytest.fixture(scope="module")
def explored(tokenizer):
    """Return a vision model with registers, and its heads, explored on pictures."""
    model = seeing("registers", tokenizer)
    return model, attnviz.explore(PICTURES, model=model)


@pytest.fixture(scope="module")
def heard(tokenizer, tmp_path_factory):
    """Return a model of speech, the files of a folder, and its heads, explored on them."""
    import soundfile

    folder = tmp_path_factory.mktemp("sounds")
    for n in range(2):
        soundfile.write(folder / f"{n}.wav", chirp(0.6 + 0.3 * n)[:: 1 + n], RATE // (1 + n))
    model = seeing("whisper", tokenizer)
    model.module.generation_config.max_new_tokens = 6
    return model, sorted(folder.iterdir()), attnviz.explore(folder, model=model)


def strongest_by_hand(weights, queries, keys, role=""):
    """Return the largest weight of an ordinary query on another ordinary key, and where it is."""
    allowed = ~torch.tensor(queries.special)[:, None] & ~torch.tensor(keys.special)
    if queries == keys and not role.startswith("own"):
        allowed &= ~torch.eye(len(weights), dtype=torch.bool)
    return float((weights * allowed).max())


def test_the_strongest_patches_are_those_of_a_search(explored):
    model, result = explored
    runs = [model.attend(image=one).records for one in PICTURES]
    for k, head in enumerate(result.survey.heads):
        records = [records[head.layer] for records in runs]
        best = {
            n: strongest_by_hand(record.weights()[head.head], record.query_axis, record.key_axis)
            for n, record in enumerate(records)
        }
        found = result.examples[k]
        assert [one.text for one in found] == sorted(best, key=best.get, reverse=True)
        assert [one.weight for one in found] == pytest.approx([best[n.text] for n in found], 1e-4)
        for one in (*found[:1], *result.deciles[k][:1]):
            row = records[one.text].weights()[head.head, one.row]
            assert list(one.weights) == pytest.approx(row.tolist(), abs=1e-5)
            assert one.weight == pytest.approx(float(row[one.key]), abs=1e-5)


def test_statistics_of_patches_are_those_of_loops(explored):
    model, result = explored
    survey, layer, head = result.survey, 1, 2
    expected = {name: [] for name in ("patch distance", "neighbors", "same row", "separators")}
    for one in PICTURES:
        record = model.attend(image=one).records[layer]
        weights, places = record.weights()[head].tolist(), record.key_axis.patches
        rows = {name: [] for name in expected}
        for row, place in zip(weights, places, strict=True):
            if place is None:
                continue
            away = [None if p is None else (abs(p[0] - place[0]), abs(p[1] - place[1]))
                    for p in places]  # fmt: skip
            patches = [(w, np.hypot(*a)) for w, a in zip(row, away, strict=True) if a]
            rows["patch distance"].append(
                sum(w * far for w, far in patches) / sum(w for w, _ in patches)
            )
            rows["neighbors"].append(
                sum(w for w, a in zip(row, away, strict=True) if a and max(a) == 1)
            )
            rows["same row"].append(
                sum(w for w, a in zip(row, away, strict=True) if a and a[0] == 0 and a[1])
            )
            rows["separators"].append(sum(w for w, a in zip(row, away, strict=True) if a is None))
        for name, values in rows.items():
            expected[name].append(np.mean(values))
    k = layer * 4 + head
    for name, values in expected.items():
        assert float(survey.mean[k, survey.of(name)]) == pytest.approx(np.mean(values), rel=1e-4)
    assert result.checked_agreement.verdict == "verified"
    assert any(check.stage == "statistics" for check in result.agreement.checks)


def test_the_page_has_the_pictures_that_the_model_was_given(explored):
    model, result = explored
    payload = json.loads(json.dumps(result.payload(), allow_nan=False))
    assert payload["media"].keys() == {"0", "1", "2", "3", "4"}
    (axis,) = payload["axes"]
    assert [name for name in axis["specials"] if name] == ["[CLS]", *["[REG]"] * 4]
    data = payload["media"]["3"]["image"].removeprefix("data:image/jpeg;base64,")
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), float)
    given = model.attend(image=PICTURES[3]).image.numpy()
    assert shown.shape == given.shape
    assert np.abs(shown - given).mean() < 12  # of 255, by JPEG
    for head in payload["heads"]:
        one = head["examples"][0]
        assert round(one["weight"] * 1000) == pytest.approx(one["weights"][one["key"]], abs=1)
    assert "img-src data:;" in result.page().html


def test_examples_of_sounds_cover_encoder_decoder_and_cross_attention(heard):
    model, files, result = heard
    runs = [model.attend(audio=file) for file in files]
    stacks = {head.stack for head in result.survey.heads}
    assert stacks == {"encoder", "decoder", "cross"}
    assert len(result.survey.heads) == len(result.examples) == 3 * 2 * 4
    records = [record for record in runs[0].records for _ in range(record.heads)]
    for k, head in enumerate(result.survey.heads):
        assert records[k].stack == head.stack
        for one in result.examples[k]:
            record = runs[one.text].records[k // 4]
            expected = strongest_by_hand(
                record.weights()[head.head], record.query_axis, record.key_axis
            )
            if not result.survey.roles[k]:
                assert one.weight == pytest.approx(expected, rel=1e-4)
            assert len(one.weights) == len(record.key_axis)
    payload = result.payload()
    assert len({head["name"] for head in payload["heads"]}) == 24
    kinds = [axis["kind"] for axis in payload["axes"]]
    for head in payload["heads"]:
        assert (kinds[head["axes"][0]], kinds[head["axes"][1]]) == {
            "encoder": ("frames", "frames"), "decoder": ("tokens", "tokens"),
            "cross": ("tokens", "frames"),
        }[head["stack"]]  # fmt: skip
        for one in head["examples"]:
            if kinds[head["axes"][1]] == "frames":
                total = sum(one["weights"]) / 1000 + one["rest"]
                assert total == pytest.approx(1, abs=0.05)
                ends = payload["media"][str(one["text"])]["seconds"]
                assert len(one["weights"]) == np.ceil(ends / 0.02)
    column = result.survey.of("order")
    measured = [not bool(mean.isnan()) for mean in result.survey.mean[:, column]]
    assert measured == [head.stack == "cross" for head in result.survey.heads]


def test_bad_corpora_get_one_line(tokenizer, tmp_path, capsys):
    model = seeing("vit", tokenizer)
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts.txt").write_text("The bank was full of cash.\n", encoding="utf-8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no picture")
    PICTURES[0].save(tmp_path / "broken" / "b.png")
    for source, message in [
        (tmp_path / "empty", "has no image"),
        (tmp_path / "texts.txt", "texts.txt has no image for"),
        (tmp_path / "none", "There is no file or folder"),
        (tmp_path / "broken", "image 1: .*cannot be read as an image"),
        (["The bank was full of cash."], "image 1: There is no image file"),
    ]:
        with pytest.raises(InputError, match=message):
            attnviz.explore(source, model=model)
    left_out = attnviz.survey(tmp_path / "broken", model=model, skip_bad=True)
    assert (left_out.texts, left_out.left_out) == (1, (1,))
    assert left_out.notes[0].startswith("left out, since it could not be read: 1 image (1)")
    (tmp_path / "list.txt").write_text("broken/b.png\n", encoding="utf-8")
    assert attnviz.survey(tmp_path / "list.txt", model=model).texts == 1
    (tmp_path / "some [1]").mkdir()  # which is a name, and no pattern
    PICTURES[0].save(tmp_path / "some [1]" / "b[1].png")
    for source in ("some [1]", "some [1]/b[1].png", "brok*/b.png"):
        assert attnviz.survey(str(tmp_path / source), model=model).texts == 1
    (tmp_path / "texts [1].txt").write_text("The bank was full of cash.\n", encoding="utf-8")
    assert attnviz.survey(str(tmp_path / "texts [1].txt")).texts == 1
    with pytest.raises(InputError, match="is no corpus of texts"):
        attnviz.explore(tmp_path / "broken")
    with pytest.raises(InputError, match="it is for texts"):
        attnviz.survey(model=model, probe="sink")
    page = str(tmp_path / "heads.html")
    for corpus in ("none", "broken", "broken/b.png"):
        assert run(["explore", str(tmp_path / corpus), "-o", page]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
