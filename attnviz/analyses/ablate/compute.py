"""Ablate heads, and measure what the output of the model loses without each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Unpack

import torch
from torch import Tensor

from attnviz.agreement import check_hidden_states
from attnviz.analyses.ablate.result import AblationResult
from attnviz.analyses.explain.compute import find_prediction
from attnviz.analyses.shift.compute import read_word
from attnviz.attribution.interventions import Ablation, Head, HeadRun, outputs_of, replace_outputs
from attnviz.attribution.methods import attempt
from attnviz.attribution.prediction import Prediction, logits_at
from attnviz.attribution.reference import Reading, encode_like, read
from attnviz.attribution.target import Readout, Target
from attnviz.attribution.tracing import tracing
from attnviz.errors import InputError
from attnviz.inputs import Inputs, Many, parse_inputs
from attnviz.inputs.text import spelled
from attnviz.inputs.tokens import TextSource
from attnviz.pipeline.attend import Loadable, Model, Source, parse_source
from attnviz.results import AgreementReport
from attnviz.results.arguments import checked_scalars, fits
from attnviz.results.axis import locate_known
from attnviz.runtime import track
from attnviz.runtime.libraries import silence_logs


@checked_scalars
@torch.inference_mode(False)
@silence_logs()
def ablate(
    texts: TextSource | Many[str] | Many[TextSource] | None = None,
    *,
    target: str | None = None,
    against: str | None = None,
    word: str | None = None,
    heads: Literal["all"] | Sequence[Head | Sequence[Head]] = "all",
    how: Ablation | None = None,
    knock_out: str | None = None,
    patch: TextSource | None = None,
    effect: Literal["total", "direct"] = "total",
    keep_sink: bool = True,
    model: Model | Loadable | None = None,
    **inputs: Unpack[Source],
) -> AblationResult:
    """Measure what the output of a model loses without each head, or each set of heads, exactly.

    Parameters
    ----------
    texts : str, ids, BatchEncoding, messages, or a list of these
        One text, or several, as in `attend`: the result then has means with intervals.
    target : str, optional
        The token or class whose log-probability is measured, not the text of a decoder, as in
        `attend`. By default the most probable one in each text.
    against : str, optional
        Another token or class: the difference of both logits is measured.
    word : str, optional
        A word of the texts: how far its vector moves is measured, in place of a prediction. "the#2"
        is the second "the". Models without a head for tokens or classes need it.
    heads : "all" or sequence, optional
        The heads to ablate, by layer and head; those of a set are ablated together. By default all
        heads, one by one.

        A head is (layer, head), and a set a sequence of heads.
    how : {"mean", "zero", "resample"}, optional
        What replaces the output of a head: its mean over the positions of all texts (the default),
        zeros, or its outputs in the next text (in the same text, from its middle on, if there is
        only one).
    knock_out : str, optional
        A word of the texts: the heads lose only their attention to it.
    patch : str, ids or messages, optional
        Another text with as many tokens: the heads have the outputs that they have there.
    effect : {"total", "direct"}
        "total" recomputes everything after the heads. "direct" ablates them only where the output
        is read, and fixes all other heads: it leaves the path through the MLPs of that position.
    keep_sink : bool, default True
        Keep the output of the heads at the attention sink, the first token of a causal model.
        Without its sink such a model computes what it never computes otherwise.
    model : Model, str, path or module, optional
        From `load`, or what `load` takes.
    **inputs
        Further inputs of `attend`: `pair`, `truncate`, `special_tokens`.

    Returns
    -------
    AblationResult
        What is lost, the divergence of the predicted distributions, and the estimate of the
        gradient, for each text and set of heads.

    Raises
    ------
    InputError
        No text, an input that is no text, a head that does not exist, a word that is not in each
        text, a text to patch from with another number of tokens, or options that exclude each
        other.
    ModelError
        The model predicts neither tokens nor classes and no `word` is given, or its attention
        cannot be traced.

    Examples
    --------
    >>> import attnviz
    >>> lost = attnviz.ablate("the train left the station", word="train", heads=[(0, 1), (5, 3)])
    >>> print(lost.headline)
    The vector of “train” moves by 9% of its length without head 0.1
    >>> lost.names
    ('0.1', '5.3')
    >>> lost.mean
    tensor([0.0947, 0.0316], dtype=torch.float64)
    """
    if word is not None and (target is not None or against is not None):
        raise InputError(
            "A word and a target are given. Give a word to measure its vector, or a target to "
            "measure its prediction."
        )
    if how is not None and (knock_out is not None or patch is not None):
        raise InputError("Neither knocking a word out nor patching needs how. Leave it out.")
    if knock_out is not None and patch is not None:
        raise InputError("A word to knock out and a text to patch from are given. Give one.")
    if knock_out is not None and effect == "direct":
        raise InputError("Knocking a word out has a total effect only. Leave out effect=direct.")
    sets = None if isinstance(heads, str) and heads == "all" else _as_sets(heads)
    replaced: Ablation = how or ("mean" if knock_out is None and patch is None else "zero")
    model, source, truncate = parse_source("ablate", model, texts, inputs, several=True)
    listed = list(source.one_by_one()) if source.texts else [source]
    sites = [_find_site(model, one, target, against, word, truncate) for one in listed]
    outputs = _outputs_elsewhere(sites, replaced, patch)
    ablation: Ablation = replaced if patch is None else "resample"
    pairs = track([*zip(sites, outputs, strict=True)], "each head")
    options = ablation, knock_out, effect, keep_sink
    measured = [_ablate_text(site, sets, others, *options) for site, others in pairs]
    first, predicted, spelled_patch = measured[0], sites[0].prediction, None
    agreement, rounding = _verify(sites, torch.cat([one.unchanged for one in measured]))
    if patch is not None:
        (text,) = parse_inputs(patch).texts or ("",)
        spelled_patch = spelled(model.checkpoint, text)[0]
    done, condition = _describe(replaced, knock_out, spelled_patch, several=len(listed) > 1)
    return AblationResult(
        sets=first.sets,
        layers=first.layers,
        heads=first.heads,
        lost=torch.stack([one.effects[:, 0] for one in measured]),
        divergence=torch.stack([one.effects[:, 1] for one in measured]),
        estimate=torch.stack([one.estimate for one in measured]),
        texts=tuple(site.text for site in sites),
        targets=tuple(site.label for site in sites),
        quantity="vector" if predicted is None else predicted.number,
        how=done + first.where,
        condition=condition,
        effect=effect,
        notes=tuple(dict.fromkeys(note for site in sites for note in site.notes)),
        agreement=agreement,
        rounding=rounding,
        provenance=sites[0].reading.result.provenance,
    )


def _outputs_elsewhere(
    sites: Sequence[_Site], how: str, patch: TextSource | None
) -> list[list[list[Tensor]]]:
    """Return for each text the outputs of the heads in the texts that replace them."""
    if patch is None and (how == "zero" or len(sites) == 1):
        return [[] for _ in sites]
    with tracing(sites[0].target.model):
        if patch is not None:
            name = "The text to patch from"
            read = [encode_like(one.target.model, patch, one.reading, name) for one in sites]
            pairs = zip(sites, read, strict=True)
            return [[outputs_of(site.target, batch.inputs)] for site, batch in pairs]
        outputs = [outputs_of(site.target) for site in sites]
    if how == "mean":
        return [outputs for _ in sites]
    return [[outputs[(number + 1) % len(sites)]] for number in range(len(sites))]


def _as_sets(heads: object) -> list[tuple[Head, ...]]:
    """Return sets of heads; a head alone is a set of one."""
    listed = tuple(heads) if isinstance(heads, Iterable) else ()
    sets = [[one] if fits(one, Head) else one for one in listed]
    if not sets or not all(fits(one, Sequence[Head]) and one for one in sets):
        raise InputError(
            'heads must be "all", or pairs of a layer and a head, such as (5, 3), not '
            f"{heads!r:.60}."
        )
    numbers = ([(int(layer), int(head)) for layer, head in one] for one in sets)
    return list(dict.fromkeys(tuple(dict.fromkeys(one)) for one in numbers))


@dataclass(frozen=True, eq=False)
class _Site:
    """Where the output of one text is read, and how it is measured."""

    reading: Reading
    target: Target
    prediction: Prediction | None  # what is measured of logits (n, V); None for a vector
    label: str  # the token, class or word
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text as it was given, or spelled out."""
        (given,) = self.reading.source.texts or (None,)
        return given if isinstance(given, str) else self.reading.result.provenance.text or ""

    def measure(self, unchanged: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what measures loss and divergence (n, 2) of outputs (n, d) beside `unchanged`."""
        number, before = self.prediction, unchanged.double()
        # If the softmax of the logits is what the model predicts.
        shares = before.softmax(-1) if number is not None and number.log else None

        def effects(outputs: Tensor) -> Tensor:
            after = outputs.double()
            if number is None:  # how far the vector moved, as a share of its length
                lost = (after - before).norm(dim=1, keepdim=True) / before.norm()
            else:
                lost = number(before) - number(after)
            divergence = torch.full_like(lost, torch.nan)
            if shares is not None:
                cross_entropy = after.logsumexp(-1) - (after @ shares.T)[:, 0]
                divergence = (cross_entropy - torch.special.entr(shares).sum())[:, None]
            return torch.cat([lost, divergence], dim=1).cpu()

        return effects


@dataclass(frozen=True, eq=False)
class _Logits(Readout):
    """All logits at the position that is explained, (N, V), or of the classes."""

    def __call__(self, output: Tensor) -> Tensor:
        return logits_at(output, self.rows)


def _find_site(
    model: Model,
    text: Inputs,
    target: str | None,
    against: str | None,
    word: str | None,
    truncate: bool,
) -> _Site:
    if word is not None:
        reading, site = read_word(model, word, text, truncate=truncate)
        return _Site(reading, site, None, word, reading.notes)
    site, choices = find_prediction(read(model, text, truncate=truncate), model, target, against)
    readout, reading = site.readout, choices.reading
    assert isinstance(readout, Prediction)
    if against is None:  # `explain` compares with the second choice where no target is given
        readout = replace(readout, against=None)
    label = choices.label(readout.choice)
    if readout.against is not None:
        label += f" over {choices.label(readout.against)}"
    site = replace(site, readout=_Logits(readout.module, readout.rows))
    return _Site(reading, site, readout, label, (*choices.notes, *reading.notes))


@dataclass(frozen=True, eq=False)
class _OneText:
    """The effects in one text, and what is read without an ablation."""

    sets: tuple[tuple[Head, ...], ...]
    layers: int
    heads: int
    effects: Tensor  # lost and divergence, (S, 2)
    estimate: Tensor  # (S,), NaN where there is none
    where: str  # the positions, for a caption
    unchanged: Tensor  # (1, d)


def _ablate_text(
    site: _Site,
    sets: Sequence[tuple[Head, ...]] | None,
    others: Sequence[Sequence[Tensor]],
    how: Ablation,
    knock_out: str | None,
    effect: str,
    keep_sink: bool,
) -> _OneText:
    target, groups = site.target, site.reading.groups
    hidden: Sequence[int] = ()
    if knock_out is not None:
        hidden = groups.positions[locate_known(knock_out, groups, site.reading.tokens)]
    with tracing(target.model):
        run = HeadRun.of(target, keep_sink=keep_sink)
        chosen = tuple(run.every_head if sets is None else sets)
        replacement = replace_outputs(run, how, others)
        unchanged = run.numbers.detach()
        measure, is_direct = site.measure(unchanged), effect == "direct"
        effects = run.without(
            chosen, replacement, measure=measure, hidden=hidden, is_direct=is_direct
        )
        estimate = torch.full((len(chosen),), torch.nan, dtype=torch.float64, device="cpu")
        if site.prediction is not None and not hidden and effect == "total":
            with torch.enable_grad():
                number = site.prediction(run.numbers).sum()
            table, _ = attempt(lambda: run.estimate(number, replacement))
            if table is not None:  # the model has gradients
                estimate = torch.stack([sum(table[head] for head in one) for one in chosen])  # type: ignore[misc]
    kept = len(run.rows) < target.ids.shape[1]
    where = "" if effect == "direct" or hidden else " at all positions"
    where += " but the attention sink" if where and kept else ""
    size = len(run.mixes), run.heads
    return _OneText(chosen, *size, effects, estimate, where, unchanged.double().cpu())


def _describe(how: str, knock_out: str | None, patch: str | None, several: bool) -> tuple[str, str]:
    """Return what happens to the heads, in words, and when something is lost, for a headline."""
    if knock_out is not None:
        hidden = f"may not attend to “{knock_out}”"
        return f"the head {hidden}", f"when {{heads}} {hidden}"
    if patch is not None:
        return f"the output of the head is that in “{patch}”", f"with {{heads}} as in “{patch}”"
    becomes = {
        "zero": "set to zero",
        "mean": f"replaced by its mean over {'all texts' if several else 'the text'}",
        "resample": f"that {'in another text' if several else 'at other positions'}",
    }
    return f"the output of the head is {becomes[how]}", "without {heads}"


def _verify(sites: Sequence[_Site], ours: Tensor) -> tuple[AgreementReport, float]:
    """Return a report on the outputs, (N, d), from which effects are subtracted, and rounding."""
    report = AgreementReport.joined(site.reading.result.agreement for site in sites)
    loaded = torch.cat([site.target.as_loaded() for site in sites])
    difference, eps = (ours - loaded).abs().max(), torch.finfo(getattr(torch, report.dtype)).eps
    if sites[0].prediction is None:  # what is measured is a share of the length
        return check_hidden_states(report, ours, loaded, name="vectors"), eps
    rounding = max(difference, eps * loaded.abs().max())
    return check_hidden_states(report, ours, loaded, name="logits"), float(rounding)
