"""Compute the maps that figures show, and choose heads by how they relate words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.analyses.maps.result import (
    AttentionMap,
    HeadMaps,
    HeadMatch,
    HeadMatches,
    HeadRanking,
    HeadScore,
)
from attnviz.errors import InputError, whole_numbers
from attnviz.heads import resting_heads
from attnviz.results import (
    AttentionRecord,
    AttentionResult,
    Axis,
    AxisGeometry,
    Landmark,
    LinearAttention,
    Special,
    StreamedAttention,
    cell_sizes,
    one_result,
    row_shares,
)
from attnviz.results.arguments import checked, checked_scalars
from attnviz.results.axis import (
    FUNCTION_WORDS,
    TokenGroups,
    content_positions,
    content_words,
    is_content,
    is_word,
    locate_known,
    merge,
    token_groups,
    word_weights,
)

_MOST_CELLS = 2**24  # of an exact part of a long text
_WORDS, _LETTERS = 3, 24  # of a landmark at most


@checked
def attention_map(
    result: AttentionResult,
    *,
    layer: int | Sequence[int],
    head: int | Sequence[int],
    words: bool = True,
    special: Special = "keep",
    rows: slice | None = None,
    columns: slice | None = None,
    notes: Sequence[str] = (),
) -> AttentionMap:
    """Return the attention map of one head, or the mean map of several heads or layers.

    The streamed map of a long text is pooled: a cell covers several tokens, whose columns are
    summed and whose rows are averaged. Parts of it are exact.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    layer : int or sequence of int
        The layer, counted from 0 (-1 is the last), or several layers to average.
    head : int or sequence of int
        The head, counted from 0, or several heads to average.
    words : bool, default True
        Whether to merge word pieces into words.
    special : {"keep", "hide", "remove"}
        Whether to keep special tokens, to hide them (rows then no longer sum to 1), or to remove
        them and renormalize every row to sum to 1.
    rows, columns : slice, optional
        A part of the map, counted from 0: words, or tokens if the map was streamed.
    notes : sequence of str, optional
        Further notes for the caption.

    Returns
    -------
    AttentionMap
        The weights with the labels of rows and columns.

    Raises
    ------
    InputError
        The layer or head does not exist, `special` is unknown, the part is empty, or the layers
        have different positions.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> drawn = attnviz.attention_map(result, layer=2, head=8, special="remove")
    >>> drawn.columns
    ('the', 'train', 'left', 'the', 'station')
    >>> drawn.weights.sum(dim=-1).round(decimals=4)
    tensor([1., 1., 1., 1., 1.])
    """
    layers, heads = whole_numbers(layer, "layer"), whole_numbers(head, "head")
    layers = tuple(dict.fromkeys(result.layer(one).layer for one in layers))
    for one in layers:
        for number in heads:
            result.check_head(one, number)
    attentions = [result.layer(one) for one in layers]
    if len({(one.query_axis, one.key_axis) for one in attentions}) > 1:
        raise InputError("The layers differ in their positions. Draw them one by one.")
    all_notes = [*result.notes, *notes]
    maps = [_mean_map(one, heads, words, rows, columns, all_notes) for one in attentions]
    of_layers, (left, *_), (across, *_) = zip(*maps, strict=True)
    weights, left, across, masked, sink = _treat_special(
        attentions, torch.stack(of_layers).mean(0), left, across, special, all_notes
    )
    if (rows is not None or columns is not None) and not result.streamed:
        if any(isinstance(one, LinearAttention) and one.cell > 1 for one in attentions):
            raise InputError(
                "Linear attention of a long text has pooled maps only. Leave rows and columns "
                "out, or give a shorter text."
            )
        m, n = weights.shape
        rows, columns = _check_part(rows, m, "rows"), _check_part(columns, n, "columns")
        weights = weights[rows, columns]
        masked = None if masked is None else masked[rows, columns]
        sink = sink and columns.start == 0
        left, across = left.at(range(m)[rows]), across.at(range(n)[columns])
        all_notes.append(
            f"rows {rows.start} to {rows.stop - 1} of {m} and "
            f"columns {columns.start} to {columns.stop - 1} of {n}"
        )
    return AttentionMap(
        weights=weights,
        rows=left.shown,
        columns=across.shown,
        stack=attentions[0].stack,
        layer=layers if len(layers) > 1 else layers[0],
        heads=heads,
        notes=tuple(dict.fromkeys(all_notes)),
        agreement=result.checked_agreement,
        provenance=result.provenance,
        boundary=(left.boundary(), across.boundary()),
        special_rows=left.special,
        special_columns=across.special,
        sides=(left.side, across.side),
        image=result.image,
        masked=masked,
        starts_with_sink=sink,
        special=special,
    )


@checked
def head_maps(
    result: AttentionResult,
    *,
    layer: int | None = None,
    words: bool = True,
    special: Special = "keep",
) -> HeadMaps:
    """Return the attention maps of all heads, of all layers or of one.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    layer : int, optional
        The layer, counted from 0; -1 is the last. By default all layers.
    words : bool, default True
        Merge word pieces into words.
    special : {"keep", "hide", "remove"}
        As in `attention_map`.

    Returns
    -------
    HeadMaps
        The weights of all heads, with the labels of rows and columns.

    Raises
    ------
    InputError
        The layer does not exist, `special` is unknown, or the layers have different numbers of
        heads or positions.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> maps = attnviz.head_maps(result, layer=2, special="remove")
    >>> maps.weights.shape  # layers × heads × queries × keys
    torch.Size([1, 12, 5, 5])
    """
    maps = _head_maps(result, layer=layer, words=words, special=special)
    return replace(maps, agreement=result.checked_agreement)


def _head_maps(
    result: AttentionResult, layer: int | None = None, words: bool = True, special: Special = "keep"
) -> HeadMaps:
    """Return the maps as `head_maps` does, with an agreement that is not checked again."""
    stack, notes = result.stack(), [*result.notes]
    layers = stack.attentions if layer is None else (stack.layer(layer),)
    if len({(attention.kept, attention.size) for attention in layers}) > 1:
        raise InputError(
            "The layers differ in their heads or positions. Choose one layer at a time."
        )
    maps = [_maps_of(attention, words, notes, 64) for attention in layers]
    of_layers, (left, *_), (across, *_) = zip(*maps, strict=True)
    weights, left, across, masked, sink = _treat_special(
        layers, torch.stack(of_layers), left, across, special, notes
    )
    return HeadMaps(
        weights=weights,
        rows=left.shown,
        columns=across.shown,
        stack=layers[0].stack,
        layers=tuple(attention.layer for attention in layers),
        notes=tuple(dict.fromkeys(notes)),
        agreement=result.agreement,
        provenance=result.provenance,
        sides=(left.side, across.side),
        heads=layers[0].kept if stack.streamed else (),
        special_rows=left.special,
        special_columns=across.special,
        masked=masked,
        starts_with_sink=sink,
    )


def make_overview(result: AttentionResult, *, words: bool, special: Special) -> HeadMaps | None:
    """Return the maps of all heads; None if their sizes differ, or for too many weights."""
    if result.streamed:
        heads = {(layer.kept, layer.heads) for layer in result.stack().streamed}
        return _head_maps(result) if len(heads) == 1 else None
    shapes = [(record.heads, *record.size) for record in result.stack()]
    if len(set(shapes)) > 1 or sum(map(math.prod, shapes)) > 100_000_000:
        return None
    return _head_maps(result, words=words, special=special)


def _treat_special(
    attentions: Sequence[AttentionRecord | StreamedAttention],
    weights: Tensor,
    rows: TokenGroups,
    columns: TokenGroups,
    special: Special,
    notes: list[str],
) -> tuple[Tensor, TokenGroups, TokenGroups, Tensor | None, bool]:
    """Keep, hide or remove special tokens, with a note; padding of a sound is never kept.

    Also returns what no head may attend to, and whether the first key is a sink. Signed weights are
    not renormalized: their rows sum to anything.
    """
    if not (records := [one for one in attentions if isinstance(one, AttentionRecord)]):
        if special == "keep":
            return weights, rows, columns, None, False
        raise InputError(
            "Special tokens cannot be left out of the map of a long text, because they are pooled "
            "with others. To leave them out, choose rows and columns."
        )
    if any(len(pieces) > 1 for pieces in rows.positions + columns.positions):
        notes.append("word pieces merged (columns summed, rows averaged)")
    signed = any(record.signed for record in records)
    masks = [masked_cells(record, rows, columns) for record in records]
    known = [mask for mask in masks if mask is not None]
    masked = torch.stack(known).all(0) if len(known) == len(records) else None
    sink = starts_with_sink(masked, columns) and not signed
    left, across = (
        [n for n, out in enumerate(one.padded if special == "keep" else one.special) if not out]
        for one in (rows, columns)
    )
    if len(left) == len(rows.labels) and len(across) == len(columns.labels):
        return weights, rows, columns, masked, sink
    masked = None if masked is None else masked[left][:, across]
    whole = weights[..., left, :]
    weights = whole[..., across]
    sums = weights.sum(-1, keepdim=True)
    share = weights.abs().sum() / whole.abs().sum().clamp(min=1e-12) if signed else sums.mean()
    lost = f"{1 - share.item():.0%} of the weight"
    if special == "keep":
        notes.insert(0, f"padding not drawn ({lost})")
    else:
        labels = zip(rows.labels + columns.labels, rows.special + columns.special, strict=True)
        names = ", ".join(dict.fromkeys(label for label, is_special in labels if is_special))
        how = "hidden", "not renormalized"
        if special == "remove" and not signed:
            weights = weights / sums.clamp(min=torch.finfo(sums.dtype).tiny)
            how = "removed", "renormalized to 1"
        notes.append(f"{names} {how[0]} ({lost}), rows {how[1]}")
    return weights, rows.at(left), columns.at(across), masked, sink


def _check_part(part: slice | None, length: int, name: str) -> slice:
    """Return a slice from start to stop, of everything for None; raise InputError if invalid."""
    if part is None:
        return slice(0, length)
    try:
        start, stop, step = part.indices(length)
    except (AttributeError, TypeError):
        raise InputError(
            f"{name} must be a slice of whole numbers, such as slice(0, {length}), not "
            f"{part!r:.60}."
        ) from None
    outside = (part.stop or 0) > length or (part.start or 0) < -length
    if start >= stop or step != 1 or outside:
        ends = ":".join("" if end is None else str(end) for end in (part.start, part.stop))
        raise InputError(
            f"{name.capitalize()} {ends} are not part of the map. Write START:STOP from 0 to "
            f"{length}, without STOP itself."
        )
    return slice(start, stop)


def _maps_of(
    attention: AttentionRecord | StreamedAttention,
    words: bool,
    notes: list[str],
    most: int | None = None,
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return the weights of the heads between words; of a long text between cells."""
    if isinstance(attention, StreamedAttention):
        return pooled(attention, notes, most)
    weights, left, across = word_weights(attention, words=words)
    if isinstance(attention, LinearAttention) and attention.text is not None:
        length = len(attention.text)
        groups = _pooled_groups(attention.text, slice(0, length), attention.cell)
        left = across = replace(groups, positions=left.positions)
    return weights, left, across


