"""Store golden outputs and compare with them.

A golden is a readable JSON tree with sorted keys, one per line. An array is written as type, shape
and sum; its numbers are stored in full precision in an .npz of the same name. ATTNVIZ_GOLDEN=write
rewrites the goldens, ATTNVIZ_GOLDEN=exact compares floats bit for bit.
"""

import json
import os
import re
from difflib import unified_diff
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"
MODE = os.environ.get("ATTNVIZ_GOLDEN", "")
SMALL = 6  # lists up to this length stay readable
# Depend on the machine and on releases: never stored.
VOLATILE = {"versions", "device", "transformers", "checked_with"}
# Keys that measure rounding, which differs by processor, and their tolerances.
NOISE = re.compile(r"(difference|strain|tolerance|error)s?$|^largest_differences$")
# Keys that count ranks or permutations: where two numbers differ by rounding only, they may swap.
COUNTED, STEP = re.compile(r"^p_|rank_correlation"), 1e-3
NUMBER = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?")
POWER = re.compile(r"(?:\d·)?10⁻[⁰¹²³⁴⁵⁶⁷⁸⁹]+")  # rounding errors as printed in figures
KINDS = {"f": "float", "i": "int", "b": "bool"}


def check(name, value, rounding=1e-5):
    """Compare with the golden of this name, or write it.

    rounding : tolerance of an array, relative to its largest absolute value plus 0.01. Rounding
        measures may differ by a factor of ten, plus this.
    """
    value = normalize(value)
    path = DATA / f"{name}.json"
    if MODE == "write":
        return _write(path, value)
    messages = list(differences(_read(path), value, rounding))
    assert not messages, f"{name} differs from its golden:\n" + "\n".join(messages[:20])


