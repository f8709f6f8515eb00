"""Whether what an example gives fits together, and which stages follow from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from attnviz.analyses.example.intervals import Rounded
from attnviz.analyses.example.reading import Given
from attnviz.analyses.example.stages import BY_HEAD, STAGES, WHOLE
from attnviz.analyses.example.values import expect, shape, shown
from attnviz.errors import did_you_mean

_BEGIN = "Give X with W_q, W_k and W_v; or Q and K; or scores with a scale; or weights and V."
_ONE = 'Give one; what a book prints belongs under "printed".'


def follow(given: Given) -> list[str]:
    """Return the stages that are computed; raise InputError for what contradicts or leads nowhere.

    A stage is computed where all that it needs is known.
    """
    here = [*given.whole, *given.by_head]
    here += [name for name in ("scale", "mask") if getattr(given, name) is not None]
    expect(here, "something to compute with", "nothing", _BEGIN)
    for late in given.by_head:
        both = [name for name in here if name in _makers(late) - {"X", "scale", "mask"}]
        expect(not both, f"{late} or {' and '.join(both)}", "both", _ONE)
    scaled = given.scale is not None or "scores" not in given.by_head
    expect(scaled, "a scale beside scores", "none", "Give 1 where there is none, or 1/√d_k.")
    known, computed = {*here, "scale", "mask"}, []
    for name, stage in STAGES.items():
        if name not in known and known.issuperset(stage.needs):
            known.add(name)
            computed.append(name)
    for name in here:
        users = [stage.needs for stage in STAGES.values() if name in stage.needs]
        used = any(name in STAGES[stage].needs for stage in computed)
        missing = " or ".join(" and ".join(_lacking(needs, known)) for needs in users)
        got = f"none: nothing is computed with {name}"
        do = f"Give what is missing, or what makes it, or leave {name} out."
        expect(used, f"{missing} beside {name}", got, do)
    for kind, named in (("printed stages", given.printed), ("notes on stages", given.notes)):
        for name in named:
            hint = did_you_mean(name, computed) or "Give what it is computed from, or remove it."
            what = f"{kind} that follow from what is given ({', '.join(computed)})"
            expect(name in computed, what, shown(name), hint)
    if given.heads == 1 and not {"W_o", "concatenated"} & {*here, *given.printed}:
        computed = [name for name in computed if name != "concatenated"]  # it is the head's output
    return computed


def _makers(name: str) -> set[str]:
    """Return all that a stage can be computed from, directly or not."""
    needs = STAGES[name].needs if name in STAGES else ()
    return {*needs}.union(*map(_makers, needs))


def _lacking(needs: Collection[str], known: Collection[str]) -> Iterator[str]:
    for need in needs:
        if need in (*WHOLE, *BY_HEAD):
            yield from () if need in known else (need,)
        elif need in STAGES:
            yield from _lacking(STAGES[need].needs, known)


def check_sides(name: str, operands: Sequence[Rounded], given: Given) -> None:
    """Raise InputError where the matrices that a stage is computed from do not fit together."""
    if name in ("scaled scores", "weights", "concatenated"):
        return
    first, second = STAGES[name].needs
    left, right = (one.shape for one in operands)
    if name == "scores":
        got = f"Q {left} and K {right} per head"
        do = "Each query is matched against each key."
        expect(left[1] == right[1], "Q and K of equal width", got, do)
    else:
        right = shape(given.whole[second]) if second in given.whole else right
        what = f"{second} with a row for each of the {left[1]} columns of {first}"
        got = f"{second} {right} and {first} {left}"
        expect(left[1] == right[0], what, got, f"Perhaps {second} is transposed.")


def check_printed(given: Given, stage: str, sides: tuple[int, int]) -> None:
    """Raise InputError where what is printed of a stage has another shape than the stage."""
    for head, matrix in enumerate(given.printed.get(stage, ())):
        if not matrix:
            continue
        m, n = shape(matrix)
        # More columns may come from heads of which nothing is given.
        fits = m == sides[0] and (n == sides[1] or (stage == "concatenated" and n > sides[1]))
        of = "" if STAGES[stage].joined or given.heads == 1 else f" of head {head}"
        what = f"printed {stage}{of} of shape {sides}, as what is given makes it"
        expect(fits, what, (m, n), "Rows are tokens.")
