"""Ways to spoil a checkpoint, each drawn from a seed: bytes, JSON, tensors, files beside.

A checkpoint is {file name: bytes}; where something else than a file is to lie in its place, it is
a `Path` (a link to it), or what `os` calls that makes it.
"""

import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from transformers import CONFIG_MAPPING

from tests.robustness.lies import BESIDE, NAMED, NAMES, NUMBERS, OTHERS

Spoilt = dict[str, Any]
_INDEX = "model.safetensors.index.json"
OUTSIDE = "outside"  # beside every checkpoint: a folder with files that none may read
CODE = "from pathlib import Path\n(Path(__file__).parent.parent / 'it-ran').touch()\n"

_TYPES = sorted(CONFIG_MAPPING)
_DTYPES = ["F32", "F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "F4", "X9", 3]
# What comes of spoiling again what is spoilt already.
_NOT_AS_IT_WAS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    struct.error,
)


def spoil(files: dict[str, bytes], random: Random) -> tuple[str, Spoilt]:
    """Return what was done to a checkpoint, in two or three words, and its files afterwards."""
    spoilt: Spoilt = dict(files)
    files_of = {kind: kind.split()[-1] for kind in _KINDS if kind.endswith(".json")}
    kinds = [kind for kind in _KINDS if files_of.get(kind, "config.json") in files]
    first, second = random.choices(kinds, [_KINDS[kind][1] for kind in kinds], k=2)
    _KINDS[first][0](spoilt, random)
    if random.random() < 0.95:
        return first, spoilt
    with suppress(*_NOT_AS_IT_WAS):
        _KINDS[second][0](spoilt, random)  # two faults may hide each other
    return "two at once", spoilt


def write(spoilt: Spoilt, folder: Path) -> None:
    """Write a spoilt checkpoint into a new folder."""
    folder.mkdir()
    for name, content in spoilt.items():
        place = folder / name
        place.parent.mkdir(exist_ok=True, parents=True)
        if isinstance(content, bytes):
            place.write_bytes(content)
        elif isinstance(content, Path):
            place.symlink_to(content)
        else:
            content(place)


# --- JSON