def check_text(name, text):
    """Compare a plain text with the golden of this name, or write it."""
    path = DATA / f"{name}.txt"
    if MODE == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.write_text(text, encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines(), text.splitlines()
    changes = list(unified_diff(*lines, "golden", "now", lineterm="", n=0))
    assert not changes, f"{name} differs from its golden:\n" + "\n".join(changes)


def normalize(node):
    """Return a copy without machine-dependent entries, with long lists of numbers as arrays."""
    if isinstance(node, dict):
        return {key: normalize(node[key]) for key in sorted(node) if key not in VOLATILE}
    if isinstance(node, list | tuple):
        node = list(node)
        array = _array(node)
        return [normalize(item) for item in node] if array is None else array
    return node


def _array(node):
    """Return a nested list of more than SMALL numbers of one type as an array, else None."""
    flat, shape, level = node, [], node
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    for size in shape[1:]:
        if not all(isinstance(item, list) and len(item) == size for item in flat):
            return None
        flat = [item for row in flat for item in row]
    if len(flat) <= SMALL:
        return None
    kinds = {type(item) for item in flat}
    if float in kinds and kinds <= {float, type(None)}:
        flat = [np.nan if item is None else item for item in flat]
        return np.array(flat, np.float64).reshape(shape)
    for kind, dtype in ((int, np.int64), (bool, np.bool_)):
        if kinds == {kind}:
            return np.array(flat, dtype).reshape(shape)
    return None


def differences(golden, actual, rounding, path="", noise=False):
    """Yield a description of each difference from the golden."""
    if isinstance(golden, float) and isinstance(actual, float):
        golden, actual = [golden], [actual]
    if _few_floats(golden) and _few_floats(actual):
        golden, actual = np.array(golden, np.float64), np.array(actual, np.float64)
    if type(golden) is not type(actual):
        yield f"{path}: {_short(golden)}, now {_short(actual)}"
    elif isinstance(golden, dict):
        if golden.keys() != actual.keys():
            missing, new = golden.keys() - actual.keys(), actual.keys() - golden.keys()
            yield f"{path}: keys gone {sorted(missing)}, new {sorted(new)}"
        for key in golden.keys() & actual.keys():
            is_noise = noise or bool(NOISE.search(key))
            allowed = max(rounding, STEP) if COUNTED.search(key) else rounding
            yield from differences(golden[key], actual[key], allowed, f"{path}.{key}", is_noise)
    elif isinstance(golden, list):
        if len(golden) != len(actual):
            yield f"{path}: {len(golden)} entries, now {len(actual)}"
        for number, (item, actual_item) in enumerate(zip(golden, actual, strict=False)):
            yield from differences(item, actual_item, rounding, f"{path}[{number}]", noise)
    elif isinstance(golden, np.ndarray):
        if (golden.dtype.kind, golden.shape) != (actual.dtype.kind, actual.shape):
            yield f"{path}: {_name(golden)}, now {_name(actual)}"
        elif not _same_numbers(golden, actual, rounding, noise):
            with np.errstate(invalid="ignore"):
                largest = np.nanmax(np.abs(golden.astype(float) - actual), initial=0.0)
            yield f"{path}: {_short(golden)} differ by up to {largest:.3g}, now {_short(actual)}"
    elif golden != actual and (not isinstance(golden, str) or not _same_text(golden, actual)):
        yield f"{path}: {_short(golden)}, now {_short(actual)}"


def _few_floats(node):
    kinds = set(map(type, node)) if isinstance(node, list) else set()
    return float in kinds and kinds <= {float, type(None)}


def _same_numbers(golden, actual, rounding, noise):
    if MODE == "exact" or golden.dtype.kind != "f":
        return np.array_equal(golden, actual, equal_nan=golden.dtype.kind == "f")
    if not np.array_equal(np.isnan(golden), np.isnan(actual)):
        return False
    golden, actual = golden[~np.isnan(golden)], actual[~np.isnan(actual)]
    if noise:
        expected_size, actual_size = np.abs(golden), np.abs(actual)
        return bool(
            (
                np.maximum(expected_size, actual_size)
                <= 10 * np.minimum(expected_size, actual_size) + rounding
            ).all()
        )
    largest = np.abs(golden).max(initial=0.0)
    return bool((np.abs(golden - actual) <= rounding * (largest + 0.01)).all())


def _same_text(golden, actual):
    """Return whether texts differ only in the last digit of rounded numbers, or in noise."""
    if MODE == "exact":
        return False
    golden, actual = (POWER.sub("10⁻ⁿ", text) for text in (golden, actual))
    if NUMBER.split(golden) != NUMBER.split(actual):
        return False
    pairs = zip(NUMBER.findall(golden), NUMBER.findall(actual), strict=True)
    return all(_same_number(number, actual_number) for number, actual_number in pairs)


def _same_number(number, actual):
    if number == actual:
        return True
    if "e-" in number + actual:  # a rounding error, as in captions
        return max(float(number), float(actual)) <= 10 * min(float(number), float(actual)) + 1e-5
    digits = len(number.partition(".")[2])
    unit = 1.01 * 10.0**-digits
    return (
        0 < digits == len(actual.partition(".")[2]) and abs(float(number) - float(actual)) <= unit
    )


def _write(path, tree):
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = []
    text = json.dumps(_describe_arrays(tree, arrays), ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    stored = {}
    for kind in sorted({_storage_type(array) for array in arrays}):
        flat = [array.ravel() for array in arrays if _storage_type(array) == kind]
        stored[kind] = np.concatenate(flat).astype(kind)
    if stored:
        np.savez_compressed(path.with_suffix(".npz"), **stored)
    else:
        path.with_suffix(".npz").unlink(missing_ok=True)


def _read(path):
    stored, offsets = {}, {}
    if path.with_suffix(".npz").exists():
        with np.load(path.with_suffix(".npz")) as file:
            stored = {name: file[name] for name in file.files}

    def restore(node):
        if isinstance(node, dict):
            return {key: restore(item) for key, item in node.items()}
        if isinstance(node, list):
            return [restore(item) for item in node]
        if not isinstance(node, str) or not node.startswith("@"):
            return node
        kind, shape = node[1:].split()[:2]
        sizes = [int(size) for size in shape.split("×")]
        start = offsets.get(kind, 0)
        offsets[kind] = start + int(np.prod(sizes))
        numbers = stored[kind][start : offsets[kind]].reshape(sizes)
        return numbers.astype(np.float64) if numbers.dtype.kind == "f" else numbers

    return restore(json.loads(path.read_text(encoding="utf-8")))


def _describe_arrays(node, arrays):
    """Return a tree with arrays replaced by descriptions, and append the arrays to a list."""
    if isinstance(node, dict):
        return {key: _describe_arrays(node[key], arrays) for key in sorted(node)}
    if isinstance(node, list):
        return [_describe_arrays(item, arrays) for item in node]
    if isinstance(node, np.ndarray):
        arrays.append(node)
        return f"@{_storage_type(node)} {'×'.join(map(str, node.shape))} sum {np.nansum(node):.4g}"
    assert not (isinstance(node, str) and node.startswith("@")), node
    return node


def _storage_type(array):
    """Return the smallest type that represents every number exactly."""
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
