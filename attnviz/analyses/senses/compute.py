"""Measure in which layers a model separates the senses of a word.

The sentences are checked before torch is imported, so that wrong input fails fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnviz.analyses.senses.sentences import read_sentences
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
    """Measure in which layers a model separates the senses of a word.

    Each occurrence is classified: is its vector nearest, by cosine, to the centroid of its own
    sense, computed without its sentence? This is done for the input of each layer and for the
    output of the model. Baselines are 2,000 shuffles of the senses, and the mean static embedding
    of the *other* words, which needs no attention.

    Parameters
    ----------
    word : str
        The word, in any case. In sentences without the word itself, its regular English inflections
        count.
    sentences : mapping of str to str or sequence of str, optional
        At least two sentences for each sense. By default bundled sentences, for bank, check, apple,
        bat, crane, spring, mouse, seal, light and pitcher.
    model : Model, str, path or module, optional
        From `load`, or what `load` takes. By default the bundled all-MiniLM-L6-v2.
    raw : bool, default False
        Whether to leave the vectors as they are. By default each layer is centered, because the
        vectors of a model lie in a narrow cone (Ethayarajh 2019, arXiv:1909.00512).

    Returns
    -------
    SensesResult
        For each layer the accuracy with its 95% interval, the accuracy of shuffled senses, recalls
        and silhouette; the occurrences in a plane; and the words that each occurrence attends to.

    Raises
    ------
    InputError
        There are no sentences, fewer than two senses, or fewer than two sentences for a sense; or a
        sentence does not have the word, or is longer than the model can read.
    ModelError
        The model does not read one text, or its attention cannot be captured.
    """
    checked = read_sentences(word, sentences)

    from attnviz.analyses.senses.measure import measure

    return measure(word.strip(), checked, model=model, raw=raw)
