"""The prediction that is explained: a next token, a masked token, or a class, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from attnviz.attribution.reference import Reading, encode_after, in_other, is_causal
from attnviz.attribution.target import Readout, Target, base_of, copies_of, mask_id
from attnviz.attribution.tracing import StoredRun, blocks_of, expect_gradients
from attnviz.capture.watch import restoring
from attnviz.errors import InputError, ModelError, did_you_mean, refuse_given
from attnviz.inputs.text import spelled
from attnviz.inputs.tokens import decode
from attnviz.models.pretrained import embedded_tokens, pooling_of
from attnviz.pipeline.attend import Model, parse_source
from attnviz.results.axis import locate
from attnviz.results.text import percent

Kind: TypeAlias = Literal[
    "next token", "answer", "masked token", "class", "label", "span", "similarity"
]
Number: TypeAlias = Literal["difference", "log-probability", "logit", "similarity"]

_TIED = 0.5  # a difference of logits that is none: 62 % against 38 % at the most
_LONGEST = 30  # tokens of a span that answers a question
_SAME = 1e-4  # of the largest logit: rounding


@dataclass(frozen=True, eq=False)
class Prediction(Readout):
    """One number of the logits at `rows`, (N, 1): of a token or class, or a difference of two."""

    choice: int  # the token or class
    against: int | None  # the one it is compared with
    kind: Kind
    log: bool  # whether the number is the log-probability, where there is no other choice
    pieces: tuple[int, ...] = field(default=(), kw_only=True)  # the positions of a labeled word

    @property
    def fixed(self) -> tuple[int, ...]:
        """The positions that no reference changes: of a mask, a labeled word, or an answer."""
        return self.pieces or (self.rows if self.kind in ("masked token", "answer") else ())

    @property
    def number(self) -> Number:
        """What is explained, in words."""
        if self.against is not None:
            return "difference"
        if self.kind == "similarity":
            return "similarity"
        return "log-probability" if self.log else "logit"

    def __call__(self, output: Tensor) -> Tensor:
        """Return the number of each run, (N, 1), from the logits."""
        logits = logits_at(output, self.rows)
        chosen = logits[:, [self.choice]]
        if self.against is not None:
            return chosen - logits[:, [self.against]]
        if not self.log:
            return chosen
        # The functions of log-softmax, one by one, so that each has its DeepLIFT multiplier.
        largest = logits.detach().max()
        return (chosen - largest) - (logits - largest).exp().sum(-1, keepdim=True).log()


@dataclass(frozen=True, eq=False)
class Similarity(Prediction):
    """The cosine of the mean hidden state at `rows` and another vector, (N, 1)."""

    other: Tensor = field(kw_only=True)  # of norm 1, (d,)

    def __call__(self, output: Tensor) -> Tensor:
        """Return the number of each run, (N, 1), from the hidden states."""
        pooled = Readout.__call__(self, output.float())
        return pooled @ self.other[:, None] * pooled.square().sum(-1, keepdim=True).rsqrt()


@dataclass(frozen=True, eq=False)
class Span(Prediction):
    """One number of the spans of a text, (N, 1), whose logits are those of their two ends."""

    spans: Tensor = field(kw_only=True)  # T × the first position + the last one, (V,)

    def read(self, outputs: Any) -> Tensor:
        """Return the number of each run, (N, 1), from the outputs of the model."""
        return self(span_logits(outputs, self.spans))


def span_logits(outputs: Any, spans: Tensor) -> Tensor:
    """Return the logits of spans, (N, V), from those of their first and of their last tokens."""
    first, last = outputs[:2]
    sums: Tensor = first[:, :, None] + last[:, None]
    return sums.flatten(1)[:, spans]


@dataclass(frozen=True, eq=False)
class Answer(Prediction):
    """The log-probability of each token of an answer, after the position of its row, (N, R)."""

    tokens: tuple[int, ...] = field(kw_only=True)

    def __call__(self, output: Tensor) -> Tensor:
        """Return the numbers of each run, (N, R), from the logits."""
        both = NextTokens(self.module, self.rows, self.tokens)(output)
        return both[:, : len(self.tokens)]


@dataclass(frozen=True, eq=False)
class NextTokens(Readout):
    """The log-probabilities of R tokens at `rows`, and whether each is first, (N, 2R)."""

    tokens: tuple[int, ...]
    others: tuple[int, ...] = ()  # the only ones they are compared with; by default the vocabulary

    def __call__(self, output: Tensor) -> Tensor:
        """Return both for each run, from the logits."""
        logits = output[:, list(self.rows)].float()
        tokens = torch.tensor(self.tokens, device=logits.device).expand(len(logits), -1)
        if self.others:
            chosen = logits.gather(-1, tokens[..., None])
            logits = torch.cat([logits[..., list(self.others)], chosen], dim=-1)
            tokens = torch.full_like(tokens, len(self.others))
        chosen = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        return torch.cat([chosen, (logits.argmax(-1) == tokens).to(chosen)], dim=1)

    @staticmethod
    def means(numbers: Tensor) -> Tensor:
        """Return the mean log-probability and the accuracy over the tokens, (N, 2)."""
        return numbers.double().reshape(len(numbers), 2, -1).mean(-1).cpu()


def logits_at(output: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return the logits at a position, (N, V), or of the classes, (N, C)."""
    return output[:, rows[-1]] if output.dim() == 3 else output


