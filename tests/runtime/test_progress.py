"""Progress is reported as shares of nested tasks, also after a loop that raised."""

import contextvars
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub.utils.tqdm import tqdm  # noqa: F401  loads the module

import attnviz
from attnviz.results.arguments import checked
from attnviz.runtime import listening, part, say, track


def test_parts_of_a_task_share_its_progress():
    reports = []
    with listening(lambda name, share: reports.append((name, share))), part(1, 2, "second"):
        for item in track("ab"):
            say(item, 0.5)
    assert reports == [
        ("second", 0.5), ("second", 0.5), ("a", 0.625), ("second", 0.75), ("second", 0.75),
        ("b", 0.875), ("second", 1.0), ("second", 1.0),
    ]  # fmt: skip


def test_a_loop_that_ends_early_restores_the_task():
    reports = []
    with listening(lambda name, share: reports.append((name, share))):
        for _ in track("ab", "letters"):
            break
        say("rest", 1.0)
    assert reports[-1] == ("rest", 1.0)


def test_a_loop_that_raised_is_closed_in_another_context():
    letters = []

    def run():
        with listening(lambda name, share: None):
            letters.append(track("ab", "letters"))
            for _ in letters[0]:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        contextvars.copy_context().run(run)
    reports = []
    with listening(lambda name, share: reports.append((name, share))):
        letters.pop().close()
        say("elsewhere", 0.5)
    assert reports == [("elsewhere", 0.5)]


def test_a_call_in_a_notebook_shows_one_bar(monkeypatch):
    shell, bars = SimpleNamespace(kernel=object()), []

    class Bar:
        def __init__(self, desc, **how):
            self.n, self.said = 0.0, [(desc, 0.0)]
            assert how["delay"] == 1.0  # seconds: quick calls show nothing
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.said.append("closed")

        def set_description_str(self, desc, refresh):
            self.desc = desc

        def update(self, more):
            self.n += more
            self.said.append((self.desc, self.n))

    @checked
    def outer():
        say("reading", 0.5)
        inner()

    @checked
    def inner():
        say("measuring", 0.75)

    outer()  # no notebook
    assert not bars
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys.modules["huggingface_hub.utils.tqdm"], "tqdm", Bar)
    outer()
    assert [bar.said for bar in bars] == [
        [("outer", 0.0), ("reading", 0.5), ("measuring", 0.75), "closed"]
    ]


def test_the_progress_of_a_long_text_goes_from_0_to_100_percent(model):
    heard = []
    with listening(lambda name, done: heard.append((name, done))):
        attnviz.attend("the train left the station on time. " * 12, model=model, mode="streamed")
    shares = [round(done, 9) for _, done in heard]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {name for name, _ in heard} == {"the model reads"}
