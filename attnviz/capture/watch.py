"""Run a shadow of the model, watch its attentions, and restore it for the next run.

`watch` runs a model while a watcher takes the arguments of each attention function that it calls. A
run that draws random numbers, or writes weights, is isolated.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from operator import is_
from typing import Any, Literal, NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import (
    AttentionCallArgs,
    OwnAttention,
    UnfusedAttention,
    intercept_attention,
    is_registered_by_user,
)
from attnviz.capture.projections import find
from attnviz.errors import ModelError
from attnviz.models.pretrained import forward_parameters
from attnviz.results import Axis
from attnviz.runtime import compat
from attnviz.runtime.libraries import (
    MemoryBudget,
    full_float32,
    held_whole,
    input_device,
    translate,
)

# Whether a model draws random numbers or writes weights, once it has run, or its plan says so.
needs_isolation: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_drawing = threading.Lock()  # of the generators of the process


@contextmanager
def restoring(
    model: nn.Module, attention: Literal["eager", "sdpa"] | None = "eager", *, seed: int = 0
) -> Iterator[None]:
    """Put a shadow into eval mode with this attention, and restore every trace on leaving.

    Restored: training flags, hooks (transformers installs some when attentions are requested),
    plain attributes, submodules, buffers, the attributes of every config, and TF32.

    attention : replaces transformers' own implementations. A function that the user registered
    stays. With None every implementation stays, and the modes of modules too if the model as a
    whole is in eval mode. seed : of the random numbers.
    """
    configs = compat.attention_configs(model)
    states = [state for module in model.modules() for state in compat.state_of(module)]
    states += map(vars, configs)
    before = [dict(state) if state else {} for state in states]  # most are empty
    # Those that a run may write.
    buffers = [
        (buffer, compat.write_count(buffer), buffer.clone())
        for buffer in model.buffers()
        if not (buffer.is_meta or buffer.is_inference())
    ]
    try:
        if attention is not None or model.training:
            model.eval()
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoder):  # else the output of padding is 0
                module.use_nested_tensor = False
        for config in configs if attention is not None else ():
            if not is_registered_by_user(compat.attention_implementation(config)):
                compat.set_attention_implementation(config, attention)
        # Eager code may still call torch's fused attention, which shows no softmax. Where there is
        # no config, its arguments are read.
        own = UnfusedAttention() if configs else OwnAttention()
        unfused = own if attention == "eager" else nullcontext()
        isolated = IsolatedRun(seed)
        # It costs time, and nothing that torch compiles runs in a dispatch mode. So the first run,
        # which is no run as loaded, shows whether the others need it.
        is_first = attention is not None and model not in needs_isolation
        needed = is_first or needs_isolation.get(model, False)
        with full_float32(), isolated if needed else nullcontext(), unfused:
            yield
        if is_first:
            needs_isolation[model] = isolated.was_needed
    finally:
        for state, members in zip(states, before, strict=True):
            if state or members:
                state.clear()
                state.update(members)
        with torch.no_grad():
            for buffer, writes, values in buffers:
                if compat.write_count(buffer) != writes:
                    buffer.copy_(values)


def weights_in_memory(
    attentions: Iterable[find.AttentionModule | None],
) -> AbstractContextManager[None]:
    """Hold all weights of some attention modules in memory, also those that are offloaded."""
    modules = [m for one in attentions if one is not None for m in (one.module, one.output)]
    return held_whole(dict.fromkeys(m for m in modules if m is not None))


def memory_budget(model: nn.Module) -> MemoryBudget:
    """Return the memory for attention maps on the model's device, and what to do without it."""
    device = input_device(model)
    elsewhere = "" if device.type == "cpu" else ", device='cpu' (--device cpu)"
    return MemoryBudget(
        f"the attention maps of {type(model).__name__}",
        device,
        "Use mode='streamed' (--mode streamed), a shorter text (--truncate), fewer texts at once, "
        f"dtype='bfloat16' (--dtype bfloat16){elsewhere}, or a smaller model.",
    )


def model_errors(model: nn.Module) -> AbstractContextManager[None]:
    """Turn any exception of a model that runs into one line."""
    failure = f"{type(model).__name__} fails on this input"
    check = "Check its config.json, or try" if compat.attention_configs(model) else "Try"
    return translate(memory_budget(model), failure, f"{check} another input.")


