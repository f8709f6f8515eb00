"""Whether the vocabulary of a tokenizer is the one that a model learned its embeddings for.

Tokens that are spelled alike ("walk", "walks") have similar embeddings in a trained model. If the
tokenizer numbers its tokens in another way, they are as different as any two tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SHORTEST = 4  # letters of a token that another one continues
_LONGEST = 2  # letters of its ending
_FEWEST, _MOST = 50, 2000  # pairs
_SURE = 5  # standard errors
_SPREAD = 2  # times that of norms in an embedding that was drawn at random


def fits_embeddings(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool | None:
    """Return whether tokens that are spelled alike have similar embeddings.

    None if there is nothing to learn from it: the model was not trained, or has no table of tokens,
    or few tokens are spelled alike.
    """
    try:
        embedding: Any = module.get_input_embeddings()
    except NotImplementedError:
        return None
    weight = getattr(embedding, "weight", None)
    if not isinstance(embedding, nn.Embedding) or not isinstance(weight, Tensor):
        return None
    pairs = [pair for pair in _spelled_alike(tokenizer) if max(pair) < len(weight)]
    if len(pairs) < _FEWEST or weight.is_meta:
        return None
    first, second = (weight.detach()[list(ids)].double().cpu() for ids in zip(*pairs, strict=True))
    if not _is_trained(first):
        return None
    others = second.roll(len(second) // 2, 0)  # the partners of other pairs
    cosine = torch.nn.functional.cosine_similarity
    gains = cosine(first, second) - cosine(first, others)
    return bool(gains.mean() > _SURE * gains.std() / len(gains) ** 0.5)


def _spelled_alike(tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, int]]:
    """Return the ids of tokens of which one is the other with an ending of one or two letters."""
    vocabulary = tokenizer.get_vocab()
    pairs = [
        (vocabulary[token[:-length]], number)
        for token, number in vocabulary.items()
        if len(token) > _SHORTEST
        for length in range(1, _LONGEST + 1)
        if token[:-length] in vocabulary
        and len(token) >= _SHORTEST + length
        and token[-length:].isalpha()
    ]
    step = max(1, -(-len(pairs) // _MOST))
    return sorted(pairs)[::step]


def _is_trained(vectors: Tensor) -> bool:
    """Return whether norms vary more than those of vectors drawn from a normal distribution."""
    norms = vectors.norm(dim=1)
    at_random = (2 * vectors.shape[1]) ** -0.5  # the standard deviation, relative to the mean
    return bool(norms.std() > _SPREAD * at_random * norms.mean())
