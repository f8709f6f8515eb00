"""What all results have in common: described and valid fields, a digest, a file, a table."""

from __future__ import annotations

import base64
import hashlib
import html
import inspect
import io
import itertools
import math
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

import numpy as np
import torch
from torch import Tensor

import attnviz
from attnviz.errors import AttnvizError, InputError
from attnviz.runtime import text_as_html
from attnviz.runtime.libraries import copy_to

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Columns = dict[str, Sequence[Any] | np.ndarray[Any, Any]]
Rules = Iterator[tuple[str, bool]]

SAVABLE: dict[str, type[Savable]] = {}  # by the name that a file has for the type
_PRIME = 2**31 - 1
_AT_ONCE = 2**20  # words, an even number
_TOGETHER = 2**24  # words of several tensors, on another device than a CPU
_PLAIN = {str, int, float, bool, type(None)}  # what a sequence writes as it is
_WORDS = {1: torch.uint8, 2: torch.int16}  # of larger numbers int32


def doc(text: str, *, label: bool = False, later: str = "", **keywords: Any) -> Any:
    """Return a field of a result with its description.

    label : whether it labels the rows or the columns of arrays. later : the version that added it,
    where files of older versions lack it. keywords : as in `dataclasses.field`.
    """
    return field(metadata={"doc": text, "label": label, "later": later}, **keywords)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(doc,))
def documented(cls: Any = None, *, eq: bool = False) -> Any:
    """Make a class a frozen dataclass, and list its described fields in its docstring."""
    if cls is None:
        return partial(documented, eq=eq)
    made = dataclass(frozen=True, eq=eq)(cls)
    section = "\n\nAttributes\n----------"
    for each in fields(made):
        if "doc" in each.metadata:
            text = textwrap.fill(each.metadata["doc"], 92, break_on_hyphens=False)
            section += f"\n{each.name} : {each.type}\n{textwrap.indent(text, '    ')}"
    written = inspect.cleandoc(cls.__doc__ or "")
    cls.__doc__ = re.sub(r"(?=\n\nExamples\n-)|\Z", lambda _: section, written, count=1)
    return cls


