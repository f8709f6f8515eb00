"""What is written of numbers over a corpus: heads by statistics."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from torch import Tensor

from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.survey.result import HeadName, SurveyResult
from attnviz.io.contents import Contents, agreement_data, contents
from attnviz.io.tables import Columns, long_table, numbers_of


@contents.register
def _(drawn: SurveyResult) -> Contents:
    about = {
        **_corpus(drawn),
        "roles": list(drawn.roles),
        "clusters": list(drawn.clusters),
        "compared": drawn.compared,
        "sampled": drawn.sampled,
        "provenance": asdict(drawn.provenance),
        "agreement": agreement_data(drawn.agreement),
    }
    return Contents(_tensors(drawn), _labels(drawn), about)


@contents.register
def _(drawn: CompareResult) -> Contents:
    about = {
        **_corpus(drawn),
        "provenances": [asdict(each) for each in drawn.provenances],
        "agreements": [agreement_data(each) for each in drawn.agreements],
    }
    return Contents(_tensors(drawn), _labels(drawn), about)


@long_table.register(SurveyResult)
@long_table.register(CompareResult)
def _(drawn: SurveyResult | CompareResult) -> Columns:
    """One row for each head and statistic."""
    count = len(drawn.statistics)

    def each(values: Any) -> list[Any]:
        return [value for value in values for _ in range(count)]

    of_heads: Columns = {
        "stack": each(head.stack for head in drawn.heads),
        "layer": each(head.layer for head in drawn.heads),
        "head": each(head.head for head in drawn.heads),
    }
    if isinstance(drawn, SurveyResult):
        of_heads |= {"role": each(drawn.roles), "cluster": each(drawn.clusters)}
    of_heads["statistic"] = list(drawn.statistics) * len(drawn.heads)
    for name, tensor in _tensors(drawn).items():
        if tensor.dim() == 1:
            of_heads[name] = each(numbers_of(tensor))
        elif tensor.shape[1] == count:
            of_heads[name] = numbers_of(tensor)
    return of_heads


def _tensors(drawn: SurveyResult | CompareResult) -> dict[str, Tensor]:
    found = {field.name: getattr(drawn, field.name) for field in fields(drawn)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _labels(drawn: SurveyResult | CompareResult) -> dict[str, list[str]]:
    return {"head_names": _names(drawn.heads), "statistics": list(drawn.statistics)}


def _names(heads: tuple[HeadName, ...]) -> list[str]:
    return [f"{head.stack} {head.layer}.{head.head}" for head in heads]


def _corpus(drawn: SurveyResult | CompareResult) -> dict[str, Any]:
    return {"texts": drawn.texts, "tokens": drawn.tokens, "notes": list(drawn.notes)}
