"""Measure the parts of a survey in this process or on a Ray cluster; only this process writes."""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from attnviz.analyses.survey.corpus import CorpusText
from attnviz.analyses.survey.measure import HeadStatistics, TextStatistics
from attnviz.errors import InputError, first_line, require
from attnviz.models.devices import devices, one_device

if TYPE_CHECKING:
    from ray import ObjectRef

Part: TypeAlias = tuple[int, Sequence[Any]]  # texts or media
MeasuredPart: TypeAlias = tuple[int, Sequence[Any], TextStatistics]
MeasureParts: TypeAlias = Callable[[HeadStatistics, Iterable[Part]], Iterator[MeasuredPart]]
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
def ray_cluster(address: str | None, model: torch.nn.Module) -> Iterator[MeasureParts]:
    """Yield a function that measures parts on a Ray cluster, and yields them in their order.

    A part whose worker or machine dies is measured again.

    address : of a cluster; by default the one of this machine, started for this run if there is
    none. InputError if it cannot be used for this model.
    """
    if len(places := devices(model)) > 1:
        raise InputError(
            f"A model on {', '.join(map(str, places))} cannot be sent to a Ray cluster. Load it on "
            "one device, or leave out --engine ray (engine='ray')."
        )
    known_address = address not in (None, "auto", "local")
    for name, value in {**_NO_REPORT, **(_ONE_ATTEMPT if known_address else {})}.items():
        os.environ.setdefault(name, value)  # Ray reads some of them when it is imported
    require("Ray", "survey", "A survey on many machines needs")
    import ray

    started_here, sigterm = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    if started_here:
        try:
            if known_address:
                host, _, port = str(address).removeprefix("ray://").rpartition(":")
                if not (host and port.isdigit()):
                    raise ValueError("the address is not HOST:PORT")
                socket.create_connection((host, int(port)), timeout=5).close()
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
        if places[0].type == "cuda" and not ray.cluster_resources().get("GPU"):
            raise InputError(
                f"The model is on {places[0]}, and the Ray cluster has no GPU. Load the model with "
                "device='cpu' (--device cpu), or start Ray where the GPUs are (ray start "
                "--num-gpus N)."
            )
        yield _measure_on_ray
    finally:
        if started_here:
            ray.shutdown()


def _measure_on_ray(heads: HeadStatistics, parts: Iterable[Part]) -> Iterator[MeasuredPart]:
    import ray

    kind = "GPU" if heads.checkpoint.device.type == "cuda" else "CPU"
    task = ray.remote(max_retries=-1, num_cpus=1, num_gpus=int(kind == "GPU"))(_measure_part)
    # A reference in a list is passed on, and fetched by each worker.
    shared = [ray.put(pack(heads))]
    running: deque[tuple[Part, ObjectRef[TextStatistics]]] = deque()

    def first() -> MeasuredPart:
        part, reference = running.popleft()
        try:
            return *part, ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from None  # as a local run would raise it

    for part in parts:
        processors = int(ray.cluster_resources().get(kind, 1))  # machines join and leave
        while len(running) >= _AHEAD * max(1, processors):
            yield first()
        running.append((part, task.remote(shared, part[1])))
    while running:
        yield first()


def _measure_part(shared: list[Any], texts: Sequence[CorpusText]) -> TextStatistics:
    """Measure a part in a worker, which fetches the model once."""
    return _fetch(shared[0]).measure(texts)


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> HeadStatistics:
    import ray

    return unpack(ray.get(reference))


def pack(heads: HeadStatistics) -> tuple[bytes, torch.device]:
    """Return a model and its heads as bytes, with the device that it is on."""
    from ray import cloudpickle  # it also pickles classes that are defined in a notebook

    buffer = io.BytesIO()
    torch.save(heads, buffer, pickle_module=cloudpickle)
    return buffer.getvalue(), heads.checkpoint.device


def unpack(packed: tuple[bytes, torch.device]) -> HeadStatistics:
    """Return what was packed, on this worker's own device; InputError where there is none."""
    data, source = packed
    place = one_device(source.type)
    places = {str(source): str(torch.device(place.type, 0) if place.type == "cuda" else place)}
    heads: HeadStatistics = torch.load(io.BytesIO(data), map_location=places, weights_only=False)
    return heads