class Savable:
    """Base of every dataclass that a saved result may hold.

    It cannot be built with fields that do not fit each other: `InputError` names the broken rule.

    Examples
    --------
    >>> import attnviz
    >>> isinstance(attnviz.attend("the train left"), attnviz.Savable)
    True
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Register the type, so that files may name it."""
        super().__init_subclass__(**keywords)
        SAVABLE[cls.__name__] = cls

    def __post_init__(self) -> None:
        self.check()

    def _rules(self) -> Rules:
        """Yield what the fields should have, and if they have it; none is read after a failure."""
        yield from ()

    def _number_rules(self) -> Rules:
        """Yield the rules that read every number: checked on the way to a file and back."""
        yield from ()

    def check(self, *, numbers: bool = False) -> None:
        """Raise InputError where the fields break a rule; `numbers` adds those on every number."""
        for rule, holds in itertools.chain(self._rules(), self._number_rules() if numbers else ()):
            if not holds:
                raise InputError(f"{type(self).__name__} should have {rule}")

    def about(self) -> dict[str, Any]:
        """Return what is known about the result beside its arrays, as types of JSON."""
        return {}

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the result to a file: see `attnviz.save_result`."""
        attnviz.save_result(self, path, force=force)


class Result(Savable):
    """Base of the results that a figure shows.

    If a model was run for a result, its `agreement` says how far it is verified, and knows the
    numbers by their digest. `numpy.asarray(result)` gives the array that `main_array` names, by
    default the first of `to_arrays`.
    """

    main_array: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        report: Any = getattr(self, "agreement", None)
        if report is not None and report.digest is None:
            self._bind(replace(report, digest=self._digest()))

    def _bind(self, report: Any) -> None:
        object.__setattr__(self, "agreement", report)

    def _digest(self) -> str:
        return digest_of(stored(self))

    @property
    def checked_agreement(self) -> Any:
        """The agreement, which fails if the numbers are not those that were checked."""
        report: Any = getattr(self, "agreement", None)
        is_altered = report is not None and report.digest not in (None, self._digest())
        return replace(report, altered=True) if is_altered else report

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the arrays by name, as .npz and .safetensors files hold them."""
        return {name: value for name, value in stored(self).items() if isinstance(value, Tensor)}

    def labels(self) -> dict[str, list[str]]:
        """Return the labels of the arrays' rows and columns, by name."""
        record: Any = self
        labels = (each.name for each in fields(record) if each.metadata.get("label"))
        return {name: list(of) for name in labels if (of := getattr(self, name))}

    def columns_of_table(self) -> Columns:
        """Return the columns of a long table, one row for each number; None where there is none.

        By default these are the numbers of `to_arrays`, one matrix after the other.
        """
        rows = [
            (name, row, column, value)
            for name, values in self.to_arrays().items()
            for row, numbers in enumerate(values.double().reshape(-1, values.shape[-1]).tolist())
            for column, value in enumerate(numbers)
        ]
        names = ("stage", "row", "column", "value")
        return {name: [row[n] for row in rows] for n, name in enumerate(names)}

    def to_frame(self) -> pd.DataFrame:
        """Return a long table, one row for each number, with labels and positions as columns."""
        import pandas as pd

        return pd.DataFrame(self.columns_of_table())

    def plot(self, **keywords: Any) -> Figure:
        """Draw the result, as the function of `attnviz.plot` that takes it."""
        *_, analysis, _ = type(self).__module__.split(".")  # a folder for each
        figure: Figure = getattr(attnviz.plot, analysis)(self, **keywords)
        return figure

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        arrays = self.to_arrays()
        return np.array(arrays[self.main_array or next(iter(arrays))].numpy(), dtype, copy=copy)

    def _repr_html_(self) -> str:
        return as_html(self, self.plot)


def described(result: object, names: str) -> dict[str, Any]:
    """Return attributes of a result by their names, which are apart by blanks; tuples as lists."""
    values = {name: getattr(result, name) for name in names.split()}
    return {name: list(of) if isinstance(of, tuple) else of for name, of in values.items()}


def proof(result: Any) -> dict[str, Any]:
    """Return the notes, the provenance and the agreement of a result of a verified run."""
    return {
        "notes": list(result.notes),
        "provenance": asdict(result.provenance),
        "agreement": result.checked_agreement.about(),
    }


def stacked(dimensions: Mapping[str, Sequence[Any]], numbers: Mapping[str, Tensor]) -> Columns:
    """Return arrays as columns of a long table, given the labels along each of their dimensions.

    Labels that are texts get a second column with their positions, since several may be the same.
    """
    columns: Columns = {}
    shape = [len(labels) for labels in dimensions.values()]
    positions = np.indices(shape).reshape(len(shape), -1)
    for (name, labels), indices in zip(dimensions.items(), positions, strict=True):
        are_texts = bool(labels) and isinstance(labels[0], str)
        if are_texts:
            columns[f"{name}_position"] = indices
        columns[name] = np.array(labels, dtype=object if are_texts else None)[indices]
    return columns | {name: column(array) for name, array in numbers.items()}


def finite(data: Any, digits: int | None = None) -> Any:
    """Return data of JSON types with None in place of NaN and infinity; `digits` rounds them."""
    if isinstance(data, dict):
        return {name: finite(value, digits) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value, digits) for value in data]
    if not isinstance(data, float):
        return data
    return (data if digits is None else round(data, digits)) if math.isfinite(data) else None


def column(values: Tensor) -> list[float | None] | np.ndarray[Any, Any]:
    """Return the numbers of a tensor, and None in place of NaN."""
    numbers = values.flatten()
    if numbers.isnan().any():
        return [None if value != value else value for value in numbers.tolist()]
    return numbers.double().numpy()


