"""What took part in a model's run beside its weights."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.results.axis import listed, literal
from attnviz.results.base import Savable

_LONGEST = 80  # characters of an entry


@dataclass(frozen=True)
class Computation(Savable):
    """How a model computes, as it was loaded: what its name and its SHA-256 do not say.

    A path is that of a module: "" for the model itself, "*" for every module of the process.

    Attributes
    ----------
    attention : the attention implementation, "sdpa" for example; of several, joined by commas.
    training : whether the model as a whole is in train mode.
    hooks : path and function of each forward hook and forward pre-hook of the user.
    forwards : path and function of each replaced forward.
    adapters : the names of the adapters that are active or merged.
    quantized : how many layers of each kind are quantized.
    config : of each field that differs from config.json, its value there and its value here.
    buffers : the names of buffers, saved in no file, that differ from what their class computes.
    """

    attention: str
    training: bool
    hooks: tuple[tuple[str, str], ...]
    forwards: tuple[tuple[str, str], ...]
    adapters: tuple[str, ...]
    quantized: dict[str, int]
    config: dict[str, tuple[str, str]]
    buffers: tuple[str, ...] = ()

    @property
    def changes(self) -> str:
        """What the plain model does not have: "1 adapter, 2 hooks"; empty for the plain model."""
        counts = {
            "adapter": len(self.adapters),
            "hook": len(self.hooks),
            "replaced forward": len(self.forwards),
            "quantized layer": sum(self.quantized.values()),
            "changed buffer": len(self.buffers),
        }
        parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
        return ", ".join([*parts, *(["a changed config"] if self.config else [])])

    @property
    def summary(self) -> str:
        """All of it in one line: "sdpa attention; hooks: steering.add on layers.3"."""
        mode = ", in train mode" if self.training else ""
        groups = {
            "adapters": self.adapters,
            "hooks": [_placed(*hook) for hook in self.hooks],
            "replaced forwards": [_placed(*forward) for forward in self.forwards],
            "quantized layers": [f"{count} {kind}" for kind, count in self.quantized.items()],
            "changed buffers": self.buffers,
            "changed config": [f"{name} {old} → {new}" for name, (old, new) in self.config.items()],
        }
        parts = [
            f"{name}: {listed(entries, _LONGEST)}" for name, entries in groups.items() if entries
        ]
        attention = literal(self.attention, _LONGEST)
        return "; ".join([f"{attention} attention{mode}", *parts])


def _placed(path: str, function: str) -> str:
    where = {"": "the model", "*": "every module"}.get(path, path)
    return f"{function} on {where}"
