"""Where a model predicts the answers of a probe, and which tokens of the text hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attnviz.analyses.survey.corpus import TokenizedText
from attnviz.analyses.survey.probes import ProbeText
from attnviz.attribution.interventions import token_of
from attnviz.errors import ModelError
from attnviz.pipeline.attend import Model


@dataclass(frozen=True)
class Answers:
    """The answers in the tokens of a text.

    rows : where they are predicted. tokens : their ids. wrong : the ids of wrong answers.
    holds : for each token the number of the answer that it is elsewhere in the text, from 1; -1 for
    a wrong answer, or 0.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    wrong: tuple[int, ...]
    holds: tuple[int, ...]

    @classmethod
    def find(
        cls, model: Model, text: ProbeText, ids: Sequence[int], special: Sequence[int]
    ) -> Answers:
        """Find them; raise ModelError if the model reads the text in other tokens."""
        end = max(row for row, is_special in enumerate(special) if not is_special) + 1
        mask = getattr(model.tokenizer, "mask_token_id", None)
        masks = [row for row, token in enumerate(ids) if token == mask]
        places = masks or list(range(end - text.answers, end))
        rows = places if masks else [place - 1 for place in places]
        tokens = [token_of(model, word) for word in text.copied]
        wrong = [token_of(model, word) for word in text.wrong]
        elsewhere = [0 if row in places else token for row, token in enumerate(ids)]
        if (
            len(places) != text.answers
            or min(rows) < 0
            or (tokens and not masks and tokens != [ids[place] for place in places])
            or not {*tokens, *wrong} <= {*elsewhere}
        ):
            raise ModelError(
                f"{model.name} reads a text of the probe in other tokens. Give a corpus."
            )
        number = {token: n for n, token in enumerate(tokens, start=1)} | dict.fromkeys(wrong, -1)
        return cls(
            rows=tuple(rows),
            tokens=tuple(tokens or [ids[place] for place in places]),
            wrong=tuple(wrong),
            holds=tuple(
                0 if row in places else number.get(token, 0) for row, token in enumerate(ids)
            ),
        )


def with_answers(
    model: Model, texts: Iterable[TokenizedText], probe_texts: Sequence[ProbeText]
) -> Iterator[TokenizedText]:
    """Yield texts with what each token asks for and what it holds, as in `Tokens`.

    probe_texts : by the number of a text.
    """
    for text in texts:
        probe_text, encoding = probe_texts[text.number], text.encoding
        if not probe_text.copied:
            yield text
            continue
        ids, special = encoding["input_ids"], encoding["special_tokens_mask"]
        answers = Answers.find(model, probe_text, ids, special)
        asks = [0] * len(ids)
        for number, row in enumerate(answers.rows, start=1):
            asks[row] = number
        more: Mapping[str, Sequence[int]] = {"asks": asks, "holds": answers.holds}
        yield replace(text, encoding={**encoding, **more})
