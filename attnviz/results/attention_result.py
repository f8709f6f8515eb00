"""All attentions of a text with their proof, and the maps that are drawn from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

import attnviz
from attnviz.errors import InputError, whole_number
from attnviz.results.attention_record import AttentionRecord
from attnviz.results.base import Rules, Savable, as_html, is_image
from attnviz.results.recompute import STAGES
from attnviz.results.report import AgreementReport
from attnviz.results.streamed import StreamedAttention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console, ConsoleOptions, RenderResult

Special = Literal["keep", "hide", "remove"]
_TOO_LONG = (
    "Expected whole maps, but of this text of {:,} tokens only summaries were kept. Give a shorter "
    'one, or ask for whole maps: attend(text, mode="full"), or --mode full.'
)


@dataclass(frozen=True)
class Provenance(Savable):
    """Where a result comes from.

    model, weights_sha256 : which weights. text, pair : what was read, None where no text was.
    target : what the decoder of an encoder–decoder read. dtype, device : how. versions : of
    attnviz, torch and transformers. cut_from : how many tokens a text had that was cut to what the
    model can read, else None. image, audio : what an image or a sound is called, with its size or
    its length; None without one. generated : what the model said by itself, where it was let.
    """

    model: str
    weights_sha256: str
    text: str | None
    pair: str | None
    dtype: str
    device: str
    versions: dict[str, str]
    target: str | None = None
    cut_from: int | None = None
    image: str | None = None
    audio: str | None = None
    generated: str | None = None


@dataclass(frozen=True, eq=False)
class AttentionResult(Savable):
    """Every attention of one model on one input, with the proof that it is the model's own.

    Iterating gives the records in the order of execution. `image` is the picture as the model saw
    it, resized and cropped, (H, W, 3) uint8; None where it read none. Of a text that is too long
    for whole maps there are no records: `streamed` tells what is kept of each attention.
    """

    records: tuple[AttentionRecord, ...]
    agreement: AgreementReport
    provenance: Provenance
    image: Tensor | None = None
    streamed: tuple[StreamedAttention, ...] = ()

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        read = (self.provenance.text, self.provenance.image, self.provenance.audio)
        return (
            f"AttentionResult({', '.join(repr(part[:40]) for part in read if part)}, "
            f"{self.provenance.model}, "
            f"{len(self._all)} attentions, {self.agreement.verdict}"
            f"{', streamed' if self.streamed else ''})"
        )

    def _rules(self) -> Rules:
        yield "one attention or more", len(self) > 0
        yield "an image in colors", is_image(self.image)
        for record in self.records:
            record.check()

    def _number_rules(self) -> Rules:
        records = [*self.records, *(each.record for each in self.streamed if each.record)]
        yield (
            "numbers where it says that they were verified",
            self.agreement.verdict != "verified" or all(record.finite for record in records),
        )

    def about(self) -> dict[str, Any]:
        """Return the stacks, the provenance and the agreement, in types that JSON knows."""
        return {
            "stacks": list(self.stacks),
            "notes": [],
            "provenance": asdict(self.provenance),
            "agreement": self.agreement.about(),
        }

    def plot(self, **keywords: Any) -> Axes:
        """Draw the attention map of one head: see `attnviz.plot.heatmap`."""
        return attnviz.plot.heatmap(self, **keywords)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the stages of every head, and how far they agree."""
        return as_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print for each stage the largest difference over all layers and heads."""
        from rich.table import Table
        from rich.text import Text

        agreement = self.agreement
        table = Table("stage", "compared", "largest difference", "of what passes", "", box=None)
        others = {check.stage: None for check in agreement.checks if check.stage not in STAGES}
        for stage in (*STAGES, *others):
            checks = [check for check in agreement.checks if check.stage == stage]
            if not checks:
                table.add_row(stage, "0", "not compared", "", "")
                continue
            failed = any(not check.passed for check in checks)
            table.add_row(
                stage,
                f"{sum(check.compared for check in checks):,}",
                f"{agreement.largest_difference(stage):.1e}",
                f"{max(check.strain for check in checks):.0%}",
                Text("differs", "bold red") if failed else Text("agrees", "green"),
            )
        yield Text(f"{self.provenance.model}, {agreement.dtype}, {agreement.device}", "bold")
        yield table
        for reason in sorted({reason for _, _, reason in agreement.not_compared}):
            yield Text(f"not compared: {reason}")
        layers = len(self)
        caught = layers - len(agreement.unproven)
        yield Text(f"a scale 1 % off, planted on purpose: caught in {caught} of {layers} layers")

    def __iter__(self) -> Iterator[AttentionRecord]:
        """Iterate over the records; InputError where a long text left none."""
        return iter(one_result(self).records)

    def __len__(self) -> int:
        """Return the number of attentions."""
        return len(self._all)

    @property
    def _all(self) -> tuple[AttentionRecord | StreamedAttention, ...]:
        return self.streamed or self.records

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the model, in the order of execution: "encoder", "decoder", "cross"."""
        return tuple(dict.fromkeys(each.stack for each in self._all))

    def stack(self, name: str | None = None) -> AttentionResult:
        """Return the same result with the records of one stack.

        Parameters
        ----------
        name : one of `stacks`; by default "cross" where there is one, since it relates the two
            texts of an encoder–decoder.

        Raises
        ------
        InputError : no such stack.
        """
        if name is None:
            name = "cross" if "cross" in self.stacks else self.stacks[0]
        if name not in self.stacks:
            raise InputError(
                f"Expected a stack of {self.provenance.model}, {' or '.join(self.stacks)}, "
                f"got {name!r}. Choose one that it has, or none."
            )
        return replace(
            self,
            records=tuple(each for each in self.records if each.stack == name),
            streamed=tuple(each for each in self.streamed if each.stack == name),
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of the default stack, or those that were kept of a long text."""
        return tuple(each.layer for each in self.stack()._all)

    def record(self, layer: int) -> AttentionRecord:
        """Return the record of a layer, of the default stack if there are several (`stack`).

        Raises
        ------
        InputError : no such layer, or only its summary was kept.
        """
        found = self.layer(layer)
        if isinstance(found, AttentionRecord):
            return found
        raise InputError(_TOO_LONG.format(len(found.query_axis)))

    def layer(self, layer: int) -> AttentionRecord | StreamedAttention:
        """Return what there is of a layer: its record, or what was kept of a long text.

        Raises
        ------
        InputError : no such layer.
        """
        every, layer = self.stack()._all, whole_number(layer, "a layer")
        for each in every:
            if each.layer == layer:
                return each
        if self.streamed and len(every) < self.streamed[0].layers:
            kept = ", ".join(map(str, self.layers))
            raise InputError(
                f"Expected one of the layers that were kept, {kept}, got {layer}. Ask for it: "
                f"attend(text, layers=[{layer}])."
            )
        raise InputError(
            f"Expected a layer from 0 to {len(every) - 1}, got {layer}. "
            f"{self.provenance.model} has {len(every)} layers, counted from 0."
        )

    def weights(self, layer: int, head: int | None = None) -> Tensor:
        """Return the weights of a layer: (m, n) for one head, else (H, m, n).

        Raises
        ------
        InputError : no such layer or head.
        """
        if head is not None:
            self.check_head(layer, head)
        return self.record(layer).weights(head)

    def check_head(self, layer: int, head: int) -> None:
        """Raise InputError unless the layer has this head."""
        found, head = self.layer(layer), whole_number(head, "a head")
        if not 0 <= head < found.heads:
            raise InputError(
                f"Expected a head from 0 to {found.heads - 1}, got {head}. Layer {layer} of "
                f"{self.provenance.model} has {found.heads} heads, counted from 0."
            )
        if isinstance(found, StreamedAttention):
            found.of_head(head)


def one_result(given: object, *, streamed: bool = False) -> AttentionResult:
    """Return a result as it is; raise InputError for anything else, a list of them among it.

    streamed : whether one of a text that is too long for whole maps will do.
    """
    if isinstance(given, AttentionResult):
        if given.streamed and not streamed:
            raise InputError(_TOO_LONG.format(len(given.streamed[0].query_axis)))
        return given
    got = f"{len(given)} in a list" if isinstance(given, list) else type(given).__name__
    hint = "Choose one: results[0]." if isinstance(given, list) else "Make one: attend(text)."
    raise InputError(f"Expected a result of attend, got {got}. {hint}")
