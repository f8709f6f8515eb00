"""Measure the parts of a survey in this process or on a Ray cluster, by the same function.

Only this process writes.
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
from attnviz.analyses.survey.statistics import HeadStatistics, TextStatistics
from attnviz.errors import InputError, first_line

if TYPE_CHECKING:
    from ray import ObjectRef

Part: TypeAlias = tuple[int, Sequence[TokenizedText]]
MeasuredPart: TypeAlias = tuple[int, Sequence[TokenizedText], TextStatistics]
Engine = Literal["local", "ray"]
_AHEAD = 2  # parts that wait for each processor of a cluster
# Ray would report the start of a cluster to its makers: nothing is sent unasked.
_NO_REPORT = {"RAY_USAGE_STATS_ENABLED": "0"}
# By default, Ray tries for minutes to reach an address where something else answers.
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

    address : of a cluster; by default the one of this machine, started for this run if there is
    none. InputError if Ray is not installed, or no cluster answers at the address.
    """
    known_address = address not in (None, "auto", "local")
    for name, value in {**_NO_REPORT, **(_ONE_ATTEMPT if known_address else {})}.items():
        os.environ.setdefault(name, value)  # Ray reads some of them when it is imported
    try:
        import ray
    except ImportError:
        raise InputError(
            "A survey on many machines needs Ray, which is not installed. Install it: pip install "
            "'attnviz[survey]'."
        ) from None
    started_here, sigterm = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    if started_here:
        try:
            if known_address:
                _check_address(str(address))
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"No Ray cluster answers at {address}: {first_line(error)}. Check --address, and "
                "that the cluster is up."
            ) from None
        finally:  # ray.init replaces the handler
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, sigterm)
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
        processors = int(ray.cluster_resources().get("CPU", 1))  # machines join and leave
        while len(running) >= _AHEAD * max(1, processors):
            yield from finished()
        running[task.remote(shared, part[1])] = part
    while running:
        yield from finished()


def _measure_part(shared: list[Any], texts: Sequence[TokenizedText]) -> TextStatistics:
    """Measure a part in a worker, which fetches the model once."""
    return _fetch(shared[0]).measure(texts)


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> HeadStatistics:
    import ray

    heads: HeadStatistics = ray.get(reference)
    return heads
