"""Where the parts of a survey are measured: in this process, or on a Ray cluster.

Both ways measure a part by the same function and return it to this process, which alone writes.
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

from attnviz.analyses.survey.corpus import TokenizedText
from attnviz.analyses.survey.measure import HeadStatistics, TextStatistics
from attnviz.errors import InputError, first_line

if TYPE_CHECKING:
    from ray import ObjectRef

Part: TypeAlias = tuple[int, Sequence[TokenizedText]]
MeasuredPart: TypeAlias = tuple[int, Sequence[TokenizedText], TextStatistics]
Engine = Literal["local", "ray"]
_AHEAD = 2  # parts that wait for each processor of a cluster
# Ray would report the start of a cluster to its makers: nothing is sent unasked.
_NO_REPORT = {"RAY_USAGE_STATS_ENABLED": "0"}
# With its own settings, Ray tries for minutes to reach an address where something else answers.
_ONE_ATTEMPT = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": "5"}


def measure_here(heads: HeadStatistics, parts: Iterable[Part]) -> Iterator[MeasuredPart]:
    """Measure one part after the other, in this process."""
    for number, texts in parts:
        yield number, texts, heads.measure(texts)


@contextmanager
def ray_cluster(
    address: str | None,
) -> Iterator[Callable[[HeadStatistics, Iterable[Part]], Iterator[MeasuredPart]]]:
    """Yield a function that measures parts on a Ray cluster; they come in the order of completion.

    A part whose worker or machine dies is measured again.

    Parameters
    ----------
    address : str, optional
        Of a cluster; by default the one of this machine, started for this run if there is none.

    Raises
    ------
    InputError
        Ray is not installed, or no cluster answers at the address.
    """
    known_address = address not in (None, "auto", "local")
    for name, value in {**_NO_REPORT, **(_ONE_ATTEMPT if known_address else {})}.items():
        os.environ.setdefault(name, value)  # Ray reads some of them when it is imported
    try:
        import ray
    except ImportError:
        raise InputError(
            "Expected Ray, which runs a survey on many machines, but it is not installed. Install "
            "it (pip install 'attnviz[survey]'), or leave --engine out."
        ) from None
    started_here = not ray.is_initialized()
    if started_here:
        try:
            if known_address:
                _check_address(str(address))
            with _unchanged_sigterm():
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"Expected a Ray cluster at {address}, but: {first_line(error)}. Check "
                "--address, and that the cluster is up."
            ) from None
    try:
        yield _measure_on_ray
    finally:
        if started_here:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Raise OSError or ValueError if nothing listens at the address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        raise ValueError("the address is not HOST:PORT")
    socket.create_connection((host, int(port)), timeout=5).close()


@contextmanager
def _unchanged_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces by its own."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _measure_on_ray(heads: HeadStatistics, parts: Iterable[Part]) -> Iterator[MeasuredPart]:
    import ray

    on_gpu = heads.checkpoint.device.type == "cuda"
    task = ray.remote(max_retries=-1, num_cpus=1, num_gpus=int(on_gpu))(_measure_part)
    shared = [ray.put(heads)]  # a reference in a list is passed on, and fetched by each worker
    running: dict[ObjectRef[TextStatistics], Part] = {}

    def finished() -> Iterator[MeasuredPart]:
        (reference, *_), _ = ray.wait([*running], num_returns=1)
        number, texts = running.pop(reference)
        try:
            statistics = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from None  # as a local run would raise it
        yield number, texts, statistics

    for part in parts:
        while len(running) >= _AHEAD * _processors():
            yield from finished()
        running[task.remote(shared, part[1])] = part
    while running:
        yield from finished()


def _processors() -> int:
    """Return how many processors the cluster has now; machines join and leave."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return max(1, int(resources.get("CPU", 1)))


def _measure_part(shared: list[Any], texts: Sequence[TokenizedText]) -> TextStatistics:
    """Measure a part in a worker, which fetches the model once."""
    return _fetch(shared[0]).measure(texts)


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> HeadStatistics:
    import ray

    heads: HeadStatistics = ray.get(reference)
    return heads
