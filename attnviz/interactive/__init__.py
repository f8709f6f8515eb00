"""Interactive pages that work offline: what they show, and the built front end in `static/`."""

from __future__ import annotations

import base64
import html
import json
import math
import os
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, cached_property, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch

from attnviz.analyses.explain.result import CHANGES, SPLIT, ExplainResult
from attnviz.analyses.explore.result import ExploreResult
from attnviz.analyses.maps.compute import choose_head
from attnviz.errors import InputError, refuse_given, require
from attnviz.figures.cells import signed_norm
from attnviz.interactive.payload import compact_json, make_payload, shape
from attnviz.io import PAGE_SUFFIXES, atomic, check_folder, check_output, translated
from attnviz.models import BUNDLED
from attnviz.models.checkpoint import locate_checkpoint
from attnviz.pipeline.attend import Loadable, Model, OneInput, attended, load
from attnviz.results import AgreementReport, AttentionResult, one_result
from attnviz.results.arguments import checked_scalars
from attnviz.results.base import finite
from attnviz.results.text import literal, signed, source

if TYPE_CHECKING:
    from attnviz.inputs.tokens import TextSource
    from attnviz.interactive.widget import AttentionWidget

Show = Literal["grid", "head", "token", "steps"]
_SHORT = 300_000  # weights of all heads of a sentence, at most
_SENTENCE_SIZE, _TEXT_SIZE = 0.5, 8.0  # megabytes
_DOCUMENT_BYTES = 3_000  # of the page beside data and front end
_NAMED = 3  # words with the largest contributions that the headline of an explanation names
_LONGEST = 24  # letters of a word in a sentence
_PART = 6_000_000  # bytes of the model in a file of a live page
_TURN = 0x5800  # is added to codes: then those that no text may have are the rarest
_CONFIG = ("num_hidden_layers", "num_attention_heads", "hidden_size", "layer_norm_eps")
_CHECKED = "The train left the station on time.", "We sat on the bank of the river."
_LIVE = ("index.html", "attnviz.lesson.js", "attnviz.lesson.css")