@dataclass(frozen=True, eq=False)
class Choices:
    """What a model predicts, by logits (V,): tokens at `rows` or after them, classes, or spans.

    The logits are those of the model as it was loaded; of an answer of R tokens, (R, V).
    """

    model: Model
    reading: Reading
    kind: Kind
    rows: tuple[int, ...]
    logits: Tensor
    notes: list[str] = field(default_factory=list)  # on what is chosen
    other: tuple[str, Tensor] | None = None  # of a similarity: the text, and its unit vector (d,)
    pieces: tuple[int, ...] = ()  # the positions of a labeled word
    spans: Tensor | None = None  # the spans that may answer a question, as in `Span`

    @classmethod
    def like(cls, model: Model, reading: Reading, other: Any, *, truncate: bool = False) -> Choices:
        """Compare a text with another one by the cosine of their pooled hidden states."""
        kind = "image" if reading.source.pictures else "audio" if reading.source.sounds else "text"
        given: Any = {kind: other}
        with in_other({"image": "picture", "audio": "sound"}.get(kind, kind)):
            text = given.pop("text", None)
            _, source, _ = parse_source("explain", model, text, given, media=True)
            batch = encode_after(model, source, reading.bos, truncate=truncate)
        base = base_of(model.module)
        with restoring(model.module, None, seed=2), torch.no_grad():
            both = [base(**one)[0] for one in (reading.inputs, batch.inputs)]
        if any(states.dim() != 3 or len(states) > 1 for states in both):
            raise ModelError(
                f"{model.name} has no hidden states (1, T, d) to compare. Choose another model, "
                "such as ViT or Wav2Vec2."
            )
        begins_with_cls = any(axis.labels[0] == "[CLS]" for axis in batch.axes.get("image", ()))
        pooling = pooling_of(model.name, model.module) or ("first" if begins_with_cls else "")
        notes = [] if pooling else ["similarity of the mean hidden states, as no pooling is known"]
        every = {"first": slice(1), "last": slice(-1, None)}.get(pooling, slice(None))
        rows = [tuple(range(states.shape[1]))[every] for states in both]
        most, length = embedded_tokens(model.module), max(map(len, rows))
        if length > most:
            notes.append(f"as an embedder the model reads {most} tokens, and here {length}")
        pooled = [Readout(base, of)(states)[0] for of, states in zip(rows, both, strict=True)]
        here, there = (normalize(vector, dim=0) for vector in pooled)
        names = [one.name.partition(" (")[0] for one in source.pictures or source.sounds or ()]
        names += [spelled(model.checkpoint, text)[0] for text in source.texts or ()]
        known = names[0], there
        return cls(model, reading, "similarity", rows[0], (here @ there)[None], notes, known)

    @classmethod
    def of(cls, model: Model, reading: Reading, word: str | None = None) -> Choices:
        """Run the model, and say what it predicts; raise ModelError if it has no such head.

        word : that a model labels which labels each token; the label is that of its first piece.
        """
        module, inputs = model.module, reading.inputs
        with restoring(module, None, seed=2), torch.no_grad():
            outputs = module(**inputs)
        output = outputs[0]
        media = reading.media is not None
        ids: list[int] = [] if media else inputs["input_ids"][0].tolist()
        config: Any = module.config
        embeddings: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]
        has_labels = output.shape[-1:] == (getattr(config, "num_labels", None),)
        if output.dim() == 3 and embeddings is None and has_labels and not media:
            if word is None:
                raise InputError(f"{model.name} labels each token. Name a word: --word (word=).")
            pieces = reading.groups.positions[locate(word, reading.groups)]
            return cls(model, reading, "label", pieces[:1], output[0, pieces[0]], pieces=pieces)
        why = f"{model.name} does not label tokens. Leave it out."
        refuse_given(why, word=word)
        if output.dim() == 2 and has_labels and media:
            return cls(model, reading, "class", (0,), output[0])
        if output.dim() == 2 and has_labels:
            try:
                with restoring(module):
                    rows = _rows_read(module, inputs)
            except ModelError:  # it has no gradients, so any position may be read
                rows = tuple(range(len(ids)))
            return cls(model, reading, "class", rows, output[0])
        if output.shape == (1, len(ids)) and hasattr(outputs, "end_logits"):
            spans = _spans_of(reading).to(output.device)
            rows, logits = tuple(range(len(ids))), span_logits(outputs, spans)[0]
            return cls(model, reading, "span", rows, logits, spans=spans)
        if output.dim() != 3 or embeddings is None:
            raise ModelError(
                f"{model.name} has no head that predicts a token or a class. Use a model with one, "
                "such as --model smollm2 (model='smollm2') or a classifier"
                f"{', or compare it with another one (similar_to=).' * media or ' of texts.'}"
            )
        masked = tuple(row for row, token in enumerate(ids) if token == mask_id(model))
        if masked and not reading.stacks:
            note = f"the text has {len(masked)} mask tokens: the first is explained"
            notes = [note] if len(masked) > 1 else []
            return cls(model, reading, "masked token", masked[:1], output[0, masked[0]], notes)
        if reading.stacks or reading.bos is not None or media or is_causal(model, inputs):
            return cls(model, reading, "next token", (output.shape[1] - 1,), output[0, -1])
        token = getattr(model.tokenizer, "mask_token", None)
        todo = f"Write {token} for the word to predict."
        if token is None:
            todo = "If it is to write on, load it with is_decoder=True in its config."
        raise InputError(f"{model.name} predicts masked tokens, and the text has none. {todo}")

    @classmethod
    def of_answer(
        cls, model: Model, reading: Reading, tokens: Sequence[int], logits: Tensor | None = None
    ) -> Choices:
        """Return what predicted the tokens of an answer, by logits (R, V) if they are known."""
        last = len(reading.tokens) - reading.stacks.source - 1
        if reading.media is not None:
            last = reading.inputs["decoder_input_ids"].shape[1] - 1
        if logits is None or len(logits) < len(tokens):
            with restoring(model.module, None, seed=2), torch.no_grad():
                logits = model.module(**reading.inputs)[0][0, last + 1 - len(tokens) :]
        return cls(model, reading, "answer", (last,), logits[: len(tokens)])

    def loaded(self, readout: Readout) -> Tensor:
        """Return what is explained, by the model as it was loaded, (1, R)."""
        if self.other is not None:
            return self.logits[None]
        logits = self.logits.reshape(-1, self.logits.shape[-1])
        return replace(readout, rows=tuple(range(len(logits))))(logits[None])

    @property
    def _problem(self) -> str | None:
        """What a classifier solves, by its config; a single logit is a score."""
        problem = getattr(self.model.module.config, "problem_type", None)
        is_score = len(self.logits) == 1 and problem != "multi_label_classification"
        return "regression" if is_score or self.other is not None else problem

    @property
    def is_distribution(self) -> bool:
        """Whether the softmax of the logits is what the model predicts."""
        is_token = self.kind in ("next token", "masked token")
        return is_token or self._problem in (None, "single_label_classification")

    @property
    def probabilities(self) -> Tensor:
        """The probability of each token or class, (V,); NaN for scores, which have none."""
        logits = self.logits.double().cpu()
        if self.is_distribution:
            return logits.softmax(-1)
        return logits.sigmoid() if self._problem != "regression" else logits * torch.nan

    def target(self, choice: int, other: int | None, *, log: bool = True) -> Target:
        """Return the prediction of a choice, or of its difference from another."""
        if self.other is not None:
            pooled = base_of(self.model.module), self.rows, choice, None, self.kind, False
            return self.reading.target(self.model, Similarity(*pooled, other=self.other[1]))
        module, log = self.model.module, log and self.is_distribution
        site = module, self.rows, choice, other, self.kind, log
        if self.spans is not None:
            return self.reading.target(self.model, Span(*site, spans=self.spans))
        readout = Prediction(*site, pieces=self.pieces, stacks=self.reading.stacks)
        return self.reading.target(self.model, readout)

    def answer(self, tokens: Sequence[int]) -> Target:
        """Return the prediction of all tokens of an answer, the last of which follows the text."""
        end, stacks = self.rows[-1] + 1, self.reading.stacks
        site = self.model.module, tuple(range(end - len(tokens), end)), tokens[-1]
        readout = Answer(*site, None, "answer", True, tokens=(*tokens,), stacks=stacks)
        return self.reading.target(self.model, readout)

    def words_of(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Return the words that tokens spell, and the numbers of the tokens of each."""
        tokenizer: Any = self.model.checkpoint.target_tokenizer
        words = decode(tokenizer, tokens).split() or ["?"]
        pieces: list[list[int]] = [[] for _ in words]
        for n in range(len(tokens)):
            begun = len(decode(tokenizer, tokens[: n + 1]).split())  # the last one is being spelled
            pieces[min(max(begun, 1), len(words)) - 1].append(n)
        return words, pieces

    def top(self, count: int) -> list[int]:
        """Return the most probable tokens or classes, the first first."""
        logits = self.logits.double().cpu()
        return logits.argsort(descending=True, stable=True)[:count].tolist()

    def rival(self, choice: int) -> int | None:
        """Return the next most probable choice, if exclusive and not nearly tied, or note this."""
        tokenizer: Any = self.model.checkpoint.target_tokenizer
        ids = {choice}
        if self.kind not in ("class", "label"):  # the end of a text may follow it
            ids |= {*tokenizer.all_special_ids} - {tokenizer.eos_token_id, choice}
        other = next((other for other in self.top(len(ids) + 1) if other not in ids), None)
        if other is None or not self.is_distribution or self.spans is not None:
            return None  # the next most probable span is often a part of the first
        if (self.logits[choice] - self.logits[other]).abs() >= _TIED:
            return other
        shares = [*map(percent, self.probabilities.tolist())]
        one, two = (f"“{self.label(n)}” ({shares[n]})" for n in (choice, other))
        self.notes.append(f"{one} and {two} are nearly tied, so the first is explained alone")
        return None

    def label(self, choice: int) -> str:
        """Return a token without its leading blank, the name of a class, or the other text."""
        if self.other is not None:
            return self.other[0]
        if self.spans is not None:
            return self.reading.spelled(*divmod(int(self.spans[choice]), len(self.reading.tokens)))
        if self.kind in ("class", "label"):
            names: Mapping[int, str] = getattr(self.model.module.config, "id2label", None) or {}
            return str(names.get(choice, choice))
        tokenizer: Any = self.model.checkpoint.target_tokenizer
        text = str(tokenizer.decode([choice]))
        return text.strip() or repr(text)

    def find(self, choice: str, what: str) -> int:
        """Return the id of a token or class; raise InputError for an unknown one."""
        if not isinstance(choice, str) or not choice.strip():
            raise InputError(f"The {what} must be a word, not {choice!r:.60}.")
        if self.spans is not None:
            T, known = len(self.reading.tokens), [*self.spans.tolist()]
            positions = self.reading.parts([choice], T, min(known) // T).positions[0]
            if (span := T * positions[0] + positions[-1]) in known:
                return known.index(span)
            raise InputError(
                f"{choice!r:.60} is longer than {_LONGEST} tokens. Name a shorter span."
            )
        if self.kind in ("class", "label"):
            names = [self.label(index) for index in range(len(self.logits))]
            folded = [name.casefold() for name in names]
            if choice.casefold() in folded:
                return folded.index(choice.casefold())
            hint = did_you_mean(choice, names) or f"Its classes are {', '.join(names)[:200]}."
            raise InputError(f"{choice!r:.60} is not a class of {self.model.name}. {hint}")
        tokenizer: Any = self.model.checkpoint.target_tokenizer
        provenance = self.reading.result.provenance
        text = (provenance.target if self.reading.stacks else provenance.text) or ""
        begins = ("", " ", "\n", "(", "“") if self.reading.media is None else ()
        goes_on = self.kind == "next token" and text[-1:] not in begins
        typed = f" {choice}" if goes_on and not choice[0].isspace() else choice
        ids = [
            token
            for token in tokenizer.encode(typed, add_special_tokens=False)
            if tokenizer.decode([token]).strip() and token != tokenizer.unk_token_id
        ]
        if not ids:
            raise InputError(f"{choice!r:.60} has no token in the vocabulary of {self.model.name}.")
        first = int(ids[0])
        if len(ids) > 1:
            pieces = f"{len(ids)} tokens; the {what} is the first, “{self.label(first)}”"
            self.notes.append(f"“{choice}” is {pieces}")
        return first


def _spans_of(reading: Reading) -> Tensor:
    """Return the spans that may answer a question, as in `Span`: those of the second text."""
    tokens, last = reading.tokens, max(reading.tokens.segments)
    inside = [text == last for text in tokens.segments]
    context = [n for n, flag in enumerate(tokens.special) if inside[n] and not flag]
    spans = [len(tokens) * n + m for n in context for m in context if n <= m < n + _LONGEST]
    return torch.tensor(spans)


def _rows_read(module: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Return the positions of the last hidden state that a classifier reads."""
    states: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> Any:
        state = output if isinstance(output, Tensor) else output[0]
        states[:] = [state.detach().requires_grad_()]
        return states[0] if isinstance(output, Tensor) else (states[0], *output[1:])

    last = blocks_of(base_of(module))[-1]
    with last.register_forward_hook(keep), torch.enable_grad():
        logits = module(**inputs)[0]
        expect_gradients(logits)
        weights = torch.arange(1.0, logits.numel() + 1).to(logits).reshape_as(logits)
        (gradient,) = torch.autograd.grad((logits * weights).sum(), states)
    return tuple(gradient[0].abs().sum(-1).nonzero()[:, 0].tolist())


def residual_stream(
    model: Model, base: nn.Module, inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Return the states of a text after each layer (L, T, d), its logits, and what reads states.

    This takes states (n, d), which replace those after the last layer, to logits (n, V): the model
    computes its own final norm, head and unembedding.

    base : the model without its head, or the decoder.
    """
    module, stored = model.module, StoredRun(base)
    with torch.no_grad(), stored.record():
        logits = module(**inputs)[0][0]

    def read(states: Tensor) -> Tensor:
        last = stored.states()[-1]
        copies = -(-len(states) // len(last))  # some models view their states as (…, T, d)
        filled = last.repeat(copies, 1)
        filled[: len(states)] = states
        used = Readout(module, tuple(range(min(len(states), len(last)))))
        skipping = stored.skip(len(stored.blocks), copies, filled.view(copies, *last.shape))
        with used.alone(), torch.no_grad(), skipping:
            found: Tensor = module(**copies_of(inputs, copies))[0]
        return found.flatten(0, 1)[: len(states)]

    if stored.in_a_row:
        states = stored.states()
        differences = (read(states[-1]) - logits).abs().amax(-1)
        if bool((differences <= _SAME * logits.abs().amax(-1)).all()):
            return states, logits, read
    raise ModelError(
        f"The layers of {model.name} cannot be read one by one: its blocks do not run in a row. "
        "Choose another kind of model."
    )
