"""The real server gives correct answers, to many clients at once, and shuts down cleanly."""

import asyncio
import gc
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx2
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from families import tiny

import attnviz
from tests.interactive.serve.live_server import Cancelled, serving, serving_in_thread
from tests.interactive.test_payload import travelled

LONG = "The bank was full of {mud|cash} " + "and so were we " * 14
NAMES = ("cat", "train", "bank", "word", "sea", "king", "tree", "road", "song", "fire")
TEXTS = [f"the {name} {'left the station ' * (1 + n % 3)}early" for n, name in enumerate(NAMES)]


def expect_same(data, result):
    """Check that the answer contains exactly the weights of a result."""
    labels = data["payload"]["results"][0]["axes"][0]["labels"]
    assert labels == [*result.records[0].query_axis.labels]
    found = list(travelled(data))
    assert len(found) == sum(record.heads for record in result)
    for _, layer, head, (weights, *_), error in found:
        assert error < 1e-4
        assert np.abs(weights - result.weights(layer, head).numpy()).max() <= error + 1e-6


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def leaving(server, reader, path, asked, length=None):
    """Send a request, or a part of one; return the connection, which the reader then closes."""
    body = json.dumps(asked)
    length = length or len(body)
    cookie = "; ".join(f"{name}={value}" for name, value in reader.cookies.items())
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {server.address}\r\n"
        f"Cookie: {cookie}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        f"{body}".encode()
    )
    return connection


def test_the_page_and_its_options(reader):
    page = reader.get("/").text
    for link in ("/static/attnviz.live.js", "/static/attnviz.live.css"):
        assert link in page
        assert reader.get(link).status_code == 200
    about = reader.get("/about").json()
    assert about["models"] == ["all-MiniLM-L6-v2", "small"]
    assert "bank" in about["words"]
    assert about["max_tokens"] == 64


def test_a_missing_font_is_reported_to_the_reader_only(reader):
    asked = {"word": "bank", "text": "the bank \U0001320f \u1980 was full", "model": "small"}
    answer = reader.post("/shift", json=asked)
    assert answer.status_code == 200, answer.text
    assert all("font" in said for said in answer.json()["warnings"])


def test_sentences_that_a_decoder_cannot_tell_apart_are_sent_without_numbers(bare_tokenizer):
    ends = {"river": ("was muddy", "by the lake"), "money": ("lent much", "had a loan")}
    starts = {"river": ("swim to", "a wet"), "money": ("pay the", "a rich")}
    lines = [f"{name}: the bank {end}" for name, both in ends.items() for end in both]
    lines += [f"{name}: {start} bank" for name, both in starts.items() for start in both]
    decoder = attnviz.load(tiny("llama"), tokenizer=bare_tokenizer)
    with serving_in_thread(decoder) as served, served.enter() as reader:
        asked = {"word": "bank", "sentences": "\n".join(lines)}
        answer = reader.post("/senses", json=asked).text

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(answer, parse_constant=refuse)["threads"]
    said = [one["sentence"].startswith("the bank") for one in found["occurrences"]]
    assert sum(said) == 4
    for numbers in (found["right"], *found["heights"]):
        assert [number is None for number in numbers] == said
    assert [n in found["alike"] for n in range(len(said))] == said


@pytest.mark.parametrize(
    ("sentences", "said"),
    [
        ("river: a bank\nno sense here", "Sentence 2 has no sense. Type the sense and a colon"),
        ("river: a bank\n: a bank", "Sentence 2 has no sense"),
        ("river: a bank\nriver: the bank", "At least two senses"),
        ("river: a bank\n" * 65, "65 sentences are too many here. Type at most 64."),
        (["a bank"], "The sentences must be a string, not list"),
        (f"river: a bank\nriver: {'bank ' * 600}\nmoney: a\nmoney: b", "are read here. Shorten"),
    ],
)
def test_own_sentences_that_cannot_be_read(reader, sentences, said):
    answer = reader.post("/senses", json={"word": "bank", "sentences": sentences})
    assert answer.status_code == 400
    assert said in answer.text


@pytest.mark.parametrize(
    ("clients", "requests"), [(6, 8), pytest.param(20, 100, marks=pytest.mark.long)]
)
def test_requests_of_many_clients_are_all_answered_correctly(
    server, reader, small, clients, requests
):
    model = attnviz.load(small)
    direct = [attnviz.attend(text, model=model) for text in TEXTS[:requests]]
    memory = server.memory_mb()
    numbers, answers, most = iter(range(requests)), {}, [0]

    async def client():
        headers = {"Origin": server.address}
        how = {"cookies": reader.cookies, "headers": headers, "verify": False, "trust_env": False}
        async with httpx2.AsyncClient(base_url=server.address, timeout=60, **how) as asking:
            for number in numbers:
                asked = {"text": TEXTS[number % len(TEXTS)], "model": "small"}
                answers[number] = await asking.post("/attention", json=asked)
                if number % 4 == 0:
                    most[0] = max(most[0], (await asking.get("/about")).json()["jobs"])

    async def main():
        await asyncio.gather(*(client() for _ in range(clients)))

    asyncio.run(main())
    assert sorted(answers) == list(range(requests))
    for number, answer in answers.items():
        assert answer.status_code == 200, answer.text
        expect_same(answer.json(), direct[number % len(TEXTS)])
    assert reader.get("/about").json()["jobs"] == 0
    assert most[0] > clients // 2  # they did wait for each other
    assert server.memory_mb() < memory + 60


