"""Where the parts of a survey are measured: here, or on the machines of a Ray cluster.

Either way each part is measured by the same function, and handed back to who asked: nothing is
shared between machines but what goes over the wire, and only one process writes.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attnviz.analyses.survey.measure import Measured, Meter, Read
from attnviz.errors import InputError, first_line

if TYPE_CHECKING:
    from ray import ObjectRef

Part: TypeAlias = tuple[int, Sequence[Read]]
Done: TypeAlias = tuple[int, Sequence[Read], Measured]
Engine = Literal["local", "ray"]
# What a gRPC server, as Ray's are, must answer at once with settings of its own (RFC 9113, 3.4).
_HELLO, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5), b"\4"
_AHEAD = 2  # parts that wait for each processor of a cluster


def measure_here(meter: Meter, parts: Iterable[Part]) -> Iterator[Done]:
    """Measure one part after the other, in this process."""
    for number, texts in parts:
        yield number, texts, meter.measure(texts)


@contextmanager
def ray_cluster(address: str | None) -> Iterator[Callable[[Meter, Iterable[Part]], Iterator[Done]]]:
    """Yield what measures parts on a Ray cluster, in whatever order they are done.

    What a worker, or a machine with all its workers, was at when it died is measured again.

    Parameters
    ----------
    address : of a cluster; by default the one of this machine, started for this run if none is.

    Raises
    ------
    InputError : Ray is not installed, or no cluster answers there.
    """
    try:
        import ray
    except ImportError:
        raise InputError(
            "Expected Ray, which runs a survey on many machines, but it is not installed. Install "
            "it (pip install 'attnviz[survey]'), or leave --engine out."
        ) from None
    ours = not ray.is_initialized()
    if ours:
        try:
            _expect_answer(address)
            # Ray would tell its makers of a cluster that it starts: nothing leaves unasked.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            with _own_signals():
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"Expected a Ray cluster at {address}, but: {first_line(error)}. Check "
                "--address, and that the cluster is up."
            ) from None
    try:
        yield _measure_on_ray
    finally:
        if ours:
            ray.shutdown()


def _expect_answer(address: str | None) -> None:
    """Raise OSError or ValueError where no cluster answers: Ray itself would ask for minutes."""
    if address not in (None, "auto", "local"):
        host, _, port = str(address).removeprefix("ray://").rpartition(":")
        if not (host and port.isdigit()):
            raise ValueError("it is no HOST:PORT")
        with socket.create_connection((host, int(port)), timeout=5) as peer:
            peer.sendall(_HELLO)
            if peer.recv(9)[3:4] != _SETTINGS:
                raise ValueError("something else answers there")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep who listens to SIGTERM; Ray would end the program in its own way."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _measure_on_ray(meter: Meter, parts: Iterable[Part]) -> Iterator[Done]:
    import ray

    on_gpu = meter.checkpoint.device.type == "cuda"
    task = ray.remote(max_retries=-1, num_cpus=1, num_gpus=int(on_gpu))(_measure_part)
    shared = [ray.put(meter)]  # in a list a reference is handed on, and fetched by who needs it
    at_work: dict[ObjectRef[Measured], Part] = {}

    def finished() -> Iterator[Done]:
        (ref, *_), _ = ray.wait([*at_work], num_returns=1)
        number, texts = at_work.pop(ref)
        try:
            measured = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from None  # as it would be said here
        yield number, texts, measured

    for part in parts:
        while len(at_work) >= _AHEAD * _processors():
            yield from finished()
        at_work[task.remote(shared, part[1])] = part
    while at_work:
        yield from finished()


def _processors() -> int:
    """Return how many processors the cluster has now; machines come and go."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return max(1, int(resources.get("CPU", 1)))


def _measure_part(shared: list[Any], texts: Sequence[Read]) -> Measured:
    """Measure a part in a worker, which fetches the model once."""
    return _fetched(shared[0]).measure(texts)


@lru_cache(maxsize=1)
def _fetched(reference: Any) -> Meter:
    import ray

    found: Meter = ray.get(reference)
    return found
