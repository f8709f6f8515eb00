"""Whether what an example gives fits together, and which stages follow from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from attnviz.errors import InputError, did_you_mean
from attnviz.examples.reading import Given
from attnviz.examples.rounded import Rounded
from attnviz.examples.stages import BY_HEAD, STAGES, WHOLE
from attnviz.examples.values import shape, shown


def follow(given: Given) -> list[str]:
    """Return the stages that are computed; raise InputError for what contradicts or leads nowhere.

    A stage is computed where all that it needs is known.
    """
    here = [*given.whole, *given.by_head]
    here += [name for name in ("scale", "mask") if getattr(given, name) is not None]
    if not here:
        raise InputError(
            "Expected something to compute with, got nothing. Give X with W_q, W_k and W_v; or Q "
            "and K; or scores with a scale; or weights and V."
        )
    for late in given.by_head:
        both = [name for name in here if name in _makers(late) - {"X", "scale", "mask"}]
        if both:
            raise InputError(
                f"Expected {late} or {' and '.join(both)}, got both. Give one; what a book prints "
                'belongs under "printed".'
            )
    if "scores" in given.by_head and given.scale is None:
        raise InputError(
            "Expected a scale beside scores, got none. Give 1 where they are not scaled, or the "
            "number 1/√d_k."
        )
    known, computed = {*here, "scale", "mask"}, []
    for name, stage in STAGES.items():
        if name not in known and known.issuperset(stage.needs):
            known.add(name)
            computed.append(name)
    for name in here:
        users = [stage.needs for stage in STAGES.values() if name in stage.needs]
        if not any(name in STAGES[stage].needs for stage in computed):
            missing = " or ".join(" and ".join(_lacking(needs, known)) for needs in users)
            raise InputError(
                f"Expected {missing} beside {name}, got none: nothing is computed with {name}. "
                f"Give what is missing, or what makes it, or leave {name} out."
            )
    for what, named in (("printed stages", given.printed), ("notes on stages", given.notes)):
        _check_computed(what, named, computed)
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


def _check_computed(what: str, named: Collection[str], computed: Sequence[str]) -> None:
    for name in named:
        if name not in computed:
            hint = did_you_mean(name, computed) or "Give what it is computed from, or remove it."
            raise InputError(
                f"Expected {what} that follow from what is given ({', '.join(computed)}), got "
                f"{shown(name)}. {hint}"
            )


def check_sides(name: str, operands: Sequence[Rounded], given: Given) -> None:
    """Raise InputError where the matrices that a stage is computed from do not fit together."""
    if name in ("scaled scores", "weights", "concatenated"):
        return
    first, second = STAGES[name].needs
    left, right = (one.shape for one in operands)
    if name == "scores" and left[1] != right[1]:
        raise InputError(
            f"Expected Q and K of equal width, got Q {left} and K {right} per head. Each query is "
            "matched against each key."
        )
    if name != "scores" and left[1] != right[0]:
        right = shape(given.whole[second]) if second in given.whole else right
        raise InputError(
            f"Expected {second} with a row for each of the {left[1]} columns of {first}, got "
            f"{second} {right} and {first} {left}. Perhaps {second} is transposed."
        )


def check_printed(given: Given, stage: str, sides: tuple[int, int]) -> None:
    """Raise InputError where what is printed of a stage has another shape than the stage."""
    for head, matrix in enumerate(given.printed.get(stage, ())):
        if not matrix or (found := shape(matrix)) == sides:
            continue
        if stage == "concatenated" and found[0] == sides[0] and found[1] > sides[1]:
            continue  # with heads of which nothing is given
        of = "" if STAGES[stage].joined or given.heads == 1 else f" of head {head}"
        raise InputError(
            f"Expected printed {stage}{of} of shape {sides}, as what is given makes it, got "
            f"{found}. Rows are tokens."
        )