def _mean_map(
    attention: AttentionRecord | StreamedAttention,
    heads: tuple[int, ...],
    words: bool,
    rows: slice | None,
    columns: slice | None,
    notes: list[str],
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return the mean map of some heads; of a long text pooled, or exact for a part."""
    if isinstance(attention, AttentionRecord) or (rows is None and columns is None):
        weights, left, across = _maps_of(attention, words, notes)
        return weights[[attention.kept.index(head) for head in heads]].mean(0), left, across
    queries, keys = attention.query_axis, attention.key_axis
    rows = _check_part(rows, len(queries), "rows")
    columns = _check_part(columns, len(keys), "columns")
    m, n = rows.stop - rows.start, columns.stop - columns.start
    if m * n > _MOST_CELLS:
        raise InputError(
            f"{m:,} × {n:,} weights are too many for an exact part, which has at most "
            f"{_MOST_CELLS:,}. Choose fewer rows or columns, or none for the pooled map."
        )
    crops = [attention.crop(head, rows, columns).cpu() for head in heads]
    notes.append(
        f"exact weights of tokens {rows.start:,} to {rows.stop - 1:,} for tokens "
        f"{columns.start:,} to {columns.stop - 1:,}, of {len(queries):,}"
    )
    left, across = _pooled_groups(queries, rows, 1), _pooled_groups(keys, columns, 1)
    return torch.stack(crops).mean(0), left, across


def pooled(
    attention: StreamedAttention, notes: list[str], most: int | None = None
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return the pooled maps of the streamed heads, (heads, rows, columns). Rows sum to 1.

    most : the largest number of rows and columns; by default those of the summary.
    """
    summary, axes = attention.summary, (attention.query_axis, attention.key_axis)
    m, n = map(len, axes)
    factor = 1 if most is None else -(-max(summary.mean.shape[1:]) // most)
    heights, widths = (cell_sizes(length, summary.cell) for length in (m, n))
    area = summary.mean.cpu() * heights[:, None] * widths  # the weight in each cell
    cell = summary.cell * factor
    weights = _sum_cells(area, factor) / cell_sizes(m, cell)[:, None]
    if cell > 1:
        notes.append(
            f"each cell joins {cell} × {cell} of the {m:,} × {n:,} weights (columns "
            "summed, rows averaged)"
        )
    left, across = (_pooled_groups(axis, slice(0, len(axis)), cell) for axis in axes)
    return weights, left, across


def pool(weights: Tensor, cell: int) -> Tensor:
    """Pool cell × cell weights of (H, m, n): columns are summed, rows averaged."""
    return _sum_cells(weights, cell) / cell_sizes(weights.shape[1], cell)[:, None]


def _sum_cells(weights: Tensor, cell: int) -> Tensor:
    """Sum cell × cell weights of (H, m, n); the last row and column may have fewer."""
    H, m, n = weights.shape
    padded = pad(weights, (0, -n % cell, 0, -m % cell))
    return padded.reshape(H, -(-m // cell), cell, -(-n // cell), cell).sum((2, 4))


def _pooled_groups(axis: Axis, part: slice, cell: int) -> TokenGroups:
    """Return the tokens of the rows or columns of a pooled map."""
    starts, marks = range(part.start, part.stop, cell), landmarks(axis, part.start, part.stop)
    positions = [tuple(range(start, min(start + cell, part.stop))) for start in starts]
    unknown = tuple(axis.unknown_label(cells) if cell == 1 else "" for cells in positions)
    return TokenGroups(
        positions=tuple(positions),
        labels=tuple(axis.labels[start] for start in starts),
        special=tuple(all(axis.special[i] for i in cells) for cells in positions),
        segments=tuple(axis.segments[start] for start in starts),
        side=AxisGeometry(None, None, marks, part.start, cell, unknown if any(unknown) else ()),
    )


def landmarks(axis: Axis, start: int, stop: int) -> tuple[Landmark, ...]:
    """Return at most ten positions from `start` to `stop`, in steps of a round number."""
    least = max((stop - start) / 10, 1)
    power = int(10 ** math.floor(math.log10(least)))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    first = -(-start // step) * step
    return tuple(Landmark(mark, _first_words(axis, mark)) for mark in range(first, stop, step))


def _first_words(axis: Axis, start: int) -> str:
    words: dict[int, str] = {}
    for position in range(start, len(axis)):
        if (word := axis.words[position]) is not None and word not in words:
            words[word] = axis.unknown_label([position]) or axis.word_labels[word]
        if len(words) == _WORDS:
            break
    label = " ".join(words.values())
    return label if len(label) <= _LETTERS else f"{label[:_LETTERS]}…"


def choose_word(axis: Axis) -> int:
    """Return the position of the first content word."""
    rows = token_groups(axis)
    content = content_words(rows).nonzero().flatten().tolist()
    return rows.positions[content[0] if content else 0][0]


def content_and_sinks(record: AttentionRecord) -> tuple[Tensor, Tensor]:
    """Return the mean weights of words by head: of content words on others, and on sinks, (H,).

    Sinks are special tokens and a first word that is a sink. Where a text or an image attends to
    itself, only the weight on content beyond what distance and key explain counts, as `rank_heads`
    describes, without the first word of a causal model.
    """
    weights, rows, columns = word_weights(record)
    weights = row_shares(weights) if record.signed else weights
    masked = masked_cells(record, rows, columns)
    has_sink = starts_with_sink(masked, columns)
    sinks = torch.tensor(columns.special, device="cpu")
    sinks[0] |= has_sink
    words = ~torch.tensor(rows.special, device="cpu")
    on_sinks = weights[:, words][:, :, sinks].sum(2).mean(1).nan_to_num()
    content = content_words(rows)
    related = content[:, None] & content_words(columns)[None, :]
    if record.stack != "cross":  # attention of a word to itself does not count
        related = related & ~torch.eye(*related.shape, dtype=torch.bool, device="cpu")
    if (groups := _distances(record, rows)) is not None:
        pairs = groups >= 0 if masked is None else (groups >= 0) & ~masked
        if has_sink:
            pairs[:, 0] = False
        keys = torch.arange(len(pairs), device="cpu").expand_as(pairs)
        at_distance = _mean_of_others(weights, pairs, groups.clamp(min=0))
        itself = torch.eye(len(pairs), dtype=torch.bool, device="cpu")
        to_key = _mean_of_others(weights, pairs & ~itself, keys)
        weights = (weights - at_distance.maximum(to_key)).clamp(min=0)
        related = related & pairs
    if not related.any():
        return weights.new_zeros(len(weights)), on_sinks
    return (weights * related).sum((1, 2)) / content.sum(), on_sinks


def _distances(record: AttentionRecord, groups: TokenGroups) -> Tensor | None:
    """Return a number for each distance of two words or patches, (T, T), else -1.

    None unless a text, or an image without words beside it, attends to itself.
    """
    rows, columns = record.query_axis, record.key_axis
    has_words = any(word is not None for word in rows.words)
    if rows.patches is not None and rows.patches == columns.patches and not has_words:
        patches = [patch or (-1, -1) for patch in groups.side.patches or ()]
        places = torch.tensor(patches, device="cpu")
        counts = (places >= 0).all(1)
    elif rows.labels == columns.labels and (columns.patches or columns.seconds) is None:
        counts = ~torch.tensor(groups.special, device="cpu")
        places = torch.arange(len(counts), device="cpu")[:, None]
    else:
        return None
    apart = places - places[:, None]
    apart = apart - apart.amin((0, 1))
    number = apart[..., 0] * (1 + apart[..., -1].max()) + apart[..., -1]
    return number.masked_fill(~(counts & counts[:, None]), -1)


def _mean_of_others(weights: Tensor, pairs: Tensor, groups: Tensor) -> Tensor:
    """Return the mean weight of all other pairs in the same group, (H, T, T); 0 if none.

    pairs : those that count, (T, T). groups : the number of the group of each, (T, T).
    """
    group, counts = groups.flatten(), pairs.flatten().float()
    size = 1 + int(group.max())
    counted = weights.flatten(1) * counts
    sums = weights.new_zeros(len(weights), size).index_add_(1, group, counted)
    others = counts.new_zeros(size).index_add_(0, group, counts)[group] - counts
    return ((sums[:, group] - counted) / others.clamp(min=1)).view_as(weights)


def starts_with_sink(masked: Tensor | None, columns: TokenGroups) -> bool:
    """Whether the first key is a word that the first query must attend to, and all others may."""
    is_causal = masked is not None and len(masked) > 1 and bool(masked[0, 1:].all())
    return is_causal and not masked[:, 0].any() and not columns.special[0]  # type: ignore[index]


def masked_cells(record: AttentionRecord, rows: TokenGroups, columns: TokenGroups) -> Tensor | None:
    """Return which words no head may attend to from which, (m, n); None where all may be."""
    if (readable := record.readable()) is None:
        return None
    masked = merge(readable.float().cpu(), rows, columns) == 0
    return masked if masked.any() else None


def rank_heads(result: AttentionResult) -> HeadRanking:
    """Rank all heads by how much content words of the text attend to each other.

    It looks for heads that neither rest on an attention sink, such as [CLS], [SEP] or the first
    word of a causal model, nor follow position alone: from each weight, the mean weight of all
    other pairs of words at the same distance is subtracted, or that of all other queries to the
    same key, if it is larger. Heads with at least half of their weight on sinks rank last, which
    the summaries of a streamed text do not tell.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.

    Returns
    -------
    HeadRanking
        The scores, the largest first, those of heads on sinks last, and their meaning in words.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> ranking = attnviz.rank_heads(result)
    >>> ranking.to_frame().head(3).round(2)
       layer  head  score
    0      0     4   0.22
    1      0     1   0.19
    2      0     3   0.13
    """
    result = one_result(result, streamed=True)
    stack, scored = result.stack(), []  # whether each head is on sinks, and its score
    for record in stack.records:
        mean = (weights.tolist() for weights in content_and_sinks(record))
        of_heads = zip(*mean, _resting(result, record.layer), strict=True)
        for head, (mass, share, rests) in enumerate(of_heads):
            score = HeadScore(record.layer, head, mass, resting=rests)
            scored.append((share >= 0.5, score))
    for streamed in stack.streamed:  # of word pieces
        content = content_positions(streamed.query_axis)
        related = (streamed.summary.marked - streamed.summary.itself).cpu()[:, content]
        masses = related.sum(1) / max(1, related.shape[1])
        for head, mass in zip(streamed.kept, masses.tolist(), strict=True):
            scored.append((False, HeadScore(streamed.layer, head, mass)))
    scored.sort(key=lambda one: (one[0], -one[1].score))
    first = stack.attentions[0]
    queries, keys = _noun(first.query_axis), _noun(first.key_axis)
    others = f"other {keys}" if queries == keys else keys
    keys = f"{keys}, as a share of all sizes," if first.stack == "linear" else keys
    if stack.streamed:
        meaning = f"mean weight from {queries} to {others}, piece by piece"
    elif _distances(stack.records[0], token_groups(first.query_axis)) is not None:
        meaning = f"weight between {keys} beyond what distance and key explain"
    else:
        meaning = f"mean weight from {queries} to {others}"
    return HeadRanking(tuple(score for _, score in scored), meaning)


def _resting(result: AttentionResult, layer: int) -> list[bool]:
    return resting_heads(_head_maps(result, layer=layer))


def _noun(axis: Axis) -> str:
    """Return the noun for the positions that `content_words` selects."""
    nouns = []
    if axis == Axis.numbered(len(axis)):
        nouns.append("positions")
    elif any(word is not None for word in axis.words) or (axis.patches or axis.seconds) is None:
        labels = token_groups(axis).without_special().labels
        nouns.append("content words" if sum(map(is_content, labels)) > 1 else "words")
    if axis.patches is not None:
        nouns.append("patches")
    if axis.seconds is not None:
        nouns.append("frames")
    return " and ".join(nouns)


def choose_head(
    result: AttentionResult,
    layer: int | None = None,
    head: int | Sequence[int] | None = None,
    *,
    ranking: HeadRanking | None = None,
) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """Return the layer and the heads, by default the best by `rank_heads`, with a note if so."""
    result = one_result(result, streamed=True)
    heads = () if head is None else whole_numbers(head, "head")
    for number in heads:
        result.check_head(result.layers[0] if layer is None else layer, number)
    layer = None if layer is None else result.layer(layer).layer
    if layer is not None and heads:
        return layer, heads, ()
    ranking = ranking or rank_heads(result)
    scores = [
        s for s in ranking.scores if layer in (None, s.layer) and (not heads or s.head in heads)
    ]
    best = scores[0]
    among = "all heads" if layer is None and not heads else "those asked for"
    if any(score.score > best.score for score in scores):
        among += " with under half of their weight on sinks"
    note = f"of {among} this one has the largest {ranking.meaning}"
    if best.score <= 0:
        note = f"no head has any {ranking.meaning}"
    return best.layer, heads or (best.head,), (note,)


@checked_scalars
def find_heads(result: AttentionResult, *, query: str, key: str) -> HeadMatches:
    """Rank all heads by the weight from one word of the text to another.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    query : str
        The word that attends.
    key : str
        The word that is attended to.

    Returns
    -------
    HeadMatches
        The heads, the largest weight first.

    Raises
    ------
    InputError
        A word is not in the text, or is ambiguous. "the#2" is the second "the".

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station on time")
    >>> found = attnviz.find_heads(result, query="train", key="station")
    >>> [(head.layer, head.head) for head in found.first[:3]]
    [(0, 1), (0, 3), (5, 10)]
    """
    heads: list[HeadMatch] = []
    for record in (result := one_result(result)).stack():
        weights, rows, columns = word_weights(record)
        i = locate_known(query, rows, record.query_axis)
        j = locate_known(key, columns, record.key_axis)
        others = {
            k: label.casefold()
            for k, label in enumerate(columns.labels)
            if k not in (i, j) and not columns.special[k] and is_word(label)
        }
        functional = FUNCTION_WORDS.intersection(others.values())
        both = zip(weights[:, i], _resting(result, record.layer), strict=True)
        for head, (row, rests) in enumerate(both):
            above = functional - {word for k, word in others.items() if row[k] >= row[j]}
            rank = 1 + sum(bool(row[k] > row[j]) for k in others)
            heads.append(HeadMatch(record.layer, head, row[j].item(), rank, above, resting=rests))
    heads.sort(key=lambda head: -head.score)
    words = rows.labels[i], columns.labels[j]
    meaning = f"weight from “{words[0]}” to “{words[1]}”"
    return HeadMatches(tuple(heads), meaning, *words, tuple(sorted(functional)))
