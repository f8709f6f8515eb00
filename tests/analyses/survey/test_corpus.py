"""Read a corpus in any supported format; errors name the line."""

import csv
import io
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attnviz
from attnviz import InputError
from attnviz.analyses.survey.corpus import TextCorpus, parse_corpus

TEXTS = ["One, “two”.", "drei\tvier", "5 < 6"]


def read_texts(source, **options):
    """Return an iterator over the texts of a corpus, which no model reads."""
    return TextCorpus(None, source, **options).texts()


def parquet(**columns):
    with io.BytesIO() as file:
        pq.write_table(pa.table(columns), file)
        return file.getvalue()


FORMATS = {
    "a.txt": "\n".join([*TEXTS, ""]).encode(),
    "of Windows.TXT": b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode(),
    "a.jsonl": "\n".join(json.dumps({"id": 1, "text": text}) for text in TEXTS).encode(),
    "strings.jsonl": "\n".join(map(json.dumps, TEXTS)).encode(),
    "a.csv": "\n".join(["id,text", *(f'1,"{text}"' for text in TEXTS)]).encode(),
    "a.parquet": parquet(id=range(3), text=TEXTS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_texts(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name])
    found = list(read_texts(tmp_path / name))
    assert [each.text for each in found] == TEXTS
    assert [each.number for each in found] == [0, 1, 2]


def test_blank_lines_are_skipped_but_counted(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n  \ntwo\n")
    assert [(each.number, each.text) for each in read_texts(tmp_path / "a.txt")] == [
        (0, "one"),
        (3, "two"),
    ]


def test_standard_input_is_read_line_by_line(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert [each.text for each in read_texts("-")] == ["one", "two"]


def test_texts_can_come_from_an_iterator():
    assert [each.text for each in read_texts(text for text in TEXTS)] == TEXTS


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
        ("a.jsonl", "[" * 100_000 + "\n", "Line 1 of a.jsonl is not valid JSON", []),
        ("a.txt", b"a\n\xe4\nb\n", "Line 2 of a.txt is not valid UTF-8", ["a", "b"]),
        ("a.csv", b"text\na\n\xe4\nb\n", "Line 3 of a.csv is not valid UTF-8", ["a", "b"]),
        (
            "a.csv",
            "id,text\n1,a\n2\n3,b\n",
            "Line 3 of a.csv has 1 columns, but the header has 2",
            ["a", "b"],
        ),
    ],
)
def test_a_broken_line_is_named_and_skipped_on_request(tmp_path, name, content, said, kept):
    content = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="--skip-bad") as raised:
        list(read_texts(tmp_path / name))
    assert said in str(raised.value)
    corpus = TextCorpus(None, tmp_path / name, skip_bad=True)
    found = list(corpus.texts())
    (bad,) = corpus.changes.left_out
    assert said in corpus.changes.first_error
    assert bad not in [each.number + 1 for each in found]
    assert [each.text for each in found] == kept


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
        ("a.csv", b'text\n"never ends\n', r"Line \d of a.csv cannot be read: "),
        ("a.parquet", b"PAR1 no table", r"a.parquet is not a parquet file: "),
        ("a.txt", b"\xff\x00", r"Line 1 of a.txt is not valid UTF-8.*--skip-bad"),
        ("a.txt", b"\xfe\xff\x00a", r"a.txt is UTF-16 text. Save it as UTF-8"),
        ("a.csv", "text\na\n".encode("utf-16"), r"a.csv is UTF-16 text. Save it as UTF-8"),
        (
            "a.pdf",
            b"",
            r"'a.pdf' is not a corpus: .* end in .txt, .jsonl, .csv, .tsv, .parquet, or be - ",
        ),
    ],
)
def test_an_invalid_corpus_is_refused_in_one_line(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        list(read_texts(tmp_path / name))
    assert len(str(raised.value).splitlines()) == 1


def test_a_missing_parquet_column_is_reported(tmp_path):
    (tmp_path / "a.parquet").write_bytes(parquet(body=["x"]))
    with pytest.raises(
        InputError, match=r"a\.parquet needs one column 'text', but its columns are 'body'"
    ):
        list(read_texts(tmp_path / "a.parquet"))
    assert [t.text for t in read_texts(tmp_path / "a.parquet", column="body")] == ["x"]


def test_a_field_can_be_as_long_as_a_line(tmp_path):
    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text("text\n" + "word " * 40_000 + "\nshort\n")
    assert [len(each.text) for each in read_texts(tmp_path / "a.csv")] == [200_000, 5]
    assert csv.field_size_limit() == before


def test_a_non_text_value_is_named_with_its_row_and_type(tmp_path):
    (tmp_path / "a.parquet").write_bytes(parquet(text=["one", None]))
    with pytest.raises(InputError, match=r"Row 2 of a\.parquet has no text under 'text': None"):
        list(read_texts(tmp_path / "a.parquet"))
    (tmp_path / "a.jsonl").write_text('{"text": {"deep": "one"}}')
    with pytest.raises(
        InputError, match=r"Line 1 of a\.jsonl has no text under 'text': \{'deep': 'one'\}"
    ):
        list(read_texts(tmp_path / "a.jsonl"))


def test_neither_file_nor_string():
    with pytest.raises(InputError, match=r"There is no file none\.txt"):
        list(read_texts("none.txt"))
    with pytest.raises(InputError, match="Text 2 is 3, not a string"):
        list(read_texts(["a", 3]))


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


def test_the_sample_has_200_different_sentences():
    source = parse_corpus("survey", None, {}, 0, sample=True).source
    sentences = source.read_text("utf-8").splitlines()
    assert len(sentences) == len(set(sentences)) == 200
    assert all(one.isascii() and one.endswith(".") and len(one.split()) < 20 for one in sentences)
