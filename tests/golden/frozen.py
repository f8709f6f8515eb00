"""How golden outputs are kept and compared.

A golden is a readable tree in JSON, keys sorted, one a line. Where it has an array of numbers it
names type, shape and sum; the numbers lie in full precision in an .npz of the same name.
ATTNVIZ_GOLDEN=write writes goldens anew, ATTNVIZ_GOLDEN=exact compares floats bit for bit.
"""

import json
import os
import re
from difflib import unified_diff
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"
MODE = os.environ.get("ATTNVIZ_GOLDEN", "")
SMALL = 6  # numbers of a list that stay readable
# Machine and releases: never kept.
VOLATILE = {"versions", "device", "transformers", "checked_with"}
# Keys that measure rounding: an own error on every processor, and what it is allowed to be.
NOISE = re.compile(r"(difference|strain|tolerance|error)s?$|^largest_differences$")
NUMBER = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?")
POWER = re.compile(r"(?:\d·)?10⁻[⁰¹²³⁴⁵⁶⁷⁸⁹]+")  # how figures tell what rounding left
KINDS = {"f": "float", "i": "int", "b": "bool"}


def check(name, found, rounding=1e-5):
    """Compare with the golden of this name, or write it.

    rounding : of an array, how far numbers may be off as a share of the largest in it, and a
        hundredth of that in any case; what measures rounding may be ten times as large, and this.
    """
    found = frozen(found)
    path = DATA / f"{name}.json"
    if MODE == "write":
        return _write(path, found)
    told = list(differences(_read(path), found, rounding))
    assert not told, f"{name} is not as it was:\n" + "\n".join(told[:20])


