"""One run at a time, first come first served; whoever leaves is dropped, and nothing hangs."""

import asyncio
import threading
import time

import pytest
import torch

import attnviz
from attnviz.interactive.serve.queue import (
    BusyError,
    ClosingError,
    Left,
    SlowError,
    Turn,
    Turns,
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
        turns, order, at_once = Turns(8, 10), [], []

        def work(number):
            at_once.append(turns.running)
            order.append(number)
            time.sleep(0.01)
            return number

        takes = [turns.take(lambda n=n: work(n)) for n in range(8)]
        assert await asyncio.gather(*takes) == list(range(8))
        assert order == list(range(8))
        assert set(at_once) == {1}
        assert (turns.running, turns.waiting, turns.served) == (0, 0, 8)

    asyncio.run(main())


def test_no_more_wait_than_may_and_each_knows_its_place():
    async def main():
        turns = Turns(2, 10)
        work, _ = stoppable()
        takes = [asyncio.create_task(turns.take(work, name)) for name in "abc"]
        await until(lambda: turns.running)
        assert turns.waiting == 2
        with pytest.raises(BusyError):
            await turns.take(work)
        await until(lambda: turns.find("a")[1].done == 0.5)
        assert [turns.find(name)[0] for name in "abc"] == [0, 1, 2]
        assert turns.find("d") is None
        takes[1].cancel()
        await until(lambda: turns.waiting == 1)
        assert turns.find("c")[0] == 1
        await turns.closed()
        await asyncio.gather(*takes, return_exceptions=True)

    asyncio.run(main())


def test_who_leaves_while_waiting_is_dropped_and_never_runs():
    async def main():
        turns, ran = Turns(4, 10), []
        go = threading.Event()
        first = asyncio.create_task(turns.take(go.wait))
        await until(lambda: turns.running)
        second = asyncio.create_task(turns.take(lambda: ran.append(2)))
        third = asyncio.create_task(turns.take(lambda: ran.append(3)))
        await asyncio.sleep(0)
        second.cancel()
        go.set()
        await asyncio.gather(first, third)
        assert ran == [3]
        assert second.cancelled()

    asyncio.run(main())


def test_who_leaves_while_running_stops_the_run_and_the_next_one_starts():
    async def main():
        turns = Turns(4, 10)
        work, ended = stoppable()
        running = asyncio.create_task(turns.take(work))
        await until(lambda: turns.running)
        running.cancel()
        assert await turns.take(lambda: ended.is_set()) is True
        assert turns.served == 1

    asyncio.run(main())


def test_the_time_is_up_for_a_run_and_not_for_those_who_wait():
    async def main():
        turns = Turns(4, 0.2)
        work, ended = stoppable()
        slow = asyncio.create_task(turns.take(work))
        slow_too = asyncio.create_task(turns.take(work))
        quick = asyncio.create_task(turns.take(lambda: "done"))
        for each in (slow, slow_too):
            with pytest.raises(SlowError):
                await each
        assert await quick == "done"  # it waited 0.4 s, and ran for less
        assert ended.is_set()

    asyncio.run(main())


def test_closing_stops_what_runs_and_sends_away_who_waits():
    async def main():
        before = threading.enumerate()
        turns = Turns(4, 10)
        work, ended = stoppable()
        takes = [asyncio.create_task(turns.take(work)) for _ in range(3)]
        await until(lambda: turns.running)
        await turns.closed()
        assert ended.is_set()
        for each in takes:
            with pytest.raises(ClosingError):
                await each
        with pytest.raises(ClosingError):
            await turns.take(lambda: None)
        assert set(threading.enumerate()) <= set(before)

    asyncio.run(main())


def test_what_goes_wrong_comes_back_and_the_next_one_runs():
    async def main():
        turns = Turns(4, 10)
        with pytest.raises(ZeroDivisionError):
            await turns.take(lambda: 1 / 0)
        assert await turns.take(lambda: 1) == 1
        assert turns.served == 1

    asyncio.run(main())


class Counted(Turn):
    """Stops itself at one of its looks."""

    def __init__(self, last=None):
        super().__init__("")
        self.last, self.looks = last, 0

    def look(self):
        self.looks += 1
        if self.looks == self.last:
            self.stopped.set()
        super().look()


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
    whole.do(lambda: attnviz.attend(text, model=model))
    before = traces(model)
    with pytest.raises(Left):
        Counted(max(1, int(share * whole.looks))).do(lambda: attnviz.attend(text, model=model))
    assert traces(model) == before
    for one, again in zip(train, attnviz.attend(text, model=model), strict=True):
        assert (one.weights() == again.weights()).all()
