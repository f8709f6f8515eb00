"""Runs that are stopped: by their time limit, or anywhere, with no trace in the model.

test_serving.py has the order of requests, clients that leave, and the end of the server.
"""

import asyncio
import gc
import sys
import threading
import time

import pytest
import torch
from starlette.exceptions import HTTPException

import attnviz
from attnviz.interactive.serve.app import Cancelled, Job, JobQueue
from attnviz.runtime.progress import say, track


def test_the_time_limit_applies_to_runs_not_to_waiting():
    ended = threading.Event()

    def work():
        try:
            while True:
                say("", 0.5)
                time.sleep(0.002)
        finally:
            ended.set()

    async def main():
        jobs = JobQueue(4, 0.2)
        slow = asyncio.create_task(jobs.run(work))
        slow_too = asyncio.create_task(jobs.run(work))
        quick = asyncio.create_task(jobs.run(lambda: "done"))
        for each in (slow, slow_too):
            with pytest.raises(HTTPException, match=r"504: .* not ready within 0\.2 s"):
                await each
        assert await quick == "done"  # it waited 0.4 s and ran for less
        assert ended.is_set()

    asyncio.run(main())


class Counted(Job):
    """Stop itself at one of its checks."""

    def __init__(self, last=None):
        super().__init__("")
        self.last, self.checks = last, 0

    def check(self):
        self.checks += 1
        if self.checks == self.last:
            self.cancelled.set()
        super().check()


def traces(model):
    """Return the state that a run changes and restores."""
    return (
        [dict(module.__dict__) for module in model.module.modules()],
        [len(module._forward_pre_hooks) for module in model.module.modules()],
        model.module.config._attn_implementation,
        torch.backends.mha.get_fastpath_enabled(),
        torch.get_rng_state().tolist(),
    )


@pytest.fixture(scope="module")
def whole(model, train):
    """Return a run that was not stopped, which has counted its checks."""
    job = Counted()
    job.run(lambda: attnviz.attend(train.provenance.text, model=model))
    return job


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_run_stops_anywhere_and_the_model_is_unchanged(model, train, whole, share):
    text = train.provenance.text
    before = traces(model)
    with pytest.raises(Cancelled):
        Counted(max(1, int(share * whole.checks))).run(lambda: attnviz.attend(text, model=model))
    assert traces(model) == before
    for one, again in zip(train, attnviz.attend(text, model=model), strict=True):
        assert (one.weights() == again.weights()).all()


def test_a_stopped_run_that_is_collected_later_prints_nothing(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    job, errors = Job(""), []

    def work():
        numbers = track(range(2))
        for _ in numbers:
            job.cancelled.set()
            say("")

    def run():
        try:
            job.run(work)
        except Cancelled as error:
            errors.append(error)  # holds the frames of the run

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(errors) == 1
    errors.clear()
    gc.collect()
    assert not unraisable
