"""A run that is killed at any moment leaves the old file or the new one, never a mixture."""

import os
import random
import signal
import time
from dataclasses import replace

import pytest
from PIL import Image
from safetensors.torch import load_file

import attnviz
from robustness.running.families import saved

TEXTS = "the train left the station", "she sat by the bank"


@pytest.fixture(scope="module")
def endless(model, tmp_path_factory):
    """Return a call that alternately writes two results of 9 MB to the same file, endlessly."""
    folder = tmp_path_factory.mktemp("large")
    text = "the train left the station on time " * 25
    maps = attnviz.head_maps(model.attend(text), words=False)
    paths = [str(folder / "one.safetensors"), str(folder / "other.safetensors")]
    for each, path in zip((maps, replace(maps, weights=maps.weights / 2)), paths, strict=True):
        attnviz.save_result(each, path)
    both = f"__import__('itertools').cycle([attnviz.load_result(path) for path in {paths}])"
    return f"[attnviz.save_result(maps, 'x.safetensors', force=True) for maps in {both}]"


@pytest.fixture
def start(server, endless):
    """Return a function that starts a command, or without one the endless call."""

    def started(arguments, folder):
        return server.start(
            folder=str(folder),
            streams=["/dev/null"] * 3,
            arguments=arguments or [],
            called=None if arguments else endless,
        )

    return started


def decode_png(path):
    with Image.open(path) as image:
        image.load()


def load_maps(path):
    weights = load_file(path)["weights"]
    sums = weights.double().sum(-1)  # 1 in one of the two results, one half in the other
    assert (sums - sums[0, 0, 0]).abs().max() < 1e-5


def drawing():
    """Return two commands that draw different maps into a file."""
    return [["heatmap", f"{text}. " * 4, "-m", str(saved("bert")), "-o", "x.png"] for text in TEXTS]


# The file, what writes two results into it, and its reader.
KILLED = {
    "heatmap": ("x.png", drawing, decode_png),
    "large": ("x.safetensors", lambda: [None, None], load_maps),
}


def writing(folder):
    return list(folder.glob(".attnviz-*"))


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.0002)


def identity(path):
    return path.stat().st_ino if path.exists() else None


def wait_for_a_write(folder, path, before):
    """Wait until a temporary file is there, or its write was so short that it already ended."""
    wait_for(lambda: writing(folder) or identity(path) != before)


def kill_at_random(start, server, folder, kind, moments, chance):
    """Kill a command repeatedly while it writes; count how often the old and new file remained.

    The signal comes after the temporary file appears, with a delay up to the duration of a write.
    """
    name, writers, verify = KILLED[kind]
    first, second = writers()
    path = folder / name
    known = {}
    for which, arguments in (("old", first), ("new", second)):
        before = identity(path)
        process = start(arguments, folder)
        wait_for_a_write(folder, path, before)
        began = time.monotonic()
        wait_for(lambda: not writing(folder))
        took = time.monotonic() - began
        if arguments is None:
            os.kill(process, signal.SIGKILL)
        assert server.wait(process) == (0 if arguments else -signal.SIGKILL)
        verify(path)
        for left in writing(folder):
            left.unlink()
        known[path.read_bytes()] = which
    counts = {"old": 0, "new": 0, "while writing": 0}
    old = next(iter(known))
    for _ in range(moments):
        path.write_bytes(old)
        before = identity(path)
        process = start(second, folder)
        wait_for_a_write(folder, path, before)
        time.sleep(chance.uniform(0, 1.1 * took))
        os.kill(process, signal.SIGKILL)
        assert server.wait(process) == -signal.SIGKILL or second
        verify(path)
        content = path.read_bytes()
        assert content in known or second is None, "neither the old file nor the new one"
        counts["old" if content == old else "new"] += 1
        counts["while writing"] += bool(writing(folder))
        assert {path, *writing(folder)} == set(folder.iterdir())
        for left in writing(folder):
            left.unlink()
    return counts


@pytest.mark.parametrize("kind", KILLED)
def test_kill_9_leaves_the_old_file_or_the_new_one(start, server, tmp_path, kind):
    moments = 2 if kind == "large" else 1
    counts = kill_at_random(start, server, tmp_path, kind, moments, random.Random())
    assert counts["old"] + counts["new"] == moments


@pytest.mark.long
def test_kill_9_at_a_hundred_moments(start, server, tmp_path):
    chance, total = random.Random(0), {}
    for kind, moments in (("heatmap", 60), ("large", 40)):
        (tmp_path / kind).mkdir()
        total[kind] = kill_at_random(start, server, tmp_path / kind, kind, moments, chance)
        print(kind, total[kind])
    assert sum(found["old"] + found["new"] for found in total.values()) == 100
    assert sum(found["while writing"] for found in total.values()) >= 50
