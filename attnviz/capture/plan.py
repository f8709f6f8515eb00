"""A plan of a model, learned once: which attentions it executes, and that there are no others.

A search among all operators (search.py) costs several times the run of the model. What it finds
depends on the model's code and not on its numbers. So it is kept for models with the same code,
hooks, settings and config. A later run is recorded by the plan, and its operators are counted. If
it executes other attentions, or other operators from which one could be made, it is searched again.
The numbers are never kept: each text is recorded, and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from torch import nn

from attnviz.capture.calls import functions_lock, functions_of
from attnviz.capture.linear import LinearCalls
from attnviz.capture.recorder import Recorder, Recording
from attnviz.capture.search import Search
from attnviz.capture.watch import expect_same, needs_isolation, watch
from attnviz.errors import ModelError
from attnviz.runtime.compat import SOFTMAX, attention_configs, forward_hooks, global_forward_hooks

# Of products of activations and of a normalization each attention is made.
_OF_ATTENTION = {*SOFTMAX, "exp", "logsumexp", "bmm", "baddbmm"}
_REPEATED = 7  # a text of one token, where no width of a model is as small
_FEWEST_QUERIES = 4  # with fewer positions a search may not tell what mixes them
_SETTINGS = (str, int, float, type(None))
_PLAIN = (*_SETTINGS, list, tuple, dict)


def record_runs(
    model: nn.Module, texts: int, *runs: Callable[[], object], known: LinearCalls | None = None
) -> tuple[Recording, ...]:
    """Record several runs on a batch of N texts, each with its own random numbers.

    The first computes the matrices of linear attention, the others what these are compared with. A
    run is repeated if it does not follow the plan of its model.

    known : as in `Search`.
    """
    search_of = partial(Search, texts=texts, known=known)

    def record(number: int, run: Callable[[], object]) -> Recording:
        shown = None
        if plan.paths:
            needs_isolation.setdefault(model, plan.needs_isolation)
            recorder = partial(Recorder, texts=texts, paths=plan.paths)
            by_plan = watch(model, run, recorder, seed=number)
            recording = by_plan.take_recording()
            if (notes := plan.confirm(by_plan, recording)) is not None:
                return replace(recording, notes=notes)
            shown = [call.path for call in recording.calls]
            needs_isolation.pop(model)  # what this run executes, the plan does not know
        search = watch(model, run, partial(search_of, is_first=number == 0), seed=number)
        recording = search.take_recording()
        if shown is not None:
            found = [call.path for call in recording.calls if call.through_interface]
            expect_same(model, shown, found)
        plan.learn(search, recording)
        return recording

    with functions_lock:  # another thread may watch these
        plan = _plan_of(tuple(_code(model)))
    return tuple(record(number, run) for number, run in enumerate(runs))


def linear_calls(model: nn.Module, texts: int, inputs: Mapping[str, Any]) -> LinearCalls | None:
    """Return which calls of a model are linear, of texts of one token; None of any others.

    A text of one token does not show what mixes tokens: each is repeated.
    """
    ids = inputs.get("input_ids")
    if ids is None or ids.shape != (texts, 1):
        return None
    is_repeated = {name for name, one in inputs.items() if getattr(one, "shape", 0) == ids.shape}
    longer = {n: one.repeat(1, _REPEATED) if n in is_repeated else one for n, one in inputs.items()}
    with suppress(ModelError):  # it cannot read these, or attends to none
        search = partial(Search, texts=texts, is_first=True)
        return watch(model, partial(model, **longer), search).take_recording().linear_calls
    return None


class Plan:
    """The attentions of each run of a model that was searched and has no others."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.needs_isolation = False
        # By the attentions of a run and the operators that make one: all operators, and notes.
        self._runs: dict[object, tuple[set[str], tuple[str, ...]]] = {}

    def confirm(self, run: Recorder, recording: Recording) -> tuple[str, ...] | None:
        """Return the notes on a run that is like one that was searched; else None."""
        operators, notes = self._runs.get(_kind(run, recording), (set[str](), ()))
        return notes if not run.unreadable and run.operators.keys() <= operators else None

    def learn(self, run: Search, recording: Recording) -> None:
        """Keep where attention is, if the interface showed each one in the search."""
        queries: Counter[str] = Counter()
        for call in recording.calls:
            queries[call.path] = max(queries[call.path], call.attention.query.shape[-2])
        is_shown = all(call.through_interface for call in recording.calls)
        if is_shown and not recording.linear and min(queries.values()) >= _FEWEST_QUERIES:
            self.paths = self.paths | queries.keys()
            self.needs_isolation |= needs_isolation[run.model]
            kind = _kind(run, recording)
            known, _ = self._runs.get(kind, (set[str](), ()))
            self._runs[kind] = known | run.operators.keys(), recording.notes


@lru_cache(64)
def _plan_of(code: tuple[object, ...]) -> Plan:
    """Return the plan of all models with this code."""
    return Plan()


def _kind(run: Recorder, recording: Recording) -> object:
    """Return the attentions of a run, and how many operators there are that make one."""
    attentions = Counter(call.path for call in recording.calls)
    makers = {name: run.operators[name] for name in _OF_ATTENTION}
    return frozenset(attentions.items()), frozenset(makers.items())


def _code(model: nn.Module) -> Iterator[object]:
    """Yield what decides which operators a model executes: its code, hooks, settings and config."""
    for path, module in model.named_modules():
        members = vars(module)
        yield from (path, type(module), _body(members.get("forward")))
        yield from map(_body, forward_hooks(module))
        if not type(module).__module__.startswith("torch."):
            settings = (one for one in members.items() if isinstance(one[1], _SETTINGS))
            yield from (one for one in settings if one[0] != "training")
    yield from map(_body, global_forward_hooks())
    yield from (function.__code__ for _, _, function in functions_of(model))
    for config in attention_configs(model):
        fields = vars(config).items()
        yield repr({name: value for name, value in fields if isinstance(value, _PLAIN)})


def _body(function: Any) -> object:
    """Return the code of a function, or the class of another object: neither holds a model."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__code__", None) or type(function)
