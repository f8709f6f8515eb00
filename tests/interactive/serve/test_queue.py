"""One run at a time, first come first served; whoever leaves is dropped, and nothing hangs."""

import asyncio
import threading
import time

import pytest
import torch

import attnviz
from attnviz.interactive.serve.queue import (
    BusyError,
    Cancelled,
    ClosingError,
    Job,
    JobQueue,
    SlowError,
)
from attnviz.runtime.progress import tell

TEXT = "the train left the station"


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def stoppable():
    """Return work that goes on until it is stopped, and says that it was."""
    ended = threading.Event()

    def work():
        try:
            while True:
                tell(0.5)
                time.sleep(0.002)
        finally:
            ended.set()

    return work, ended


def test_each_waits_for_those_before_and_only_one_runs():
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


def test_no_more_wait_than_may_and_each_knows_its_place():
    async def main():
        jobs = JobQueue(2, 10)
        work, _ = stoppable()
        takes = [asyncio.create_task(jobs.run(work, name)) for name in "abc"]
        await until(lambda: jobs.running)
        assert jobs.waiting == 2
        with pytest.raises(BusyError):
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


def test_who_leaves_while_waiting_is_dropped_and_never_runs():
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


def test_who_leaves_while_running_stops_the_run_and_the_next_one_starts():
    async def main():
        jobs = JobQueue(4, 10)
        work, ended = stoppable()
        running = asyncio.create_task(jobs.run(work))
        await until(lambda: jobs.running)
        running.cancel()
        assert await jobs.run(lambda: ended.is_set()) is True
        assert jobs.served == 1

    asyncio.run(main())


def test_the_time_is_up_for_a_run_and_not_for_those_who_wait():
    async def main():
        jobs = JobQueue(4, 0.2)
        work, ended = stoppable()
        slow = asyncio.create_task(jobs.run(work))
        slow_too = asyncio.create_task(jobs.run(work))
        quick = asyncio.create_task(jobs.run(lambda: "done"))
        for each in (slow, slow_too):
            with pytest.raises(SlowError):
                await each
        assert await quick == "done"  # it waited 0.4 s, and ran for less
        assert ended.is_set()

    asyncio.run(main())


def test_closing_stops_what_runs_and_sends_away_who_waits():
    async def main():
        before = threading.enumerate()
        jobs = JobQueue(4, 10)
        work, ended = stoppable()
        takes = [asyncio.create_task(jobs.run(work)) for _ in range(3)]
        await until(lambda: jobs.running)
        await jobs.wait_closed()
        assert ended.is_set()
        for each in takes:
            with pytest.raises(ClosingError):
                await each
        with pytest.raises(ClosingError):
            await jobs.run(lambda: None)
        assert set(threading.enumerate()) <= set(before)

    asyncio.run(main())


def test_what_goes_wrong_comes_back_and_the_next_one_runs():
    async def main():
        jobs = JobQueue(4, 10)
        with pytest.raises(ZeroDivisionError):
            await jobs.run(lambda: 1 / 0)
        assert await jobs.run(lambda: 1) == 1
        assert jobs.served == 1

    asyncio.run(main())


class Counted(Job):
    """Stops itself at one of its checks."""

    def __init__(self, last=None):
        super().__init__("")
        self.last, self.checks = last, 0

    def check(self):
        self.checks += 1
        if self.checks == self.last:
            self.cancelled.set()
        super().check()


def traces(model):
    """Return what a run changes and puts back."""
    return (
        [dict(module.__dict__) for module in model.module.modules()],
        [len(module._forward_pre_hooks) for module in model.module.modules()],
        model.module.config._attn_implementation,
        torch.backends.mha.get_fastpath_enabled(),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 0.99, 1.0])
def test_a_run_stops_wherever_it_is_and_the_model_is_as_before(model, train, share):
    text, whole = train.provenance.text, Counted()
    whole.run(lambda: attnviz.attend(text, model=model))
    before = traces(model)
    with pytest.raises(Cancelled):
        Counted(max(1, int(share * whole.checks))).run(lambda: attnviz.attend(text, model=model))
    assert traces(model) == before
    for one, again in zip(train, attnviz.attend(text, model=model), strict=True):
        assert (one.weights() == again.weights()).all()