def wide_table(values: Tensor, rows: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return one map as a table of queries × keys, as `seaborn.heatmap` takes it."""
    import pandas as pd

    index, names = pd.Index(rows, name="query"), pd.Index(columns, name="key")
    return pd.DataFrame(values.numpy(), index=index, columns=names)


def as_html(renderable: Any, plot: Callable[..., Any]) -> str:
    """Return what a notebook shows: the figure, if there is one, above what rich prints."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    text, file = text_as_html(renderable), io.BytesIO()
    try:
        drawn = plot(width=120)
        figure = drawn if isinstance(drawn, Figure) else drawn.figure
        figure.savefig(file, format="png", dpi=144)  # screens have 96, or more
    except AttnvizError:
        return text
    plt.close(figure)  # a notebook would show it once more
    width, alt = round(figure.get_size_inches()[0] * 96), html.escape(repr(renderable))
    data = base64.b64encode(file.getvalue()).decode("ascii")
    image = f'<img width="{width}" alt="{alt}" src="data:image/png;base64,{data}">'
    return f"{image}<details><summary>Details</summary>{text}</details>"


def fits(tensor: Tensor | None, *sizes: Collection[int]) -> bool:
    """Return whether each dimension has one of the sizes that it may have; None has any."""
    if tensor is None:
        return True
    return tensor.dim() == len(sizes) and all(
        size in possible for size, possible in zip(tensor.shape, sizes, strict=True)
    )


def one_each(count: int, entries: Iterable[Sequence[Any] | None]) -> bool:
    """Return whether each sequence that is not None has `count` entries."""
    return all(sequence is None or len(sequence) == count for sequence in entries)


def is_image(image: Tensor | None) -> bool:
    """Return whether a tensor is an RGB image of bytes, (H, W, 3), or None."""
    some = range(1, 2**31)
    return image is None or (image.dtype == torch.uint8 and fits(image, some, some, {3}))


def digest_of(values: Mapping[str, Any]) -> str:
    """Return the digest of the fields of a result, which its agreement and its notes are not in."""
    apart = ("agreement", "agreements", "notes")
    return digests([{name: value for name, value in values.items() if name not in apart}])[0]


def digests(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a digest of each group of named values: tensors, tuples, records and plain values.

    By it a report knows the numbers that it checked. It is computed where the tensors are, and the
    same on every device, because sums of integers are exact. It shows a change, not an attack:
    anyone who can write the numbers can also write the digest. The numbers of all groups are copied
    from the device together.
    """
    tensors: list[Tensor] = []
    known: dict[int, tuple[str, slice]] = {}  # records; layers share an axis, texts a projection
    described = [(len(tensors), _words(one, tensors, known), len(tensors)) for one in several]
    unique = {id(tensor): tensor for tensor in tensors}  # the texts of a batch share weights
    sums = dict(zip(unique, sums_of_words([*unique.values()]), strict=True))
    numbers = [sums[id(tensor)] for tensor in tensors]
    return [
        hashlib.sha256(repr((text, numbers[start:end])).encode()).hexdigest()[:16]
        for start, text, end in described
    ]


def _words(value: Any, tensors: list[Tensor], known: dict[int, tuple[str, slice]]) -> str:
    """Return a value in words, and append its tensors. `known` are the records so far, by id."""
    kind, words = type(value), partial(_words, tensors=tensors, known=known)
    if kind in _PLAIN:
        return repr(value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return repr((str(value.dtype), tuple(value.shape)))
    if isinstance(value, tuple | list):
        if _PLAIN.issuperset(map(type, value)):
            return repr(list(value))
        return f"[{', '.join(map(words, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join([f'{name!r}: {words(item)}' for name, item in value.items()])}}}"
    if not is_dataclass(value):
        return repr(value)
    if id(value) in known:
        text, part = known[id(value)]
        tensors.extend(tensors[part])
        return text
    before = len(tensors)
    when = "saved", "recomputed"  # of a report that was loaded
    inner = {name: one for name, one in stored(value).items() if name not in when}
    text = f"({kind.__name__!r}, {words(inner)})"
    known[id(value)] = text, slice(before, len(tensors))
    return text


def stored(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name; those added later only where they are set."""
    values = {one: getattr(record, one.name) for one in fields(record)}
    return {
        one.name: value
        for one, value in values.items()
        if not one.metadata.get("later") or value not in ((), None)
    }


def sums_of_words(tensors: Sequence[Tensor]) -> list[int]:
    """Return a sum over the bits of each tensor, as integers of at most 32 bits.

    Each word is added to a key, and neighbors are multiplied: NH, the hash of UMAC (Black et al.
    1999). Sums of integers wrap around.
    """
    parts: list[tuple[int, Tensor]] = []
    for n, tensor in enumerate(tensors):
        words = tensor.detach().contiguous()  # one number may have any stride, which view refuses
        words = words.as_strided((words.numel(),), (1,))
        words = words.view(_WORDS.get(tensor.dtype.itemsize, torch.int32))
        if count := words.numel():
            some = torch.split(words, _AT_ONCE) if count > _AT_ONCE else [words]
            parts += [(n, part) for part in some]
    sums = [0] * len(tensors)
    for device in dict.fromkeys(part.device for _, part in parts):
        here = [(n, part) for n, part in parts if part.device == device]
        # On a CPU numpy is faster, and one after the other. A device is waited for once.
        totals = (_by_numpy if device.type == "cpu" else _on_device)([part for _, part in here])
        for (n, _), total in zip(here, totals, strict=True):
            sums[n] = sums[n] * _PRIME + total
    return [(total + 2**63) % 2**64 - 2**63 for total in sums]


def _by_numpy(parts: Sequence[Tensor]) -> list[int]:
    """Return the sum of the words of each part; a last word without a neighbor has the last key."""
    keys = _keys("cpu").numpy()

    def total(part: Tensor) -> int:
        words = part.numpy()
        keyed = words + keys[: words.size]
        pairs = int(keyed[: words.size // 2 * 2 : 2].dot(keyed[1::2]))
        return pairs + (int(keys[-1]) * int(keyed[-1]) if words.size % 2 else 0)

    if sum(map(len, parts)) < _AT_ONCE:  # to start threads would take longer
        return [*map(total, parts)]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return [*pool.map(total, parts)]


def _on_device(parts: Sequence[Tensor]) -> list[int]:
    """Return the same sums, all parts together."""
    keys, found = _keys(str(parts[0].device)), []
    lengths = itertools.accumulate(map(len, parts))
    blocks = itertools.groupby(zip(parts, lengths, strict=True), lambda one: one[1] // _TOGETHER)
    for _, block in blocks:
        some = [part for part, _ in block]
        nothing = some[0].new_zeros(1)
        words = [w for part in some for w in (part, nothing[: len(part) % 2])]
        added = [k for part in some for k in (keys[: len(part)], keys[-1:][: len(part) % 2])]
        keyed = torch.cat(words) + torch.cat(added)
        ends = torch.tensor([(len(part) + 1) // 2 for part in some], device="cpu").cumsum(0) - 1
        found.append((keyed[::2] * keyed[1::2]).cumsum(0)[copy_to(keyed.device, ends)])
    totals = torch.split(torch.cat(found).cpu(), [len(total) for total in found])
    return [int(n) for total in totals for n in total.diff(prepend=total.new_zeros(1)).tolist()]


@cache
def _keys(device: str) -> Tensor:
    """Return a key of 31 bits for each word, the same on every device."""
    numbers = torch.arange(1, _AT_ONCE + 1, dtype=torch.int64, device=device)
    return (numbers * numbers % _PRIME * 48271 + numbers * 16807) % _PRIME