class View:
    """An interactive page that works offline. A notebook shows it.

    Examples
    --------
    >>> import attnviz
    >>> from tempfile import TemporaryDirectory
    >>> page = attnviz.view(attnviz.attend("the train left the station"))
    >>> with TemporaryDirectory() as folder:
    ...     page.save(f"{folder}/train.html")
    >>> page.html[:15]
    '<!doctype html>'
    """

    def __init__(
        self, shown: Sequence[Any], title: str, collect: Callable[[], dict[str, Any]], template: str
    ) -> None:
        """Show some results. collect : returns the data that the template writes into the page."""
        self._shown, self._title, self._collect, self._template = shown, title, collect, template

    def __repr__(self) -> str:
        return f"View({', '.join(map(repr, self._shown))}): .save('view.html')"

    @property
    def checked_agreement(self) -> AgreementReport:
        """How far the weights that it shows agree with the model's."""
        return AgreementReport.joined(one.checked_agreement for one in self._shown)

    @cached_property
    def _data(self) -> dict[str, Any]:
        return self._collect()

    @cached_property
    def html(self) -> str:
        """The page as one HTML document, for a frame of its own: it loads nothing."""
        from jinja2 import Environment, PackageLoader

        environment = Environment(loader=PackageLoader("attnviz.interactive", ""), autoescape=True)
        environment.globals["static"] = static_file
        # By the hashes, only its own script and style can run in it.
        environment.globals["sha256"] = lambda text: _base64(sha256(text.encode()).digest())
        template = environment.get_template(self._template)
        return template.render(data=compact_json(self._data), shown=self._data)

    def _repr_html_(self) -> str:
        """Return the document in a sandboxed frame, in ASCII."""
        frame = (
            f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="720" '
            f'frameborder="0" title="{html.escape(self._title)}" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )
        return frame.encode("ascii", "xmlcharrefreplace").decode("ascii")

    @checked_scalars
    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the page to a file ending in .html; `force` overwrites also a read-only one.

        InputError or OutputError: the name ends otherwise, or the file cannot be written.
        """
        path = check_output(path, PAGE_SUFFIXES, force=force)
        with atomic(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8", newline="\n")

    @checked_scalars
    def save_live(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder whose page runs the bundled model in the browser, on any text.

        The page works offline, also from disk, and begins with the text of this one. It compares
        itself with PyTorch when it is opened, and lets its reader change the model. The folder has
        47 MB: the matrices of the model, rounded to 16 bits a number. Its files are overwritten.

        Parameters
        ----------
        folder : str or path
            It may be missing as yet.

        Raises
        ------
        InputError, OutputError
            The page is not that of one text read by the bundled model, or cannot be written.
        """
        check_folder(folder)
        read, *others = (one.provenance for one in self._shown)
        if others or read.weights_sha256 != BUNDLED.sha256 or not read.text or read.pair:
            raise InputError("A live page begins with one text, read by the bundled model.")
        data, numbers = _live_data()
        shown = self._data["payload"]
        data |= {"start": shown["start"] | {"text": read.text}, "scale": shown["scale"]}
        files = {name: static_file(name).encode() for name in _LIVE}
        for n, part in enumerate(codes := numbers.view(torch.int16).split(_PART // 2)):
            turned = (part + _TURN).numpy().tobytes().decode("utf-16-le", "surrogatepass")
            script = f"attnvizPart({json.dumps(turned, ensure_ascii=False)})"
            files[f"model.{n}.js"] = script.encode("utf-16-le", "backslashreplace")
        data["sums"] = [zlib.adler32(part.numpy()) for part in codes]
        files["data.js"] = f"attnvizData={compact_json(data)}".encode()
        with translated(folder := Path(folder), "written"):
            folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with atomic(folder / name) as temporary:
                temporary.write_bytes(content)

    def data(self) -> dict[str, Any]:
        """Return the data of the front end: of attentions, "payload" and "blocks"."""
        return dict(self._data)

    def widget(self) -> AttentionWidget:
        """Return the page of attentions as a widget whose selection Python can read and set.

        Raises
        ------
        InputError
            anywidget is not installed, or the page is that of an ExploreResult.
        """
        require("anywidget", "widget", "The widget needs")
        from attnviz.interactive.widget import AttentionWidget

        if "payload" not in self._data:
            raise InputError("The page of explore is no widget. Display the page itself.")
        start = self._data["payload"]["start"]
        selection = {name: start[name] for name in ("view", "stack", "layer", "words")}
        selection |= {"heads": [start["head"]], "query": None, "key": None}
        return AttentionWidget(**self._data, selection=selection)


@checked_scalars
def view(
    result: AttentionResult | ExploreResult | TextSource | None = None,
    *,
    compare: AttentionResult | None = None,
    layer: int | None = None,
    head: int | None = None,
    show: Show = "grid",
    words: bool = True,
    explain: ExplainResult | Sequence[ExplainResult] | None = None,
    size: float | None = None,
    model: Model | Loadable | None = None,
    **inputs: Unpack[OneInput],
) -> View:
    """Return all attentions of a text, or all heads of a model, as one interactive page.

    A notebook displays the page; `.save("view.html")` writes it, and a browser opens the file
    without a network. The page states the largest error of its weights.

    Parameters
    ----------
    result : AttentionResult, ExploreResult, or a text as in `attend`
        From `attend`, also of a long text; from `explore`, with no other argument; or what a model
        reads.
    compare : AttentionResult, optional
        A second result of the same layers and heads. The page opens on the difference. Texts of up
        to 64 tokens are aligned by their words, longer ones need the same number of tokens.
    layer, head : int, optional
        The layer or head to show first, counted from 0. By default the head that relates the
        content words of the text most.
    show : {"grid", "head", "token", "steps"}, optional
        What to show first: all heads; the lines and the map of one head; the row of one word in
        every head; or how a weight is computed.
    words : bool, optional
        Merge word pieces into words at first.
    explain : ExplainResult or sequence of ExplainResult, optional
        From `explain_generation`: pointing at a generated token colors the words before it by their
        contributions to it. By default pointing at a token shows its attention. Or from `explain`
        with `groups`: pointing at a word of the answer lights the part that raised it most.
    size : float, optional
        The largest page, in megabytes; by default 0.5 for a sentence and 8 for a longer text. It
        decides how exact weights are and of how many heads the page holds queries and keys.
    model, **inputs
        As in `attend`, for what is no result yet.

    Returns
    -------
    View

    Raises
    ------
    InputError
        The layer, head or view does not exist, the second result has another shape, the
        explanations are of other tokens, or the size is too small to show every head.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> page = attnviz.view(result, show="head", layer=5, head=3)  # a notebook displays it
    """
    if isinstance(result, ExploreResult):
        refuse_given(
            "the page of explore has no options. Give only the result.",
            compare=compare,
            layer=layer,
            head=head,
            show=show != "grid",
            words=not words,
            explain=explain,
            size=size,
            model=model,
            **inputs,
        )
        title = f"What the heads of {result.provenance.model} do"
        return View([result], title, result.payload, "explore.jinja")
    result = attended(result, model, inputs)
    results = [result]
    if compare is not None:
        if explain is not None:
            raise InputError("A page of two results has no explanations. Leave one out.")
        results.append(one_result(compare, streamed=True))
        _expect_same_shape(*results)
    layer, (head,), _ = choose_head(result, layer, head)
    if show == "steps" and not result.streamed:
        result = result.without_linear("steps need")
        result.record(layer).expect_vectors("steps need")
    start = {
        "stack": result.stack().stacks[0],
        "layer": layer,
        "head": head,
        "view": show,
        "words": words,
    }
    placed: dict[str, Any] = {}
    several = [explain] if isinstance(explain, ExplainResult) else explain
    if several and len(several) == 1 and several[0].parts:
        placed = {"sources": place_parts(result, several[0])}
    elif several is not None:
        placed = {"explanations": place_explanations(result, several)}
    limit = _data_limit(results, size)
    title = f"Attention of {source(results[0].provenance)}"
    collect = partial(make_payload, results, start, limit, placed)
    return View(results, title, collect, "view.jinja")


def _data_limit(results: Sequence[AttentionResult], size: float | None) -> int:
    if size is None:
        attentions = [a for result in results for a in result.attentions]
        cells = sum(a.heads * len(a.query_axis) * len(a.key_axis) for a in attentions)
        size = _SENTENCE_SIZE if cells <= _SHORT * len(results) else _TEXT_SIZE
    elif not size > 0:
        raise InputError(f"size={size!r} is no page size. Give megabytes above 0.")
    front_end = len(static_file("attnviz.iife.js")) + len(static_file("attnviz.css"))
    return int(min(size, 1e6) * 1e6) - front_end - _DOCUMENT_BYTES


def _expect_same_shape(first: AttentionResult, second: AttentionResult) -> None:
    attentions = [result.attentions for result in (first, second)]
    if [*map(shape, attentions[0])] == [*map(shape, attentions[1])]:
        return
    sizes = [
        f"{len(every)} × {len(every[0].kept)} on {every[0].query_axis.padding.count(False):,}"
        for every in attentions
    ]
    raise InputError(
        "Only results of the same shape can be compared weight by weight, but these have layers × "
        f"heads on tokens: {sizes[0]} and {sizes[1]}. Use one model and one mode, and for more "
        "than 64 tokens texts of the same length."
    )


def place_explanations(
    result: AttentionResult, explanations: Sequence[ExplainResult]
) -> list[dict[str, Any]]:
    """Return what a page of a generation shows of the explanations of its tokens."""
    labels = result.stack().records[0].query_axis.labels
    placed: dict[int, dict[str, Any]] = {}
    for explanation in explanations:
        tokens = explanation.tokens
        has_first = tokens != labels[: len(tokens)]  # a token that is read before the text
        position = len(tokens) - 1 if has_first else len(tokens)
        if tokens[-position:] != labels[:position]:
            raise InputError(
                f"{explanation.question} is no token of this result after the same text. Explain "
                "the tokens of the same generation: explain_generation(text, generate=…)."
            )
        if position < len(labels):  # the model has not read its last token
            placed[position] = describe_explanation(explanation, position)
    if not placed:
        raise InputError(
            "None of the explained tokens is shown: the model does not read the last token that it "
            "generates. Generate one token more."
        )
    return [placed[position] for position in sorted(placed)]


def place_parts(result: AttentionResult, why: ExplainResult) -> dict[str, Any]:
    """Return what a page of a text shows of its parts: what raised the answer, and each word."""
    labels, change = result.attentions[0].query_axis.labels, CHANGES[next(iter(why.causal))][1]
    first = int(why.tokens[:1] != labels[:1])  # a token that is read before the text
    places = [[row - first for row in rows if row >= first] for rows in why.positions]
    end = max((row for rows in places for row in rows), default=0) + 1
    report = why.checked_agreement
    if why.tokens[first : first + end] != labels[:end]:
        raise InputError("The explanation is of another text than the page. Explain this text.")
    table = why.effect[None] if why.by_answer is None else why.by_answer
    top = signed_norm([4 * why.least, *table.flatten().tolist()]).vmax or 1.0
    rows = [(why.finding, why.strongest, why.effect)]
    for word, lost in zip(why.answer or (why.target,), table, strict=True):
        order = sorted(why.sources, key=lost.neg().tolist().__getitem__)[:2]
        order = [n for n in order if lost[n] >= why.least]
        told = [f"{why.name(n)} {{}} {signed(float(lost[n]))}" for n in order]
        says = f" {why.unit}; next is ".join(map(str.format, told, ("raises it by", "with")))
        says = says or f"no {why.parts} alone raises it by {signed(why.least)} {why.unit}"
        rows.append((f"“{literal(word, _LONGEST)}”: {says}.", order[0] if order else None, lost))
    return {
        "parts": why.parts,
        "places": places,
        "words": [literal(word, _LONGEST) for word in why.answer or (why.target,)],
        "headline": why.headline,
        "rows": [
            {"said": said, "lit": lit, "lost": [*map(signed, lost.tolist())]}
            | ({} if lit is None else {"share": round(float(lost[lit]) / top, 3)})
            for said, lit, lost in rows
        ],
        "details": f"Numbers: {why.unit} that are lost if a {why.parts} is {change}.",
        "alarm": "" if report.verdict == "verified" else f"{report.summary()}.",
    }


def describe_explanation(result: ExplainResult, position: int) -> dict[str, Any]:
    """Return what a page shows of the explanation of the token at its `position`."""
    before = len(result.tokens) - position
    if result.decomposition is None:
        raise InputError(f"{result.question} has no contributions of words, which a page shows.")
    credit = result.decomposition.credit.clone()
    for word in {*range(len(result.words))} - {*result.sources}:
        credit[list(result.positions[word])] = math.nan
    words = result.credit.tolist()
    top = signed_norm(words[index] for index in result.sources).vmax or 1.0
    return {
        "position": position,
        "credit": finite([float(f"{number:.4g}") for number in credit[before:].tolist()]),
        "top": float(f"{top:.4g}"),
        "headline": _headline(result),
        "lowers": f"lowers {result.question}",
        "unit": result.unit,
        "details": _details(result),
        "verdict": result.checked_agreement.verdict,
    }


def _headline(result: ExplainResult) -> str:
    """Return what raised the token most, with numbers: “Paris” over “London”: “Eiffel” +2.10."""
    credit = result.credit.tolist()
    order = sorted(result.sources, key=lambda index: -abs(credit[index]))[:_NAMED]
    words = [f"“{literal(result.names[n], _LONGEST)}” {_with_sign(credit[n])}" for n in order]
    if not words:
        return f"{result.question}: no word before it is measured"
    numbers = f"{', '.join(words)} {result.unit}"
    is_told = result.causal and result.effect[result.sources].abs().max() >= result.least
    if is_told and result.strongest != result.first(result.credit):
        return f"{result.question}: methods disagree, {numbers} by the split"
    return f"{result.question}: {numbers}"


def _details(result: ExplainResult) -> str:
    """Return how the contributions were computed, and how far they agree with the measured ones."""
    value, baseline = signed(result.value), signed(result.baseline)
    numbers = f"the logits differ by {value} here and by {baseline} without context"
    if result.against is None:
        numbers = f"{result.quantity} is {value} here and {baseline} without context"
    parts = [f"Contributions of the words by the split, sum {_with_sign(result.total)}: {numbers}"]
    if not result.causal:
        parts.append("Not compared with measured effects")
    elif SPLIT in result.rank_correlations:
        rho, low, high = map(signed, result.rank_correlations[SPLIT])
        rho = f"{rho} ({low} to {high} over words)"
        parts.append(f"Rank correlation with the measured effects {rho}")
    else:
        parts.append("Too few words for a rank correlation with the measured effects")
    notes = [note for note in result.notes if not note.startswith("the model wrote")]
    parts += [f"{note[0].upper()}{note[1:]}" for note in notes]
    if result.checked_agreement.verdict != "verified":
        parts.append(result.checked_agreement.summary())
    return ". ".join(part.rstrip(".") for part in parts) + "."


def _with_sign(number: float) -> str:
    return f"+{signed(number)}" if number > 0 else signed(number)


def _live_data() -> tuple[dict[str, Any], Any]:
    """Return what a live page needs of the bundled model, and its numbers.

    Of two sentences it has PyTorch's values, with these numbers and with the model's own.
    """
    model: Any = load(device="cpu")
    module, numbers, places = deepcopy(model.module), bytearray(), {}  # its numbers are rounded
    module.set_attn_implementation("eager")
    encoded = [model.tokenizer(text, return_tensors="pt") for text in _CHECKED]
    runs = [partial(module, **inputs, output_attentions=True) for inputs in encoded]
    with torch.no_grad():
        own = [torch.cat(run().attentions) for run in runs]
        for name, tensor in module.state_dict().items():
            places[name] = [len(numbers), *tensor.shape]
            if tensor.dim() == 2:
                scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-30) / 32767
                codes = (tensor / scale).round()
                numbers += codes.short().numpy().tobytes()
                tensor.copy_(codes * scale)
                tensor = scale
            numbers += tensor.numpy().tobytes()
        rounded = [run() for run in runs]
    data: dict[str, Any] = {"model": model.name, "places": places, "part": _PART, "checked": []}
    data["config"] = {name: getattr(module.config, name) for name in _CONFIG}
    vocabulary = locate_checkpoint(None)[1] / "vocab.txt"
    data["vocabulary"] = vocabulary.read_text("utf-8").split("\n")[:-1]
    for text, inputs, ours, theirs in zip(_CHECKED, encoded, rounded, own, strict=True):
        values = {"weights": torch.cat(ours.attentions), "output": ours[0], "exact": theirs}
        floats = {name: _base64(tensor.numpy().tobytes()) for name, tensor in values.items()}
        data["checked"].append({"text": text, "ids": inputs["input_ids"][0].tolist(), **floats})
    return data | {"bytes": len(numbers)}, torch.frombuffer(numbers, dtype=torch.uint8)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


@cache
def static_file(name: str) -> str:
    """Return a file of the built front end, such as attnviz.iife.js or attnviz.css."""
    return (files("attnviz.interactive") / "static" / name).read_text("utf-8")