def test_answers_do_not_stay_in_memory(reader):
    def asked(text):
        assert reader.post("/attention", json={"text": text, "model": "small"}).status_code == 200
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is torch.Tensor]

    asked("she sat by the bank")  # create what is cached for texts of seven tokens
    before = {*map(id, asked("the second"))}
    asked("the train left the station")
    after = [each.shape for each in asked("the second") if id(each) not in before]
    assert not [shape for shape in after if 7 in shape]


def test_special_tokens_in_the_text_of_a_stranger_are_plain_text(reader):
    answer = reader.post("/attention", json={"text": "left [SEP] now"}).json()
    (note,) = answer["payload"]["results"][0]["notes"]
    assert note.startswith("Read as plain text, not as special tokens: [SEP]")


@pytest.mark.parametrize("path", ["senses", "shift"])
def test_a_stopped_figure_does_not_stay_in_memory(reader, monkeypatch, path):
    def stop(*_):
        raise Cancelled

    monkeypatch.setattr("attnviz.figures.layout.render", stop)
    asked = {"word": "bank", "text": "The bank was full of {mud|cash}.", "model": "small"}
    assert reader.post(f"/{path}", json=asked).status_code >= 500
    assert not plt.get_fignums()
    assert plt.get_backend().lower() == "agg"  # another backend would open a window in this thread


def test_a_full_queue_asks_clients_to_retry(server, reader):
    some = [leaving(server, reader, "/shift", {"word": "bank", "text": LONG}) for _ in range(33)]
    until(lambda: reader.get("/about").json()["jobs"] == 33)
    answer = reader.post("/attention", json={"text": "the train"})
    assert answer.status_code == 503
    assert "Try again in a few seconds" in answer.text
    for connection in some:
        connection.close()
    until(lambda: reader.get("/about").json()["jobs"] == 0)
    assert reader.post("/attention", json={"text": "the train"}).status_code == 200


def test_a_reader_sees_queue_position_and_progress(server, reader):
    asked = {"word": "bank", "text": LONG[:80], "model": "small"}
    some = [leaving(server, reader, "/shift", {**asked, "ticket": f"t{n}"}) for n in range(3)]

    def turn(name):
        return reader.get(f"/turn/{name}").json()

    until(lambda: turn("t2") is not None)
    aheads = [each["ahead"] for each in map(turn, ("t0", "t1", "t2")) if each]
    assert aheads[-1] > 0
    assert aheads == sorted(aheads)
    until(lambda: turn("t2")["ahead"] < aheads[-1])
    until(lambda: turn("t2")["done"] > 0)
    assert turn("unknown") is None
    for connection in some:
        connection.close()
    until(lambda: reader.get("/about").json()["jobs"] == 0)


def test_slow_runs_are_stopped_a_signal_ends_a_run_and_nothing_is_left(tmp_path, small):
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    how = {"cwd": tmp_path / "here", "env": {**os.environ, "TMPDIR": str(tmp_path / "tmp")}}
    with serving("--time-limit", "0.3", **how) as served, served.enter() as reader:
        began = time.monotonic()
        answer = reader.post("/senses", json={"word": "bank"})
        assert answer.status_code == 504
        assert "within 0.3 s" in answer.text
        assert time.monotonic() - began < 3
        connection = leaving(served, reader, "/senses", {"word": "bank"})
        until(lambda: reader.get("/about").json()["jobs"] == 1)
        # Even a server that is killed would leave no process and no file.
        tasks = Path(f"/proc/{served.process.pid}/task").glob("*/children")
        assert not "".join(each.read_text() for each in tasks)
        assert not [*(tmp_path / "here").iterdir(), *(tmp_path / "tmp").iterdir()]
        assert served.end(signal.SIGTERM) == (143, "")
        connection.close()
        port = served.port
    again = serving("--model", str(small), port=port, **how)
    with again as served:
        with served.enter() as reader:
            for path in ("attention", "senses", "shift"):  # a client that leaves is no error
                connection = leaving(served, reader, f"/{path}", {"text": "x"}, length=1000)
                time.sleep(0.1)  # the header has arrived
                connection.close()
            out, errors = stop_by_ctrl_c(served, reader)
        assert errors == ""
        assert "xylophone" not in out  # no input is logged
    assert not [*(tmp_path / "here").iterdir(), *(tmp_path / "tmp").iterdir()]


def stop_by_ctrl_c(served, reader):
    """Stop a server that has answered and runs; return what it has printed."""
    reader.post("/attention", json={"text": "xylophone \U0001320f"})
    reader.post("/shift", json={"word": "xylophone", "text": "xylophone"})
    reader.post("/senses", json={"word": "xylophone"})
    answers = []
    asked = {"word": "bank", "text": LONG}
    asking = [
        threading.Thread(target=lambda: answers.append(reader.post("/shift", json=asked)))
        for _ in range(3)
    ]
    for each in asking:
        each.start()
    until(lambda: reader.get("/about").json()["jobs"] == 3)
    leaver = leaving(served, reader, "/shift", asked)
    until(lambda: reader.get("/about").json()["jobs"] == 4)
    leaver.close()
    until(lambda: reader.get("/about").json()["jobs"] == 3)
    began = time.monotonic()
    served.process.send_signal(signal.SIGINT)
    printed = served.process.communicate(timeout=20)
    assert served.process.returncode == 130
    assert time.monotonic() - began < 5
    for each in asking:
        each.join()
    codes = sorted(answer.status_code for answer in answers)
    assert codes in ([503] * 3, [200, 503, 503])  # the first may have ended just before
    with socket.create_server(("127.0.0.1", served.port)):
        pass  # it is free again
    return printed
