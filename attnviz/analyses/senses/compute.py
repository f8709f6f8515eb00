"""How context settles the sense of a word: its vectors in every layer, sense by sense.

Nothing heavy is loaded before the sentences have been read and found sound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnviz.analyses.senses.sentences import gather
from attnviz.runtime.libraries import silence_logs

if TYPE_CHECKING:
    from attnviz.analyses.senses.result import SensesResult
    from attnviz.pipeline.attend import Loadable, Model


@silence_logs()
def senses(
    word: str,
    sentences: Mapping[str, str | Sequence[str]] | None = None,
    *,
    model: Model | Loadable | None = None,
    raw: bool = False,
) -> SensesResult:
    """Measure in which layers a model tells the senses of a word apart.

    Every occurrence is judged by the others: is its vector nearest, by cosine, to the centroid of
    its own sense, made without its sentence? That is done for what enters each layer and for the
    model's output; beside it for 2,000 shuffles of the senses, and for the mean static embedding of
    the *other* words, which needs no attention.

    Parameters
    ----------
    word : as it stands in the sentences, in any case; where a sentence has not the word itself,
        its regular English inflections count.
    sentences : some for each sense, two at least; by default those that come along, for bank,
        check, apple, bat, crane, spring, mouse, seal, light and pitcher.
    model : from `load`, or what `load` takes; by default the bundled all-MiniLM-L6-v2.
    raw : leave the vectors as they are. By default each space is centred, as a model's vectors all
        lie in a narrow cone (Ethayarajh 2019, arXiv:1909.00512).

    Returns
    -------
    For each layer the accuracy with its 95 % interval, what shuffled senses reach, recalls and
    silhouette; the occurrences in a plane; and to which words each occurrence attends.

    Raises
    ------
    InputError : no sentences; one sense only, or a sense with fewer than two sentences; a sentence
        without the word, or longer than the model can read.
    ModelError : a model that does not read one text, or whose attention cannot be seen.
    """
    gathered = gather(word, sentences)

    from attnviz.analyses.senses.measure import measure

    return measure(word.strip(), gathered, model=model, raw=raw)
