"""The shift of a word in a decoder keeps the attention sink, and says so."""

import pytest

import attnviz

pytestmark = pytest.mark.real


@pytest.mark.long
def test_a_shift_in_smollm2_is_read_as_the_beginning_of_a_text(smollm2, monkeypatch):
    monkeypatch.setattr("attnviz.analyses.shift.compute.intervene", lambda *_: {})  # not read here
    text = "He walked to the river and sat down on the bank"
    result = attnviz.shift("bank", text, model=smollm2)
    assert smollm2.tokenizer.bos_token == "<|im_start|>"  # it begins messages of a chat, not texts
    assert result.words[0] == "<|endoftext|>"
    assert result.sink is None
    assert any("before it" in note for note in result.notes)
    assert max(result.decomposition.error, result.decomposition.credit_error) < 1e-5
    # Without a sink "He" had 26 of the shift, and "river" less than nothing.
    credit = dict(zip(result.names, result.credit.tolist(), strict=True))
    assert credit["river"] > credit["He"] > 0