def _json(name: str, spoilt: Spoilt, random: Random) -> None:
    """Spoil a JSON file: a value, a key, a named setting, or its bytes."""
    if not isinstance(spoilt.get(name), bytes):
        return
    try:
        content = json.loads(spoilt[name])
    except ValueError:
        return
    places = [*_places(content)]
    how = random.random()
    if (how < 0.45 and name in NAMED) or not places:
        key = random.choice([*NAMED.get(name, {"a": [1]})])
        content[key] = random.choice(NAMED.get(name, {key: [1]})[key])
    elif how < 0.75:
        holder, key = random.choice(places)
        holder[key] = _nasty(random)
    elif how < 0.85:
        holder, key = random.choice(places)
        del holder[key]
    elif how < 0.9:
        (holder, key), (other, its) = random.choice(places), random.choice(places)
        holder[key] = json.loads(json.dumps(other[its]))
    else:
        spoilt[name] = _bytes(spoilt[name], random)
        return
    # What cannot be encoded is escaped, as json does by default.
    spoilt[name] = json.dumps(content).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the holder and the key of every value, however deep; few of the same kind of thing."""
    keys = [*content] if isinstance(content, dict) else range(len(content))
    for key in keys[:40]:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])


def _nasty(random: Random) -> Any:
    value = random.choice(random.choice([NUMBERS, NUMBERS, NAMES, OTHERS]))
    deep: Any = 1
    if random.random() < 0.02:
        for _ in range(900):  # json reads no deeper than the interpreter goes
            deep = [deep]
        return deep
    return json.loads(json.dumps(value))


def _bytes(content: bytes, random: Random) -> bytes:
    """Flip bits, cut, repeat or add."""
    at = random.randrange(len(content) or 1)
    how = random.randrange(7)
    if how < 3:
        changed = bytearray(content)
        for _ in range(random.choice([1, 1, 2, 8])):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        return bytes(changed)
    if how == 3:
        return content[:at]
    if how == 4:
        return content[:at] + random.randbytes(random.choice([1, 8, 100])) + content[at:]
    if how == 5:
        return content[:at] + content[at + random.choice([1, 8, 100]) :]
    return random.choice(
        [b"", b"{}", b"[]", b"null", b"\xef\xbb\xbf" + content, b"[" * 10**5, b"0"]
    )


def _model_type(spoilt: Spoilt, random: Random) -> None:
    if isinstance(spoilt["config.json"], bytes):
        config = json.loads(spoilt["config.json"])
        config["model_type"] = random.choice(_TYPES)
        if random.random() < 0.8:
            config.pop("architectures", None)
        spoilt["config.json"] = json.dumps(config).encode()


# --- weights


def _header(spoilt: Spoilt, random: Random) -> None:
    """Have the header of a weights file lie."""
    name, header, body = _weights(spoilt, random)
    names = [each for each in header if each != "__metadata__"]
    one, other = random.choice(names), random.choice(names)
    how = random.randrange(12)
    if how == 0:
        header[one]["dtype"] = random.choice(_DTYPES)
    elif how == 1:
        header[one]["shape"] = random.choice([[], [0], [-1], [2**63], [10**12, 10**12], "x", [1]])
    elif how == 2:
        header[one]["shape"] = header[one]["shape"][::-1]
    elif how == 3:
        header[one]["data_offsets"] = random.choice(
            [[0, 0], [0, 2**63], [-1, 4], [8, 4], [0], None]
        )
    elif how == 4:  # two names for the same bytes
        header[one]["data_offsets"] = header[other]["data_offsets"]
    elif how == 5:  # two tensors of the same shape change places
        same = [each for each in names if header[each]["shape"] == header[one]["shape"]]
        other = random.choice(same)
        header[one], header[other] = header[other], header[one]
    elif how == 6:
        header[random.choice(["x", one.upper(), f"a.{one}", "\0", "x" * 9999, ""])] = header.pop(
            one
        )
    elif how == 7:
        del header[one]
    elif how == 8:
        header["__metadata__"] = random.choice(
            [None, {"format": "tf"}, {"format": "x"}, {}, 3, {"a": {}}]
        )
    elif how == 9:
        header[random.choice(["x", "lm_head.weight", "encoder.layer.7.x"])] = header[one]
    elif how == 10:
        end = len(body)
        header["more"] = {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]}
        body += random.choice([b"\0" * 8, b"", b"\0" * 9])
    elif how == 11:
        header[one] = random.choice([None, 3, {}, "x", []])
    spoilt[name] = _assembled(header, body)


def _length(spoilt: Spoilt, random: Random) -> None:
    """Have the length of the header lie."""
    name, header, body = _weights(spoilt, random)
    whole = _assembled(header, body)
    length = struct.unpack("<Q", whole[:8])[0]
    lie = random.choice([0, 1, length - 1, length + 1, length * 2, 10**8, 10**12, 2**63, 2**64 - 1])
    spoilt[name] = struct.pack("<Q", lie) + whole[8:]


def _numbers(spoilt: Spoilt, random: Random) -> None:
    """Change numbers of one tensor: NaN, infinity, huge, zero, noise."""
    name, header, body = _weights(spoilt, random)
    one = random.choice([each for each in header if each != "__metadata__"])
    start, end = header[one]["data_offsets"]
    start += 4 * random.randrange((end - start) // 4)
    end = random.choice([start + 4, end])
    value = random.choice(
        [float("nan"), float("inf"), -float("inf"), 1e38, 1e20, -1e9, 0.0, 1e-42, 1e4]
    )
    changed = struct.pack("<f", value) * ((end - start) // 4)
    changed = random.randbytes(len(changed)) if random.random() < 0.2 else changed
    spoilt[name] = _assembled(header, body[:start] + changed + body[end:])


def _dtype(spoilt: Spoilt, random: Random) -> None:
    """Store all tensors in another dtype, whose bytes are there."""
    for name in [*spoilt]:
        if name.endswith(".safetensors") and isinstance(spoilt[name], bytes):
            header, body = _read(spoilt[name])
            dtype, size = random.choice(
                [("F16", 2), ("BF16", 2), ("F64", 8), ("I8", 1), ("F8_E5M2", 1)]
            )
            at, parts = 0, []
            for each in sorted(header.keys() - {"__metadata__"}):
                start, end = header[each]["data_offsets"]
                length = (end - start) // 4 * size
                header[each] |= {"dtype": dtype, "data_offsets": [at, at + length]}
                parts.append((body[start:end] * 2)[:length])
                at += length
            spoilt[name] = _assembled(header, b"".join(parts))


def _of_weights(spoilt: Spoilt, random: Random) -> None:
    name = _weights_name(spoilt, random)
    spoilt[name] = _bytes(spoilt[name], random) if isinstance(spoilt[name], bytes) else b""


def _weights_name(spoilt: Spoilt, random: Random) -> str:
    return random.choice(sorted(name for name in spoilt if name.endswith(".safetensors")))


def _weights(spoilt: Spoilt, random: Random) -> tuple[str, dict[str, Any], bytes]:
    name = _weights_name(spoilt, random)
    try:
        return name, *_read(spoilt[name])
    except _NOT_AS_IT_WAS:
        return name, {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4


def _read(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _assembled(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


# --- files


class _Pickled:
    def __reduce__(self) -> Any:
        return exec, (CODE.replace("__file__", "'x/y'"),)


def _beside(spoilt: Spoilt, random: Random) -> None:
    """Lay a file beside that a careless loader reads, or runs."""
    anything = random.choice([b"{}", b"{", b"3", b'{"x": 3}', random.randbytes(50), CODE.encode()])
    name = random.choice(BESIDE)
    spoilt[name] = pickle.dumps(_Pickled()) if name.endswith((".bin", ".h5")) else anything


def _no_file(spoilt: Spoilt, random: Random) -> None:
    del spoilt[random.choice(sorted(spoilt))]


def _something_else(spoilt: Spoilt, random: Random) -> None:
    """Put something else in the place of a file."""
    name = random.choice(sorted(spoilt))
    outside = Path(f"../{OUTSIDE}") / ("model.safetensors" if name.startswith("model") else name)
    spoilt[name] = random.choice([
        os.mkfifo, os.mkdir, Path(name), Path("no-such-file"), Path("/dev/zero"), Path("/dev/full"),
        Path("/proc/self/environ"), outside, pickle.dumps(_Pickled()), Path(), Path("/dev/stdin"),
    ])  # fmt: skip


def _swapped(spoilt: Spoilt, random: Random) -> None:
    one, other = random.choice(sorted(spoilt)), random.choice(sorted(spoilt))
    spoilt[one], spoilt[other] = spoilt[other], spoilt[one]


def _foreign(spoilt: Spoilt, random: Random) -> None:
    """Point a shard out of the folder."""
    name = _INDEX
    if isinstance(spoilt.get(name), bytes):
        try:
            index = json.loads(spoilt[name])
            keys = [*index["weight_map"]]
        except (ValueError, TypeError, KeyError):
            return
        way = random.choice(
            ["../outside/model.safetensors", "/etc/passwd", "..", "", "./x", "\0", "~/x", "a/b"]
        )
        for key in keys if random.random() < 0.5 else [random.choice(keys)]:
            index["weight_map"][key] = way
        spoilt[name] = json.dumps(index).encode()


_KINDS: dict[str, tuple[Callable[[Spoilt, Random], None], int]] = {
    "config.json": (partial(_json, "config.json"), 22),
    "model_type": (_model_type, 3),
    "tokenizer.json": (partial(_json, "tokenizer.json"), 18),
    "tokenizer_config.json": (partial(_json, "tokenizer_config.json"), 10),
    "generation_config.json": (partial(_json, "generation_config.json"), 3),
    "preprocessor_config.json": (partial(_json, "preprocessor_config.json"), 6),
    _INDEX: (partial(_json, _INDEX), 4),
    f"shards elsewhere in {_INDEX}": (_foreign, 3),
    "bytes of weights": (_of_weights, 9),
    "header of weights": (_header, 9),
    "length of header": (_length, 2),
    "numbers of weights": (_numbers, 6),
    "dtype of weights": (_dtype, 2),
    "a file beside": (_beside, 6),
    "a file missing": (_no_file, 2),
    "no plain file": (_something_else, 3),
    "files swapped": (_swapped, 1),
}