def check_text(name, found):
    """Compare a plain text with the golden of this name, or write it."""
    path = DATA / f"{name}.txt"
    if MODE == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.write_text(found, encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines(), found.splitlines()
    told = list(unified_diff(*lines, "golden", "now", lineterm="", n=0))
    assert not told, f"{name} is not as it was:\n" + "\n".join(told)


def frozen(node):
    """Return the same without what depends on the machine, and with arrays of numbers as such."""
    if isinstance(node, dict):
        return {key: frozen(node[key]) for key in sorted(node) if key not in VOLATILE}
    if isinstance(node, list | tuple):
        node = list(node)
        array = _array(node)
        return [frozen(each) for each in node] if array is None else array
    return node


def _array(node):
    """Return a nested list of many numbers of one kind as an array; None for anything else."""
    flat, shape, part = node, [], node
    while isinstance(part, list):
        shape.append(len(part))
        part = part[0] if part else None
    for size in shape[1:]:
        if not all(isinstance(each, list) and len(each) == size for each in flat):
            return None
        flat = [each for row in flat for each in row]
    if len(flat) <= SMALL:
        return None
    kinds = {type(each) for each in flat}
    if float in kinds and kinds <= {float, type(None)}:
        flat = [np.nan if each is None else each for each in flat]
        return np.array(flat, np.float64).reshape(shape)
    for kind, stored in ((int, np.int64), (bool, np.bool_)):
        if kinds == {kind}:
            return np.array(flat, stored).reshape(shape)
    return None


def differences(golden, found, rounding, at="", noise=False):
    """Yield in words what is not as in the golden."""
    if isinstance(golden, float) and isinstance(found, float):
        golden, found = [golden], [found]
    if _few_floats(golden) and _few_floats(found):
        golden, found = np.array(golden, np.float64), np.array(found, np.float64)
    if type(golden) is not type(found):
        yield f"{at}: {_short(golden)}, now {_short(found)}"
    elif isinstance(golden, dict):
        if golden.keys() != found.keys():
            gone, new = golden.keys() - found.keys(), found.keys() - golden.keys()
            yield f"{at}: keys gone {sorted(gone)}, new {sorted(new)}"
        for key in golden.keys() & found.keys():
            about_noise = noise or bool(NOISE.search(key))
            yield from differences(golden[key], found[key], rounding, f"{at}.{key}", about_noise)
    elif isinstance(golden, list):
        if len(golden) != len(found):
            yield f"{at}: {len(golden)} entries, now {len(found)}"
        for number, (one, other) in enumerate(zip(golden, found, strict=False)):
            yield from differences(one, other, rounding, f"{at}[{number}]", noise)
    elif isinstance(golden, np.ndarray):
        if (golden.dtype.kind, golden.shape) != (found.dtype.kind, found.shape):
            yield f"{at}: {_name(golden)}, now {_name(found)}"
        elif not _same_numbers(golden, found, rounding, noise):
            with np.errstate(invalid="ignore"):
                most = np.nanmax(np.abs(golden.astype(float) - found), initial=0.0)
            yield f"{at}: {_short(golden)} differ by up to {most:.3g}, now {_short(found)}"
    elif golden != found and (not isinstance(golden, str) or not _same_text(golden, found)):
        yield f"{at}: {_short(golden)}, now {_short(found)}"


def _few_floats(node):
    kinds = set(map(type, node)) if isinstance(node, list) else set()
    return float in kinds and kinds <= {float, type(None)}


def _same_numbers(golden, found, rounding, noise):
    if MODE == "exact" or golden.dtype.kind != "f":
        return np.array_equal(golden, found, equal_nan=golden.dtype.kind == "f")
    if not np.array_equal(np.isnan(golden), np.isnan(found)):
        return False
    golden, found = golden[~np.isnan(golden)], found[~np.isnan(found)]
    if noise:
        one, other = np.abs(golden), np.abs(found)
        return bool((np.maximum(one, other) <= 10 * np.minimum(one, other) + rounding).all())
    most = np.abs(golden).max(initial=0.0)
    return bool((np.abs(golden - found) <= rounding * (most + 0.01)).all())


def _same_text(golden, found):
    """Whether two texts differ only in the last digit of rounded numbers, or in measured noise."""
    if MODE == "exact":
        return False
    golden, found = (POWER.sub("10⁻ⁿ", each) for each in (golden, found))
    if NUMBER.split(golden) != NUMBER.split(found):
        return False
    pairs = zip(NUMBER.findall(golden), NUMBER.findall(found), strict=True)
    return all(_same_number(one, other) for one, other in pairs)


def _same_number(one, other):
    if one == other:
        return True
    if "e-" in one + other:  # rounding, as captions tell it
        return max(float(one), float(other)) <= 10 * min(float(one), float(other)) + 1e-5
    digits = len(one.partition(".")[2])
    unit = 1.01 * 10.0**-digits
    return 0 < digits == len(other.partition(".")[2]) and abs(float(one) - float(other)) <= unit


def _write(path, tree):
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = []
    text = json.dumps(_named(tree, arrays), ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    kept = {}
    for kind in sorted({_stored(array) for array in arrays}):
        flat = [array.ravel() for array in arrays if _stored(array) == kind]
        kept[kind] = np.concatenate(flat).astype(kind)
    if kept:
        np.savez_compressed(path.with_suffix(".npz"), **kept)
    else:
        path.with_suffix(".npz").unlink(missing_ok=True)


def _read(path):
    kept, places = {}, {}
    if path.with_suffix(".npz").exists():
        with np.load(path.with_suffix(".npz")) as file:
            kept = {name: file[name] for name in file.files}

    def restored(node):
        if isinstance(node, dict):
            return {key: restored(each) for key, each in node.items()}
        if isinstance(node, list):
            return [restored(each) for each in node]
        if not isinstance(node, str) or not node.startswith("@"):
            return node
        kind, shape = node[1:].split()[:2]
        sizes = [int(size) for size in shape.split("×")]
        start = places.get(kind, 0)
        places[kind] = start + int(np.prod(sizes))
        numbers = kept[kind][start : places[kind]].reshape(sizes)
        return numbers.astype(np.float64) if numbers.dtype.kind == "f" else numbers

    return restored(json.loads(path.read_text(encoding="utf-8")))


def _named(node, arrays):
    """Return a tree with arrays by their names, and collect them."""
    if isinstance(node, dict):
        return {key: _named(node[key], arrays) for key in sorted(node)}
    if isinstance(node, list):
        return [_named(each, arrays) for each in node]
    if isinstance(node, np.ndarray):
        arrays.append(node)
        return f"@{_stored(node)} {'×'.join(map(str, node.shape))} sum {np.nansum(node):.4g}"
    assert not (isinstance(node, str) and node.startswith("@")), node
    return node


def _stored(array):
    """Return the smallest type that holds every number exactly."""
    if array.dtype.kind != "f":
        return array.dtype.name
    exact = np.array_equal(array.astype(np.float32).astype(np.float64), array, equal_nan=True)
    return "float32" if exact else "float64"


def _name(array):
    return f"{KINDS[array.dtype.kind]} {array.shape}"


def _short(node):
    if isinstance(node, np.ndarray) and node.size > SMALL:
        return f"{_name(node)} with sum {np.nansum(node):.10g}"
    return f"{node!r:.200}"
