"""A loaded model that answers for its attention: text → inputs → capture → proof → result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeAlias, overload

import torch

from attnviz.agreement import verify as verify_records
from attnviz.capture import capture
from attnviz.checkpoints import Checkpoint, load_checkpoint
from attnviz.errors import InputError
from attnviz.inputs import encode
from attnviz.records import AgreementReport, AttentionResult, Provenance

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Texts = list[str] | tuple[str, ...]
Loadable: TypeAlias = "str | os.PathLike[str] | PreTrainedModel"


def load(
    name_or_path_or_model: Loadable | None = None,
    *,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
) -> Model:
    """Load a pretrained model and its tokenizer.

    Parameters
    ----------
    name_or_path_or_model : a hub name ("bert-base-uncased"), a local folder, a transformers model
        that is already loaded (it is left as it is), or None for the bundled all-MiniLM-L6-v2.
    tokenizer : by default the one that lies beside the model.
    device : "auto" takes CUDA where there is one.
    dtype : "float32", "bfloat16", …; None keeps what the weights were saved in.

    Raises
    ------
    ModelError : the model cannot be found or trusted; only safetensors are read, and no code from
        a hub is run.
    InputError : an unknown device or dtype, or an object that is no transformers model.
    """
    return Model(
        load_checkpoint(name_or_path_or_model, tokenizer=tokenizer, device=device, dtype=dtype)
    )


@overload
def attend(
    text: str,
    *,
    pair: str | None = None,
    target: str | None = None,
    model: Model | Loadable | None = None,
    truncate: bool = False,
) -> AttentionResult: ...
@overload
def attend(
    text: Texts,
    *,
    pair: Texts | None = None,
    target: Texts | None = None,
    model: Model | Loadable | None = None,
    truncate: bool = False,
) -> list[AttentionResult]: ...
def attend(
    text: str | Texts,
    *,
    pair: str | Texts | None = None,
    target: str | Texts | None = None,
    model: Model | Loadable | None = None,
    truncate: bool = False,
) -> AttentionResult | list[AttentionResult]:
    """Run a model on a text and return every head's attention, proven to be the model's own.

    Parameters
    ----------
    text : one text, or several to run as one padded batch.
    pair : the second text of a sentence pair (or one for each text).
    target : for an encoder–decoder, what the decoder is to say (or one for each text).
    model : from `load`, or what `load` takes; by default the bundled all-MiniLM-L6-v2.
    truncate : cut a text that is longer than the model can read, instead of refusing it.

    Returns
    -------
    One result, or a list of them where several texts were given.

    Raises
    ------
    InputError : an empty text, or one longer than the model can read.
    ModelError : the model's attention cannot be seen or verified.
    """
    model = model if isinstance(model, Model) else load(model)
    texts = _as_texts(text, "text")
    pairs, targets = (
        _one_for_each(texts, given, what) for given, what in ((pair, "pair"), (target, "target"))
    )
    results = model.attend_batch(texts, pairs, targets, truncate=truncate)
    return results[0] if isinstance(text, str) else results


def verify(
    text: str,
    *,
    pair: str | None = None,
    target: str | None = None,
    model: Model | Loadable | None = None,
    truncate: bool = False,
) -> AgreementReport:
    """Run a model on a text and report how its attention agrees with ours, head by head.

    Parameters and errors are those of `attend`.
    """
    return attend(text, pair=pair, target=target, model=model, truncate=truncate).agreement


@dataclass(frozen=True, eq=False)
class Model:
    """A pretrained model with its tokenizer; made by `load`."""

    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        """What captions call the model."""
        return self.checkpoint.name

    @property
    def module(self) -> PreTrainedModel:
        """The transformers model."""
        return self.checkpoint.module

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self.checkpoint.tokenizer

    @overload
    def attend(
        self,
        text: str,
        *,
        pair: str | None = None,
        target: str | None = None,
        truncate: bool = False,
    ) -> AttentionResult: ...
    @overload
    def attend(
        self,
        text: Texts,
        *,
        pair: Texts | None = None,
        target: Texts | None = None,
        truncate: bool = False,
    ) -> list[AttentionResult]: ...
    def attend(
        self,
        text: str | Texts,
        *,
        pair: str | Texts | None = None,
        target: str | Texts | None = None,
        truncate: bool = False,
    ) -> AttentionResult | list[AttentionResult]:
        """Do what `attnviz.attend` does, with this model."""
        return attend(text, pair=pair, target=target, model=self, truncate=truncate)  # type: ignore[arg-type]

    def attend_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        *,
        truncate: bool = False,
    ) -> list[AttentionResult]:
        """Run the texts as one batch, padded on the right, and return a result for each."""
        batch = encode(self.checkpoint, texts, pairs, targets, truncate=truncate)
        captures = capture(self.module, batch.inputs, batch.axes)
        sha256 = self.checkpoint.current_sha256()
        versions = {name: version(name) for name in ("attnviz", "torch", "transformers")}
        results = []
        for n, found in enumerate(captures):
            agreement = verify_records(
                found.records,
                found.references,
                versions=versions,
                weights_sha256=sha256,
            )
            provenance = Provenance(
                model=self.name,
                weights_sha256=sha256,
                text=texts[n],
                pair=None if pairs is None else pairs[n],
                dtype=agreement.dtype,
                device=agreement.device,
                versions=versions,
                target=None if targets is None else targets[n],
                cut_from=batch.cut_from[n],
            )
            results.append(AttentionResult(found.records, agreement, provenance))
        return results


def _one_for_each(texts: Sequence[str], given: str | Texts | None, what: str) -> list[str] | None:
    if given is None:
        return None
    found = _as_texts(given, what)
    if len(found) != len(texts):
        raise InputError(f"Expected a {what} for each of {len(texts)} texts, got {len(found)}.")
    return found


def _as_texts(text: str | Texts, what: str) -> list[str]:
    texts = list(text) if isinstance(text, list | tuple) else [text]
    for each in texts:
        if not isinstance(each, str):
            raise InputError(
                f"Expected {what} to be a string, or a list of them, got {type(each).__name__}."
            )
        if not each.strip():
            raise InputError(f"Expected a {what} with at least one word, got an empty one.")
    if not texts:
        raise InputError(f"Expected at least one {what}, got none.")
    return texts
