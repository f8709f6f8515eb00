"""The real server rejects each attack, and every rejection has the security headers."""

import json
import re

import pytest

TEXT = {"text": "the train left"}
POSTS = ["/attention", "/explain", "/senses", "/shift"]


def refused(answer, status):
    assert answer.status_code == status, answer.text
    headed(answer)
    assert len(answer.text.splitlines()) == 1
    assert "Traceback" not in answer.text
    return answer.text


def headed(answer):
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy  # no other page may frame this one
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers


@pytest.fixture
def stranger(server):
    with server.stranger() as client:
        yield client


JSON = {"Content-Type": "application/json"}
HOSTS = "evil.example", "evil.example:{port}", "127.0.0.1.evil.example"
ORIGINS = (
    "https://evil.example", "http://127.0.0.1", "http://127.0.0.1:{other}",
    "https://127.0.0.1:{port}", "http://127.0.0.1:{port}.evil.example",
    "http://evil.example:{port}", "null", "",
)  # fmt: skip
TYPES = "text/plain", "application/x-www-form-urlencoded", "", "text/json"
ONLY_READ = ["/", "/about", "/static/attnviz.live.css"]
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Origin": "https://evil.example"}
# Paths, method, headers, what is sent, and the status. Ports are filled in.
ATTACKS = {
    **{
        f"as {host}": (["/", "/about", "/attention"], "GET", {"Host": host}, {}, 400)
        for host in HOSTS
    },
    **{
        f"{kind} from {origin}": (POSTS, "POST", {"Origin": origin}, {kind: TEXT}, 403)
        for kind in ("json", "data")
        for origin in ORIGINS
    },
    **{
        f"of type {kind}": (
            POSTS, "POST", {"Content-Type": kind}, {"content": json.dumps(TEXT)}, 415,
        )
        for kind in TYPES
    },
    **{
        f"by {method}": (POSTS, method, JSON, {}, 405)
        for method in ("PUT", "DELETE", "PATCH", "GET", "TRACE")
    },
    "a preflight": (["/attention"], "OPTIONS", PREFLIGHT, {}, 403),
    "a huge body": (POSTS, "POST", {}, {"json": {"text": "x" * 100_000}}, 413),
    "sent to what is only read": (ONLY_READ, "POST", {}, {"json": TEXT}, 405),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(server, reader, name):
    paths, method, headers, sent, status = ATTACKS[name]
    ports = {"port": server.port, "other": server.port ^ 1}
    headers = {key: value.format(**ports) for key, value in headers.items()}
    for path in paths:
        refused(reader.request(method, path, headers=headers, **sent), status)


def test_the_link_that_a_browser_is_started_with_works_once(server):
    def opened(link):
        with server.stranger() as client:
            return client.get(link).status_code

    once = server.site.link(once=True)
    assert [opened(once), opened(once)] == [303, 403]
    assert opened(server.site.link(once=True)) == opened(server.link) == 303


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_goes_by_its_own_names(server, host):
    request = f"GET /about HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert " 403 " in server.raw(request.encode()).splitlines()[0]


def test_no_host(server):
    assert " 400 " in server.raw(b"GET /about HTTP/1.0\r\n\r\n").splitlines()[0]


def test_json_without_an_origin(server, reader):
    with server.stranger(cookies=reader.cookies) as client:
        for path in POSTS:
            refused(client.post(path, json=TEXT), 403)


def test_a_stranger_is_refused(server, stranger):
    for path in POSTS:
        refused(stranger.post(path, json=TEXT, headers={"Origin": server.address}), 403)
    token = server.link.partition("?")[2]
    for path in ("/about", "/static/attnviz.live.js", "/turn/1"):
        refused(stranger.get(path), 403)
        refused(stranger.get(f"{path}?{token}"), 403)
    for wrong in ("", "wrong", "ä", "%00", "x" * 4000):
        cookie = {"Cookie": f"attnviz-{server.port}={wrong}".encode()}
        refused(stranger.get("/", headers=cookie), 403)
        answer = stranger.get(f"/?token={wrong}")
        refused(answer, 403)
        assert "set-cookie" not in answer.headers


def test_a_token_becomes_a_cookie_that_no_script_reads(server):
    for _ in range(2):  # the link works until the server stops
        with server.stranger() as client:
            answer = client.get(server.link)
            headed(answer)
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert "token" not in str(client.get("/").url)
            assert client.get("/").status_code == 200
            assert client.get(server.link).headers["location"] == "/"


def test_a_huge_body_in_chunks(server, reader):
    cookie = "; ".join(f"{name}={value}" for name, value in reader.cookies.items())
    head = (
        f"POST /attention HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {server.address}\r\n"
        f"Cookie: {cookie}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    request = head.encode() + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 800
    before = server.memory_mb()  # the server may run in this process, which holds the request
    answer = server.raw(request)
    assert " 413 " in answer.splitlines()[0]
    assert server.memory_mb() < before + 25  # of the 50 MB
    assert reader.get("/about").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/static//etc/passwd",
        "/static/attnviz.es.js",
        "/static/",
        "/static",
        "/../../etc/passwd",
        "/static/attnviz.live.js%00.css",
        "/static/..\\app.py",
    ],
)
def test_files_that_are_not_served(server, reader, path):
    cookie = "; ".join(f"{name}={value}" for name, value in reader.cookies.items())
    answer = server.raw(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie: {cookie}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    assert " 404 " in answer.splitlines()[0]
    assert "root:" not in answer
    assert "frame-ancestors" in answer


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("name", ["gpt2", "../../etc", "\ud800", "x" * 5000, "<script>", 3, [], {}])
def test_an_unlisted_model(reader, path, name):
    asked = json.dumps({"text": "the bank", "word": "bank", "model": name})
    answer = reader.post(path, content=asked, headers={"Content-Type": "application/json"})
    assert "is not served. Choose one of all-MiniLM-L6-v2, small." in refused(answer, 400)
    assert len(answer.text) < 200


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/attention", {"text": "go " * 63}),
        ("/attention", {"text": "go", "compare": "go " * 63}),
        ("/shift", {"word": "go#2", "text": "go " * 63}),
        ("/shift", {"word": "bank", "text": "the bank of {" + "go " * 63 + "|mud}"}),
    ],
)
def test_too_many_tokens(reader, path, asked):
    told = refused(reader.post(path, json=asked), 400)
    assert "at most 64 are read here. Shorten it." in told


