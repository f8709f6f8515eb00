"""Pairs of a fault and a model that stand for the whole product; the others run with `-m long`.

`pairs.json` is the table: of each fault, the models in which it is planted and the pairs that are
kept; of each weakened rule of the checks (`weakened.py`), how many pairs find it, and how many of
those that are kept. `ATTNVIZ_PAIRS=write pytest -n 0 -m long tests/mutation/test_pairs.py` writes
it again.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
TABLE = json.loads(FILE.read_text(encoding="utf-8"))
KEPT = {(fault, *pair.split()) for fault, of in TABLE["faults"].items() for pair in of["kept"]}


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def is_kept(fault, place, dtype):
    """Return whether a pair is kept; each pair of a fault that is not in the table is."""
    return fault.name not in TABLE["faults"] or (fault.name, place, name_of(dtype)) in KEPT


def table(found):
    """Return the table; `found` maps each (fault, place, dtype) to the weakened rules it finds."""
    kept = choose(found)
    faults, rules = {}, {}
    for fault, place, dtype in found:
        of = faults.setdefault(fault, {"planted in": [], "kept": []})
        if place not in of["planted in"]:
            of["planted in"].append(place)
        if (fault, place, dtype) in kept:
            of["kept"].append(f"{place} {dtype}")
    for rule in sorted({rule for names in found.values() for rule in names}):
        finding = [pair for pair in found if rule in found[pair]]
        still = [pair for pair in finding if pair in kept]
        clearest = min(still, key=lambda pair: len(found[pair]))
        rules[rule] = {"found by": len(finding), "kept": len(still), "first": " ".join(clearest)}
    return {"pairs": len(found), "kept": len(kept), "faults": faults, "weakened rules": rules}


def written(table):
    """Return the table as JSON with a line for each fault and each rule."""
    lines = [
        f"{json.dumps(group)}: {{\n"
        + ",\n".join(
            f" {json.dumps(name, ensure_ascii=False)}: {json.dumps(of, ensure_ascii=False)}"
            for name, of in table[group].items()
        )
        + "\n}"
        for group in ("faults", "weakened rules")
    ]
    counts = [f"{json.dumps(count)}: {table[count]}" for count in ("pairs", "kept")]
    return "{" + ",\n".join([*counts, *lines]) + "}\n"


def choose(found):
    """Return pairs that find all that the others find, the most useful pair first.

    Each weakened rule that is found in a model, in a dtype or by a fault is found so by a pair that
    is kept. Each fault is kept in two models, each model with two faults and in each dtype.
    """
    claims = defaultdict(set)
    for pair, rules in found.items():
        fault, place, dtype = pair
        claims[pair] |= {(place, dtype), *((rule, own) for rule in rules for own in pair)}
    places, faults = defaultdict(set), defaultdict(set)
    for fault, place, _ in found:
        places[fault].add(place)
        faults[place].add(fault)
    kept, done, used = set(), set(), Counter()

    def gain(pair):
        fault, place, dtype = pair
        in_places = {other[1] for other in kept if other[0] == fault}
        of_faults = {other[0] for other in kept if other[1] == place}
        new = len(claims[pair] - done)
        new += place not in in_places and len(in_places) < min(2, len(places[fault]))
        new += fault not in of_faults and len(of_faults) < min(2, len(faults[place]))
        return new, -used[place], -used[dtype]

    while True:
        best = max((pair for pair in found if pair not in kept), key=gain, default=None)
        if best is None or not gain(best)[0]:
            return kept
        kept.add(best)
        done |= claims[best]
        used.update(best[1:])
