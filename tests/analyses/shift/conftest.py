"""A tokenizer of causal models that adds no special tokens."""

import copy

import pytest


@pytest.fixture
def without_bos(bare_tokenizer):
    """A tokenizer that adds no special tokens, and has no BOS token yet."""
    assert bare_tokenizer.bos_token is None
    return copy.deepcopy(bare_tokenizer)