def minimal_run(model: nn.Module, inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    """Return a run of the model without a cache and without the logits of every token."""
    accepted = forward_parameters(model)
    options = {"use_cache": False, "logits_to_keep": 1}
    arguments = {name: value for name, value in options.items() if name in accepted}
    return lambda: model(**inputs, **arguments)


class Output(NamedTuple):
    """The tensors of real numbers that a run returns, for N texts."""

    model: tuple[Tensor, ...]
    # Of the attention module that runs first, where the input is the same in every run; empty if no
    # module is known.
    attention: tuple[Tensor, ...]
    logits: Tensor | None = None  # those in `model` that are named so, (N, T, vocabulary)


@dataclass(frozen=True, eq=False)
class Outputs:
    """What the model returned in the run that was recorded, and as it was loaded."""

    recorded: Output
    loaded: Output
    # Runs the model as loaded again: with another `seed`, `rounded` (all modules' output off by one
    # rounding step), or under another `attention`.
    rerun: Callable[..., Output]
    only_attention: bool  # whether the recorded run had another attention, and nothing else
    tokens: int | None = None  # how many were read of a long text, from its start; None for all
    # The largest difference between the queries of two watched runs, which have other random
    # numbers, relative to their norm.
    between_runs: float = 0.0


def output_of(model: nn.Module, run: Callable[[], object]) -> Output:
    """Run the model in `restoring`; return its output and that of its first attention."""
    first: list[tuple[Tensor, ...]] = []

    def keep_first(module: nn.Module, args: Any, output: Any) -> None:
        if not first:
            first.append(floats(output)[:1])  # eager attention returns its weights too

    for attention in find.find_attention_modules(model).values():
        if isinstance(attention.module, nn.MultiheadAttention):
            continue  # with a hook, the module around it would not take its fast path
        attention.module.register_forward_hook(keep_first)
    output: Any = run()
    logits = getattr(output, "logits", None)
    if isinstance(output, dict):  # some models return the weights of eager attention unasked
        output = {name: value for name, value in output.items() if "attentions" not in name}
    has_logits = isinstance(logits, Tensor) and logits.dim() == 3
    return Output(floats(output), first[0] if first else (), logits if has_logits else None)


def outputs_beside(model: nn.Module, run: Callable[[], object], recorded: Output) -> Outputs:
    """Run the model as loaded, unwatched, and return its output beside a recorded one."""

    def run_as_loaded(
        seed: int = 2, attention: Literal["eager"] | None = None, *, rounded: bool = False
    ) -> Output:
        with torch.no_grad(), restoring(model, attention, seed=seed), model_errors(model):
            for module in model.modules() if rounded else ():
                if not any(module.children()):
                    module.register_forward_hook(_round_otherwise)
            return output_of(model, run)

    names = {compat.attention_implementation(one) for one in compat.attention_configs(model)}
    differs_more = names <= {"eager"} or any(module.training for module in model.modules())
    return Outputs(recorded, run_as_loaded(), run_as_loaded, only_attention=not differs_more)


def moved_by_attention(
    model: nn.Module, tensors: Mapping[str, Tensor], *, one_by_one: bool
) -> dict[str, float]:
    """Return how much the output moves, relative to its norm, if heads in a module change sign.

    A row of a batch belongs to each module, in which W^O reads other heads, or to all together.
    Empty where the model does not run on it.
    """
    attentions = find.find_attention_modules(model)
    groups = [[path] for path in attentions] if one_by_one else [[*attentions]]
    batch = {n: t.expand(1 + len(groups), *t.shape[1:]).clone() for n, t in tensors.items()}
    executed = set()

    def change_signs(path: str, row: int, module: nn.Module, args: tuple[Any, ...]) -> Any:
        if not args or not isinstance(args[0], Tensor) or len(args[0]) != 1 + len(groups):
            return None
        executed.add(path)
        heads = args[0].clone()
        heads[row] = -heads[row]
        return (heads, *args[1:])

    with torch.no_grad(), restoring(model), suppress(ModelError), model_errors(model):
        for row, paths in enumerate(groups, start=1):
            for path in paths:
                if (output := attentions[path].output) is not None:
                    output.register_forward_pre_hook(partial(change_signs, path, row))
        every = floats(minimal_run(model, batch)())
        found = [x.double() for x in every if x.dim() and len(x) == len(groups) + 1]
        shares = [(x - x[:1]).flatten(1).norm(dim=1) / x[0].norm().clamp(min=1e-30) for x in found]
        largest = torch.stack(shares).amax(0).tolist() if shares else []
        rows = zip(groups, largest[1:], strict=False)
        return {paths[0]: share for paths, share in rows if not executed.isdisjoint(paths)}
    return {}


def _round_otherwise(module: nn.Module, args: Any, output: Any) -> Any:
    """Return the output of a module, each number one rounding step up or down."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return output
    signs = torch.randint(0, 2, output.shape, device=output.device) * 2 - 1
    return output * (1 + torch.finfo(output.dtype).eps * signs).to(output.dtype)


def floats(output: object) -> tuple[Tensor, ...]:
    """Return the tensors of real numbers in the output of a model."""
    tensors = (leaf for leaf in compat.tree_leaves(output) if isinstance(leaf, Tensor))
    return tuple(tensor for tensor in tensors if tensor.is_floating_point())


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a value with all tensors changed: a tensor, a tuple, a dict, a record; or itself."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        changed = tuple(map_tensors(item, change) for item in value)
        return value if all(map(is_, changed, value)) else changed
    if type(value) is dict:
        return {name: map_tensors(item, change) for name, item in value.items()}
    if not is_dataclass(value) or isinstance(value, Axis | type):
        return value
    members = {one.name: getattr(value, one.name) for one in fields(value)}
    named = {name: map_tensors(member, change) for name, member in members.items()}
    named = {name: member for name, member in named.items() if member is not members[name]}
    return replace(value, **named) if named else value


def expect_same(model: nn.Module, paths: Sequence[str], expected: Sequence[str]) -> None:
    """Raise ModelError unless two runs executed attentions of the same modules, in this order."""
    if list(paths) != list(expected):
        raise ModelError(
            f"{type(model).__name__} does not execute the same attentions in every run, so it "
            "cannot be verified. Choose another model."
        )


class EndRunError(Exception):
    """Raised by a watcher to end a run that it needs no further."""


class AttentionWatcher:
    """Base of what takes the attentions of one run, in the order of execution."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths = {module: path for path, module in model.named_modules()}
        self.mode: AbstractContextManager[Any] = nullcontext()  # surrounds the run

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Take the place of an attention function; return its output and its weights or None."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete what was taken, after the run; raise ModelError if something is missing."""


Watcher = TypeVar("Watcher", bound=AttentionWatcher)


@torch.no_grad()
def watch(
    model: nn.Module,
    run: Callable[[], object],
    watcher_of: Callable[[nn.Module], Watcher],
    *,
    fused: bool = False,
    seed: int = 0,
) -> Watcher:
    """Run a model under its eager attention or torch's fused one, and return its watcher.

    watcher_of : creates the watcher; the hooks that it registers are removed after the run. seed :
    of the random numbers, of which the attention of most models is independent.
    """
    with restoring(model, "sdpa" if fused else "eager", seed=seed), model_errors(model):
        watcher = watcher_of(model)
        intercepted = intercept_attention(watcher.on_call, watcher.paths, fused=fused)
        with suppress(EndRunError), intercepted, watcher.mode:
            run()
        watcher.finish()
    return watcher


class ModuleWatcher(AttentionWatcher):
    """An attention watcher that also knows the inputs of the modules, through hooks.

    texts : N, the size of the batch. paths : of the modules that are watched, beside those with
    projections; None for all.
    """

    def __init__(self, model: nn.Module, texts: int, paths: Collection[str] | None = None) -> None:
        super().__init__(model)
        self.texts = texts
        self.modules = find.find_attention_modules(model)
        modules = dict(model.named_modules())
        watched = modules if paths is None else {*self.modules, *paths}
        # The module that multiplies the heads of each module by W^O.
        self.outputs = {path: find.find_output(modules, path) for path in watched}
        # The modules that have been entered and not left, the innermost last, with their arguments.
        self.running: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        self.entries: Counter[nn.Module] = Counter()
        self._rotations: find.Rotations = {}
        # The paths of modules whose attention cannot be read, and why.
        self.unreadable: list[tuple[str, str]] = []
        thread = threading.get_ident()  # other threads have another call stack

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() == thread:
                self.on_enter(module, args, kwargs)
            else:
                self.unreadable.append((self.paths[module], "it runs in another thread"))

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == thread:
                self.on_leave(module, args, output)

        self._output_modules = set(self.outputs.values())
        known = [*(modules[path] for path in watched), *filter(None, self._output_modules)]
        for module in dict.fromkeys(known):
            module.register_forward_pre_hook(enter, with_kwargs=True)
            module.register_forward_hook(leave, always_call=True)

    def on_enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module starts to run."""
        self.running.append((module, args, kwargs))
        self.entries[module] += 1

    def on_leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Note that a module has run."""
        self.running.pop()
        if module in self._output_modules:
            self.on_output(module, args[0] if args else None, output)
        if isinstance(module, nn.MultiheadAttention) and output is not None:  # which calls no W^O
            self.on_output(module.out_proj, None, find.texts_first(module, output[0]))

    def on_output(self, module: nn.Module, merged_heads: Any, output: Any) -> None:
        """Take the input and the output of a module that multiplies the heads by W^O."""

    def inputs_of(self, module: nn.Module) -> find.ModuleInputs:
        """Return the inputs of a module that runs now, as far as they are known."""
        for running, args, kwargs in reversed(self.running):
            if running is module:
                return find.read_inputs(module, args, kwargs, self.texts, self._rotations)
        return find.ModuleInputs()

    def lengths(self) -> set[int]:
        """Return how many positions the inputs of the model have, which runs now."""
        args, kwargs = next(((a, k) for _, a, k in self.running if a or k), ((), {}))
        tensors = (one for one in [*args, *kwargs.values()] if isinstance(one, Tensor))
        return {tensor.shape[1] for tensor in tensors if tensor.dim() > 1}

    def innermost_module(self) -> nn.Module:
        """Return the innermost module that runs and has parameters: not a softmax by itself."""
        modules: list[nn.Module] = [module for module, _, _ in reversed(self.running)]
        with_parameters = (m for m in modules if next(m.parameters(), None) is not None)
        return next(with_parameters, modules[-1])


class IsolatedRun(compat.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode in which a model neither draws from the process nor writes its weights.

    Random operators draw from generators with a seed. Few take no generator, such as dropout on a
    GPU: while one runs, the state of the process's generator is that of this one. A model that
    calls `torch.manual_seed` seeds the generators of this mode. What writes a parameter in place,
    as a model that rescales its layers does, writes to a copy, which is dropped at the end.
    """

    supports_higher_order_operators = True  # which do neither themselves

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._written: dict[nn.Parameter, Tensor] = {}  # what each held before
        self._outside: Any = None  # the token of the mode around this one
        self.was_needed = False

    def __enter__(self) -> Self:
        compat.wrap_once(torch, "manual_seed", _of_this_thread)
        self._outside = _isolated.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        _isolated.reset(self._outside)
        for parameter, before in self._written.items():
            parameter.data = before
        self._written.clear()

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of this mode anew."""
        self._seed = seed
        self._generators.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {**(kwargs or {})}
        parameter = args[0] if args and isinstance(args[0], nn.Parameter) else None
        if parameter is not None and compat.is_in_place(func) and parameter not in self._written:
            self.was_needed, self._written[parameter] = True, parameter.data
            parameter.data = parameter.data.clone()
        if not compat.draws(func, args, kwargs):
            return func(*args, **kwargs)
        named = kwargs.get("device") or torch.get_default_device()
        device = torch.device(next((x.device for x in args if isinstance(x, Tensor)), named))
        if device.type == "meta":
            return func(*args, **kwargs)
        self.was_needed = True
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        generator = self._generators[device]
        if (operator := compat.with_generator(func)) is not None:
            return operator(*args, **{**kwargs, "generator": generator})
        with _drawing, _in_place_of_default(generator):
            return func(*args, **kwargs)


_isolated: ContextVar[IsolatedRun | None] = ContextVar("isolated_run", default=None)


def _of_this_thread(manual_seed: Callable[[Any], torch.Generator]) -> Callable[..., Any]:
    """Return `torch.manual_seed` that seeds the mode of this thread, if there is one."""

    def seed_here(seed: Any) -> torch.Generator:
        if (mode := _isolated.get()) is None:
            return manual_seed(seed)
        mode.manual_seed(int(seed))
        return torch.default_generator

    return seed_here


@contextmanager
def _in_place_of_default(generator: torch.Generator) -> Iterator[None]:
    is_cuda = generator.device.type == "cuda"
    index = generator.device.index or 0
    default = torch.cuda.default_generators[index] if is_cuda else torch.default_generator
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(default.get_state())
        default.set_state(before)