def test_a_word_without_sentences_has_a_readable_answer(reader):
    told = refused(reader.post("/senses", json={"word": "zebra"}), 400)
    assert "'zebra' has no bundled sentences. Type your own, or one of bank, " in told
    assert "--sentences" not in told


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"3",
        b"null",
        b"NaN",
        b"\xff\xfe{}",
        b"[" * 60_000,
        b'{"text":' * 8_000,
        b"9" * 60_000,
        b"{}",
        b'{"text": null, "word": null}',
        b'{"text": 3, "word": 3}',
        b'{"text": ["a"], "word": ["a"]}',
        b'{"text": {"a": 1}, "word": {}}',
        b'{"text": " ", "word": " "}',
        b'{"text": "\\u0000", "word": "\\u0000"}',
        b'{"text": "\\ud800", "word": "\\ud800"}',
    ],
    ids=lambda content: content[:30].decode("latin-1"),
)
def test_invalid_requests(reader, path, content):
    headers = {"Content-Type": "application/json"}
    told = refused(reader.post(path, content=content, headers=headers), 400)
    assert re.search(
        "not a JSON object|must be a string|at least one word|no bundled|Unicode|a whole number",
        told,
    )


@pytest.mark.parametrize(
    "text",
    [
        "a\x00b",
        "\u202eabc\u2066",
        "</script><img src=x onerror=alert(1)>",
        "\U0001f600 ok",
        "a\u2028b",
    ],
)
def test_odd_text_is_text(reader, text):
    answer = reader.post("/attention", json={"text": text, "model": "small"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    headed(answer)


def test_paths_in_texts_are_not_read(reader, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("The bank was full of mud.\nThe bank was full of cash.\n")
    refused(reader.post("/senses", json={"word": f"bank={secret}"}), 400)
    answer = reader.post("/attention", json={"text": str(secret), "model": "small"})
    assert answer.status_code == 200
    assert "mud" not in json.dumps(answer.json()["payload"])


def test_the_server_survives_any_request(server, reader):
    for odd in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"G" * 100_000):
        assert server.raw(odd)[:12] in ("HTTP/1.1 400", "HTTP/1.1 505", "")
    assert reader.get("/about").status_code == 200
