"""Measure the heads of a model on texts, images or sounds, beside what chance gives.

Parts of a corpus are measured in this process or on a Ray cluster; only this process writes.
"""

from __future__ import annotations

import io
import logging
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.survey.corpus import CorpusText, Encoding, batches
from attnviz.analyses.survey.result import NOUNS, HeadName
from attnviz.capture.batched import BatchedAttention, capture_batch, capture_matrices
from attnviz.errors import InputError, ModelError, first_line, require
from attnviz.heads import STATISTICS, Positions, Statistic, WeightStatistics, largest
from attnviz.inputs import placed
from attnviz.inputs.text import pad_texts, padded, tokenizer_of
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import AttentionRecord, Axis, LinearAttention, row_shares
from attnviz.runtime.libraries import devices, one_device, release_unused

if TYPE_CHECKING:
    from ray import ObjectRef

# What fits the caches of a CPU; what keeps a GPU busy.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}  # positions of a batch, with padding
_KEY_ORDER = 1  # the stream of the random numbers of key orders, apart from that of signs

Attention: TypeAlias = "BatchedAttention | _SignedWeights"
OnAttention: TypeAlias = "Callable[[Attention, Positions, Positions | None], None]"
Parts: TypeAlias = Iterable[Sequence[Any]]  # texts or media
MeasureParts: TypeAlias = "Callable[[HeadStatistics, Parts], Iterator[TextStatistics]]"
Engine = Literal["local", "ray"]
_AHEAD = 2  # parts that wait for each processor of a cluster
# Ray would report the start of a cluster to its makers: nothing is sent unasked.
_NO_REPORT = {"RAY_USAGE_STATS_ENABLED": "0"}
# By default, Ray tries for minutes to reach an address where something else answers.
_ONE_ATTEMPT = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": "5"}


@dataclass(frozen=True, eq=False)
class TextStatistics:
    """Statistics of K heads on N texts, each (N, K, S), in the order of `HeadStatistics`."""

    numbers: tuple[int, ...]  # of the texts in their corpus
    tokens: tuple[int, ...]  # how many each text has
    value: Tensor  # as the model reads the text; NaN where it has no token of the kind
    shuffled: Tensor  # of the tokens in another order, special tokens in place
    even: Tensor  # of uniform weights over the keys that each query may read, with the same sum
    shuffled_keys: Tensor  # of each query in a random order of these keys, the same in all heads
    # The largest from those of the model's own weights, as shares of the most; NaN without, (K,).
    differences: Tensor
    compared: int  # the number of compared texts


