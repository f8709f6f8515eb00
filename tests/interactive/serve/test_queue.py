"""One run at a time, first come first served; canceled jobs are dropped, and nothing hangs."""

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

TEXT = "the train left the station"


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def stoppable():
    """Return a job that runs until it is stopped, and records that it was."""
    ended = threading.Event()

    def work():
        try:
            while True:
                say("", 0.5)
                time.sleep(0.002)
        finally:
            ended.set()

    return work, ended


def test_jobs_wait_in_order_and_one_runs_at_a_time():
    async def main():
        jobs, order, at_once = JobQueue(8, 10), [], []

        def work(number):
            at_once.append(jobs.running)
            order.append(number)
            time.sleep(0.01)
            return number

        takes = [jobs.run(lambda n=n: work(n)) for n in range(8)]
        assert await asyncio.gather(*takes) == list(range(8))
        assert order == list(range(8))
        assert set(at_once) == {1}
        assert (jobs.running, jobs.waiting, jobs.served) == (0, 0, 8)

    asyncio.run(main())


def test_the_queue_is_bounded_and_jobs_know_their_position():
    async def main():
        jobs = JobQueue(2, 10)
        work, _ = stoppable()
        takes = [asyncio.create_task(jobs.run(work, name)) for name in "abc"]
        await until(lambda: jobs.running)
        assert jobs.waiting == 2
        with pytest.raises(HTTPException, match="503: Too many requests wait"):
            await jobs.run(work)
        await until(lambda: jobs.find("a")[1].progress == 0.5)
        assert [jobs.find(name)[0] for name in "abc"] == [0, 1, 2]
        assert jobs.find("d") is None
        takes[1].cancel()
        await until(lambda: jobs.waiting == 1)
        assert jobs.find("c")[0] == 1
        await jobs.wait_closed()
        await asyncio.gather(*takes, return_exceptions=True)

    asyncio.run(main())


def test_a_client_that_leaves_while_waiting_is_dropped():
    async def main():
        jobs, ran = JobQueue(4, 10), []
        go = threading.Event()
        first = asyncio.create_task(jobs.run(go.wait))
        await until(lambda: jobs.running)
        second = asyncio.create_task(jobs.run(lambda: ran.append(2)))
        third = asyncio.create_task(jobs.run(lambda: ran.append(3)))
        await asyncio.sleep(0)
        second.cancel()
        go.set()
        await asyncio.gather(first, third)
        assert ran == [3]
        assert second.cancelled()

    asyncio.run(main())


def test_a_client_that_leaves_while_running_stops_the_run():
    async def main():
        jobs = JobQueue(4, 10)
        work, ended = stoppable()
        running = asyncio.create_task(jobs.run(work))
        await until(lambda: jobs.running)
        running.cancel()
        assert await jobs.run(lambda: ended.is_set()) is True
        assert jobs.served == 1

    asyncio.run(main())


def test_the_time_limit_applies_to_runs_not_to_waiting():
    async def main():
        jobs = JobQueue(4, 0.2)
        work, ended = stoppable()
        slow = asyncio.create_task(jobs.run(work))
        slow_too = asyncio.create_task(jobs.run(work))
        quick = asyncio.create_task(jobs.run(lambda: "done"))
        for each in (slow, slow_too):
            with pytest.raises(HTTPException, match=r"504: .* not ready within 0\.2 s"):
                await each
        assert await quick == "done"  # it waited 0.4 s and ran for less
        assert ended.is_set()

    asyncio.run(main())


def test_closing_stops_the_run_and_rejects_waiting_jobs():
    async def main():
        before = threading.enumerate()
        jobs = JobQueue(4, 10)
        work, ended = stoppable()
        takes = [asyncio.create_task(jobs.run(work)) for _ in range(3)]
        await until(lambda: jobs.running)
        await jobs.wait_closed()
        assert ended.is_set()
        for each in takes:
            with pytest.raises(HTTPException, match="503: The server is shutting down"):
                await each
        with pytest.raises(HTTPException, match="503: The server is shutting down"):
            await jobs.run(lambda: None)
        assert set(threading.enumerate()) <= set(before)

    asyncio.run(main())


def test_errors_are_returned_and_the_next_job_runs():
    async def main():
        jobs = JobQueue(4, 10)
        with pytest.raises(ZeroDivisionError):
            await jobs.run(lambda: 1 / 0)
        assert await jobs.run(lambda: 1) == 1
        assert jobs.served == 1

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
