"""Several threads give the same numbers, and no work continues after an error."""

import threading

import pytest
import torch
from full_maps import use_loops

from attnviz.results.attention_record import MaskRule
from attnviz.streaming import ScoreSpec, attend, cpu
from attnviz.streaming.cpu import on_threads


@pytest.fixture
def threads():
    """Set the number of torch threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("H", [1, 2, 6])
def test_several_threads_give_the_result_of_one(H, threads, monkeypatch):
    use_loops(monkeypatch, 4, 500)
    torch.manual_seed(0)
    Q, K, V = torch.randn(3, H, 50, 8)
    scoring = ScoreSpec(Q, K, 0.5, MaskRule(after=0))
    found = []
    for count in (1, 3, 3):
        threads(count)
        found.append(attend(scoring, V, cells=7, top=3, marked=torch.arange(50) < 5))
    (one, alone), (A, three), (again, once_more) = found
    torch.testing.assert_close(A, one, atol=1e-6, rtol=1e-6)
    assert torch.equal(A, again)
    for name, number in vars(three).items():
        number = torch.as_tensor(number)
        assert torch.equal(number, torch.as_tensor(getattr(once_more, name))), name
        close = torch.as_tensor(getattr(alone, name))
        torch.testing.assert_close(number, close, atol=1e-6, rtol=1e-6)


def test_tasks_run_alone_and_in_order(threads):
    threads(2)

    def look(stop):
        return torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with torch.inference_mode():
        assert on_threads([look] * 3) == [(1, False, True)] * 3
    assert on_threads([look] * 3) == [(1, False, False)] * 3
    assert torch.get_num_threads() == 2


def test_reused_buffers_work_in_every_mode(threads, monkeypatch):
    use_loops(monkeypatch, 4, 500)
    for count in (1, 2):
        threads(count)
        Q, K, V = torch.randn(3, 4, 50, 8)
        with torch.inference_mode():
            A, _ = attend(ScoreSpec(Q, K, 0.5), V)
        for grad in (False, True):
            again, _ = attend(ScoreSpec(Q.requires_grad_(grad), K, 0.5), V)
            assert torch.equal(A, again)
            assert not again.requires_grad


def test_an_error_stops_the_others(threads):
    threads(2)
    started, stopped = threading.Event(), threading.Event()

    def wait_for_it(stop):
        started.set()
        if stop.wait(30):
            stopped.set()

    def fail(stop):
        assert started.wait(120)  # else the other is taken out of the queue
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        on_threads([fail, wait_for_it])
    assert stopped.is_set()


@pytest.mark.parametrize("what", [torch.nan, torch.inf])
def test_nan_is_not_hidden(what, monkeypatch):
    """The loops fall back to torch, and the summary contains the same NaN."""
    Q, K, V = torch.randn(3, 2, 50, 8)
    Q[0, 7, 3] = what
    alike = []
    for least in (0, 2**62):
        monkeypatch.setattr(cpu, "LEAST", least)
        _, found = attend(ScoreSpec(Q, K, 0.5), V)
        alike.append(torch.cat([found.received[1], found.mean[1].flatten()]))
        assert found.lse[0, 7].isnan()
        rows = torch.arange(50) != 7
        assert found.lse[0, rows].isfinite().all()
        assert found.entropy[1].isfinite().all()
    assert torch.equal(*alike)  # no trace of the interrupted loops remains