class _Measure:
    """Measures attentions of N texts or of one medium, and what chance gives in their place.

    queries : of the texts, and of their tokens in another order if there are twice as many.
    numbers : of the texts. keys : by default the queries.
    """

    def __init__(
        self,
        heads: HeadStatistics,
        numbers: Sequence[int],
        queries: Positions,
        keys: Positions | None,
    ) -> None:
        self._numbers, self._seed, statistics = numbers, heads.seed, heads.statistics
        self._of_all, self._of_texts, self._of_first = (
            WeightStatistics(queries[:count], statistics, keys)
            for count in (len(queries.ids), len(numbers), 1)
        )
        self._signed = any(one.signed for one in statistics)
        self._limits = largest(self._of_first.keys, statistics).to(queries.ids.device)
        self._order: tuple[slice, Tensor, Tensor] | None = None  # of the keys that may be read

    def __call__(self, attention: Attention) -> tuple[Tensor, ...]:
        """Return the statistics (N, H, S) of weights, of even weights and of shuffled keys.

        Last come the largest differences of each head from the statistics of the model's own
        weights, as shares of the largest values, (H,); NaN if it does not return them.
        """
        real = self._of_texts.keys.real
        sum_to_1 = attention.sinks is None and not self._signed

        def sizes(rows: slice) -> Tensor:
            """Return the weights of each query, or their sizes, (N, H, R, n)."""
            weights = attention.weights(rows)[: len(real)]
            return weights.abs() if self._signed else weights

        def readable_keys(rows: slice) -> Tensor:
            """Return which keys a query may read, (N, R, n)."""
            return attention.readable(rows)[: len(real)] & real[:, None]

        def even_weights(rows: slice) -> Tensor:
            """Return equal weights for all keys that a query may read, (N, 1 or H, R, n)."""
            keys = readable_keys(rows)
            uniform = (keys / keys.sum(-1, keepdim=True).clamp(min=1))[:, None]
            return uniform if sum_to_1 else uniform * sizes(rows).sum(-1, keepdim=True)

        def shuffled_keys(rows: slice) -> Tensor:
            """Return the weights of each query in another order, (N, H, R, n)."""
            weights, keys = sizes(rows), readable_keys(rows)
            known = self._order  # one order serves all layers that read the same keys
            if known is None or known[0] != rows or not torch.equal(known[1], keys):
                order = key_order(keys, real, rows, self._numbers, self._seed)
                self._order = known = rows, keys, order
            return weights.gather(-1, known[2][:, None].expand_as(weights))

        values, of_keys = self._of_all(attention.weights), self._of_texts(shuffled_keys)
        even = self._of_texts(even_weights).expand_as(of_keys)
        differences = torch.full(values.shape[1:2], torch.nan, device=values.device)
        if attention.model_weights is not None:
            ours, theirs = values[0], self._of_first(attention.model_weights)[0]
            shares = ((ours - theirs).abs() / self._limits).nan_to_num(0.0)
            differences = shares.masked_fill(ours.isnan() != theirs.isnan(), torch.inf).amax(-1)
        return values, even, of_keys, differences


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Measures the heads of one model on texts."""

    checkpoint: Checkpoint
    records: Sequence[AttentionRecord]  # the attentions of any one text
    seed: int = 0  # of the shuffles
    statistics: Sequence[Statistic] = STATISTICS
    separate: bool = False  # whether the model joins or pools texts, so that each runs alone

    @cached_property
    def heads(self) -> tuple[HeadName, ...]:
        """The heads, in the order in which the model runs."""
        return tuple(
            HeadName(record.stack, record.layer, head)
            for record in self.records
            for head in range(record.heads)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the statistics."""
        return tuple(statistic.name for statistic in self.statistics)

    def measure(self, texts: Sequence[Any]) -> TextStatistics:
        """Measure every head on each text; other texts in the batch change only the rounding."""
        lengths = [*map(self._length, texts)]
        order = self._batches(lengths)
        measured = [self._measure_batch([texts[index] for index in batch]) for batch in order]
        indices = [index for batch in order for index in batch]
        positions = torch.tensor(indices, device="cpu").argsort()
        release_unused()
        *statistics, differences = zip(*measured, strict=True)
        value, shuffled, even, keys = (torch.cat(batch)[positions] for batch in statistics)
        if self.separate:
            shuffled = torch.cat([self._measure_batch([self._shuffle(one)])[0] for one in texts])
        return TextStatistics(
            numbers=tuple(text.number for text in texts),
            tokens=tuple(lengths),
            value=value,
            shuffled=shuffled,
            even=even,
            shuffled_keys=keys,
            differences=torch.stack(differences).amax(0),
            compared=0 if self.records[0].signed else len(order),
        )

    def _batches(self, lengths: Sequence[int], copies: int = 2) -> list[list[int]]:
        """Return which texts are run together, so many times each."""
        if self.separate or self.records[0].signed:  # the second: without padding
            return [[index] for index in range(len(lengths))]
        most = _BATCH_TOKENS.get(self.checkpoint.device.type, _BATCH_TOKENS["cuda"])
        return batches(lengths, most // copies)

    def batched(self, texts: Sequence[Any]) -> list[list[Any]]:
        """Return texts as they are run together, once each."""
        order = self._batches([*map(self._length, texts)], 1)
        return [[texts[index] for index in batch] for batch in order]

    def _length(self, text: Any) -> int:
        return len(text)

    def _measure_batch(self, texts: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return statistics (N, K, S) of texts, shuffled texts, even weights and shuffled keys.

        Last come the differences, (K,). The first text, the shortest and so the one with most
        padding, is compared.
        """
        N, numbers = len(texts), [text.number for text in texts]
        measures: dict[tuple[Positions, Positions | None], _Measure] = {}
        layers: list[tuple[Tensor, ...]] = []

        def add(attention: Attention, queries: Positions, keys: Positions | None) -> None:
            if (queries, keys) not in measures:
                measures[queries, keys] = _Measure(self, numbers, queries, keys)
            layers.append(measures[queries, keys](attention))

        self.run(texts, add, shuffled=True)
        *statistics, differences = zip(*layers, strict=True)
        both, even, of_keys = (torch.cat(of_layers, dim=1).cpu() for of_layers in statistics)
        # Patches and frames have one order.
        shuffled = both[N:] if len(both) > N else torch.full_like(both, torch.nan)
        return both[:N], shuffled, even, of_keys, torch.cat(differences).cpu()

    def run(
        self, texts: Sequence[Any], on_attention: OnAttention, *, shuffled: bool = False
    ) -> None:
        """Run the model; pass on each attention with its queries and its keys, if others."""
        encodings = [text.encoding for text in texts]
        if shuffled and not self.separate:
            encodings += [self._shuffle(text).encoding for text in texts]
        inputs, tokens = self.batch(encodings)
        known = {tokens.ids.shape[1]: tokens}

        def pass_on(attention: Any) -> None:
            if not self.separate:
                return on_attention(attention, tokens, None)
            for count in (sizes := (attention.query.shape[2], attention.key.shape[2])):
                ids = torch.arange(count, device=tokens.ids.device) - (count << 32)  # of no token
                numbered = replace(Positions.of(Axis.numbered(count), ids.device), ids=ids[None])
                known.setdefault(count, numbered)
            queries, keys = (known[count] for count in sizes)
            return on_attention(attention, queries, None if queries is keys else keys)

        self._capture(inputs, pass_on)

    def _shuffle(self, text: Any) -> Any:
        return replace(text, encoding=shuffle(text.encoding, f"{self.seed} {text.number}"))

    def _capture(
        self, inputs: Mapping[str, Tensor], on_attention: Callable[[Attention], None]
    ) -> None:
        module, alone = self.checkpoint.module, self.separate
        if not self.records[0].signed:
            capture_batch(module, inputs, self.records, on_attention, separate=alone)
            return
        records = cast("Sequence[LinearAttention]", self.records)
        for record, M in zip(records, capture_matrices(module, inputs, records), strict=True):
            shares = (row_shares(M) * M.sign()).to(self.checkpoint.device)
            on_attention(_SignedWeights(shares, record.visible is not None))

    def batch(self, encodings: Sequence[Encoding]) -> tuple[dict[str, Tensor], Positions]:
        """Return texts as one padded input of the model, and their positions."""
        inputs = placed(self.checkpoint, pad_texts(self.checkpoint, encodings))
        ids = inputs["input_ids"]
        zeros = [[0] * len(encoding["input_ids"]) for encoding in encodings]
        special, asks, holds = (
            padded([one.get(name, of) for one, of in zip(encodings, zeros, strict=True)], 0)
            for name in ("special_tokens_mask", "asks", "holds")
        )
        marks = special.bool(), padded(zeros, 1) == 0, asks, holds
        special, real, asks, holds = (one.to(ids.device) for one in marks)
        punctuation = torch.isin(ids, self._punctuation_ids) & real & ~special
        return inputs, Positions(ids, real, special, punctuation, asks, holds)

    @cached_property
    def _punctuation_ids(self) -> Tensor:
        """The ids of periods and commas, with or without a mark of a blank before them."""
        vocabulary = tokenizer_of(self.checkpoint).get_vocab().items()
        ids = {id for token, id in vocabulary if token.lstrip("\u0120\u2581") in (".", ",")}
        return torch.tensor(sorted(ids), device=self.checkpoint.device)


def shuffle(encoding: Encoding, seed: str) -> Encoding:
    """Return the same tokens in another order; special tokens stay where they are."""
    ids = list(encoding["input_ids"])
    special = encoding["special_tokens_mask"]
    places = [index for index in range(len(ids)) if not special[index]]
    sources = places.copy()
    random.Random(seed).shuffle(sources)
    for place, source in zip(places, sources, strict=True):
        ids[place] = encoding["input_ids"][source]
    return {**encoding, "input_ids": ids}


def random_numbers(
    seed: int, texts: Iterable[tuple[int, int, int]], *, stream: int = 0
) -> Iterator[NDArray[np.uint64]]:
    """Yield numbers that follow from the seed and from the number of a text alone.

    texts : the number of each text, the steps of four numbers before its first, and how many.
    """
    generator = np.random.Philox(key=[seed, 0])
    state: Any = generator.state  # to set it takes a tenth of the time of another generator
    for number, start, count in texts:
        state["state"]["key"][1] = number
        state["state"]["counter"][:] = (start, 0, 0, stream)
        generator.state = state
        yield generator.random_raw(count)


def key_order(
    readable: Tensor, real: Tensor, rows: slice, numbers: Sequence[int], seed: int
) -> Tensor:
    """Return a random order of the readable keys of each query in some rows, (N, R, T).

    Other keys stay in place. The order follows from the seed, the number of the text, its length
    and the row alone.

    readable : (N, R, T). real : False for padding, (N, T). numbers : of the texts.
    """
    N, R, T = readable.shape
    scores = np.zeros((N, R, T), np.int64)
    lengths = real.sum(-1).tolist()
    steps = [-(-length // 4) for length in lengths]  # Philox makes four numbers at each step
    texts = [(k, rows.start * n, R * 4 * n) for k, n in zip(numbers, steps, strict=True)]
    drawn = random_numbers(seed, texts, stream=_KEY_ORDER)
    for of_text, numbers_of_text, length in zip(scores, drawn, lengths, strict=True):
        of_text[:, :length] = numbers_of_text.view(np.int64).reshape(R, -1)[:, :length]
    last = torch.iinfo(torch.int64).max
    shuffled = torch.from_numpy(scores).to(readable.device).masked_fill(~readable, last)
    places = (~readable).long().argsort(dim=-1, stable=True)  # the readable keys first
    return torch.empty_like(places).scatter_(-1, places, shuffled.argsort(dim=-1, stable=True))


@dataclass(frozen=True, eq=False)
class _SignedWeights:
    """One linear attention of N texts, as `BatchedAttention` shows one with a softmax."""

    shares: Tensor  # of M in the sizes of its rows, with their signs, (N, H, T, T)
    causal: bool
    sinks: None = None
    model_weights: None = None

    def weights(self, rows: slice) -> Tensor:
        """Return the weights of some queries, (N, H, R, T)."""
        return self.shares[:, :, rows]

    def readable(self, rows: slice) -> Tensor:
        """Return which keys each query may read, (N, R, T)."""
        every = torch.ones_like(self.shares[:, 0], dtype=torch.bool)
        return (every.tril() if self.causal else every)[:, rows]


class MediaHeads(HeadStatistics):
    """Measures the heads of a model on images or sounds, one after the other."""

    def _length(self, text: Any) -> int:
        known = [len(axes[0]) for axes in text.batch.axes.values()]
        return sum(known) or self.records[0].query.shape[1]

    def run(
        self, texts: Sequence[Any], on_attention: OnAttention, *, shuffled: bool = False
    ) -> None:
        """Run the model on one medium; see `HeadStatistics.run`."""
        (medium,) = texts
        known: dict[Axis, Positions] = {}

        def pass_on(attention: BatchedAttention) -> None:
            record = attention.known
            axes = medium.axis(record.query_axis), medium.axis(record.key_axis)
            sizes = attention.query.shape[2], attention.key.shape[2]
            if tuple(map(len, axes)) != sizes:
                raise ModelError(
                    f"{attention.known.path} reads {sizes[1]} positions of {medium.name}, not "
                    f"{len(axes[1])}. Choose a model whose {NOUNS[medium.kind]} all have the same "
                    "size."
                )
            for axis in axes:
                if axis not in known:
                    known[axis] = Positions.of(axis, attention.query.device)
            queries, keys = (known[axis] for axis in axes)
            on_attention(attention, queries, None if queries is keys else keys)

        capture_batch(self.checkpoint.module, medium.batch.inputs, self.records, pass_on)


def measure_here(heads: HeadStatistics, parts: Parts) -> Iterator[TextStatistics]:
    """Measure one part after the other, in this process."""
    return map(heads.measure, parts)


@contextmanager
def ray_cluster(model: torch.nn.Module) -> Iterator[MeasureParts]:
    """Yield a function that measures parts on a Ray cluster, and yields them in their order.

    A part whose worker or machine dies is measured again. The cluster is that at RAY_ADDRESS, or of
    this machine, started for this run if there is none. InputError if it cannot be used.
    """
    if len(places := devices(model)) > 1:
        raise InputError(
            f"A model on {', '.join(map(str, places))} cannot be sent to a Ray cluster. Load it on "
            "one device, or leave out --engine ray (engine='ray')."
        )
    address = os.environ.get("RAY_ADDRESS")
    for name, value in {**_NO_REPORT, **(_ONE_ATTEMPT if address else {})}.items():
        os.environ.setdefault(name, value)  # Ray reads some of them when it is imported
    require("Ray", "survey", "A survey on many machines needs")
    import ray

    started_here, sigterm = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    if started_here:
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"No Ray cluster answers at {address or 'this machine'}: {first_line(error)}. "
                "Check RAY_ADDRESS, and that the cluster is up."
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


def _measure_on_ray(heads: HeadStatistics, parts: Parts) -> Iterator[TextStatistics]:
    import ray

    kind = "GPU" if heads.checkpoint.device.type == "cuda" else "CPU"
    task = ray.remote(max_retries=-1, num_cpus=1, num_gpus=int(kind == "GPU"))(_measure_part)
    # A reference in a list is passed on, and fetched by each worker.
    shared = [ray.put(pack(heads))]
    running: deque[ObjectRef[TextStatistics]] = deque()

    def first() -> TextStatistics:
        try:
            return cast("TextStatistics", ray.get(running.popleft()))
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from None  # as a local run would raise it

    for part in parts:
        processors = int(ray.cluster_resources().get(kind, 1))  # machines join and leave
        while len(running) >= _AHEAD * max(1, processors):
            yield first()
        running.append(task.remote(shared, part))
    while running:
        yield first()


def _measure_part(shared: list[Any], texts: Sequence[CorpusText]) -> TextStatistics:
    return _fetch(shared[0]).measure(texts)


@lru_cache(maxsize=1)  # a worker fetches the model once
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
