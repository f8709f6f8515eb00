"""Progress is reported as shares of nested tasks, also after a loop that raised."""

import contextvars

import pytest

from attnviz.runtime.progress import listening, part, say, track


def test_parts_of_a_task_share_its_progress():
    reports = []
    with listening(lambda name, share: reports.append((name, share))), part(1, 2, "second"):
        for item in track("ab"):
            say(item, 0.5)
    assert reports == [
        ("second", 0.5), ("second", 0.5), ("a", 0.625), ("second", 0.75), ("second", 0.75),
        ("b", 0.875), ("second", 1.0), ("second", 1.0),
    ]  # fmt: skip


def test_without_a_listener_the_items_are_unchanged():
    assert [*track("ab", "letters")] == ["a", "b"]


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
