"""Whether what an example gives fits together, and the shape of every stage that follows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from attnviz.errors import InputError
from attnviz.examples.naming import near, shown
from attnviz.examples.reading import Given
from attnviz.examples.values import Matrix

PROJECTIONS = {"Q": "W_q", "K": "W_k", "V": "W_v"}


@dataclass(frozen=True)
class Plan:
    """The shapes (of one head, once heads are joined of all) of what is known, and what follows.

    shapes : of stages that are given or computed. computed : those that follow, in order.
    queries, tokens : labels of rows and of what they attend to.
    """

    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)
    queries: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()


def fit(given: Given) -> Plan:
    """Return what follows from what is given; raise InputError where parts do not fit together."""
    plan = Plan()
    _project(given, plan)
    _score(given, plan)
    _weigh(given, plan)
    _mix(given, plan)
    _check_used(given, plan)
    for stage, printed in given.printed.items():
        _check_printed(stage, printed, plan)
    for stage in given.notes:
        if stage not in plan.computed:
            raise InputError(_not_computed("notes on stages that follow", stage, plan.computed))
    queries, tokens = _labels(given, plan)
    return Plan(plan.shapes, plan.computed, queries, tokens)


def shape(matrix: Matrix) -> tuple[int, int]:
    """Return (rows, columns)."""
    return len(matrix), len(matrix[0])


def _project(given: Given, plan: Plan) -> None:
    """Q, K and V, from X and their matrices or as they are given."""
    X = given.whole.get("X")
    for stage, W in PROJECTIONS.items():
        if stage in given.by_head:
            if W in given.whole:
                raise InputError(f"Expected {stage} or {W}, got both. {_PRINTED}")
            plan.shapes[stage] = _given_shape(given, stage)
        elif W in given.whole:
            if X is None:
                raise InputError(f"Expected X beside {W}, got none. Give X, or {stage} itself.")
            plan.shapes[stage] = _product(given, X, W)
            plan.computed.append(stage)
    if X is not None and not plan.computed:
        raise InputError("Expected W_q, W_k or W_v beside X, got none. Give the matrices too.")


_PRINTED = 'Give one; what a book prints belongs under "printed".'


def _product(given: Given, X: Matrix, W: str) -> tuple[int, int]:
    (T, d_model), (rows, columns) = shape(X), shape(given.whole[W])
    if rows != d_model:
        raise InputError(
            f"Expected {W} with as many rows as X has columns, got {W} ({rows}, {columns}) and "
            f"X ({T}, {d_model}). Perhaps {W} is transposed."
        )
    if columns % given.heads:
        raise InputError(
            f"Expected heads that divide the {columns} columns of {W}, got {given.heads}. "
            "The heads' matrices stand side by side in it."
        )
    return T, columns // given.heads


def _given_shape(given: Given, stage: str) -> tuple[int, int]:
    shapes = [shape(matrix) for matrix in given.by_head[stage]]
    if len(set(shapes)) > 1:
        raise InputError(
            f"Expected {stage} of one shape in all heads, got {_listed(map(str, shapes))}. "
            "Make them alike."
        )
    return shapes[0]


def _score(given: Given, plan: Plan) -> None:
    shapes = plan.shapes
    earlier = [name for name in ("Q", "K") if name in shapes]
    if "scores" in given.by_head:
        if earlier:
            raise InputError(f"Expected scores or {_listed(earlier)}, got both. {_PRINTED}")
        shapes["scores"] = _given_shape(given, "scores")
        if given.scale is None:
            raise InputError(
                "Expected a scale beside scores, got none. Give 1 where they are not scaled, or "
                "the number 1/√d_k."
            )
    elif len(earlier) == 2:
        if shapes["Q"][1] != shapes["K"][1]:
            raise InputError(
                f"Expected Q and K of equal width, got Q {shapes['Q']} and K {shapes['K']} per "
                "head. Each query is matched against each key."
            )
        shapes["scores"] = shapes["Q"][0], shapes["K"][0]
        plan.computed.append("scores")
    if "scores" in shapes:
        shapes["scaled scores"] = shapes["scores"]
        plan.computed.append("scaled scores")


def _weigh(given: Given, plan: Plan) -> None:
    shapes = plan.shapes
    if "weights" in given.by_head:
        earlier = [name for name in ("scores", "Q", "K") if name in shapes]
        if earlier:
            raise InputError(f"Expected weights or {_listed(earlier)}, got both. {_PRINTED}")
        shapes["weights"] = _given_shape(given, "weights")
    elif "scores" in shapes:
        shapes["weights"] = shapes["scores"]
        plan.computed.append("weights")
        if given.mask == "causal" and len(set(shapes["scores"])) > 1:
            raise InputError(
                f"Expected as many queries as keys for a causal mask, got {shapes['scores']}. "
                "Write the mask as a matrix of 1 and 0."
            )
        if isinstance(given.mask, tuple):
            found = len(given.mask), len(given.mask[0])
            if found != shapes["scores"]:
                raise InputError(
                    f"Expected a mask of the shape of the scores, {shapes['scores']}, got "
                    f"{found}. Each cell is 1 where the row's token sees the column's, else 0."
                )


def _mix(given: Given, plan: Plan) -> None:
    shapes = plan.shapes
    if "weights" not in shapes or "V" not in shapes:
        return
    (m, n), (rows, d_v) = shapes["weights"], shapes["V"]
    if rows != n:
        raise InputError(
            f"Expected V with a row for each of the {n} columns of the weights, got V "
            f"{shapes['V']}. Give one value per token."
        )
    shapes["head output"] = m, d_v
    shapes["concatenated"] = m, given.heads * d_v
    plan.computed.append("head output")
    W_o = given.whole.get("W_o")
    if given.heads > 1 or W_o is not None or "concatenated" in given.printed:
        plan.computed.append("concatenated")
    if W_o is not None:
        if len(W_o) != given.heads * d_v:
            raise InputError(
                f"Expected W_o with {given.heads * d_v} rows, as wide as the heads' outputs side "
                f"by side, got W_o {shape(W_o)}. Give the rows of these heads."
            )
        shapes["output"] = m, len(W_o[0])
        plan.computed.append("output")


def _check_used(given: Given, plan: Plan) -> None:
    """Refuse what nothing is computed with, rather than leaving it out in silence."""
    if not plan.computed:
        raise InputError(
            "Expected something to compute with, got too little. Give X with W_q, W_k and W_v; or "
            "Q and K; or scores with a scale; or weights and V."
        )
    needed = {
        "scale": (given.scale is not None, "scaled scores", "scores or Q and K"),
        "mask": (given.mask is not None, "weights", "scores or Q and K"),
        "W_o": ("W_o" in given.whole, "output", "weights and V"),
        **{
            name: (name in given.by_head, stage, missing)
            for name, stage, missing in (
                ("Q", "scores", "K"),
                ("K", "scores", "Q"),
                ("V", "head output", "weights, or what makes them,"),
            )
        },
    }
    for name, (is_given, stage, missing) in needed.items():
        if is_given and stage not in plan.computed:
            raise InputError(
                f"Expected {missing} beside {name}, got none: nothing is computed with {name}. "
                "Give both or neither."
            )


def _check_printed(stage: str, printed: tuple[Matrix | None, ...], plan: Plan) -> None:
    if stage not in plan.computed:
        raise InputError(_not_computed("printed stages that follow", stage, plan.computed))
    expected = plan.shapes[stage]
    for head, matrix in enumerate(printed):
        if matrix is None or (found := shape(matrix)) == expected:
            continue
        wider = stage == "concatenated" and found[0] == expected[0] and found[1] > expected[1]
        if not wider:
            of = f" of head {head}" if len(printed) > 1 else ""
            raise InputError(
                f"Expected printed {stage}{of} of shape {expected}, as what is given makes it, "
                f"got {found}. Rows are tokens."
            )


def _not_computed(what: str, stage: str, computed: Collection[str]) -> str:
    hint = near(stage, list(computed)) or "Give what it is computed from, or remove it."
    return f"Expected {what} from what is given ({', '.join(computed)}), got {shown(stage)}. {hint}"


def _labels(given: Given, plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    shapes = plan.shapes
    m = next(shapes[s][0] for s in ("weights", "Q", "K", "V") if s in shapes)
    n = shapes["weights"][1] if "weights" in shapes else m
    tokens = _counted(given.tokens, "tokens", n, "columns of the weights")
    if given.queries is None and m == n:
        return tokens, tokens
    return _counted(given.queries, "queries", m, "rows of the weights"), tokens


def _counted(labels: tuple[str, ...] | None, name: str, count: int, what: str) -> tuple[str, ...]:
    if labels is None:
        return tuple(map(str, range(count)))
    if len(labels) != count:
        raise InputError(
            f"Expected {count} {name}, one for each of the {what}, got {len(labels)}. "
            "Name each of them once."
        )
    return labels


def _listed(names: Collection[str] | map[str]) -> str:
    return " and ".join(names)
