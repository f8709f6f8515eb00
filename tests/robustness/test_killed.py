"""A run that is killed at any moment leaves the old file or the new one, never a mixture."""

import os
import random
import signal
import time
from dataclasses import replace

import pytest
from safetensors.torch import load_file

import attnviz


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
    """Return a function that starts the endless call in a folder."""
    return lambda folder: server.start(
        folder=str(folder), streams=["/dev/null"] * 3, arguments=[], called=endless
    )


def check_maps(path):
    weights = load_file(path)["weights"]
    sums = weights.double().sum(-1)  # 1 in one of the two results, one half in the other
    assert (sums - sums[0, 0, 0]).abs().max() < 1e-5


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


def kill_at_random(start, server, folder, moments, chance):
    """Kill the call repeatedly while it writes; count how often a temporary file was left.

    The signal comes after the temporary file appears, with a delay up to the duration of a write.
    """
    path, took, left = folder / "x.safetensors", 0.1, 0
    for _ in range(moments):
        before = identity(path)
        process = start(folder)
        wait_for_a_write(folder, path, before)
        began = time.monotonic()
        if not path.exists():  # the first time, a write ends
            wait_for(path.exists)
            took = time.monotonic() - began
        time.sleep(chance.uniform(0, 1.1 * took))
        os.kill(process.pid, signal.SIGKILL)
        assert server.wait(process) == -signal.SIGKILL
        check_maps(path)
        left += bool(writing(folder))
        assert {path, *writing(folder)} == set(folder.iterdir())
        for file in writing(folder):
            file.unlink()
    return left


def test_kill_9_leaves_the_old_file_or_the_new_one(start, server, tmp_path):
    kill_at_random(start, server, tmp_path, 3, random.Random())


@pytest.mark.long
def test_kill_9_at_a_hundred_moments(start, server, tmp_path):
    assert kill_at_random(start, server, tmp_path, 100, random.Random(0)) >= 50
