"""Read a corpus in any supported format; errors name the line."""

import csv
import io
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import attnviz
from attnviz import InputError

TEXTS = ["One, “two”.", "drei\tvier", "5 < 6"]


def parquet(**columns):
    with io.BytesIO() as file:
        pq.write_table(pa.table(columns), file)
        return file.getvalue()


FORMATS = {
    "a.txt": "\n".join(["", *TEXTS, "  ", ""]).encode(),
    "of Windows.TXT": b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode(),
    "a.jsonl": "\n".join(json.dumps({"id": 1, "text": text}) for text in TEXTS).encode(),
    "strings.jsonl": "\n".join(map(json.dumps, TEXTS)).encode(),
    "a.csv": "\n".join(["id,text", *(f'1,"{text}"' for text in TEXTS)]).encode(),
    "a.parquet": parquet(id=range(3), text=TEXTS),
    "-": "\n".join(TEXTS).encode(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_texts(tmp_path, monkeypatch, name, small, once):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(FORMATS["-"].decode()))
    (tmp_path / name).write_bytes(FORMATS[name])
    expected, found = (attnviz.survey(of, model=small) for of in (TEXTS, name))
    assert found.texts == 3
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "content", "said", "kept"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "Line 2 of a.jsonl is not valid JSON", ["a"]),
        (
            "a.jsonl",
            '{"text": "a"}\n{"body": "b"}\n',
            "Line 2 of a.jsonl has no text under 'text': keys 'body'",
            ["a"],
        ),
        ("a.jsonl", '{"text": 3}\n"b"', "Line 1 of a.jsonl has no text under 'text': 3", ["b"]),
        (
            "a.jsonl",
            '{"text": {"deep": "one"}}\n"b"',
            "Line 1 of a.jsonl has no text under 'text': {'deep': 'one'}",
            ["b"],
        ),
        ("a.jsonl", "[" * 100_000 + '\n"b"', "Line 1 of a.jsonl is not valid JSON", ["b"]),
        ("a.txt", b"a\n\n  \n\xe4\nb\n", "Line 4 of a.txt is not UTF-8", ["a", "b"]),
        (
            "a.csv",
            b"text\na\n\xe4\nb\n",
            r"Row 2 of a.csv has no UTF-8 text under 'text': '\udce4'",
            ["a", "b"],
        ),
        (
            "a.csv",
            "id,text\n1,a\n2\n3,b\n",
            "Row 2 of a.csv has no UTF-8 text under 'text': ['2']",
            ["a", "b"],
        ),
        (
            "a.tsv",
            "text\tid\n\na\t1\nb\t2\t3\n",
            "Row 2 of a.tsv has no UTF-8 text under 'text': ['b', '2', '3']",
            ["a"],
        ),
        (
            "a.parquet",
            parquet(id=range(2), text=["one", None]),
            "Row 2 of a.parquet has no UTF-8 text under 'text': None",
            ["one"],
        ),
    ],
)
def test_a_broken_line_is_named_and_skipped_on_request(tmp_path, name, content, said, kept, small):
    content = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="--skip-bad") as raised:
        attnviz.survey(tmp_path / name, model=small)
    assert said in str(raised.value)
    found = attnviz.survey(tmp_path / name, model=small, skip_bad=True)
    expected = attnviz.survey(kept, model=small)
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=0, equal_nan=True)
    (bad,) = found.left_out
    assert f"({bad})" in found.notes[0]
    assert said in found.notes[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.csv",
            b"id,body\n1,one\n",
            r"a.csv needs one column 'text', but its columns are 'id', 'body'.*--column",
        ),
        ("a.csv", b"", r"a.csv needs one column 'text', but its columns are none"),
        ("a.csv", b"text,text\na,b\n", r"a.csv needs one column 'text', .* are 'text', 'text'"),
        ("a.csv", b'text\na\n"never ends\n', r"a.csv cannot be read after row 1: unexpected"),
        (
            "a.parquet",
            parquet(body=["x"]),
            r"a\.parquet needs one column 'text', but its columns are 'body'",
        ),
        ("a.parquet", b"PAR1 no table", r"a.parquet cannot be read after row 0: .*[Pp]arquet"),
        ("a.txt", b"\xff\x00", r"Line 1 of a.txt is not UTF-8.*--skip-bad"),
        ("a.txt", b"\xfe\xff\x00a", r"a.txt is UTF-16 text. Save it as UTF-8"),
        ("a.csv", "text\na\n".encode("utf-16"), r"a.csv is UTF-16 text. Save it as UTF-8"),
        (
            "a.pdf",
            b"",
            r"'a.pdf' is not a corpus: .* end in .txt, .jsonl, .csv, .tsv, .parquet, or be - ",
        ),
    ],
)
def test_an_invalid_corpus_is_refused_in_one_line(tmp_path, name, content, said, small):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        attnviz.survey(tmp_path / name, model=small)
    assert len(str(raised.value).splitlines()) == 1


def test_a_column_is_chosen_and_a_field_can_be_as_long_as_a_line(tmp_path, small):
    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text("body\n" + "word " * 40_000 + "\nshort\n")
    found = attnviz.survey(tmp_path / "a.csv", column="body", model=small, truncate=True)
    assert found.texts == 2
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("reader", [attnviz.survey, attnviz.explore])
@pytest.mark.parametrize("end", ["", ".txt"])
def test_a_text_in_place_of_a_corpus_is_refused(reader, end):
    with pytest.raises(InputError, match=r"is not a corpus|There is no file"):
        reader("the train left the station " * 15 + end)


@pytest.mark.parametrize("reader", [attnviz.survey, attnviz.explore])
def test_what_is_no_list_of_texts_is_refused(reader):
    with pytest.raises(InputError, match="Give one column, such as"):
        reader(pd.DataFrame({"text": TEXTS}))
    for pair, said in (
        ([1, 2, 3], "Pair 1 of 3 must be a string"),
        (["a", "", "b"], "Pair 2 of 3 is empty"),
        (iter(TEXTS), "The pair must be a string"),
        (["a"], "as many second ones"),
    ):
        with pytest.raises(InputError, match=said):
            reader(TEXTS, pair=pair)


def test_the_sample_has_200_sentences_that_are_read_whole(small):
    result = attnviz.survey(sample=True, model=small)
    assert result.texts == 200
    assert not any("cut" in note or "left out" in note for note in result.notes)
